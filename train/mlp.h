/* SwiGLU: down( silu(gate x) * (up x) ) (spec/glm-5.2.md 3.11, 4.5). */
#ifndef TRAIN_MLP_H
#define TRAIN_MLP_H

#include "train/module.h"

struct mlp {
    struct linear gate, up, down;
    void *g, *u, *h; /* recorded, [T,I] each */
};

int mlp_fwd(struct mlp *m, struct run *r, const void *x, void *y);
int mlp_bwd(struct mlp *m, struct run *r, const void *x, const void *dy, void *dx);

/* The elementwise part alone, on n elements; the experts use it too. */
int mlp_act_fwd(struct run *r, const void *g, const void *u, void *h, int64_t n);
int mlp_act_bwd(struct run *r, const void *g, const void *u, const void *dh, void *dg,
    void *du, int64_t n);

#endif
