/* The parameters of a model: what the table lists, in memory, sized once.
 *
 * Each row of the table has a model copy `w` of the model's type (the router bias F32 always). What
 * is trained has a gradient in F32 (F64 with F64), and in BF16 an F32 master of which w is the
 * rounding to nearest even; with F32 and F64 w itself is the master. A router bias has a count of
 * tokens per expert instead of a gradient. What is frozen has w alone.
 *
 * A frozen parameter keeps the bits it was loaded with. */
#ifndef TRAIN_PARAMS_H
#define TRAIN_PARAMS_H

#include "train/tensors.h"

enum params_trained { /* spec/training.md 1.7 */
    PARAMS_ALL,
    PARAMS_INDEXER, /* indexer warm-up: all else, router biases too, is frozen */
    PARAMS_NO_INDEXER
};

struct params_options {
    enum glm_dtype dtype; /* BF16, F32, F64 */
    enum params_trained trained;
    struct home home; /* where they lie; k NULL: the host */
    int threads;      /* that fill, load and look at a state; below 1: 1 */
};

struct param {
    const struct table_entry *entry;
    int64_t count; /* elements */
    bool trained;
    enum glm_dtype dtype; /* of w */
    void *w;
    void *master;    /* acc; w itself where that is the master; NULL if frozen */
    void *grad;      /* acc; NULL if frozen and for a router bias */
    int64_t *routed; /* [E] tokens per expert since params_zero_grads, in a gradient's
                        place; NULL but for a trained router bias */
};

struct params {
    const struct table *table; /* borrowed */
    struct params_options options;
    enum glm_dtype acc; /* of masters and gradients */
    int64_t count;
    struct param *p; /* [count], table order */
    struct home home;
    void *arena;
    size_t grads_at, grads_bytes; /* gradients lie together in the arena */
};

struct params_bytes { /* with what alignment costs */
    size_t model, master, gradient, total;
};

/* Whether the options train a row of the table. */
bool params_trains(const struct params_options *o, const struct table_entry *e);

/* Sizes without memory, for planning. GLM_EUSAGE: no such type. */
int params_plan(struct params_bytes *out, const struct table *t,
    const struct params_options *o, struct glm_error *err);

/* All memory at once: gradients and counts are 0, the rest is undefined until init or load. */
int params_new(struct params **out, const struct table *t, const struct params_options *o,
    struct glm_error *err);
void params_free(struct params *p);

/* Seeded weights that depend on no topology: element i of a tensor is random_normal of
 * (seed, "init", logical name, i), in F32, times initializer_range for matrices; a norm's weight is
 * 1; biases and router biases are 0. A stack counts through its experts. F64 has the same values. */
int params_init(struct params *p, uint32_t seed, struct glm_error *err);

/* From a checkpoint: masters where it has them, else weights; BF16, F16, F32 and F64 are converted. */
int params_load(struct params *p, struct reader *r, struct glm_error *err);

/* w = rounded masters (nothing to do where w is the master). Tensor i alone. */
int params_round(struct params *p, int64_t i, struct glm_error *err);
/* And the tokens per expert. */
int params_zero_grads(struct params *p, struct glm_error *err);

/* Adds weights, and masters where there are, to the list. */
int params_state(const struct params *p, struct train_tensors *t, struct glm_error *err);

#endif
