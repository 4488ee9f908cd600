/* The 16-bit floats: BF16 and F16 from and to F32, each one written once.
 *
 * Narrowing rounds to nearest even, overflows to infinity, keeps subnormals, and makes a NaN quiet
 * (sign and upper payload bits stay). Widening is exact and keeps a NaN's bits, so widening and
 * narrowing again gives any quiet NaN back as it was.
 *
 * All are free of branches on data and always inlined, so that a loop over them vectorises. They
 * assume the default floating-point environment: round to nearest, subnormals not flushed. */
#ifndef KERNELS_BASE_BF16_H
#define KERNELS_BASE_BF16_H

#include <stdint.h>
#include <string.h>

#define BF16_INLINE static inline __attribute__((always_inline))

BF16_INLINE uint32_t f32_bits(float x)
{
    uint32_t b;
    memcpy(&b, &x, sizeof b);
    return b;
}

BF16_INLINE float f32_from_bits(uint32_t b)
{
    float x;
    memcpy(&x, &b, sizeof x);
    return x;
}

BF16_INLINE float bf16_to_f32(uint16_t h)
{
    return f32_from_bits((uint32_t)h << 16);
}

BF16_INLINE uint16_t bf16_from_f32(float x)
{
    const uint32_t b = f32_bits(x);
    const uint32_t rounded = (b + 0x7FFFu + (b >> 16 & 1)) >> 16;
    const uint32_t quiet = b >> 16 | 0x40u;

    return (uint16_t)((b & 0x7FFFFFFFu) > 0x7F800000u ? quiet : rounded);
}

BF16_INLINE float f16_to_f32(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    const uint32_t m = (uint32_t)(h & 0x7FFFu)
        << 13; /* exponent and fraction, F32's places */
    /* A subnormal is fraction * 2^-24: set it behind 2^-14's exponent, take 2^-14 away. */
    const uint32_t small = f32_bits(f32_from_bits(m | 0x38800000u) - 0x1p-14f);
    const uint32_t normal = m + (112u << 23);
    const uint32_t special = m + (224u << 23); /* infinity and NaN: exponent 31 -> 255 */
    const uint32_t finite = m < 0x00800000u ? small : normal;

    return f32_from_bits(sign | (m >= 0x0F800000u ? special : finite));
}

BF16_INLINE uint16_t f16_from_f32(float x)
{
    const uint32_t b = f32_bits(x);
    const uint32_t a = b & 0x7FFFFFFFu;
    const uint32_t nan = 0x7E00u | (a >> 13 & 0x3FFu);
    const uint32_t normal = ((a + 0xFFFu + (a >> 13 & 1)) >> 13) - (112u << 10);
    /* Below 2^-14: adding 0.5 leaves the sum's last bit worth 2^-24, F16's smallest step. */
    const uint32_t small = f32_bits(f32_from_bits(a) + 0.5f) - 0x3F000000u;
    const uint32_t finite = a < 0x38800000u ? small : normal;
    const uint32_t held = a >= 0x47800000u ? 0x7C00u : finite;

    return (uint16_t)((b >> 16 & 0x8000u) | (a > 0x7F800000u ? nan : held));
}

#endif
