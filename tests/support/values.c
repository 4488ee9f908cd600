#include "tests/support/values.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/bf16.h"
#include "kernels/base/random.h"
#include "kernels/cpu/pool.h"
#include "tests/support/rng.h"

const enum glm_dtype value_types[VALUE_TYPES] = {GLM_F32, GLM_F64, GLM_BF16};

double value_at(enum glm_dtype type, const void *p, int64_t i)
{
    switch (type) {
    case GLM_F64:
        return ((const double *)p)[i];
    case GLM_F32:
        return (double)((const float *)p)[i];
    default:
        return (double)bf16_to_f32(((const uint16_t *)p)[i]);
    }
}

void value_set(enum glm_dtype type, void *p, int64_t i, double x)
{
    switch (type) {
    case GLM_F64:
        ((double *)p)[i] = x;
        break;
    case GLM_F32:
        ((float *)p)[i] = (float)x;
        break;
    default:
        ((uint16_t *)p)[i] = bf16_from_f32((float)x);
    }
}

enum glm_dtype value_acc(enum glm_dtype type)
{
    return type == GLM_F64 ? GLM_F64 : GLM_F32;
}

static void *memory(enum glm_dtype type, int64_t n)
{
    void *p = malloc((size_t)n * glm_dtype_size(type) + 1);

    cr_assert_not_null(p);
    return p;
}

void *values_random(enum glm_dtype type, int64_t n, uint32_t seed, double scale)
{
    static const double special[] = {0, 0, 1e-3, 8};
    const struct random_stream s = random_open(seed, "test", "values");
    void *p = memory(type, n);

    for (int64_t i = 0; i < n; i++) {
        const uint64_t kind = rng_mix(seed * UINT64_C(7919) + (uint64_t)i) % 64;
        const double z = random_normal(&s, (uint64_t)i);
        value_set(type, p, i, scale * z * (kind < 4 ? special[kind] : 1));
    }
    return p;
}

void *values_filled(enum glm_dtype type, int64_t n, double x)
{
    void *p = memory(type, n);

    for (int64_t i = 0; i < n; i++)
        value_set(type, p, i, x);
    return p;
}

void *values_copy(enum glm_dtype type, const void *from, int64_t n)
{
    return memcpy(memory(type, n), from, (size_t)n * glm_dtype_size(type));
}

double *values_double(enum glm_dtype type, const void *from, int64_t n)
{
    double *p = memory(GLM_F64, n);

    for (int64_t i = 0; i < n; i++)
        p[i] = value_at(type, from, i);
    return p;
}

void *value_ptr(enum glm_dtype type, const void *p, int64_t i)
{
    return (char *)(uintptr_t)p + i * (int64_t)glm_dtype_size(type);
}

glm_stream value_pool(int which)
{
    static const int threads[VALUE_POOLS] = {0, 1, 2, 4};
    static glm_stream pools[VALUE_POOLS];
    struct glm_error err = {0};

    if (threads[which] > 0 && pools[which] == NULL) {
        pools[which] = pool_new(threads[which], &err);
        cr_assert_not_null(pools[which], "%s", err.text);
    }
    return pools[which];
}
