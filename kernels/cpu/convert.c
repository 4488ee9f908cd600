/* Conversion between BF16, F32 and F64, to nearest even, in one rounding. */
#include <math.h>
#include <string.h>

#include "kernels/base/bf16.h"
#include "kernels/base/simd.h"
#include "kernels/cpu/pool.h"
#include "kernels/ops.h"

enum { GRAIN = 32768 };

/* A double in float, rounded to odd: an inexact result has its last bit set, so that rounding it
 * again, to BF16, is the same as rounding the double. */
SIMD_BODY float f32_odd(double x)
{
    const float near = (float)x;
    const uint32_t bits = f32_bits(near);
    const uint32_t down = bits - (fabs((double)near) > fabs(x));

    return (double)near == x || x != x ? near : f32_from_bits(down | 1);
}

SIMD_BODY double load(enum glm_dtype type, const void *p, int64_t i)
{
    return type == GLM_F64 ? ((const double *)p)[i]
        : type == GLM_F32  ? (double)((const float *)p)[i]
                           : (double)bf16_to_f32(((const uint16_t *)p)[i]);
}

/* Types are constants where this is inlined. */
SIMD_BODY void range(const struct convert *p, int64_t begin, int64_t end,
    enum glm_dtype from, enum glm_dtype to)
{
    for (int64_t i = begin; i < end; i++) {
        const double x = load(from, p->x, i);
        if (to == GLM_F64)
            ((double *)p->y)[i] = x;
        else if (to == GLM_F32)
            ((float *)p->y)[i] = (float)x;
        else
            ((uint16_t *)p->y)[i] =
                bf16_from_f32(from == GLM_F64 ? f32_odd(x) : (float)x);
    }
}

#define RANGE(name, from, to)                                                            \
    SIMD_CLONES static void name(const void *ctx, int64_t begin, int64_t end)            \
    {                                                                                    \
        range(ctx, begin, end, from, to);                                                \
    }
RANGE(bf16_to_bf16, GLM_BF16, GLM_BF16)
RANGE(bf16_to_single, GLM_BF16, GLM_F32)
RANGE(bf16_to_double, GLM_BF16, GLM_F64)
RANGE(single_to_bf16, GLM_F32, GLM_BF16)
RANGE(single_to_single, GLM_F32, GLM_F32)
RANGE(single_to_double, GLM_F32, GLM_F64)
RANGE(double_to_bf16, GLM_F64, GLM_BF16)
RANGE(double_to_single, GLM_F64, GLM_F32)
RANGE(double_to_double, GLM_F64, GLM_F64)

int cpu_convert(const struct convert *p, glm_stream stream, struct glm_error *err)
{
    static const struct {
        enum glm_dtype from, to;
        pool_fn *fn;
    } ways[] = {
        {GLM_BF16, GLM_BF16, bf16_to_bf16},
        {GLM_BF16, GLM_F32, bf16_to_single},
        {GLM_BF16, GLM_F64, bf16_to_double},
        {GLM_F32, GLM_BF16, single_to_bf16},
        {GLM_F32, GLM_F32, single_to_single},
        {GLM_F32, GLM_F64, single_to_double},
        {GLM_F64, GLM_BF16, double_to_bf16},
        {GLM_F64, GLM_F32, double_to_single},
        {GLM_F64, GLM_F64, double_to_double},
    };

    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        if (ways[i].from == p->from && ways[i].to == p->to) {
            pool_each(stream, p->n, GRAIN, ways[i].fn, p);
            return 0;
        }
    }
    return glm_fail(err, GLM_EFORMAT, "convert: no version from %s to %s",
        glm_dtype_name(p->from), glm_dtype_name(p->to));
}
