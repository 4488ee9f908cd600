/* Rotary position: the table of angles and the rotation of interleaved pairs, in place. */
#include "kernels/cpu/check.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/mutate.h"
#include "kernels/cpu/pool.h"

/* Frequency and angle are one F32 each, as the reference has them: at position 10^6 the rounded
 * angle is off by 0.03, and its cosine is wanted. cos and sin of that angle in double, so that they
 * are the same with every C library. */
static void table_rows(const void *ctx, int64_t begin, int64_t end)
{
    const struct rope_table *p = ctx;
    const int64_t pairs = p->D / 2;

    for (int64_t j = 0; j < pairs; j++) {
        const real frequency = (real)pow(p->theta, -(double)(2 * j) / (double)p->D);
        for (int64_t t = begin; t < end; t++) {
            const real angle = (real)p->positions[t] * frequency;
            ((real *)p->cos)[t * pairs + j] = low((real)cos((double)angle));
            ((real *)p->sin)[t * pairs + j] = low((real)sin((double)angle));
        }
    }
}

OP_FN(rope_table)
{
    if (p->T < 0 || p->D <= 0 || p->D % 2 != 0)
        return CHECK_SHAPE2(err, "rope_table", "T %lld, D %lld (even)", p->T, p->D);
    if (!(p->theta > 0))
        return glm_fail(
            err, GLM_EFORMAT, "rope_table: theta is %g, expected more than 0", p->theta);
    pool_for(stream, p->T, 64, table_rows, p);
    return 0;
}

#ifdef MUTATE_ROPE_HALVES
enum { PAIR_STEP = 1 };
#else
enum { PAIR_STEP = 2 };
#endif

LANES_CLONES static void rotate_rows(const void *ctx, int64_t begin, int64_t end)
{
    const struct rope *p = ctx;
    const int64_t pairs = p->D / 2;
    const real sign = p->inverse ? -1 : 1;
    const int64_t second = PAIR_STEP == 2 ? 1 : pairs;

    for (int64_t t = begin; t < end; t++) {
        const real *restrict c = (const real *)p->cos + t * pairs;
        const real *restrict s = (const real *)p->sin + t * pairs;
        for (int64_t n = 0; n < p->N; n++) {
            elem *restrict x =
                (elem *)p->x + t * p->row_stride + n * p->head_stride + p->at;
            for (int64_t j = 0; j < pairs; j++) {
                elem *x0_at = x + PAIR_STEP * j, *x1_at = x0_at + second;
                const real x0 = get(*x0_at), x1 = get(*x1_at), sj = sign * s[j];
                *x0_at = put(low(x0 * c[j]) - low(x1 * sj));
                *x1_at = put(low(x1 * c[j]) + low(x0 * sj));
            }
        }
    }
}

OP_FN(rope)
{
    if (p->T < 0 || p->N < 0 || p->D <= 0 || p->D % 2 != 0)
        return CHECK_SHAPE3(
            err, "rope", "T %lld, N %lld, D %lld (even)", p->T, p->N, p->D);
    if (p->at < 0 || (p->N > 1 && p->head_stride < p->at + p->D)
        || p->row_stride < (p->N - 1) * p->head_stride + p->at + p->D)
        return CHECK_SHAPE3(err, "rope",
            "heads overlap: at %lld, head_stride %lld, row_stride %lld", p->at,
            p->head_stride, p->row_stride);
    pool_for(stream, p->T, 16, rotate_rows, p);
    return 0;
}
