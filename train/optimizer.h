/* The optimizer: one update of every trained parameter, by the table's classes.
 *
 * Classes (ckpt/table.h): AdamW; Muon on a whole matrix or on each expert of a stack; Muon on the
 * two parts of each head apart (W_UQ, W_QR; W_UK, W_UV), each with its own Newton-Schulz and its own
 * scale; the router bias, which tokens per expert move. A muon_layout entry overrules the table.
 *
 * Order of a step (spec/training.md 5.1): gradients are checked and their norm taken; router biases;
 * masters; model copies (gradients and tokens per expert are the caller's to zero). A gradient that is
 * not a number stops before anything has changed. Bits do not depend on threads, nor, through the
 * canonical norm, on who holds what.
 *
 * What is published of GLM's optimizer: Muon with momentum 0.95, 5 Newton-Schulz steps, update RMS
 * 0.2, decay 0.1, on everything but word embedding, biases and norms. Not disclosed, so options here
 * (spec/training.md, Appendix A): Nesterov, coefficients, AdamW's betas and epsilon, clipping, decay
 * exclusions, the grouping of W_QR, kv_a, gate and up, indexer, router and head. */
#ifndef TRAIN_OPTIMIZER_H
#define TRAIN_OPTIMIZER_H

#include "kernels/kernels.h"
#include "train/params.h"

enum muon_coefficients { MUON_QUINTIC, MUON_SIMPLE, MUON_DEEPSEEKV4 };
enum muon_scale {
    MUON_SPECTRAL,      /* sqrt(max(rows, columns)) */
    MUON_SHAPE_SCALING, /* sqrt(max(1, rows/columns)) */
    MUON_UNIT_RMS       /* sqrt(rows/columns) */
};
enum muon_policy {
    MUON_EACH,     /* each repetition of the part is a matrix: per head */
    MUON_GATHERED, /* the part's rows of all repetitions are one matrix */
    MUON_ADAMW     /* the whole tensor by AdamW; no parts */
};

enum { MUON_PARTS = 4, MUON_STEPS = 32 };

/* How a tensor's rows (of each expert) are cut into matrices: parts of rows[0], rows[1], ... rows,
 * repeated to the end. No parts: one matrix. Examples for q_b with 64 heads of 192 and 64 rows:
 * {192 each, 64 each} is the default, {192 each, 64 gathered} has W_QR whole, {256 each} takes a
 * head at once, no parts the whole matrix; {512, 64} cuts latent and rope key in kv_a; pattern "*" with
 * MUON_ADAMW is a run with AdamW alone. */
struct muon_layout {
    /* of logical names, as fnmatch(3): "*.self_attn.q_b_proj.weight" */
    const char *pattern;
    int parts;
    int64_t rows[MUON_PARTS];
    enum muon_policy policy[MUON_PARTS]; /* policy[0] == MUON_ADAMW: AdamW, parts is 0 */
};

struct optimizer_options { /* begin with optimizer_defaults() */
    /* Muon */
    double muon_momentum; /* 0.95; EMA form: m += (1-momentum)(g-m) */
    bool muon_nesterov;   /* off */
    /* quintic; a longer run of steps repeats the last */
    enum muon_coefficients muon_coefficients;
    int muon_steps;                   /* 5; 0: the set's own count: 5, 5, 10 */
    enum muon_scale muon_scale;       /* spectral */
    double muon_extra_scale;          /* 0.2 */
    bool muon_low_precision;          /* matrices rounded to BF16 between products; off */
    const struct muon_layout *layout; /* the first pattern that matches; borrowed */
    int layouts;
    /* AdamW */
    double adam_beta1, adam_beta2, adam_eps; /* 0.9, 0.95, 1e-8 */
    /* both */
    /* patterns without decay, besides the table's vectors; borrowed */
    const char *const *no_decay;
    int no_decays;
    bool decay_vectors; /* decay norms and biases, too */
    double clip;        /* 1.0; 0: none */
    bool mtp_apart;     /* MTP layers have a norm and a coefficient of their own
                                  (mtp_detach_heads) */
    /* router bias */
    double bias_rate;     /* 1e-3; 0: frozen */
    bool bias_fp32_count; /* compare with the F32 mean, as Megatron does, not exactly */
};

struct optimizer_options optimizer_defaults(void);
/* The recipe's names: "simple", "quintic", "deepseekv4"; "spectral", "shape_scaling", "unit_rms". */
int muon_coefficients_find(
    const char *name, enum muon_coefficients *out, struct glm_error *err);
int muon_scale_find(const char *name, enum muon_scale *out, struct glm_error *err);

struct optimizer_bytes {       /* with what alignment costs */
    size_t adamw, muon, total; /* total: with step counts and the norm's leaves */
    size_t scratch; /* the most that Newton-Schulz takes at once for one matrix */
};
/* What optimizer_new would take, without memory and without params. */
int optimizer_plan(struct optimizer_bytes *out, const struct table *t,
    const struct params_options *p, const struct optimizer_options *o,
    struct glm_error *err);

struct optimizer;

/* All memory at once; moments, momentum and counts are 0. p is borrowed, options' arrays too.
 * GLM_EUSAGE names an option out of range, a layout that does not fit its tensor, a pattern that
 * matches nothing. */
int optimizer_new(struct optimizer **out, struct params *p,
    const struct optimizer_options *o, struct glm_error *err);
void optimizer_free(struct optimizer *o);

struct optimizer_step {
    double lr, decay; /* of this step: schedule_lr, schedule_weight_decay */
    /* gradients are multiplied by it: 1/tokens (spec/training.md 5.2) */
    double grad_scale;
};

struct optimizer_report {
    double norm, clip;         /* of scaled gradients; the coefficient that was applied */
    double mtp_norm, mtp_clip; /* with mtp_apart; else 0 and 1 */
};

/* The scratch memory that an update will want from whoever lends it to the stream; 0 on the CPU. */
int optimizer_scratch(struct optimizer *o, const struct kernels *k, glm_stream stream,
    size_t *bytes, struct glm_error *err);

/* GLM_EFORMAT "gradient of X, element [r,c], is nan": nothing has changed. */
int optimizer_update(struct optimizer *o, const struct optimizer_step *step,
    const struct kernels *k, glm_stream stream, struct optimizer_report *report,
    struct glm_error *err);
/* The same in three parts. begin puts the step's rates where operations read them; queue takes norm,
 * clipping and every update without the host, so that it can be recorded and run again (kernels.h);
 * end waits and reads. The operations themselves change nothing where a gradient, or one of the
 * `watch` numbers at `watched` in the backend's memory, is not a number: end's GLM_EFORMAT. */
int optimizer_begin(
    struct optimizer *o, const struct optimizer_step *step, struct glm_error *err);
int optimizer_queue(struct optimizer *o, const double *watched, int64_t watch,
    const struct kernels *k, glm_stream stream, struct glm_error *err);
int optimizer_end(struct optimizer *o, const struct kernels *k, glm_stream stream,
    struct optimizer_report *report, struct glm_error *err);

/* The norm's leaves, for owners of parts: optimizer_leaves computes those of tensor i. */
const int64_t *optimizer_leaf_index(const struct optimizer *o); /* [tensors + 1] */
double *optimizer_leaf_array(struct optimizer *o);
int optimizer_leaves(struct optimizer *o, int64_t i, const struct kernels *k,
    glm_stream stream, struct glm_error *err);

/* Adds opt/m, opt/v, opt/momentum and, to section train, "optimizer_steps" (I64, one per row of the
 * table) and "optimizer" (U8: the options as lines "name value"). */
int optimizer_state(struct optimizer *o, struct train_tensors *t, struct glm_error *err);
/* Reads them again, bit for bit. Other options than the checkpoint's: GLM_EUSAGE names the first.
 * What the checkpoint's run did not train begins with zero moments at step 0. */
int optimizer_load(struct optimizer *o, struct reader *r, struct glm_error *err);

#endif
