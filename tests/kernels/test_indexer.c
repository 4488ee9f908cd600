/* The indexer: its choice against a plain sort, with every kind of tie; the bits of choice and loss
 * under threads and packing; what it refuses. */
#include <criterion/criterion.h>

#include "tests/kernels/indexer_data.h"
#include "tests/support/brief.h"

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
            for (int j = brief() ? 2 : 0; j < 3; j++) {
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
