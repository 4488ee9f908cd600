/* Sums of squares: against the order of sums written out a second time, and at every cut. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/bf16.h"
#include "kernels/base/random.h"
#include "kernels/kernels.h"

/* The definition of kernels/ops.h, recursively. */
static double leaf(const double *x, int64_t n)
{
    double lane[16] = {0};

    for (int64_t i = 0; i < n; i++)
        lane[i % 16] += x[i] * x[i];
    for (int half = 8; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            lane[i] += lane[i + half];
    return lane[0];
}

static double tree(const double *x, int64_t n)
{
    const int64_t leaves = (n + 1023) / 1024;
    int64_t first = 1;

    if (leaves <= 1)
        return leaf(x, n);
    while (2 * first < leaves)
        first *= 2;
    return tree(x, first * 1024) + tree(x + first * 1024, n - first * 1024);
}

struct shape {
    int64_t B, R, C, tile_rows, tile_cols, gap; /* gap: elements between rows */
};

static void checked(const struct shape *s, enum glm_dtype dtype, int threads)
{
    const int64_t stride = s->C + s->gap, total = s->B * s->R * stride;
    const int64_t down = (s->R + s->tile_rows - 1) / s->tile_rows;
    const int64_t across = (s->C + s->tile_cols - 1) / s->tile_cols;
    const struct random_stream r = random_open(5, "test", "squares");
    struct glm_error err = {0};
    const glm_stream stream = kernels_find("cpu")->stream_new(threads, &err);
    const size_t size = glm_dtype_size(dtype);
    char *x = malloc((size_t)total * size);
    double *value = malloc((size_t)total * sizeof *value),
           *tile = malloc((size_t)total * sizeof *tile);
    double *out = calloc((size_t)(s->B * down * across), sizeof *out);

    for (int64_t i = 0; i < total; i++) {
        const float f = (float)random_normal(&r, (uint64_t)i);
        const uint16_t h = bf16_from_f32(f);
        value[i] = dtype == GLM_BF16 ? (double)bf16_to_f32(h) : (double)f;
        memcpy(x + (size_t)i * size,
            dtype == GLM_BF16      ? (const void *)&h
                : dtype == GLM_F32 ? (const void *)&f
                                   : (const void *)&value[i],
            size);
    }
    const struct sum_squares p = {.out = out,
        .x = x,
        .B = s->B,
        .R = s->R,
        .C = s->C,
        .batch_stride = s->R * stride,
        .row_stride = stride,
        .tile_rows = s->tile_rows,
        .tile_cols = s->tile_cols,
        .dtype = dtype};
    cr_assert_eq(cpu_sum_squares(&p, stream, &err), 0, "%s", err.text);
    for (int64_t i = 0; i < s->B * down * across; i++) {
        const int64_t b = i / (down * across), r0 = i / across % down * s->tile_rows;
        const int64_t c0 = i % across * s->tile_cols;
        int64_t n = 0;
        for (int64_t row = r0; row < r0 + s->tile_rows && row < s->R; row++)
            for (int64_t c = c0; c < c0 + s->tile_cols && c < s->C; c++)
                tile[n++] = value[(b * s->R + row) * stride + c];
        cr_assert_eq(out[i], tree(tile, n), "tile %lld of %lld x %lld: %a, expected %a",
            (long long)i, (long long)s->R, (long long)s->C, out[i], tree(tile, n));
    }
    free(x);
    free(value);
    free(tile);
    free(out);
    kernels_find("cpu")->stream_free(stream);
}

Test(sumsq, bits_are_those_of_the_written_order)
{
    static const struct shape shapes[] = {{1, 1, 1, 1, 1, 0}, {1, 1, 15, 1, 15, 0},
        {1, 1, 1024, 1, 1024, 0}, {1, 1, 1025, 1, 1025, 0}, {1, 1, 7169, 1, 7169, 0},
        {1, 7, 333, 7, 333, 0}, {1, 130, 40, 128, 40, 3}, {3, 130, 300, 128, 300, 0},
        {2, 70, 600, 64, 256, 5}, {1, 65, 1024, 65, 1024, 0}, {2, 0, 5, 3, 3, 0}};
    static const enum glm_dtype types[] = {GLM_F32, GLM_F64, GLM_BF16};

    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int t = 0; t < 3; t++)
            for (int threads = 1; threads <= 4; threads *= 2)
                checked(&shapes[i], types[t], threads);
}

Test(sumsq, a_nan_or_an_infinity_shows)
{
    float x[40] = {0};
    double out;
    struct glm_error err = {0};
    const struct sum_squares p = {.out = &out,
        .x = x,
        .B = 1,
        .R = 1,
        .C = 40,
        .row_stride = 40,
        .tile_rows = 1,
        .tile_cols = 40,
        .dtype = GLM_F32};

    x[33] = INFINITY;
    cr_assert_eq(cpu_sum_squares(&p, NULL, &err), 0);
    cr_assert(isinf(out));
    x[39] = NAN;
    cr_assert_eq(cpu_sum_squares(&p, NULL, &err), 0);
    cr_assert(isnan(out));
}

Test(sumsq, the_largest_floats_do_not_overflow)
{
    float x[2] = {3.4e38f, 3.4e38f};
    double out;
    struct glm_error err = {0};
    const struct sum_squares p = {.out = &out,
        .x = x,
        .B = 1,
        .R = 1,
        .C = 2,
        .row_stride = 2,
        .tile_rows = 1,
        .tile_cols = 2,
        .dtype = GLM_F32};

    cr_assert_eq(cpu_sum_squares(&p, NULL, &err), 0);
    cr_assert(isfinite(out) && out > 2e77);
}
