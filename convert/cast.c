/* Casts between the wide types, the names of the scale rules, and what a conversion changed. */
#include "convert/codec.h"

#include <assert.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "kernels/base/bf16.h"
#include "kernels/base/simd.h"

static const char *const rule_names[] = {
    [RULE_TE_ROUND_UP] = "te_round_up",
    [RULE_OCP_FLOOR] = "ocp_floor",
    [RULE_AMAX] = "amax",
    [RULE_POW2] = "pow2",
};

const char *codec_rule_name(enum codec_rule r)
{
    return rule_names[r];
}

int codec_rule_find(const char *name, enum codec_rule *out)
{
    for (int i = 0; i < (int)(sizeof rule_names / sizeof rule_names[0]); i++)
        if (strcmp(name, rule_names[i]) == 0) {
            *out = (enum codec_rule)i;
            return 0;
        }
    return -1;
}

/* ---- casts ---- */

SIMD_BODY float load_f32(const void *x, enum glm_dtype from, int64_t i)
{
    if (from == GLM_F32)
        return ((const float *)x)[i];
    const uint16_t h = ((const uint16_t *)x)[i];
    return from == GLM_F16 ? f16_to_f32(h) : bf16_to_f32(h);
}

SIMD_BODY void cast_run(const void *restrict x, enum glm_dtype from, void *restrict y,
    enum glm_dtype to, int64_t n)
{
    if (to == GLM_F32)
        for (int64_t i = 0; i < n; i++)
            ((float *)y)[i] = load_f32(x, from, i);
    else if (to == GLM_F16)
        for (int64_t i = 0; i < n; i++)
            ((uint16_t *)y)[i] = f16_from_f32(load_f32(x, from, i));
    else
        for (int64_t i = 0; i < n; i++)
            ((uint16_t *)y)[i] = bf16_from_f32(load_f32(x, from, i));
}

/* Six pairs, each a loop of its own with constant types. */
SIMD_BODY void cast_any(const void *x, enum glm_dtype from, void *y, enum glm_dtype to, int64_t n)
{
    if (from == GLM_F32 && to == GLM_BF16)
        cast_run(x, GLM_F32, y, GLM_BF16, n);
    else if (from == GLM_F32)
        cast_run(x, GLM_F32, y, GLM_F16, n);
    else if (from == GLM_BF16 && to == GLM_F32)
        cast_run(x, GLM_BF16, y, GLM_F32, n);
    else if (from == GLM_BF16)
        cast_run(x, GLM_BF16, y, GLM_F16, n);
    else if (to == GLM_F32)
        cast_run(x, GLM_F16, y, GLM_F32, n);
    else
        cast_run(x, GLM_F16, y, GLM_BF16, n);
}

SIMD_AVX2 static void cast_avx2(const void *x, enum glm_dtype from, void *y, enum glm_dtype to,
    int64_t n)
{
    cast_any(x, from, y, to, n);
}

static bool castable(enum glm_dtype d)
{
    return d == GLM_F32 || d == GLM_F16 || d == GLM_BF16;
}

void codec_cast(const void *x, enum glm_dtype from, void *y, enum glm_dtype to, int64_t n)
{
    assert(castable(from) && castable(to));
    if (from == to)
        memcpy(y, x, (size_t)n * glm_dtype_size(from)); /* a signalling NaN stays as it is */
    else if (simd_avx2())
        cast_avx2(x, from, y, to, n);
    else
        cast_any(x, from, y, to, n);
}

/* ---- comparison ---- */

/* Widens n elements to double. */
static void load_f64(double *out, const void *x, enum glm_dtype type, int64_t at, int64_t n)
{
    if (type == GLM_F64) {
        memcpy(out, (const double *)x + at, sizeof(double) * (size_t)n);
        return;
    }
    assert(castable(type));
    for (int64_t i = 0; i < n; i++)
        out[i] = (double)load_f32(x, type, at + i);
}

static void compare_one(struct codec_error *e, double x, double y)
{
    if (!isfinite(x) || !isfinite(y)) {
        e->non_finite++;
        e->changed += !(x == y || (isnan(x) && isnan(y)));
        return;
    }
    const double d = fabs(y - x), ax = fabs(x);
    e->signal += x * x;
    if (d == 0)
        return;
    e->changed++;
    e->noise += d * d;
    e->max_abs = d > e->max_abs ? d : e->max_abs;
    if (ax != 0 && d / ax > e->max_rel)
        e->max_rel = d / ax;
}

void codec_compare(struct codec_error *e, const void *x, enum glm_dtype xt, const void *y,
    enum glm_dtype yt, int64_t n)
{
    enum { RUN = 256 };
    double a[RUN], b[RUN];

    for (int64_t at = 0; at < n; at += RUN) {
        const int64_t m = n - at < RUN ? n - at : RUN;
        load_f64(a, x, xt, at, m);
        load_f64(b, y, yt, at, m);
        for (int64_t i = 0; i < m; i++)
            compare_one(e, a[i], b[i]);
    }
    e->count += n;
}

void codec_error_add(struct codec_error *sum, const struct codec_error *part)
{
    sum->count += part->count;
    sum->changed += part->changed;
    sum->non_finite += part->non_finite;
    sum->max_abs = fmax(sum->max_abs, part->max_abs);
    sum->max_rel = fmax(sum->max_rel, part->max_rel);
    sum->signal += part->signal;
    sum->noise += part->noise;
}

double codec_snr_db(const struct codec_error *e)
{
    return e->noise == 0 ? INFINITY : 10 * log10(e->signal / e->noise);
}
