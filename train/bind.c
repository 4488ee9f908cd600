/* Names, sizes and eps of the modules' parameters: the only place in train/ that knows them. */
#include "train/bind.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "train/mutate.h"

enum { NAME_SIZE = 256 };

/* The latent norms and the indexer's key norm have an eps of their own, whatever the config says
 * (spec/glm-5.2.md 3.2). */
static const double LATENT_EPS = 1e-6;

static bool learns(const struct bind *b, const struct table_entry *e)
{
    const struct model_options *o = b->options;
    const bool indexer = e->kind == KIND_INDEXER;
    if (o->inference || e->optimizer == OPT_ROUTER_BIAS
        || (!o->mtp && e->layer >= b->table->config.num_hidden_layers))
        return false;
    if (indexer)
        return o->stage != MODEL_FREEZE_INDEXER && o->indexer_loss != MODEL_INDEXER_OFF;
    return o->stage != MODEL_TRAIN_INDEXER;
}

int bind_check(const struct bind *b, struct glm_error *err)
{
    for (int64_t i = 0; i < b->table->count; i++) {
        const struct table_entry *e = &b->table->entries[i];
        if (!b->params[i].w)
            return glm_fail(
                err, GLM_EFORMAT, "tensor '%s': the model needs its values", e->name);
        if (!b->params[i].dw && learns(b, e))
            return glm_fail(err, GLM_EFORMAT,
                "tensor '%s' is trained and has no gradient buffer", e->name);
    }
    return 0;
}

int bind_param(const struct bind *b, int64_t layer, const char *name,
    struct model_param *out, struct glm_error *err)
{
    char full[NAME_SIZE];
    int64_t member;
    if (layer < 0)
        snprintf(full, sizeof full, "%s", name);
    else
        snprintf(full, sizeof full, "model.layers.%" PRId64 ".%s", layer, name);
    const struct table_entry *e = table_find(b->table, full, strlen(full), &member);
    if (!e)
        e = table_alias(b->table, full, strlen(full));
    if (!e)
        return glm_fail(err, GLM_EFORMAT, "tensor '%s': not in the model's table", full);
    *out = b->params[e - b->table->entries];
    return 0;
}

int bind_norm(const struct bind *b, int64_t layer, const char *name, double eps,
    struct norm *out, struct glm_error *err)
{
    char full[NAME_SIZE];
    int64_t member;
    if (layer < 0)
        snprintf(full, sizeof full, "%s", name);
    else
        snprintf(full, sizeof full, "model.layers.%" PRId64 ".%s", layer, name);
    const struct table_entry *e = table_find(b->table, full, strlen(full), &member);
    *out = (struct norm){.D = e ? e->shape[0] : 0, .eps = eps};
    return bind_param(b, layer, name, &out->p, err);
}

static int bind_linear(const struct bind *b, int64_t layer, const char *name,
    int64_t out_features, int64_t in_features, struct linear *out, struct glm_error *err)
{
    *out = (struct linear){.in = in_features, .out = out_features};
    return bind_param(b, layer, name, &out->p, err);
}

static int bind_mla(
    const struct bind *b, int64_t layer, double eps, struct mla *m, struct glm_error *err)
{
    const struct model_config *c = &b->table->config;
    const int64_t H = c->hidden_size, N = c->num_heads, KR = c->kv_lora_rank;
    const int64_t Dn = c->qk_nope_head_dim, Dr = c->qk_rope_head_dim, Dv = c->v_head_dim;
    const int64_t QR = c->q_lora_rank;
    if (bind_linear(b, layer, "self_attn.q_a_proj.weight", QR, H, &m->q_a, err) != 0
        || bind_norm(b, layer, "self_attn.q_a_layernorm.weight", eps, &m->q_norm, err)
            != 0
        || bind_linear(
               b, layer, "self_attn.q_b_proj.weight", N * (Dn + Dr), QR, &m->q_b, err)
            != 0
        || bind_linear(
               b, layer, "self_attn.kv_a_proj_with_mqa.weight", KR + Dr, H, &m->kv_a, err)
            != 0
        || bind_norm(b, layer, "self_attn.kv_a_layernorm.weight", eps, &m->kv_norm, err)
            != 0
        || bind_linear(
               b, layer, "self_attn.kv_b_proj.weight", N * (Dn + Dv), KR, &m->kv_b, err)
            != 0)
        return err->code;
    return bind_linear(b, layer, "self_attn.o_proj.weight", H, N * Dv, &m->o, err);
}

static int bind_indexer(
    const struct bind *b, int64_t layer, struct indexer *x, struct glm_error *err)
{
    const struct model_config *c = &b->table->config;
    const int64_t H = c->hidden_size, N = c->index_n_heads, D = c->index_head_dim;
    if (bind_linear(b, layer, "self_attn.indexer.wq_b.weight", N * D, c->q_lora_rank,
            &x->wq_b, err)
            != 0
        || bind_linear(b, layer, "self_attn.indexer.wk.weight", D, H, &x->wk, err) != 0
        || bind_param(b, layer, "self_attn.indexer.k_norm.weight", &x->k_gain, err) != 0
        || bind_param(b, layer, "self_attn.indexer.k_norm.bias", &x->k_bias, err) != 0)
        return err->code;
    return bind_linear(
        b, layer, "self_attn.indexer.weights_proj.weight", N, H, &x->weights, err);
}

/* stem: "mlp.", "mlp.shared_experts.". */
static int bind_mlp(const struct bind *b, int64_t layer, const char *stem, int64_t width,
    struct mlp *m, struct glm_error *err)
{
    const int64_t H = b->table->config.hidden_size;
    char name[NAME_SIZE];
    snprintf(name, sizeof name, "%sgate_proj.weight", stem);
    if (bind_linear(b, layer, name, width, H, &m->gate, err) != 0)
        return err->code;
    snprintf(name, sizeof name, "%sup_proj.weight", stem);
    if (bind_linear(b, layer, name, width, H, &m->up, err) != 0)
        return err->code;
    snprintf(name, sizeof name, "%sdown_proj.weight", stem);
    return bind_linear(b, layer, name, H, width, &m->down, err);
}

static int bind_moe(
    const struct bind *b, int64_t layer, struct moe *m, struct glm_error *err)
{
    const struct model_config *c = &b->table->config;
    const int64_t shared = c->n_shared_experts * c->moe_intermediate_size;
    struct model_param bias;
    if (bind_linear(b, layer, "mlp.gate.weight", c->n_routed_experts, c->hidden_size,
            &m->router, err)
            != 0
        || bind_param(b, layer, "mlp.gate.e_score_correction_bias", &bias, err) != 0
        || bind_param(b, layer, "mlp.experts.gate_proj.weight", &m->gate, err) != 0
        || bind_param(b, layer, "mlp.experts.up_proj.weight", &m->up, err) != 0
        || bind_param(b, layer, "mlp.experts.down_proj.weight", &m->down, err) != 0)
        return err->code;
    m->bias = bias.w;
    return shared == 0
        ? 0
        : bind_mlp(b, layer, "mlp.shared_experts.", shared, &m->shared, err);
}

int bind_layer(
    const struct bind *b, int64_t layer, struct layer *out, struct glm_error *err)
{
    const struct model_config *c = &b->table->config;
    const bool mtp = layer >= c->num_hidden_layers;
    const double block_eps = MUTATED_EPS ? LATENT_EPS : c->rms_norm_eps;
    const double latent_eps = MUTATED_EPS ? c->rms_norm_eps : LATENT_EPS;
    *out = (struct layer){.number = layer,
        .owns_indexer = mtp || c->layer_owns_indexer[layer],
        .dense = !mtp && c->layer_is_dense[layer]};
    if (bind_norm(b, layer, "input_layernorm.weight", block_eps, &out->norm1, err) != 0
        || bind_norm(
               b, layer, "post_attention_layernorm.weight", block_eps, &out->norm2, err)
            != 0
        || bind_mla(b, layer, latent_eps, &out->mla, err) != 0)
        return err->code;
    int64_t source = layer;
#ifdef MUTATE_INDEX_RECOMPUTED
    while (!mtp && source > 0 && !c->layer_owns_indexer[source])
        source--;
    if (bind_indexer(b, source, &out->indexer, err) != 0)
        return err->code;
#endif
    if (out->owns_indexer && bind_indexer(b, source, &out->indexer, err) != 0)
        return err->code;
    return out->dense ? bind_mlp(b, layer, "mlp.", c->intermediate_size, &out->mlp, err)
                      : bind_moe(b, layer, &out->moe, err);
}

int bind_mtp(const struct bind *b, int64_t layer, struct mtp *out, struct glm_error *err)
{
    const struct model_config *c = &b->table->config;
    const double eps = c->rms_norm_eps;
    *out = (struct mtp){0};
    if (bind_norm(b, layer, "enorm.weight", eps, &out->enorm, err) != 0
        || bind_norm(b, layer, "hnorm.weight", eps, &out->hnorm, err) != 0
        || bind_norm(b, layer, "shared_head.norm.weight", eps, &out->norm, err) != 0
        || bind_linear(b, layer, "eh_proj.weight", c->hidden_size, 2 * c->hidden_size,
               &out->eh_proj, err)
            != 0
        || bind_param(b, -1, "lm_head.weight", &out->head.w, err) != 0)
        return err->code;
    if (bind_layer(b, layer, &out->layer, err) != 0)
        return err->code;
    out->layer.indexer.fill = 1;
    return 0;
}
