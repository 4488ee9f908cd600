/* Rotary position: angles, the rotation of pairs, its inverse, what it leaves alone. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/ops.h"
#include "tests/support/close.h"
#include "tests/support/values.h"

enum { T = 37, D = 16, PAIRS = D / 2 };
static const double theta = 8e6;

struct tables {
    void *cos, *sin;
    int32_t positions[T];
};

static struct tables tables_new(enum glm_dtype dtype, glm_stream stream)
{
    const enum glm_dtype acc = value_acc(dtype);
    struct tables s = {
        values_filled(acc, T * PAIRS, 0), values_filled(acc, T * PAIRS, 0), {0}};
    struct glm_error err = {0};

    for (int t = 0; t < T; t++)
        s.positions[t] = t < 30 ? t : 1000000 + t;
    cr_assert_eq(cpu_rope_table(&(struct rope_table){.cos = s.cos,
                                    .sin = s.sin,
                                    .positions = s.positions,
                                    .T = T,
                                    .D = D,
                                    .theta = theta,
                                    .dtype = dtype},
                     stream, &err),
        0, "%s", err.text);
    return s;
}

Test(rope_table, has_cosines_of_angles_that_are_one_product_of_floats)
{
    for (int i = 0; i < VALUE_TYPES; i++) {
        const enum glm_dtype dtype = value_types[i], acc = value_acc(dtype);
        struct tables s = tables_new(dtype, NULL);
        double want_cos[T * PAIRS], want_sin[T * PAIRS];
        for (int k = 0; k < T * PAIRS; k++) {
            const double frequency = pow(theta, -2.0 * (k % PAIRS) / D);
            const int32_t position = s.positions[k / PAIRS];
            const double angle = acc == GLM_F64
                ? position * frequency
                : (double)((float)position * (float)frequency);
            want_cos[k] = cos(angle);
            want_sin[k] = sin(angle);
        }
        close_check("cos", CLOSE_FEW, acc, dtype, s.cos, want_cos, T * PAIRS);
        close_check("sin", CLOSE_FEW, acc, dtype, s.sin, want_sin, T * PAIRS);
        for (int which = 1; which < VALUE_POOLS; which++) {
            struct tables other = tables_new(dtype, value_pool(which));
            close_same("cos", acc, s.cos, other.cos, T * PAIRS);
            close_same("sin", acc, s.sin, other.sin, T * PAIRS);
            free(other.cos);
            free(other.sin);
        }
        free(s.cos);
        free(s.sin);
    }
}

/* N heads of `head` elements, of which D rotate from `at` on; rows have a gap behind them. */
static void check_rope(enum glm_dtype dtype, int64_t N, int64_t head, int64_t at)
{
    struct tables s = tables_new(dtype, NULL);
    const int64_t row = N * head + 3, size = T * row;
    void *x = values_random(dtype, size, 1, 1), *first = values_copy(dtype, x, size);
    double *want = values_double(dtype, x, size), *before = values_double(dtype, x, size);
    struct rope p = {.cos = s.cos,
        .sin = s.sin,
        .T = T,
        .N = N,
        .row_stride = row,
        .head_stride = head,
        .at = at,
        .D = D,
        .dtype = dtype};
    struct glm_error err = {0};

    for (int64_t i = 0; i < T * N * PAIRS; i++) {
        const int64_t t = i / (N * PAIRS), n = i / PAIRS % N, j = i % PAIRS;
        double *u = want + t * row + n * head + at + 2 * j;
        const double c = value_at(value_acc(dtype), s.cos, t * PAIRS + j);
        const double si = value_at(value_acc(dtype), s.sin, t * PAIRS + j), x0 = u[0];
        u[0] = x0 * c - u[1] * si;
        u[1] = u[1] * c + x0 * si;
    }
    for (int which = 0; which < VALUE_POOLS; which++) {
        void *y = values_copy(dtype, x, size);
        p.x = y;
        cr_assert_eq(cpu_rope(&p, value_pool(which), &err), 0, "%s", err.text);
        close_check("rope", CLOSE_FEW, dtype, dtype, y, want, size);
        if (which == 0)
            memcpy(first, y, (size_t)size * glm_dtype_size(dtype));
        close_same("threads", dtype, first, y, size);
        free(y);
    }
    /* The inverse is the transpose; with double's tables it turns back. */
    p.x = first;
    p.inverse = true;
    cr_assert_eq(cpu_rope(&p, NULL, &err), 0);
    close_check("inverse", CLOSE_FEW, dtype, dtype, first, before, size);
    free(s.cos);
    free(s.sin);
    free(x);
    free(first);
    free(want);
    free(before);
}

Test(rope, turns_pairs_of_each_head_and_the_inverse_turns_back)
{
    for (int i = 0; i < VALUE_TYPES; i++) {
        check_rope(value_types[i], 1, D, 0);
        check_rope(value_types[i], 3, D + 5, 0);
        check_rope(value_types[i], 4, D + 12, 12);
    }
}

Test(rope, leaves_other_elements_alone_and_rounds_each_product)
{
    /* 1.0078125 * cos, BF16: products rounded before the sum. c = s = 0.70703125:
     * x0 c = 0.712555 -> 0.7109375, x1 s = 0.70703125: u = 0.00390625; unrounded 0.00552. */
    uint16_t x[4] = {0x1234, 0x3f81, 0x3f80, 0x4321};
    const float c = 0.70703125f;
    struct glm_error err = {0};

    cr_assert_eq(cpu_rope(&(struct rope){.x = x,
                              .cos = &c,
                              .sin = &c,
                              .T = 1,
                              .N = 1,
                              .row_stride = 4,
                              .head_stride = 4,
                              .at = 1,
                              .D = 2,
                              .dtype = GLM_BF16},
                     NULL, &err),
        0);
    cr_assert_eq(x[0], 0x1234);
    cr_assert_eq(x[3], 0x4321);
    cr_assert_eq(x[1], 0x3b80, "%04x", (unsigned)x[1]);
}

Test(rope, refuses_what_cannot_be)
{
    struct glm_error err = {0};

    cr_assert_eq(
        cpu_rope_table(&(struct rope_table){.T = 1, .D = 3, .theta = 1, .dtype = GLM_F32},
            NULL, &err),
        GLM_EFORMAT);
    glm_error_clear(&err);
    cr_assert_eq(cpu_rope_table(
                     &(struct rope_table){.T = 1, .D = 2, .theta = NAN, .dtype = GLM_F32},
                     NULL, &err),
        GLM_EFORMAT);
    cr_assert(strstr(err.text, "theta is nan") != NULL, "%s", err.text);
    glm_error_clear(&err);
    cr_assert_eq(
        cpu_rope(&(struct rope){.T = 1, .N = 1, .D = 5, .dtype = GLM_F32}, NULL, &err),
        GLM_EFORMAT);
    glm_error_clear(&err);
    cr_assert_eq(cpu_rope(&(struct rope){.T = 1,
                              .N = 2,
                              .D = 4,
                              .at = 2,
                              .head_stride = 5,
                              .row_stride = 20,
                              .dtype = GLM_F32},
                     NULL, &err),
        GLM_EFORMAT);
    cr_assert(strstr(err.text, "head_stride 5") != NULL, "%s", err.text);
}
