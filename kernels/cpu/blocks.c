/* Blocks between layouts: heads taken apart and put together, one key served to all heads. */
#include <string.h>

#include "kernels/cpu/check.h"
#include "kernels/cpu/mode.h"
#include "kernels/cpu/pool.h"

static inline real at(const struct blocks *p, const void *x, int64_t i)
{
    return p->acc_in ? ((const real *)x)[i] : get(((const elem *)x)[i]);
}

static void one(const struct blocks *p, int64_t t, int64_t n)
{
    elem *y = (elem *)p->y + t * p->y_row + n * p->y_head;
    const int64_t x = t * p->x_row + n * p->x_head, a = t * p->add_row + n * p->add_head;
    if (!p->add && !p->acc_in) {
        memcpy(y, (const elem *)p->x + x, (size_t)p->D * sizeof(elem));
        return;
    }
    for (int64_t d = 0; d < p->D; d++)
        y[d] = put(at(p, p->x, x + d) + (p->add ? at(p, p->add, a + d) : 0));
}

static void total(const struct blocks *p, int64_t t)
{
    elem *y = (elem *)p->y + t * p->y_row;
    for (int64_t d = 0; d < p->D; d++) {
        real sum = 0;
        for (int64_t n = 0; n < p->N; n++)
            sum += at(p, p->x, t * p->x_row + n * p->x_head + d);
        y[d] = put(sum);
    }
}

static void rows(const void *ctx, int64_t begin, int64_t end)
{
    const struct blocks *p = ctx;
    for (int64_t t = begin; t < end; t++) {
        if (p->sum)
            total(p, t);
        for (int64_t n = 0; n < p->N && !p->sum; n++)
            one(p, t, n);
    }
}

OP_FN(blocks)
{
    if (p->T < 0 || p->N < 1 || p->D < 1 || (p->sum && p->add))
        return CHECK_SHAPE3(err, "blocks",
            "T %lld, N %lld, D %lld, or a sum with a second input", p->T, p->N, p->D);
    pool_each(stream, p->T, 1, rows, p);
    return 0;
}
