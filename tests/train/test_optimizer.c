/* The optimizer on a whole model: against an independent float64 implementation, and what it promises
 * of bits, stages, norms, errors and its state. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/bf16.h"
#include "kernels/cpu/pool.h"
#include "tests/support/models.h"
#include "tests/support/rng.h"
#include "tests/support/tensorsckpt.h"
#include "tests/support/tmpdir.h"
#include "train/gradnorm.h"
#include "train/muon_plan.h"
#include "train/optimizer.h"

static const struct kernels *cpu(void)
{
    return kernels_find("cpu");
}

/* ---- inputs, as fixtures/make_optimizer_golden.py makes them ----------------------------------- */

static float uniform(const char *name, const char *array, int64_t i, float scale)
{
    uint64_t h = 0xcbf29ce484222325u;

    for (const char *s = name; *s != '\0'; s++)
        h = (h ^ (unsigned char)*s) * 0x100000001b3u;
    for (const char *s = array; *s != '\0'; s++)
        h = (h ^ (unsigned char)*s) * 0x100000001b3u;
    return (float)((double)(rng_mix(h + (uint64_t)i) >> 40) * 0x1p-24 * 2 - 1) * scale;
}

static void fill(const char *name, const char *array, float scale, enum glm_dtype type,
    int64_t n, void *out)
{
    for (int64_t i = 0; i < n; i++) {
        const float x = uniform(name, array, i, scale);
        tensors_cast(
            (char *)out + (size_t)i * glm_dtype_size(type), type, &x, GLM_F32, 1);
    }
}

struct model {
    struct table *table;
    struct params *p;
    struct optimizer *o;
};

static struct model begin(enum glm_dtype dtype, enum params_trained trained,
    const struct optimizer_options *options)
{
    struct model x = {.table = models_table("tiny-a", false)};
    const struct params_options po = {.dtype = dtype, .trained = trained};
    struct glm_error err = {0};

    cr_assert_eq(params_new(&x.p, x.table, &po, &err), 0, "%s", err.text);
    cr_assert_eq(optimizer_new(&x.o, x.p, options, &err), 0, "%s", err.text);
    for (int64_t i = 0; i < x.p->count; i++) {
        const struct param *one = &x.p->p[i];
        const bool own = one->master != NULL && one->master != one->w;
        fill(one->entry->name, "/w", 0.05f, own ? x.p->acc : one->dtype, one->count,
            own ? one->master : one->w);
        params_round(x.p, i, &err);
    }
    return x;
}

static void end(struct model *x)
{
    optimizer_free(x->o);
    params_free(x->p);
    table_free(x->table);
}

static void gradients(struct model *x, int step)
{
    char g[16], n[16];

    snprintf(g, sizeof g, "/g%d", step);
    snprintf(n, sizeof n, "/n%d", step);
    for (int64_t i = 0; i < x->p->count; i++) {
        const struct param *one = &x->p->p[i];
        if (one->grad != NULL)
            fill(one->entry->name, g, 0.01f, x->p->acc, one->count, one->grad);
        for (int64_t e = 0; one->routed != NULL && e < one->count; e++)
            one->routed[e] =
                (int64_t)floor(((double)uniform(one->entry->name, n, e, 1) + 1) * 5);
    }
}

static void steps(
    struct model *x, int from, int to, glm_stream stream, struct optimizer_report *report)
{
    const struct optimizer_step s = {.lr = 0.02, .decay = 0.1, .grad_scale = 0.5};
    struct glm_error err = {0};

    for (int step = from; step <= to; step++) {
        gradients(x, step);
        cr_assert_eq(
            optimizer_update(x->o, &s, cpu(), stream, report, &err), 0, "%s", err.text);
    }
}

/* ---- golden ----------------------------------------------------------------------------------- */

static const struct muon_layout other_layout[] = {
    {"*.mlp.gate.weight", 0, {0}, {MUON_ADAMW}},
    {"*.self_attn.q_b_proj.weight", 2, {24, 16}, {MUON_EACH, MUON_GATHERED}},
    {"*.kv_a_proj_with_mqa.weight", 2, {64, 16}, {MUON_EACH, MUON_EACH}},
    {"*.mlp.experts.down_proj.weight", 2, {20, 20}, {MUON_EACH, MUON_EACH}},
    {"lm_head.weight", 0, {0}, {MUON_EACH}}};

static struct optimizer_options other_rules(void)
{
    struct optimizer_options o = optimizer_defaults();

    o.muon_momentum = 0.9;
    o.muon_nesterov = true;
    o.muon_scale = MUON_SHAPE_SCALING;
    o.muon_extra_scale = 0.3;
    o.muon_coefficients = MUON_DEEPSEEKV4;
    o.muon_steps = 0;
    o.adam_beta1 = 0.8;
    o.adam_beta2 = 0.99;
    o.clip = 0.5;
    o.bias_rate = 2e-3;
    o.decay_vectors = true;
    o.mtp_apart = true;
    o.layout = other_layout;
    o.layouts = 5;
    return o;
}

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
static double line_error(struct model *x, const struct train_tensors *state, char *line)
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
        const double d =
            value(one->w, one->dtype, i) - (double)uniform(e->name, "/w", i, 0.05f);
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
    struct model x = begin(dtype, PARAMS_ALL, o);
    struct optimizer_report r[2];
    struct train_tensors state = {0};
    struct glm_error err = {0};
    char path[64], *rest = NULL;
    size_t size;
    int tensors = 0;
    double worst = 0;

    steps(&x, 1, 1, NULL, &r[0]);
    steps(&x, 2, 2, NULL, &r[1]);
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
    end(&x);
}

Test(optimizer, two_steps_of_a_model_are_those_of_an_independent_float64_reference,
    .timeout = 300)
{
    const struct optimizer_options published = optimizer_defaults(),
                                   other = other_rules();

    golden("published", &published, GLM_F32, 1e-5);
    golden("published", &published, GLM_F64, 1e-10);
    golden("other", &other, GLM_F32, 1e-5);
    golden("other", &other, GLM_F64, 1e-10);
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
    const struct optimizer_options rules[] = {optimizer_defaults(), other_rules()};
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

/* ---- bits ------------------------------------------------------------------------------------- */

static void same(const struct model *a, const struct model *b, const char *what)
{
    struct train_tensors s[2] = {{0}, {0}};
    struct glm_error err = {0};

    params_state(a->p, &s[0], &err);
    params_state(b->p, &s[1], &err);
    optimizer_state(a->o, &s[0], &err);
    optimizer_state(b->o, &s[1], &err);
    cr_assert_eq(err.code, GLM_OK);
    cr_assert_eq(s[0].count, s[1].count);
    for (int64_t i = 0; i < s[0].count; i++) {
        const struct train_tensor *x = &s[0].list[i], *y = &s[1].list[i];
        cr_assert_str_eq(x->name, y->name);
        cr_assert_eq(memcmp(x->data, y->data,
                         (size_t)tensors_elements(x) * glm_dtype_size(x->dtype)),
            0, "%s: %s/%s", what, section_name(x->section), x->name);
    }
    tensors_clear(&s[0]);
    tensors_clear(&s[1]);
}

static void same_with_threads(enum glm_dtype dtype, const struct optimizer_options *o)
{
    struct model first = begin(dtype, PARAMS_ALL, o);
    struct optimizer_report r0, r;
    struct glm_error err = {0};

    steps(&first, 1, 2, NULL, &r0);
    for (int threads = 1; threads <= 4; threads *= 2) {
        const glm_stream stream = cpu()->stream_new(threads, &err);
        struct model x = begin(dtype, PARAMS_ALL, o);
        steps(&x, 1, 2, stream, &r);
        cr_assert_eq(pool_used(stream), threads);
        cr_assert_eq(memcmp(&r, &r0, sizeof r), 0);
        same(&first, &x, "threads");
        end(&x);
        cpu()->stream_free(stream);
    }
    end(&first);
}

Test(optimizer, bits_do_not_depend_on_threads, .timeout = 300)
{
    const struct optimizer_options published = optimizer_defaults();
    struct optimizer_options other = other_rules();

    other.muon_low_precision = true;
    same_with_threads(GLM_BF16, &published);
    same_with_threads(GLM_F32, &other);
}

Test(optimizer, the_model_copy_is_the_rounded_master)
{
    const struct optimizer_options o = optimizer_defaults();
    struct model x = begin(GLM_BF16, PARAMS_ALL, &o);
    struct optimizer_report r;

    steps(&x, 1, 1, NULL, &r);
    for (int64_t i = 0; i < x.p->count; i++)
        for (int64_t k = 0; x.p->p[i].grad != NULL && k < x.p->p[i].count; k++)
            cr_assert_eq(((uint16_t *)x.p->p[i].w)[k],
                bf16_from_f32(((float *)x.p->p[i].master)[k]), "%s",
                x.p->p[i].entry->name);
    end(&x);
}

/* ---- norm ------------------------------------------------------------------------------------- */

/* Leaves in the hands of several owners, joined by addition in any order, give the same bits. */
Test(optimizer, the_norm_is_the_same_at_every_split_of_tiles_over_owners)
{
    const struct optimizer_options o = optimizer_defaults();
    struct model x = begin(GLM_F32, PARAMS_ALL, &o);
    struct optimizer_report r;

    steps(&x, 1, 1, NULL, &r);
    const int64_t *first = optimizer_leaf_index(x.o);
    const int64_t n = first[x.p->count];
    double *leaves = optimizer_leaf_array(x.o),
           *joined = malloc((size_t)n * sizeof *joined);
    signed char *group = malloc((size_t)x.p->count);
    for (int64_t i = 0; i < x.p->count; i++)
        group[i] = x.p->p[i].grad != NULL ? 0 : -1;
    cr_assert_gt(n, 2 * x.p->count);
    for (int owners = 1; owners <= 9; owners++) {
        uint64_t seed = (uint64_t)owners;
        double **part = malloc((size_t)owners * sizeof *part);
        for (int k = 0; k < owners; k++)
            part[k] = calloc((size_t)n, sizeof **part);
        for (int64_t i = 0; i < n; i++)
            part[rng_below(&seed, (uint64_t)owners)][i] = leaves[i];
        memset(joined, 0, (size_t)n * sizeof *joined);
        for (int k = owners - 1; k >= 0; k--) {
            for (int64_t i = 0; i < n; i++)
                joined[i] += part[k][i];
            free(part[k]);
        }
        free(part);
        cr_assert_eq(gradnorm_fold(joined, first, group, 0, x.p->count) * 0.5, r.norm);
    }
    free(joined);
    free(group);
    end(&x);
}

/* A leaf depends on its tile alone: the same from a cut-out rectangle. */
Test(optimizer, a_leaf_is_the_same_from_its_tile_alone)
{
    const struct optimizer_options o = optimizer_defaults();
    struct model x = begin(GLM_F32, PARAMS_ALL, &o);
    struct glm_error err = {0};
    int more = 0;

    gradients(&x, 1);
    for (int64_t i = 0; i < x.p->count; i++) {
        const struct param *one = &x.p->p[i];
        const struct tile_grid *g = &one->entry->grid;
        if (one->grad == NULL)
            continue;
        cr_assert_eq(optimizer_leaves(x.o, i, cpu(), NULL, &err), 0);
        for (int64_t k = 0; k < tile_count(g); k++) {
            const struct rect all = rect_whole(g->dims), at = tile_rect(g, k);
            const int64_t rows = rect_len(&at, 1), cols = rect_len(&at, 2);
            float *tile = malloc((size_t)rect_count(&at) * sizeof *tile);
            double leaf;
            region_copy(tile, &at, one->grad, &all, &at, sizeof *tile);
            const struct sum_squares p = {.out = &leaf,
                .x = tile,
                .B = 1,
                .R = rows,
                .C = cols,
                .row_stride = cols,
                .tile_rows = rows,
                .tile_cols = cols,
                .dtype = GLM_F32};
            cr_assert_eq(cpu_sum_squares(&p, NULL, &err), 0);
            cr_assert_eq(
                leaf, optimizer_leaf_array(x.o)[optimizer_leaf_index(x.o)[i] + k]);
            more += k > 0;
            free(tile);
        }
    }
    cr_assert_gt(more, 20);
    end(&x);
}

Test(optimizer, clipping_acts_above_the_limit_only)
{
    cr_assert_eq(gradnorm_clip(0.5, 1), 1);
    cr_assert_eq(gradnorm_clip(0, 1), 1);
    cr_assert_eq(gradnorm_clip(4, 0), 1);
    cr_assert_float_eq(gradnorm_clip(4, 1), 0.25, 1e-6);
    cr_assert_lt(gradnorm_clip(4, 1), 0.25);
    const double leaves[] = {1, 2, 3, 4, 5, 6, 7};
    cr_assert_eq(gradnorm_tree(leaves, 7), 28);
    cr_assert_eq(gradnorm_tree(leaves, 0), 0);
    /* ((1 + 1e-16) + (1e-16 + 1e-16)) loses less than a chain does. */
    const double small[] = {1, -1, 1e-16, 1e-16, 1e-16};
    cr_assert_eq(gradnorm_tree(small, 5), 2e-16 + 1e-16);
}

/* ---- what is no number ------------------------------------------------------------------------ */

Test(optimizer, a_gradient_that_is_no_number_is_named_and_nothing_changes)
{
    const struct optimizer_options o = optimizer_defaults();
    const struct optimizer_step s = {.lr = 0.02, .decay = 0.1, .grad_scale = 1};
    struct model x = begin(GLM_BF16, PARAMS_ALL, &o), y = begin(GLM_BF16, PARAMS_ALL, &o);
    struct optimizer_report r;
    struct glm_error err = {0};
    const char *name = "model.layers.5.mlp.experts.down_proj.weight";
    int64_t member;
    const struct table_entry *e = table_find(x.table, name, strlen(name), &member);
    float *g = x.p->p[e - x.table->entries].grad;

    gradients(&x, 1);
    g[(3 * e->shape[1] + 9) * e->shape[2] + 71] = NAN;
    g[(5 * e->shape[1] + 2) * e->shape[2]] = INFINITY;
    ((float *)x.p->p[x.p->count - 1].grad)[0] = INFINITY;
    cr_assert_eq(optimizer_update(x.o, &s, cpu(), NULL, &r, &err), GLM_EFORMAT);
    cr_assert(strstr(err.text,
                  "model.layers.5.mlp.experts.3.down_proj.weight, element [9,71], is nan")
            != NULL,
        "%s", err.text);
    same(&x, &y, "after a failed step");
    const struct param *bias = NULL;
    for (int64_t i = 0; i < x.p->count && bias == NULL; i++)
        bias = x.p->p[i].routed != NULL ? &x.p->p[i] : NULL;
    cr_assert_not_null(bias);
    int64_t sum = 0;
    for (int64_t k = 0; k < bias->count; k++)
        sum += bias->routed[k];
    cr_assert_gt(sum, 0, "counts are kept");
    end(&x);
    end(&y);
}

Test(optimizer, an_infinity_in_a_vector_is_named)
{
    const struct optimizer_options o = optimizer_defaults();
    const struct optimizer_step s = {.lr = 0.02, .grad_scale = 1};
    struct model x = begin(GLM_F64, PARAMS_ALL, &o);
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
    end(&x);
}

/* ---- router bias ------------------------------------------------------------------------------ */

static void bias_moves(const int64_t routed[8], const int sign[8], bool fp32)
{
    struct optimizer_options o = optimizer_defaults();
    o.bias_fp32_count = fp32;
    struct model x = begin(GLM_BF16, PARAMS_ALL, &o);
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
            cr_assert_eq(x.p->p[i].routed[k], 0);
        }
    end(&x);
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

/* ---- stages ----------------------------------------------------------------------------------- */

Test(optimizer, a_frozen_parameter_keeps_its_bits_and_has_no_state)
{
    const struct optimizer_options o = optimizer_defaults();
    struct model x = begin(GLM_BF16, PARAMS_INDEXER, &o),
                 y = begin(GLM_BF16, PARAMS_INDEXER, &o);
    struct train_tensors state = {0};
    struct optimizer_report r;
    struct glm_error err = {0};
    struct optimizer_bytes all, some;

    steps(&x, 1, 3, NULL, &r);
    for (int64_t i = 0; i < x.p->count; i++) {
        const struct param *a = &x.p->p[i], *b = &y.p->p[i];
        const bool equal =
            memcmp(a->w, b->w, (size_t)a->count * glm_dtype_size(a->dtype)) == 0;
        cr_assert_eq(equal, a->entry->kind != KIND_INDEXER, "%s", a->entry->name);
    }
    optimizer_state(x.o, &state, &err);
    cr_assert_eq(
        state.count, 5 * 3 + 5 * 2 * 2 + 2); /* 3 matrices, 2 vectors twice; train */
    const struct params_options whole = {.dtype = GLM_BF16, .trained = PARAMS_ALL};
    cr_assert_eq(optimizer_plan(&all, x.table, &whole, &o, &err), 0);
    cr_assert_eq(optimizer_plan(&some, x.table, &x.p->options, &o, &err), 0);
    cr_assert_lt(some.total, all.total / 4);
    tensors_clear(&state);
    end(&x);
    end(&y);
}

/* ---- state ------------------------------------------------------------------------------------ */

static struct reader *stored(struct model *x, const char *dir)
{
    struct train_tensors list = {0};
    struct glm_error err = {0};
    struct reader *r;

    params_state(x->p, &list, &err);
    optimizer_state(x->o, &list, &err);
    cr_assert_eq(tensorsckpt_write(
                     dir, "tiny-a", &list, &(struct topology){.pp = 2, .ep = 2}, &err),
        0, "%s", err.text);
    cr_assert_eq(reader_open(&r, dir, &err), 0, "%s", err.text);
    tensors_clear(&list);
    return r;
}

static void goes_on(enum glm_dtype dtype, const struct optimizer_options *o)
{
    struct model x = begin(dtype, PARAMS_ALL, o), y = begin(dtype, PARAMS_ALL, o);
    struct optimizer_report a, b;
    struct glm_error err = {0};
    char *dir = tmpdir_new(), *out = strdup(tmpdir_path(dir, "out"));

    steps(&x, 1, 2, NULL, &a);
    struct reader *r = stored(&x, out);
    cr_assert_eq(params_load(y.p, r, &err), 0, "%s", err.text);
    cr_assert_eq(optimizer_load(y.o, r, &err), 0, "%s", err.text);
    same(&x, &y, "loaded");
    steps(&x, 3, 4, NULL, &a);
    steps(&y, 3, 4, NULL, &b);
    cr_assert_eq(memcmp(&a, &b, sizeof a), 0);
    same(&x, &y, "two steps later");
    reader_close(r);
    end(&x);
    end(&y);
    free(out);
    tmpdir_remove(dir);
}

Test(optimizer, a_stored_run_goes_on_with_the_same_bits, .timeout = 300)
{
    const struct optimizer_options published = optimizer_defaults(),
                                   other = other_rules();

    goes_on(GLM_BF16, &published);
    goes_on(GLM_F32, &other);
}

Test(optimizer, other_options_than_the_checkpoints_are_refused)
{
    const struct optimizer_options o = other_rules();
    struct optimizer_options changed = o;
    struct model x = begin(GLM_F32, PARAMS_ALL, &o);
    struct glm_error err = {0};
    char *dir = tmpdir_new(), *out = strdup(tmpdir_path(dir, "out"));
    struct reader *r = stored(&x, out);

    changed.adam_beta2 = 0.95;
    struct model y = begin(GLM_F32, PARAMS_ALL, &changed);
    cr_assert_eq(optimizer_load(y.o, r, &err), GLM_EUSAGE);
    cr_assert(strstr(err.text,
                  "'adam_beta2 0.98999999999999999' in the checkpoint, 'adam_beta2 "
                  "0.94999999999999996' here")
            != NULL,
        "%s", err.text);
    end(&y);
    changed = o;
    changed.layouts = 4;
    y = begin(GLM_F32, PARAMS_ALL, &changed);
    glm_error_clear(&err);
    cr_assert_eq(optimizer_load(y.o, r, &err), GLM_EUSAGE);
    cr_assert(
        strstr(err.text, "muon_layout lm_head.weight whole") != NULL, "%s", err.text);
    reader_close(r);
    end(&x);
    end(&y);
    free(out);
    tmpdir_remove(dir);
}

Test(optimizer, what_becomes_trainable_begins_at_its_own_first_step)
{
    const struct optimizer_options o = optimizer_defaults();
    struct model x = begin(GLM_BF16, PARAMS_INDEXER, &o),
                 y = begin(GLM_BF16, PARAMS_ALL, &o);
    struct optimizer_report rep;
    struct train_tensors list = {0};
    struct glm_error err = {0};
    char *dir = tmpdir_new(), *out = strdup(tmpdir_path(dir, "out"));

    steps(&x, 1, 2, NULL, &rep);
    struct reader *r = stored(&x, out);
    steps(&y, 1, 1, NULL, &rep); /* loading must overwrite this */
    cr_assert_eq(optimizer_load(y.o, r, &err), 0, "%s", err.text);
    optimizer_state(y.o, &list, &err);
    const int64_t *counts = list.list[list.count - 1].data;
    for (int64_t i = 0; i < y.p->count; i++)
        cr_assert_eq(counts[i], y.table->entries[i].kind == KIND_INDEXER ? 2 : 0);
    for (int64_t i = 0; i < list.count; i++) {
        const struct train_tensor *t = &list.list[i];
        if (t->entry == NULL || t->entry->kind == KIND_INDEXER)
            continue;
        for (int64_t k = 0; k < tensors_elements(t); k++)
            cr_assert_eq(((float *)t->data)[k], 0, "%s", t->name);
    }
    tensors_clear(&list);
    reader_close(r);
    end(&x);
    end(&y);
    free(out);
    tmpdir_remove(dir);
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
    struct model x = begin(GLM_F32, PARAMS_ALL, &o);
    const struct optimizer_step s = {.lr = 0.5, .decay = 0.5, .grad_scale = 1};
    struct optimizer_report r;
    struct glm_error err = {0};

    /* Without gradients decay alone moves. */
    cr_assert_eq(optimizer_update(x.o, &s, cpu(), NULL, &r, &err), 0, "%s", err.text);
    for (int64_t i = 0; i < x.p->count; i++) {
        const struct table_entry *e = x.p->p[i].entry;
        const bool decays = e->rank > 1 && i > 0;
        for (int64_t k = 0; k < x.p->p[i].count; k++) {
            const float w = uniform(e->name, "/w", k, 0.05f);
            cr_assert_float_eq(
                ((float *)x.p->p[i].w)[k], decays ? 0.75f * w : w, 1e-8, "%s", e->name);
        }
    }
    end(&x);
}
