/* FP8 in two-dimensional blocks, usually 128x128: E4M3 elements, one F32 scale per block
 * (DESIGN.md 9). Blocks at the right and lower edge are smaller.
 *
 * A band of block rows is read twice, once for the maxima and once to encode; a band of 128 rows
 * of usual width stays in the cache. The division by s is the rule (a product with 1/s rounds
 * differently). Decoding multiplies in F32 and then rounds to the output type, as the published
 * dequantisers do, so that a weight restored here has their bits. */
#include "convert/codec.h"

#include <assert.h>
#include <string.h>

#include "kernels/base/fp8.h"
#include "kernels/base/simd.h"

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Largest bits of |x|, NaN as 0, of n elements, not below `top`. Signed, because SSE2 compares
 * nothing else; without the sign bit it is the same. Two loops, or GCC does not vectorise. */
SIMD_BODY int32_t run_amax(
    const void *x, enum glm_dtype dtype, int64_t at, int64_t n, int32_t top)
{
    enum { RUN = 128 };

    for (int64_t done = 0; done < n; done += RUN) {
        const int m = (int)min64(RUN, n - done);
        int32_t held[RUN];
        for (int i = 0; i < m; i++) {
            const int64_t k = at + done + i;
            const int32_t a = dtype == GLM_F32
                ? (int32_t)(f32_bits(((const float *)x)[k]) & 0x7FFFFFFFu)
                : (int32_t)(((const uint16_t *)x)[k] & 0x7FFFu) << 16;
            held[i] = a > 0x7F800000 ? 0 : a;
        }
        for (int i = 0; i < m; i++)
            top = top > held[i] ? top : held[i];
    }
    return top;
}

SIMD_BODY void run_encode(const void *x, enum glm_dtype dtype, int64_t at, int64_t n,
    float s, uint8_t *restrict q)
{
    if (dtype == GLM_F32) {
        const float *restrict v = (const float *)x + at;
        for (int64_t i = 0; i < n; i++)
            q[i] = fp8_block_encode(v[i], s);
        return;
    }
    const uint16_t *restrict v = (const uint16_t *)x + at;
    for (int64_t i = 0; i < n; i++)
        q[i] = fp8_block_encode(bf16_to_f32(v[i]), s);
}

SIMD_BODY void encode(const void *x, enum glm_dtype dtype, int64_t rows, int64_t cols,
    const int64_t block[2], bool pow2, uint8_t *q, float *scale)
{
    for (int64_t r0 = 0; r0 < rows; r0 += block[0]) {
        const int64_t r1 = min64(rows, r0 + block[0]);
        for (int64_t c0 = 0; c0 < cols; c0 += block[1]) {
            const int64_t n = min64(block[1], cols - c0);
            int32_t top = 0;
            for (int64_t r = r0; r < r1; r++)
                top = run_amax(x, dtype, r * cols + c0, n, top);
            const float s = fp8_block_scale(f32_from_bits((uint32_t)top), pow2);
            for (int64_t r = r0; r < r1; r++)
                run_encode(x, dtype, r * cols + c0, n, s, q + r * cols + c0);
            *scale++ = s;
        }
    }
}

SIMD_AVX2 static void encode_avx2(const void *x, enum glm_dtype dtype, int64_t rows,
    int64_t cols, const int64_t block[2], bool pow2, uint8_t *q, float *scale)
{
    if (dtype == GLM_F32)
        encode(x, GLM_F32, rows, cols, block, pow2, q, scale);
    else
        encode(x, GLM_BF16, rows, cols, block, pow2, q, scale);
}

void codec_fp8_encode(const void *x, enum glm_dtype dtype, int64_t rows, int64_t cols,
    const int64_t block[2], enum codec_rule rule, uint8_t *q, float *scale)
{
    assert(dtype == GLM_BF16 || dtype == GLM_F32);
    assert(rule == RULE_AMAX || rule == RULE_POW2);
    assert(block[0] > 0 && block[1] > 0);
    if (simd_avx2())
        encode_avx2(x, dtype, rows, cols, block, rule == RULE_POW2, q, scale);
    else if (dtype == GLM_F32)
        encode(x, GLM_F32, rows, cols, block, rule == RULE_POW2, q, scale);
    else
        encode(x, GLM_BF16, rows, cols, block, rule == RULE_POW2, q, scale);
}

SIMD_BODY void run_decode(const uint8_t *restrict q, int64_t n, float s, void *y,
    enum glm_dtype dtype, int64_t at)
{
    if (dtype == GLM_F32) {
        float *restrict v = (float *)y + at;
        for (int64_t i = 0; i < n; i++)
            v[i] = fp8_e4m3_decode(q[i]) * s;
        return;
    }
    uint16_t *restrict v = (uint16_t *)y + at;
    for (int64_t i = 0; i < n; i++)
        v[i] = bf16_from_f32(fp8_e4m3_decode(q[i]) * s);
}

SIMD_BODY void decode(const uint8_t *q, const float *scale, int64_t rows, int64_t cols,
    const int64_t block[2], void *y, enum glm_dtype dtype)
{
    const int64_t wide = cols / block[1] + (cols % block[1] != 0); /* blocks in a row */

    for (int64_t r = 0; r < rows; r++) {
        const float *s = scale + r / block[0] * wide;
        for (int64_t c = 0; c < cols; c += block[1])
            run_decode(q + r * cols + c, min64(block[1], cols - c), *s++, y, dtype,
                r * cols + c);
    }
}

SIMD_AVX2 static void decode_avx2(const uint8_t *q, const float *scale, int64_t rows,
    int64_t cols, const int64_t block[2], void *y, enum glm_dtype dtype)
{
    if (dtype == GLM_F32)
        decode(q, scale, rows, cols, block, y, GLM_F32);
    else
        decode(q, scale, rows, cols, block, y, GLM_BF16);
}

static bool is_exponent(enum glm_dtype d)
{
    return d == GLM_F8_E8M0 || d == GLM_U8;
}

bool codec_is_mx(enum glm_dtype scale, const int64_t block[2])
{
    return is_exponent(scale) && block[0] == 1 && block[1] == 32;
}

bool codec_is_scale(enum glm_dtype dtype)
{
    return is_exponent(dtype) || dtype == GLM_F32 || dtype == GLM_F16
        || dtype == GLM_BF16;
}

void codec_scale_widen(const void *scale, enum glm_dtype dtype, float *out, int64_t n)
{
    const uint8_t *code = scale;

    assert(codec_is_scale(dtype));
    if (!is_exponent(dtype))
        codec_cast(scale, dtype, out, GLM_F32, n);
    for (int64_t i = 0; is_exponent(dtype) && i < n; i++)
        out[i] = fp8_e8m0_decode(code[i]);
}

void codec_fp8_decode(const uint8_t *q, const float *scale, int64_t rows, int64_t cols,
    const int64_t block[2], void *y, enum glm_dtype dtype)
{
    assert(dtype == GLM_BF16 || dtype == GLM_F32);
    assert(block[0] > 0 && block[1] > 0);
    if (simd_avx2())
        decode_avx2(q, scale, rows, cols, block, y, dtype);
    else if (dtype == GLM_F32)
        decode(q, scale, rows, cols, block, y, GLM_F32);
    else
        decode(q, scale, rows, cols, block, y, GLM_BF16);
}
