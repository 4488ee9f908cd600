/* The model's configuration: a checkpoint's, a config.json's, or written from ARGS.
 *
 * Written from ARGS it is config.json's text all the same, read by the same reader, so that a
 * checkpoint stores it and every other command sees one kind of model. */
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "train/recipe_inside.h"

enum { CONFIG_MAX_BYTES = 16 << 20, MAX_LAYERS = 2048, MAX_NESTING = 16 };

/* ---- moe_layer_freq: lists of 0 and 1, +, * and parentheses ------------------------------------ */

struct freq {
    const char *at;
    bool *out;
    int64_t count, room;
    int depth;
    struct glm_error *err;
};

static int bad_freq(struct freq *f, const char *wanted)
{
    return glm_fail(f->err, GLM_EFORMAT, "expected %s at '%.20s'", wanted, f->at);
}

static char peek(struct freq *f)
{
    while (*f->at == ' ')
        f->at++;
    return *f->at;
}

static bool take(struct freq *f, char c)
{
    if (peek(f) != c)
        return false;
    f->at++;
    return true;
}

static int number(struct freq *f, int64_t *out)
{
    *out = 0;
    if (!isdigit((unsigned char)peek(f)))
        return bad_freq(f, "a number");
    while (isdigit((unsigned char)*f->at) && *out <= MAX_LAYERS)
        *out = *out * 10 + (*f->at++ - '0');
    return *out <= MAX_LAYERS ? 0 : bad_freq(f, "at most 2048 layers");
}

static int sum(struct freq *f);

/* Makes what lies behind begin `times` times as long. */
static int repeat(struct freq *f, int64_t begin, int64_t times)
{
    const int64_t n = f->count - begin;
    if (n > 0 && times > (f->room - begin) / n)
        return bad_freq(f, "no more layers than num_layers");
    for (int64_t i = 1; i < times; i++)
        memcpy(f->out + begin + i * n, f->out + begin, (size_t)n * sizeof *f->out);
    f->count = begin + times * n;
    return 0;
}

static int list(struct freq *f)
{
    int64_t x;
    if (take(f, ']'))
        return 0;
    do {
        if (number(f, &x) != 0)
            return f->err->code;
        if (x > 1)
            return bad_freq(f, "0 or 1");
        if (f->count == f->room)
            return bad_freq(f, "no more layers than num_layers");
        f->out[f->count++] = x == 1;
    } while (take(f, ','));
    return take(f, ']') ? 0 : bad_freq(f, "']'");
}

static int product(struct freq *f)
{
    const int64_t begin = f->count;
    int64_t times = 1, x;
    if (isdigit((unsigned char)peek(f))) { /* 2*[0] */
        if (number(f, &times) != 0)
            return f->err->code;
        if (!take(f, '*'))
            return bad_freq(f, "'*'");
    }
    if (take(f, '(')) {
        if (++f->depth > MAX_NESTING)
            return bad_freq(f, "fewer parentheses");
        if (sum(f) != 0)
            return f->err->code;
        if (!take(f, ')'))
            return bad_freq(f, "')'");
        f->depth--;
    } else if (!take(f, '[')) {
        return bad_freq(f, "'[' or '('");
    } else if (list(f) != 0) {
        return f->err->code;
    }
    if (repeat(f, begin, times) != 0)
        return f->err->code;
    while (take(f, '*'))
        if (number(f, &x) != 0 || repeat(f, begin, x) != 0)
            return f->err->code;
    return 0;
}

static int sum(struct freq *f)
{
    do {
        if (product(f) != 0)
            return f->err->code;
    } while (take(f, '+'));
    return 0;
}

int recipe_layer_freq(const char *text, int64_t n, bool *is_moe, struct glm_error *err)
{
    struct freq f = {.at = text, .out = is_moe, .room = n, .err = err};
    char *end;
    const long every = strtol(text, &end, 10);
    if (*text && !*end) {
        if (every < 1)
            return glm_fail(
                err, GLM_EFORMAT, "expected a list or a number of at least 1");
        for (int64_t i = 0; i < n; i++)
            is_moe[i] = i % every == 0;
        return 0;
    }
    if (sum(&f) != 0)
        return err->code;
    if (peek(&f))
        return bad_freq(&f, "the end");
    if (f.count != n)
        return glm_fail(err, GLM_EFORMAT, "%lld layers, but num_layers is %lld",
            (long long)f.count, (long long)n);
    return 0;
}

/* ---- a configuration from ARGS ------------------------------------------------------------------ */

static int model_defaults(struct recipe *r, struct glm_error *err)
{
    for (int64_t i = 0; i < r->value_count && err->code == GLM_OK; i++) {
        struct recipe_value *const v = &r->values[i];
        if (v->origin == RECIPE_ABSENT && v->key->def && v->key->kind == RECIPE_MODEL)
            recipe_value_default(r, v, v->key->def, RECIPE_DEFAULT, err);
    }
    return err->code;
}

static int wanted(struct recipe *r, struct glm_error *err)
{
    static const char *const keys[] = {"num_layers", "hidden_size", "num_attention_heads",
        "q_lora_rank", "num_experts", "moe_shared_expert_intermediate_size",
        "dsa_indexer_n_heads", "dsa_indexer_head_dim", "dsa_indexer_topk", "vocab_size"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (!recipe_given(r, keys[i]))
            return recipe_refuse(r, keys[i], err,
                "missing; a model made from ARGS wants it (or give "
                "GLM.model or GLM.load)");
    return 0;
}

static int derive(struct recipe *r, struct glm_error *err)
{
    struct recipe_arch *const a = &r->arch;
    if (a->ffn_hidden_size < 0)
        recipe_derive_int(r, "ffn_hidden_size", a->hidden_size * 8 / 3 / 64 * 64, err);
    if (a->moe_ffn_hidden_size < 0)
        recipe_derive_int(r, "moe_ffn_hidden_size", a->ffn_hidden_size, err);
    if (a->moe_router_num_groups < 0)
        recipe_derive_int(r, "moe_router_num_groups", 1, err);
    if (a->moe_router_group_topk < 0)
        recipe_derive_int(r, "moe_router_group_topk", 1, err);
    if (a->max_position_embeddings < 0)
        recipe_derive_int(r, "max_position_embeddings",
            r->batch.seq_length > 0 ? r->batch.seq_length : 1, err);
    if (err->code == GLM_OK && r->train.mtp_depth < 0)
        recipe_derive_int(r, "mtp_num_layers", 0, err);
    if (err->code != GLM_OK)
        return err->code;
    if (a->moe_ffn_hidden_size < 1)
        return recipe_refuse(r, "moe_ffn_hidden_size", err, "0 by default; give it");
    if (a->moe_shared_expert_intermediate_size % a->moe_ffn_hidden_size != 0)
        return recipe_refuse(r, "moe_shared_expert_intermediate_size", err,
            "%lld is no multiple of moe_ffn_hidden_size = %lld",
            (long long)a->moe_shared_expert_intermediate_size,
            (long long)a->moe_ffn_hidden_size);
    return 0;
}

static void put(json_t *o, const char *key, int64_t x)
{
    json_object_set_new(o, key, json_integer(x));
}

static json_t *config_json(const struct recipe *r, const bool *is_moe)
{
    const struct recipe_arch *const a = &r->arch;
    json_t *const o = json_object(), *const types = json_array(),
                  *const rope = json_object();
    const int64_t stored =
        r->train.mtp_depth > 0 && r->train.mtp_repeated ? 1 : r->train.mtp_depth;
    json_object_set_new(o, "architectures", json_pack("[s]", "GlmMoeDsaForCausalLM"));
    json_object_set_new(o, "model_type", json_string("glm_moe_dsa"));
    json_object_set_new(o, "dtype", json_string(r->train.bf16 ? "bfloat16" : "float32"));
    put(o, "vocab_size", a->vocab_size);
    put(o, "hidden_size", a->hidden_size);
    put(o, "intermediate_size", a->ffn_hidden_size);
    put(o, "moe_intermediate_size", a->moe_ffn_hidden_size);
    put(o, "num_hidden_layers", a->num_layers);
    put(o, "num_nextn_predict_layers", stored);
    put(o, "num_attention_heads", a->num_attention_heads);
    put(o, "num_key_value_heads", a->num_attention_heads);
    put(o, "q_lora_rank", a->q_lora_rank);
    put(o, "kv_lora_rank", a->kv_lora_rank);
    put(o, "qk_nope_head_dim", a->qk_head_dim);
    put(o, "qk_rope_head_dim", a->qk_pos_emb_head_dim);
    put(o, "qk_head_dim", a->qk_head_dim + a->qk_pos_emb_head_dim);
    put(o, "v_head_dim", a->v_head_dim);
    put(o, "n_routed_experts", a->num_experts);
    put(o, "n_shared_experts",
        a->moe_shared_expert_intermediate_size / a->moe_ffn_hidden_size);
    put(o, "num_experts_per_tok", a->moe_router_topk);
    put(o, "n_group", a->moe_router_num_groups);
    put(o, "topk_group", a->moe_router_group_topk);
    put(o, "index_n_heads", a->dsa_indexer_n_heads);
    put(o, "index_head_dim", a->dsa_indexer_head_dim);
    put(o, "index_topk", a->dsa_indexer_topk);
    put(o, "index_topk_freq", a->dsa_indexer_topk_freq);
    /* Megatron's offset 0 and 1 are one schedule; Hugging Face's rule has it as 1. */
    put(o, "index_skip_topk_offset",
        a->dsa_indexer_skip_topk_offset > 1 ? a->dsa_indexer_skip_topk_offset : 1);
    json_object_set_new(o, "index_share_for_mtp_iteration", json_true());
    put(o, "max_position_embeddings", a->max_position_embeddings);
    json_object_set_new(rope, "rope_theta", json_real(a->rotary_base));
    json_object_set_new(rope, "rope_type", json_string("default"));
    json_object_set_new(o, "rope_parameters", rope);
    json_object_set_new(o, "rms_norm_eps", json_real(a->layernorm_epsilon));
    json_object_set_new(o, "initializer_range", json_real(a->init_method_std));
    json_object_set_new(
        o, "routed_scaling_factor", json_real(a->moe_router_topk_scaling_factor));
    json_object_set_new(o, "norm_topk_prob", json_true());
    json_object_set_new(o, "scoring_func", json_string("sigmoid"));
    json_object_set_new(o, "topk_method", json_string("noaux_tc"));
    json_object_set_new(o, "hidden_act", json_string("silu"));
    json_object_set_new(o, "attention_bias", json_false());
    json_object_set_new(o, "attention_dropout", json_real(0));
    json_object_set_new(o, "tie_word_embeddings", json_false());
    for (int64_t i = 0; i < a->num_layers; i++)
        json_array_append_new(types, json_string(is_moe[i] ? "sparse" : "dense"));
    json_object_set_new(o, "mlp_layer_types", types);
    return o;
}

static int from_args(struct recipe *r, struct glm_error *err)
{
    if (wanted(r, err) != 0 || model_defaults(r, err) != 0 || derive(r, err) != 0)
        return err->code;
    if (r->arch.num_layers > MAX_LAYERS)
        return recipe_refuse(r, "num_layers", err, "at most %d", MAX_LAYERS);
    bool *const is_moe =
        recipe_alloc(r, (size_t)r->arch.num_layers * sizeof *is_moe, err);
    if (!is_moe)
        return err->code;
    struct glm_error inner = {0};
    if (recipe_layer_freq(r->arch.moe_layer_freq, r->arch.num_layers, is_moe, &inner)
        != 0)
        return recipe_refuse(r, "moe_layer_freq", err, "%s", inner.text);
    json_t *const o = config_json(r, is_moe);
    char *const text = o ? json_dumps(o, JSON_INDENT(2) | JSON_SORT_KEYS) : NULL;
    json_decref(o);
    if (!text)
        return glm_fail(err, GLM_ENOMEM, "%s: no memory", r->path);
    r->config_text = text;
    r->config_size = strlen(text);
    if (config_parse(&r->config, "configuration from ARGS", text, r->config_size, err)
        != 0)
        return glm_within(err, "%s", r->path);
    return 0;
}

/* ---- a configuration that is there -------------------------------------------------------------- */

static int read_file(struct recipe *r, const char *path, struct glm_error *err)
{
    FILE *const f = fopen(path, "rb");
    if (!f)
        return glm_fail_errno(err, "%s: open", path);
    r->config_text = malloc(CONFIG_MAX_BYTES + 1);
    if (!r->config_text)
        glm_fail(err, GLM_ENOMEM, "%s: no memory", path);
    else
        r->config_size = fread(r->config_text, 1, CONFIG_MAX_BYTES + 1, f);
    if (ferror(f))
        glm_fail_errno(err, "%s: read", path);
    else if (r->config_text && r->config_size > CONFIG_MAX_BYTES)
        glm_fail(err, GLM_EFORMAT, "%s: longer than %d bytes", path, CONFIG_MAX_BYTES);
    else if (r->config_text)
        r->config_text[r->config_size] = 0;
    fclose(f);
    return err->code;
}

static int read_checkpoint(struct recipe *r, const char *path, struct glm_error *err)
{
    struct index *ix = NULL;
    void *data = NULL;
    if (index_open(&ix, path, err) != 0)
        return err->code;
    const struct ckpt_file *const f = index_find_file(ix, "config.json", false);
    if (!f)
        glm_fail(err, GLM_EFORMAT, "%s: holds no config.json", path);
    else if (index_file(ix, f, &data, err) == 0) {
        r->config_text = data;
        r->config_size = (size_t)f->bytes;
    }
    index_close(ix);
    return err->code;
}

/* config.json, a folder with it, or a checkpoint. */
static int read_config(struct recipe *r, const char *path, struct glm_error *err)
{
    struct stat st;
    char *const index = recipe_format(r, err, "%s/index.h5", path);
    char *const config = recipe_format(r, err, "%s/config.json", path);
    if (!index || !config)
        return err->code;
    if (stat(path, &st) != 0)
        return glm_fail_errno(err, "%s", path);
    const bool folder = S_ISDIR(st.st_mode), ckpt = folder && stat(index, &st) == 0;
    if (r->load && !ckpt)
        return recipe_refuse(r, "GLM.load", err,
            "%s is no checkpoint; import a Hugging Face "
            "directory with glm-import first",
            path);
    if (ckpt ? read_checkpoint(r, path, err) : read_file(r, folder ? config : path, err))
        return err->code;
    return config_parse(
        &r->config, folder && !ckpt ? config : path, r->config_text, r->config_size, err);
}

/* A key that the recipe states must be what the configuration says; one that it does not, is. */
static int agree_int(struct recipe *r, const char *key, int64_t x, const char *named,
    struct glm_error *err)
{
    if (!recipe_given(r, key))
        return recipe_derive_int(r, key, x, err);
    const struct recipe_value *const v = recipe_find(r, key);
    if (strtoll(v->text, NULL, 10) != x)
        return recipe_refuse(r, key, err, "the recipe says %s, %s says %s = %lld",
            v->text, r->load ? r->load : r->model, named, (long long)x);
    return 0;
}

static int agree_real(
    struct recipe *r, const char *key, double x, const char *named, struct glm_error *err)
{
    if (!recipe_given(r, key))
        return recipe_derive_real(r, key, x, err);
    const struct recipe_value *const v = recipe_find(r, key);
    const double y = strtod(v->text, NULL);
    if (y < x || y > x)
        return recipe_refuse(r, key, err, "the recipe says %s, %s says %s = %.17g",
            v->text, r->load ? r->load : r->model, named, x);
    return 0;
}

static int agree_layers(struct recipe *r, struct glm_error *err)
{
    const struct model_config *const c = &r->config;
    const int64_t L = c->num_hidden_layers;
    struct glm_error inner = {0};
    bool *const is_moe = recipe_alloc(r, (size_t)L * sizeof *is_moe, err);
    char *const text = recipe_alloc(r, (size_t)L * 2 + 2, err);
    if (!is_moe || !text)
        return err->code;
    text[0] = '[';
    for (int64_t i = 0; i < L; i++) {
        text[2 * i + 1] = c->layer_is_dense[i] ? '0' : '1';
        text[2 * i + 2] = i + 1 < L ? ',' : ']';
    }
    if (!recipe_given(r, "moe_layer_freq"))
        return recipe_derive_text(r, "moe_layer_freq", text, err);
    if (recipe_layer_freq(r->arch.moe_layer_freq, L, is_moe, &inner) != 0)
        return recipe_refuse(r, "moe_layer_freq", err, "%s", inner.text);
    for (int64_t i = 0; i < L; i++)
        if (is_moe[i] == c->layer_is_dense[i])
            return recipe_refuse(r, "moe_layer_freq", err,
                "layer %lld is %s here, %s in %s", (long long)i,
                is_moe[i] ? "MoE" : "dense", is_moe[i] ? "dense" : "MoE",
                r->load ? r->load : r->model);
    return 0;
}

/* The IndexShare schedule of ARGS against the layers that own an indexer. */
static int agree_indexers(struct recipe *r, struct glm_error *err)
{
    const struct model_config *const c = &r->config;
    if (!recipe_given(r, "dsa_indexer_topk_freq")
        && !recipe_given(r, "dsa_indexer_skip_topk_offset"))
        return 0;
    const int64_t freq =
        r->arch.dsa_indexer_topk_freq > 0 ? r->arch.dsa_indexer_topk_freq : 1;
    const int64_t skip = r->arch.dsa_indexer_skip_topk_offset > 1
        ? r->arch.dsa_indexer_skip_topk_offset
        : 1;
    for (int64_t i = 0; i < c->num_hidden_layers; i++) {
        const bool owns = i + 1 <= skip || (i + 1 - skip) % freq == 0;
        if (owns != c->layer_owns_indexer[i])
            return recipe_refuse(r, "dsa_indexer_topk_freq", err,
                "with offset %lld layer %lld %s its "
                "index set, in %s it %s",
                (long long)skip, (long long)i, owns ? "computes" : "shares",
                r->load ? r->load : r->model, owns ? "shares" : "computes");
    }
    return 0;
}

static int agree(struct recipe *r, struct glm_error *err)
{
    const struct model_config *const c = &r->config;
    const struct {
        const char *key, *named;
        int64_t x;
    } ints[] = {
        {"num_layers", "num_hidden_layers", c->num_hidden_layers},
        {"hidden_size", "hidden_size", c->hidden_size},
        {"ffn_hidden_size", "intermediate_size", c->intermediate_size},
        {"moe_ffn_hidden_size", "moe_intermediate_size", c->moe_intermediate_size},
        {"moe_shared_expert_intermediate_size",
            "n_shared_experts * moe_intermediate_size",
            c->n_shared_experts * c->moe_intermediate_size},
        {"num_attention_heads", "num_attention_heads", c->num_heads},
        {"q_lora_rank", "q_lora_rank", c->q_lora_rank},
        {"kv_lora_rank", "kv_lora_rank", c->kv_lora_rank},
        {"qk_head_dim", "qk_nope_head_dim", c->qk_nope_head_dim},
        {"qk_pos_emb_head_dim", "qk_rope_head_dim", c->qk_rope_head_dim},
        {"v_head_dim", "v_head_dim", c->v_head_dim},
        {"num_experts", "n_routed_experts", c->n_routed_experts},
        {"moe_router_topk", "num_experts_per_tok", c->num_experts_per_tok},
        {"moe_router_num_groups", "n_group", c->n_group},
        {"moe_router_group_topk", "topk_group", c->topk_group},
        {"dsa_indexer_n_heads", "index_n_heads", c->index_n_heads},
        {"dsa_indexer_head_dim", "index_head_dim", c->index_head_dim},
        {"dsa_indexer_topk", "index_topk", c->index_topk},
        {"vocab_size", "vocab_size", c->vocab_size},
    };
    const struct {
        const char *key, *named;
        double x;
    } reals[] = {
        {"moe_router_topk_scaling_factor", "routed_scaling_factor",
            c->routed_scaling_factor},
        {"rotary_base", "rope_theta", c->rope_theta},
        {"layernorm_epsilon", "rms_norm_eps", c->rms_norm_eps},
    };
    for (size_t i = 0; i < sizeof ints / sizeof ints[0]; i++)
        if (agree_int(r, ints[i].key, ints[i].x, ints[i].named, err) != 0)
            return err->code;
    if (c->rope_theta < 1)
        return glm_fail(err, GLM_EFORMAT,
            "%s: its config.json has no rope_theta, and training "
            "computes with it",
            r->load ? r->load : r->model);
    for (size_t i = 0; i < sizeof reals / sizeof reals[0]; i++)
        if (agree_real(r, reals[i].key, reals[i].x, reals[i].named, err) != 0)
            return err->code;
    if (!recipe_given(r, "max_position_embeddings"))
        recipe_derive_int(r, "max_position_embeddings", c->max_position_embeddings, err);
    if (!recipe_given(r, "init_method_std"))
        recipe_derive_real(r, "init_method_std", c->initializer_range, err);
    if (err->code != GLM_OK || agree_layers(r, err) != 0 || agree_indexers(r, err) != 0)
        return err->code;
    if (!recipe_given(r, "mtp_num_layers"))
        return recipe_derive_int(r, "mtp_num_layers", c->num_mtp_layers > 0, err);
    if (r->train.mtp_depth > 0 && c->num_mtp_layers == 0)
        return recipe_refuse(r, "mtp_num_layers", err, "%s has no MTP layer",
            r->load ? r->load : r->model);
    return 0;
}

int recipe_resolve_model(struct recipe *r, struct glm_error *err)
{
    if (r->model && r->load)
        return recipe_refuse(r, "GLM.model", err,
            "GLM.load is there, too; a run starts either at "
            "random from a configuration or from a checkpoint");
    const char *const path = r->load ? r->load : r->model;
    if (!path)
        return from_args(r, err);
    if (read_config(r, path, err) != 0)
        return glm_within(err, "%s", r->path);
    return agree(r, err);
}
