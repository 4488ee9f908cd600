/* Routed and shared experts (spec/glm-5.2.md 3.10, 3.11, 4.6). */
#ifndef TRAIN_MOE_H
#define TRAIN_MOE_H

#include "train/mlp.h"

struct moe {
    struct linear router;
    const float *bias;
    struct model_param gate, up, down; /* stacks [E,M,H], [E,M,H], [E,H,M] */
    struct mlp shared;                 /* gate.out 0: no shared expert */
    /* Recorded: */
    const int32_t *expert; /* [T,K] ascending: the choice, or the replay's */
    void *score, *weight;  /* [T,E], [T,K] acc */
    int32_t *token, *slot, *row, *offset;
    void *x;             /* [T*K,H] rows by expert */
    void *g, *u, *h, *f; /* [T*K,M] thrice; [T*K,H] */
};

/* given: recorded experts to use instead of the router's choice, or NULL. */
int moe_fwd(struct moe *m, struct run *r, const void *x, const int32_t *given, void *y);
int moe_bwd(struct moe *m, struct run *r, const void *x, const void *dy, void *dx);

#endif
