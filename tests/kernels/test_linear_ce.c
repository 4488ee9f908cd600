/* Head and cross-entropy: against all logits at once in double, differences, rows and threads. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/ops.h"
#include "tests/support/close.h"
#include "tests/support/differences.h"
#include "tests/support/rng.h"
#include "tests/support/values.h"

struct ce {
    enum glm_dtype dtype, acc;
    int64_t T, V, H;
    double scale;
    int32_t *target;
    void *h, *w, *loss, *lse, *dh, *dw;
};

/* Every fifth row has no target. */
static struct ce ce_new(enum glm_dtype dtype, int64_t T, int64_t V, int64_t H)
{
    struct ce c = {
        .dtype = dtype, .acc = value_acc(dtype), .T = T, .V = V, .H = H, .scale = 0.25};
    uint64_t state = 9;

    c.target = malloc((size_t)T * sizeof *c.target + 1);
    for (int64_t t = 0; t < T; t++)
        c.target[t] = t % 5 == 3 ? -100 : (int32_t)rng_below(&state, (uint64_t)V);
    c.h = values_random(dtype, T * H, 1, 1);
    c.w = values_random(dtype, V * H, 2, 1 / sqrt((double)H));
    c.loss = values_filled(c.acc, T, 7);
    c.lse = values_filled(c.acc, T, 7);
    c.dh = values_filled(dtype, T * H, 7);
    c.dw = values_random(c.acc, V * H, 3, 0.01);
    return c;
}

static void ce_free(struct ce *c)
{
    void *const all[] = {c->target, c->h, c->w, c->loss, c->lse, c->dh, c->dw};

    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

static void forward(struct ce *c, glm_stream stream)
{
    struct glm_error err = {0};

    cr_assert_eq(cpu_linear_ce_fwd(&(struct linear_ce_fwd){.loss = c->loss,
                                       .lse = c->lse,
                                       .h = c->h,
                                       .w = c->w,
                                       .target = c->target,
                                       .T = c->T,
                                       .V = c->V,
                                       .H = c->H,
                                       .dtype = c->dtype},
                     stream, &err),
        0, "%s", err.text);
}

static void backward(struct ce *c, glm_stream stream, bool detached)
{
    struct glm_error err = {0};

    cr_assert_eq(cpu_linear_ce_bwd(&(struct linear_ce_bwd){.dh = c->dh,
                                       .dw = detached ? NULL : c->dw,
                                       .h = c->h,
                                       .w = c->w,
                                       .lse = c->lse,
                                       .target = c->target,
                                       .scale = c->scale,
                                       .T = c->T,
                                       .V = c->V,
                                       .H = c->H,
                                       .dtype = c->dtype},
                     stream, &err),
        0, "%s", err.text);
}

/* Logits are a rounding point: of a logit of 16, BF16 keeps 2^-4, which moves a probability by 6 %. */
static double rounded(enum glm_dtype dtype, double x)
{
    uint16_t low;

    if (dtype != GLM_BF16)
        return x;
    value_set(GLM_BF16, &low, 0, x);
    return value_at(GLM_BF16, &low, 0);
}

static void naive_row(const struct ce *c, int64_t t, double *logit, double *loss,
    double *lse, double *dh, double *dw)
{
    const int64_t V = c->V, H = c->H;
    const int32_t target = c->target[t];
    double sum = 0;

    for (int64_t v = 0; v < V; v++) {
        logit[v] = 0;
        for (int64_t i = 0; i < H; i++)
            logit[v] +=
                value_at(c->dtype, c->h, t * H + i) * value_at(c->dtype, c->w, v * H + i);
        logit[v] = rounded(c->dtype, logit[v]);
        sum += exp(logit[v]);
    }
    lse[t] = log(sum);
    loss[t] = target < 0 ? 0 : lse[t] - logit[target];
    for (int64_t v = 0; v < V && target >= 0; v++) {
        const double d = c->scale * (exp(logit[v] - lse[t]) - (v == target));
        for (int64_t i = 0; i < H; i++) {
            dh[t * H + i] += d * value_at(c->dtype, c->w, v * H + i);
            dw[v * H + i] += d * value_at(c->dtype, c->h, t * H + i);
        }
    }
}

static void check_ce(enum glm_dtype dtype, int64_t T, int64_t V, int64_t H)
{
    struct ce c = ce_new(dtype, T, V, H);
    double *loss = calloc((size_t)T + 1, 8), *lse = calloc((size_t)T + 1, 8);
    double *dh = calloc((size_t)(T * H) + 1, 8), *dw = values_double(c.acc, c.dw, V * H);
    double *logit = calloc((size_t)V, 8);

    for (int64_t t = 0; t < T; t++)
        naive_row(&c, t, logit, loss, lse, dh, dw);
    forward(&c, NULL);
    backward(&c, NULL, false);
    close_check("loss", CLOSE_SUM, c.acc, dtype, c.loss, loss, T);
    close_check("lse", CLOSE_SUM, c.acc, dtype, c.lse, lse, T);
    close_check("dh", CLOSE_GRAD, dtype, dtype, c.dh, dh, T * H);
    close_check("dw", CLOSE_GRAD, c.acc, dtype, c.dw, dw, V * H);
    for (int which = 1; which < VALUE_POOLS; which++) {
        struct ce d = ce_new(dtype, T, V, H);
        forward(&d, value_pool(which));
        backward(&d, value_pool(which), false);
        close_same("loss", c.acc, c.loss, d.loss, T);
        close_same("dh", dtype, c.dh, d.dh, T * H);
        close_same("dw", c.acc, c.dw, d.dw, V * H);
        void *dh_too = d.dh;
        d.dh = values_filled(dtype, T * H, 1);
        backward(&d, value_pool(which), true);
        close_same("dh without dw", dtype, dh_too, d.dh, T * H);
        close_same("dw left alone", c.acc, c.dw, d.dw, V * H);
        free(dh_too);
        ce_free(&d);
    }
    ce_free(&c);
    free(loss);
    free(lse);
    free(dh);
    free(dw);
    free(logit);
}

Test(linear_ce, is_its_formula_over_parts_of_rows_and_vocabulary, .timeout = 1800)
{
    for (int t = 0; t < VALUE_TYPES; t++) {
        check_ce(value_types[t], 1, 1, 1);
        check_ce(value_types[t], 9, 37, 20);
        check_ce(value_types[t], 300, 50, 7);  /* more than a part of the rows */
        check_ce(value_types[t], 6, 9001, 12); /* and of the vocabulary */
        check_ce(value_types[t], 0, 5, 4);
    }
}

Test(linear_ce, gives_a_row_the_same_bits_whatever_the_other_rows)
{
    enum { T = 30, V = 5000, H = 24 };

    for (int i = 0; i < VALUE_TYPES; i++) {
        struct ce all = ce_new(value_types[i], T, V, H);
        forward(&all, value_pool(2));
        backward(&all, value_pool(2), true);
        for (int64_t t = 0; t < T; t += 7) {
            struct ce one = ce_new(value_types[i], 1, V, H);
            memcpy(
                one.h, value_ptr(all.dtype, all.h, t * H), H * glm_dtype_size(all.dtype));
            one.target[0] = all.target[t];
            forward(&one, NULL);
            backward(&one, NULL, true);
            close_same("loss", all.acc, value_ptr(all.acc, all.loss, t), one.loss, 1);
            close_same("dh", all.dtype, value_ptr(all.dtype, all.dh, t * H), one.dh, H);
            ce_free(&one);
        }
        ce_free(&all);
    }
}

static double total(void *ctx)
{
    struct ce *c = ctx;
    double sum = 0;

    forward(c, NULL);
    for (int64_t t = 0; t < c->T; t++)
        sum += ((double *)c->loss)[t];
    return c->scale * sum;
}

Test(linear_ce, has_the_gradients_that_differences_have)
{
    struct ce c = ce_new(GLM_F64, 8, 30, 11);

    for (int64_t i = 0; i < c.V * c.H; i++)
        ((double *)c.dw)[i] = 0;
    forward(&c, NULL);
    backward(&c, NULL, false);
    differences_check("dh", total, &c, c.h, c.T * c.H, c.dh);
    differences_check("dw", total, &c, c.w, c.V * c.H, c.dw);
    ce_free(&c);
}

Test(linear_ce, holds_out_against_large_logits_and_passes_nan_on)
{
    const float w[3] = {1, -1, 0}, h[3] = {1e5f, -1e5f, NAN};
    const int32_t target[3] = {0, 0, 1};
    float loss[3], lse[3];
    struct glm_error err = {0};

    cr_assert_eq(cpu_linear_ce_fwd(&(struct linear_ce_fwd){.loss = loss,
                                       .lse = lse,
                                       .h = h,
                                       .w = w,
                                       .target = target,
                                       .T = 3,
                                       .V = 3,
                                       .H = 1,
                                       .dtype = GLM_F32},
                     NULL, &err),
        0);
    cr_assert_eq(loss[0], 0);
    cr_assert_eq(loss[1], 2e5f);
    cr_assert(isnan(loss[2]));
}

Test(linear_ce, names_a_target_out_of_the_vocabulary_and_its_position)
{
    const int32_t target[3] = {0, -100, 7};
    float x[30] = {0};
    struct linear_ce_fwd p = {.loss = x,
        .lse = x,
        .h = x,
        .w = x,
        .target = target,
        .T = 3,
        .V = 7,
        .H = 1,
        .dtype = GLM_F32};
    struct glm_error err = {0};

    cr_assert_eq(cpu_linear_ce_fwd(&p, NULL, &err), GLM_EFORMAT);
    cr_assert(strstr(err.text, "target 7 at position 2, expected below 7") != NULL, "%s",
        err.text);
    glm_error_clear(&err);
    cr_assert_eq(cpu_linear_ce_bwd(
                     &(struct linear_ce_bwd){
                         .target = target, .T = 3, .V = 7, .H = 1, .dtype = GLM_F32},
                     NULL, &err),
        GLM_EFORMAT);
    glm_error_clear(&err);
    p.H = 0;
    cr_assert_eq(cpu_linear_ce_fwd(&p, NULL, &err), GLM_EFORMAT);
}
