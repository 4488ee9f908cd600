/* add and SwiGLU: an element depends on its own inputs alone. */
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/mutate.h"
#include "kernels/cpu/pool.h"

enum { GRAIN = 16384 };

LANES_CLONES static void add_range(const void *ctx, int64_t begin, int64_t end)
{
    const struct add *p = ctx;
    elem *y = p->y;
    const elem *a = p->a, *b = p->b;

    for (int64_t i = begin; i < end; i++)
        y[i] = put(get(a[i]) + get(b[i]));
}

OP_FN(add)
{
    (void)err;
    pool_each(stream, p->n, GRAIN, add_range, p);
    return 0;
}

#ifdef MUTATE_GATE_UP_SWAPPED
#define GATE b
#define UP a
#define D_GATE db
#define D_UP da
#else
#define GATE a
#define UP b
#define D_GATE da
#define D_UP db
#endif

LANES_BODY real sigmoid(real a)
{
    return 1 / (1 + real_exp(-a));
}

LANES_CLONES static void swiglu_fwd_range(const void *ctx, int64_t begin, int64_t end)
{
    const struct swiglu_fwd *p = ctx;
    elem *restrict h = p->h;
    const elem *a = p->GATE, *b = p->UP;

    for (int64_t i = begin; i < end; i++) {
        const real ai = get(a[i]);
        h[i] = put(low(ai * sigmoid(ai)) * get(b[i]));
    }
}

OP_FN(swiglu_fwd)
{
    (void)err;
    pool_each(stream, p->n, GRAIN, swiglu_fwd_range, p);
    return 0;
}

LANES_CLONES static void swiglu_bwd_range(const void *ctx, int64_t begin, int64_t end)
{
    const struct swiglu_bwd *p = ctx;
    elem *restrict da = p->D_GATE, *restrict db = p->D_UP;
    const elem *dh = p->dh, *a = p->GATE, *b = p->UP;

    for (int64_t i = begin; i < end; i++) {
        const real g = get(dh[i]), ai = get(a[i]), s = sigmoid(ai);
        da[i] = put(g * get(b[i]) * s * (1 + ai * (1 - s)));
        db[i] = put(g * ai * s);
    }
}

OP_FN(swiglu_bwd)
{
    (void)err;
    pool_each(stream, p->n, GRAIN, swiglu_bwd_range, p);
    return 0;
}
