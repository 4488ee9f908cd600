/* Loops over elements that the vectoriser takes, with sums in a fixed order.
 *
 * A sum over n elements has LANES partial sums: element d goes to lane d % LANES, in ascending d;
 * then lanes fold in halves. The order is written out, so every vector width, and no vectors, give
 * the same bits. It is the same for float and double. LANES_CLONES compiles a function for wider
 * processors too, chosen at run time: the loops must be in it or in LANES_BODY functions. */
#ifndef KERNELS_CPU_LANES_H
#define KERNELS_CPU_LANES_H

#include "kernels/base/simd.h"
#include "kernels/cpu/mode.h"

enum { LANES = 16 };

#define LANES_BODY SIMD_BODY
#define LANES_CLONES SIMD_CLONES

LANES_BODY real lanes_fold(real *l)
{
    for (int half = LANES / 2; half > 0; half /= 2) {
        for (int i = 0; i < half; i++)
            l[i] += l[i + half];
    }
    return l[0];
}

/* The sum of TERM over d in [0,n), where TERM is an expression of the index `d`. */
#define LANES_SUM(result, n, TERM)                                                       \
    do {                                                                                 \
        real lane_[LANES] = {0};                                                         \
        const int64_t n_ = (n), whole_ = n_ - n_ % LANES;                                \
        for (int64_t d0_ = 0; d0_ < whole_; d0_ += LANES) {                              \
            for (int i_ = 0; i_ < LANES; i_++) {                                         \
                const int64_t d = d0_ + i_;                                              \
                lane_[i_] += (TERM);                                                     \
            }                                                                            \
        }                                                                                \
        for (int64_t d = whole_; d < n_; d++)                                            \
            lane_[d - whole_] += (TERM);                                                 \
        (result) = lanes_fold(lane_);                                                    \
    } while (0)

/* e^x. In float a polynomial of our own, within one unit of the last place, that vectorises and has
 * the same bits everywhere; 0 below -103, infinity above 88.7, NaN for NaN. In double the C
 * library's. */
#if defined(MODE_F64)
LANES_BODY real real_exp(real x)
{
    return exp(x);
}
#else
LANES_BODY real real_exp(real x)
{
    /* x = k ln 2 + r, |r| <= ln 2 / 2; e^x = 2^k e^r. ln 2 in two parts: the first times k is
     * exact. 2^k in two factors, so that results at both ends of the range come out right. */
    const real held = x > -104.0f ? (x < 89.0f ? x : 89.0f) : -104.0f; /* NaN: -104 */
    const real shifted = held * 0x1.715476p+0f + 0x1.8p+23f;
    const real k = shifted - 0x1.8p+23f;
    const real r = (held - k * 0x1.62e4p-1f) - k * 0x1.7f7d1cp-20f;
    const int32_t ki = (int32_t)k;
    const int32_t half = ki / 2;
    real y = 1.9875691500e-4f;

    y = y * r + 1.3981999507e-3f;
    y = y * r + 8.3334519073e-3f;
    y = y * r + 4.1665795894e-2f;
    y = y * r + 1.6666665459e-1f;
    y = y * r + 5.0000001201e-1f;
    y = y * (r * r) + r + 1.0f;
    y = y * f32_from_bits((uint32_t)(half + 127) << 23);
    y = y * f32_from_bits((uint32_t)(ki - half + 127) << 23);
    return x == x ? y : x;
}
#endif

#endif
