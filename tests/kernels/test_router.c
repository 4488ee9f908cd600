/* The router against the definition of its choice, transformers' router, and differences. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/pool.h"
#include "kernels/kernels.h"
#include "tests/support/opdata.h"
#include "tests/support/rng.h"

/* The router computes in acc whatever the elements are. */
static const double tolerance[] = {
    [GLM_F32] = 1e-6, [GLM_F64] = 1e-14, [GLM_BF16] = 1e-6};

struct shape {
    int T, E, K, groups, kept;
    bool norm;
};

static const struct shape shapes[] = {
    {1, 1, 1, 1, 1, true},
    {40, 8, 2, 1, 1, true},
    {40, 8, 2, 1, 1, false},
    {70, 16, 3, 4, 2, true},
    {70, 16, 3, 4, 2, false},
    {33, 12, 5, 6, 3, true},
    {33, 8, 3, 8, 5, true}, /* groups of one expert */
    {20, 8, 8, 1, 1, true}, /* all */
    {50, 256, 8, 8, 4, true},
    {0, 8, 2, 1, 1, true},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

struct data {
    enum glm_dtype dtype, acc;
    int64_t T, E, K, groups, kept;
    double factor;
    bool norm, given;
    float *bias;
    int32_t *expert;
    void *logit, *score, *weight, *dweight, *dlogit;
};

static struct data data_new(const struct shape *s, enum glm_dtype dtype, uint64_t seed)
{
    struct data d = {.dtype = dtype,
        .acc = op_acc(dtype),
        .T = s->T,
        .E = s->E,
        .K = s->K,
        .groups = s->groups,
        .kept = s->kept,
        .factor = 2.5,
        .norm = s->norm};

    d.logit = op_normals(d.acc, d.T * d.E, seed + 1);
    d.bias = op_normals(GLM_F32, d.E, seed + 2);
    for (int64_t e = 0; e < d.E; e++)
        d.bias[e] =
            d.bias[e] / 4 - 0.8f; /* mostly negative sums: 0 would win over them */
    d.expert = calloc((size_t)(d.T * d.K + 1), sizeof *d.expert);
    d.score = op_normals(d.acc, d.T * d.E, 0);
    d.weight = op_normals(d.acc, d.T * d.K, 0);
    d.dweight = op_normals(d.acc, d.T * d.K, seed + 3);
    d.dlogit = op_normals(d.acc, d.T * d.E, 0);
    return d;
}

static void data_free(struct data *d)
{
    free(d->logit), free(d->bias), free(d->expert), free(d->score), free(d->weight);
    free(d->dweight), free(d->dlogit);
}

static int forward(const struct data *d, glm_stream stream, struct glm_error *err)
{
    return cpu_router_fwd(&(struct router_fwd){.score = d->score,
                              .weight = d->weight,
                              .expert = d->expert,
                              .logit = d->logit,
                              .bias = d->bias,
                              .T = d->T,
                              .E = d->E,
                              .K = d->K,
                              .groups = d->groups,
                              .topk_groups = d->kept,
                              .factor = d->factor,
                              .norm = d->norm,
                              .given = d->given,
                              .dtype = d->dtype},
        stream, err);
}

static int backward(const struct data *d, glm_stream stream, struct glm_error *err)
{
    return cpu_router_bwd(&(struct router_bwd){.dlogit = d->dlogit,
                              .dweight = d->dweight,
                              .score = d->score,
                              .weight = d->weight,
                              .expert = d->expert,
                              .T = d->T,
                              .E = d->E,
                              .K = d->K,
                              .factor = d->factor,
                              .norm = d->norm,
                              .dtype = d->dtype},
        stream, err);
}

static void run(const struct data *d, glm_stream stream)
{
    struct glm_error err = {0};

    cr_assert_eq(forward(d, stream, &err), 0, "%s", err.text);
    cr_assert_eq(backward(d, stream, &err), 0, "%s", err.text);
}

/* ---- the definition --------------------------------------------------------------------------- */

/* Whether a comes before b in a list by descending value, NaN last, ties by number. */
static bool before(double va, int64_t a, double vb, int64_t b)
{
    if (isnan(va) || isnan(vb))
        return isnan(va) ? isnan(vb) && a < b : true;
    return va > vb || (va == vb && a < b);
}

static bool among(const double *x, const bool *out, int64_t n, int64_t me, int64_t k)
{
    int64_t ahead = 0;

    for (int64_t i = 0; i < n; i++)
        ahead += i != me && !(out != NULL && out[i]) && before(x[i], i, x[me], me);
    return ahead < k && !(out != NULL && out[me]);
}

/* In the arithmetic of the version, so that ties are ties in both. */
static double choice_of(const struct data *d, int64_t t, int64_t e)
{
    const double s = op_at(d->acc, d->score, t * d->E + e);

    return op_low(d->acc, s + (double)d->bias[e]);
}

static void assert_choice(const struct data *d, size_t shape)
{
    const int64_t size = d->E / d->groups;
    double *c = calloc((size_t)(2 * d->E), sizeof *c), *group = c + d->E;
    bool *out = calloc((size_t)d->E, sizeof *out);

    for (int64_t t = 0; t < d->T; t++) {
        int64_t at = 0;
        for (int64_t e = 0; e < d->E; e++)
            c[e] = choice_of(d, t, e);
        for (int64_t g = 0; g < d->groups; g++) {
            double sum = 0; /* two members each have at most one other ahead of them */
            for (int64_t e = 0; e < size; e++)
                sum += among(c + g * size, NULL, size, e, 2) ? c[g * size + e] : 0;
            group[g] = op_low(d->acc, sum);
        }
        for (int64_t e = 0; e < d->E; e++)
            out[e] = !among(group, NULL, d->groups, e / size, d->kept);
        for (int64_t e = 0; e < d->E; e++) {
            if (!among(c, out, d->E, e, d->K))
                continue;
            cr_assert_lt(at, d->K);
            cr_assert_eq(d->expert[t * d->K + at], e,
                "shape %zu, row %d, slot %d: %d, expected %d", shape, (int)t, (int)at,
                d->expert[t * d->K + at], (int)e);
            at++;
        }
        cr_assert_eq(at, d->K);
    }
    free(c), free(out);
}

static void assert_values(const struct data *d)
{
    double *score = calloc((size_t)(d->T * d->E + 1), 8),
           *dl = calloc((size_t)(d->T * d->E + 1), 8);
    double *weight = calloc((size_t)(d->T * d->K + 1), 8);

    for (int64_t t = 0; t < d->T; t++) {
        double sum = 0, mean = 0;
        for (int64_t e = 0; e < d->E; e++)
            score[t * d->E + e] = 1 / (1 + exp(-op_at(d->acc, d->logit, t * d->E + e)));
        for (int64_t k = t * d->K; k < (t + 1) * d->K; k++)
            sum += score[t * d->E + d->expert[k]];
        sum = d->norm ? sum + 1e-20 : 1;
        for (int64_t k = t * d->K; k < (t + 1) * d->K; k++) {
            weight[k] = d->factor * score[t * d->E + d->expert[k]] / sum;
            mean += d->norm ? weight[k] * op_at(d->acc, d->dweight, k) / sum : 0;
        }
        for (int64_t k = t * d->K; k < (t + 1) * d->K; k++) {
            const double s = score[t * d->E + d->expert[k]];
            const double ds = d->factor * op_at(d->acc, d->dweight, k) / sum - mean;
            dl[t * d->E + d->expert[k]] = ds * s * (1 - s);
        }
    }
    cr_assert_leq(op_error(d->acc, d->score, score, d->T * d->E, 1), tolerance[d->dtype]);
    cr_assert_leq(
        op_error(d->acc, d->weight, weight, d->T * d->K, 1), tolerance[d->dtype]);
    cr_assert_leq(op_error(d->acc, d->dlogit, dl, d->T * d->E, 1), tolerance[d->dtype]);
    free(score), free(weight), free(dl);
}

Test(router, chooses_and_weighs_by_the_definition)
{
    for (size_t i = 0; i < SHAPES; i++) {
        for (int m = 0; m < 3; m++) {
            struct data d = data_new(&shapes[i], op_dtypes[m], i);
            run(&d, NULL);
            assert_choice(&d, i);
            assert_values(&d);
            data_free(&d);
        }
    }
}

Test(router, gives_ties_to_the_lowest_expert_and_group)
{
    for (size_t i = 0; i < SHAPES; i++) {
        for (int m = 0; m < 3; m++) {
            struct data d = data_new(&shapes[i], op_dtypes[m], i);
            uint64_t state = i;
            for (int64_t j = 0; j < d.T * d.E;
                 j++) /* two values; in the first rows one */
                op_set(d.acc, d.logit, j, j < 5 * d.E ? 1 : (double)rng_below(&state, 2));
            for (int64_t e = 0; e < d.E; e++)
                d.bias[e] = -0.9f;
            run(&d, NULL);
            assert_choice(&d, i);
            assert_values(&d);
            for (int64_t k = 0; k < d.K && d.T > 0 && d.kept * d.E / d.groups >= d.K; k++)
                cr_assert_eq(d.expert[k], k);
            data_free(&d);
        }
    }
}

Test(router, puts_nan_behind_every_number_and_survives_the_ends_of_the_range)
{
    for (size_t i = 1; i < SHAPES; i++) {
        for (int m = 0; m < 3; m++) {
            static const double ends[] = {NAN, 1e30, -1e30, INFINITY, -INFINITY, 0};
            struct data d = data_new(&shapes[i], op_dtypes[m], i);
            uint64_t state = i;
            for (int64_t j = 0; j < d.T * d.E; j++)
                op_set(d.acc, d.logit, j, ends[rng_below(&state, 6)]);
            run(&d, NULL);
            if (d.groups == 1) /* sums of groups with NaN depend on which two are meant */
                assert_choice(&d, i);
            data_free(&d);
        }
    }
}

Test(router, replays_given_experts)
{
    struct data d = data_new(&shapes[3], GLM_F32, 1);
    int32_t *given = malloc((size_t)(d.T * d.K) * sizeof *given);

    for (int64_t i = 0; i < d.T * d.K; i++)
        given[i] = d.expert[i] = (int32_t)(i % d.K * 5 + i / d.K % 5);
    d.given = true;
    run(&d, NULL);
    cr_assert_eq(memcmp(given, d.expert, (size_t)(d.T * d.K) * sizeof *given), 0);
    assert_values(&d);
    free(given);
    data_free(&d);
}

static double *golden(const char *name, const char *array, int64_t n)
{
    char key[32];

    snprintf(key, sizeof key, "%s%s", name, array);
    return op_golden("fixtures/ops/router.txt", key, n);
}

Test(router, agrees_with_transformers)
{
    static const struct {
        const char *name;
        struct shape shape;
    } cases[] = {
        {"one.", {20, 16, 3, 1, 1, true}},
        {"four.", {20, 16, 3, 4, 2, true}},
        {"plain.", {20, 16, 3, 4, 2, false}},
    };

    for (int i = 0; i < 9; i++) {
        struct data d = data_new(&cases[i / 3].shape, op_dtypes[i % 3], 0);
        const char *name = cases[i / 3].name;
        double *logit = golden("", "logit", 20 * 16), *bias = golden("", "bias", 16);
        double *g = golden("", "g", 20 * 3), *expert = golden(name, "expert", 20 * 3);
        double *weight = golden(name, "weight", 20 * 3),
               *dl = golden(name, "dlogit", 20 * 16);
        free(d.logit), free(d.bias), free(d.dweight);
        d.logit = op_from(d.acc, logit, 20 * 16);
        d.bias = op_from(GLM_F32, bias, 16);
        d.dweight = op_from(d.acc, g, 20 * 3);
        run(&d, NULL);
        for (int j = 0; j < 20 * 3; j++)
            cr_assert_eq(d.expert[j], (int32_t)expert[j], "%s row %d", name, j / 3);
        cr_assert_leq(op_error(d.acc, d.weight, weight, 20 * 3, 1), tolerance[d.dtype]);
        cr_assert_leq(op_error(d.acc, d.dlogit, dl, 20 * 16, 1), tolerance[d.dtype]);
        free(logit), free(bias), free(g), free(expert), free(weight), free(dl);
        data_free(&d);
    }
}

static double loss(const struct data *d)
{
    struct glm_error err = {0};
    double sum = 0;

    cr_assert_eq(forward(d, NULL, &err), 0, "%s", err.text);
    for (int64_t i = 0; i < d->T * d->K; i++)
        sum += ((double *)d->weight)[i] * ((double *)d->dweight)[i];
    return sum;
}

Test(router, backward_is_the_derivative_of_forward)
{
    for (size_t i = 0; i < SHAPES - 1; i++) {
        struct data d = data_new(&shapes[i], GLM_F64, i);
        run(&d, NULL);
        d.given = true; /* the choice is not to flip */
        for (int64_t j = 0; j < d.T * d.E; j += 1 + d.E / 7) {
            const double h = 1e-6, at = ((double *)d.logit)[j];
            ((double *)d.logit)[j] = at + h;
            const double up = loss(&d);
            ((double *)d.logit)[j] = at - h;
            const double found = (up - loss(&d)) / (2 * h);
            ((double *)d.logit)[j] = at;
            cr_assert_float_eq(found, ((double *)d.dlogit)[j], 1e-7, "shape %zu", i);
        }
        data_free(&d);
    }
}

Test(router, has_the_same_bits_with_any_number_of_threads)
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
            const int64_t ranges = (a.T + 15) / 16;
            cr_assert_eq(
                pool_used(pool), ranges < threads[j / 3] ? ranges : threads[j / 3]);
            cr_assert_eq(memcmp(a.expert, b.expert, (size_t)(a.T * a.K) * 4), 0);
            cr_assert_eq(op_differ(a.acc, a.score, b.score, a.T * a.E), 0);
            cr_assert_eq(op_differ(a.acc, a.weight, b.weight, a.T * a.K), 0);
            cr_assert_eq(op_differ(a.acc, a.dlogit, b.dlogit, a.T * a.E), 0);
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

Test(router, refuses_what_cannot_be)
{
    struct data d = data_new(&shapes[3], GLM_F32, 0);
    struct glm_error err[8] = {{0}};

    d.K = 9; /* two groups of four */
    assert_refused(forward(&d, NULL, &err[0]), &err[0], "9 of 16 experts");
    d.K = 3;
    d.groups = 5;
    assert_refused(forward(&d, NULL, &err[1]), &err[1], "5 groups");
    d.groups = 4;
    d.kept = 5;
    assert_refused(forward(&d, NULL, &err[2]), &err[2], "the best 5");
    d.kept = 2;
    run(&d, NULL);
    d.given = true;
    memcpy(d.expert + 30, (int32_t[]){3, 3, 4}, 12);
    assert_refused(forward(&d, NULL, &err[3]), &err[3], "expert 1 of row 10 is 3");
    assert_refused(backward(&d, NULL, &err[4]), &err[4], "expert 1 of row 10 is 3");
    memcpy(d.expert + 30, (int32_t[]){3, 4, 16}, 12);
    assert_refused(forward(&d, NULL, &err[5]), &err[5], "expert 2 of row 10 is 16");
    memcpy(d.expert + 30, (int32_t[]){-1, 4, 5}, 12);
    assert_refused(backward(&d, NULL, &err[6]), &err[6], "expert 0 of row 10 is -1");
    data_free(&d);
}
