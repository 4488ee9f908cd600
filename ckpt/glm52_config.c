/* The keys of glm_moe_dsa (GLM-5, 5.1, 5.2) and their traps (spec/glm-5.2.md 1 and 10).
 *
 *   head_dim                never read: the hub's value is the no-rope width, HF overwrites it
 *   n_routed_experts        wins; num_local_experts and num_experts are older names of it
 *   rope_theta              nested in rope_parameters, formerly top level
 *   mlp_layer_types         decides; without it first_k_dense_replace
 *   indexer_types           decides; index_topk_pattern and the freq/offset schedule must agree
 *   index_skip_topk_offset  has no safe default: HF takes 2, Megatron-Bridge 0
 *
 * Without any of the index keys every layer computes its own index set (GLM-5, 5.1). Keys that
 * shape tensors have no defaults; a config that omits one is refused. */
#include <stdlib.h>
#include <string.h>

#include "ckpt/config_keys.h"
#include "ckpt/family.h"

/* Far above any model, low enough that sizes of rows and tables cannot wrap (table_add checks the
 * products that remain). */
enum {
    MAX_VOCAB = 1 << 28,
    MAX_WIDTH = 1 << 24,
    MAX_LAYERS = 2048,
    MAX_MTP = 64,
    MAX_HEADS = 1 << 16,
    MAX_EXPERTS = 1 << 16,
    MAX_SHARED = 1 << 10,
    SHOWN = 64,
};

static int read_sizes(struct model_config *c, const json_t *json, struct glm_error *err)
{
    const struct {
        const char *key;
        int64_t max;
        int64_t *out;
    } rows[] = {
        {"vocab_size", MAX_VOCAB, &c->vocab_size},
        {"hidden_size", MAX_WIDTH, &c->hidden_size},
        {"intermediate_size", MAX_WIDTH, &c->intermediate_size},
        {"moe_intermediate_size", MAX_WIDTH, &c->moe_intermediate_size},
        {"num_hidden_layers", MAX_LAYERS, &c->num_hidden_layers},
        {"num_attention_heads", MAX_HEADS, &c->num_heads},
        {"q_lora_rank", MAX_WIDTH, &c->q_lora_rank},
        {"kv_lora_rank", MAX_WIDTH, &c->kv_lora_rank},
        {"qk_nope_head_dim", MAX_HEADS, &c->qk_nope_head_dim},
        {"qk_rope_head_dim", MAX_HEADS, &c->qk_rope_head_dim},
        {"v_head_dim", MAX_HEADS, &c->v_head_dim},
        {"index_n_heads", MAX_HEADS, &c->index_n_heads},
        {"index_head_dim", MAX_HEADS, &c->index_head_dim},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (config_int(json, rows[i].key, 1, rows[i].max, rows[i].out, err) != 0)
            return err->code;
    return config_int_or(
        json, "num_nextn_predict_layers", 0, MAX_MTP, &c->num_mtp_layers, err);
}

static int read_routing(struct model_config *c, const json_t *json, struct glm_error *err)
{
    c->n_shared_experts = c->n_group = c->topk_group = 1;
    c->num_experts_per_tok = 8;
    c->norm_topk_prob = true;
    c->routed_scaling_factor = 2.5;
    static const char *const names[] = {
        "n_routed_experts", "num_local_experts", "num_experts"};
    const char *used = NULL;
    for (size_t i = 0; i < 3; i++) {
        int64_t n;
        if (!config_get(json, names[i]))
            continue;
        if (config_int(json, names[i], 1, MAX_EXPERTS, &n, err) != 0)
            return err->code;
        if (!used) {
            used = names[i];
            c->n_routed_experts = n;
        } else if (i == 2 && used != names[0] && n != c->n_routed_experts) {
            return glm_fail(err, GLM_EFORMAT,
                "keys '%s' and '%s' disagree: %lld and %lld experts; "
                "give n_routed_experts",
                used, names[i], (long long)c->n_routed_experts, (long long)n);
        }
    }
    if (!used)
        return glm_fail(err, GLM_EFORMAT, "key 'n_routed_experts' is missing");
    if (config_int_or(json, "n_shared_experts", 1, MAX_SHARED, &c->n_shared_experts, err)
            != 0
        || config_int_or(json, "num_experts_per_tok", 1, c->n_routed_experts,
               &c->num_experts_per_tok, err)
            != 0
        || config_int_or(json, "n_group", 1, c->n_routed_experts, &c->n_group, err) != 0
        || config_int_or(json, "topk_group", 1, c->n_group, &c->topk_group, err) != 0
        || config_bool_or(json, "norm_topk_prob", &c->norm_topk_prob, err) != 0
        || config_number_or(
               json, "routed_scaling_factor", 0, 1e6, &c->routed_scaling_factor, err)
            != 0)
        return err->code;
    if (c->num_experts_per_tok > c->n_routed_experts)
        return glm_fail(err, GLM_EFORMAT,
            "key 'num_experts_per_tok' is missing and its default 8 "
            "exceeds the %lld experts",
            (long long)c->n_routed_experts);
    if (c->n_routed_experts % c->n_group != 0)
        return glm_fail(err, GLM_EFORMAT,
            "key 'n_group': %lld groups do not divide %lld experts",
            (long long)c->n_group, (long long)c->n_routed_experts);
    return 0;
}

/* 0 where the config does not say: no tensor depends on it, who computes with it must ask. */
static int read_rope(struct model_config *c, const json_t *json, struct glm_error *err)
{
    static const char *const nests[] = {"rope_parameters", "rope_scaling"};
    double top = 0;
    for (size_t i = 0; i < 2 && c->rope_theta <= 0; i++) {
        const json_t *nest = config_get(json, nests[i]);
        char shown[SHOWN];
        if (nest && !json_is_object(nest))
            return glm_fail(err, GLM_EFORMAT, "key '%s': expected an object, found %s",
                nests[i], config_show(nest, shown, sizeof shown));
        if (config_number_or(nest, "rope_theta", 1, 1e18, &c->rope_theta, err) != 0)
            return glm_within(err, "%s", nests[i]);
    }
    if (config_number_or(json, "rope_theta", 1, 1e18, &top, err) != 0)
        return err->code;
    if (top > 0 && c->rope_theta > 0 && (top < c->rope_theta || top > c->rope_theta))
        return glm_fail(err, GLM_EFORMAT,
            "keys 'rope_theta' and 'rope_parameters.rope_theta' "
            "disagree: %g and %g",
            top, c->rope_theta);
    if (top > 0)
        c->rope_theta = top;
    return 0;
}

static int read_rest(struct model_config *c, const json_t *json, struct glm_error *err)
{
    int64_t rows = c->num_heads, head = c->qk_nope_head_dim + c->qk_rope_head_dim;
    bool attention_bias = false, mlp_bias = false;
    c->index_topk = 2048;
    c->max_position_embeddings = 202752;
    c->rms_norm_eps = 1e-5;
    c->initializer_range = 0.02;
    if (config_int_or(json, "index_topk", 1, INT64_C(1) << 40, &c->index_topk, err) != 0
        || config_int_or(json, "max_position_embeddings", 1, INT64_C(1) << 40,
               &c->max_position_embeddings, err)
            != 0
        || config_int_or(
               json, "pad_token_id", 0, c->vocab_size - 1, &c->pad_token_id, err)
            != 0
        || config_number_or(json, "rms_norm_eps", 0, 1, &c->rms_norm_eps, err) != 0
        || config_number_or(json, "initializer_range", 0, 1e6, &c->initializer_range, err)
            != 0
        || config_bool_or(json, "tie_word_embeddings", &c->tie_word_embeddings, err) != 0
        || config_bool_or(json, "attention_bias", &attention_bias, err) != 0
        || config_bool_or(json, "mlp_bias", &mlp_bias, err) != 0
        || config_int_or(json, "num_key_value_heads", 1, MAX_HEADS, &rows, err) != 0
        || config_int_or(json, "qk_head_dim", 1, 2 * MAX_HEADS, &head, err) != 0)
        return err->code;
    if (attention_bias || mlp_bias)
        return glm_fail(err, GLM_EFORMAT,
            "key '%s': true is not supported, the table has no bias "
            "rows for it",
            attention_bias ? "attention_bias" : "mlp_bias");
    if (rows != c->num_heads)
        return glm_fail(err, GLM_EFORMAT,
            "keys 'num_key_value_heads' and 'num_attention_heads' "
            "must be equal, found %lld and %lld",
            (long long)rows, (long long)c->num_heads);
    if (head != c->qk_nope_head_dim + c->qk_rope_head_dim)
        return glm_fail(err, GLM_EFORMAT,
            "key 'qk_head_dim': expected qk_nope_head_dim + "
            "qk_rope_head_dim = %lld + %lld, found %lld",
            (long long)c->qk_nope_head_dim, (long long)c->qk_rope_head_dim,
            (long long)head);
    return 0;
}

/* A list of L words, each `yes` or `no` (or their short forms), into out[]. */
static int read_words(const json_t *v, const char *key, int64_t L, const char *yes,
    const char *no, bool *out, struct glm_error *err)
{
    if (!json_is_array(v) || (int64_t)json_array_size(v) != L)
        return glm_fail(err, GLM_EFORMAT,
            "key '%s': expected a list of num_hidden_layers = %lld "
            "words, found %s%lld",
            key, (long long)L,
            json_is_array(v) ? "one of " : "another kind of value, length ",
            (long long)json_array_size(v));
    for (int64_t i = 0; i < L; i++) {
        const json_t *word = json_array_get(v, (size_t)i);
        const char *s = json_is_string(word) ? json_string_value(word) : "";
        char shown[SHOWN];
        if (strcmp(s, yes) != 0 && strcmp(s, no) != 0)
            return glm_fail(err, GLM_EFORMAT,
                "key '%s': layer %lld: expected \"%s\" or \"%s\", "
                "found %s",
                key, (long long)i, yes, no, config_show(word, shown, sizeof shown));
        out[i] = strcmp(s, yes) == 0;
    }
    return 0;
}

static int read_mlp(struct model_config *c, const json_t *json, struct glm_error *err)
{
    const json_t *types = config_get(json, "mlp_layer_types");
    const int64_t L = c->num_hidden_layers;
    int64_t dense, every = 1;
    if (types)
        return read_words(
            types, "mlp_layer_types", L, "dense", "sparse", c->layer_is_dense, err);
    if (!config_get(json, "first_k_dense_replace"))
        return glm_fail(err, GLM_EFORMAT,
            "keys 'mlp_layer_types' and 'first_k_dense_replace' are "
            "both missing: which layers are dense?");
    if (config_int(json, "first_k_dense_replace", 0, MAX_LAYERS, &dense, err) != 0
        || config_int_or(json, "moe_layer_freq", 1, 1, &every, err) != 0)
        return err->code;
    for (int64_t i = 0; i < L; i++)
        c->layer_is_dense[i] = i < dense;
    return 0;
}

/* ---- IndexShare: up to three statements of one schedule ------------------------------------ */

struct schedule {
    const char *key; /* for sentences; NULL: says nothing */
    bool full[MAX_LAYERS];
};

static int read_types(
    struct schedule *s, const json_t *json, int64_t L, struct glm_error *err)
{
    const json_t *v = config_get(json, "indexer_types");
    if (!v)
        return 0;
    s->key = "indexer_types";
    return read_words(v, s->key, L, "full", "shared", s->full, err);
}

static int read_pattern(
    struct schedule *s, const json_t *json, int64_t L, struct glm_error *err)
{
    const json_t *v = config_get(json, "index_topk_pattern");
    if (!v)
        return 0;
    s->key = "index_topk_pattern";
    if (!json_is_string(v)) {
        const char *first = json_string_value(json_array_get(v, 0));
        const bool brief = first && strlen(first) == 1;
        return read_words(
            v, s->key, L, brief ? "F" : "full", brief ? "S" : "shared", s->full, err);
    }
    const char *p = json_string_value(v);
    if ((int64_t)strlen(p) != L || strspn(p, "FS") != strlen(p))
        return glm_fail(err, GLM_EFORMAT,
            "key '%s': expected num_hidden_layers = %lld letters F "
            "or S, found %zu characters, '%.32s'",
            s->key, (long long)L, strlen(p), p);
    for (int64_t i = 0; i < L; i++)
        s->full[i] = p[i] == 'F';
    return 0;
}

/* listed: another key lists the schedule, so a frequency without its offset says too little to
 * contradict it and is passed over. */
static int read_frequency(
    struct schedule *s, const json_t *json, int64_t L, bool listed, struct glm_error *err)
{
    int64_t freq = 1, offset = 0;
    if (config_int_or(json, "index_topk_freq", 1, MAX_LAYERS, &freq, err) != 0
        || config_int_or(json, "index_skip_topk_offset", 0, MAX_LAYERS, &offset, err)
            != 0)
        return err->code;
    if (!config_get(json, "index_topk_freq"))
        return 0;
    if (freq > 1 && !config_get(json, "index_skip_topk_offset")) {
        if (listed)
            return 0;
        return glm_fail(err, GLM_EFORMAT,
            "key 'index_topk_freq' is %lld but "
            "'index_skip_topk_offset' is missing: its default differs between programs, "
            "give it or "
            "indexer_types",
            (long long)freq);
    }
    s->key = "index_topk_freq/index_skip_topk_offset";
    for (int64_t i = 0; i < L; i++)
        s->full[i] = i - offset + 1 <= 0 || (i - offset + 1) % freq == 0;
    return 0;
}

static int agree(
    const struct schedule *a, const struct schedule *b, int64_t L, struct glm_error *err)
{
    if (!a->key || !b->key)
        return 0;
    for (int64_t i = 0; i < L; i++)
        if (a->full[i] != b->full[i])
            return glm_fail(err, GLM_EFORMAT,
                "keys '%s' and '%s' disagree at layer %lld: %s and "
                "%s",
                a->key, b->key, (long long)i, a->full[i] ? "full" : "shared",
                b->full[i] ? "full" : "shared");
    return 0;
}

static int read_indexers(
    struct model_config *c, const json_t *json, struct glm_error *err)
{
    const int64_t L = c->num_hidden_layers;
    struct schedule *s = calloc(3, sizeof *s);
    if (!s)
        return glm_fail(err, GLM_ENOMEM, "no memory for %lld layers", (long long)L);
    if (read_types(&s[0], json, L, err) != 0 || read_pattern(&s[1], json, L, err) != 0
        || read_frequency(&s[2], json, L, s[0].key || s[1].key, err) != 0
        || agree(&s[0], &s[1], L, err) != 0 || agree(&s[0], &s[2], L, err) != 0
        || agree(&s[1], &s[2], L, err) != 0)
        goto out;
    const struct schedule *said = s[0].key ? &s[0] : s[1].key ? &s[1] : &s[2];
    for (int64_t i = 0; i < L; i++)
        c->layer_owns_indexer[i] = !said->key || said->full[i];
    if (!c->layer_owns_indexer[0])
        glm_fail(err, GLM_EFORMAT,
            "key '%s': layer 0 shares an index set but no layer below it "
            "computes one; it must be full",
            said->key);
out:
    free(s);
    return err->code;
}

int glm52_config(struct model_config *c, const void *json, struct glm_error *err)
{
    if (read_sizes(c, json, err) != 0 || read_routing(c, json, err) != 0
        || read_rope(c, json, err) != 0 || read_rest(c, json, err) != 0)
        return err->code;
    c->layer_is_dense = calloc((size_t)c->num_hidden_layers, sizeof *c->layer_is_dense);
    c->layer_owns_indexer =
        calloc((size_t)c->num_hidden_layers, sizeof *c->layer_owns_indexer);
    if (!c->layer_is_dense || !c->layer_owns_indexer)
        return glm_fail(err, GLM_ENOMEM, "no memory for %lld layers",
            (long long)c->num_hidden_layers);
    if (read_mlp(c, json, err) != 0)
        return err->code;
    return read_indexers(c, json, err);
}
