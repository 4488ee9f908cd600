/* What the files of the optimizer share. */
#ifndef TRAIN_OPTIMIZER_INSIDE_H
#define TRAIN_OPTIMIZER_INSIDE_H

#include "train/muon_plan.h"

struct moments { /* of one tensor; NULL where its class has none */
    void *m;     /* AdamW's first moment, Muon's momentum */
    void *v;     /* AdamW's second */
};

struct optimizer {
    struct params *p;
    struct optimizer_options options;
    struct muon_plan *plan; /* [tensors], as the rest */
    struct moments *moments;
    bool *decay;
    signed char *group;  /* whose norm a gradient counts in: 0, 1 MTP apart, -1 none */
    int64_t *steps;      /* updates so far */
    int64_t *first_leaf; /* [tensors + 1] */
    double *leaves;      /* the host's */
    double *
        device_leaves; /* where the operation puts them: leaves, or the device's memory */
    double coeff[MUON_STEPS][3];
    int coeff_steps;
    void *arena; /* moments */
    void *block; /* where the operations are: leaves, and */
    struct step_rates *rates,
        *host_rates;       /* [tensors]: of the step; as the host fills them */
    double *report;        /* struct clip's */
    int64_t *device_first; /* first_leaf, group */
    int32_t *device_group;
    char *text; /* optimizer_text */
    size_t text_size;
};

/* The options as lines "name value", malloc'd, for a checkpoint. NULL: no memory. */
char *optimizer_text(const struct optimizer_options *o, size_t *size);

/* Names the first gradient that is not a number, if a leaf is none. */
int optimizer_check_leaves(const struct optimizer *o, struct glm_error *err);

#endif
