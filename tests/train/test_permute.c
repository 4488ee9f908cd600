/* The order of documents and samples, as far as a permutation can be wrong. */
#include "train/permute.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <criterion/criterion.h>

static void meets_every_place(int64_t n, uint32_t seed, int64_t epoch)
{
    bool *const seen = calloc((size_t)n, 1);
    const struct permutation p = permute_open(n, seed, "order", "name", epoch);
    for (int64_t i = 0; i < n; i++) {
        const int64_t at = permute_at(&p, i);
        cr_assert(at >= 0 && at < n, "n %ld: %ld goes to %ld", n, i, at);
        cr_assert_not(seen[at], "n %ld: %ld is met twice", n, at);
        seen[at] = true;
    }
    free(seen);
}

Test(permute, meets_every_place_once)
{
    static const int64_t large[] = {1000, 4095, 4096, 4097, 65537, 262144, 300007};
    for (int64_t n = 1; n <= 300; n++)
        meets_every_place(n, 7, n % 5);
    for (size_t k = 0; k < sizeof large / sizeof *large; k++)
        meets_every_place(large[k], (uint32_t)k, (int64_t)k);
}

static int64_t equal_places(const struct permutation *a, const struct permutation *b)
{
    int64_t n = 0;
    for (uint64_t i = 0; i < a->n; i++)
        n += permute_at(a, (int64_t)i) == permute_at(b, (int64_t)i);
    return n;
}

Test(permute, depends_on_seed_purpose_name_and_epoch)
{
    enum { N = 10000 };
    const struct permutation a = permute_open(N, 1, "order", "x", 0);
    const struct permutation others[] = {
        permute_open(N, 2, "order", "x", 0),
        permute_open(N, 1, "samples", "x", 0),
        permute_open(N, 1, "order", "y", 0),
        permute_open(N, 1, "order", "x", 1),
        permute_open(N, 1, "order", "x", PERMUTE_MAX_EPOCH),
    };
    const struct permutation again = permute_open(N, 1, "order", "x", 0);
    cr_expect_eq(equal_places(&a, &again), N);
    /* Two independent orders share one place on average; 12 and more come once in 10^8. */
    for (size_t k = 0; k < sizeof others / sizeof *others; k++)
        cr_expect_lt(equal_places(&a, &others[k]), 12, "order %zu", k);
}

/* Each place should take each value about equally often over the epochs: chi-squared with 255
 * degrees of freedom per place is 255 +- 22.6; the sum over 16 places 4080 +- 90. */
Test(permute, spreads_values_evenly_over_epochs)
{
    enum { N = 256, EPOCHS = 256 * 40, PLACES = 16 };
    static int count[PLACES][N];
    double chi = 0;
    for (int64_t e = 0; e < EPOCHS; e++) {
        const struct permutation p = permute_open(N, 3, "order", "x", e);
        for (int i = 0; i < PLACES; i++)
            count[i][permute_at(&p, i * 16 + i)]++;
    }
    for (int i = 0; i < PLACES; i++)
        for (int v = 0; v < N; v++) {
            const double d = count[i][v] - EPOCHS / (double)N;
            chi += d * d / (EPOCHS / (double)N);
        }
    cr_expect(chi > 4080 - 600 && chi < 4080 + 600, "chi squared %g, expected 4080", chi);
}

Test(permute, takes_the_largest_range)
{
    const struct permutation p = permute_open(PERMUTE_MAX_N, 1, "order", "x", 0);
    int64_t seen[100];
    for (int64_t i = 0; i < 100; i++) {
        seen[i] = permute_at(&p, PERMUTE_MAX_N - 1 - i);
        cr_expect(seen[i] >= 0 && seen[i] < PERMUTE_MAX_N);
        for (int64_t k = 0; k < i; k++)
            cr_expect_neq(seen[i], seen[k]);
    }
}
