/* The 8-bit formats: E4M3 elements, E8M0 scales, and how a block's scale follows from its maximum.
 *
 * E4M3 is the OCP "fn" form: sign, 4 exponent bits (bias 7), 3 fraction bits; largest 448; no
 * infinity; 0x7F and 0xFF are NaN; smallest step 2^-9. E8M0 is 2^(e-127), 255 is NaN.
 * MXFP8 rules: spec/training.md 6.2. FP8 128x128 rule: DESIGN.md 9.
 *
 * As in bf16.h everything is branch-free and inlined for the vectoriser. `amax` is the largest
 * |x| of a block in which a NaN does not count: it is never NaN, and 0 for a block of NaNs. */
#ifndef KERNELS_BASE_FP8_H
#define KERNELS_BASE_FP8_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/base/bf16.h"

#define FP8_INLINE BF16_INLINE

/* Round to nearest even; beyond 448, infinities included, +-448; any NaN becomes 0x7F. */
FP8_INLINE uint8_t fp8_e4m3_encode(float x)
{
    const uint32_t b = f32_bits(x);
    const uint32_t whole = b & 0x7FFFFFFFu;
    const uint32_t a = whole < 0x43E00000u ? whole : 0x43E00000u; /* 448 */
    const uint32_t normal = ((a + 0x7FFFFu + (a >> 20 & 1)) >> 20) - (120u << 3);
    /* Below 2^-6: adding 2^14 leaves the sum's last bit worth 2^-9, the smallest step. */
    const uint32_t small = f32_bits(f32_from_bits(a) + 0x1p14f) - 0x46800000u;
    const uint32_t code = (a < 0x3C800000u ? small : normal) | (b >> 24 & 0x80u);

    return (uint8_t)(whole > 0x7F800000u ? 0x7Fu : code);
}

FP8_INLINE float fp8_e4m3_decode(uint8_t q)
{
    const uint32_t sign = (uint32_t)(q & 0x80u) << 24;
    const uint32_t m = (uint32_t)(q & 0x7Fu) << 20;
    const uint32_t small = f32_bits(f32_from_bits(m | 0x3C800000u) - 0x1p-6f);
    const uint32_t finite = m < 0x00800000u ? small : m + (120u << 23);

    return f32_from_bits(sign | ((q & 0x7Fu) == 0x7Fu ? 0x7FC00000u : finite));
}

/* 2^(e-127); 255 is NaN. e = 0 is an F32 subnormal. */
FP8_INLINE float fp8_e8m0_decode(uint8_t e)
{
    const uint32_t normal = e == 255 ? 0x7FC00000u : (uint32_t)e << 23;

    return f32_from_bits(e == 0 ? 0x00400000u : normal);
}

/* 2^(127-e): what x is multiplied with before it is encoded. */
FP8_INLINE float fp8_e8m0_inverse(uint8_t e)
{
    const uint32_t normal = e == 255 ? 0x7FC00000u : (254u - e) << 23;

    return f32_from_bits(e == 254 ? 0x00400000u : normal);
}

/* The smallest e with v <= 2^(e-127); +Inf gives 254, 0 gives 0. */
FP8_INLINE uint8_t fp8_e8m0_round_up(float v)
{
    const uint32_t b = f32_bits(v);
    const uint32_t exponent = b >> 23 & 0xFFu, fraction = b & 0x7FFFFFu;

    if ((b & 0x7FFFFFFFu) > 0x7F800000u)
        return 255;
    if (exponent >= 254) /* nothing lies above 2^127 */
        return 254;
    if (exponent == 0)
        return fraction > 0x400000u; /* 2^-127 is a subnormal of F32 */
    return (uint8_t)(exponent + (fraction != 0));
}

/* te_round_up: the maximum never saturates. fl32(1/448) is part of the rule. */
FP8_INLINE uint8_t fp8_mx_scale_te(float amax)
{
    return fp8_e8m0_round_up(amax * f32_from_bits(0x3B124925u));
}

/* ocp_floor: e = floor(log2 amax) - 8 + 127, held to 0..254; a maximum above 1.75 * 2^k saturates.
 * 0 gives 0 and +Inf 254, as in the other rule. */
FP8_INLINE uint8_t fp8_mx_scale_ocp(float amax)
{
    const uint32_t exponent = f32_bits(amax) >> 23 & 0xFFu;

    if (exponent == 255)
        return 254;
    return (uint8_t)(exponent > 8 ? exponent - 8 : 0);
}

/* s = fl32(amax/448), 1 for an empty range; pow2: rounded up to a power of two.
 *
 * An F32 maximum below 2^-142 gives a quotient that rounds to 0; it takes s = 1 as well, because a
 * scale of 0 would turn the block's zeros into NaN (0/0). An infinite maximum gives s = Inf by the
 * rule: the block then decodes to NaN, which a report counts, and no finite value is invented. */
FP8_INLINE float fp8_block_scale(float amax, bool pow2)
{
    const float s = amax / 448.0f;
    const uint32_t b = f32_bits(s);

    if (b == 0)
        return 1.0f;
    if (!pow2 || b >= 0x7F800000u)
        return s;
    if (b
        < 0x00800000u) { /* subnormal: its own powers of two, the smallest normal above them */
        uint32_t p = 1;
        while (p < b)
            p <<= 1;
        return f32_from_bits(p);
    }
    return f32_from_bits((b + 0x7FFFFFu) & 0x7F800000u);
}

/* One element of an FP8 block. */
FP8_INLINE uint8_t fp8_block_encode(float x, float s)
{
    return fp8_e4m3_encode(x / s);
}

#endif
