/* The indexer's loss and gradients against the formula in float64, torch and differences. */
#include <criterion/criterion.h>

#include "tests/kernels/indexer_data.h"

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
        if (!is_fill(d, t))
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

Test(indexer_loss, loss_and_gradients_agree_with_the_formula_in_float64)
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

/* Padding: the rows before it keep their bits, and its keys get what those rows say. */
Test(indexer_loss, leaves_out_the_rows_that_fill_a_sequence)
{
    for (int m = 0; m < 3; m++) {
        for (int sparse = 0; sparse < 2; sparse++) {
            struct data d = data_new(&shapes[2], op_dtypes[m], 2);
            const size_t acc = glm_dtype_size(d.acc);
            char *all = malloc((size_t)d.T * acc);
            run_topk(&d, NULL);
            fill_lse(&d, sparse);
            run_loss(&d, sparse, NULL);
            memcpy(all, d.kl, (size_t)d.T * acc);
            d.fill = 2;
            struct reference r = reference_new(&d, sparse);
            run_loss(&d, sparse, NULL);
            assert_loss_near(&d, &r, "with padding");
            for (int64_t t = 0; t < d.T; t++) {
                if (is_fill(&d, t))
                    cr_expect_eq(op_at(d.acc, d.kl, t), 0);
                else
                    cr_expect_arr_eq(
                        (char *)d.kl + (size_t)t * acc, all + (size_t)t * acc, acc);
            }
            cr_expect_gt(op_at(d.acc, all, d.T - 1), 0);
            reference_free(&r);
            free(all);
            data_free(&d);
        }
    }
}

static double *golden(const char *name, const char *array, int64_t n)
{
    char key[32];

    snprintf(key, sizeof key, "%s%s", name, array);
    return op_golden("fixtures/ops/indexer.txt", key, n);
}

Test(indexer_loss, agrees_with_torch)
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

Test(indexer_loss, gradients_are_derivatives_of_the_loss)
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
Test(indexer_loss, rows_where_no_head_fires_have_a_finite_loss_and_no_gradient)
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
