/* LayerNorm over the last axis. One row's bits depend on that row alone. */
#include "kernels/cpu/check.h"
#include "kernels/cpu/columns.h"
#include "kernels/cpu/mutate.h"
#include "kernels/cpu/pool.h"

enum { ROWS = 16 };

#ifdef MUTATE_NORM_UNCENTRED
#define CENTRE(mean) ((void)(mean), (real)0)
#else
#define CENTRE(mean) (mean)
#endif

LANES_CLONES static void fwd_rows(const void *ctx, int64_t begin, int64_t end)
{
    const struct layernorm_fwd *p = ctx;
    const int64_t D = p->D;
    const elem *w = p->w, *b = p->b;

    for (int64_t t = begin; t < end; t++) {
        const elem *x = (const elem *)p->x + t * D;
        elem *y = (elem *)p->y + t * D;
        real sum, squares;
        LANES_SUM(sum, D, get(x[d]));
        const real mean = CENTRE(sum / (real)D);
        LANES_SUM(squares, D, (get(x[d]) - mean) * (get(x[d]) - mean));
        const real rstd = 1 / (real)sqrt(squares / (real)D + (real)p->eps);
        ((real *)p->mean)[t] = mean;
        ((real *)p->rstd)[t] = rstd;
        for (int64_t d = 0; d < D; d++)
            y[d] = put((get(x[d]) - mean) * rstd * get(w[d]) + get(b[d]));
    }
}

OP_FN(layernorm_fwd)
{
    if (p->T < 0 || p->D <= 0)
        return CHECK_SHAPE2(err, "layernorm_fwd", "T %lld, D %lld", p->T, p->D);
    pool_for(stream, p->T, ROWS, fwd_rows, p);
    return 0;
}

LANES_CLONES static void bwd_rows(const void *ctx, int64_t begin, int64_t end)
{
    const struct layernorm_bwd *p = ctx;
    const int64_t D = p->D;
    const elem *w = p->w;

    for (int64_t t = begin; t < end; t++) {
        const elem *x = (const elem *)p->x + t * D, *dy = (const elem *)p->dy + t * D;
        elem *dx = (elem *)p->dx + t * D;
        const real mean = ((const real *)p->mean)[t], rstd = ((const real *)p->rstd)[t];
        real sum, dot;
        LANES_SUM(sum, D, get(dy[d]) * get(w[d]));
        LANES_SUM(dot, D, get(dy[d]) * get(w[d]) * ((get(x[d]) - mean) * rstd));
        const real mean_d = CENTRE(sum / (real)D), mean_dot = dot / (real)D;
        for (int64_t d = 0; d < D; d++)
            dx[d] = put(rstd
                * (get(dy[d]) * get(w[d]) - mean_d
                    - (get(x[d]) - mean) * rstd * mean_dot));
    }
}

LANES_CLONES static void bwd_weight(const void *ctx, int64_t begin, int64_t end)
{
    const struct layernorm_bwd *p = ctx;
    const elem *x = p->x, *dy = p->dy;
    const real *mean = p->mean, *rstd = p->rstd;

    COLUMN_SUMS((real *)p->dw, begin, end, p->T,
        get(dy[t * p->D + d]) * ((get(x[t * p->D + d]) - mean[t]) * rstd[t]));
    COLUMN_SUMS((real *)p->db, begin, end, p->T, get(dy[t * p->D + d]));
}

/* dw and db first: dx may take the place of dy. */
OP_FN(layernorm_bwd)
{
    if (p->T < 0 || p->D <= 0)
        return CHECK_SHAPE2(err, "layernorm_bwd", "T %lld, D %lld", p->T, p->D);
    pool_each(stream, p->D, COLUMN_TILE, bwd_weight, p);
    pool_for(stream, p->T, ROWS, bwd_rows, p);
    return 0;
}
