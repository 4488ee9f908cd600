/* Movement between tokens and the rows of experts. Every row is written by one item of work, from
 * its own slots in their order: nothing is added up across items. */
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/pool.h"

#include <inttypes.h>
#include <string.h>

enum { GRAIN = 16, STRIP = 256 };

static int check_rows(const char *op, const int32_t *row, int64_t n, int64_t rows,
    int64_t H, struct glm_error *err)
{
    if (H < 1 || rows < 0 || n < 0 || n > INT32_MAX)
        return glm_fail(err, GLM_EFORMAT,
            "%s: %" PRId64 " rows of %" PRId64 " elements, for %" PRId64, op, rows, H, n);
    for (int64_t i = 0; i < n; i++) {
        if (row[i] < 0 || row[i] >= rows)
            return glm_fail(err, GLM_EFORMAT,
                "%s: row number %" PRId64 " is %" PRId32 ", expected 0 to %" PRId64, op,
                i, row[i], rows - 1);
    }
    return 0;
}

/* ---- to the experts --------------------------------------------------------------------------- */

static void gather_range(const void *ctx, int64_t begin, int64_t end)
{
    const struct moe_gather *p = ctx;

    for (int64_t r = begin; r < end; r++)
        memcpy((elem *)p->y + r * p->H, (const elem *)p->x + p->token[r] * p->H,
            (size_t)p->H * sizeof(elem));
}

OP_FN(moe_gather)
{
    const int code = check_rows("moe_gather", p->token, p->rows, p->T, p->H, err);

    if (code == 0)
        pool_for(stream, p->rows, GRAIN, gather_range, p);
    return code;
}

/* A strip of a row at a time, its sums on the stack. */
LANES_BODY void gather_bwd_strip(
    const struct moe_gather_bwd *p, int64_t t, int64_t h, int64_t n)
{
    const elem *add1 = p->add1, *add2 = p->add2;
    elem *dx = (elem *)p->dx + t * p->H + h;
    real sum[STRIP] = {0};

    for (int64_t k = 0; k < p->K; k++) {
        const elem *dy = (const elem *)p->dy + p->row[t * p->K + k] * p->H + h;
        for (int64_t i = 0; i < n; i++)
            sum[i] += get(dy[i]);
    }
    for (int64_t i = 0; add1 != NULL && i < n; i++)
        sum[i] += get(add1[t * p->H + h + i]);
    for (int64_t i = 0; add2 != NULL && i < n; i++)
        sum[i] += get(add2[t * p->H + h + i]);
    for (int64_t i = 0; i < n; i++)
        dx[i] = put(sum[i]);
}

LANES_CLONES static void gather_bwd_range(const void *ctx, int64_t begin, int64_t end)
{
    const struct moe_gather_bwd *p = ctx;

    for (int64_t t = begin; t < end; t++) {
        for (int64_t h = 0; h < p->H; h += STRIP)
            gather_bwd_strip(p, t, h, p->H - h < STRIP ? p->H - h : STRIP);
    }
}

OP_FN(moe_gather_bwd)
{
    const int code =
        check_rows("moe_gather_bwd", p->row, p->T * p->K, p->T * p->K, p->H, err);

    if (code == 0)
        pool_for(stream, p->T, GRAIN, gather_bwd_range, p);
    return code;
}

/* ---- back to the tokens ----------------------------------------------------------------------- */

LANES_BODY void combine_strip(
    const struct moe_combine_fwd *p, int64_t t, int64_t h, int64_t n)
{
    const elem *shared = p->shared;
    elem *y = (elem *)p->y + t * p->H + h;
    real sum[STRIP] = {0};

    for (int64_t k = 0; k < p->K; k++) {
        const elem *f = (const elem *)p->f + p->row[t * p->K + k] * p->H + h;
        const real w = ((const real *)p->weight)[t * p->K + k];
        if (p->hf_rounding) {
            for (int64_t i = 0; i < n; i++)
                sum[i] = low(sum[i] + low(w * get(f[i])));
        } else {
            for (int64_t i = 0; i < n; i++)
                sum[i] += w * get(f[i]);
        }
    }
    for (int64_t i = 0; shared != NULL && i < n; i++)
        sum[i] += get(shared[t * p->H + h + i]);
    for (int64_t i = 0; i < n; i++)
        y[i] = put(sum[i]);
}

LANES_CLONES static void combine_range(const void *ctx, int64_t begin, int64_t end)
{
    const struct moe_combine_fwd *p = ctx;

    for (int64_t t = begin; t < end; t++) {
        for (int64_t h = 0; h < p->H; h += STRIP)
            combine_strip(p, t, h, p->H - h < STRIP ? p->H - h : STRIP);
    }
}

OP_FN(moe_combine_fwd)
{
    const int code =
        check_rows("moe_combine_fwd", p->row, p->T * p->K, p->T * p->K, p->H, err);

    if (code == 0)
        pool_for(stream, p->T, GRAIN, combine_range, p);
    return code;
}

LANES_CLONES static void combine_bwd_range(const void *ctx, int64_t begin, int64_t end)
{
    const struct moe_combine_bwd *p = ctx;

    for (int64_t i = begin; i < end; i++) {
        const elem *dy = (const elem *)p->dy + i / p->K * p->H;
        const elem *f = (const elem *)p->f + p->row[i] * p->H;
        elem *restrict df = (elem *)p->df + p->row[i] * p->H;
        const real w = ((const real *)p->weight)[i];
        real sum;
        LANES_SUM(sum, p->H, get(dy[d]) * get(f[d]));
        ((real *)p->dweight)[i] = sum;
        for (int64_t h = 0; h < p->H; h++)
            df[h] = put(w * get(dy[h]));
    }
}

OP_FN(moe_combine_bwd)
{
    const int code =
        check_rows("moe_combine_bwd", p->row, p->T * p->K, p->T * p->K, p->H, err);

    if (code == 0)
        pool_for(stream, p->T * p->K, GRAIN, combine_bwd_range, p);
    return code;
}
