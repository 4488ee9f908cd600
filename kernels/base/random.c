/* Philox4x32-10 and Box-Muller. The same lines in NumPy are in fixtures/philox.py; a test holds
 * them against each other bit for bit, so every operation and its order is part of the format. */
#include "kernels/base/random.h"

#include <math.h>
#include <openssl/sha.h>
#include <string.h>

#ifdef __FAST_MATH__
#error "random numbers are promised to the bit: build without -ffast-math"
#endif

enum { ROUNDS = 10 };

void philox4x32_10(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < ROUNDS; round++) {
        const uint64_t a = (uint64_t)0xD2511F53u * c0, b = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)b;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* ln(u) for u in (0, 1], normal. u = m * 2^e with m in [sqrt(1/2), sqrt(2)), f = (m-1)/(m+1),
 * ln m = 2f (1 + f^2/3 + f^4/5 + ...); |f| < 0.1716, the first term left out is below 2e-19. */
static double fixed_log(double u)
{
    uint64_t bits;
    memcpy(&bits, &u, sizeof bits);
    int64_t e = (int64_t)(bits >> 52) - 1023;
    bits = (bits & 0xfffffffffffffu) | 0x3ff0000000000000u;
    double m;
    memcpy(&m, &bits, sizeof m);
    if (m >= 1.4142135623730951) {
        m = m * 0.5;
        e = e + 1;
    }
    const double f = (m - 1.0) / (m + 1.0), s = f * f;
    double p = 1.0 / 23.0;
    for (int k = 21; k >= 1; k -= 2)
        p = p * s + 1.0 / (double)k;
    return (double)e * 0.6931471805599453 + 2.0 * f * p;
}

/* cos(2 pi u) for u in [0, 1): quarter turn k and rest t in [-pi/4, pi/4], then Taylor. */
static double fixed_cos_turn(double u)
{
    static const double sine[] = {1.0 / 355687428096000.0, -1.0 / 1307674368000.0,
        1.0 / 6227020800.0, -1.0 / 39916800.0, 1.0 / 362880.0, -1.0 / 5040.0, 1.0 / 120.0,
        -1.0 / 6.0, 1.0};
    static const double cosine[] = {1.0 / 20922789888000.0, -1.0 / 87178291200.0,
        1.0 / 479001600.0, -1.0 / 3628800.0, 1.0 / 40320.0, -1.0 / 720.0, 1.0 / 24.0,
        -0.5, 1.0};
    const double y = 4.0 * u, k = floor(y + 0.5);
    const double t = (y - k) * 1.5707963267948966, s = t * t;
    double sp = sine[0], cp = cosine[0];
    for (int i = 1; i < 9; i++) {
        sp = sp * s + sine[i];
        cp = cp * s + cosine[i];
    }
    const double st = sp * t;
    switch ((int)k & 3) {
    case 0:
        return cp;
    case 1:
        return -st;
    case 2:
        return -cp;
    default:
        return st;
    }
}

static uint32_t first_word(const unsigned char *d)
{
    return (uint32_t)d[0] | (uint32_t)d[1] << 8 | (uint32_t)d[2] << 16
        | (uint32_t)d[3] << 24;
}

struct random_stream random_open(uint32_t seed, const char *purpose, const char *name)
{
    unsigned char d[SHA256_DIGEST_LENGTH];
    struct random_stream s = {.key = {seed, 0}};
    SHA256((const unsigned char *)purpose, strlen(purpose), d);
    s.key[1] = first_word(d);
    SHA256((const unsigned char *)name, strlen(name), d);
    s.name[0] = first_word(d);
    s.name[1] = first_word(d + 4);
    return s;
}

double random_normal(const struct random_stream *s, uint64_t index)
{
    const uint32_t counter[4] = {
        (uint32_t)index, (uint32_t)(index >> 32), s->name[0], s->name[1]};
    uint32_t x[4];
    philox4x32_10(counter, s->key, x);
    const uint64_t a = ((uint64_t)x[1] << 32 | x[0]) >> 11,
                   b = ((uint64_t)x[3] << 32 | x[2]) >> 11;
    const double u1 = (double)(a + 1) * 0x1p-53, u2 = (double)b * 0x1p-53;
    return sqrt(-2.0 * fixed_log(u1)) * fixed_cos_turn(u2);
}

void random_normal_f32(const struct random_stream *s, uint64_t first, uint64_t count,
    double mean, double std, float *out)
{
    for (uint64_t i = 0; i < count; i++)
        out[i] = (float)(mean + std * random_normal(s, first + i));
}
