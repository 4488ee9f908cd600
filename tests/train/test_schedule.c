/* Schedules against closed forms at hand-picked samples, and what does not go together. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "train/schedule.h"

static const struct schedule base = {.lr_max = 1,
    .lr_min = 0.1,
    .lr_init = 0.2,
    .warmup = 100,
    .decay = 1100,
    .wsd = 400,
    .wd_start = 0.1,
    .wd_end = 0.1};

static struct schedule with(enum schedule_style style, enum schedule_wsd wsd)
{
    struct schedule s = base;
    s.style = style;
    s.wsd_style = wsd;
    return s;
}

static void at(const struct schedule *s, int64_t n, double expected)
{
    const double got = schedule_lr(s, n);
    cr_assert_float_eq(got, expected, 1e-15, "style %d/%d at %lld: %.17g, expected %.17g",
        (int)s->style, (int)s->wsd_style, (long long)n, got, expected);
}

Test(schedule, warms_up_along_a_line_with_every_style)
{
    for (int style = SCHEDULE_CONSTANT; style <= SCHEDULE_WSD; style++) {
        const struct schedule s = with((enum schedule_style)style, WSD_LINEAR);
        at(&s, 0, 0.2);
        at(&s, 25, 0.4);
        at(&s, 50, 0.6);
        at(&s, 100, 1);
    }
}

Test(schedule, without_warm_up_begins_at_the_maximum)
{
    for (int style = SCHEDULE_CONSTANT; style <= SCHEDULE_WSD; style++) {
        struct schedule s = with((enum schedule_style)style, WSD_LINEAR);
        s.warmup = 0;
        at(&s, 0, 1);
    }
}

Test(schedule, constant_stays)
{
    const struct schedule s = with(SCHEDULE_CONSTANT, WSD_LINEAR);
    at(&s, 101, 1);
    at(&s, 1000000000000, 1);
}

Test(schedule, linear_and_cosine_meet_their_closed_forms)
{
    const struct schedule line = with(SCHEDULE_LINEAR, WSD_LINEAR);
    const struct schedule wave = with(SCHEDULE_COSINE, WSD_LINEAR);

    at(&line, 350, 0.1 + 0.9 * 0.75);
    at(&line, 600, 0.55);
    at(&line, 1100, 0.1);
    at(&line, 1101, 0.1);
    at(&wave, 350, 0.1 + 0.9 * (1 + sqrt(0.5)) / 2);
    at(&wave, 600, 0.55);
    at(&wave, 1100, 0.1);
    at(&wave, 5000, 0.1);
    cr_assert_float_eq(
        schedule_lr(
            &(struct schedule){.lr_max = 1, .decay = 3, .style = SCHEDULE_COSINE}, 1),
        0.75, 1e-15);
}

Test(schedule, inverse_square_root_falls_to_the_minimum)
{
    const struct schedule s = with(SCHEDULE_INVERSE_SQRT, WSD_LINEAR);

    at(&s, 400, 0.5);
    at(&s, 900, 1.0 / 3);
    at(&s, 1101, 0.1);
    const struct schedule low = {
        .lr_max = 1, .lr_min = 0.4, .decay = 10000, .style = s.style};
    at(&low, 0, 1);
    at(&low, 4, 0.5);
    at(&low, 100, 0.4);
}

Test(schedule, wsd_is_flat_then_falls_by_its_style)
{
    static const struct {
        enum schedule_wsd style;
        double quarter, half;
    } rows[] = {{WSD_LINEAR, 0.75, 0.5}, {WSD_COSINE, 0.85355339059327376, 0.5},
        {WSD_EXPONENTIAL, 0.68179283050742909, 0.41421356237309503},
        {WSD_MINUS_SQRT, 0.5, 0.29289321881345254}};

    for (int i = 0; i < 4; i++) {
        const struct schedule s = with(SCHEDULE_WSD, rows[i].style);
        at(&s, 101, 1);
        at(&s, 700, 1);
        at(&s, 800, 0.1 + 0.9 * rows[i].quarter);
        at(&s, 900, 0.1 + 0.9 * rows[i].half);
        at(&s, 1100, 0.1);
        at(&s, 1200, 0.1);
    }
}

Test(schedule, weight_decay_grows_by_its_style)
{
    struct schedule s = base;

    cr_assert_eq(schedule_weight_decay(&s, 0), 0.1);
    s.wd_end = 0.3;
    s.wd_samples = 400;
    s.wd_style = SCHEDULE_LINEAR;
    cr_assert_float_eq(schedule_weight_decay(&s, 0), 0.1, 1e-15);
    cr_assert_float_eq(schedule_weight_decay(&s, 100), 0.15, 1e-15);
    cr_assert_float_eq(schedule_weight_decay(&s, 400), 0.3, 1e-15);
    cr_assert_float_eq(schedule_weight_decay(&s, 4000), 0.3, 1e-15);
    s.wd_style = SCHEDULE_COSINE;
    cr_assert_float_eq(
        schedule_weight_decay(&s, 100), 0.1 + 0.2 * (1 - sqrt(0.5)) / 2, 1e-15);
    cr_assert_float_eq(schedule_weight_decay(&s, 200), 0.2, 1e-15);
}

static void refused(const struct schedule *s, const char *words)
{
    struct glm_error err = {0};
    cr_assert_eq(schedule_check(s, &err), GLM_EUSAGE);
    cr_assert(strstr(err.text, words) != NULL, "%s", err.text);
}

Test(schedule, what_does_not_go_together_is_refused)
{
    struct glm_error err = {0};
    struct schedule s = base;

    cr_assert_eq(schedule_check(&s, &err), 0, "%s", err.text);
    s.lr_min = 2;
    refused(&s, "min_lr 2");
    s = base;
    s.lr_max = NAN;
    refused(&s, "lr nan");
    s = base;
    s.lr_init = 1.5;
    refused(&s, "lr_warmup_init 1.5");
    s = with(SCHEDULE_COSINE, WSD_LINEAR);
    s.decay = 100;
    refused(&s, "warm-up of 100 samples must end");
    s = with(SCHEDULE_WSD, WSD_LINEAR);
    s.wsd = 1001;
    refused(&s, "WSD decays over 1001 samples, expected 1 to 1000");
    s = base;
    s.wd_end = 0.2;
    refused(&s, "constant, but from 0.1 to 0.2");
    s.wd_style = SCHEDULE_LINEAR;
    refused(&s, "0 samples from start to end");
    s.wd_style = SCHEDULE_WSD;
    refused(&s, "style 'WSD'");
}

Test(schedule, names_are_the_recipes)
{
    struct glm_error err = {0};
    enum schedule_style style;
    enum schedule_wsd wsd;

    cr_assert_eq(schedule_style_find("inverse-square-root", &style, &err), 0);
    cr_assert_eq(style, SCHEDULE_INVERSE_SQRT);
    cr_assert_eq(schedule_style_find("WSD", &style, &err), 0);
    cr_assert_eq(style, SCHEDULE_WSD);
    cr_assert_eq(schedule_wsd_find("minus_sqrt", &wsd, &err), 0);
    cr_assert_eq(wsd, WSD_MINUS_SQRT);
    cr_assert_eq(schedule_style_find("wsd", &style, &err), GLM_EUSAGE);
    cr_assert(strstr(err.text, "'wsd'") != NULL, "%s", err.text);
}

Test(schedule, a_stored_schedule_must_be_the_same)
{
    struct glm_error err = {0};
    struct schedule s = with(SCHEDULE_WSD, WSD_COSINE);
    double stored[SCHEDULE_NUMBERS];

    schedule_pack(&s, stored);
    cr_assert_eq(schedule_same(&s, stored, &err), 0, "%s", err.text);
    s.decay = 1200;
    cr_assert_eq(schedule_same(&s, stored, &err), GLM_EUSAGE);
    cr_assert(
        strstr(err.text, "decay samples is 1100 in the checkpoint and 1200 here") != NULL,
        "%s", err.text);
}
