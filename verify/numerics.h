/* glm-verify numerics: does the model compute what a golden file says?
 *
 * A golden file (fixtures/make_parity_golden.py) holds a packed batch and what others made of it:
 * "transformers" are the sets, logits, cross-entropy and its gradients in float32; "float64" is an
 * independent reference with MTP and the indexer's loss on (logits and cross-entropy do not change
 * with them and stay transformers'); "transformers bf16" the logits of a bfloat16 run with the sets
 * it chose, and its gradients where the file is whole. Each quantity is one row with its worst difference, the bound on it, and where that
 * difference is. NaN is beyond any bound. */
#ifndef VERIFY_NUMERICS_H
#define VERIFY_NUMERICS_H

#include "train/train.h"

enum numerics_reference {
    NUMERICS_ALL, /* that the file has */
    NUMERICS_TRANSFORMERS,
    NUMERICS_FLOAT64
};

struct numerics_options {
    const char *golden;   /* path */
    enum glm_dtype dtype; /* F32, F64; BF16: against transformers bf16 alone */
    enum numerics_reference reference; /* not for BF16 */
    bool replay;                       /* use the recorded sets; always so in BF16 */
    bool choose; /* not even there: for who wants to know what near ties do to BF16 */
    bool absorbed;
    int threads;
    const char *device; /* a backend's name; NULL: cpu */
};

/* Quantities, in the order of the model: the first beyond its bound is where to look. */
enum numerics_quantity {
    NUMERICS_INDEX,         /* rows whose set of keys is another */
    NUMERICS_EXPERT,        /* rows whose set of experts is another */
    NUMERICS_LOGITS,        /* max|d| / max|reference|, as the next five */
    NUMERICS_LOGITS_COSINE, /* 1 - cosine */
    NUMERICS_LOSS,
    NUMERICS_MTP_LOSS,
    NUMERICS_INDEXER_LOSS,    /* per layer */
    NUMERICS_GRADIENT,        /* the worst tensor's elements */
    NUMERICS_GRADIENT_COSINE, /* the worst tensor's 1 - cosine */
    NUMERICS_GRADIENT_NORM,   /* relative */
    NUMERICS_GRADIENT_SUM,    /* |d| / (norm sqrt(n)): the most that the norm allows it */
    NUMERICS_INDEXER_GRADIENT, /* max|g| of indexers without their loss: exactly 0 */
    NUMERICS_QUANTITIES
};

struct numerics_row {
    const char *reference;
    enum numerics_quantity quantity;
    double worst, bound;
    int64_t compared; /* rows, numbers, tensors */
    char where[192];
};

struct numerics_report {
    struct numerics_row rows[2 * NUMERICS_QUANTITIES];
    int count;
    int first;  /* row beyond its bound; -1: none */
    bool whole; /* every element of every gradient was there to compare */
    bool replayed;
    int64_t elements; /* of gradients */
    double seconds;
};

const char *numerics_name(enum numerics_quantity q);

/* The model of a checkpoint. GLM_EMISMATCH names the first quantity beyond its bound; GLM_EFORMAT a
 * file that is not golden; GLM_EUSAGE what differs where checkpoint and file are of two models. */
int numerics_run(struct numerics_report *report, const char *ckpt,
    const struct numerics_options *o, struct glm_error *err);

/* A model in memory; params as model_new takes them, of type o->dtype, in the
 * host's memory whatever the device is. Gradients are overwritten. */
struct golden;
int numerics_compare(struct numerics_report *report, const struct golden *g,
    const struct table *table, const struct model_param *params,
    const struct numerics_options *o, struct glm_error *err);

#endif
