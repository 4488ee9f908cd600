#include "tests/support/optmodel.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/models.h"
#include "tests/support/rng.h"

float optmodel_uniform(const char *name, const char *array, int64_t i, float scale)
{
    const uint64_t h = rng_text(rng_text(RNG_TEXT, name), array);

    return (float)rng_unit(rng_mix(h + (uint64_t)i)) * scale;
}

static void fill(const char *name, const char *array, float scale, enum glm_dtype type,
    int64_t n, void *out)
{
    for (int64_t i = 0; i < n; i++) {
        const float x = optmodel_uniform(name, array, i, scale);
        tensors_cast(
            (char *)out + (size_t)i * glm_dtype_size(type), type, &x, GLM_F32, 1);
    }
}

struct optmodel optmodel_new(enum glm_dtype dtype, enum params_trained trained,
    const struct optimizer_options *options)
{
    struct optmodel x = {.table = models_table("tiny-a", false)};
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

void optmodel_free(struct optmodel *x)
{
    optimizer_free(x->o);
    params_free(x->p);
    table_free(x->table);
}

void optmodel_gradients(struct optmodel *x, int step)
{
    char g[16], n[16];

    snprintf(g, sizeof g, "/g%d", step);
    snprintf(n, sizeof n, "/n%d", step);
    for (int64_t i = 0; i < x->p->count; i++) {
        const struct param *one = &x->p->p[i];
        if (one->grad != NULL)
            fill(one->entry->name, g, 0.01f, x->p->acc, one->count, one->grad);
        for (int64_t e = 0; one->routed != NULL && e < one->count; e++)
            one->routed[e] = (int64_t)floor(
                ((double)optmodel_uniform(one->entry->name, n, e, 1) + 1) * 5);
    }
}

void optmodel_steps(struct optmodel *x, int from, int to, glm_stream stream,
    struct optimizer_report *report)
{
    const struct optimizer_step s = {.lr = 0.02, .decay = 0.1, .grad_scale = 0.5};
    struct glm_error err = {0};

    for (int step = from; step <= to; step++) {
        optmodel_gradients(x, step);
        cr_assert_eq(
            optimizer_update(x->o, &s, kernels_find("cpu"), stream, report, &err), 0,
            "%s", err.text);
    }
}

void optmodel_same(const struct optmodel *a, const struct optmodel *b, const char *what)
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

static const struct muon_layout other_layout[] = {
    {"*.mlp.gate.weight", 0, {0}, {MUON_ADAMW}},
    {"*.self_attn.q_b_proj.weight", 2, {24, 16}, {MUON_EACH, MUON_GATHERED}},
    {"*.kv_a_proj_with_mqa.weight", 2, {64, 16}, {MUON_EACH, MUON_EACH}},
    {"*.mlp.experts.down_proj.weight", 2, {20, 20}, {MUON_EACH, MUON_EACH}},
    {"lm_head.weight", 0, {0}, {MUON_EACH}}};

struct optimizer_options optmodel_other_rules(void)
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
