/* Arithmetic on sizes that came from outside: each helper returns false instead of wrapping. */
#ifndef KERNELS_BASE_CHECKED_H
#define KERNELS_BASE_CHECKED_H

#include <stdbool.h>
#include <stdint.h>

static inline bool checked_mul_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

static inline bool checked_add_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

static inline bool checked_mul_i64(int64_t a, int64_t b, int64_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

/* Element count of a shape; false on a negative dimension or overflow. Rank 0 counts 1. */
static inline bool checked_count(const int64_t *shape, int rank, int64_t *out)
{
    int64_t n = 1;
    for (int i = 0; i < rank; i++)
        if (shape[i] < 0 || !checked_mul_i64(n, shape[i], &n))
            return false;
    *out = n;
    return true;
}

#endif
