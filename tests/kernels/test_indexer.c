/* The indexer: its choice against a plain sort, with every kind of tie; its loss against the formula
 * in float64, torch and differences; its bits under threads and packing; what it refuses. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/pool.h"
#include "kernels/kernels.h"
#include "tests/support/opdata.h"
#include "tests/support/rng.h"

/* Nothing is rounded to BF16 on the way: its inputs are, before both see them. */
static const double tolerance[] = {
    [GLM_F32] = 2e-5, [GLM_F64] = 1e-13, [GLM_BF16] = 2e-5};

struct shape {
    int lengths[6];
    int N, D, K, MN, MNk, MD;
    bool hf;
};

static const struct shape shapes[] = {
    {{1}, 1, 1, 1, 1, 1, 1, false}, {{24}, 16, 32, 8, 4, 4, 40, true},
    {{5, 1, 17, 9}, 4, 16, 6, 3, 1, 33, false},
    {{5, 1, 17, 9}, 5, 7, 64, 2, 2, 16, true}, /* K > T */
    {{3, 40, 2}, 4, 16, 1, 4, 1, 80, true}, {{70}, 32, 128, 17, 2, 1, 576, false},
    {{600, 3}, 40, 2, 500, 1, 1, 2, false}, /* several blocks of rows in the loss */
};
enum { SHAPES = sizeof shapes / sizeof *shapes, LARGE = SHAPES - 1 };

struct data {
    enum glm_dtype dtype, acc;
    int64_t T, S, N, D, K, MN, MNk, MD;
    int32_t *cu, *index;
    void *q, *k, *w, *mq, *mk, *lse, *score, *kl, *dq, *dk, *dw;
    double main_scale, coeff;
    bool hf;
};

static struct data data_new(const struct shape *s, enum glm_dtype dtype, uint64_t seed)
{
    struct data d = {.dtype = dtype,
        .acc = op_acc(dtype),
        .N = s->N,
        .D = s->D,
        .K = s->K,
        .MN = s->MN,
        .MNk = s->MNk,
        .MD = s->MD,
        .hf = s->hf,
        .main_scale = 1 / sqrt(s->MD),
        .coeff = 0.7};

    d.cu = op_pack(s->lengths, &d.S, &d.T);
    d.index = calloc((size_t)(d.T * d.K), sizeof *d.index);
    d.q = op_normals(dtype, d.T * d.N * d.D, seed + 1);
    d.k = op_normals(dtype, d.T * d.D, seed + 2);
    d.w = op_normals(dtype, d.T * d.N, seed + 3);
    d.mq = op_normals(dtype, d.T * d.MN * d.MD, seed + 4);
    d.mk = op_normals(dtype, d.T * d.MNk * d.MD, seed + 5);
    d.lse = op_zeros(d.acc, d.T * d.MN);
    d.score = op_normals(d.acc, d.T * d.K, 0);
    d.kl = op_normals(d.acc, d.T, 0);
    d.dq = op_normals(d.acc, d.T * d.N * d.D, 0);
    d.dk = op_normals(d.acc, d.T * d.D, 0);
    d.dw = op_normals(d.acc, d.T * d.N, 0);
    return d;
}

static void data_free(struct data *d)
{
    free(d->cu), free(d->index), free(d->q), free(d->k), free(d->w), free(d->mq),
        free(d->mk);
    free(d->lse), free(d->score), free(d->kl), free(d->dq), free(d->dk), free(d->dw);
}

static int topk(const struct data *d, glm_stream stream, struct glm_error *err)
{
    return cpu_indexer_topk(&(struct indexer_topk){.index = d->index,
                                .score = d->score,
                                .q = d->q,
                                .k = d->k,
                                .w = d->w,
                                .cu_seqlens = d->cu,
                                .T = d->T,
                                .S = d->S,
                                .N = d->N,
                                .D = d->D,
                                .K = d->K,
                                .hf_scales = d->hf,
                                .dtype = d->dtype},
        stream, err);
}

static int loss(const struct data *d, bool sparse, bool gradients, glm_stream stream,
    struct glm_error *err)
{
    return cpu_indexer_loss(&(struct indexer_loss){.kl = d->kl,
                                .dq = gradients ? d->dq : NULL,
                                .dk = gradients ? d->dk : NULL,
                                .dw = gradients ? d->dw : NULL,
                                .q = d->q,
                                .k = d->k,
                                .w = d->w,
                                .mq = d->mq,
                                .mk = d->mk,
                                .lse = d->lse,
                                .index = sparse ? d->index : NULL,
                                .cu_seqlens = d->cu,
                                .T = d->T,
                                .S = d->S,
                                .N = d->N,
                                .D = d->D,
                                .K = d->K,
                                .MN = d->MN,
                                .MNk = d->MNk,
                                .MDq = d->MD,
                                .main_scale = d->main_scale,
                                .coeff = d->coeff,
                                .hf_scales = d->hf,
                                .dtype = d->dtype},
        stream, err);
}

static void run_topk(const struct data *d, glm_stream stream)
{
    struct glm_error err = {0};

    cr_assert_eq(topk(d, stream, &err), 0, "%s", err.text);
}

static void run_loss(const struct data *d, bool sparse, glm_stream stream)
{
    struct glm_error err = {0};

    cr_assert_eq(loss(d, sparse, true, stream, &err), 0, "%s", err.text);
}

/* ---- the formulas, plainly -------------------------------------------------------------------- */

static int64_t first_of(const struct data *d, int64_t t)
{
    int64_t i = 0;

    while (d->cu[i + 1] <= t)
        i++;
    return d->cu[i];
}

static bool sees(const struct data *d, bool sparse, int64_t t, int64_t s)
{
    if (s < first_of(d, t) || s > t)
        return false;
    for (int64_t j = 0; sparse && j < d->K; j++) {
        if (d->index[t * d->K + j] == s)
            return true;
    }
    return !sparse;
}

static double dot(
    enum glm_dtype ty, const void *a, int64_t i, const void *b, int64_t j, int64_t n)
{
    double sum = 0;

    for (int64_t e = 0; e < n; e++)
        sum += op_at(ty, a, i + e) * op_at(ty, b, j + e);
    return sum;
}

static double z_of(const struct data *d, int64_t t, int64_t n, int64_t s)
{
    return dot(d->dtype, d->q, (t * d->N + n) * d->D, d->k, s * d->D, d->D);
}

static double score_of(const struct data *d, int64_t t, int64_t s)
{
    double sum = 0;

    for (int64_t n = 0; n < d->N; n++) {
        const double z = z_of(d, t, n, s);
        sum += op_at(d->dtype, d->w, t * d->N + n) * (z < 0 ? 0 : z);
    }
    return sum / sqrt((double)(d->N * d->D));
}

/* By the definition: s is chosen if fewer than K visible keys come before it. */
static bool chosen(const double *score, int64_t first, int64_t t, int64_t s, int64_t K)
{
    int64_t before = 0;

    for (int64_t o = first; o <= t; o++) {
        const bool nan = isnan(score[o]), me = isnan(score[s]);
        before += (me && !nan) || (!me && !nan && score[o] > score[s])
            || (o < s && (score[o] == score[s] || (me && nan)));
    }
    return before < K;
}

/* Needs scores that are exact in every version. */
static void assert_exact_choice(const struct data *d, const char *what)
{
    double *score = calloc((size_t)d->T, sizeof *score);

    for (int64_t t = 0; t < d->T; t++) {
        const int64_t first = first_of(d, t);
        int64_t at = 0;
        for (int64_t s = first; s <= t; s++)
            score[s] = score_of(d, t, s);
        for (int64_t s = first; s <= t; s++) {
            if (!chosen(score, first, t, s, d->K))
                continue;
            cr_assert_eq(d->index[t * d->K + at], s,
                "%s, %s: row %d, entry %d is %d, expected %d", what,
                glm_dtype_name(d->dtype), (int)t, (int)at, d->index[t * d->K + at],
                (int)s);
            const double got = op_at(d->acc, d->score, t * d->K + at);
            cr_assert(got == score[s] || (isnan(got) && isnan(score[s])),
                "%s: %g, expected %g", what, got, score[s]);
            at++;
        }
        for (; at < d->K; at++) {
            cr_assert_eq(d->index[t * d->K + at], -1);
            cr_assert_eq(op_at(d->acc, d->score, t * d->K + at), 0);
        }
    }
    free(score);
}

/* Small integers and N*D a power of 4: every sum is exact, and ties abound. */
static void make_exact(struct data *d, uint64_t seed, int zero_heads)
{
    uint64_t state = rng_mix(seed);

    for (int64_t i = 0; i < d->T * d->N * d->D; i++)
        op_set(d->dtype, d->q, i, (double)rng_below(&state, 3) - 1);
    for (int64_t i = 0; i < d->T * d->D; i++)
        op_set(d->dtype, d->k, i, (double)rng_below(&state, 3) - 1);
    for (int64_t i = 0; i < d->T * d->N; i++)
        op_set(d->dtype, d->w, i,
            (int)rng_below(&state, 4) < zero_heads ? 0
                                                   : (double)rng_below(&state, 5) - 2);
}

Test(indexer, chooses_the_largest_with_ties_to_the_lowest)
{
    static const int ks[] = {1, 2, 5, 16, 39, 40, 41, 64};

    for (size_t i = 0; i < sizeof ks / sizeof *ks; i++) {
        for (int m = 0; m < 3; m++) {
            for (int hf = 0; hf < 2; hf++) {
                const struct shape s = {{5, 1, 40, 17}, 4, 16, ks[i], 1, 1, 1, hf != 0};
                for (int zero = 0; zero <= 4; zero += 2) { /* at 4 all scores are 0 */
                    struct data d = data_new(&s, op_dtypes[m], 0);
                    make_exact(&d, i + 100, zero);
                    run_topk(&d, NULL);
                    assert_exact_choice(&d, "integers");
                    data_free(&d);
                }
            }
        }
    }
}

Test(indexer, gives_the_same_set_without_scores)
{
    struct data d = data_new(&shapes[2], GLM_F32, 0);
    const size_t bytes = (size_t)(d.T * d.K) * sizeof *d.index;
    int32_t *with = malloc(bytes);
    void *score = d.score;

    run_topk(&d, NULL);
    memcpy(with, d.index, bytes);
    memset(d.index, 7, bytes);
    d.score = NULL;
    run_topk(&d, NULL);
    cr_assert_eq(memcmp(with, d.index, bytes), 0);
    d.score = score;
    free(with);
    data_free(&d);
}

/* One head, k the score itself; w 1 and q 1: the score is relu(k). With w -1 negative zeros and
 * numbers. */
Test(indexer, orders_nan_below_minus_infinity_and_both_zeros_alike)
{
    static const double keys[] = {2, NAN, 0.0, -0.0, -3, INFINITY, NAN, 1, 1, 0.0};

    for (int m = 0; m < 3; m++) {
        for (int sign = -1; sign <= 1; sign += 2) {
            for (int K = 1; K <= 10; K++) {
                const struct shape s = {{10}, 1, 1, K, 1, 1, 1, false};
                struct data d = data_new(&s, op_dtypes[m], 0);
                for (int64_t i = 0; i < 10; i++) {
                    op_set(d.dtype, d.q, i, 1);
                    op_set(d.dtype, d.w, i, sign);
                    op_set(d.dtype, d.k, i, keys[i]);
                }
                run_topk(&d, NULL);
                assert_exact_choice(&d, "ends of the range");
                data_free(&d);
            }
        }
    }
}

/* Any numbers: nothing left out scores more than the least chosen, but for rounding. */
Test(indexer, chooses_no_worse_than_the_formula_in_float64)
{
    for (size_t i = 0; i < SHAPES; i++) {
        for (int m = 0; m < 3; m++) {
            struct data d = data_new(&shapes[i], op_dtypes[m], i);
            run_topk(&d, NULL);
            for (int64_t t = 0; t < d.T; t++) {
                double least = INFINITY, most = -INFINITY;
                int64_t count = 0;
                for (int64_t s = first_of(&d, t); s <= t; s++) {
                    const double score = score_of(&d, t, s);
                    if (count < d.K && d.index[t * d.K + count] == s) {
                        cr_assert_float_eq(op_at(d.acc, d.score, t * d.K + count), score,
                            5 * tolerance[d.dtype]);
                        least = score < least ? score : least;
                        count++;
                    } else {
                        most = score > most ? score : most;
                    }
                }
                const int64_t visible = t + 1 - first_of(&d, t);
                cr_assert_eq(
                    count, visible < d.K ? visible : d.K, "shape %zu row %d", i, (int)t);
                cr_assert_geq(
                    least, most - 5 * tolerance[d.dtype], "shape %zu row %d", i, (int)t);
            }
            data_free(&d);
        }
    }
}

/* ---- loss ------------------------------------------------------------------------------------- */

struct reference {
    double *kl, *dq, *dk, *dw;
};

/* lse of the main attention, from its scores. */
static void fill_lse(struct data *d, bool sparse)
{
    for (int64_t t = 0; t < d->T; t++) {
        for (int64_t n = 0; n < d->MN; n++) {
            double sum = 0;
            for (int64_t s = 0; s <= t; s++) {
                if (sees(d, sparse, t, s))
                    sum += exp(d->main_scale
                        * dot(d->dtype, d->mq, (t * d->MN + n) * d->MD, d->mk,
                            (s * d->MNk + (d->MNk == 1 ? 0 : n)) * d->MD, d->MD));
            }
            op_set(d->acc, d->lse, t * d->MN + n, log(sum));
        }
    }
}

static void reference_row(
    const struct data *d, bool sparse, int64_t t, struct reference *r)
{
    double *p = calloc((size_t)(2 * d->T), sizeof *p), *u = p + d->T, a = 0, b = 0;

    for (int64_t s = 0; s <= t; s++) {
        if (!sees(d, sparse, t, s))
            continue;
        for (int64_t n = 0; n < d->MN; n++)
            p[s] += exp(d->main_scale
                    * dot(d->dtype, d->mq, (t * d->MN + n) * d->MD, d->mk,
                        (s * d->MNk + (d->MNk == 1 ? 0 : n)) * d->MD, d->MD)
                - op_at(d->acc, d->lse, t * d->MN + n));
        u[s] = exp(score_of(d, t, s));
        a += p[s];
        b += u[s];
    }
    for (int64_t s = 0; s <= t; s++) {
        if (u[s] == 0)
            continue;
        p[s] /= a;
        u[s] /= b;
        r->kl[t] += p[s] * (log(fmax(p[s], 1e-10)) - log(u[s]));
        const double dI = d->coeff * (u[s] - p[s]),
                     scale = 1 / sqrt((double)(d->N * d->D));
        for (int64_t n = 0; n < d->N; n++) {
            const double z = z_of(d, t, n, s), w = op_at(d->dtype, d->w, t * d->N + n);
            if (z <= 0)
                continue;
            r->dw[t * d->N + n] += scale * dI * z;
            for (int64_t e = 0; e < d->D; e++) {
                const int64_t qe = (t * d->N + n) * d->D + e;
                r->dq[qe] += scale * dI * w * op_at(d->dtype, d->k, s * d->D + e);
                r->dk[s * d->D + e] += scale * dI * w * op_at(d->dtype, d->q, qe);
            }
        }
    }
    free(p);
}

static struct reference reference_new(const struct data *d, bool sparse)
{
    struct reference r = {calloc((size_t)d->T, 8),
        calloc((size_t)(d->T * d->N * d->D), 8), calloc((size_t)(d->T * d->D), 8),
        calloc((size_t)(d->T * d->N), 8)};

    for (int64_t t = 0; t < d->T; t++)
        reference_row(d, sparse, t, &r);
    return r;
}

static void reference_free(struct reference *r)
{
    free(r->kl), free(r->dq), free(r->dk), free(r->dw);
}

static void assert_loss_near(
    const struct data *d, const struct reference *r, const char *what)
{
    const double error[] = {op_error(d->acc, d->kl, r->kl, d->T, 1),
        op_error(d->acc, d->dq, r->dq, d->T * d->N * d->D, 1e-2),
        op_error(d->acc, d->dk, r->dk, d->T * d->D, 1e-2),
        op_error(d->acc, d->dw, r->dw, d->T * d->N, 1e-2)};
    static const char *const names[] = {"kl", "dq", "dk", "dw"};

    for (int i = 0; i < 4; i++)
        cr_assert_leq(error[i], tolerance[d->dtype], "%s, %s, %s: relative error %g",
            what, glm_dtype_name(d->dtype), names[i], error[i]);
}

Test(indexer, loss_and_gradients_agree_with_the_formula_in_float64)
{
    for (size_t i = 0; i < SHAPES; i++) {
        for (int m = 0; m < 3; m++) {
            for (int sparse = 0; sparse < 2; sparse++) {
                if (i == LARGE && (m > 0 || sparse == 1))
                    continue; /* the plain formula is slow */
                struct data d = data_new(&shapes[i], op_dtypes[m], i);
                run_topk(&d, NULL);
                fill_lse(&d, sparse);
                struct reference r = reference_new(&d, sparse);
                run_loss(&d, sparse, NULL);
                char what[32];
                snprintf(
                    what, sizeof what, "shape %zu %s", i, sparse ? "sparse" : "dense");
                assert_loss_near(&d, &r, what);
                reference_free(&r);
                data_free(&d);
            }
        }
    }
}

static double *golden(const char *name, const char *array, int64_t n)
{
    char key[32];

    snprintf(key, sizeof key, "%s%s", name, array);
    return op_golden("fixtures/ops/indexer.txt", key, n);
}

Test(indexer, agrees_with_torch)
{
    const struct shape s = {{7, 13}, 5, 16, 6, 3, 3, 12, false};

    for (int m = 0; m < 6; m++) {
        struct data d = data_new(&s, op_dtypes[m / 2], 1);
        void **inputs[] = {&d.q, &d.k, &d.w, &d.mq, &d.mk};
        const char *names[] = {"q", "k", "w", "mq", "mk"};
        const int64_t sizes[] = {20 * 5 * 16, 20 * 16, 20 * 5, 20 * 3 * 12, 20 * 3 * 12};
        double *index = golden("", "index", 20 * 6), *score = golden("", "score", 20 * 6);
        for (int i = 0; i < 5; i++) {
            double *x = golden("", names[i], sizes[i]);
            free(*inputs[i]);
            *inputs[i] = op_from(d.dtype, x, sizes[i]);
            free(x);
        }
        d.main_scale = 0.25;
        d.coeff = 0.5;
        d.hf = m % 2 == 1;
        run_topk(&d, NULL);
        for (int i = 0; i < 20 * 6; i++)
            cr_assert_eq(
                d.index[i], (int32_t)index[i], "entry %d of row %d", i % 6, i / 6);
        cr_assert_leq(op_error(d.acc, d.score, score, 20 * 6, 0), tolerance[d.dtype]);
        for (int sparse = 0; sparse < 2; sparse++) {
            const char *name = sparse ? "sparse." : "dense.";
            double *lse = golden(name, "lse", 20 * 3);
            struct reference r = {golden(name, "kl", 20), golden(name, "dq", 20 * 5 * 16),
                golden(name, "dk", 20 * 16), golden(name, "dw", 20 * 5)};
            free(d.lse);
            d.lse = op_from(d.acc, lse, 20 * 3);
            run_loss(&d, sparse, NULL);
            assert_loss_near(&d, &r, name);
            reference_free(&r);
            free(lse);
        }
        free(index), free(score);
        data_free(&d);
    }
}

static double total(const struct data *d, bool sparse)
{
    struct glm_error err = {0};
    double sum = 0;

    cr_assert_eq(loss(d, sparse, false, NULL, &err), 0, "%s", err.text);
    for (int64_t t = 0; t < d->T; t++)
        sum += d->coeff * op_at(GLM_F64, d->kl, t);
    return sum;
}

static void assert_slope(
    const struct data *d, bool sparse, double *x, double expected, const char *what)
{
    const double h = 1e-6, at = *x;

    *x = at + h;
    const double up = total(d, sparse);
    *x = at - h;
    const double found = (up - total(d, sparse)) / (2 * h);
    *x = at;
    cr_assert_float_eq(found, expected, 1e-7, "%s: %.10g, differences give %.10g", what,
        expected, found);
}

Test(indexer, gradients_are_derivatives_of_the_loss)
{
    for (size_t i = 1; i < LARGE; i++) {
        for (int sparse = 0; sparse < 2; sparse++) {
            struct data d = data_new(&shapes[i], GLM_F64, i);
            uint64_t state = i;
            run_topk(&d, NULL);
            fill_lse(&d, sparse);
            run_loss(&d, sparse, NULL);
            for (int trial = 0; trial < 8; trial++) {
                const int64_t a = (int64_t)rng_below(&state, (uint64_t)(d.T * d.N * d.D));
                const int64_t b = (int64_t)rng_below(&state, (uint64_t)(d.T * d.D));
                const int64_t c = (int64_t)rng_below(&state, (uint64_t)(d.T * d.N));
                assert_slope(&d, sparse, (double *)d.q + a, ((double *)d.dq)[a], "q");
                assert_slope(&d, sparse, (double *)d.k + b, ((double *)d.dk)[b], "k");
                assert_slope(&d, sparse, (double *)d.w + c, ((double *)d.dw)[c], "w");
            }
            data_free(&d);
        }
    }
}

/* Keys opposite to all queries: no head fires anywhere, scores are 0 and u is uniform. */
Test(indexer, rows_where_no_head_fires_have_a_finite_loss_and_no_gradient)
{
    for (int m = 0; m < 3; m++) {
        struct data d = data_new(&shapes[1], op_dtypes[m], 3);
        for (int64_t i = 0; i < d.T * d.N * d.D; i++)
            op_set(d.dtype, d.q, i, 1);
        for (int64_t i = 0; i < d.T * d.D; i++)
            op_set(d.dtype, d.k, i, -1);
        run_topk(&d, NULL);
        for (int64_t i = 0; i < d.T * d.K; i++)
            cr_assert_eq(
                d.index[i], i % d.K <= i / d.K ? i % d.K : -1, "ties go to the lowest");
        fill_lse(&d, false);
        struct reference r = reference_new(&d, false);
        run_loss(&d, false, NULL);
        assert_loss_near(&d, &r, "no head fires");
        cr_assert_gt(op_at(d.acc, d.kl, 5), 0.01);
        for (int64_t i = 0; i < d.T * d.N * d.D; i++)
            cr_assert_eq(op_at(d.acc, d.dq, i), 0);
        for (int64_t i = 0; i < d.T * d.D; i++)
            cr_assert_eq(op_at(d.acc, d.dk, i), 0);
        reference_free(&r);
        data_free(&d);
    }
}

/* ---- bits ------------------------------------------------------------------------------------- */

static void assert_same_rows(
    const struct data *a, const struct data *b, int64_t first, int64_t rows)
{
    for (int64_t i = 0; i < rows * a->K; i++) {
        const int32_t s = b->index[first * a->K + i];
        cr_assert_eq(a->index[i], s < 0 ? -1 : s - (int32_t)first);
    }
#define SAME(x, width)                                                                   \
    cr_assert_eq(                                                                        \
        op_differ(a->acc, a->x,                                                          \
            (const char *)b->x + (size_t)(first * (width)) * glm_dtype_size(a->acc),     \
            rows * (width)),                                                             \
        0, #x)
    SAME(score, a->K);
    SAME(kl, 1);
    SAME(dq, a->N * a->D);
    SAME(dk, a->D);
    SAME(dw, a->N);
}

Test(indexer, has_the_same_bits_with_any_number_of_threads)
{
    static const int threads[] = {1, 2, 4};

    for (size_t i = 1; i < SHAPES; i++) {
        for (int m = 0; m < (i == LARGE ? 1 : 3); m++) {
            struct data alone = data_new(&shapes[i], op_dtypes[m], i);
            run_topk(&alone, NULL);
            run_loss(&alone, i % 2 == 0, NULL);
            for (int j = 0; j < 3; j++) {
                struct glm_error err = {0};
                struct data d = data_new(&shapes[i], op_dtypes[m], i);
                const glm_stream pool = pool_new(threads[j], &err);
                run_topk(&d, pool);
                cr_assert_eq(pool_used(pool), threads[j], "shape %zu", i);
                run_loss(&d, i % 2 == 0, pool);
                assert_same_rows(&alone, &d, 0, d.T);
                pool_free(pool);
                data_free(&d);
            }
            data_free(&alone);
        }
    }
}

Test(indexer, of_a_sequence_does_not_depend_on_its_neighbours)
{
    for (size_t i = 2; i < SHAPES; i++) {
        for (int m = 0; m < (i == LARGE ? 1 : 3); m++) {
            struct data d = data_new(&shapes[i], op_dtypes[m], i);
            const size_t size = glm_dtype_size(d.dtype);
            run_topk(&d, NULL);
            run_loss(&d, i % 2 == 0, NULL);
            for (int64_t s = 0; s < d.S; s++) {
                struct shape one = shapes[i];
                const int64_t first = d.cu[s], rows = d.cu[s + 1] - first;
                memset(one.lengths, 0, sizeof one.lengths);
                one.lengths[0] = (int)rows;
                struct data e = data_new(&one, op_dtypes[m], 99);
#define TAKE(x, width)                                                                   \
    memcpy(e.x, (char *)d.x + (size_t)(first * (width)) * size,                          \
        (size_t)(rows * (width)) * size)
                TAKE(q, d.N * d.D);
                TAKE(k, d.D);
                TAKE(w, d.N);
                TAKE(mq, d.MN * d.MD);
                TAKE(mk, d.MNk * d.MD);
                run_topk(&e, NULL);
                run_loss(&e, i % 2 == 0, NULL);
                assert_same_rows(&e, &d, first, rows);
                data_free(&e);
            }
            data_free(&d);
        }
    }
}

/* ---- refusals --------------------------------------------------------------------------------- */

static void assert_refused(const struct data *d, const char *word)
{
    struct glm_error err = {0}, again = {0};

    cr_assert_eq(topk(d, NULL, &err), GLM_EFORMAT, "%s", word);
    cr_assert_not_null(strstr(err.text, word), "%s", err.text);
    cr_assert_eq(loss(d, false, true, NULL, &again), GLM_EFORMAT, "%s", word);
    cr_assert_not_null(strstr(again.text, word), "%s", again.text);
}

Test(indexer, refuses_what_cannot_be)
{
    struct data d = data_new(&shapes[2], GLM_F32, 0);
    struct glm_error err = {0}, second = {0}, third = {0};
    void *dk = d.dk;

    d.cu[d.S]--;
    assert_refused(&d, "ends with 31");
    d.cu[d.S]++;
    d.D = 0;
    assert_refused(&d, "0 dimensions");
    d.D = 16;
    d.K = 0;
    cr_assert_eq(topk(&d, NULL, &err), GLM_EFORMAT);
    d.K = 6;
    d.MNk = 2;
    cr_assert_eq(loss(&d, false, true, NULL, &second), GLM_EFORMAT);
    cr_assert_not_null(strstr(second.text, "2 key heads"), "%s", second.text);
    d.MNk = 1;
    d.dk = NULL;
    cr_assert_eq(loss(&d, false, true, NULL, &third), GLM_EFORMAT);
    cr_assert_not_null(strstr(third.text, "all or none"), "%s", third.text);
    d.dk = dk;
    data_free(&d);
}
