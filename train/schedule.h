/* Learning rate and weight decay as functions of the samples consumed (spec/training.md 5.5). Pure.
 *
 * The rate of a step is that at n = samples consumed before it. n <= warmup: a line from init to max;
 * then with x = (n - warmup) / (decay - warmup) by style, and min behind decay:
 *     constant   max, for ever            linear   max - x (max - min)
 *     cosine     min + (max - min) (1 + cos(pi x)) / 2
 *     inverse square root   max(min, max sqrt(warmup / n)), warmup and n at least 1
 *     WSD        max until decay - wsd; then min + (max - min) f(y), y = the part of wsd gone by:
 *                linear 1 - y, cosine (1 + cos(pi y)) / 2, exponential 2 * 0.5^y - 1,
 *                minus sqrt 1 - sqrt(y)
 * Weight decay goes from its start to its end over decay_steps samples: constant, linear, cosine. */
#ifndef TRAIN_SCHEDULE_H
#define TRAIN_SCHEDULE_H

#include <stdint.h>

#include "kernels/base/error.h"

enum schedule_style {
    SCHEDULE_CONSTANT,
    SCHEDULE_LINEAR,
    SCHEDULE_COSINE,
    SCHEDULE_INVERSE_SQRT,
    SCHEDULE_WSD
};
enum schedule_wsd { WSD_EXPONENTIAL, WSD_LINEAR, WSD_COSINE, WSD_MINUS_SQRT };

struct schedule {
    double lr_max, lr_min, lr_init;
    /* samples; decay counts from the start and has no use with constant */
    int64_t warmup, decay;
    int64_t wsd; /* samples of WSD's last part */
    enum schedule_style style;
    enum schedule_wsd wsd_style;
    double wd_start, wd_end;
    int64_t wd_samples;
    enum schedule_style wd_style; /* constant, linear or cosine */
};

/* Names are the recipe's: "constant", "linear", "cosine", "inverse-square-root", "WSD";
 * "exponential", "linear", "cosine", "minus_sqrt". GLM_EUSAGE names the choices. */
int schedule_style_find(
    const char *name, enum schedule_style *out, struct glm_error *err);
int schedule_wsd_find(const char *name, enum schedule_wsd *out, struct glm_error *err);

/* GLM_EUSAGE names the two values that do not go together. */
int schedule_check(const struct schedule *s, struct glm_error *err);

double schedule_lr(const struct schedule *s, int64_t samples);
double schedule_weight_decay(const struct schedule *s, int64_t samples);

/* The schedule as numbers, for section train of a checkpoint. */
enum { SCHEDULE_NUMBERS = 12 };
void schedule_pack(const struct schedule *s, double out[SCHEDULE_NUMBERS]);
/* A checkpoint goes on by the schedule it was made with: GLM_EUSAGE names the first number that
 * differs, with both values. */
int schedule_same(const struct schedule *s, const double stored[SCHEDULE_NUMBERS],
    struct glm_error *err);

#endif
