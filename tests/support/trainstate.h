/* Training states: a weight checkpoint made into one with masters, moments and small arrays.
 *
 * Element i (flat, row-major) of a tensor, x = rng_mix(fnv1a64("<section>/<name>") + i):
 *     master        the weight's bits as F32, moved by at most 0x7fff units of the last place, so
 *                   that it rounds to the weight: down if x & 0x8000 and the weight is not 0
 *     opt/m         F32 x & 0x807fffff | 0x3c000000
 *     opt/v         F32 x & 0x007fffff | 0x38000000
 *     opt/momentum  F32 x & 0x807fffff | 0x3d000000
 *     train         I64 and U64 x >> 8, F64 x & 0x800fffffffffffff | 0x3fe0000000000000, U8 x
 * With codes, opt/m of the matrices that the FP8 release quantises is E4M3 x & 0x8f | 0x30 with a
 * scale per 200 x 48 elements, opt/v of AdamW's matrices is U8 with one per 1 x 24; scales are F32 as
 * above. Their blocks respect no tile and no cut.
 *
 * opt/m and opt/v are those of the AdamW rows, opt/momentum those of the Muon rows. */
#ifndef TESTS_SUPPORT_TRAINSTATE_H
#define TESTS_SUPPORT_TRAINSTATE_H

#include "ckpt/topology.h"

struct trainstate_options {
    const char *ckpt, *out;
    const struct topology *topology; /* NULL: the input's */
    bool zstd, derived, codes;
    uint64_t shard_size;
    int threads;
};

int trainstate_write(const struct trainstate_options *o, struct glm_error *err);

#endif
