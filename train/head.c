/* The head. The losses of rows come back one by one; their sum is the host's, in double. */
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

double head_sum(const struct run *r, const void *x)
{
    double sum = 0;
    if (!r->dry && !r->k->host) {
        if (r->k->to_host(
                r->host_rows, x, (size_t)r->T * glm_dtype_size(r->acc), r->stream, r->err)
            != 0)
            return 0;
        x = r->host_rows;
    }
    for (int64_t t = 0; !r->dry && t < r->T; t++)
        sum += r->acc == GLM_F64 ? ((const double *)x)[t] : (double)((const float *)x)[t];
    return sum;
}
