/* The head and its cross-entropy (spec/glm-5.2.md 3.12). */
#ifndef TRAIN_HEAD_H
#define TRAIN_HEAD_H

#include "train/module.h"

struct head {
    struct model_param w; /* [V,H] */
    const int32_t *target;
    void *loss, *lse; /* recorded, [T] acc */
};

int head_fwd(struct head *h, struct run *r, const void *hidden, const int32_t *target);
int head_bwd(
    struct head *h, struct run *r, const void *hidden, double scale, void *dhidden);

#endif
