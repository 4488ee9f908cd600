/* splitmix64: one 64-bit mix, and the counter-based elements that tests are made of. */
#ifndef TESTS_SUPPORT_RNG_H
#define TESTS_SUPPORT_RNG_H

#include <stdint.h>

/* The finaliser: a bijection of 64-bit words, so that different counters never meet. */
static inline uint64_t rng_mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* A stream: state advances by the golden ratio, as in the published generator. */
static inline uint64_t rng_next(uint64_t *state)
{
    const uint64_t x = *state;
    *state = x + 0x9e3779b97f4a7c15u;
    return rng_mix(x);
}

/* 0 .. n-1, n > 0. The bias of 2^-64 * n does not matter to tests. */
static inline uint64_t rng_below(uint64_t *state, uint64_t n)
{
    return rng_next(state) % n;
}

#endif
