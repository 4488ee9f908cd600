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

/* FNV-1a: the hash of what came before, then of a text. Elements are mixed from it by their number. */
#define RNG_TEXT UINT64_C(0xcbf29ce484222325)
static inline uint64_t rng_text(uint64_t before, const char *text)
{
    for (; *text != '\0'; text++)
        before = (before ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
    return before;
}

/* In [-1,1), a multiple of 2^-23. */
static inline double rng_unit(uint64_t x)
{
    return (double)(x >> 40) * 0x1p-24 * 2 - 1;
}

/* 0 .. n-1, n > 0. The bias of 2^-64 * n does not matter to tests. */
static inline uint64_t rng_below(uint64_t *state, uint64_t n)
{
    return rng_next(state) % n;
}

#endif
