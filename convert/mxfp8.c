/* MXFP8: rows of blocks of 32 E4M3 elements with one E8M0 scale each (spec/training.md 6.2).
 *
 * A block is loaded into 32 floats, zeros behind a short one, so every loop has a constant length
 * and vectorises; zeros change neither the maximum nor the stored elements. BF16 -> F32 is exact,
 * so the maximum of the floats is the BF16 maximum. Decoding is exact in F32 but for overflow:
 * an element is a multiple of 2^-9, a scale at least 2^-127, and F32 reaches down to 2^-149. */
#include "convert/codec.h"

#include <assert.h>
#include <string.h>

#include "kernels/base/fp8.h"
#include "kernels/base/simd.h"

enum { BLOCK = 32 };

/* n < BLOCK elements are followed by zeros. */
SIMD_BODY void load(
    float *restrict out, const void *x, enum glm_dtype dtype, int64_t at, int n)
{
    if (dtype == GLM_F32) {
        memset(out, 0, sizeof(float) * BLOCK);
        memcpy(out, (const float *)x + at, sizeof(float) * (size_t)n);
        return;
    }
    uint16_t h[BLOCK] = {0};
    memcpy(h, (const uint16_t *)x + at, sizeof(uint16_t) * (size_t)n);
    for (int i = 0; i < BLOCK; i++)
        out[i] = bf16_to_f32(h[i]);
}

/* |x| compares like its bits; a NaN counts as 0. */
SIMD_BODY float block_amax(const float *v)
{
    /* signed: SSE2 compares no others; without the sign bit equal */
    int32_t held[BLOCK], top = 0;

    for (int i = 0; i < BLOCK; i++) {
        const int32_t a = (int32_t)(f32_bits(v[i]) & 0x7FFFFFFFu);
        held[i] = a > 0x7F800000 ? 0 : a;
    }
    for (int i = 0; i < BLOCK; i++)
        top = top > held[i] ? top : held[i];
    return f32_from_bits((uint32_t)top);
}

SIMD_BODY void encode_block(const void *x, enum glm_dtype dtype, int64_t at, int n,
    enum codec_rule rule, uint8_t *q, uint8_t *scale)
{
    float v[BLOCK];
    uint8_t code[BLOCK];

    load(v, x, dtype, at, n);
    const float amax = block_amax(v);
    const uint8_t e =
        rule == RULE_OCP_FLOOR ? fp8_mx_scale_ocp(amax) : fp8_mx_scale_te(amax);
    const float inverse = fp8_e8m0_inverse(e);
    for (int i = 0; i < BLOCK; i++)
        code[i] = fp8_e4m3_encode(v[i] * inverse);
    memcpy(q + at, code, (size_t)n);
    *scale = e;
}

SIMD_BODY void encode(const void *x, enum glm_dtype dtype, int64_t rows, int64_t cols,
    enum codec_rule rule, uint8_t *q, uint8_t *scale)
{
    for (int64_t r = 0; r < rows; r++) {
        int64_t c = 0;
        for (; cols - c >= BLOCK;
             c += BLOCK) /* BLOCK as a constant: the copies become loads */
            encode_block(x, dtype, r * cols + c, BLOCK, rule, q, scale++);
        if (c < cols)
            encode_block(x, dtype, r * cols + c, (int)(cols - c), rule, q, scale++);
    }
}

/* dtype is a constant in each call below, so that the loops specialise. */
SIMD_AVX2 static void encode_avx2(const void *x, enum glm_dtype dtype, int64_t rows,
    int64_t cols, enum codec_rule rule, uint8_t *q, uint8_t *scale)
{
    if (dtype == GLM_F32)
        encode(x, GLM_F32, rows, cols, rule, q, scale);
    else
        encode(x, GLM_BF16, rows, cols, rule, q, scale);
}

void codec_mxfp8_encode(const void *x, enum glm_dtype dtype, int64_t rows, int64_t cols,
    enum codec_rule rule, uint8_t *q, uint8_t *scale)
{
    assert(dtype == GLM_BF16 || dtype == GLM_F32);
    assert(rule == RULE_TE_ROUND_UP || rule == RULE_OCP_FLOOR);
    if (simd_avx2())
        encode_avx2(x, dtype, rows, cols, rule, q, scale);
    else if (dtype == GLM_F32)
        encode(x, GLM_F32, rows, cols, rule, q, scale);
    else
        encode(x, GLM_BF16, rows, cols, rule, q, scale);
}

SIMD_BODY void decode_block(
    const uint8_t *q, uint8_t scale, int64_t at, int n, void *y, enum glm_dtype dtype)
{
    const float s = fp8_e8m0_decode(scale);
    uint8_t code[BLOCK] = {0};
    float v[BLOCK];
    uint16_t h[BLOCK];

    memcpy(code, q + at, (size_t)n);
    for (int i = 0; i < BLOCK; i++)
        v[i] = fp8_e4m3_decode(code[i]) * s;
    if (dtype == GLM_F32) {
        memcpy((float *)y + at, v, sizeof(float) * (size_t)n);
        return;
    }
    for (int i = 0; i < BLOCK; i++)
        h[i] = bf16_from_f32(v[i]);
    memcpy((uint16_t *)y + at, h, sizeof(uint16_t) * (size_t)n);
}

SIMD_BODY void decode(const uint8_t *q, const uint8_t *scale, int64_t rows, int64_t cols,
    void *y, enum glm_dtype dtype)
{
    for (int64_t r = 0; r < rows; r++) {
        int64_t c = 0;
        for (; cols - c >= BLOCK; c += BLOCK)
            decode_block(q, *scale++, r * cols + c, BLOCK, y, dtype);
        if (c < cols)
            decode_block(q, *scale++, r * cols + c, (int)(cols - c), y, dtype);
    }
}

SIMD_AVX2 static void decode_avx2(const uint8_t *q, const uint8_t *scale, int64_t rows,
    int64_t cols, void *y, enum glm_dtype dtype)
{
    if (dtype == GLM_F32)
        decode(q, scale, rows, cols, y, GLM_F32);
    else
        decode(q, scale, rows, cols, y, GLM_BF16);
}

void codec_mxfp8_decode(const uint8_t *q, const uint8_t *scale, int64_t rows,
    int64_t cols, void *y, enum glm_dtype dtype)
{
    assert(dtype == GLM_BF16 || dtype == GLM_F32);
    if (simd_avx2())
        decode_avx2(q, scale, rows, cols, y, dtype);
    else if (dtype == GLM_F32)
        decode(q, scale, rows, cols, y, GLM_F32);
    else
        decode(q, scale, rows, cols, y, GLM_BF16);
}
