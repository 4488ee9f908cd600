/* Floating-point operations of a training step, as exact integers.
 *
 * Counted by the audited convention of spec/training.md 9.2: a multiply-add is 2; backward is twice
 * forward where both inputs learn; attention in its absorbed form, on the pairs that are selected;
 * the indexer's projections without a gradient to their input; no router, no softmax, no norm (but
 * the width's "+1" of latent and MTP norms), no optimizer. A figure in TFLOP/s is meaningless
 * without its convention: FLOPS_CONVENTION goes with it. Pure. */
#ifndef TRAIN_FLOPS_H
#define TRAIN_FLOPS_H

#include "ckpt/ckpt.h"

#define FLOPS_CONVENTION "audited-9.2"

enum flops_part {
    FLOPS_MLP,
    FLOPS_HEAD,
    FLOPS_PROJ, /* attention's projections */
    FLOPS_CORE, /* scores and values */
    FLOPS_IDXP, /* the indexer's projections */
    FLOPS_IDXS, /* its scores */
    FLOPS_EH,   /* the MTP layer's joining of embedding and hidden state */
    FLOPS_PARTS
};
const char *flops_part_name(enum flops_part p); /* "mlp", … */

enum flops_indexer {
    FLOPS_INDEXER_OFF,
    FLOPS_INDEXER_ONLY_FORWARD,
    FLOPS_INDEXER_SPARSE,
    FLOPS_INDEXER_DENSE
};

struct flops_options {
    int64_t mtp_depth;    /* D; 0: MTP is not trained */
    bool mtp_detached;    /* the head gets no gradient from MTP */
    bool mtp_tv;          /* one more pass of the head for the target distribution */
    bool mtp_kv_share;    /* depths behind the first use its keys, values and index set */
    bool dense_attention; /* all visible keys */
    enum flops_indexer indexer; /* its forward; and its loss over chosen or all keys */
};

/* Lengths of sequences as they are counted: only their sums matter, so a step adds up. */
struct flops_rows {
    int64_t tokens;         /* T */
    uint64_t dense, sparse; /* pairs: of all visible keys; of at most topk of them */
};

struct flops {
    uint64_t part[FLOPS_PARTS], total;
};

/* Adds `count` sequences of `length` valid rows each. GLM_EUSAGE: out of what 64 bits hold. */
int flops_add(struct flops_rows *rows, int64_t length, int64_t count, int64_t topk,
    struct glm_error *err);
int flops_count(struct flops *out, const struct model_config *c,
    const struct flops_options *o, const struct flops_rows *rows, struct glm_error *err);

/* 1e12 operations a second. */
double flops_tera(uint64_t total, double seconds);
/* Of a peak in TFLOP/s over all devices; NaN if the peak is not known (0). */
double flops_mfu(uint64_t total, double seconds, double peak_tflops);

#endif
