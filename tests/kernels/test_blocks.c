/* Blocks between layouts: against the formula of ops.h. */
#include <criterion/criterion.h>
#include <stdlib.h>

#include "kernels/kernels.h"
#include "tests/support/opdata.h"
#include "tests/support/values.h"

enum { T = 11, N = 3, D = 5, ROW = 37, HEAD = 9 };

struct shape {
    bool acc_in, add, sum;
    int64_t x_head;
};

/* y is filled with a mark first: what lies between the blocks must keep it. */
static void check(enum glm_dtype type, struct shape s, glm_stream stream)
{
    struct glm_error err = {0};
    const enum glm_dtype in = s.acc_in ? op_acc(type) : type;
    void *x = values_random(in, T * ROW, 1, 1.0), *a = values_random(in, T * ROW, 2, 1.0);
    void *y = values_filled(type, T * ROW, 7);
    const struct blocks p = {.y = y,
        .x = x,
        .add = s.add ? a : NULL,
        .T = T,
        .N = N,
        .D = D,
        .y_row = ROW,
        .y_head = HEAD,
        .x_row = ROW,
        .x_head = s.x_head,
        .add_row = ROW,
        .add_head = HEAD,
        .acc_in = s.acc_in,
        .sum = s.sum,
        .dtype = type};
    cr_assert_eq(kernels_find("cpu")->blocks(&p, stream, &err), 0, "%s", err.text);
    double *want = op_doubles(type, y, T * ROW);
    for (int64_t i = 0; i < T * ROW; i++)
        want[i] = 7;
    for (int64_t t = 0; t < T; t++)
        for (int64_t d = 0; d < D; d++) {
            double sum = 0;
            for (int64_t n = 0; n < N; n++) {
                const double v = op_at(in, x, t * ROW + n * s.x_head + d);
                const double more = s.add ? op_at(in, a, t * ROW + n * HEAD + d) : 0;
                sum = type == GLM_F64 ? sum + v : (double)((float)sum + (float)v);
                if (!s.sum)
                    want[t * ROW + n * HEAD + d] = op_low(type,
                        type == GLM_F64 ? v + more : (double)((float)v + (float)more));
            }
            if (s.sum)
                want[t * ROW + d] = op_low(type, sum);
        }
    for (int64_t i = 0; i < T * ROW; i++)
        cr_assert_eq(op_at(type, y, i), want[i], "element %d: %g, expected %g", (int)i,
            op_at(type, y, i), want[i]);
    free(want);
    free(x);
    free(a);
    free(y);
}

Test(blocks, move_add_and_sum_as_the_formula_says)
{
    const struct shape shapes[] = {{.x_head = HEAD}, {.x_head = 0},
        {.x_head = HEAD, .acc_in = true}, {.x_head = HEAD, .add = true},
        {.x_head = 0, .add = true, .acc_in = true}, {.x_head = HEAD, .sum = true},
        {.x_head = HEAD, .sum = true, .acc_in = true}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        for (int t = 0; t < VALUE_TYPES; t++)
            for (int p = 0; p < VALUE_POOLS; p++)
                check(value_types[t], shapes[i], value_pool(p));
}

Test(blocks, refuse_a_sum_of_two_inputs)
{
    struct glm_error err = {0};
    float x[4] = {0};
    const struct blocks p = {
        .y = x, .x = x, .add = x, .T = 1, .N = 2, .D = 2, .sum = true, .dtype = GLM_F32};
    cr_expect_eq(kernels_find("cpu")->blocks(&p, NULL, &err), GLM_EFORMAT);
}
