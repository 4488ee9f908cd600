/* Counter-based random numbers: element i of a tensor depends on (seed, purpose, name, i) alone.
 *
 * So initial weights do not depend on the topology, any part of a tensor can be made without the
 * rest, and a fixture of random weights is a seed instead of a file. Philox4x32-10 (Salmon et al.,
 * 2011) gives the bits. Normal values use our own polynomials and, besides them, only operations
 * that IEEE 754 rounds exactly (+ - * / sqrt), so that every machine and NumPy give the same bits;
 * compile without contraction of multiply and add.
 *
 *     key     = (seed, first 4 bytes of SHA-256(purpose), little-endian)
 *     counter = (i & 0xffffffff, i >> 32, first and second 4 bytes of SHA-256(name), little-endian)
 *     u1 = ((x0 | x1 << 32) >> 11) + 1) * 2^-53        in (0, 1]
 *     u2 = ((x2 | x3 << 32) >> 11) * 2^-53             in [0, 1)
 *     normal = sqrt(-2 ln u1) * cos(2 pi u2) */
#ifndef KERNELS_BASE_RANDOM_H
#define KERNELS_BASE_RANDOM_H

#include <stdint.h>

struct random_stream {
    uint32_t key[2];
    uint32_t name[2]; /* upper half of the counter */
};

void philox4x32_10(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

/* The stream of one tensor (or any other name) for one purpose ("init", "data", ...). */
struct random_stream random_open(uint32_t seed, const char *purpose, const char *name);
double random_normal(const struct random_stream *s, uint64_t index);
/* out[k] = (float)(mean + std * normal(first + k)), the sum and the product in double. */
void random_normal_f32(const struct random_stream *s, uint64_t first, uint64_t count,
    double mean, double std, float *out);

#endif
