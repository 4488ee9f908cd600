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
SIMD_BODY void cast_any(
    const void *x, enum glm_dtype from, void *y, enum glm_dtype to, int64_t n)
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

SIMD_AVX2 static void cast_avx2(
    const void *x, enum glm_dtype from, void *y, enum glm_dtype to, int64_t n)
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
    if (from == to) /* even a signalling NaN stays as it is */
        memcpy(y, x, (size_t)n * glm_dtype_size(from));
    else if (simd_avx2())
        cast_avx2(x, from, y, to, n);
    else
        cast_any(x, from, y, to, n);
}

/* ---- comparison ---- */

/* Sums run in eight lanes, element i of a call in lane i mod 8, added as a tree at its end: eight
 * additions are under way at a time, and the order depends on the position alone. */
enum { LANES = 8, RUN = 256 };

struct lanes {
    double signal[LANES], noise[LANES], max_abs[LANES], max_rel[LANES];
};

/* Widens n elements to double, zeros behind them. */
SIMD_BODY void load_run(
    double *restrict out, const void *x, enum glm_dtype type, int64_t at, int64_t n)
{
    memset(out, 0, sizeof(double) * RUN);
    if (type == GLM_F64)
        memcpy(out, (const double *)x + at, sizeof(double) * (size_t)n);
    else if (type == GLM_F32)
        for (int64_t i = 0; i < n; i++)
            out[i] = (double)load_f32(x, GLM_F32, at + i);
    else if (type == GLM_BF16)
        for (int64_t i = 0; i < n; i++)
            out[i] = (double)load_f32(x, GLM_BF16, at + i);
    else
        for (int64_t i = 0; i < n; i++)
            out[i] = (double)load_f32(x, GLM_F16, at + i);
}

/* Counts pairs with a NaN or an infinity and takes them out of the run. */
static void set_aside(struct codec_error *e, double *a, double *b)
{
    for (int i = 0; i < RUN; i++)
        if (!isfinite(a[i]) || !isfinite(b[i])) {
            e->non_finite++;
            e->changed += !(a[i] == b[i] || (isnan(a[i]) && isnan(b[i])));
            a[i] = b[i] = 0;
        }
}

SIMD_BODY void add_run(
    struct codec_error *e, struct lanes *sum, double *restrict a, double *restrict b)
{
    struct lanes s = *sum; /* a copy of its own stays in registers */
    int64_t changed = 0;
    int wild = 0;

    for (int i = 0; i < RUN; i++)
        wild |= !(fabs(a[i]) < INFINITY) | !(fabs(b[i]) < INFINITY);
    if (wild)
        set_aside(e, a, b);
    for (int i = 0; i < RUN; i++)
        changed += a[i] != b[i];
    e->changed += changed;
    for (int i = 0; i < RUN; i += LANES)
        for (int k = 0; k < LANES; k++) {
            const double x = a[i + k], d = fabs(b[i + k] - x), ax = fabs(x);
            const double rel = d / (ax > 0 ? ax : INFINITY);
            s.signal[k] += x * x;
            s.noise[k] += d * d;
            s.max_abs[k] = d > s.max_abs[k] ? d : s.max_abs[k];
            s.max_rel[k] = rel > s.max_rel[k] ? rel : s.max_rel[k];
        }
    *sum = s;
}

SIMD_BODY void compare_any(struct codec_error *e, struct lanes *sum, const void *x,
    enum glm_dtype xt, const void *y, enum glm_dtype yt, int64_t n)
{
    double a[RUN], b[RUN];

    for (int64_t at = 0; at < n; at += RUN) {
        const int64_t m = n - at < RUN ? n - at : RUN;
        load_run(a, x, xt, at, m);
        load_run(b, y, yt, at, m);
        add_run(e, sum, a, b);
    }
}

SIMD_AVX2 static void compare_avx2(struct codec_error *e, struct lanes *sum,
    const void *x, enum glm_dtype xt, const void *y, enum glm_dtype yt, int64_t n)
{
    compare_any(e, sum, x, xt, y, yt, n);
}

static double tree(const double v[LANES])
{
    return ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
}

void codec_compare(struct codec_error *e, const void *x, enum glm_dtype xt, const void *y,
    enum glm_dtype yt, int64_t n)
{
    struct lanes sum = {0};

    assert((castable(xt) || xt == GLM_F64) && (castable(yt) || yt == GLM_F64));
    if (simd_avx2())
        compare_avx2(e, &sum, x, xt, y, yt, n);
    else
        compare_any(e, &sum, x, xt, y, yt, n);
    e->count += n;
    e->signal += tree(sum.signal);
    e->noise += tree(sum.noise);
    for (int k = 0; k < LANES; k++) {
        e->max_abs = fmax(e->max_abs, sum.max_abs[k]);
        e->max_rel = fmax(e->max_rel, sum.max_rel[k]);
    }
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
