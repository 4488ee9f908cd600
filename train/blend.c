#include "train/blend.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

__extension__ typedef __int128 blend_wide;

enum { BLEND_DECIMALS = 9 };
/* Twice the largest weight in units of 10^-9 times the period fits 128 bits with room. */
#define BLEND_MAX_WEIGHT INT64_C(1000000000000000000)

/* ---- weights -------------------------------------------------------------------------------- */

/* Digits with at most one point, in units of 10^-9. */
static bool blend_decimal(const char *s, int64_t *out)
{
    int64_t v = 0;
    int digits = 0, decimals = -1;
    for (; *s != '\0'; s++) {
        if (*s == '.' && decimals < 0) {
            decimals = 0;
            continue;
        }
        if (*s < '0' || *s > '9' || decimals == BLEND_DECIMALS)
            return false;
        if (v > (BLEND_MAX_WEIGHT - 9) / 10)
            return false;
        v = v * 10 + (*s - '0');
        digits++;
        decimals += decimals >= 0;
    }
    for (int i = decimals < 0 ? 0 : decimals; i < BLEND_DECIMALS; i++) {
        if (v > BLEND_MAX_WEIGHT / 10)
            return false;
        v *= 10;
    }
    *out = v;
    return digits > 0;
}

static int64_t blend_gcd(int64_t a, int64_t b)
{
    while (b != 0) {
        const int64_t r = a % b;
        a = b;
        b = r;
    }
    return a;
}

/* Hands out BLEND_MAX_PERIOD turns: the whole part to each (at least 1), then one each by the largest
 * remainders (ties: the lower number). */
static void blend_remainders(int64_t *weight, int count, blend_wide sum)
{
    blend_wide rest[BLEND_MAX_SOURCES];
    int64_t left = BLEND_MAX_PERIOD;
    for (int i = 0; i < count; i++) {
        const blend_wide share = (blend_wide)weight[i] * BLEND_MAX_PERIOD;
        weight[i] = (int64_t)(share / sum);
        rest[i] = share % sum;
        if (weight[i] == 0) {
            weight[i] = 1;
            rest[i] = -1;
        }
        left -= weight[i];
    }
    for (; left > 0; left--) {
        int best = 0;
        for (int i = 1; i < count; i++)
            if (rest[i] > rest[best])
                best = i;
        weight[best]++;
        rest[best] = -1;
    }
    for (; left < 0; left++) { /* many tiny weights were lifted to 1: the largest pays */
        int most = 0;
        for (int i = 1; i < count; i++)
            if (weight[i] > weight[most])
                most = i;
        weight[most]--;
    }
}

int blend_reduce(int64_t *weight, int count, struct glm_error *err)
{
    int64_t common = 0;
    blend_wide sum = 0;
    if (count < 1 || count > BLEND_MAX_SOURCES)
        return glm_fail(err, GLM_EUSAGE, "%d datasets are blended, 1 to %d can be", count,
            BLEND_MAX_SOURCES);
    for (int i = 0; i < count; i++) {
        if (weight[i] <= 0)
            return glm_fail(err, GLM_EUSAGE,
                "dataset %d has the weight %lld: leave it out or give it a weight above "
                "0",
                i + 1, (long long)weight[i]);
        common = blend_gcd(common, weight[i]);
    }
    for (int i = 0; i < count; i++) {
        weight[i] /= common;
        sum += weight[i];
    }
    if (sum > BLEND_MAX_PERIOD)
        blend_remainders(weight, count, sum);
    return GLM_OK;
}

int blend_weights(const char *const *text, int count, int64_t *out, struct glm_error *err)
{
    for (int i = 0; i < count; i++)
        if (!blend_decimal(text[i], &out[i]))
            return glm_fail(err, GLM_EUSAGE,
                "weight '%.40s': expected a decimal number like 0.3 of at most %d "
                "decimals and "
                "below 10^9",
                text[i], BLEND_DECIMALS);
    return blend_reduce(out, count, err);
}

/* ---- the order ------------------------------------------------------------------------------ */

static int blend_pick(const struct blend *b, const int64_t *served, int64_t n)
{
    const int64_t W = b->period;
    int64_t best_deadline = INT64_MAX;
    int best = -1;
    for (int d = 0; d < b->count; d++) {
        const int64_t w = b->weight[d], j = served[d];
        if (j >= w || j * W / w > n)
            continue;
        const int64_t deadline = ((j + 1) * W + w - 1) / w;
        if (deadline < best_deadline) {
            best_deadline = deadline;
            best = d;
        }
    }
    return best;
}

int blend_init(struct blend *b, const int64_t *weight, int count, struct glm_error *err)
{
    int64_t served[BLEND_MAX_SOURCES] = {0};
    *b = (struct blend){.count = count};
    b->weight = malloc((size_t)count * sizeof *b->weight);
    if (b->weight == NULL)
        goto full;
    memcpy(b->weight, weight, (size_t)count * sizeof *weight);
    if (blend_reduce(b->weight, count, err) != GLM_OK)
        goto out;
    for (int d = 0; d < count; d++)
        b->period += b->weight[d];
    b->source = malloc((size_t)b->period * sizeof *b->source);
    b->rank = malloc((size_t)b->period * sizeof *b->rank);
    if (b->source == NULL || b->rank == NULL)
        goto full;
    for (int64_t n = 0; n < b->period; n++) {
        const int d = blend_pick(b, served, n);
        b->source[n] = (uint16_t)d;
        b->rank[n] = (int32_t)served[d]++;
    }
    return GLM_OK;
full:
    glm_fail(err, GLM_ENOMEM, "no memory for the order of %d datasets", count);
out:
    blend_clear(b);
    return err->code;
}

void blend_clear(struct blend *b)
{
    free(b->weight);
    free(b->source);
    free(b->rank);
    *b = (struct blend){0};
}

int blend_at(const struct blend *b, int64_t index, int64_t *local)
{
    const int64_t turn = index / b->period, at = index % b->period;
    const int d = b->source[at];
    *local = turn * b->weight[d] + b->rank[at];
    return d;
}
