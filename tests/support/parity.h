/* The model against a golden file of fixtures/make_parity_golden.py. */
#ifndef TESTS_SUPPORT_PARITY_H
#define TESTS_SUPPORT_PARITY_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/base/dtype.h"
#include "kernels/base/error.h"

enum { PARITY_NAME = 128 };

struct parity_options {
    bool both; /* MTP and the indexer's loss on: against the float64 reference */
    bool absorbed;
    enum glm_dtype dtype; /* F32, F64; BF16: only bf16_cosine and the sets are set */
    bool choose;          /* BF16: with sets of its own instead of transformers' */
    int threads;
    const char *device; /* NULL: cpu */
};

struct parity {
    bool whole;                        /* every element of every gradient was compared */
    double logits, loss, mtp, kl;      /* largest difference over largest reference */
    int64_t index_wrong, expert_wrong; /* rows whose set is another */
    int64_t gradients, elements;
    /* the worst tensor's: 1 - cosine, max|d| / max|ref|, norm, sum over what the norm allows */
    double cosine, gradient, norm, sum;
    char worst[PARITY_NAME]; /* by gradient */
    char beyond[256];     /* the first quantity that is beyond its bound; empty: none */
    bool indexer_still;   /* without its loss, the indexer's gradients are exactly 0 */
    double bf16_gradient; /* the worst tensor's 1 - cosine, of a whole file */
    double bf16_cosine;   /* of the logits with those of transformers in bfloat16 */
};

/* Aborts where the model cannot run; GLM_EFORMAT for a golden file that lacks an array. */
int parity_run(struct parity *out, const char *path, const struct parity_options *o,
    struct glm_error *err);

#endif
