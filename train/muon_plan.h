/* Which matrices of a tensor Muon orthogonalises, as calls of the operation. Pure. */
#ifndef TRAIN_MUON_PLAN_H
#define TRAIN_MUON_PLAN_H

#include "train/optimizer.h"

struct muon_call { /* rows; times the tensor's columns gives kernels/ops.h's strides */
    int64_t first; /* row of the first matrix's first row */
    int64_t B, R;
    int64_t batch, run, leap; /* batch_stride, run and run_stride of struct muon */
    double rho;
};

struct muon_plan {
    bool muon; /* else AdamW, or neither for a router bias */
    int count;
    struct muon_call call[MUON_PARTS];
};

/* The plan of a row of the table under the options. GLM_EUSAGE names the tensor. */
int muon_plan(struct muon_plan *out, const struct table_entry *e,
    const struct optimizer_options *o, struct glm_error *err);
/* Coefficients of each step; returns how many, at most MUON_STEPS. */
int muon_coefficient_list(const struct optimizer_options *o, double out[MUON_STEPS][3]);
/* The first layout whose pattern matches, or -1. */
int muon_layout_of(const struct table_entry *e, const struct optimizer_options *o);

#endif
