/* Six rounds on halves that differ by at most one bit; both steps of a pair of rounds change one half
 * by a function of the other, so each is undone by itself and the whole is one to one. */
#include "train/permute.h"

#include <assert.h>

enum { PERMUTE_ROUNDS = 6 };

struct permutation permute_open(
    int64_t n, uint32_t seed, const char *purpose, const char *name, int64_t epoch)
{
    int bits = 0;
    assert(n >= 1 && n <= PERMUTE_MAX_N && epoch >= 0 && epoch <= PERMUTE_MAX_EPOCH);
    while (bits < 62 && (INT64_C(1) << bits) < n)
        bits++;
    return (struct permutation){
        .stream = random_open(seed, purpose, name),
        .n = (uint64_t)n,
        .epoch = (uint32_t)epoch,
        .low = bits - bits / 2,
        .high = bits / 2,
    };
}

static uint32_t permute_round(const struct permutation *p, uint32_t half, uint32_t round)
{
    const uint32_t counter[4] = {
        half, round | p->epoch << 4, p->stream.name[0], p->stream.name[1]};
    uint32_t out[4];
    philox4x32_10(counter, p->stream.key, out);
    return out[0];
}

static uint64_t permute_turn(const struct permutation *p, uint64_t v)
{
    const uint32_t low_mask = (uint32_t)((UINT64_C(1) << p->low) - 1);
    const uint32_t high_mask = (uint32_t)((UINT64_C(1) << p->high) - 1);
    uint32_t low = (uint32_t)v & low_mask, high = (uint32_t)(v >> p->low) & high_mask;
    for (uint32_t round = 0; round < PERMUTE_ROUNDS; round += 2) {
        low ^= permute_round(p, high, round) & low_mask;
        high ^= permute_round(p, low, round + 1) & high_mask;
    }
    return (uint64_t)high << p->low | low;
}

int64_t permute_at(const struct permutation *p, int64_t index)
{
    uint64_t v = (uint64_t)index;
    assert(v < p->n);
    do
        v = permute_turn(p, v);
    while (v >= p->n);
    return (int64_t)v;
}
