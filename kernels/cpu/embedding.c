/* Embedding: rows of a table by id, and the sum of gradients per id. */
#include <string.h>

#include "kernels/cpu/check.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/pool.h"

static void fwd_rows(const void *ctx, int64_t begin, int64_t end)
{
    const struct embedding_fwd *p = ctx;
    const elem *table = p->table;
    elem *y = p->y;

    for (int64_t t = begin; t < end; t++)
        memcpy(y + t * p->H, table + p->ids[t] * p->H, (size_t)p->H * sizeof *y);
}

OP_FN(embedding_fwd)
{
    if (p->T < 0 || p->V <= 0 || p->H <= 0)
        return CHECK_SHAPE3(
            err, "embedding_fwd", "T %lld, V %lld, H %lld", p->T, p->V, p->H);
    if (check_ids("embedding_fwd", "id", p->ids, p->T, 0, p->V, err) != 0)
        return err->code;
    pool_each(stream, p->T, 32, fwd_rows, p);
    return 0;
}

/* Columns [begin, end) of all rows, in ascending t: threads share columns, never a sum. */
LANES_CLONES static void bwd_columns(const void *ctx, int64_t begin, int64_t end)
{
    const struct embedding_bwd *p = ctx;

    for (int64_t t = 0; t < p->T; t++) {
        real *restrict d = (real *)p->dtable + p->ids[t] * p->H;
        const elem *restrict dy = (const elem *)p->dy + t * p->H;
        if (p->ids[t] == p->skip_id)
            continue;
        for (int64_t i = begin; i < end; i++)
            d[i] += get(dy[i]);
    }
}

OP_FN(embedding_bwd)
{
    if (p->T < 0 || p->V <= 0 || p->H <= 0)
        return CHECK_SHAPE3(
            err, "embedding_bwd", "T %lld, V %lld, H %lld", p->T, p->V, p->H);
    if (check_ids("embedding_bwd", "id", p->ids, p->T, 0, p->V, err) != 0)
        return err->code;
    pool_each(stream, p->H, 64, bwd_columns, p);
    return 0;
}
