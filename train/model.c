/* The modules in order, forward and backward.
 *
 * Everything a step needs lies in two arenas of one block. Their sizes are those of a dry run of the
 * very same functions at the largest batch (dry.h), so no second list of buffers can be wrong. */
#include "train/model.h"

#include <stdlib.h>
#include <string.h>

#include "train/bind.h"
#include "train/dry.h"
#include "train/mutate.h"

struct model {
    const struct table *table;
    const struct kernels *k;
    glm_stream stream;
    struct model_options options;
    struct run run;
    void *block;
    struct model_param embedding;
    struct layer *layers; /* [num_hidden_layers] */
    struct norm norm;
    struct head head;
    struct mtp mtp;
    struct inputs {
        int32_t *ids, *positions, *targets, *mtp_ids, *mtp_targets; /* [max_tokens] */
        int32_t *cu_seqlens; /* [max_sequences + 1] */
    } staged, placed; /* of one micro-batch, on the host; where operations read it */
    int32_t *staged_block,
        *placed_block; /* [slots], the same if the memory is the host's */
    size_t slot;       /* int32_t of a slot: all of its inputs, one behind the other */
    int64_t parts, slots;
    struct part {
        int64_t tokens, sequences, lm_count, mtp_count;
    } * part; /* [parts] as they were placed */
    /* Losses of each part: [parts][2] of the heads, then [parts][layers] of the indexers. Where
     * operations put them; the host's copy (the same, if the memory is the host's). */
    double *sums, *host_sums;
    struct model_losses losses;
    int64_t now;         /* the part at work */
    void *last, *hidden; /* [T,H] before and behind the final norm */
    bool recorded;       /* a forward that backward can use */
};

/* ---- forward ---------------------------------------------------------------------------------- */

static int64_t main_layers(const struct model *m)
{
    return m->table->config.num_hidden_layers;
}

static int tables(struct run *r, const int32_t *positions)
{
    const int64_t D = r->c->qk_rope_head_dim;
    void *cos = keep_acc(r, r->T * D / 2), *sin = keep_acc(r, r->T * D / 2);
    r->cos = cos;
    r->sin = sin;
    return RUN(r, rope_table, .cos = cos, .sin = sin, .positions = positions, .T = r->T,
        .D = D, .theta = r->c->rope_theta, .dtype = r->dtype);
}

static int stack_fwd(struct model *m, const struct model_replay *replay)
{
    struct run *r = &m->run;
    const int64_t H = r->c->hidden_size, n = r->T * H;
    const int32_t *index = NULL;
    void *x = keep_elem(r, n);
    if (RUN(r, embedding_fwd, .y = x, .table = m->embedding.w, .ids = m->placed.ids,
            .T = r->T, .V = r->c->vocab_size, .H = H, .dtype = r->dtype)
        != 0)
        return r->err->code;
    for (int64_t i = 0; i < main_layers(m); i++) {
        void *y = keep_elem(r, n);
        if (layer_fwd(&m->layers[i], r, x, index,
                replay && replay->index ? replay->index[i] : NULL,
                replay && replay->expert ? replay->expert[i] : NULL, y)
            != 0)
            return r->err->code;
        index = m->layers[i].index;
        x = y;
    }
    m->last = x;
    m->hidden = keep_elem(r, n);
    return norm_fwd(r, &m->norm, x, 0, m->hidden);
}

static int forward(struct model *m, const struct model_replay *replay)
{
    struct run *r = &m->run;
    const int64_t L = main_layers(m);
    r->keep.at = r->temp.at = 0;
    if (tables(r, m->placed.positions) != 0 || stack_fwd(m, replay) != 0
        || (r->o->stage != MODEL_TRAIN_INDEXER
            && head_fwd(&m->head, r, m->hidden, m->placed.targets) != 0))
        return r->err->code;
    if (!r->o->mtp)
        return 0;
    const void *mtp_input = m->hidden;
#ifdef MUTATE_MTP_RAW_HIDDEN
    mtp_input = m->last;
#endif
    return mtp_fwd(&m->mtp, r, &m->embedding, mtp_input, m->placed.mtp_ids,
        m->placed.mtp_targets, replay && replay->index ? replay->index[L] : NULL,
        replay && replay->expert ? replay->expert[L] : NULL);
}

/* ---- backward --------------------------------------------------------------------------------- */

static int indexers_bwd(struct model *m)
{
    struct run *r = &m->run;
    if (r->o->mtp && layer_bwd_indexer(&m->mtp.layer, r) != 0)
        return r->err->code;
    for (int64_t i = main_layers(m) - 1; i >= 0; i--)
        if (layer_bwd_indexer(&m->layers[i], r) != 0)
            return glm_within(r->err, "layer %d", (int)i);
    return 0;
}

/* dh [T,H]: what both heads say to the final norm's output. */
static int heads_bwd(struct model *m, const struct model_scale *scale, void *dh)
{
    struct run *r = &m->run;
    const int64_t n = r->T * r->c->hidden_size;
    const size_t mark = r->temp.at;
    if (head_bwd(&m->head, r, m->hidden, scale->lm, dh) == 0 && r->o->mtp) {
        void *dm = temp_elem(r, n);
        if (mtp_bwd(&m->mtp, r, &m->embedding, scale->mtp * r->o->mtp_coeff, dm) == 0)
            (void)RUN(r, add, .y = dh, .a = dh, .b = dm, .n = n, .dtype = r->dtype);
    }
    r->temp.at = mark;
    return r->err->code;
}

static int backward(struct model *m, const struct model_scale *scale)
{
    struct run *r = &m->run;
    const int64_t n = r->T * r->c->hidden_size;
    r->temp.at = 0;
    r->indexer_scale = scale->indexer;
    if (r->o->stage == MODEL_TRAIN_INDEXER)
        return indexers_bwd(m);
    void *d1 = temp_elem(r, n), *d2 = temp_elem(r, n);
    if (heads_bwd(m, scale, d1) != 0
        || norm_bwd(r, &m->norm, d1, m->last, 0, NULL, d2, 0) != 0)
        return r->err->code;
    for (int64_t i = main_layers(m) - 1; i >= 0; i--) {
        void *swap = d1;
        if (layer_bwd(&m->layers[i], r, d2, d1) != 0)
            return r->err->code;
        d1 = d2;
        d2 = swap;
    }
    return mtp_embedding_bwd(r, &m->embedding, m->placed.ids, d2);
}

/* ---- one step, from outside ------------------------------------------------------------------- */

static int check_batch(
    const struct model *m, const struct model_batch *b, struct glm_error *err)
{
    const struct model_options *o = &m->options;
    if (b->tokens < 1 || b->tokens > o->max_tokens || b->sequences < 1
        || b->sequences > o->max_sequences)
        return glm_fail(err, GLM_EFORMAT,
            "a batch of %lld tokens in %lld sequences: expected 1 to %lld tokens, 1 to "
            "%lld "
            "sequences",
            (long long)b->tokens, (long long)b->sequences, (long long)o->max_tokens,
            (long long)o->max_sequences);
    if (b->cu_seqlens[0] != 0 || b->cu_seqlens[b->sequences] != b->tokens)
        return glm_fail(err, GLM_EFORMAT,
            "a batch of %lld tokens whose sequences cover %d to %d", (long long)b->tokens,
            (int)b->cu_seqlens[0], (int)b->cu_seqlens[b->sequences]);
    for (int64_t s = 0; s < b->sequences; s++)
        if (b->cu_seqlens[s + 1] <= b->cu_seqlens[s])
            return glm_fail(err, GLM_EFORMAT, "sequence %lld of the batch has no tokens",
                (long long)s);
    return 0;
}

static int64_t count_targets(const int32_t *targets, int64_t n)
{
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++)
        count += targets[i] >= 0;
    return count;
}

static void cut(struct inputs *in, int32_t *block, int64_t tokens)
{
    *in = (struct inputs){.ids = block,
        .positions = block + tokens,
        .targets = block + 2 * tokens,
        .mtp_ids = block + 3 * tokens,
        .mtp_targets = block + 4 * tokens,
        .cu_seqlens = block + 5 * tokens};
}

/* From here on the model works on this part. */
static void choose_part(struct model *m, int64_t part, bool late, struct glm_error *err)
{
    const size_t at = m->slots > 1 ? (size_t)part * m->slot : 0;
    struct run *const r = &m->run;
    cut(&m->staged, m->staged_block + at, m->options.max_tokens);
    cut(&m->placed, m->placed_block + at, m->options.max_tokens);
    m->now = part;
    r->T = m->part[part].tokens;
    r->S = m->part[part].sequences;
    r->cu_seqlens = m->placed.cu_seqlens;
    r->late = late && !m->options.inference;
    r->err = err;
}

int model_place(
    struct model *m, int64_t part, const struct model_batch *b, struct glm_error *err)
{
    const struct inputs *const s = &m->staged;
    const size_t rows = (size_t)b->tokens * sizeof(int32_t);
    struct part *const p = &m->part[part];

    if (check_batch(m, b, err) != 0)
        return err->code;
    *p = (struct part){.tokens = b->tokens, .sequences = b->sequences};
    choose_part(m, part, b->late, err);
    memcpy(s->ids, b->ids, rows);
    memcpy(s->positions, b->positions, rows);
    memcpy(s->targets, b->targets, rows);
    memcpy(s->cu_seqlens, b->cu_seqlens, (size_t)(b->sequences + 1) * sizeof(int32_t));
    if (m->options.mtp) {
        mtp_shift(s->mtp_ids, b->ids, b->cu_seqlens, b->sequences, 0);
        mtp_shift(s->mtp_targets, b->targets, b->cu_seqlens, b->sequences, -100);
    }
    if (m->options.stage != MODEL_TRAIN_INDEXER) {
        p->lm_count = count_targets(b->targets, b->tokens);
        p->mtp_count = m->options.mtp ? count_targets(s->mtp_targets, b->tokens) : 0;
    }
    return m->k->host ? 0
                      : m->k->to_device(m->placed.ids, s->ids, m->slot * sizeof(int32_t),
                          m->stream, err);
}

static double *indexer_sums(const struct model *m, double *sums, int64_t part)
{
    return sums + 2 * m->parts + part * m->losses.layers;
}

static const struct layer *layer_of(const struct model *m, int64_t layer)
{
    return layer < main_layers(m) ? &m->layers[layer] : &m->mtp.layer;
}

static int sum_heads(struct model *m)
{
    struct run *const r = &m->run;
    double *const to = m->sums + 2 * m->now;
    if (r->o->stage == MODEL_TRAIN_INDEXER)
        return 0;
    if (RUN(r, total, .out = to, .x = m->head.loss, .n = r->T, .dtype = r->acc) != 0
        || !r->o->mtp)
        return r->err->code;
    return RUN(
        r, total, .out = to + 1, .x = m->mtp.head.loss, .n = r->T, .dtype = r->acc);
}

static int sum_kl(struct model *m)
{
    struct run *const r = &m->run;
    for (int64_t i = 0; r->o->indexer_loss != MODEL_INDEXER_OFF && i < m->losses.layers;
         i++)
        if (layer_of(m, i)->owns_indexer
            && RUN(r, total, .out = indexer_sums(m, m->sums, m->now) + i,
                   .x = layer_of(m, i)->indexer.kl, .n = r->T, .dtype = r->acc)
                != 0)
            return r->err->code;
    return 0;
}

static size_t sums_bytes(const struct model *m)
{
    return (size_t)(m->parts * (2 + m->losses.layers)) * sizeof(double);
}

int model_clear(struct model *m, struct glm_error *err)
{
    return m->k->zero(m->sums, sums_bytes(m), m->stream, err);
}

int model_fetch(struct model *m, struct glm_error *err)
{
    return m->k->host
        ? 0
        : m->k->to_host(m->host_sums, m->sums, sums_bytes(m), m->stream, err);
}

const struct model_losses *model_losses_of(struct model *m, int64_t part)
{
    struct model_losses *const l = &m->losses;
    const struct part *const p = &m->part[part];
    l->lm_sum = m->host_sums[2 * part];
    l->mtp_sum = m->host_sums[2 * part + 1];
    l->lm_count = p->lm_count;
    l->mtp_count = p->mtp_count;
    l->indexer_sum = indexer_sums(m, m->host_sums, part);
    l->indexer_rows = l->indexer_layers * p->tokens - (m->options.mtp ? p->sequences : 0);
    return l;
}

/* What has been queued is done, and its losses are here. */
static int settle(struct model *m, struct glm_error *err)
{
    if (m->k->stream_wait(m->stream, err) != 0 || model_fetch(m, err) != 0)
        return (int)err->code;
    model_losses_of(m, m->now);
    return 0;
}

/* The optimizer may have all of the buffers. */
static void lend_all(const struct model *m)
{
    if (m->k->lend != NULL)
        m->k->lend(m->stream, m->block, 0, m->run.keep.size + m->run.temp.size);
}

int model_forward(struct model *m, const struct model_batch *batch,
    const struct model_replay *replay, struct glm_error *err)
{
    m->recorded = false;
    if (model_place(m, 0, batch, err) != 0)
        return err->code;
    if (model_clear(m, err) != 0 || forward(m, replay) != 0
        || (!m->run.late && sum_heads(m) != 0) || (m->options.inference && sum_kl(m) != 0)
        || settle(m, err) != 0)
        return glm_within(err, "forward");
    m->recorded = !m->options.inference;
    return 0;
}

int model_backward(
    struct model *m, const struct model_scale *scale, struct glm_error *err)
{
    if (!m->recorded)
        return glm_fail(err, GLM_EUSAGE, "backward without a forward that recorded");
    m->run.err = err;
    m->recorded = false;
    if (backward(m, scale) != 0 || (m->run.late && sum_heads(m) != 0) || sum_kl(m) != 0
        || settle(m, err) != 0)
        return glm_within(err, "backward");
    lend_all(m);
    return 0;
}

int model_queue(struct model *m, int64_t part, const struct model_scale *scale,
    int64_t *const *load, struct glm_error *err)
{
    m->recorded = false;
    choose_part(m, part, true, err);
    if (forward(m, NULL) != 0)
        return glm_within(err, "forward");
    for (int64_t i = 0; load != NULL && i < m->losses.layers; i++)
        if (load[i] != NULL && model_add_loads(m, i, load[i], err) != 0)
            return err->code;
    if (backward(m, scale) != 0 || sum_heads(m) != 0 || sum_kl(m) != 0)
        return glm_within(err, "backward");
    lend_all(m);
    return 0;
}

/* ---- making it -------------------------------------------------------------------------------- */

static int check_options(
    const struct table *t, const struct model_options *o, struct glm_error *err)
{
    if (o->dtype != GLM_BF16 && o->dtype != GLM_F32 && o->dtype != GLM_F64)
        return glm_fail(err, GLM_EUSAGE, "a model of %s: expected BF16, F32 or F64",
            glm_dtype_name(o->dtype));
    if (o->max_tokens < 1 || o->max_tokens > INT32_MAX || o->max_sequences < 1)
        return glm_fail(err, GLM_EUSAGE, "a model for %lld tokens in %lld sequences",
            (long long)o->max_tokens, (long long)o->max_sequences);
    if (o->indexer_loss == MODEL_INDEXER_DENSE && !o->dense_attention)
        return glm_fail(err, GLM_EUSAGE, "the dense indexer loss needs dense attention");
    if (o->indexer_loss == MODEL_INDEXER_SPARSE && o->dense_attention)
        return glm_fail(
            err, GLM_EUSAGE, "the sparse indexer loss needs sparse attention");
    if (o->stage == MODEL_TRAIN_INDEXER && o->indexer_loss == MODEL_INDEXER_OFF)
        return glm_fail(err, GLM_EUSAGE, "only the indexer learns, and its loss is off");
    if (o->stage == MODEL_FREEZE_INDEXER && o->indexer_loss != MODEL_INDEXER_OFF)
        return glm_fail(err, GLM_EUSAGE, "a frozen indexer has no loss");
    if (o->mtp && t->config.num_mtp_layers != 1)
        return glm_fail(err, GLM_EUSAGE, "MTP with %lld stored layers: expected 1",
            (long long)t->config.num_mtp_layers);
    return 0;
}

static int bind_all(
    struct model *m, const struct model_param *params, struct glm_error *err)
{
    const struct model_config *c = &m->table->config;
    const struct bind b = {.table = m->table, .params = params, .options = &m->options};
    const double eps = MUTATED_EPS ? 1e-6 : c->rms_norm_eps;
    if (bind_check(&b, err) != 0
        || bind_param(&b, -1, "model.embed_tokens.weight", &m->embedding, err) != 0
        || bind_norm(&b, -1, "model.norm.weight", eps, &m->norm, err) != 0
        || bind_param(&b, -1, "lm_head.weight", &m->head.w, err) != 0)
        return err->code;
    for (int64_t i = 0; i < c->num_hidden_layers; i++)
        if (bind_layer(&b, i, &m->layers[i], err) != 0)
            return err->code;
    return m->options.mtp ? bind_mtp(&b, c->num_hidden_layers, &m->mtp, err) : 0;
}

static void prepare_run(
    struct model *m, const struct kernels *k, bool dry, struct glm_error *err)
{
    const struct model_config *c = &m->table->config;
    const struct model_options *o = &m->options;
    m->run = (struct run){.k = k,
        .stream = m->stream,
        .err = err,
        .c = c,
        .o = o,
        .dtype = o->dtype,
        .acc = o->dtype == GLM_F64 ? GLM_F64 : GLM_F32,
        .T = o->max_tokens,
        .S = o->max_sequences,
        .dry = dry,
        .K = c->index_topk < o->max_tokens ? c->index_topk : o->max_tokens};
}

static int make_inputs(struct model *m, struct glm_error *err)
{
    const struct kernels *const k = m->k;
    const int64_t T = m->options.max_tokens;
    const size_t slot = (size_t)(5 * T + m->options.max_sequences + 1);
    const size_t bytes = slot * (size_t)m->slots * sizeof(int32_t);

    m->slot = slot;
    m->part = calloc((size_t)m->parts, sizeof *m->part);
    if (m->part == NULL)
        return glm_fail(
            err, GLM_ENOMEM, "no memory for %lld micro-batches", (long long)m->parts);
    if ((m->staged_block = k->host_alloc(bytes, err)) == NULL
        || (m->sums = k->alloc(sums_bytes(m), err)) == NULL)
        return glm_within(err, "a batch of %lld tokens", (long long)T);
    memset(m->staged_block, 0, bytes);
    m->placed_block = m->staged_block;
    m->host_sums = m->sums;
    if (!k->host
        && ((m->placed_block = k->alloc(bytes, err)) == NULL
            || (m->host_sums = k->host_alloc(sums_bytes(m), err)) == NULL))
        return (int)err->code;
    m->part[0] = (struct part){.tokens = T, .sequences = m->options.max_sequences};
    choose_part(m, 0, false, err);
    return model_clear(m, err);
}

static int allocate(struct model *m, struct glm_error *err)
{
    const struct kernels *const k = m->k;
    prepare_run(m, k->dry != NULL ? k : &dry_kernels, true, err);
    if (k->dry != NULL)
        k->dry(m->stream, true);
    if (forward(m, NULL) == 0 && !m->options.inference)
        backward(m, &(struct model_scale){0});
    if (k->dry != NULL)
        k->dry(m->stream, false);
    if (err->code != GLM_OK)
        return err->code;
    const size_t scratch = k->scratch_peak != NULL ? k->scratch_peak(m->stream) : 0;
    const size_t keep = m->run.keep.peak;
    size_t temp = m->run.temp.peak > scratch ? m->run.temp.peak : scratch;
    if (keep + temp < m->options.least_bytes)
        temp = m->options.least_bytes - keep;
    if (!(m->block = k->alloc(keep + temp, err)))
        return glm_within(err,
            "buffers of a step of %lld tokens (what backward needs %zu bytes, the rest "
            "%zu)",
            (long long)m->options.max_tokens, keep, temp);
    prepare_run(m, k, false, NULL);
    m->run.keep = (struct arena){.base = m->block, .size = keep};
    m->run.temp = (struct arena){.base = (char *)m->block + keep, .size = temp};
    return 0;
}

int model_new(struct model **out, const struct table *table,
    const struct model_param *params, const struct model_options *options,
    const struct kernels *k, glm_stream stream, struct glm_error *err)
{
    const size_t layers = (size_t)table->config.num_hidden_layers + options->mtp;
    struct model *m = NULL;
    *out = NULL;
    if (check_options(table, options, err) != 0)
        return err->code;
    m = calloc(1, sizeof *m);
    if (m)
        m->layers = calloc(layers, sizeof *m->layers);
    if (!m || !m->layers) {
        glm_fail(err, GLM_ENOMEM, "no memory for a model of %zu layers", layers);
        goto out;
    }
    m->table = table;
    m->k = k;
    m->stream = stream;
    m->options = *options;
    m->losses.layers = (int64_t)layers;
    m->parts = options->parts > 0 ? options->parts : 1;
    m->slots = options->ahead ? m->parts : 1;
    if (bind_all(m, params, err) != 0 || make_inputs(m, err) != 0
        || allocate(m, err) != 0)
        goto out;
    m->losses.indexer_layers = options->mtp;
    for (int64_t i = 0; i < table->config.num_hidden_layers; i++)
        m->losses.indexer_layers += table->config.layer_owns_indexer[i];
    *out = m;
out:
    if (err->code != GLM_OK)
        model_free(m);
    return err->code;
}

void model_free(struct model *m)
{
    if (!m)
        return;
    if (m->block)
        m->k->release(m->block);
    if (m->placed_block != m->staged_block)
        m->k->release(m->placed_block);
    if (m->host_sums != m->sums)
        m->k->host_release(m->host_sums);
    m->k->host_release(m->staged_block);
    m->k->release(m->sums);
    free(m->part);
    free(m->layers);
    free(m);
}

/* ---- looking at it ---------------------------------------------------------------------------- */

size_t model_bytes(const struct model *m)
{
    return m->run.keep.size + m->run.temp.size;
}

const struct model_losses *model_losses(const struct model *m)
{
    return &m->losses;
}

int64_t model_keys(const struct model *m)
{
    return m->run.K;
}

const int32_t *model_index(const struct model *m, int64_t layer)
{
    return layer_of(m, layer)->index;
}

const int32_t *model_expert(const struct model *m, int64_t layer)
{
    const struct layer *l = layer_of(m, layer);
    return l->dense ? NULL : l->moe.expert;
}

const void *model_hidden(const struct model *m)
{
    return m->hidden;
}

const void *model_mtp_hidden(const struct model *m)
{
    return m->options.mtp ? m->mtp.out : NULL;
}

int model_add_loads(
    const struct model *m, int64_t layer, int64_t *load, struct glm_error *err)
{
    const struct layer *l = layer_of(m, layer);
    const struct run *r = &m->run;
    if (l->dense)
        return 0;
    return r->k->expert_load(&(struct expert_load){.load = load,
                                 .offset = l->moe.offset,
                                 .expert = l->moe.expert,
                                 .cu_seqlens = r->cu_seqlens,
                                 .T = r->T,
                                 .S = r->S,
                                 .E = m->table->config.n_routed_experts,
                                 .K = m->table->config.num_experts_per_tok,
                                 .padded = layer == main_layers(m)},
        m->stream, err);
}

const double *model_watched(const struct model *m, int64_t *n)
{
    *n = 2 * m->parts;
    return m->sums;
}
