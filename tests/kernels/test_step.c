/* What a step decides by itself, by a second method each. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/ops.h"
#include "tests/support/gradnorm.h"
#include "tests/support/rng.h"

static double number(uint64_t *state)
{
    *state = rng_mix(*state + 1);
    return rng_unit(*state);
}

Test(step, a_total_is_exact_where_the_numbers_are_whole)
{
    enum { N = 70000 };
    float *const x = malloc(N * sizeof *x);
    struct glm_error err = {0};
    uint64_t state = 3;
    int64_t sum = 0;
    double out;

    for (int n = 0; n < N; n = 3 * n + 1) {
        sum = 0;
        for (int i = 0; i < n; i++) {
            x[i] = (float)floor(1000 * number(&state));
            sum += (int64_t)x[i];
        }
        cr_assert_eq(
            cpu_total(&(struct total){.out = &out, .x = x, .n = n, .dtype = GLM_F32},
                NULL, &err),
            0);
        cr_assert_eq(out, (double)sum, "%d numbers", n);
    }
    free(x);
}

Test(step, loads_count_every_token_but_the_padded_rows)
{
    /* 5 rows in sequences of 2 and 3; 2 of 3 experts each. */
    const int32_t expert[] = {0, 1, 0, 2, 1, 2, 0, 1, 0, 2}, cu[] = {0, 2, 5};
    const int32_t offset[] = {0, 4, 7, 10};
    int64_t load[] = {100, 0, 7};
    struct glm_error err = {0};
    struct expert_load p = {.load = load,
        .offset = offset,
        .expert = expert,
        .cu_seqlens = cu,
        .T = 5,
        .S = 2,
        .E = 3,
        .K = 2};

    cr_assert_eq(cpu_expert_load(&p, NULL, &err), 0);
    cr_assert(load[0] == 104 && load[1] == 3 && load[2] == 10);
    p.padded = true; /* rows 1 and 4 chose 0, 2 and 0, 2 */
    cr_assert_eq(cpu_expert_load(&p, NULL, &err), 0);
    cr_assert(load[0] == 106 && load[1] == 6 && load[2] == 11);
}

enum { TENSORS = 9, LEAVES = 2000, DRAWS = 20 };

static void clip_one_as_the_fold_says(
    double limit, double spoiled, bool stops, uint64_t state)
{
    const double scale = 0.3;
    double leaf[LEAVES], watched[2] = {1, spoiled}, report[5];
    struct step_rates rates[TENSORS];
    int64_t first[TENSORS + 1];
    int32_t group[TENSORS];
    signed char chosen[TENSORS];
    struct glm_error err = {0};

    for (int i = 0; i < LEAVES; i++)
        leaf[i] = fabs(number(&state)) / 3; /* sums are rounded, so their order shows */
    for (int i = 0; i <= TENSORS; i++)
        first[i] = LEAVES * i * i / TENSORS / TENSORS;
    for (int i = 0; i < TENSORS; i++) {
        group[i] = chosen[i] = (signed char)(i % 3 - 1);
        rates[i] = (struct step_rates){.lr = i, .grad_scale = scale};
    }
    const struct clip p = {.rates = rates,
        .report = report,
        .leaf = leaf,
        .first = first,
        .group = group,
        .watched = watched,
        .n = TENSORS,
        .leaves = LEAVES,
        .watch = 2,
        .limit = limit};
    cr_assert_eq(cpu_clip(&p, NULL, &err), 0);
    for (int g = 0; g < 2; g++) {
        const double norm =
            gradnorm_fold(leaf, first, chosen, (signed char)g, TENSORS) * scale;
        cr_assert_eq(report[2 * g], norm);
        cr_assert_eq(report[2 * g + 1], gradnorm_clip(norm, limit));
        for (int i = g + 1; i < TENSORS; i += 3)
            cr_assert(rates[i].grad_scale == scale * gradnorm_clip(norm, limit)
                && rates[i].lr == i && rates[i].stop == stops);
    }
    cr_assert_eq(report[4], stops);
}

static void clip_as_the_fold_says(double limit, double spoiled, bool stops)
{
    for (uint64_t draw = 0; draw < DRAWS; draw++)
        clip_one_as_the_fold_says(limit, spoiled, stops, 7 + draw);
}

Test(step, clipping_is_that_of_the_norm_that_owners_of_parts_fold)
{
    clip_as_the_fold_says(1, 2, false);
    clip_as_the_fold_says(0.01, 2, false);
    clip_as_the_fold_says(0, 2, false);
    clip_as_the_fold_says(1, NAN, true);
    clip_as_the_fold_says(1, -INFINITY, true);
}

/* Rates in memory are the rates of the call; a stop leaves everything. */
Test(step, an_update_by_rates_in_memory_is_that_by_rates_in_the_call)
{
    enum { N = 37 };
    float a[4][N], b[4][N], before[4][N];
    struct glm_error err = {0};
    uint64_t state = 11;

    for (int k = 0; k < 4; k++)
        for (int i = 0; i < N; i++)
            before[k][i] = (float)fabs(number(&state));
    for (int stop = 0; stop < 2; stop++) {
        const struct step_rates rates = {.lr = 1e-2,
            .decay = 0.1,
            .grad_scale = 0.25,
            .rest1 = 1 - pow(0.9, 5),
            .rest2 = 1 - pow(0.95, 5),
            .stop = stop};
        memcpy(a, before, sizeof a);
        memcpy(b, before, sizeof b);
        struct adamw p = {.w = a[0],
            .m = a[1],
            .v = a[2],
            .g = a[3],
            .n = N,
            .step = 5,
            .lr = rates.lr,
            .beta1 = 0.9,
            .beta2 = 0.95,
            .eps = 1e-8,
            .decay = rates.decay,
            .grad_scale = rates.grad_scale,
            .dtype = GLM_F32};
        cr_assert_eq(cpu_adamw(&p, NULL, &err), 0);
        p = (struct adamw){.w = b[0],
            .m = b[1],
            .v = b[2],
            .g = b[3],
            .n = N,
            .beta1 = 0.9,
            .beta2 = 0.95,
            .eps = 1e-8,
            .rates = &rates,
            .dtype = GLM_F32};
        cr_assert_eq(cpu_adamw(&p, NULL, &err), 0);
        cr_assert_eq(memcmp(b, stop ? before : a, sizeof b), 0);
    }
}
