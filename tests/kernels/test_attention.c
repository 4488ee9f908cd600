/* Attention, every version, against the formula written plainly in float64; against itself in its
 * other forms; its derivatives. */
#include <criterion/criterion.h>

#include "tests/kernels/attention_data.h"

/* ---- the formula, plainly --------------------------------------------------------------------- */

struct reference {
    double *o, *lse, *dq, *dk, *dv;
};

static bool sees(const struct data *d, int64_t t, int64_t s)
{
    for (int64_t i = 0; i < d->S; i++) {
        if (d->cu[i] <= t && t < d->cu[i + 1] && (s < d->cu[i] || s > t))
            return false;
    }
    if (d->index == NULL)
        return true;
    for (int64_t j = 0; j < d->K; j++) {
        if (d->index[t * d->K + j] == s)
            return true;
    }
    return false;
}

static double dot(
    const struct data *d, const void *a, int64_t i, const void *b, int64_t j, int64_t n)
{
    double sum = 0;

    for (int64_t e = 0; e < n; e++)
        sum += op_at(d->dtype, a, i + e) * op_at(d->dtype, b, j + e);
    return sum;
}

static void reference_head(
    const struct data *d, struct reference *r, const bool *seen, int64_t t, int64_t n)
{
    const int64_t head = t * d->N + n, kn = d->Nk == 1 ? 0 : n;
    double *p = calloc((size_t)d->T, sizeof *p), sum = 0, mean = 0;

    for (int64_t s = 0; s <= t; s++) {
        if (seen[s])
            p[s] = exp(d->scale
                * dot(d, d->q, head * d->Dq, d->k, s * d->k_stride + kn * d->Dq, d->Dq));
        sum += p[s];
    }
    r->lse[head] = log(sum);
    for (int64_t s = 0; s <= t; s++) {
        const int64_t v = s * d->v_stride + kn * d->Dv;
        p[s] /= sum;
        for (int64_t e = 0; p[s] > 0 && e < d->Dv; e++) {
            const double g = op_at(d->dtype, d->do_, head * d->Dv + e);
            r->o[head * d->Dv + e] +=
                op_low(d->dtype, p[s]) * op_at(d->dtype, d->v, v + e);
            r->dv[(s * d->Nk + kn) * d->Dv + e] += p[s] * g;
            mean += p[s] * g * op_at(d->dtype, d->v, v + e);
        }
    }
    for (int64_t s = 0; s <= t; s++) {
        const int64_t v = s * d->v_stride + kn * d->Dv, k = s * d->k_stride + kn * d->Dq;
        if (p[s] == 0)
            continue;
        const double ds =
            d->scale * p[s] * (dot(d, d->do_, head * d->Dv, d->v, v, d->Dv) - mean);
        for (int64_t e = 0; e < d->Dq; e++) {
            r->dq[head * d->Dq + e] += ds * op_at(d->dtype, d->k, k + e);
            r->dk[(s * d->Nk + kn) * d->Dq + e] +=
                ds * op_at(d->dtype, d->q, head * d->Dq + e);
        }
    }
    free(p);
}

static struct reference reference_new(const struct data *d)
{
    struct reference r = {calloc((size_t)(d->T * d->N * d->Dv), 8),
        calloc((size_t)(d->T * d->N), 8), calloc((size_t)(d->T * d->N * d->Dq), 8),
        calloc((size_t)(d->T * d->Nk * d->Dq), 8),
        calloc((size_t)(d->T * d->Nk * d->Dv), 8)};

    bool *seen = calloc((size_t)d->T, sizeof *seen);
    for (int64_t t = 0; t < d->T; t++) {
        for (int64_t s = 0; s <= t; s++)
            seen[s] = sees(d, t, s);
        for (int64_t n = 0; n < d->N; n++)
            reference_head(d, &r, seen, t, n);
    }
    free(seen);
    return r;
}

static void reference_free(struct reference *r)
{
    free(r->o), free(r->lse), free(r->dq), free(r->dk), free(r->dv);
}

static void assert_near(const char *what, size_t shape, enum glm_dtype dtype,
    enum glm_dtype stored, const void *got, const double *expected, int64_t n)
{
    const double error = op_error(stored, got, expected, n, 1e-2);

    cr_assert_leq(error, tolerance[dtype], "shape %zu, %s, %s: relative error %g", shape,
        glm_dtype_name(dtype), what, error);
}

static void assert_all_near(const struct data *d, const struct reference *r, size_t shape)
{
    assert_near("o", shape, d->dtype, d->dtype, d->o, r->o, d->T * d->N * d->Dv);
    assert_near("lse", shape, d->dtype, d->acc, d->lse, r->lse, d->T * d->N);
    assert_near("dq", shape, d->dtype, d->dtype, d->dq, r->dq, d->T * d->N * d->Dq);
    assert_near("dk", shape, d->dtype, d->acc, d->dk, r->dk, d->T * d->Nk * d->Dq);
    assert_near("dv", shape, d->dtype, d->acc, d->dv, r->dv, d->T * d->Nk * d->Dv);
}

Test(attention, agrees_with_the_formula_in_float64)
{
    for (size_t i = 0; i < SHAPES; i++) {
        for (int m = 0; m < 3; m++) {
            if (skipped(i, op_dtypes[m]))
                continue;
            struct data d = data_new(&shapes[i], op_dtypes[m], 10 * i);
            struct reference r = reference_new(&d);
            run(&d, NULL);
            assert_all_near(&d, &r, i);
            reference_free(&r);
            data_free(&d);
        }
    }
}

Test(attention, rounds_p_and_o_to_bf16_and_nothing_else)
{
    struct data d = data_new(&shapes[1], GLM_BF16, 5);
    struct reference r = reference_new(&d);
    int64_t other = 0;
    const int64_t n = d.T * d.N * d.Dv;

    run(&d, NULL);
    for (int64_t i = 0; i < n; i++)
        other += op_at(GLM_BF16, d.o, i) != op_low(GLM_BF16, r.o[i]);
    /* A sum in float may fall on the other side of a rounding border, now and then. */
    cr_assert_leq(other * 200, n, "%d of %d outputs", (int)other, (int)n);
    reference_free(&r);
    data_free(&d);
}

/* ---- golden ----------------------------------------------------------------------------------- */

static void golden(const char *name, int K)
{
    const struct shape s = {{7, 13}, 2, 2, 24, 16, K, false};
    struct reference r;
    char key[32];

#define GOLDEN(array, n)                                                                 \
    (snprintf(key, sizeof key, "%s.%s", name, array),                                    \
        op_golden("fixtures/ops/attention.txt", key, n))
    for (int m = 0; m < 3; m++) {
        struct data d = data_new(&s, op_dtypes[m], 1);
        void **inputs[] = {&d.q, &d.k, &d.v, &d.do_};
        const char *names[] = {"q", "k", "v", "do"};
        const int64_t sizes[] = {20 * 2 * 24, 20 * 2 * 24, 20 * 2 * 16, 20 * 2 * 16};
        for (int i = 0; i < 4; i++) {
            double *x = op_golden("fixtures/ops/attention.txt", names[i], sizes[i]);
            free(*inputs[i]);
            *inputs[i] = op_from(d.dtype, x, sizes[i]);
            free(x);
        }
        double *sets = K > 0 ? GOLDEN("index", 20 * K) : NULL;
        for (int i = 0; i < 20 * K; i++)
            d.index[i] = (int32_t)sets[i];
        d.scale = 0.25;
        r.o = GOLDEN("o", 20 * 2 * 16);
        r.lse = GOLDEN("lse", 20 * 2);
        r.dq = GOLDEN("dq", 20 * 2 * 24);
        r.dk = GOLDEN("dk", 20 * 2 * 24);
        r.dv = GOLDEN("dv", 20 * 2 * 16);
        run(&d, NULL);
        assert_all_near(&d, &r, 0);
        reference_free(&r);
        free(sets);
        data_free(&d);
    }
}

Test(attention, agrees_with_torch)
{
    golden("dense", 0);
    golden("sparse", 4);
}

/* ---- one form against another ----------------------------------------------------------------- */

Test(attention, over_a_set_of_all_keys_is_dense_to_the_bit)
{
    for (size_t i = 0; i < SHAPES - 2; i++) {
        for (int m = 0; m < 3; m++) {
            struct data d = data_new(&shapes[i], op_dtypes[m], i), e;
            free(d.index);
            d.index = NULL;
            e = data_new(&shapes[i], op_dtypes[m], i);
            free(e.index);
            e.K = d.T + 2;
            e.index = malloc((size_t)(e.T * e.K) * sizeof *e.index);
            for (int64_t t = 0; t < e.T; t++) {
                int64_t at = 0;
                for (int64_t s = 0; s <= t; s++) {
                    if (sees(&d, t, s))
                        e.index[t * e.K + at++] = (int32_t)s;
                }
                for (; at < e.K; at++)
                    e.index[t * e.K + at] = -1;
            }
            run(&d, NULL);
            run(&e, NULL);
            cr_assert_eq(op_differ(d.dtype, d.o, e.o, d.T * d.N * d.Dv), 0);
            cr_assert_eq(op_differ(d.acc, d.lse, e.lse, d.T * d.N), 0);
            cr_assert_eq(op_differ(d.dtype, d.dq, e.dq, d.T * d.N * d.Dq), 0);
            cr_assert_eq(op_differ(d.acc, d.dk, e.dk, d.T * d.Nk * d.Dq), 0);
            cr_assert_eq(op_differ(d.acc, d.dv, e.dv, d.T * d.Nk * d.Dv), 0);
            data_free(&d);
            data_free(&e);
        }
    }
}

Test(attention, without_dv_the_keys_get_what_the_values_got)
{
    for (size_t i = 0; i < SHAPES; i++) {
        for (int m = 0; m < 3; m++) {
            if (!shapes[i].latent)
                continue;
            struct data d = data_new(&shapes[i], op_dtypes[m], i);
            struct glm_error err = {0};
            run(&d, NULL);
            for (int64_t t = 0; t < d.T; t++) {
                for (int64_t e = 0; e < d.Dv; e++)
                    op_set(d.acc, d.dk, t * d.Dq + e,
                        op_at(d.acc, d.dk, t * d.Dq + e)
                            + op_at(d.acc, d.dv, t * d.Dv + e));
            }
            struct data joined = d;
            joined.dk = op_normals(d.acc, d.T * d.Dq, 1);
            joined.dv = NULL;
            cr_assert_eq(backward(&joined, NULL, &err), 0, "%s", err.text);
            cr_assert_eq(op_differ(d.acc, d.dk, joined.dk, d.T * d.Dq), 0);
            joined.v = d.q;
            cr_assert_eq(backward(&joined, NULL, &err), GLM_EFORMAT);
            free(joined.dk);
            data_free(&d);
        }
    }
}

/* Latent keys c [T,R], rotary keys [T,Dr], per head U [Dn,R] and V [Do,R]: keys (U c, rotary) and
 * values V c, against queries (U' q, rotary) over (c, rotary) and V applied to the result. */
enum { T = 33, N = 3, R = 20, Dr = 6, Dn = 10, Do = 9 };

static void fill_expanded(
    struct data *e, const struct data *a, const double *u, const double *v)
{
    const enum glm_dtype ty = e->dtype;

    for (int64_t i = 0; i < T * N; i++) {
        const int64_t t = i / N, n = i % N;
        for (int64_t x = 0; x < R; x++) {
            double sum = 0;
            for (int64_t y = 0; y < Dn; y++)
                sum += u[(n * Dn + y) * R + x] * op_at(ty, e->q, i * (Dn + Dr) + y);
            op_set(ty, a->q, i * (R + Dr) + x, sum);
        }
        for (int64_t x = 0; x < Dr; x++) {
            op_set(
                ty, a->q, i * (R + Dr) + R + x, op_at(ty, e->q, i * (Dn + Dr) + Dn + x));
            op_set(ty, e->k, i * (Dn + Dr) + Dn + x,
                op_at(ty, a->k, t * a->k_stride + R + x));
        }
        for (int64_t y = 0; y < Dn + Do; y++) {
            const double *row = y < Dn ? u + (n * Dn + y) * R : v + (n * Do + y - Dn) * R;
            double sum = 0;
            for (int64_t x = 0; x < R; x++)
                sum += row[x] * op_at(ty, a->k, t * a->k_stride + x);
            if (y < Dn)
                op_set(ty, e->k, i * (Dn + Dr) + y, sum);
            else
                op_set(ty, e->v, i * Do + y - Dn, sum);
        }
    }
}

Test(attention, expanded_and_absorbed_forms_are_equal_to_rounding)
{
    for (int m = 0; m < 2; m++) {
        for (int K = 0; K <= 8; K += 8) {
            const enum glm_dtype ty = op_dtypes[m];
            struct data e =
                data_new(&(struct shape){{13, 20}, N, N, Dn + Dr, Do, K, false}, ty, 1);
            struct data a =
                data_new(&(struct shape){{13, 20}, N, 1, R + Dr, R, K, true}, ty, 1);
            void *uo = op_normals(GLM_F64, N * Dn * R, 7),
                 *vo = op_normals(GLM_F64, N * Do * R, 8);
            double *u = uo, *v = vo, *o = calloc(T * N * Do, sizeof *o);
            double *lse;
            for (int i = 0; i < N * Dn * R; i++)
                u[i] /= 4;
            a.scale = e.scale;
            fill_expanded(&e, &a, u, v);
            run(&e, NULL);
            run(&a, NULL);
            for (int64_t i = 0; i < T * N * Do; i++) {
                for (int64_t x = 0; x < R; x++)
                    o[i] += v[(i / Do % N * Do + i % Do) * R + x]
                        * op_at(ty, a.o, i / Do * R + x);
            }
            lse = op_doubles(a.acc, a.lse, T * N);
            cr_assert_leq(op_error(ty, e.o, o, T * N * Do, 0), tolerance[ty]);
            cr_assert_leq(op_error(e.acc, e.lse, lse, T * N, 0), tolerance[ty]);
            free(uo), free(vo), free(o), free(lse);
            data_free(&e);
            data_free(&a);
        }
    }
}

/* ---- derivatives ------------------------------------------------------------------------------ */

static double loss(const struct data *d)
{
    struct glm_error err = {0};
    double sum = 0;

    cr_assert_eq(forward(d, NULL, &err), 0, "%s", err.text);
    for (int64_t i = 0; i < d->T * d->N * d->Dv; i++)
        sum += op_at(GLM_F64, d->o, i) * op_at(GLM_F64, d->do_, i);
    return sum;
}

/* Central differences; the error is about h^2 times the third derivative. */
static void assert_slope(
    const struct data *d, double *x, double expected, const char *what, size_t shape)
{
    const double h = 1e-5, at = *x;

    *x = at + h;
    const double up = loss(d);
    *x = at - h;
    const double down = loss(d);
    *x = at;
    const double found = (up - down) / (2 * h);
    cr_assert_float_eq(found, expected, 1e-7 * (1 + fabs(expected)),
        "%s, shape %zu: %.12g, differences give %.12g", what, shape, expected, found);
}

Test(attention, backward_is_the_derivative_of_forward)
{
    for (size_t i = 0; i < SHAPES - 2; i++) {
        struct data d = data_new(&shapes[i], GLM_F64, i);
        uint64_t state = i;
        run(&d, NULL);
        for (int trial = 0; trial < 12; trial++) {
            const int64_t a = (int64_t)rng_below(&state, (uint64_t)(d.T * d.N * d.Dq));
            const int64_t s = (int64_t)rng_below(&state, (uint64_t)d.T);
            const int64_t n = (int64_t)rng_below(&state, (uint64_t)d.Nk);
            const int64_t x = (int64_t)rng_below(&state, (uint64_t)d.Dq);
            const int64_t y = (int64_t)rng_below(&state, (uint64_t)d.Dv);
            const double dq = ((double *)d.dq)[a];
            double dk = ((double *)d.dk)[(s * d.Nk + n) * d.Dq + x];
            const double dv = ((double *)d.dv)[(s * d.Nk + n) * d.Dv + y];
            if (d.latent && x < d.Dv) /* the element is a value's too */
                dk += ((double *)d.dv)[s * d.Dv + x];
            assert_slope(&d, (double *)d.q + a, dq, "q", i);
            assert_slope(&d, (double *)d.k + s * d.k_stride + n * d.Dq + x, dk, "k", i);
            if (!d.latent)
                assert_slope(
                    &d, (double *)d.v + s * d.v_stride + n * d.Dv + y, dv, "v", i);
        }
        data_free(&d);
    }
}
