/* RMSNorm over the last axis. One row's bits depend on that row alone. */
#include "kernels/cpu/check.h"
#include "kernels/cpu/columns.h"
#include "kernels/cpu/pool.h"

enum { ROWS = 16 };

LANES_CLONES static void fwd_rows(const void *ctx, int64_t begin, int64_t end)
{
    const struct rmsnorm_fwd *p = ctx;
    const int64_t D = p->D, stride = p->x_stride == 0 ? D : p->x_stride;
    const elem *w = p->w;

    for (int64_t t = begin; t < end; t++) {
        const elem *x = (const elem *)p->x + t * stride;
        elem *y = (elem *)p->y + t * D;
        real squares;
        LANES_SUM(squares, D, get(x[d]) * get(x[d]));
        const real rstd = 1 / (real)sqrt(squares / (real)D + (real)p->eps);
        ((real *)p->rstd)[t] = rstd;
        for (int64_t d = 0; d < D; d++)
            y[d] = put(get(w[d]) * low(get(x[d]) * rstd));
    }
}

OP_FN(rmsnorm_fwd)
{
    if (p->T < 0 || p->D <= 0 || (p->x_stride != 0 && p->x_stride < p->D))
        return CHECK_SHAPE3(
            err, "rmsnorm_fwd", "T %lld, D %lld, x_stride %lld", p->T, p->D, p->x_stride);
    pool_for(stream, p->T, ROWS, fwd_rows, p);
    return 0;
}

LANES_CLONES static void bwd_rows(const void *ctx, int64_t begin, int64_t end)
{
    const struct rmsnorm_bwd *p = ctx;
    const int64_t D = p->D, x_stride = p->x_stride == 0 ? D : p->x_stride;
    const int64_t dx_stride = p->dx_stride == 0 ? D : p->dx_stride;
    const elem *w = p->w;

    for (int64_t t = begin; t < end; t++) {
        const elem *x = (const elem *)p->x + t * x_stride,
                   *dy = (const elem *)p->dy + t * D;
        const elem *add = p->dx_add == NULL ? NULL : (const elem *)p->dx_add + t * D;
        elem *dx = (elem *)p->dx + t * dx_stride;
        const real rstd = ((const real *)p->rstd)[t];
        real dot;
        LANES_SUM(dot, D, get(dy[d]) * get(w[d]) * (get(x[d]) * rstd));
        const real mean = dot / (real)D;
        if (add == NULL) {
            for (int64_t d = 0; d < D; d++)
                dx[d] = put(rstd * (get(dy[d]) * get(w[d]) - get(x[d]) * rstd * mean));
        } else {
            for (int64_t d = 0; d < D; d++)
                dx[d] = put(rstd * (get(dy[d]) * get(w[d]) - get(x[d]) * rstd * mean)
                    + get(add[d]));
        }
    }
}

LANES_CLONES static void bwd_weight(const void *ctx, int64_t begin, int64_t end)
{
    const struct rmsnorm_bwd *p = ctx;
    const int64_t stride = p->x_stride == 0 ? p->D : p->x_stride;
    const elem *x = p->x, *dy = p->dy;
    const real *rstd = p->rstd;

    COLUMN_SUMS((real *)p->dw, begin, end, p->T,
        get(dy[t * p->D + d]) * low(get(x[t * stride + d]) * rstd[t]));
}

/* dw first: dx may take the place of dy. */
OP_FN(rmsnorm_bwd)
{
    if (p->T < 0 || p->D <= 0 || (p->x_stride != 0 && p->x_stride < p->D)
        || (p->dx_stride != 0 && p->dx_stride < p->D))
        return CHECK_SHAPE4(err, "rmsnorm_bwd",
            "T %lld, D %lld, x_stride %lld, dx_stride %lld", p->T, p->D, p->x_stride,
            p->dx_stride);
    pool_each(stream, p->D, COLUMN_TILE, bwd_weight, p);
    pool_for(stream, p->T, ROWS, bwd_rows, p);
    return 0;
}
