/* The head. The losses of rows come back one by one. */
#include "train/head.h"

int head_fwd(struct head *h, struct run *r, const void *hidden, const int32_t *target)
{
    h->target = target;
    h->loss = keep_acc(r, r->T);
    h->lse = keep_acc(r, r->T);
    if (r->late)
        return 0;
    return RUN(r, linear_ce_fwd, .loss = h->loss, .lse = h->lse, .h = hidden, .w = h->w.w,
        .target = target, .T = r->T, .V = r->c->vocab_size, .H = r->c->hidden_size,
        .dtype = r->dtype);
}

int head_bwd(
    struct head *h, struct run *r, const void *hidden, double scale, void *dhidden)
{
    return RUN(r, linear_ce_bwd, .dh = dhidden, .dw = h->w.dw, .h = hidden, .w = h->w.w,
        .lse = r->late ? NULL : h->lse, .loss = r->late ? h->loss : NULL,
        .its_lse = r->late ? h->lse : NULL, .target = h->target, .scale = scale,
        .T = r->T, .V = r->c->vocab_size, .H = r->c->hidden_size, .dtype = r->dtype);
}
