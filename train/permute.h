/* A permutation of 0..n-1 that is computed, not stored: any place can be asked alone.
 *
 * A Feistel network over the smallest number of bits that holds n, its round function Philox4x32-10
 * keyed by (seed, purpose, name) and counted by the epoch; a value beyond n goes through again until
 * it falls inside (fewer than two turns on average), which keeps it a permutation. Order is thus a
 * function of (seed, purpose, name, epoch, n, index) and nothing else. */
#ifndef TRAIN_PERMUTE_H
#define TRAIN_PERMUTE_H

#include <stdint.h>

#include "kernels/base/random.h"

enum { PERMUTE_MAX_EPOCH = (1 << 28) - 1 };
#define PERMUTE_MAX_N (INT64_C(1) << 62)

struct permutation {
    struct random_stream stream;
    uint64_t n;
    uint32_t epoch;
    int low, high; /* bits of the two halves */
};

/* n in [1, PERMUTE_MAX_N], epoch in [0, PERMUTE_MAX_EPOCH]. */
struct permutation permute_open(
    int64_t n, uint32_t seed, const char *purpose, const char *name, int64_t epoch);
/* Where index in [0, n) goes. */
int64_t permute_at(const struct permutation *p, int64_t index);

#endif
