/* A decoder layer: norm, attention, residual, norm, MLP or experts, residual (spec 3.3). */
#ifndef TRAIN_LAYER_H
#define TRAIN_LAYER_H

#include "train/indexer.h"
#include "train/moe.h"

struct layer {
    int64_t number;
    bool owns_indexer, dense;
    struct norm norm1, norm2;
    struct mla mla;
    struct indexer indexer;
    struct mlp mlp;
    struct moe moe;
    /* Recorded: */
    const void *x;        /* [T,H], the caller's */
    void *a, *x1, *b;     /* [T,H] normed, behind attention, normed */
    const int32_t *index; /* [T,K]; NULL: all visible keys */
};

/* index: the set that a layer without an indexer uses. given_index, given_expert: a replay, or NULL.
 * x must last until backward. */
int layer_fwd(struct layer *l, struct run *r, const void *x, const int32_t *index,
    const int32_t *given_index, const int32_t *given_expert, void *y);
/* dx must not be dy. */
int layer_bwd(struct layer *l, struct run *r, const void *dy, void *dx);
/* The indexer's loss and its gradients alone. */
int layer_bwd_indexer(struct layer *l, struct run *r);

#endif
