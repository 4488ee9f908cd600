/* The whole model's gradients against central differences: the shipped source in double, with the
 * index and expert sets of the first forward replayed. A small configuration in three forms, and
 * tiny-a itself, of which a run of all tests takes two entries of every tensor; the environment's
 * GRADIENT_ENTRIES=20, as tests/long/test_gradients.sh has it, takes the whole sample; brief runs take
 * one entry of some tensors. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/base/random.h"
#include "tests/support/brief.h"
#include "tests/support/models.h"
#include "tests/support/opdata.h"
#include "tests/support/tinymodel.h"

/* All kinds of layers: dense and MoE, with an indexer and sharing one, groups; all dims different. */
static const char *const CONFIG =
    "{\"model_type\": \"glm_moe_dsa\", \"vocab_size\": 23, \"hidden_size\": 20,"
    " \"intermediate_size\": 22, \"moe_intermediate_size\": 9, \"num_hidden_layers\": 6,"
    " \"first_k_dense_replace\": 2,"
    " \"mlp_layer_types\": [\"dense\", \"dense\", \"sparse\", \"sparse\", \"sparse\", "
    "\"sparse\"],"
    " \"num_attention_heads\": 3, \"num_key_value_heads\": 3, \"q_lora_rank\": 12,"
    " \"kv_lora_rank\": 10, \"qk_nope_head_dim\": 6, \"qk_rope_head_dim\": 4, "
    "\"v_head_dim\": 5,"
    " \"n_routed_experts\": 8, \"num_experts_per_tok\": 3, \"n_shared_experts\": %d,"
    " \"n_group\": 4, \"topk_group\": 2, \"norm_topk_prob\": %s, "
    "\"routed_scaling_factor\": 2.5,"
    " \"index_n_heads\": 7, \"index_head_dim\": 8, \"index_topk\": 5,"
    " \"indexer_types\": [\"full\", \"shared\", \"full\", \"shared\", \"shared\", "
    "\"full\"],"
    " \"rope_parameters\": {\"rope_theta\": 10000.0, \"rope_type\": \"default\"},"
    " \"rms_norm_eps\": 1e-5, \"max_position_embeddings\": 256, \"pad_token_id\": 0,"
    " \"num_nextn_predict_layers\": 1, \"dtype\": \"float32\"}";

enum { ENTRIES = 20, MOST_LAYERS = 16 };
static const double STEP = 2e-5;

struct differ {
    struct tinymodel *t;
    struct model *m; /* for inference: its forward gives every loss */
    struct model_batch b;
    struct model_replay replay;
    struct model_scale scale;
    const struct model_options *o;
    uint32_t entries; /* of a tensor */
    int64_t leap;     /* between tensors with differences */
};

/* kl: the indexer's part alone; it sees the rest of the model as a constant, which the differences
 * of the rest's parameters would not. */
static double loss(struct differ *d, bool kl)
{
    struct glm_error err = {0};
    double sum = 0;
    cr_assert_eq(model_forward(d->m, &d->b, &d->replay, &err), 0, "%s", err.text);
    const struct model_losses *l = model_losses(d->m);
    for (int64_t i = 0; i < l->layers; i++)
        sum += l->indexer_sum[i];
    return kl ? d->scale.indexer * d->o->indexer_coeff * sum
              : d->scale.lm * l->lm_sum + d->scale.mtp * d->o->mtp_coeff * l->mtp_sum;
}

static double difference(struct differ *d, int64_t i, int64_t at, bool kl)
{
    double *w = (double *)(uintptr_t)d->t->params[i].w + at;
    const double x = *w;
    *w = x + STEP;
    const double up = loss(d, kl);
    *w = x - STEP;
    const double down = loss(d, kl);
    *w = x;
    return (up - down) / (2 * STEP);
}

static void check_tensor(struct differ *d, int64_t i)
{
    const struct table_entry *e = &d->t->table->entries[i];
    const bool indexer = e->kind == KIND_INDEXER;
    const struct random_stream s = random_open(1, "entries", e->name);
    const double *g = d->t->params[i].dw;
    const int64_t n = tinymodel_count(d->t, i);
    double largest = 0;
    for (int64_t k = 0; k < n; k++)
        largest = fabs(g[k]) > largest ? fabs(g[k]) : largest;
    if (indexer && d->o->indexer_loss == MODEL_INDEXER_OFF) {
        cr_expect_eq(largest, 0, "%s has a gradient without its loss", e->name);
        return;
    }
    cr_expect_gt(largest, 0, "%s has no gradient", e->name);
    for (uint32_t k = 0; k < (i % d->leap == 0 ? d->entries : 0); k++) {
        uint32_t x[4];
        philox4x32_10((uint32_t[4]){k, 0, s.name[0], s.name[1]}, s.key, x);
        const int64_t at = (int64_t)x[0] % n;
        const double want = difference(d, i, at, indexer), off = fabs(g[at] - want);
        cr_expect(off <= 1e-6 * largest + 1e-9,
            "%s[%lld]: gradient %.12g, difference %.12g", e->name, (long long)at, g[at],
            want);
    }
}

/* Copies of the sets of the last forward. */
static void record(const struct model *m, const struct tinymodel *t, int64_t T,
    int32_t **index, int32_t **expert)
{
    for (int64_t i = 0; i < model_losses(m)->layers; i++) {
        const size_t K = (size_t)(T * model_keys(m));
        const size_t E = (size_t)(T * t->table->config.num_experts_per_tok);
        index[i] = expert[i] = NULL;
        if (model_index(m, i)) {
            index[i] = malloc(K * sizeof **index);
            for (size_t k = 0; k < K; k++)
                index[i][k] = model_index(m, i)[k];
        }
        if (model_expert(m, i)) {
            expert[i] = malloc(E * sizeof **expert);
            for (size_t k = 0; k < E; k++)
                expert[i][k] = model_expert(m, i)[k];
        }
    }
}

static void check(const char *config, int64_t vocab, uint32_t entries, int64_t leap,
    struct model_options o)
{
    struct glm_error err = {0};
    int32_t *index[MOST_LAYERS], *expert[MOST_LAYERS];
    struct model *m;
    struct tinybatch b = tinybatch_new((int[]){13, 8, 0}, vocab, 5);
    o.dtype = GLM_F64;
    o.max_tokens = b.batch.tokens;
    o.max_sequences = b.batch.sequences;
    o.mtp = true;
    o.mtp_coeff = 0.4;
    o.indexer_coeff = 0.7;
    struct differ d = {.t = tinymodel_new(config, 9, false, GLM_F64, false),
        .b = b.batch,
        .o = &o,
        .entries = entries,
        .leap = leap,
        .scale = {.lm = 0.06, .mtp = 0.08, .indexer = 0.05}};
    m = tinymodel_model(d.t, &o, NULL);
    cr_assert_eq(model_forward(m, &d.b, NULL, &err), 0, "%s", err.text);
    record(m, d.t, d.b.tokens, index, expert);
    cr_assert_eq(model_backward(m, &d.scale, &err), 0, "%s", err.text);
    struct model_options plain = o;
    plain.inference = true;
    d.m = tinymodel_model(d.t, &plain, NULL);
    d.replay = (struct model_replay){
        .index = (const int32_t *const *)index, .expert = (const int32_t *const *)expert};
    for (int64_t i = 0; i < d.t->table->count; i++)
        if (d.t->params[i].dw)
            check_tensor(&d, i);
    for (int64_t i = 0; i < model_losses(m)->layers; i++) {
        free(index[i]);
        free(expert[i]);
    }
    model_free(d.m);
    model_free(m);
    tinymodel_free(d.t);
    tinybatch_free(&b);
}

static void check_small(int shared, bool norm, struct model_options o)
{
    char config[2048];
    snprintf(config, sizeof config, CONFIG, shared, norm ? "true" : "false");
    check(config, 23, brief() ? 1 : ENTRIES, brief() ? 3 : 1, o);
}

Test(gradients, are_the_differences_of_the_losses, .timeout = 1800)
{
    check_small(1, true, (struct model_options){.indexer_loss = MODEL_INDEXER_SPARSE});
}

Test(gradients, of_the_absorbed_form_too, .timeout = 1800)
{
    check_small(2, false,
        (struct model_options){
            .indexer_loss = MODEL_INDEXER_SPARSE, .absorbed = true, .hf_scales = true});
}

Test(gradients, of_dense_attention_and_the_dense_indexer_loss_too, .timeout = 1800)
{
    check_small(1, false,
        (struct model_options){
            .indexer_loss = MODEL_INDEXER_DENSE, .dense_attention = true});
}

/* Every one of its tensors, MTP and the indexers' loss included. */
Test(gradients, of_tiny_a_are_the_differences_of_its_losses, .timeout = 1800)
{
    const char *const entries = getenv("GRADIENT_ENTRIES");
    const uint32_t n = entries ? (uint32_t)strtoul(entries, NULL, 10) : 2;
    char *config = models_config("tiny-a");
    cr_assert_gt(n, 0, "GRADIENT_ENTRIES=%s", entries);
    check(config, 320, brief() ? 1 : n, brief() ? 40 : 1,
        (struct model_options){.indexer_loss = MODEL_INDEXER_SPARSE});
    free(config);
}
