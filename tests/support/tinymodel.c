/* Weights by rule, so that no test needs a file of them. */
#include "tests/support/tinymodel.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/bf16.h"
#include "kernels/base/random.h"
#include "tests/support/tiny.h"

static void need(const struct glm_error *err)
{
    if (err->code == GLM_OK)
        return;
    fprintf(stderr, "%s\n", err->text);
    abort();
}

static void *zeros(size_t n, size_t size)
{
    void *p = calloc(n > 0 ? n : 1, size);
    if (!p)
        abort();
    return p;
}

int64_t tinymodel_count(const struct tinymodel *t, int64_t i)
{
    const struct table_entry *e = &t->table->entries[i];
    int64_t n = 1;
    for (int d = 0; d < e->rank; d++)
        n *= e->shape[d];
    return n;
}

enum glm_dtype tinymodel_type(const struct tinymodel *t, int64_t i)
{
    return t->table->entries[i].optimizer == OPT_ROUTER_BIAS ? GLM_F32 : t->dtype;
}

static void put(enum glm_dtype type, void *out, int64_t i, float x)
{
    if (type == GLM_F32)
        ((float *)out)[i] = x;
    else if (type == GLM_F64)
        ((double *)out)[i] = (double)x;
    else
        ((uint16_t *)out)[i] = bf16_from_f32(x);
}

static void fill(struct tinymodel *t, int64_t i, uint32_t seed, bool small, void *out)
{
    const struct table_entry *e = &t->table->entries[i];
    const int64_t members = table_members(e), n = tinymodel_count(t, i) / members;
    float *v = zeros((size_t)n, sizeof *v);
    for (int64_t m = 0; m < members; m++) {
        char name[256];
        table_member_name(e, e->stack ? m : -1, name, sizeof name);
        tiny_values(seed, small, name, e->shape[e->rank - 1], 0, n, v);
        for (int64_t k = 0; k < n; k++)
            put(tinymodel_type(t, i), out, m * n + k, v[k]);
    }
    free(v);
}

struct tinymodel *tinymodel_new(const char *config, uint32_t seed, bool small_latents,
    enum glm_dtype dtype, bool drop_mtp)
{
    struct glm_error err = {0};
    struct model_config c;
    struct tinymodel *t = zeros(1, sizeof *t);
    t->dtype = dtype;
    t->acc = dtype == GLM_F64 ? GLM_F64 : GLM_F32;
    config_parse(&c, "config", config, strlen(config), &err);
    need(&err);
    table_build(&t->table, &c, drop_mtp, &err);
    need(&err);
    t->params = zeros((size_t)t->table->count, sizeof *t->params);
    for (int64_t i = 0; i < t->table->count; i++) {
        const size_t n = (size_t)tinymodel_count(t, i);
        void *w = zeros(n, glm_dtype_size(tinymodel_type(t, i)));
        fill(t, i, seed, small_latents, w);
        t->params[i].w = w;
        if (t->table->entries[i].optimizer != OPT_ROUTER_BIAS)
            t->params[i].dw = zeros(n, glm_dtype_size(t->acc));
    }
    return t;
}

void tinymodel_free(struct tinymodel *t)
{
    for (int64_t i = 0; i < t->table->count; i++) {
        free((void *)(uintptr_t)t->params[i].w);
        free(t->params[i].dw);
    }
    free(t->params);
    table_free(t->table);
    free(t);
}

void tinymodel_zero_grads(struct tinymodel *t)
{
    for (int64_t i = 0; i < t->table->count; i++)
        if (t->params[i].dw)
            memset(t->params[i].dw, 0,
                (size_t)tinymodel_count(t, i) * glm_dtype_size(t->acc));
}

struct model *tinymodel_model(
    struct tinymodel *t, const struct model_options *o, glm_stream stream)
{
    struct glm_error err = {0};
    struct model *m = NULL;
    model_new(&m, t->table, t->params, o, kernels_find("cpu"), stream, &err);
    need(&err);
    return m;
}

struct tinybatch tinybatch_new(const int *lengths, int64_t vocab, uint32_t seed)
{
    int64_t S = 0, T = 0;
    while (lengths[S] > 0)
        T += lengths[S++];
    int32_t *memory = zeros((size_t)(3 * T + S + 1), sizeof *memory);
    int32_t *ids = memory, *positions = ids + T, *targets = positions + T,
            *cu = targets + T;
    int32_t at = 0;
    for (int64_t s = 0; s < S; s++) {
        uint32_t bits[4];
        cu[s] = at;
        for (int k = 0; k < lengths[s]; k++) {
            philox4x32_10((uint32_t[4]){(uint32_t)k, (uint32_t)lengths[s], 0, 0},
                (uint32_t[2]){seed, 7}, bits);
            ids[at + k] = k == 2 ? 0 : (int32_t)(bits[0] % (uint32_t)vocab);
            positions[at + k] = k + (int32_t)(100 * s);
            targets[at + k] = -100;
            if (k > 0 && bits[1] % 8 != 0)
                targets[at + k - 1] = ids[at + k];
        }
        at += lengths[s];
    }
    cu[S] = at;
    return (struct tinybatch){.memory = memory,
        .batch = {.tokens = T,
            .sequences = S,
            .ids = ids,
            .positions = positions,
            .targets = targets,
            .cu_seqlens = cu}};
}

void tinybatch_free(struct tinybatch *b)
{
    free(b->memory);
    b->memory = NULL;
}
