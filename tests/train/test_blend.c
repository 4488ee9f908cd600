/* Blends: proportions at every prefix, every sample of a source in turn, weights from text. */
#include "train/blend.h"

#include <stdlib.h>

#include <criterion/criterion.h>

#include "tests/support/rng.h"

/* Over two periods and a bit: each source counts up by itself, and is never a whole sample away
 * from its share. */
static void keeps_its_share(const int64_t *weight, int count)
{
    struct glm_error err = {0};
    struct blend b;
    int64_t served[64] = {0};
    cr_assert_eq(blend_init(&b, weight, count, &err), GLM_OK, "%s", err.text);
    const int64_t end = 2 * b.period + b.period / 3 + 1;
    for (int64_t i = 0; i < end; i++) {
        int64_t local;
        const int d = blend_at(&b, i, &local);
        cr_assert_eq(local, served[d], "sample %ld: source %d", i, d);
        served[d]++;
        for (int k = 0; k < count; k++) {
            const int64_t off = served[k] * b.period - (i + 1) * b.weight[k];
            cr_assert(llabs(off) < b.period,
                "after %ld samples source %d served %ld, share %ld/%ld", i + 1, k,
                served[k], b.weight[k], b.period);
        }
    }
    blend_clear(&b);
}

Test(blend, is_within_one_of_its_proportions_at_every_prefix)
{
    static const int64_t fixed[][6] = {{1}, {1, 1}, {7, 3}, {1, 999}, {5, 3, 2},
        {1, 1, 1, 997}, {33, 33, 33, 1}, {2, 3, 5, 7, 11, 13}};
    static const int counts[] = {1, 2, 2, 2, 3, 4, 4, 6};
    uint64_t state = 5;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        keeps_its_share(fixed[i], counts[i]);
    for (int trial = 0; trial < 60; trial++) {
        int64_t weight[64];
        const int count = 1 + (int)rng_below(&state, trial < 50 ? 8 : 64);
        for (int k = 0; k < count; k++)
            weight[k] =
                1 + (int64_t)rng_below(&state, rng_below(&state, 3) == 0 ? 500 : 20);
        keeps_its_share(weight, count);
    }
}

Test(blend, can_be_asked_at_any_place)
{
    const int64_t weight[] = {5, 3, 2};
    struct glm_error err = {0};
    struct blend b;
    int64_t local, far;
    cr_assert_eq(blend_init(&b, weight, 3, &err), GLM_OK);
    for (int64_t i = 0; i < 10; i++) {
        const int d = blend_at(&b, i, &local);
        cr_expect_eq(blend_at(&b, INT64_C(1000000000000) * 10 + i, &far), d);
        cr_expect_eq(far, INT64_C(1000000000000) * weight[d] + local);
    }
    blend_clear(&b);
}

Test(blend, reads_decimal_weights_exactly)
{
    static const struct {
        const char *text[3];
        int64_t out[3];
    } good[] = {
        {{"0.5", "0.3", "0.2"}, {5, 3, 2}},
        {{"1", "1", "2"}, {1, 1, 2}},
        {{"30", "10", "20."}, {3, 1, 2}},
        {{".000000001", "0.000000002", "0.000000003"}, {1, 2, 3}},
        {{"999999999", "999999999", "999999999"}, {1, 1, 1}},
    };
    static const char *const bad[] = {"", ".", "-1", "0", "0.0", "1e3", "1.2.3", " 1",
        "nan", "0.0000000001", "1000000000000000000000"};
    struct glm_error err = {0};
    int64_t out[3];
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        cr_assert_eq(blend_weights(good[i].text, 3, out, &err), GLM_OK, "%s", err.text);
        for (int k = 0; k < 3; k++)
            cr_expect_eq(out[k], good[i].out[k], "%zu: %ld", i, out[k]);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        glm_error_clear(&err);
        cr_expect_eq(blend_weights(&bad[i], 1, out, &err), GLM_EUSAGE, "'%s'", bad[i]);
    }
}

Test(blend, rounds_weights_that_are_too_fine_by_largest_remainders)
{
    struct glm_error err = {0};
    int64_t w[] = {
        INT64_C(333333333333), INT64_C(333333333334), INT64_C(333333333337), 1};
    cr_assert_eq(blend_reduce(w, 4, &err), GLM_OK, "%s", err.text);
    cr_expect_eq(w[0] + w[1] + w[2] + w[3], BLEND_MAX_PERIOD);
    /* (2^20 - 1) / 3 each; the tiny one is never left out. */
    for (int k = 0; k < 3; k++)
        cr_expect_eq(w[k], (BLEND_MAX_PERIOD - 1) / 3, "%d: %ld", k, w[k]);
    cr_expect_eq(w[3], 1);
}
