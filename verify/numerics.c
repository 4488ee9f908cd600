#include "verify/numerics.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/kernels.h"
#include "verify/numerics_inside.h"

/* As in the script that makes the files. */
static const double MTP_COEFF = 0.3, INDEXER_COEFF = 0.5;

int numerics_missing(const struct numerics *r, const char *array)
{
    return glm_fail(r->err, GLM_EFORMAT,
        "golden array '%s' is not there, or not of the type and size that the model "
        "gives it",
        array);
}

/* ---- the model is the file's ------------------------------------------------------------------ */

#define INT(field)                                                                       \
    {                                                                                    \
#field, offsetof(struct model_config, field)                                     \
    }
static const struct {
    const char *name;
    size_t at;
} whole_numbers[] = {INT(vocab_size), INT(hidden_size), INT(intermediate_size),
    INT(moe_intermediate_size), INT(num_hidden_layers), INT(num_heads), INT(q_lora_rank),
    INT(kv_lora_rank), INT(qk_nope_head_dim), INT(qk_rope_head_dim), INT(v_head_dim),
    INT(n_routed_experts), INT(n_shared_experts), INT(num_experts_per_tok), INT(n_group),
    INT(topk_group), INT(index_n_heads), INT(index_head_dim), INT(index_topk),
    INT(pad_token_id)},
  reals[] = {INT(rms_norm_eps), INT(rope_theta), INT(routed_scaling_factor)};
#undef INT

enum {
    WHOLE_NUMBERS = sizeof whole_numbers / sizeof *whole_numbers,
    REALS = sizeof reals / sizeof *reals
};

static int other(struct glm_error *err, const char *key, double model, double golden)
{
    return glm_fail(err, GLM_EUSAGE,
        "is of another model: %s is %g there and %g in the checkpoint", key, golden,
        model);
}

/* What changes a number that is compared; not the names of things. */
static int same_model(const struct model_config *model, const struct model_config *golden,
    struct glm_error *err)
{
    for (int i = 0; i < WHOLE_NUMBERS; i++) {
        int64_t a, b;
        memcpy(&a, (const char *)model + whole_numbers[i].at, sizeof a);
        memcpy(&b, (const char *)golden + whole_numbers[i].at, sizeof b);
        if (a != b)
            return other(err, whole_numbers[i].name, (double)a, (double)b);
    }
    for (int i = 0; i < REALS; i++) {
        double a, b;
        memcpy(&a, (const char *)model + reals[i].at, sizeof a);
        memcpy(&b, (const char *)golden + reals[i].at, sizeof b);
        if (a != b)
            return other(err, reals[i].name, a, b);
    }
    if (model->norm_topk_prob != golden->norm_topk_prob)
        return other(
            err, "norm_topk_prob", model->norm_topk_prob, golden->norm_topk_prob);
    for (int64_t i = 0; i < model->num_hidden_layers; i++)
        if (model->layer_is_dense[i] != golden->layer_is_dense[i]
            || model->layer_owns_indexer[i] != golden->layer_owns_indexer[i])
            return glm_fail(err, GLM_EUSAGE,
                "is of another model: layer %" PRId64 " is of another kind there", i);
    return GLM_OK;
}

static int check_model(
    const struct model_config *model, const struct golden *g, struct glm_error *err)
{
    const char *const text = golden_text(g, "config");
    struct model_config c = {0};

    if (text == NULL)
        return glm_fail(err, GLM_EFORMAT,
            "is no golden file: its metadata has no 'config' "
            "(fixtures/make_parity_golden.py "
            "writes one)");
    if (config_parse(&c, "config", text, strlen(text), err) == GLM_OK)
        same_model(model, &c, err);
    config_clear(&c);
    return err->code;
}

/* ---- the batch, and sets to replay ------------------------------------------------------------ */

static int batch(struct numerics *r)
{
    const int64_t V = r->table->config.vocab_size;
    int64_t n[4] = {0};
    struct model_batch b = {.ids = golden_i32(r->g, "ids", &n[0]),
        .positions = golden_i32(r->g, "positions", &n[1]),
        .targets = golden_i32(r->g, "targets", &n[2]),
        .cu_seqlens = golden_i32(r->g, "cu_seqlens", &n[3])};

    b.tokens = n[0];
    b.sequences = n[3] - 1;
    if (b.ids == NULL || n[0] < 1)
        return numerics_missing(r, "ids");
    if (b.positions == NULL || n[1] != n[0])
        return numerics_missing(r, "positions");
    if (b.targets == NULL || n[2] != n[0])
        return numerics_missing(r, "targets");
    if (b.cu_seqlens == NULL || n[3] < 2)
        return numerics_missing(r, "cu_seqlens");
    for (int64_t t = 0; t < n[0]; t++)
        if (b.ids[t] < 0 || b.ids[t] >= V || b.positions[t] < 0 || b.targets[t] >= V)
            return glm_fail(r->err, GLM_EFORMAT,
                "token %" PRId64 " of the batch is outside the vocabulary of %" PRId64
                ", or before position 0",
                t, V);
    r->batch = b;
    return GLM_OK;
}

/* Rows of ascending numbers below a limit, -1 behind: what the operations rely on. causal: a row's
 * numbers are not beyond it. */
static int check_rows(const struct numerics *r, const char *name, const int32_t *rows,
    int64_t width, int64_t limit, bool causal)
{
    for (int64_t i = 0; i < r->batch.tokens * width; i++) {
        const bool begins = i % width == 0;
        const int32_t x = rows[i], before = begins ? -1 : rows[i - 1];
        const bool end = causal && x == -1 && !begins;
        if (!end
            && (x <= before || (!begins && before < 0) || x >= limit
                || (causal && x > i / width)))
            return glm_fail(r->err, GLM_EFORMAT,
                "golden array '%s': row %" PRId64 " is no ascending set", name,
                i / width);
    }
    return GLM_OK;
}

static int recorded(struct numerics *r, const char *kind, int64_t layer, int64_t width,
    int64_t limit, const int32_t **out)
{
    const bool low = r->o->dtype == GLM_BF16;
    char name[64];
    int64_t n = 0;

    snprintf(name, sizeof name, "%s%s.%" PRId64, low ? "bf16." : "", kind, layer);
    *out = golden_i32(r->g, name, &n);
    if (*out == NULL || n != r->batch.tokens * width)
        return numerics_missing(r, name);
    return check_rows(r, name, *out, width, limit, kind[0] == 'i');
}

/* index, expert: [layers], zeroed. */
static int take_sets(struct numerics *r, const int32_t **index, const int32_t **expert)
{
    const struct model_config *const c = &r->table->config;

    for (int64_t i = 0; i < c->num_hidden_layers + r->both; i++) {
        const bool mtp = i >= c->num_hidden_layers;
        if ((mtp || c->layer_owns_indexer[i])
            && recorded(r, "index", i, model_keys(r->m), r->batch.tokens, &index[i])
                != GLM_OK)
            return r->err->code;
        if ((mtp || !c->layer_is_dense[i])
            && recorded(r, "expert", i, c->num_experts_per_tok, c->n_routed_experts,
                   &expert[i])
                != GLM_OK)
            return r->err->code;
    }
    return GLM_OK;
}

/* ---- where the model runs --------------------------------------------------------------------- */

struct home numerics_home(const struct numerics *r)
{
    return (struct home){.k = r->k, .stream = r->stream};
}

static size_t gradient_bytes(const struct numerics *r, int64_t i)
{
    return (size_t)numerics_elements(&r->table->entries[i])
        * (r->o->dtype == GLM_F64 ? sizeof(double) : sizeof(float));
}

static size_t weight_bytes(const struct numerics *r, int64_t i)
{
    const struct table_entry *const e = &r->table->entries[i];

    return (size_t)numerics_elements(e)
        * glm_dtype_size(e->optimizer == OPT_ROUTER_BIAS ? GLM_F32 : r->o->dtype);
}

static void leave(struct numerics *r)
{
    for (int64_t i = 0; r->there != NULL && !r->k->host && i < r->table->count; i++) {
        r->k->release((void *)(uintptr_t)r->there[i].w);
        r->k->release(r->there[i].dw);
    }
    free(r->there);
    r->there = NULL;
}

/* Weights, and room for gradients, in the device's memory. */
static int settle(struct numerics *r)
{
    const int64_t count = r->table->count;

    r->there = calloc((size_t)count + 1, sizeof *r->there);
    if (r->there == NULL)
        return glm_fail(r->err, GLM_ENOMEM, "no memory for %" PRId64 " tensors", count);
    if (r->k->host)
        memcpy(r->there, r->params, (size_t)count * sizeof *r->there);
    for (int64_t i = 0; i < count && !r->k->host; i++) {
        const size_t bytes = weight_bytes(r, i);
        void *const w = r->k->alloc(bytes, r->err);
        r->there[i].w = w;
        if (w == NULL
            || r->k->to_device(w, r->params[i].w, bytes, r->stream, r->err) != GLM_OK)
            return r->err->code;
        if (r->params[i].dw != NULL
            && (r->there[i].dw = r->k->alloc(gradient_bytes(r, i), r->err)) == NULL)
            return r->err->code;
    }
    return r->err->code;
}

static int zero_gradients(const struct numerics *r)
{
    const struct home home = numerics_home(r);

    for (int64_t i = 0; i < r->table->count; i++)
        if (r->there[i].dw != NULL
            && home_zero(&home, r->there[i].dw, gradient_bytes(r, i), r->err) != GLM_OK)
            break;
    return r->err->code;
}

static int fetch_gradients(const struct numerics *r)
{
    for (int64_t i = 0; i < r->table->count && !r->k->host; i++)
        if (r->there[i].dw != NULL
            && r->k->to_host(r->params[i].dw, r->there[i].dw, gradient_bytes(r, i),
                   r->stream, r->err)
                != GLM_OK)
            break;
    return r->err->code;
}

/* ---- a run ------------------------------------------------------------------------------------ */

static int forward(struct numerics *r)
{
    const size_t layers = (size_t)r->table->config.num_hidden_layers + 2;
    const int32_t **index = calloc(2 * layers, sizeof *index);
    const struct model_replay replay = {.index = index, .expert = index + layers};

    if (index == NULL)
        return glm_fail(r->err, GLM_ENOMEM, "no memory for %zu layers", layers);
    if (!r->replay || take_sets(r, index, index + layers) == GLM_OK)
        model_forward(r->m, &r->batch, r->replay ? &replay : NULL, r->err);
    free(index);
    return r->err->code;
}

static int steps(struct numerics *r)
{
    const bool low = r->o->dtype == GLM_BF16;

    if (forward(r) != GLM_OK || (!r->replay && numerics_sets(r) != GLM_OK)
        || numerics_logits(r) != GLM_OK || (low && (!r->report->whole || r->o->choose)))
        return r->err->code;
    const struct model_losses *const l = model_losses(r->m);
    const struct model_scale scale = {
        .lm = l->lm_count > 0 ? 1.0 / (double)l->lm_count : 0,
        .mtp = l->mtp_count > 0 ? 1.0 / (double)l->mtp_count : 0,
        .indexer = 1.0 / (double)r->batch.tokens};
    if (zero_gradients(r) == GLM_OK && model_backward(r->m, &scale, r->err) == GLM_OK
        && (low || numerics_losses(r) == GLM_OK) && fetch_gradients(r) == GLM_OK)
        numerics_gradients(r);
    return r->err->code;
}

static int run(struct numerics *r, const char *reference, bool both)
{
    const struct model_options o = {.dtype = r->o->dtype,
        .max_tokens = r->batch.tokens,
        .max_sequences = r->batch.sequences,
        .indexer_loss = both ? MODEL_INDEXER_SPARSE : MODEL_INDEXER_OFF,
        .indexer_coeff = INDEXER_COEFF,
        .mtp = both,
        .mtp_coeff = MTP_COEFF,
        .absorbed = r->o->absorbed,
        .hf_rounding = true,
        .hf_scales = true,
        .zero_padding_row_grad = true};

    r->reference = reference;
    r->both = both;
    if (model_new(&r->m, r->table, r->there, &o, r->k, r->stream, r->err) == GLM_OK)
        steps(r);
    model_free(r->m);
    r->m = NULL;
    return r->err->code;
}

static int verdict(const struct numerics_report *p, struct glm_error *err)
{
    if (p->first < 0)
        return GLM_OK;
    const struct numerics_row *const w = &p->rows[p->first];
    const char *const open = w->where[0] != '\0' ? " (" : "";
    const char *const close = w->where[0] != '\0' ? ")" : "";
    if (w->quantity <= NUMERICS_EXPERT)
        return glm_fail(err, GLM_EMISMATCH,
            "%s differ from %s first: %.0f of %" PRId64 " rows%s%s%s",
            numerics_name(w->quantity), w->reference, w->worst, w->compared, open,
            w->where, close);
    return glm_fail(err, GLM_EMISMATCH,
        "%s differ from %s first: by %.2g, at most %.2g is allowed%s%s%s",
        numerics_name(w->quantity), w->reference, w->worst, w->bound, open, w->where,
        close);
}

int numerics_compare(struct numerics_report *report, const struct golden *g,
    const struct table *table, const struct model_param *params,
    const struct numerics_options *o, struct glm_error *err)
{
    const bool low = o->dtype == GLM_BF16;
    const char *const whole = golden_text(g, "whole");
    struct numerics r = {.o = o,
        .g = g,
        .table = table,
        .params = params,
        .replay = o->replay || (low && !o->choose),
        .report = report,
        .err = err};
    int64_t n = 0;
    const bool both = golden_f64(g, "mtp", &n) != NULL;

    *report = (struct numerics_report){.first = -1,
        .whole = whole != NULL && strcmp(whole, "1") == 0,
        .replayed = r.replay};
    if (check_model(&table->config, g, err) != GLM_OK || batch(&r) != GLM_OK)
        return err->code;
    if (!low && both && o->reference != NUMERICS_TRANSFORMERS
        && table->config.num_mtp_layers < 1)
        return glm_fail(err, GLM_EUSAGE,
            "has numbers of an MTP layer, which the checkpoint does not hold");
    if ((r.k = kernels_open(o->device != NULL ? o->device : "cpu", err)) == NULL
        || (r.stream = r.k->stream_new(o->threads, err)) == NULL)
        return err->code;
    if (settle(&r) != GLM_OK)
        glm_within(err, "%s", r.k->name);
    else if (low)
        run(&r, "transformers bf16", false);
    else if (o->reference != NUMERICS_FLOAT64)
        run(&r, "transformers", false);
    if (err->code == GLM_OK && !low && both && o->reference != NUMERICS_TRANSFORMERS)
        run(&r, "float64", true);
    leave(&r);
    r.k->stream_free(r.stream);
    return err->code == GLM_OK ? verdict(report, err) : (int)err->code;
}

/* ---- from a checkpoint ------------------------------------------------------------------------ */

static int with_params(struct numerics_report *report, struct reader *reader,
    const struct golden *g, const struct numerics_options *o, struct glm_error *err)
{
    const struct table *const table = reader_manifest(reader)->table;
    const struct params_options po = {
        .dtype = o->dtype, .trained = PARAMS_ALL, .threads = o->threads};
    struct model_param *const linked = calloc((size_t)table->count + 1, sizeof *linked);
    struct params *p = NULL;

    /* Before anything large is read. */
    if (check_model(&table->config, g, err) != GLM_OK) {
        glm_within(err, "%s", o->golden);
    } else if (linked == NULL) {
        glm_fail(err, GLM_ENOMEM, "no memory for %" PRId64 " tensors", table->count);
    } else if (params_new(&p, table, &po, err) == GLM_OK) {
        if (params_load(p, reader, err) != GLM_OK) {
            glm_within(err, "%s", reader_index(reader)->path);
        } else {
            modelparams_link(p, linked);
            if (numerics_compare(report, g, table, linked, o, err) != GLM_OK)
                glm_within(err, "%s", o->golden);
        }
    }
    params_free(p);
    free(linked);
    return err->code;
}

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int numerics_run(struct numerics_report *report, const char *ckpt,
    const struct numerics_options *o, struct glm_error *err)
{
    const double begun = now();
    struct reader *reader = NULL;
    struct golden *g = NULL;

    *report = (struct numerics_report){.first = -1};
    if (golden_open(&g, o->golden, err) == GLM_OK
        && reader_open(&reader, ckpt, err) == GLM_OK)
        with_params(report, reader, g, o, err);
    report->seconds = now() - begun;
    reader_close(reader);
    golden_close(g);
    return err->code;
}
