/* RMSNorm and LayerNorm: formulas in double, differences, rows and threads. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/ops.h"
#include "tests/support/close.h"
#include "tests/support/differences.h"
#include "tests/support/values.h"

/* One row and one column, tails of the lanes, leaves of the sums over rows, several tiles. */
static const int64_t shapes[][2] = {
    {1, 1}, {3, 15}, {5, 16}, {2, 17}, {64, 64}, {65, 100}, {200, 130}, {0, 8}};
enum { SHAPES = sizeof shapes / sizeof *shapes, GAP = 3 };

/* Everything that both norms read and write; b, mean, db are LayerNorm's, add and strides RMSNorm's. */
struct norm {
    enum glm_dtype dtype, acc;
    int64_t T, D, x_stride, dx_stride;
    bool layer;
    void *x, *w, *b, *dy, *add;
    void *y, *mean, *rstd, *dx, *dw, *db;
};

static const double eps = 1e-5f;

static struct norm norm_new(
    enum glm_dtype dtype, int64_t T, int64_t D, bool layer, bool wide)
{
    struct norm n = {.dtype = dtype,
        .acc = value_acc(dtype),
        .T = T,
        .D = D,
        .layer = layer,
        .x_stride = wide ? D + GAP : D,
        .dx_stride = wide ? D + GAP + 1 : D};

    n.x = values_random(dtype, T * n.x_stride, 1, 2);
    n.w = values_random(dtype, D, 2, 1);
    n.b = values_random(dtype, D, 3, 1);
    n.dy = values_random(dtype, T * D, 4, 1);
    n.add = wide ? values_random(dtype, T * D, 5, 1) : NULL;
    n.y = values_filled(dtype, T * D, 0);
    n.mean = values_filled(n.acc, T, 0);
    n.rstd = values_filled(n.acc, T, 0);
    n.dx = values_filled(dtype, T * n.dx_stride, 7);
    n.dw = values_random(n.acc, D, 6, 1);
    n.db = values_random(n.acc, D, 7, 1);
    return n;
}

static void norm_free(struct norm *n)
{
    void *const all[] = {
        n->x, n->w, n->b, n->dy, n->add, n->y, n->mean, n->rstd, n->dx, n->dw, n->db};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

static void forward(struct norm *n, glm_stream stream)
{
    struct glm_error err = {0};

    if (n->layer)
        cpu_layernorm_fwd(&(struct layernorm_fwd){.y = n->y,
                              .mean = n->mean,
                              .rstd = n->rstd,
                              .x = n->x,
                              .w = n->w,
                              .b = n->b,
                              .T = n->T,
                              .D = n->D,
                              .eps = (float)eps,
                              .dtype = n->dtype},
            stream, &err);
    else
        cpu_rmsnorm_fwd(&(struct rmsnorm_fwd){.y = n->y,
                            .rstd = n->rstd,
                            .x = n->x,
                            .w = n->w,
                            .T = n->T,
                            .D = n->D,
                            .x_stride = n->x_stride == n->D ? 0 : n->x_stride,
                            .eps = (float)eps,
                            .dtype = n->dtype},
            stream, &err);
    cr_assert_eq(err.code, 0, "%s", err.text);
}

static void backward(struct norm *n, glm_stream stream)
{
    struct glm_error err = {0};

    if (n->layer)
        cpu_layernorm_bwd(&(struct layernorm_bwd){.dx = n->dx,
                              .dw = n->dw,
                              .db = n->db,
                              .dy = n->dy,
                              .x = n->x,
                              .w = n->w,
                              .mean = n->mean,
                              .rstd = n->rstd,
                              .T = n->T,
                              .D = n->D,
                              .dtype = n->dtype},
            stream, &err);
    else
        cpu_rmsnorm_bwd(&(struct rmsnorm_bwd){.dx = n->dx,
                            .dw = n->dw,
                            .dy = n->dy,
                            .x = n->x,
                            .w = n->w,
                            .rstd = n->rstd,
                            .dx_add = n->add,
                            .T = n->T,
                            .D = n->D,
                            .x_stride = n->x_stride == n->D ? 0 : n->x_stride,
                            .dx_stride = n->dx_stride == n->D ? 0 : n->dx_stride,
                            .dtype = n->dtype},
            stream, &err);
    cr_assert_eq(err.code, 0, "%s", err.text);
}

/* The same in double: y, and onto dx, dw, db. */
static void naive(const struct norm *n, double *y, double *dx, double *dw, double *db)
{
    const int64_t D = n->D;

    for (int64_t t = 0; t < n->T; t++) {
        double mean = 0, square = 0, mean_d = 0, mean_dx = 0;
#define X(d) value_at(n->dtype, n->x, t * n->x_stride + (d))
#define W(d) value_at(n->dtype, n->w, d)
#define DY(d) value_at(n->dtype, n->dy, t *D + (d))
        for (int64_t d = 0; d < D && n->layer; d++)
            mean += X(d) / (double)D;
        for (int64_t d = 0; d < D; d++)
            square += (X(d) - mean) * (X(d) - mean) / (double)D;
        const double r = 1 / sqrt(square + eps);
        for (int64_t d = 0; d < D; d++) {
            const double xh = (X(d) - mean) * r;
            y[t * D + d] = xh * W(d) + (n->layer ? value_at(n->dtype, n->b, d) : 0);
            dw[d] += DY(d) * xh;
            db[d] += DY(d);
            mean_d += n->layer ? DY(d) * W(d) / (double)D : 0;
            mean_dx += DY(d) * W(d) * xh / (double)D;
        }
        for (int64_t d = 0; d < D; d++)
            dx[t * D + d] = r * (DY(d) * W(d) - mean_d - (X(d) - mean) * r * mean_dx)
                + (n->add == NULL ? 0 : value_at(n->dtype, n->add, t * D + d));
#undef X
#undef W
#undef DY
    }
}

static void check_norm(enum glm_dtype dtype, int64_t T, int64_t D, bool layer, bool wide)
{
    struct norm n = norm_new(dtype, T, D, layer, wide);
    double *y = calloc((size_t)(T * D) + 1, sizeof *y),
           *dx = calloc((size_t)(T * D) + 1, sizeof *y);
    double *dw = values_double(n.acc, n.dw, D), *db = values_double(n.acc, n.db, D);
    void *rows = values_filled(dtype, T * D, 0);
    const enum close_kind grad = D == 1 ? CLOSE_SUM : CLOSE_GRAD;

    naive(&n, y, dx, dw, db);
    for (int which = 0; which < VALUE_POOLS; which++) {
        struct norm m = norm_new(dtype, T, D, layer, wide);
        forward(&m, value_pool(which));
        backward(&m, value_pool(which));
        if (which == 0) {
            norm_free(&n);
            n = m;
            continue;
        }
        close_same("y", dtype, n.y, m.y, T * D);
        close_same("dx", dtype, n.dx, m.dx, T * n.dx_stride);
        close_same("dw", n.acc, n.dw, m.dw, D);
        close_same("db", n.acc, n.db, m.db, D);
        norm_free(&m);
    }
    for (int64_t t = 0; t < T; t++) {
        memcpy(value_ptr(dtype, rows, t * D), value_ptr(dtype, n.dx, t * n.dx_stride),
            (size_t)D * glm_dtype_size(dtype));
        for (int64_t d = D; d < n.dx_stride; d++)
            cr_assert_eq(value_at(dtype, n.dx, t * n.dx_stride + d), 7, "between rows");
    }
    close_check("y", CLOSE_SUM, dtype, dtype, n.y, y, T * D);
    if (D > 1) /* the gradient of one normalised value is rounding noise */
        close_check("dx", grad, dtype, dtype, rows, dx, T * D);
    close_check("dw", CLOSE_GRAD, n.acc, dtype, n.dw, dw, D);
    if (layer)
        close_check("db", CLOSE_SUM, n.acc, dtype, n.db, db, D);
    norm_free(&n);
    free(y);
    free(dx);
    free(dw);
    free(db);
    free(rows);
}

Test(rmsnorm, is_its_formula_forward_and_backward_with_any_threads)
{
    for (int t = 0; t < VALUE_TYPES; t++) {
        for (int s = 0; s < SHAPES; s++) {
            check_norm(value_types[t], shapes[s][0], shapes[s][1], false, false);
            check_norm(value_types[t], shapes[s][0], shapes[s][1], false, true);
        }
    }
}

Test(layernorm, is_its_formula_forward_and_backward_with_any_threads)
{
    for (int t = 0; t < VALUE_TYPES; t++) {
        for (int s = 0; s < SHAPES; s++)
            check_norm(value_types[t], shapes[s][0], shapes[s][1], true, false);
    }
}

Test(norms, give_a_row_the_same_bits_whatever_the_other_rows)
{
    enum { T = 37, D = 50 };

    for (int i = 0; i < 2 * VALUE_TYPES; i++) {
        struct norm all = norm_new(value_types[i / 2], T, D, i % 2, false);
        forward(&all, NULL);
        backward(&all, NULL);
        for (int64_t t = 0; t < T; t++) {
            struct norm one = norm_new(all.dtype, 1, D, all.layer, false);
            memcpy(
                one.x, value_ptr(all.dtype, all.x, t * D), D * glm_dtype_size(all.dtype));
            memcpy(one.dy, value_ptr(all.dtype, all.dy, t * D),
                D * glm_dtype_size(all.dtype));
            forward(&one, NULL);
            backward(&one, NULL);
            close_same("y", all.dtype, value_ptr(all.dtype, all.y, t * D), one.y, D);
            close_same("dx", all.dtype, value_ptr(all.dtype, all.dx, t * D), one.dx, D);
            norm_free(&one);
        }
        norm_free(&all);
    }
}

static double loss(void *ctx)
{
    struct norm *n = ctx;

    forward(n, NULL);
    return differences_dot(n->dy, n->y, n->T * n->D);
}

Test(norms, have_the_gradients_that_differences_have)
{
    for (int layer = 0; layer < 2; layer++) {
        struct norm n = norm_new(GLM_F64, 9, 21, layer, false);
        for (int64_t d = 0; d < n.D; d++)
            ((double *)n.dw)[d] = ((double *)n.db)[d] = 0;
        forward(&n, NULL);
        backward(&n, NULL);
        differences_check("dx", loss, &n, n.x, n.T * n.D, n.dx);
        differences_check("dw", loss, &n, n.w, n.D, n.dw);
        if (layer)
            differences_check("db", loss, &n, n.b, n.D, n.db);
        norm_free(&n);
    }
}

Test(norms, round_where_the_formula_says)
{
    /* x = (1, 1.5): mean square 1.625, rstd 0.784465. x*rstd is rounded to BF16 before it meets w:
     * 0.78515625 * 1.90625 = 1.4967 -> 1.5; without, 1.4954 -> 1.4921875. */
    const uint16_t x[2] = {0x3f80, 0x3fc0}, w[2] = {0x3ff4, 0x3f80}, dy[2] = {0x3f80, 0};
    uint16_t y[2], dx[2];
    float rstd, dw[2] = {0, 0};
    struct glm_error err = {0};

    cpu_rmsnorm_fwd(&(struct rmsnorm_fwd){.y = y,
                        .rstd = &rstd,
                        .x = x,
                        .w = w,
                        .T = 1,
                        .D = 2,
                        .eps = 1e-5f,
                        .dtype = GLM_BF16},
        NULL, &err);
    cpu_rmsnorm_bwd(&(struct rmsnorm_bwd){.dx = dx,
                        .dw = dw,
                        .dy = dy,
                        .x = x,
                        .w = w,
                        .rstd = &rstd,
                        .T = 1,
                        .D = 2,
                        .dtype = GLM_BF16},
        NULL, &err);
    cr_assert_eq(err.code, 0, "%s", err.text);
    cr_assert_eq(y[0], 0x3fc0, "%04x", (unsigned)y[0]);
    cr_assert_float_eq(rstd, 0.784463f, 1e-6);
    cr_assert_eq(dw[0], 0.78515625f);
}

Test(norms, refuse_shapes_that_cannot_be)
{
    struct glm_error err = {0};

    cr_assert_eq(
        cpu_rmsnorm_fwd(&(struct rmsnorm_fwd){.T = 1, .D = 0}, NULL, &err), GLM_EFORMAT);
    glm_error_clear(&err);
    cr_assert_eq(
        cpu_rmsnorm_fwd(
            &(struct rmsnorm_fwd){.T = 1, .D = 4, .x_stride = 3, .dtype = GLM_F32}, NULL,
            &err),
        GLM_EFORMAT);
    cr_assert(strstr(err.text, "x_stride 3") != NULL, "%s", err.text);
    glm_error_clear(&err);
    cr_assert_eq(
        cpu_rmsnorm_bwd(
            &(struct rmsnorm_bwd){.T = 1, .D = 4, .dx_stride = 3, .dtype = GLM_F32}, NULL,
            &err),
        GLM_EFORMAT);
    glm_error_clear(&err);
    cr_assert_eq(
        cpu_layernorm_fwd(
            &(struct layernorm_fwd){.T = -1, .D = 4, .dtype = GLM_F32}, NULL, &err),
        GLM_EFORMAT);
    glm_error_clear(&err);
    cr_assert_eq(
        cpu_layernorm_bwd(
            &(struct layernorm_bwd){.T = -1, .D = 4, .dtype = GLM_F32}, NULL, &err),
        GLM_EFORMAT);
}
