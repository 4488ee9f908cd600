/* The rows of glm_moe_dsa: GLM-5, GLM-5.1, GLM-5.2 at any size (spec/glm-5.2.md 2 and 6.2).
 *
 * One declarative table: a row's name, its shape in dimension letters, which layers have it, how it
 * is cut, and how it trains. Sizes come from the configuration through dims().
 *
 * Optimizer classes (spec/training.md 4.2). Published: Muon for matrices, AdamW for embedding,
 * norms and biases, Muon Split (one update per head and part) for W_UQ, W_UK and W_UV. Undisclosed,
 * chosen here: W_QR per head as well; kv_a whole (latent and rope key together); gate and up apart,
 * as they are stored; indexer matrices, router and eh_proj Muon, as Megatron's rule (two
 * dimensions, neither embedding nor head) gives; the head AdamW. Decay: what has two dimensions.
 * The router bias is no parameter: the load balancer moves it.
 *
 * Kinds say a tensor's role, in the MTP layer too; KIND_MTP is what only that layer has. */
#include <stdio.h>

#include "ckpt/family.h"

/* Dimensions, by the spec's letters; heads are packed into rows (spec 2.2). */
enum dim {
    NONE,
    VOCAB,
    HIDDEN,
    HIDDEN_2,
    DENSE,
    EXPERT,
    SHARED,
    EXPERTS,
    Q_LORA,
    KV_LORA,
    KV_A,
    Q_B,
    KV_B,
    O_IN,
    INDEX_Q,
    INDEX_DIM,
    INDEX_HEADS,
    DIM_COUNT
};

/* Which rows of q_b, kv_b or columns of o belong together: the unit of a cut. */
enum unit { ONE, Q_HEAD, KV_HEAD, V_HEAD };

enum layers { OUTSIDE, EVERY, FULL, DENSE_MLP, MOE, MTP };

enum { QUANTISED = 1, KEEP_F32 = 2, STACK = 4 };

struct row {
    const char *name; /* behind "model.layers.N." where it belongs to a layer */
    enum layers layers;
    enum dim shape[3];
    enum table_cut cut;
    enum unit unit;
    enum table_kind kind;
    enum table_optimizer optimizer;
    int flags;
};

static const struct row first = {"model.embed_tokens.weight", OUTSIDE, {VOCAB, HIDDEN},
    CUT_VOCAB, ONE, KIND_EMBEDDING, OPT_ADAMW, 0};

static const struct row in_layer[] = {
    {"enorm.weight", MTP, {HIDDEN}, CUT_NONE, ONE, KIND_MTP, OPT_ADAMW, 0},
    {"hnorm.weight", MTP, {HIDDEN}, CUT_NONE, ONE, KIND_MTP, OPT_ADAMW, 0},
    {"eh_proj.weight", MTP, {HIDDEN, HIDDEN_2}, CUT_ROWS, ONE, KIND_MTP, OPT_MUON, 0},
    {"input_layernorm.weight", EVERY, {HIDDEN}, CUT_NONE, ONE, KIND_NORM, OPT_ADAMW, 0},
    {"self_attn.q_a_proj.weight", EVERY, {Q_LORA, HIDDEN}, CUT_NONE, ONE, KIND_ATTENTION,
        OPT_MUON, QUANTISED},
    {"self_attn.q_a_layernorm.weight", EVERY, {Q_LORA}, CUT_NONE, ONE, KIND_NORM,
        OPT_ADAMW, 0},
    {"self_attn.q_b_proj.weight", EVERY, {Q_B, Q_LORA}, CUT_ROWS, Q_HEAD, KIND_ATTENTION,
        OPT_MUON_HEADS, QUANTISED},
    {"self_attn.kv_a_proj_with_mqa.weight", EVERY, {KV_A, HIDDEN}, CUT_NONE, ONE,
        KIND_ATTENTION, OPT_MUON, QUANTISED},
    {"self_attn.kv_a_layernorm.weight", EVERY, {KV_LORA}, CUT_NONE, ONE, KIND_NORM,
        OPT_ADAMW, 0},
    {"self_attn.kv_b_proj.weight", EVERY, {KV_B, KV_LORA}, CUT_ROWS, KV_HEAD,
        KIND_ATTENTION, OPT_MUON_HEADS, QUANTISED},
    {"self_attn.o_proj.weight", EVERY, {HIDDEN, O_IN}, CUT_COLS, V_HEAD, KIND_ATTENTION,
        OPT_MUON, QUANTISED},
    {"self_attn.indexer.wq_b.weight", FULL, {INDEX_Q, Q_LORA}, CUT_NONE, ONE,
        KIND_INDEXER, OPT_MUON, QUANTISED},
    {"self_attn.indexer.wk.weight", FULL, {INDEX_DIM, HIDDEN}, CUT_NONE, ONE,
        KIND_INDEXER, OPT_MUON, QUANTISED},
    {"self_attn.indexer.k_norm.weight", FULL, {INDEX_DIM}, CUT_NONE, ONE, KIND_INDEXER,
        OPT_ADAMW, 0},
    {"self_attn.indexer.k_norm.bias", FULL, {INDEX_DIM}, CUT_NONE, ONE, KIND_INDEXER,
        OPT_ADAMW, 0},
    {"self_attn.indexer.weights_proj.weight", FULL, {INDEX_HEADS, HIDDEN}, CUT_NONE, ONE,
        KIND_INDEXER, OPT_MUON, 0},
    {"post_attention_layernorm.weight", EVERY, {HIDDEN}, CUT_NONE, ONE, KIND_NORM,
        OPT_ADAMW, 0},
    {"mlp.gate_proj.weight", DENSE_MLP, {DENSE, HIDDEN}, CUT_ROWS, ONE, KIND_DENSE,
        OPT_MUON, QUANTISED},
    {"mlp.up_proj.weight", DENSE_MLP, {DENSE, HIDDEN}, CUT_ROWS, ONE, KIND_DENSE,
        OPT_MUON, QUANTISED},
    {"mlp.down_proj.weight", DENSE_MLP, {HIDDEN, DENSE}, CUT_COLS, ONE, KIND_DENSE,
        OPT_MUON, QUANTISED},
    {"mlp.gate.weight", MOE, {EXPERTS, HIDDEN}, CUT_NONE, ONE, KIND_ROUTER, OPT_MUON, 0},
    {"mlp.gate.e_score_correction_bias", MOE, {EXPERTS}, CUT_NONE, ONE, KIND_ROUTER,
        OPT_ROUTER_BIAS, KEEP_F32},
    {"mlp.experts.gate_proj.weight", MOE, {EXPERTS, EXPERT, HIDDEN}, CUT_ROWS, ONE,
        KIND_EXPERT, OPT_MUON, QUANTISED | STACK},
    {"mlp.experts.up_proj.weight", MOE, {EXPERTS, EXPERT, HIDDEN}, CUT_ROWS, ONE,
        KIND_EXPERT, OPT_MUON, QUANTISED | STACK},
    {"mlp.experts.down_proj.weight", MOE, {EXPERTS, HIDDEN, EXPERT}, CUT_COLS, ONE,
        KIND_EXPERT, OPT_MUON, QUANTISED | STACK},
    {"mlp.shared_experts.gate_proj.weight", MOE, {SHARED, HIDDEN}, CUT_ROWS, ONE,
        KIND_SHARED_EXPERT, OPT_MUON, QUANTISED},
    {"mlp.shared_experts.up_proj.weight", MOE, {SHARED, HIDDEN}, CUT_ROWS, ONE,
        KIND_SHARED_EXPERT, OPT_MUON, QUANTISED},
    {"mlp.shared_experts.down_proj.weight", MOE, {HIDDEN, SHARED}, CUT_COLS, ONE,
        KIND_SHARED_EXPERT, OPT_MUON, QUANTISED},
    {"shared_head.norm.weight", MTP, {HIDDEN}, CUT_NONE, ONE, KIND_MTP, OPT_ADAMW, 0},
};

static const struct row last[] = {
    {"model.norm.weight", OUTSIDE, {HIDDEN}, CUT_NONE, ONE, KIND_NORM, OPT_ADAMW, 0},
    {"lm_head.weight", OUTSIDE, {VOCAB, HIDDEN}, CUT_VOCAB, ONE, KIND_HEAD, OPT_ADAMW, 0},
};

static void dims(const struct model_config *c, int64_t d[DIM_COUNT])
{
    d[VOCAB] = c->vocab_size;
    d[HIDDEN] = c->hidden_size;
    d[HIDDEN_2] = 2 * c->hidden_size;
    d[DENSE] = c->intermediate_size;
    d[EXPERT] = c->moe_intermediate_size;
    d[SHARED] = c->n_shared_experts * c->moe_intermediate_size;
    d[EXPERTS] = c->n_routed_experts;
    d[Q_LORA] = c->q_lora_rank;
    d[KV_LORA] = c->kv_lora_rank;
    d[KV_A] = c->kv_lora_rank + c->qk_rope_head_dim;
    d[Q_B] = c->num_heads * (c->qk_nope_head_dim + c->qk_rope_head_dim);
    d[KV_B] = c->num_heads * (c->qk_nope_head_dim + c->v_head_dim);
    d[O_IN] = c->num_heads * c->v_head_dim;
    d[INDEX_Q] = c->index_n_heads * c->index_head_dim;
    d[INDEX_DIM] = c->index_head_dim;
    d[INDEX_HEADS] = c->index_n_heads;
    d[NONE] = 0;
}

static int64_t unit_of(const struct model_config *c, enum unit unit)
{
    switch (unit) {
    case Q_HEAD:
        return c->qk_nope_head_dim + c->qk_rope_head_dim;
    case KV_HEAD:
        return c->qk_nope_head_dim + c->v_head_dim;
    case V_HEAD:
        return c->v_head_dim;
    case ONE:
        break;
    }
    return 1;
}

static int add(struct table *t, const struct row *r, enum table_where where, int layer,
    struct glm_error *err)
{
    const struct model_config *c = &t->config;
    char name[256];
    int64_t d[DIM_COUNT];
    dims(c, d);
    struct table_entry e = {.stack = r->flags & STACK,
        .cut = r->cut,
        .unit = unit_of(c, r->unit),
        .where = where,
        .layer = layer,
        .kind = r->kind,
        .dtype = r->flags & KEEP_F32 ? GLM_F32 : GLM_BF16,
        .quantised = r->flags & QUANTISED,
        .keep_f32 = r->flags & KEEP_F32,
        .optimizer = r->optimizer};
    while (e.rank < 3 && r->shape[e.rank] != NONE) {
        e.shape[e.rank] = d[r->shape[e.rank]];
        e.rank++;
    }
    e.decay = e.rank >= 2;
    if (r->optimizer == OPT_MUON_HEADS) {
        e.head_rows = e.unit;
        e.head_split = c->qk_nope_head_dim;
    }
    if (layer < 0)
        snprintf(name, sizeof name, "%s", r->name);
    else
        snprintf(name, sizeof name, "model.layers.%d.%s", layer, r->name);
    e.name = name;
    return table_add(t, &e, err);
}

static bool has(const struct model_config *c, enum layers which, int64_t layer)
{
    const bool mtp = layer >= c->num_hidden_layers; /* owns an indexer, is MoE */
    switch (which) {
    case EVERY:
        return true;
    case FULL:
        return mtp || c->layer_owns_indexer[layer];
    case DENSE_MLP:
        return !mtp && c->layer_is_dense[layer];
    case MOE:
        return mtp || !c->layer_is_dense[layer];
    case MTP:
        return mtp;
    case OUTSIDE:
        break;
    }
    return false;
}

static int rows(struct table *t, struct glm_error *err)
{
    const struct model_config *c = &t->config;
    if (add(t, &first, WHERE_FIRST, -1, err) != 0)
        return err->code;
    for (int64_t i = 0; i < c->num_hidden_layers + c->num_mtp_layers; i++)
        for (size_t k = 0; k < sizeof in_layer / sizeof in_layer[0]; k++) {
            const enum table_where where =
                i < c->num_hidden_layers ? WHERE_LAYER : WHERE_MTP;
            if (has(c, in_layer[k].layers, i)
                && add(t, &in_layer[k], where, (int)i, err) != 0)
                return err->code;
        }
    const size_t tail =
        c->tie_word_embeddings ? 1 : 2; /* a tied head is no row: table_alias */
    for (size_t k = 0; k < tail; k++)
        if (add(t, &last[k], WHERE_LAST, -1, err) != 0)
            return err->code;
    return 0;
}

const struct table_family glm52_family = {
    .model_type = "glm_moe_dsa",
    .config = glm52_config,
    .tied_name = "lm_head.weight",
    .tied_to = "model.embed_tokens.weight",
    .rows = rows,
};
