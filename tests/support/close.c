#include "tests/support/close.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "tests/support/values.h"

/* By kind and by the coarser of the two types. Units of roundoff: F64 2^-53, F32 2^-24, BF16 2^-8
 * (of a value's own size; the table is relative to the largest value, which is milder).
 *   FEW   8 roundings in F32 and F64; in BF16 4, the rounding points that a formula names.
 *   SUM   errors of ordered sums grow with the terms, in practice like their square root: 64 units
 *         in F32 and F64. A BF16 result is a sum in F32 rounded once or twice.
 *   GRAD  sums of products of rounded values: 256 units; in BF16 4 rounded factors. */
static const struct {
    double f64, f32, bf16;
} limits[] = {
    [CLOSE_COPY] = {0, 0, 0},
    [CLOSE_FEW] = {0x1p-50, 0x1p-21, 0x1p-6},
    [CLOSE_SUM] = {0x1p-47, 0x1p-18, 0x1p-7},
    [CLOSE_GRAD] = {0x1p-45, 0x1p-16, 0x1p-6},
};

double close_limit(enum close_kind kind, enum glm_dtype stored, enum glm_dtype computed)
{
    if (stored == GLM_BF16 || computed == GLM_BF16)
        return limits[kind].bf16;
    if (stored == GLM_F32 || computed == GLM_F32)
        return limits[kind].f32;
    return limits[kind].f64;
}

void close_check(const char *what, enum close_kind kind, enum glm_dtype stored,
    enum glm_dtype computed, const void *got, const double *want, int64_t n)
{
    const double limit = close_limit(kind, stored, computed);
    double largest = 0;

    for (int64_t i = 0; i < n; i++)
        largest = fmax(largest, fabs(want[i]));
    for (int64_t i = 0; i < n; i++) {
        const double g = value_at(stored, got, i);
        cr_assert(fabs(g - want[i]) <= limit * largest,
            "%s, %s: element %lld is %.9g, expected %.9g; off by %.3g of the largest, "
            "%.3g allowed",
            what, glm_dtype_name(computed), (long long)i, g, want[i],
            fabs(g - want[i]) / largest, limit);
    }
}

void close_same(
    const char *what, enum glm_dtype type, const void *a, const void *b, int64_t n)
{
    const size_t size = glm_dtype_size(type);

    for (int64_t i = 0; i < n; i++) {
        cr_assert(memcmp((const char *)a + (size_t)i * size,
                      (const char *)b + (size_t)i * size, size)
                == 0,
            "%s, %s: element %lld: %.17g and %.17g", what, glm_dtype_name(type),
            (long long)i, value_at(type, a, i), value_at(type, b, i));
    }
}
