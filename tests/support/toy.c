/* The second enumeration of a model's tensors (the first is the parameter table), and their
 * elements. Written from the model's shapes only; nothing here looks at ckpt/. */
#include "tests/support/toy.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/toy_private.h"

static _Thread_local char error_text[512];

const char *toy_error(void)
{
    return error_text;
}

int toy_fail(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(error_text, sizeof error_text, fmt, args);
    va_end(args);
    return -1;
}

static const struct {
    const char *name;
    size_t size;
} types[TOY_TYPES] = {
    {"BF16", 2},
    {"F16", 2},
    {"F32", 4},
    {"F8_E4M3", 1},
    {"F8_E8M0", 1},
    {"U8", 1},
};

size_t toy_type_size(enum toy_type type)
{
    return types[type].size;
}

const char *toy_type_name(enum toy_type type)
{
    return types[type].name;
}

/* ---- the configuration, as far as shapes need it ---- */

struct shape {
    int64_t hidden, vocab, dense, expert, layers, mtp, heads, q_lora, kv_lora, nope, rope,
        v;
    int64_t experts, shared, index_heads, index_dim;
    bool tied;
    bool *is_dense, *has_indexer;
};

static int get(const json_t *root, const char *key, int64_t *out)
{
    const json_t *v = json_object_get(root, key);
    if (!json_is_integer(v))
        return toy_fail("config: '%s' is not a whole number", key);
    *out = json_integer_value(v);
    return 0;
}

static int64_t get_or(const json_t *root, const char *key, int64_t other)
{
    const json_t *v = json_object_get(root, key);
    return json_is_integer(v) ? json_integer_value(v) : other;
}

static void read_layers(struct shape *s, const json_t *root)
{
    const json_t *mlp = json_object_get(root, "mlp_layer_types");
    const json_t *types_list = json_object_get(root, "indexer_types");
    const int64_t first = get_or(root, "first_k_dense_replace", 0);
    const int64_t freq = get_or(root, "index_topk_freq", 1);
    const int64_t offset = get_or(root, "index_skip_topk_offset", 2);
    for (int64_t i = 0; i < s->layers; i++) {
        const char *m = json_string_value(json_array_get(mlp, (size_t)i));
        const char *x = json_string_value(json_array_get(types_list, (size_t)i));
        const int64_t n = i - offset + 1;
        s->is_dense[i] = m ? strcmp(m, "dense") == 0 : i < first;
        s->has_indexer[i] = x ? strcmp(x, "full") == 0 : n <= 0 || n % freq == 0;
    }
}

static int read_shape(struct shape *s, const json_t *root)
{
    *s = (struct shape){0};
    if (get(root, "hidden_size", &s->hidden) || get(root, "vocab_size", &s->vocab)
        || get(root, "intermediate_size", &s->dense)
        || get(root, "moe_intermediate_size", &s->expert)
        || get(root, "num_hidden_layers", &s->layers)
        || get(root, "num_attention_heads", &s->heads)
        || get(root, "q_lora_rank", &s->q_lora) || get(root, "kv_lora_rank", &s->kv_lora)
        || get(root, "qk_nope_head_dim", &s->nope)
        || get(root, "qk_rope_head_dim", &s->rope) || get(root, "v_head_dim", &s->v)
        || get(root, "n_routed_experts", &s->experts)
        || get(root, "n_shared_experts", &s->shared)
        || get(root, "index_n_heads", &s->index_heads)
        || get(root, "index_head_dim", &s->index_dim))
        return -1;
    s->mtp = get_or(root, "num_nextn_predict_layers", 0);
    s->tied = json_is_true(json_object_get(root, "tie_word_embeddings"));
    s->is_dense = calloc((size_t)s->layers + 1, sizeof *s->is_dense);
    s->has_indexer = calloc((size_t)s->layers + 1, sizeof *s->has_indexer);
    if (!s->is_dense || !s->has_indexer)
        return toy_fail("no memory");
    read_layers(s, root);
    return 0;
}

/* ---- the list ---- */

struct build {
    struct toy_model *m;
    const struct toy_options *o;
    int64_t capacity;
    int failed;
};

static struct toy_tensor *append(struct build *b, char *name)
{
    if (b->m->count == b->capacity) {
        b->capacity = b->capacity ? 2 * b->capacity : 256;
        struct toy_tensor *t = realloc(b->m->tensors, (size_t)b->capacity * sizeof *t);
        if (!t) {
            free(name);
            b->failed = 1;
            return NULL;
        }
        b->m->tensors = t;
    }
    struct toy_tensor *t = &b->m->tensors[b->m->count++];
    *t = (struct toy_tensor){.name = name, .rank = 2, .shape = {1, 1, 1}};
    return t;
}

static void finish(struct build *b, struct toy_tensor *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->rank; i++)
        n *= t->shape[i];
    t->bytes = (uint64_t)n * toy_type_size(t->type);
    b->m->bytes += t->bytes;
    if (!t->is_scale)
        b->m->elements += n;
}

static void add_scale(struct build *b, const char *weight, int64_t rows, int64_t cols)
{
    const struct toy_options *o = b->o;
    const size_t stem = strlen(weight) - strlen(".weight");
    const bool fp8 = o->form == TOY_FP8;
    const int64_t r = fp8 ? (o->block[0] ? o->block[0] : 128) : 1;
    const int64_t c = fp8 ? (o->block[1] ? o->block[1] : 128) : 32;
    char *name = NULL;
    if (asprintf(&name, "%.*s%s", (int)stem, weight,
            fp8 ? ".weight_scale_inv" : ".weight_scale")
        < 0) {
        b->failed = 1;
        return;
    }
    struct toy_tensor *t = append(b, name);
    if (!t)
        return;
    t->type = fp8 ? TOY_F32 : o->form == TOY_MX_U8 ? TOY_U8 : TOY_E8M0;
    t->is_scale = true;
    t->shape[0] = (rows + r - 1) / r;
    t->shape[1] = (cols + c - 1) / c;
    finish(b, t);
}

enum flags { PLAIN = 0, QUANT = 1, FLOAT = 2 };

/* rank: 1 (cols = 1 is ignored), 2; the name is "<prefix><suffix>". */
static void add(struct build *b, const char *prefix, const char *suffix, int rank,
    int64_t rows, int64_t cols, int flags)
{
    char *name = NULL;
    if (asprintf(&name, "%s%s", prefix, suffix) < 0) {
        b->failed = 1;
        return;
    }
    struct toy_tensor *t = append(b, name);
    if (!t)
        return;
    t->rank = rank;
    t->shape[0] = rows;
    t->shape[1] = cols;
    t->quantised = (flags & QUANT) != 0;
    const bool codes = t->quantised && b->o->form != TOY_PLAIN;
    t->type = flags & FLOAT ? TOY_F32 : codes ? TOY_E4M3 : b->o->dtype;
    finish(b, t);
    if (codes)
        add_scale(b, name, rows, cols);
}

static void add_stack(struct build *b, const char *prefix, const char *suffix,
    int64_t experts, int64_t rows, int64_t cols, int kind)
{
    char *name = NULL;
    if (asprintf(&name, "%s%s", prefix, suffix) < 0) {
        b->failed = 1;
        return;
    }
    struct toy_tensor *t = append(b, name);
    if (!t)
        return;
    t->rank = 3;
    t->shape[0] = experts;
    t->shape[1] = rows;
    t->shape[2] = cols;
    t->type = b->o->dtype;
    t->quantised = true;
    t->fused = kind;
    finish(b, t);
}

static void add_attention(
    struct build *b, const struct shape *s, const char *p, bool indexer)
{
    const int64_t H = s->hidden, N = s->heads;
    add(b, p, "self_attn.q_a_proj.weight", 2, s->q_lora, H, QUANT);
    add(b, p, "self_attn.q_a_layernorm.weight", 1, s->q_lora, 1, PLAIN);
    add(b, p, "self_attn.q_b_proj.weight", 2, N * (s->nope + s->rope), s->q_lora, QUANT);
    add(b, p, "self_attn.kv_a_proj_with_mqa.weight", 2, s->kv_lora + s->rope, H, QUANT);
    add(b, p, "self_attn.kv_a_layernorm.weight", 1, s->kv_lora, 1, PLAIN);
    add(b, p, "self_attn.kv_b_proj.weight", 2, N * (s->nope + s->v), s->kv_lora, QUANT);
    add(b, p, "self_attn.o_proj.weight", 2, H, N * s->v, QUANT);
    if (!indexer)
        return;
    add(b, p, "self_attn.indexer.wq_b.weight", 2, s->index_heads * s->index_dim,
        s->q_lora, QUANT);
    add(b, p, "self_attn.indexer.wk.weight", 2, s->index_dim, H, QUANT);
    add(b, p, "self_attn.indexer.k_norm.weight", 1, s->index_dim, 1, PLAIN);
    add(b, p, "self_attn.indexer.k_norm.bias", 1, s->index_dim, 1, PLAIN);
    add(b, p, "self_attn.indexer.weights_proj.weight", 2, s->index_heads, H, PLAIN);
}

static void add_mlp(
    struct build *b, const char *p, const char *which, int64_t width, int64_t hidden)
{
    char prefix[160];
    snprintf(prefix, sizeof prefix, "%smlp.%s", p, which);
    add(b, prefix, "gate_proj.weight", 2, width, hidden, QUANT);
    add(b, prefix, "up_proj.weight", 2, width, hidden, QUANT);
    add(b, prefix, "down_proj.weight", 2, hidden, width, QUANT);
}

static void add_experts(struct build *b, const struct shape *s, const char *p)
{
    const int64_t H = s->hidden, M = s->expert;
    add(b, p, "mlp.gate.weight", 2, s->experts, H, PLAIN);
    add(b, p, "mlp.gate.e_score_correction_bias", 1, s->experts, 1, FLOAT);
    if (b->o->fused) {
        add_stack(b, p, "mlp.experts.gate_up_proj", s->experts, 2 * M, H, 1);
        add_stack(b, p, "mlp.experts.down_proj", s->experts, H, M, 2);
    }
    for (int64_t e = 0; e < s->experts && !b->o->fused; e++) {
        char which[40];
        snprintf(which, sizeof which, "experts.%lld.", (long long)e);
        add_mlp(b, p, which, M, H);
    }
    add_mlp(b, p, "shared_experts.", s->shared * M, H);
}

static void add_layer(struct build *b, const struct shape *s, int64_t i)
{
    char p[64];
    const bool mtp = i >= s->layers;
    snprintf(p, sizeof p, "model.layers.%lld.", (long long)i);
    if (mtp) {
        add(b, p, "enorm.weight", 1, s->hidden, 1, PLAIN);
        add(b, p, "hnorm.weight", 1, s->hidden, 1, PLAIN);
        add(b, p, "eh_proj.weight", 2, s->hidden, 2 * s->hidden, PLAIN);
        add(b, p, "shared_head.norm.weight", 1, s->hidden, 1, PLAIN);
    }
    add(b, p, "input_layernorm.weight", 1, s->hidden, 1, PLAIN);
    add(b, p, "post_attention_layernorm.weight", 1, s->hidden, 1, PLAIN);
    add_attention(b, s, p, mtp || s->has_indexer[i]);
    if (!mtp && s->is_dense[i])
        add_mlp(b, p, "", s->dense, s->hidden);
    else
        add_experts(b, s, p);
}

/* config.json as written: the given bytes, or with quantization_config put in. */
static char *config_text(const char *path, json_t *root, const struct toy_options *o)
{
    if (o->form == TOY_PLAIN && o->dtype == TOY_BF16)
        return toy_read_text(path);
    json_t *copy = json_deep_copy(root);
    if (o->form == TOY_FP8)
        json_object_set_new(copy, "quantization_config",
            json_pack("{s:s, s:s, s:s, s:[I,I]}", "activation_scheme", "dynamic", "fmt",
                "e4m3", "quant_method", "fp8", "weight_block_size",
                (json_int_t)(o->block[0] ? o->block[0] : 128),
                (json_int_t)(o->block[1] ? o->block[1] : 128)));
    else if (o->form != TOY_PLAIN)
        json_object_set_new(copy, "quantization_config",
            json_pack("{s:s, s:s, s:[i,i]}", "fmt", "e4m3", "quant_method", "mxfp8",
                "weight_block_size", 1, 32));
    if (o->dtype != TOY_BF16)
        json_object_set_new(
            copy, "dtype", json_string(o->dtype == TOY_F32 ? "float32" : "float16"));
    char *text = json_dumps(copy, JSON_INDENT(2));
    json_decref(copy);
    return text;
}

int toy_model_new(struct toy_model *out, const struct toy_options *o)
{
    struct shape s = {0};
    struct build b = {.m = out, .o = o};
    int rc = -1;
    *out = (struct toy_model){0};
    json_error_t je;
    json_t *root = json_load_file(o->config, 0, &je);
    if (!root) {
        toy_fail("%s: %s", o->config, je.text);
        goto out;
    }
    if (o->fused && o->form != TOY_PLAIN) {
        toy_fail("fused experts are made without scales only");
        goto out;
    }
    if (read_shape(&s, root) != 0)
        goto out;
    add(&b, "model.", "embed_tokens.weight", 2, s.vocab, s.hidden, PLAIN);
    for (int64_t i = 0; i < s.layers + (o->no_mtp ? 0 : s.mtp); i++)
        add_layer(&b, &s, i);
    add(&b, "model.", "norm.weight", 1, s.hidden, 1, PLAIN);
    if (!s.tied)
        add(&b, "lm_head.", "weight", 2, s.vocab, s.hidden, PLAIN);
    out->config_text = config_text(o->config, root, o);
    if (b.failed || !out->config_text) {
        toy_fail("no memory");
        goto out;
    }
    rc = 0;
out:
    json_decref(root);
    free(s.is_dense);
    free(s.has_indexer);
    if (rc != 0)
        toy_model_clear(out);
    return rc;
}

void toy_model_clear(struct toy_model *m)
{
    for (int64_t i = 0; i < m->count; i++)
        free(m->tensors[i].name);
    free(m->tensors);
    free(m->config_text);
    *m = (struct toy_model){0};
}
