/* Movement between tokens and experts: the plan by its definition, gather and combine with their
 * backward passes against plain sums, a loop over experts in torch, and differences. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/pool.h"
#include "kernels/kernels.h"
#include "tests/support/opdata.h"
#include "tests/support/rng.h"

static const double tolerance[] = {
    [GLM_F32] = 1e-6, [GLM_F64] = 1e-15, [GLM_BF16] = 4e-3};

struct shape {
    int T, E, K, H;
    enum { SPREAD, ALL_TO_THE_LAST, ODD_ONES_EMPTY } kind;
};

static const struct shape shapes[] = {
    {1, 1, 1, 1, SPREAD},
    {24, 8, 2, 160, SPREAD},
    {70, 16, 3, 33, ODD_ONES_EMPTY},
    {50, 5, 1, 7, ALL_TO_THE_LAST},
    {33, 4, 4, 300, SPREAD}, /* every expert, and rows of more than a strip */
    {40, 6, 3, 512, ALL_TO_THE_LAST},
    {0, 8, 2, 16, SPREAD},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

struct data {
    enum glm_dtype dtype, acc;
    int64_t T, E, K, H, rows;
    int32_t *expert, *token, *slot, *row, *offset;
    void *x, *f, *shared, *weight, *dy, *add; /* inputs */
    void *gathered, *y, *df, *dweight, *dx;   /* outputs */
    bool hf;
};

/* K different experts, ascending. */
static void choose(const struct shape *s, int32_t *expert, uint64_t *state)
{
    const int step = s->kind == ODD_ONES_EMPTY ? 2 : 1;
    const int n = (s->E + step - 1) / step;
    int left = s->K;

    for (int e = 0; e < n && left > 0; e++) {
        const bool last = s->kind == ALL_TO_THE_LAST;
        if (last ? n - e == left : (int)rng_below(state, (uint64_t)(n - e)) < left) {
            *expert++ = (int32_t)(e * step);
            left--;
        }
    }
}

static void run_plan(struct data *d)
{
    struct glm_error err = {0};

    cr_assert_eq(cpu_moe_plan(&(struct moe_plan){.token = d->token,
                                  .slot = d->slot,
                                  .row = d->row,
                                  .offset = d->offset,
                                  .expert = d->expert,
                                  .T = d->T,
                                  .E = d->E,
                                  .K = d->K},
                     NULL, &err),
        0, "%s", err.text);
}

static struct data data_new(const struct shape *s, enum glm_dtype dtype, uint64_t seed)
{
    struct data d = {.dtype = dtype,
        .acc = op_acc(dtype),
        .T = s->T,
        .E = s->E,
        .K = s->K,
        .H = s->H,
        .rows = s->T * s->K};
    uint64_t state = rng_mix(seed);
    int32_t **lists[] = {&d.expert, &d.token, &d.slot, &d.row};

    for (int i = 0; i < 4; i++)
        *lists[i] = calloc((size_t)d.rows + 1, sizeof **lists[i]);
    d.offset = calloc((size_t)d.E + 1, sizeof *d.offset);
    for (int64_t t = 0; t < d.T; t++)
        choose(s, d.expert + t * d.K, &state);
    d.x = op_normals(dtype, d.T * d.H, seed + 1);
    d.f = op_normals(dtype, d.rows * d.H, seed + 2);
    d.shared = op_normals(dtype, d.T * d.H, seed + 3);
    d.weight = op_normals(d.acc, d.rows, seed + 4);
    d.dy = op_normals(dtype, d.T * d.H, seed + 5);
    d.add = op_normals(dtype, d.T * d.H, seed + 6);
    d.gathered = op_normals(dtype, d.rows * d.H, 0);
    d.y = op_normals(dtype, d.T * d.H, 0);
    d.df = op_normals(dtype, d.rows * d.H, 0);
    d.dweight = op_normals(d.acc, d.rows, 0);
    d.dx = op_normals(dtype, d.T * d.H, 0);
    run_plan(&d);
    return d;
}

static void data_free(struct data *d)
{
    free(d->expert), free(d->token), free(d->slot), free(d->row), free(d->offset);
    free(d->x), free(d->f), free(d->shared), free(d->weight), free(d->dy), free(d->add);
    free(d->gathered), free(d->y), free(d->df), free(d->dweight), free(d->dx);
}

static int gather(const struct data *d, glm_stream s, struct glm_error *err)
{
    return cpu_moe_gather(&(struct moe_gather){.y = d->gathered,
                              .x = d->x,
                              .token = d->token,
                              .T = d->T,
                              .rows = d->rows,
                              .H = d->H,
                              .dtype = d->dtype},
        s, err);
}

static int gather_bwd(const struct data *d, glm_stream s, struct glm_error *err)
{
    return cpu_moe_gather_bwd(&(struct moe_gather_bwd){.dx = d->dx,
                                  .dy = d->f,
                                  .add1 = d->shared,
                                  .add2 = d->add,
                                  .row = d->row,
                                  .T = d->T,
                                  .K = d->K,
                                  .H = d->H,
                                  .dtype = d->dtype},
        s, err);
}

static int combine(const struct data *d, glm_stream s, struct glm_error *err)
{
    return cpu_moe_combine_fwd(&(struct moe_combine_fwd){.y = d->y,
                                   .f = d->f,
                                   .shared = d->shared,
                                   .weight = d->weight,
                                   .row = d->row,
                                   .T = d->T,
                                   .K = d->K,
                                   .H = d->H,
                                   .hf_rounding = d->hf,
                                   .dtype = d->dtype},
        s, err);
}

static int combine_bwd(const struct data *d, glm_stream s, struct glm_error *err)
{
    return cpu_moe_combine_bwd(&(struct moe_combine_bwd){.df = d->df,
                                   .dweight = d->dweight,
                                   .dy = d->dy,
                                   .f = d->f,
                                   .weight = d->weight,
                                   .row = d->row,
                                   .T = d->T,
                                   .K = d->K,
                                   .H = d->H,
                                   .dtype = d->dtype},
        s, err);
}

static void run(const struct data *d, glm_stream stream)
{
    struct glm_error err = {0};

    cr_assert_eq(gather(d, stream, &err), 0, "%s", err.text);
    cr_assert_eq(gather_bwd(d, stream, &err), 0, "%s", err.text);
    cr_assert_eq(combine(d, stream, &err), 0, "%s", err.text);
    cr_assert_eq(combine_bwd(d, stream, &err), 0, "%s", err.text);
}

Test(moe, plan_sorts_by_expert_then_token)
{
    for (size_t i = 0; i < SHAPES; i++) {
        struct data d = data_new(&shapes[i], GLM_F32, i);
        int64_t row = 0;
        for (int64_t e = 0; e < d.E; e++) {
            cr_assert_eq(d.offset[e], row, "shape %zu expert %d", i, (int)e);
            for (int64_t j = 0; j < d.rows; j++) {
                if (d.expert[j] != e)
                    continue;
                cr_assert_eq(d.token[row], j / d.K);
                cr_assert_eq(d.slot[row], j % d.K);
                cr_assert_eq(d.row[j], row);
                row++;
            }
        }
        cr_assert_eq(d.offset[d.E], d.rows);
        data_free(&d);
    }
}

Test(moe, shapes_have_empty_experts_and_one_that_takes_all)
{
    struct data empty = data_new(&shapes[2], GLM_F32, 2),
                all = data_new(&shapes[3], GLM_F32, 3);

    cr_assert_eq(empty.offset[1], empty.offset[2]);
    cr_assert_lt(empty.offset[2], empty.offset[3]);
    cr_assert_eq(all.offset[4], 0);
    cr_assert_eq(all.offset[5], 50);
    data_free(&empty);
    data_free(&all);
}

struct reference {
    double *y, *dx, *df, *dweight;
};

static struct reference reference_new(const struct data *d)
{
    struct reference r = {calloc((size_t)(d->T * d->H + 1), 8),
        calloc((size_t)(d->T * d->H + 1), 8), calloc((size_t)(d->rows * d->H + 1), 8),
        calloc((size_t)d->rows + 1, 8)};

    for (int64_t i = 0; i < d->T * d->H; i++) {
        const int64_t t = i / d->H, h = i % d->H;
        for (int64_t j = t * d->K; j < (t + 1) * d->K; j++) {
            const double f = op_at(d->dtype, d->f, d->row[j] * d->H + h);
            const double w = op_at(d->acc, d->weight, j), g = op_at(d->dtype, d->dy, i);
            r.y[i] += w * f;
            r.dx[i] += f;
            r.df[d->row[j] * d->H + h] = w * g;
            r.dweight[j] += f * g;
        }
        r.y[i] += op_at(d->dtype, d->shared, i);
        r.dx[i] += op_at(d->dtype, d->shared, i) + op_at(d->dtype, d->add, i);
    }
    return r;
}

static void reference_free(struct reference *r)
{
    free(r->y), free(r->dx), free(r->df), free(r->dweight);
}

/* In BF16: each output is rounded once, from a sum in float. */
static void assert_near(
    const struct data *d, const void *got, const double *expected, int64_t n)
{
    int64_t other = 0;

    cr_assert_leq(op_error(d->dtype, got, expected, n, 1), tolerance[d->dtype]);
    for (int64_t i = 0; i < n; i++)
        other += op_at(d->dtype, got, i) != op_low(d->dtype, expected[i]);
    cr_assert(d->dtype != GLM_BF16 || other * 100 <= n, "%d of %d", (int)other, (int)n);
}

Test(moe, moves_and_sums_by_the_formulas)
{
    for (size_t i = 0; i < SHAPES; i++) {
        for (int m = 0; m < 3; m++) {
            struct data d = data_new(&shapes[i], op_dtypes[m], i);
            struct reference r = reference_new(&d);
            run(&d, NULL);
            for (int64_t j = 0; j < d.rows * d.H; j++)
                cr_assert_eq(op_at(d.dtype, d.gathered, j),
                    op_at(d.dtype, d.x, d.token[j / d.H] * d.H + j % d.H));
            assert_near(&d, d.y, r.y, d.T * d.H);
            assert_near(&d, d.dx, r.dx, d.T * d.H);
            assert_near(&d, d.df, r.df, d.rows * d.H);
            cr_assert_leq(op_error(d.acc, d.dweight, r.dweight, d.rows, 1),
                d.dtype == GLM_F64 ? 1e-14 : 2e-6);
            reference_free(&r);
            data_free(&d);
        }
    }
}

Test(moe, sums_start_from_nothing_where_nothing_is_added)
{
    struct data d = data_new(&shapes[1], GLM_F64, 1);
    void *shared = d.shared, *add = d.add;

    d.shared = op_zeros(GLM_F64, d.T * d.H);
    d.add = op_zeros(GLM_F64, d.T * d.H);
    struct reference r = reference_new(&d);
    free(d.shared), free(d.add);
    d.shared = d.add = NULL;
    run(&d, NULL);
    cr_assert_leq(op_error(GLM_F64, d.y, r.y, d.T * d.H, 0), 1e-15);
    cr_assert_leq(op_error(GLM_F64, d.dx, r.dx, d.T * d.H, 0), 1e-15);
    reference_free(&r);
    d.shared = shared;
    d.add = add;
    data_free(&d);
}

/* With its rounding after every product and sum the result is fixed to the bit. */
Test(moe, combine_rounds_like_transformers_on_request)
{
    for (size_t i = 0; i < SHAPES; i++) {
        for (int m = 0; m < 3; m++) {
            const enum glm_dtype ty = op_dtypes[m];
            struct data d = data_new(&shapes[i], ty, i);
            d.hf = true;
            run(&d, NULL);
            for (int64_t j = 0; j < d.T * d.H; j++) {
                double y = 0;
                for (int64_t k = j / d.H * d.K; k < (j / d.H + 1) * d.K; k++) {
                    const double w = op_at(d.acc, d.weight, k);
                    const double f = op_at(ty, d.f, d.row[k] * d.H + j % d.H);
                    y = op_low(ty, op_low(d.acc, y + op_low(ty, op_low(d.acc, w * f))));
                }
                y = op_low(ty, op_low(d.acc, y + op_at(ty, d.shared, j)));
                cr_assert_eq(
                    op_at(ty, d.y, j), y, "shape %zu, %s", i, glm_dtype_name(ty));
            }
            data_free(&d);
        }
    }
}

/* fixtures/make_ops_golden.py: expert e maps x to x * factor[e]. */
Test(moe, agrees_with_a_loop_over_experts_in_torch)
{
    const struct shape s = {20, 16, 3, 10, SPREAD};
    struct glm_error err = {0};

    for (int m = 0; m < 2; m++) {
        struct data d = data_new(&s, op_dtypes[m], 0);
        const char *path = "fixtures/ops/router.txt";
        double *x = op_golden(path, "x", 200), *shared = op_golden(path, "shared", 200);
        double *dy = op_golden(path, "dy", 200), *factor = op_golden(path, "factor", 160);
        double *expert = op_golden(path, "four.expert", 60);
        double *weight = op_golden(path, "four.weight", 60),
               *y = op_golden(path, "y", 200);
        double *dx = op_golden(path, "dx", 200),
               *dweight = op_golden(path, "dweight", 60);
        free(d.x), free(d.shared), free(d.dy), free(d.weight);
        d.x = op_from(d.dtype, x, 200);
        d.shared = op_from(d.dtype, shared, 200);
        d.dy = op_from(d.dtype, dy, 200);
        d.weight = op_from(d.acc, weight, 60);
        for (int i = 0; i < 60; i++)
            d.expert[i] = (int32_t)expert[i];
        run_plan(&d);
        cr_assert_eq(gather(&d, NULL, &err), 0);
        for (int i = 0; i < 600; i++) {
            const int e = d.expert[d.token[i / 10] * 3 + d.slot[i / 10]];
            op_set(
                d.dtype, d.f, i, op_at(d.dtype, d.gathered, i) * factor[e * 10 + i % 10]);
        }
        cr_assert_eq(combine(&d, NULL, &err), 0);
        cr_assert_eq(combine_bwd(&d, NULL, &err), 0);
        cr_assert_leq(op_error(d.dtype, d.y, y, 200, 1), tolerance[d.dtype]);
        cr_assert_leq(op_error(d.acc, d.dweight, dweight, 60, 1), tolerance[d.dtype] * 4);
        for (int i = 0; i < 600; i++) { /* what the experts' backward hands back */
            const int e = d.expert[d.token[i / 10] * 3 + d.slot[i / 10]];
            op_set(d.dtype, d.f, i, op_at(d.dtype, d.df, i) * factor[e * 10 + i % 10]);
        }
        memset(d.shared, 0, 200 * glm_dtype_size(d.dtype));
        memset(d.add, 0, 200 * glm_dtype_size(d.dtype));
        cr_assert_eq(gather_bwd(&d, NULL, &err), 0);
        cr_assert_leq(op_error(d.dtype, d.dx, dx, 200, 1), tolerance[d.dtype]);
        free(x), free(shared), free(dy), free(factor), free(expert), free(weight),
            free(y);
        free(dx), free(dweight);
        data_free(&d);
    }
}

static double loss(const struct data *d)
{
    struct glm_error err = {0};
    double sum = 0;

    cr_assert_eq(combine(d, NULL, &err), 0, "%s", err.text);
    for (int64_t i = 0; i < d->T * d->H; i++)
        sum += ((double *)d->y)[i] * ((double *)d->dy)[i];
    return sum;
}

static void assert_slope(const struct data *d, double *x, double expected)
{
    const double h = 1e-4, at = *x; /* the loss is linear in each */

    *x = at + h;
    const double up = loss(d);
    *x = at - h;
    const double found = (up - loss(d)) / (2 * h);
    *x = at;
    cr_assert_float_eq(found, expected, 1e-8);
}

Test(moe, combine_backward_is_the_derivative_of_forward)
{
    for (size_t i = 0; i < SHAPES - 1; i++) {
        struct data d = data_new(&shapes[i], GLM_F64, i);
        uint64_t state = i;
        run(&d, NULL);
        for (int trial = 0; trial < 20; trial++) {
            const int64_t a = (int64_t)rng_below(&state, (uint64_t)(d.rows * d.H));
            const int64_t b = (int64_t)rng_below(&state, (uint64_t)d.rows);
            assert_slope(&d, (double *)d.f + a, ((double *)d.df)[a]);
            assert_slope(&d, (double *)d.weight + b, ((double *)d.dweight)[b]);
        }
        data_free(&d);
    }
}

Test(moe, has_the_same_bits_with_any_number_of_threads)
{
    static const int threads[] = {1, 2, 4};

    for (size_t i = 1; i < SHAPES - 1; i++) {
        for (int j = 0; j < 9; j++) {
            struct glm_error err = {0};
            struct data a = data_new(&shapes[i], op_dtypes[j % 3], i);
            struct data b = data_new(&shapes[i], op_dtypes[j % 3], i);
            const glm_stream pool = pool_new(threads[j / 3], &err);
            run(&a, NULL);
            run(&b, pool);
            const int64_t ranges = (a.rows + 15) / 16;
            cr_assert_eq(
                pool_used(pool), ranges < threads[j / 3] ? ranges : threads[j / 3]);
            cr_assert_eq(op_differ(a.dtype, a.gathered, b.gathered, a.rows * a.H), 0);
            cr_assert_eq(op_differ(a.dtype, a.dx, b.dx, a.T * a.H), 0);
            cr_assert_eq(op_differ(a.dtype, a.y, b.y, a.T * a.H), 0);
            cr_assert_eq(op_differ(a.dtype, a.df, b.df, a.rows * a.H), 0);
            cr_assert_eq(op_differ(a.acc, a.dweight, b.dweight, a.rows), 0);
            pool_free(pool);
            data_free(&a);
            data_free(&b);
        }
    }
}

static void assert_refused(int code, const struct glm_error *err, const char *word)
{
    cr_assert_eq(code, GLM_EFORMAT, "%s", word);
    cr_assert_not_null(strstr(err->text, word), "%s", err->text);
}

Test(moe, refuses_what_cannot_be)
{
    struct data d = data_new(&shapes[1], GLM_F32, 0);
    struct glm_error err[8] = {{0}};
    struct moe_plan plan = {.token = d.token,
        .slot = d.slot,
        .row = d.row,
        .offset = d.offset,
        .expert = d.expert,
        .T = d.T,
        .E = d.E,
        .K = d.K};

    d.token[5] = 24;
    assert_refused(gather(&d, NULL, &err[0]), &err[0], "24, expected 0 to 23");
    d.row[5] = -1;
    assert_refused(gather_bwd(&d, NULL, &err[1]), &err[1], "-1, expected 0 to 47");
    assert_refused(combine(&d, NULL, &err[2]), &err[2], "-1, expected 0 to 47");
    assert_refused(combine_bwd(&d, NULL, &err[3]), &err[3], "-1, expected 0 to 47");
    d.expert[3] = 8;
    assert_refused(cpu_moe_plan(&plan, NULL, &err[4]), &err[4], "expert 1 of row 1 is 8");
    plan.K = 0;
    assert_refused(cpu_moe_plan(&plan, NULL, &err[5]), &err[5], "24 rows of 0");
    d.H = 0;
    assert_refused(gather(&d, NULL, &err[6]), &err[6], "of 0 elements");
    data_free(&d);
}
