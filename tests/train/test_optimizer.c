/* The optimizer on a whole model: against an independent float64 implementation, and what it promises
 * of its rules, options and errors. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/models.h"
#include "tests/support/brief.h"
#include "tests/support/optmodel.h"
#include "tests/support/tmpdir.h"
#include "train/muon_plan.h"

static const struct kernels *cpu(void)
{
    return kernels_find("cpu");
}

/* ---- golden ----------------------------------------------------------------------------------- */

static double value(const void *p, enum glm_dtype type, int64_t i)
{
    return type == GLM_F64 ? ((const double *)p)[i] : (double)((const float *)p)[i];
}

/* The optimizer's moment of a tensor: opt/m or opt/momentum. */
static const void *moment(const struct train_tensors *state, const struct table_entry *e)
{
    for (int64_t i = 0; i < state->count; i++)
        if (state->list[i].entry == e && state->list[i].section != SECTION_V)
            return state->list[i].data;
    return NULL;
}

/* One line of the golden file: |w - w0|, then w and m at eight places. */
static double line_error(
    struct optmodel *x, const struct train_tensors *state, char *line)
{
    int64_t member;
    const size_t length = strcspn(line, " ");
    const struct table_entry *e = table_find(x->table, line, length, &member);
    cr_assert_not_null(e, "%.40s", line);
    const struct param *one = &x->p->p[e - x->table->entries];
    const void *m = moment(state, e);
    double expected[17], off[2] = {0}, most[2] = {0}, moved = 0;
    char *at = line + length;

    for (int k = 0; k < 17; k++)
        expected[k] = strtod(at, &at);
    for (int64_t i = 0; i < one->count; i++) {
        const double d = value(one->w, one->dtype, i)
            - (double)optmodel_uniform(e->name, "/w", i, 0.05f);
        moved += d * d;
    }
    for (int k = 0; k < 8; k++) {
        const int64_t i = k * one->count / 8;
        off[0] = fmax(off[0], fabs(value(one->w, one->dtype, i) - expected[1 + k]));
        most[0] = fmax(most[0], fabs(expected[1 + k]));
        if (m == NULL)
            continue;
        off[1] = fmax(off[1], fabs(value(m, x->p->acc, i) - expected[9 + k]));
        most[1] = fmax(most[1], fabs(expected[9 + k]));
    }
    const double e0 = fabs(sqrt(moved) / expected[0] - 1), e1 = off[0] / most[0];
    const double e2 = m != NULL ? off[1] / most[1] : 0;
    /* A router bias moves by steps of F32, however precise the rest is. */
    if (one->routed != NULL) {
        cr_assert_lt(e1, 1e-6, "%s: %g", e->name, e1);
        return 0;
    }
    return fmax(e0, fmax(e1, e2));
}

static void golden(const char *rules, const struct optimizer_options *o,
    enum glm_dtype dtype, double limit)
{
    struct optmodel x = optmodel_new(dtype, PARAMS_ALL, o);
    struct optimizer_report r[2];
    struct train_tensors state = {0};
    struct glm_error err = {0};
    char path[64], *rest = NULL;
    size_t size;
    int tensors = 0;
    double worst = 0;

    optmodel_steps(&x, 1, 1, NULL, &r[0]);
    optmodel_steps(&x, 2, 2, NULL, &r[1]);
    cr_assert_eq(optimizer_state(x.o, &state, &err), 0);
    snprintf(path, sizeof path, "fixtures/optimizer/model-%s.txt", rules);
    char *text = tmpdir_read(path, &size);
    char *line = strtok_r(text, "\n", &rest);
    for (int step = 0; step < 2; step++, line = strtok_r(NULL, "\n", &rest)) {
        double n[4];
        cr_assert_eq(sscanf(line, "norm %lf %lf %lf %lf", &n[0], &n[1], &n[2], &n[3]), 4);
        cr_assert_float_eq(
            r[step].norm / n[0], 1, 1e-12, "%.17g, expected %.17g", r[step].norm, n[0]);
        cr_assert_float_eq(r[step].clip / n[1], 1, 1e-12);
        cr_assert_lt(r[step].clip, 1);
        cr_assert_float_eq(r[step].mtp_norm, n[2], 1e-12 * n[2]);
        cr_assert_float_eq(r[step].mtp_clip / n[3], 1, 1e-12);
    }
    for (; line != NULL; line = strtok_r(NULL, "\n", &rest), tensors++) {
        const double error = line_error(&x, &state, line);
        cr_assert_lt(error, limit, "%.*s: relative error %g", (int)strcspn(line, " "),
            line, error);
        worst = fmax(worst, error);
    }
    cr_assert_eq(tensors, x.table->count);
    cr_log_info(
        "%s rules, %s: largest relative error %.2e", rules, glm_dtype_name(dtype), worst);
    free(text);
    tensors_clear(&state);
    optmodel_free(&x);
}

Test(optimizer, two_steps_of_a_model_are_those_of_an_independent_float64_reference,
    .timeout = 1800)
{
    const struct optimizer_options published = optimizer_defaults(),
                                   other = optmodel_other_rules();

    golden("published", &published, GLM_F32, 1e-5);
    golden("other", &other, GLM_F64, 1e-10);
    if (brief())
        return;
    golden("published", &published, GLM_F64, 1e-10);
    golden("other", &other, GLM_F32, 1e-5);
}

/* ---- which matrices --------------------------------------------------------------------------- */

static struct muon_plan planned(
    const struct table *t, const char *name, const struct optimizer_options *o)
{
    struct glm_error err = {0};
    struct muon_plan plan;
    int64_t member;

    cr_assert_eq(muon_plan(&plan, table_find(t, name, strlen(name), &member), o, &err), 0,
        "%s", err.text);
    return plan;
}

Test(optimizer, every_row_of_a_muon_tensor_is_in_one_matrix)
{
    const struct optimizer_options rules[] = {
        optimizer_defaults(), optmodel_other_rules()};
    struct table *t = models_table("tiny-a", false);

    for (int k = 0; k < 2; k++)
        for (int64_t i = 0; i < t->count; i++) {
            const struct table_entry *e = &t->entries[i];
            const struct muon_plan plan = planned(t, e->name, &rules[k]);
            const int64_t rows = e->grid.dims[0] * e->grid.dims[1];
            char *seen = calloc((size_t)rows, 1);
            if (!plan.muon) {
                free(seen);
                continue;
            }
            for (int n = 0; n < plan.count; n++) {
                const struct muon_call *c = &plan.call[n];
                for (int64_t b = 0; b < c->B; b++)
                    for (int64_t r = 0; r < c->R; r++) {
                        const int64_t at =
                            c->first + b * c->batch + r / c->run * c->leap + r % c->run;
                        cr_assert(at >= 0 && at < rows && !seen[at], "%s row %lld",
                            e->name, (long long)at);
                        seen[at] = 1;
                    }
            }
            cr_assert_null(memchr(seen, 0, (size_t)rows), "%s", e->name);
            free(seen);
        }
    table_free(t);
}

Test(optimizer, one_pattern_makes_adamw_of_everything)
{
    const struct muon_layout all = {"*", 0, {0}, {MUON_ADAMW}};
    struct optimizer_options o = optimizer_defaults();
    const struct params_options po = {.dtype = GLM_BF16, .trained = PARAMS_ALL};
    struct table *t = models_table("tiny-a", false);
    struct optimizer_bytes bytes;
    struct glm_error err = {0};

    o.layout = &all;
    o.layouts = 1;
    cr_assert_eq(optimizer_plan(&bytes, t, &po, &o, &err), 0, "%s", err.text);
    cr_assert_eq(bytes.muon, 0);
    cr_assert_gt(bytes.adamw, 0);
    table_free(t);
}

Test(optimizer, coefficient_sets_are_the_published_ones)
{
    struct optimizer_options o = optimizer_defaults();
    double c[MUON_STEPS][3];

    cr_assert_eq(muon_coefficient_list(&o, c), 5);
    cr_assert_eq(c[0][0], 4.0848);
    cr_assert_eq(c[4][2], 1.2012);
    o.muon_steps = 7;
    cr_assert_eq(muon_coefficient_list(&o, c), 7);
    cr_assert_eq(c[6][1], -3.0525);
    o.muon_steps = 0;
    o.muon_coefficients = MUON_DEEPSEEKV4;
    cr_assert_eq(muon_coefficient_list(&o, c), 10);
    cr_assert_eq(c[7][0], 3.4445);
    cr_assert_eq(c[8][0], 2);
    cr_assert_eq(c[9][2], 0.5);
}

/* ---- what is no number ------------------------------------------------------------------------ */

Test(optimizer, a_gradient_that_is_no_number_is_named_and_nothing_changes)
{
    const struct optimizer_options o = optimizer_defaults();
    const struct optimizer_step s = {.lr = 0.02, .decay = 0.1, .grad_scale = 1};
    struct optmodel x = optmodel_new(GLM_BF16, PARAMS_ALL, &o),
                    y = optmodel_new(GLM_BF16, PARAMS_ALL, &o);
    struct optimizer_report r;
    struct glm_error err = {0};
    const char *name = "model.layers.5.mlp.experts.down_proj.weight";
    int64_t member;
    const struct table_entry *e = table_find(x.table, name, strlen(name), &member);
    float *g = x.p->p[e - x.table->entries].grad;

    optmodel_gradients(&x, 1);
    g[(3 * e->shape[1] + 9) * e->shape[2] + 71] = NAN;
    g[(5 * e->shape[1] + 2) * e->shape[2]] = INFINITY;
    ((float *)x.p->p[x.p->count - 1].grad)[0] = INFINITY;
    cr_assert_eq(optimizer_update(x.o, &s, cpu(), NULL, &r, &err), GLM_EFORMAT);
    cr_assert(strstr(err.text,
                  "model.layers.5.mlp.experts.3.down_proj.weight, element [9,71], is nan")
            != NULL,
        "%s", err.text);
    optmodel_same(&x, &y, "after a failed step");
    const struct param *bias = NULL;
    for (int64_t i = 0; i < x.p->count && bias == NULL; i++)
        bias = x.p->p[i].routed != NULL ? &x.p->p[i] : NULL;
    cr_assert_not_null(bias);
    int64_t sum = 0;
    for (int64_t k = 0; k < bias->count; k++)
        sum += bias->routed[k];
    cr_assert_gt(sum, 0, "counts are kept");
    optmodel_free(&x);
    optmodel_free(&y);
}

Test(optimizer, an_infinity_in_a_vector_is_named)
{
    const struct optimizer_options o = optimizer_defaults();
    const struct optimizer_step s = {.lr = 0.02, .grad_scale = 1};
    struct optmodel x = optmodel_new(GLM_F64, PARAMS_ALL, &o);
    struct optimizer_report r;
    struct glm_error err = {0};
    int64_t at = 0;

    while (x.table->entries[at].rank != 1)
        at++;
    ((double *)x.p->p[at].grad)[4] = -INFINITY;
    cr_assert_eq(optimizer_update(x.o, &s, cpu(), NULL, &r, &err), GLM_EFORMAT);
    cr_assert(strstr(err.text, "layernorm.weight, element [4], is -inf") != NULL, "%s",
        err.text);
    glm_error_clear(&err);
    ((double *)x.p->p[at].grad)[4] = 1e200;
    cr_assert_eq(optimizer_update(x.o, &s, cpu(), NULL, &r, &err), GLM_EFORMAT);
    cr_assert(strstr(err.text, "overflows") != NULL, "%s", err.text);
    optmodel_free(&x);
}

/* ---- router bias ------------------------------------------------------------------------------ */

static void bias_moves(const int64_t routed[8], const int sign[8], bool fp32)
{
    struct optimizer_options o = optimizer_defaults();
    o.bias_fp32_count = fp32;
    struct optmodel x = optmodel_new(GLM_BF16, PARAMS_ALL, &o);
    const struct optimizer_step s = {.lr = 0, .grad_scale = 1};
    struct optimizer_report r;
    struct glm_error err = {0};

    for (int64_t i = 0; i < x.p->count; i++)
        if (x.p->p[i].routed != NULL) {
            memcpy(x.p->p[i].routed, routed, 8 * sizeof *routed);
            for (int k = 0; k < 8; k++)
                ((float *)x.p->p[i].w)[k] = 0.25f * (float)k;
        }
    cr_assert_eq(optimizer_update(x.o, &s, cpu(), NULL, &r, &err), 0, "%s", err.text);
    for (int64_t i = 0; i < x.p->count; i++)
        for (int k = 0; x.p->p[i].routed != NULL && k < 8; k++) {
            cr_assert_eq(((float *)x.p->p[i].w)[k],
                0.25f * (float)k + 1e-3f * (float)sign[k], "expert %d", k);
            cr_assert_eq(x.p->p[i].routed[k], routed[k]);
        }
    optmodel_free(&x);
}

Test(optimizer, a_bias_moves_against_the_load_and_rests_at_equality)
{
    bias_moves(
        (int64_t[]){4, 0, 5, 3, 4, 4, 8, 4}, (int[]){0, 1, -1, 1, 0, 0, -1, 0}, false);
    bias_moves(
        (int64_t[]){4, 0, 5, 3, 4, 4, 8, 4}, (int[]){0, 1, -1, 1, 0, 0, -1, 0}, true);
    bias_moves(
        (int64_t[]){7, 7, 7, 7, 7, 7, 7, 7}, (int[]){0, 0, 0, 0, 0, 0, 0, 0}, false);
    bias_moves(
        (int64_t[]){0, 0, 0, 0, 0, 0, 0, 1}, (int[]){1, 1, 1, 1, 1, 1, 1, -1}, false);
}

/* One token in 2^25 is seen by integers and lost by F32. */
Test(optimizer, counts_beyond_the_range_of_floats_are_exact)
{
    const int64_t n = 1 << 25;
    const int64_t routed[] = {n, n, n, n, n, n, n, n + 1};

    bias_moves(routed, (int[]){1, 1, 1, 1, 1, 1, 1, -1}, false);
    bias_moves(routed, (int[]){0, 0, 0, 0, 0, 0, 0, 0}, true);
}

/* ---- options ---------------------------------------------------------------------------------- */

static void refused(const struct optimizer_options *o, const char *words)
{
    struct table *t = models_table("tiny-a", false);
    const struct params_options po = {.dtype = GLM_F32, .trained = PARAMS_ALL};
    struct optimizer_bytes bytes;
    struct glm_error err = {0};

    cr_assert_eq(optimizer_plan(&bytes, t, &po, o, &err), GLM_EUSAGE);
    cr_assert(strstr(err.text, words) != NULL, "%s", err.text);
    table_free(t);
}

Test(optimizer, impossible_options_are_refused)
{
    struct optimizer_options o = optimizer_defaults();
    struct muon_layout l = {"*.q_b_proj.weight", 2, {24, 17}, {MUON_EACH, MUON_EACH}};

    o.muon_momentum = 1;
    refused(&o, "muon_momentum: 1, expected 0 or more and less than 1");
    o = optimizer_defaults();
    o.adam_beta2 = NAN;
    refused(&o, "adam_beta2: nan");
    o = optimizer_defaults();
    o.muon_steps = 33;
    refused(&o, "muon_num_ns_steps: 33");
    o = optimizer_defaults();
    o.layout = &l;
    o.layouts = 1;
    refused(&o, "parts of 41 rows together do not fill the 160 rows of");
    l = (struct muon_layout){"*.qb_proj.weight", 0, {0}, {MUON_EACH}};
    refused(&o, "'*.qb_proj.weight' matches no tensor");
    l = (struct muon_layout){"model.norm.weight", 0, {0}, {MUON_EACH}};
    refused(&o, "model.norm.weight, which is no matrix");
    l = (struct muon_layout){"lm_head.weight", 1, {0}, {MUON_EACH}};
    refused(&o, "has 0 rows");
    o = optimizer_defaults();
    o.no_decay = (const char *const[]){"*.typo"};
    o.no_decays = 1;
    refused(&o, "no_decay: '*.typo'");
}

Test(optimizer, decay_spares_what_is_excluded)
{
    struct optimizer_options o = optimizer_defaults();
    o.no_decay = (const char *const[]){"model.embed_tokens.weight"};
    o.no_decays = 1;
    struct optmodel x = optmodel_new(GLM_F32, PARAMS_ALL, &o);
    const struct optimizer_step s = {.lr = 0.5, .decay = 0.5, .grad_scale = 1};
    struct optimizer_report r;
    struct glm_error err = {0};

    /* Without gradients decay alone moves. */
    cr_assert_eq(optimizer_update(x.o, &s, cpu(), NULL, &r, &err), 0, "%s", err.text);
    for (int64_t i = 0; i < x.p->count; i++) {
        const struct table_entry *e = x.p->p[i].entry;
        const bool decays = e->rank > 1 && i > 0;
        for (int64_t k = 0; k < x.p->p[i].count; k++) {
            const float w = optmodel_uniform(e->name, "/w", k, 0.05f);
            cr_assert_float_eq(
                ((float *)x.p->p[i].w)[k], decays ? 0.75f * w : w, 1e-8, "%s", e->name);
        }
    }
    optmodel_free(&x);
}
