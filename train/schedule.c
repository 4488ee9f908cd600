#include "train/schedule.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "train/number.h"

static const double pi = 3.14159265358979323846;

static const char *const styles[] = {
    "constant", "linear", "cosine", "inverse-square-root", "WSD"};
static const char *const wsd_styles[] = {"exponential", "linear", "cosine", "minus_sqrt"};

int schedule_style_find(const char *name, enum schedule_style *out, struct glm_error *err)
{
    for (size_t i = 0; i < sizeof styles / sizeof *styles; i++)
        if (strcmp(name, styles[i]) == 0) {
            *out = (enum schedule_style)i;
            return 0;
        }
    return glm_fail(err, GLM_EUSAGE,
        "lr_decay_style: '%s', expected constant, linear, cosine, inverse-square-root or "
        "WSD",
        name);
}

int schedule_wsd_find(const char *name, enum schedule_wsd *out, struct glm_error *err)
{
    for (size_t i = 0; i < sizeof wsd_styles / sizeof *wsd_styles; i++)
        if (strcmp(name, wsd_styles[i]) == 0) {
            *out = (enum schedule_wsd)i;
            return 0;
        }
    return glm_fail(err, GLM_EUSAGE,
        "lr_wsd_decay_style: '%s', expected exponential, linear, cosine or minus_sqrt",
        name);
}

static int check_lr(const struct schedule *s, struct glm_error *err)
{
    /* Written so that a NaN is refused. */
    if (!(s->lr_min >= 0 && s->lr_min <= s->lr_max && isfinite(s->lr_max)))
        return glm_fail(err, GLM_EUSAGE,
            "learning rate: lr %g, min_lr %g, expected 0 <= min_lr <= lr", s->lr_max,
            s->lr_min);
    if (!(s->lr_init >= 0 && s->lr_init <= s->lr_max))
        return glm_fail(err, GLM_EUSAGE,
            "learning rate: lr_warmup_init %g, expected 0 to lr, %g", s->lr_init,
            s->lr_max);
    if (s->warmup < 0)
        return glm_fail(err, GLM_EUSAGE, "learning rate: a warm-up of %lld samples",
            (long long)s->warmup);
    if (s->style != SCHEDULE_CONSTANT && s->decay <= s->warmup)
        return glm_fail(err, GLM_EUSAGE,
            "learning rate: the warm-up of %lld samples must end before the decay does, "
            "at %lld",
            (long long)s->warmup, (long long)s->decay);
    if (s->style == SCHEDULE_WSD && (s->wsd < 1 || s->wsd > s->decay - s->warmup))
        return glm_fail(err, GLM_EUSAGE,
            "learning rate: WSD decays over %lld samples, expected 1 to %lld: what lies "
            "between "
            "warm-up and end",
            (long long)s->wsd, (long long)(s->decay - s->warmup));
    return 0;
}

int schedule_check(const struct schedule *s, struct glm_error *err)
{
    if (check_lr(s, err) != 0)
        return err->code;
    if (!(s->wd_start >= 0 && s->wd_start <= s->wd_end && isfinite(s->wd_end)))
        return glm_fail(err, GLM_EUSAGE,
            "weight decay: from %g to %g, expected 0 <= start <= end", s->wd_start,
            s->wd_end);
    if (s->wd_style == SCHEDULE_CONSTANT && s->wd_start < s->wd_end)
        return glm_fail(err, GLM_EUSAGE, "weight decay: constant, but from %g to %g",
            s->wd_start, s->wd_end);
    if (s->wd_style == SCHEDULE_INVERSE_SQRT || s->wd_style == SCHEDULE_WSD)
        return glm_fail(err, GLM_EUSAGE,
            "weight decay: style '%s', expected constant, linear or cosine",
            styles[s->wd_style]);
    if (s->wd_style != SCHEDULE_CONSTANT && s->wd_samples < 1)
        return glm_fail(err, GLM_EUSAGE, "weight decay: %lld samples from start to end",
            (long long)s->wd_samples);
    return 0;
}

static double wsd_part(const struct schedule *s, int64_t n)
{
    const int64_t start = s->decay - s->wsd;

    if (n <= start)
        return 1;
    const double y = (double)(n - start) / (double)s->wsd;
    switch (s->wsd_style) {
    case WSD_LINEAR:
        return 1 - y;
    case WSD_COSINE:
        return (1 + cos(pi * y)) / 2;
    case WSD_EXPONENTIAL:
        return 2 * pow(0.5, y) - 1;
    case WSD_MINUS_SQRT:
        break;
    }
    return 1 - sqrt(y);
}

double schedule_lr(const struct schedule *s, int64_t n)
{
    if (n <= s->warmup && s->warmup > 0)
        return s->lr_init + (s->lr_max - s->lr_init) * (double)n / (double)s->warmup;
    if (s->style == SCHEDULE_CONSTANT)
        return s->lr_max;
    if (n > s->decay)
        return s->lr_min;
    if (s->style == SCHEDULE_INVERSE_SQRT) {
        const int64_t w = s->warmup > 1 ? s->warmup : 1;
        return fmax(
            s->lr_min, s->lr_max * sqrt((double)w) / sqrt((double)(n > 1 ? n : 1)));
    }
    const double x = (double)(n - s->warmup) / (double)(s->decay - s->warmup);
    const double part = s->style == SCHEDULE_LINEAR ? 1 - x
        : s->style == SCHEDULE_COSINE               ? (1 + cos(pi * x)) / 2
                                                    : wsd_part(s, n);
    return s->lr_min + (s->lr_max - s->lr_min) * part;
}

double schedule_weight_decay(const struct schedule *s, int64_t n)
{
    if (s->wd_style == SCHEDULE_CONSTANT || n >= s->wd_samples)
        return s->wd_end;
    const double x = (double)n / (double)s->wd_samples;
    const double part = s->wd_style == SCHEDULE_LINEAR ? x : (1 - cos(pi * x)) / 2;
    return s->wd_start + (s->wd_end - s->wd_start) * part;
}

/* ---- in a checkpoint -------------------------------------------------------------------------- */

static const char *const numbers[SCHEDULE_NUMBERS] = {"lr", "min_lr", "lr_warmup_init",
    "warm-up samples", "decay samples", "WSD decay samples", "lr_decay_style",
    "lr_wsd_decay_style", "start_weight_decay", "end_weight_decay",
    "weight decay samples", "weight_decay_incr_style"};

void schedule_pack(const struct schedule *s, double out[SCHEDULE_NUMBERS])
{
    const double v[SCHEDULE_NUMBERS] = {s->lr_max, s->lr_min, s->lr_init,
        (double)s->warmup, (double)s->decay, (double)s->wsd, s->style, s->wsd_style,
        s->wd_start, s->wd_end, (double)s->wd_samples, s->wd_style};
    memcpy(out, v, sizeof v);
}

int schedule_same(const struct schedule *s, const double stored[SCHEDULE_NUMBERS],
    struct glm_error *err)
{
    double own[SCHEDULE_NUMBERS];
    char a[32], b[32];

    schedule_pack(s, own);
    for (int i = 0; i < SCHEDULE_NUMBERS; i++)
        if (memcmp(&own[i], &stored[i], sizeof own[i]) != 0)
            return glm_fail(err, GLM_EUSAGE,
                "schedule: %s is %s in the checkpoint and %s here; a run goes on with "
                "the "
                "schedule it began with",
                numbers[i], number_print(stored[i], a, sizeof a),
                number_print(own[i], b, sizeof b));
    return 0;
}
