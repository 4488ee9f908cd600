/* The elements of toy models: bit patterns by a 64-bit mix, or values like trained weights. */
#include "tests/support/toy.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/rng.h"

static uint64_t name_hash(const char *name, size_t length, uint64_t seed)
{
    uint64_t h = 0xcbf29ce484222325u; /* FNV-1a */
    for (size_t i = 0; i < length; i++)
        h = (h ^ (unsigned char)name[i]) * 0x100000001b3u;
    return rng_mix(h ^ rng_mix(seed));
}

/* ---- bits ---- */

static uint16_t finite16(uint64_t x, unsigned exponent)
{
    uint16_t v = (uint16_t)(x >> 48);
    return (v & exponent) == exponent ? (uint16_t)(v ^ (exponent & -exponent)) : v;
}

static uint32_t finite32(uint64_t x)
{
    uint32_t v = (uint32_t)(x >> 32);
    return (v & 0x7f800000u) == 0x7f800000u ? v ^ 0x00800000u : v;
}

static void fill_bits(
    uint64_t h, enum toy_type type, int64_t first, int64_t count, void *out)
{
    const uint64_t base = h + (uint64_t)first;
    uint8_t *b = out;
    uint16_t *w = out;
    uint32_t *d = out;
    switch (type) {
    case TOY_BF16:
        for (int64_t i = 0; i < count; i++)
            w[i] = finite16(rng_mix(base + (uint64_t)i), 0x7f80);
        break;
    case TOY_F16:
        for (int64_t i = 0; i < count; i++)
            w[i] = finite16(rng_mix(base + (uint64_t)i), 0x7c00);
        break;
    case TOY_F32:
        for (int64_t i = 0; i < count; i++)
            d[i] = finite32(rng_mix(base + (uint64_t)i));
        break;
    case TOY_E4M3: /* 0x7f and 0xff are the NaNs */
        for (int64_t i = 0; i < count; i++) {
            const uint8_t v = (uint8_t)(rng_mix(base + (uint64_t)i) >> 56);
            b[i] = (v & 0x7f) == 0x7f ? (uint8_t)(v ^ 1) : v;
        }
        break;
    case TOY_E8M0:
    case TOY_U8: /* scales 2^-24 .. 2^7: code times scale stays finite in BF16 */
        for (int64_t i = 0; i < count; i++)
            b[i] = (uint8_t)(103 + (rng_mix(base + (uint64_t)i) >> 59));
        break;
    case TOY_TYPES:
        break;
    }
}

/* Block scales: positive, 2^-16 .. 2^-1 with a full mantissa. */
static void fill_scales(uint64_t h, int64_t first, int64_t count, uint32_t *out)
{
    for (int64_t i = 0; i < count; i++) {
        const uint64_t x = rng_mix(h + (uint64_t)(first + i));
        const uint32_t exponent = 111 + (uint32_t)(x >> 60);
        out[i] = exponent << 23 | ((uint32_t)x & 0x7fffff);
    }
}

/* Router bias: near 7, spread 0.25, every value different in its low bits. BF16 would keep only
 * a handful of the values, which is what a test looks for. */
static void fill_bias(uint64_t h, int64_t first, int64_t count, float *out)
{
    for (int64_t i = 0; i < count; i++) {
        const uint64_t x = rng_mix(h + (uint64_t)(first + i));
        out[i] = 7.0f + 0.25f * ((float)(x >> 40) * 0x1p-23f - 1.0f);
    }
}

/* ---- values like trained weights ---- */

enum { QUANTILES = 1 << 14 };
static float quantile[QUANTILES + 1];
static pthread_once_t quantile_once = PTHREAD_ONCE_INIT;

/* Inverse of the normal distribution at QUANTILES+1 points, by Newton from the point before. */
static void make_quantiles(void)
{
    double z = -4.5;
    quantile[0] = -4.8f;
    for (int i = 1; i < QUANTILES; i++) {
        const double p = (double)i / QUANTILES;
        for (int k = 0; k < 30; k++)
            z -= fmax(-0.5,
                fmin(0.5,
                    (0.5 * erfc(-z * M_SQRT1_2) - p)
                        / (exp(-0.5 * z * z) * 0.3989422804014327)));
        quantile[i] = (float)z;
    }
    quantile[QUANTILES] = 4.8f;
}

static float gauss(uint64_t x)
{
    const uint32_t i = (uint32_t)(x >> 50);
    const float f = (float)((x >> 20) & 0x3fffffff) * 0x1p-30f;
    return quantile[i] + f * (quantile[i + 1] - quantile[i]);
}

static uint16_t to_bf16(float v)
{
    uint32_t u;
    memcpy(&u, &v, 4);
    return (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

/* E4M3 codes of normal values with std 60: what an amax/448 block scale leaves. */
static uint8_t to_e4m3(float v)
{
    const uint8_t sign = v < 0 ? 0x80 : 0;
    const float a = fminf(fabsf(v), 448.0f);
    int e;
    frexpf(a, &e);
    e = e - 1 < -6 ? -6 : e - 1;
    const int m = (int)lrintf(ldexpf(a, 3 - e)); /* 0..16 */
    return (uint8_t)(sign | (m < 8 ? m : ((e + 7) << 3) + m - 8));
}

static void fill_gauss(
    uint64_t h, enum toy_type type, int64_t first, int64_t count, void *out)
{
    pthread_once(&quantile_once, make_quantiles);
    const uint64_t base = h + (uint64_t)first;
    for (int64_t i = 0; i < count; i++) {
        const float v = gauss(rng_mix(base + (uint64_t)i));
        if (type == TOY_BF16)
            ((uint16_t *)out)[i] = to_bf16(0.02f * v);
        else if (type == TOY_F32)
            ((float *)out)[i] = 0.02f * v;
        else
            ((uint8_t *)out)[i] = to_e4m3(60.0f * v);
    }
}

/* ---- one run of elements of one Hugging Face name ---- */

static void fill_run(const struct toy_options *o, const char *name, size_t length,
    const struct toy_tensor *t, int64_t first, int64_t count, void *out)
{
    const uint64_t h = name_hash(name, length, o->seed);
    const char bias[] = "e_score_correction_bias";
    const bool is_bias = length > sizeof bias - 1
        && memcmp(name + length - (sizeof bias - 1), bias, sizeof bias - 1) == 0;
    if (is_bias)
        fill_bias(h, first, count, out);
    else if (t->is_scale && t->type == TOY_F32)
        fill_scales(h, first, count, out);
    else if (o->gauss && !t->is_scale && t->type != TOY_F16)
        fill_gauss(h, t->type, first, count, out);
    else
        fill_bits(h, t->type, first, count, out);
}

/* A fused stack has the elements of its members, so that both layouts are the same model. */
static void fill_stack(const struct toy_options *o, const struct toy_tensor *t,
    int64_t first, int64_t count, unsigned char *out)
{
    const int64_t parts = t->fused == 1 ? 2 : 1;
    const int64_t part = t->shape[1] / parts * t->shape[2];
    const size_t size = toy_type_size(t->type);
    const size_t stem =
        strlen(t->name) - strlen(t->fused == 1 ? "gate_up_proj" : "down_proj");
    while (count > 0) {
        const int64_t which = first / part, at = first % part;
        const int64_t n = count < part - at ? count : part - at;
        const char *projection = t->fused == 2 ? "down_proj"
            : which % 2                        ? "up_proj"
                                               : "gate_proj";
        char name[256];
        const int length = snprintf(name, sizeof name, "%.*s%lld.%s.weight", (int)stem,
            t->name, (long long)(which / parts), projection);
        fill_run(o, name, (size_t)length, t, at, n, out);
        out += (size_t)n * size;
        first += n;
        count -= n;
    }
}

void toy_fill(const struct toy_options *o, const struct toy_tensor *t, int64_t first,
    int64_t count, void *out)
{
    if (t->fused)
        fill_stack(o, t, first, count, out);
    else
        fill_run(o, t->name, strlen(t->name), t, first, count, out);
}
