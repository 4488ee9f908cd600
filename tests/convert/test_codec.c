/* Codecs over matrices against fixtures/codec, whose digests were computed with PyTorch, ml_dtypes
 * and numpy (fixtures/make_codec_golden.py); the wide and the baseline loops; comparison. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <criterion/criterion.h>

#include "ckpt/digest.h"
#include "convert/codec.h"
#include "kernels/base/bf16.h"
#include "kernels/base/fp8.h"

struct input {
    const char *name;
    enum glm_dtype dtype;
    int64_t rows, cols;
};

static const struct input inputs[] = {
    {"single", GLM_BF16, 65536, 1},
    {"mixed", GLM_BF16, 2048, 32},
    {"near", GLM_BF16, 512, 128},
    {"ragged", GLM_BF16, 133, 301},
    {"edge", GLM_F32, 512 * 13, 1},
    {"wide", GLM_F32, 70, 131},
};
enum { INPUTS = sizeof inputs / sizeof inputs[0] };

static void *golden(const char *name, size_t size)
{
    char path[128];
    void *data = malloc(size);

    snprintf(path, sizeof path, "fixtures/codec/%s", name);
    FILE *f = fopen(path, "rb");
    cr_assert_not_null(f, "%s", path);
    cr_assert_eq(fread(data, 1, size, f), size, "%s is short", path);
    fclose(f);
    return data;
}

static void expect_digest(const char *name, const void *data, size_t size)
{
    unsigned char got[DIGEST_SIZE];
    char hex[DIGEST_HEX], line[256];
    const size_t n = strlen(name);
    bool found = false;

    digest_of(data, size, got);
    digest_hex(got, hex);
    FILE *f = fopen("fixtures/codec/digests.txt", "r");
    cr_assert_not_null(f);
    while (!found && fgets(line, sizeof line, f) != NULL)
        found = strncmp(line, name, n) == 0 && line[n] == ' ';
    fclose(f);
    cr_assert(found, "no golden digest %s", name);
    cr_expect_eq(
        strncmp(line + n + 1, hex, 64), 0, "%s differs from its golden digest", name);
}

static void canonical_f32(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (isnan(x[i]))
            x[i] = f32_from_bits(0x7FC00000);
}

static void canonical_16(uint16_t *x, int64_t n, enum glm_dtype dtype)
{
    const uint16_t infinite = dtype == GLM_F16 ? 0x7C00 : 0x7F80;

    for (int64_t i = 0; i < n; i++)
        if ((x[i] & 0x7FFF) > infinite)
            x[i] = dtype == GLM_F16 ? 0x7E00 : 0x7FC0;
}

static void *make_input(const struct input *in)
{
    const int64_t n = in->rows * in->cols;
    char file[64];

    if (in->dtype == GLM_F32 || strcmp(in->name, "ragged") == 0) {
        snprintf(file, sizeof file, "x_%s.%s", in->name,
            in->dtype == GLM_F32 ? "f32" : "bf16");
        return golden(file, (size_t)n * glm_dtype_size(in->dtype));
    }
    uint16_t *x = malloc((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++)
        if (strcmp(in->name, "single") == 0)
            x[i] = (uint16_t)i;
        else if (strcmp(in->name, "mixed") == 0)
            x[i] = (uint16_t)(i * 40503 + 12345);
        else /* near: +v and -v side by side, by size */
            x[i] = (uint16_t)(i >> 1 | (i & 1) << 15);
    return x;
}

Test(codec, mxfp8_encodes_as_the_golden_digests)
{
    for (int k = 0; k < INPUTS; k++)
        for (int rule = RULE_TE_ROUND_UP; rule <= RULE_OCP_FLOOR; rule++) {
            const struct input *in = &inputs[k];
            const size_t n = (size_t)(in->rows * in->cols);
            const size_t m = (size_t)(in->rows * ((in->cols + 31) / 32));
            void *x = make_input(in);
            uint8_t *q = malloc(n), *scale = malloc(m);
            char name[64];

            codec_mxfp8_encode(
                x, in->dtype, in->rows, in->cols, (enum codec_rule)rule, q, scale);
            snprintf(name, sizeof name, "mx_%s_%s.q", in->name,
                codec_rule_name((enum codec_rule)rule));
            expect_digest(name, q, n);
            snprintf(name, sizeof name, "mx_%s_%s.scale", in->name,
                codec_rule_name((enum codec_rule)rule));
            expect_digest(name, scale, m);
            free(x);
            free(q);
            free(scale);
        }
}

Test(codec, fp8_encodes_as_the_golden_digests)
{
    for (int k = 0; k < INPUTS; k++)
        for (int rule = RULE_AMAX; rule <= RULE_POW2; rule++) {
            const struct input *in = &inputs[k];
            const int64_t b = in->cols == 1 ? 1 : 128, block[2] = {b, b};
            const size_t n = (size_t)(in->rows * in->cols);
            const size_t m =
                (size_t)(((in->rows + b - 1) / b) * ((in->cols + b - 1) / b));
            void *x = make_input(in);
            uint8_t *q = malloc(n);
            float *scale = malloc(m * sizeof *scale);
            char name[64];

            codec_fp8_encode(
                x, in->dtype, in->rows, in->cols, block, (enum codec_rule)rule, q, scale);
            snprintf(name, sizeof name, "fp8_%s_%s.q", in->name,
                codec_rule_name((enum codec_rule)rule));
            expect_digest(name, q, n);
            snprintf(name, sizeof name, "fp8_%s_%s.scale", in->name,
                codec_rule_name((enum codec_rule)rule));
            expect_digest(name, scale, m * sizeof *scale);
            free(x);
            free(q);
            free(scale);
        }
}

/* Row e: all 256 codes under E8M0 scale e (8 blocks of 32 with the same scale). */
Test(codec, mxfp8_decodes_every_code_under_every_scale)
{
    static uint8_t q[65536], scale[256 * 8];
    static float y[65536];
    static uint16_t h[65536];

    for (int i = 0; i < 65536; i++)
        q[i] = (uint8_t)i;
    for (int i = 0; i < 256 * 8; i++)
        scale[i] = (uint8_t)(i / 8);
    codec_mxfp8_decode(q, scale, 256, 256, y, GLM_F32);
    codec_mxfp8_decode(q, scale, 256, 256, h, GLM_BF16);
    canonical_f32(y, 65536);
    canonical_16(h, 65536, GLM_BF16);
    expect_digest("mx_decode_f32", y, sizeof y);
    expect_digest("mx_decode_bf16", h, sizeof h);
}

Test(codec, fp8_decodes_every_code_under_many_scales)
{
    static uint8_t q[65536];
    static float y[65536];
    static uint16_t h[65536];
    const int64_t block[2] = {1, 256};
    float *scale = golden("fp8_decode_scales.f32", 256 * sizeof *scale);

    for (int i = 0; i < 65536; i++)
        q[i] = (uint8_t)i;
    codec_fp8_decode(q, scale, 256, 256, block, y, GLM_F32);
    codec_fp8_decode(q, scale, 256, 256, block, h, GLM_BF16);
    canonical_f32(y, 65536);
    canonical_16(h, 65536, GLM_BF16);
    expect_digest("fp8_decode_f32", y, sizeof y);
    expect_digest("fp8_decode_bf16", h, sizeof h);
    free(scale);
}

/* An index slip at a ragged edge shows against a plain triple loop over scalar rules. */
Test(codec, fp8_decodes_ragged_blocks_like_the_scalar_rule)
{
    enum { R = 37, C = 53 };
    static const int64_t blocks[][2] = {{128, 128}, {16, 16}, {1, 32}, {37, 53}, {5, 7}};
    uint8_t q[R * C];
    float scale[R * C], y[R * C];

    for (int i = 0; i < R * C; i++) {
        q[i] = (uint8_t)(i * 7 % 0x7F);
        scale[i] = 0.25f + (float)i;
    }
    for (size_t k = 0; k < sizeof blocks / sizeof blocks[0]; k++) {
        const int64_t *b = blocks[k], wide = (C + b[1] - 1) / b[1];
        codec_fp8_decode(q, scale, R, C, b, y, GLM_F32);
        for (int64_t r = 0; r < R; r++)
            for (int64_t c = 0; c < C; c++)
                cr_assert_eq(y[r * C + c],
                    fp8_e4m3_decode(q[r * C + c]) * scale[r / b[0] * wide + c / b[1]]);
    }
}

Test(codec, the_form_of_scales_is_told_by_type_and_block)
{
    static const int64_t mx[2] = {1, 32}, row[2] = {1, 128}, square[2] = {128, 128};
    cr_assert(codec_is_mx(GLM_F8_E8M0, mx) && codec_is_mx(GLM_U8, mx));
    cr_assert_not(codec_is_mx(GLM_F32, mx) || codec_is_mx(GLM_BF16, mx));
    cr_assert_not(codec_is_mx(GLM_F8_E8M0, row) || codec_is_mx(GLM_F8_E8M0, square));
    for (int d = 0; d < GLM_DTYPE_COUNT; d++)
        cr_assert_eq(codec_is_scale((enum glm_dtype)d),
            d == GLM_F32 || d == GLM_F16 || d == GLM_BF16 || d == GLM_F8_E8M0
                || d == GLM_U8);
}

Test(codec, scales_of_every_type_widen_exactly)
{
    static uint16_t high[65536];
    static float y[65536];
    uint8_t code[256];

    for (int i = 0; i < 65536; i++)
        high[i] = (uint16_t)i;
    codec_scale_widen(high, GLM_BF16, y, 65536);
    for (uint32_t i = 0; i < 65536; i++)
        cr_assert_eq(f32_bits(y[i]), i << 16);
    for (int i = 0; i < 256; i++)
        code[i] = (uint8_t)i;
    for (int u8 = 0; u8 < 2; u8++) {
        codec_scale_widen(code, u8 ? GLM_U8 : GLM_F8_E8M0, y, 256);
        for (int i = 0; i < 255; i++)
            cr_assert_eq((double)y[i], ldexp(1, i - 127));
        cr_assert(isnan(y[255]));
    }
}

Test(codec, round_trips_within_half_a_step_of_its_scale)
{
    enum { R = 8, C = 100 };
    uint16_t x[R * C], y[R * C];
    uint8_t q[R * C], scale[R * 4];

    for (int i = 0; i < R * C; i++)
        x[i] = bf16_from_f32(sinf((float)i) * 0.02f);
    codec_mxfp8_encode(x, GLM_BF16, R, C, RULE_TE_ROUND_UP, q, scale);
    codec_mxfp8_decode(q, scale, R, C, y, GLM_BF16);
    for (int r = 0; r < R; r++)
        for (int c = 0; c < C; c++) {
            const float a = bf16_to_f32(x[r * C + c]), b = bf16_to_f32(y[r * C + c]);
            const float s = fp8_e8m0_decode(scale[r * 4 + c / 32]);
            int k;
            frexpf(fmaxf(fabsf(a) / s, 0x1p-6f),
                &k); /* significand in [.5,1): step 2^(k-4) */
            cr_assert_leq(fabsf(a - b), s * ldexpf(0.5f, k - 4));
        }
}

Test(codec, casts_every_16_bit_input)
{
    static uint16_t x[65536], h[65536];
    static float y[65536];

    for (int i = 0; i < 65536; i++)
        x[i] = (uint16_t)i;
    codec_cast(x, GLM_F16, y, GLM_F32, 65536);
    canonical_f32(y, 65536);
    expect_digest("f16_to_f32", y, sizeof y);
    codec_cast(x, GLM_F16, h, GLM_BF16, 65536);
    canonical_16(h, 65536, GLM_BF16);
    expect_digest("f16_to_bf16", h, sizeof h);
    codec_cast(x, GLM_BF16, h, GLM_F16, 65536);
    canonical_16(h, 65536, GLM_F16);
    expect_digest("bf16_to_f16", h, sizeof h);
    codec_cast(x, GLM_BF16, y, GLM_F32, 65536);
    for (uint32_t i = 0; i < 65536; i++)
        cr_assert_eq(f32_bits(y[i]), i << 16);
    codec_cast(x, GLM_BF16, h, GLM_BF16, 65536);
    cr_assert_eq(memcmp(x, h, sizeof x), 0);
}

Test(codec, casts_f32_round_every_tie)
{
    static const uint32_t low[13] = {0, 1, 0xFFF, 0x1000, 0x1001, 0x1FFF, 0x2FFF, 0x3000,
        0x3001, 0x7FFF, 0x8000, 0x8001, 0xFFFF};
    const int64_t n = 65536 * 13;
    float *x = malloc((size_t)n * sizeof *x);
    uint16_t *h = malloc((size_t)n * sizeof *h);

    for (uint32_t i = 0; i < 65536; i++)
        for (uint32_t k = 0; k < 13; k++)
            x[i * 13 + k] = f32_from_bits(i << 16 | low[k]);
    codec_cast(x, GLM_F32, h, GLM_BF16, n);
    canonical_16(h, n, GLM_BF16);
    expect_digest("f32_to_bf16", h, (size_t)n * sizeof *h);
    codec_cast(x, GLM_F32, h, GLM_F16, n);
    canonical_16(h, n, GLM_F16);
    expect_digest("f32_to_f16", h, (size_t)n * sizeof *h);
    free(x);
    free(h);
}

Test(codec, narrowing_keeps_a_nan_a_nan)
{
    const float x[2] = {f32_from_bits(0x7F800001), f32_from_bits(0xFF800001)};
    uint16_t h[2];

    codec_cast(x, GLM_F32, h, GLM_BF16, 2);
    cr_expect_eq(h[0], 0x7FC0);
    cr_expect_eq(h[1], 0xFFC0);
    codec_cast(x, GLM_F32, h, GLM_F16, 2);
    cr_expect_eq(h[0], 0x7E00);
    cr_expect_eq(h[1], 0xFE00);
}

Test(codec, names_of_rules_are_found_again)
{
    enum codec_rule r;

    for (int i = RULE_TE_ROUND_UP; i <= RULE_POW2; i++) {
        cr_assert_eq(codec_rule_find(codec_rule_name((enum codec_rule)i), &r), 0);
        cr_expect_eq((int)r, i);
    }
    cr_expect_neq(codec_rule_find("te", &r), 0);
    cr_expect_neq(codec_rule_find("", &r), 0);
}

Test(codec, compares_small_cases_exactly)
{
    const float x[8] = {1, 2, -4, 0, 0, INFINITY, NAN, 8};
    const float y[8] = {1, 3, -4.5f, -0.0f, 0.25f, INFINITY, NAN, INFINITY};
    struct codec_error e = {0};

    codec_compare(&e, x, GLM_F32, y, GLM_F32, 8);
    cr_expect_eq(e.count, 8);
    cr_expect_eq(e.changed, 4); /* 2, -4, 0.25 and 8 */
    cr_expect_eq(e.non_finite, 3);
    cr_expect_eq(e.max_abs, 1.0);
    cr_expect_eq(e.max_rel, 0.5);
    cr_expect_eq(e.signal, 21.0);
    cr_expect_eq(e.noise, 1 + 0.25 + 0.0625);
    cr_expect_float_eq(codec_snr_db(&e), 10 * log10(21 / 1.3125), 1e-12);
}

Test(codec, compares_long_runs_like_a_plain_loop)
{
    enum { N = 1000 };
    static float x[N];
    static double y[N];
    struct codec_error e = {0}, parts = {0};
    double signal = 0, noise = 0, top = 0, rel = 0;
    int64_t changed = 0;

    for (int i = 0; i < N; i++) {
        x[i] = cosf((float)i);
        y[i] = i % 3 == 0 ? (double)x[i] : (double)x[i] + 1e-3 * sin(i);
        const double d = fabs(y[i] - (double)x[i]);
        signal += (double)x[i] * (double)x[i];
        noise += d * d;
        changed += d != 0;
        top = fmax(top, d);
        rel = fmax(rel, d / fabs((double)x[i]));
    }
    codec_compare(&e, x, GLM_F32, y, GLM_F64, N);
    cr_expect_eq(e.changed, changed);
    cr_expect_eq(e.max_abs, top);
    cr_expect_eq(e.max_rel, rel);
    cr_expect_float_eq(e.signal, signal, 1e-12 * signal);
    cr_expect_float_eq(e.noise, noise, 1e-12 * noise);
    codec_compare(&parts, x, GLM_F32, y, GLM_F64, 700);
    struct codec_error rest = {0};
    codec_compare(&rest, x + 700, GLM_F32, y + 700, GLM_F64, N - 700);
    codec_error_add(&parts, &rest);
    cr_expect_eq(parts.count, e.count);
    cr_expect_eq(parts.changed, e.changed);
    cr_expect_eq(parts.max_rel, e.max_rel);
    cr_expect_float_eq(parts.noise, e.noise, 1e-12 * noise);
}

Test(codec, calls_equal_data_noise_free)
{
    const uint16_t x[3] = {0x3F80, 0x4000, 0xC080};
    struct codec_error e = {0};

    codec_compare(&e, x, GLM_BF16, x, GLM_BF16, 3);
    cr_expect_eq(e.changed, 0);
    cr_expect(isinf(codec_snr_db(&e)));
}
