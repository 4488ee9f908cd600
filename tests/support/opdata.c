#include "tests/support/opdata.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/bf16.h"
#include "tests/support/rng.h"

const enum glm_dtype op_dtypes[3] = {GLM_F32, GLM_F64, GLM_BF16};

enum glm_dtype op_acc(enum glm_dtype dtype)
{
    return dtype == GLM_F64 ? GLM_F64 : GLM_F32;
}

static void *memory(size_t bytes)
{
    void *m = calloc(1, bytes > 0 ? bytes : 1);

    if (m == NULL)
        abort();
    return m;
}

void *op_zeros(enum glm_dtype dtype, int64_t n)
{
    return memory((size_t)n * glm_dtype_size(dtype));
}

double op_at(enum glm_dtype dtype, const void *x, int64_t i)
{
    switch (dtype) {
    case GLM_F64:
        return ((const double *)x)[i];
    case GLM_F32:
        return (double)((const float *)x)[i];
    case GLM_BF16:
        return (double)bf16_to_f32(((const uint16_t *)x)[i]);
    default:
        abort();
    }
}

void op_set(enum glm_dtype dtype, void *x, int64_t i, double value)
{
    switch (dtype) {
    case GLM_F64:
        ((double *)x)[i] = value;
        break;
    case GLM_F32:
        ((float *)x)[i] = (float)value;
        break;
    case GLM_BF16:
        ((uint16_t *)x)[i] = bf16_from_f32((float)value);
        break;
    default:
        abort();
    }
}

double op_low(enum glm_dtype dtype, double x)
{
    double memory_of_one;

    op_set(dtype, &memory_of_one, 0, x);
    return op_at(dtype, &memory_of_one, 0);
}

void *op_normals(enum glm_dtype dtype, int64_t n, uint64_t seed)
{
    void *x = op_zeros(dtype, n);
    uint64_t state = rng_mix(seed);

    for (int64_t i = 0; i < n; i++) {
        double sum = 0; /* of 12 uniforms: variance 1 */
        for (int k = 0; k < 12; k++)
            sum += (double)(rng_next(&state) >> 11) * 0x1p-53;
        op_set(dtype, x, i, sum - 6);
    }
    return x;
}

void *op_from(enum glm_dtype dtype, const double *x, int64_t n)
{
    void *y = op_zeros(dtype, n);

    for (int64_t i = 0; i < n; i++)
        op_set(dtype, y, i, x[i]);
    return y;
}

double *op_doubles(enum glm_dtype dtype, const void *x, int64_t n)
{
    double *y = memory((size_t)n * sizeof *y);

    for (int64_t i = 0; i < n; i++)
        y[i] = op_at(dtype, x, i);
    return y;
}

double op_error(enum glm_dtype dtype, const void *got, const double *expected, int64_t n,
    double floor)
{
    double error = 0, largest = floor;

    for (int64_t i = 0; i < n; i++) {
        const double e = fabs(op_at(dtype, got, i) - expected[i]);
        if (!(e <= error))
            error = e == e ? e : INFINITY;
        largest = fabs(expected[i]) > largest ? fabs(expected[i]) : largest;
    }
    return error == 0 ? 0 : error / largest;
}

int64_t op_differ(enum glm_dtype dtype, const void *a, const void *b, int64_t n)
{
    const size_t size = glm_dtype_size(dtype);
    int64_t count = 0;

    for (int64_t i = 0; i < n; i++)
        count += memcmp((const char *)a + (size_t)i * size,
                     (const char *)b + (size_t)i * size, size)
            != 0;
    return count;
}

int32_t *op_pack(const int *lengths, int64_t *S, int64_t *T)
{
    int32_t *cu;

    for (*S = 0; lengths[*S] > 0;)
        ++*S;
    cu = memory((size_t)(*S + 1) * sizeof *cu);
    for (int64_t i = 0; i < *S; i++)
        cu[i + 1] = cu[i] + lengths[i];
    *T = cu[*S];
    return cu;
}

int32_t *op_sets(const int32_t *cu, int64_t S, int64_t K, uint64_t seed)
{
    int32_t *index = memory((size_t)(cu[S] * K) * sizeof *index);
    uint64_t state = rng_mix(seed);

    for (int64_t i = 0; i < S; i++) {
        for (int32_t t = cu[i]; t < cu[i + 1]; t++) {
            const int64_t visible = t + 1 - cu[i];
            int64_t left = visible < K ? visible : K, at = 0;
            if (left > 1 && rng_below(&state, 4) == 0)
                left -= 1; /* sets may be smaller than they could be */
            for (int32_t s = cu[i]; s <= t;
                 s++) { /* each with probability left / remaining */
                if ((int64_t)rng_below(&state, (uint64_t)(t + 1 - s)) < left) {
                    index[t * K + at++] = s;
                    left--;
                }
            }
            for (; at < K; at++)
                index[t * K + at] = -1;
        }
    }
    return index;
}

double *op_golden(const char *path, const char *name, int64_t n)
{
    FILE *f = fopen(path, "r");
    char found[64];
    long long count;
    double *x = memory((size_t)n * sizeof *x);

    while (f != NULL && fscanf(f, "%63s %lld", found, &count) == 2) {
        const int wanted = strcmp(found, name) == 0;
        if (wanted && count != n)
            break;
        for (long long i = 0; i < count; i++) {
            double v;
            if (fscanf(f, "%lf", &v) != 1)
                goto missing;
            if (wanted)
                x[i] = v;
        }
        if (wanted) {
            fclose(f);
            return x;
        }
    }
missing:
    fprintf(stderr, "%s: no array %s of %lld numbers\n", path, name, (long long)n);
    abort();
}
