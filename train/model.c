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
        int32_t *block; /* all of these, one behind the other */
        int32_t *ids, *positions, *targets, *mtp_ids, *mtp_targets; /* [max_tokens] */
        int32_t *cu_seqlens; /* [max_sequences + 1] */
    } staged,
        placed; /* on the host; where operations read it (the same, if the host's memory) */
    size_t inputs_bytes;
    int32_t *
        host_offset; /* [layers][experts + 1] of the last forward, if not the host's memory */
    double *indexer_sum; /* [layers of losses] */
    struct model_losses losses;
    struct model_batch batch;
    int32_t *host_expert; /* [max_tokens][experts per token] of the MTP layer, likewise */
    void *host_rows;      /* [max_tokens] acc */
    void *last, *hidden;  /* [T,H] before and behind the final norm */
    bool recorded;        /* a forward that backward can use */
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
    const void *mtp_input;
    r->keep.at = r->temp.at = 0;
    if (tables(r, m->placed.positions) != 0 || stack_fwd(m, replay) != 0
        || (r->o->stage != MODEL_TRAIN_INDEXER
            && head_fwd(&m->head, r, m->hidden, m->placed.targets) != 0))
        return r->err->code;
    if (!r->o->mtp)
        return 0;
    mtp_input = m->hidden;
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

/* The batch to where operations read it, in one copy. */
static int place_batch(struct model *m, struct glm_error *err)
{
    const struct model_batch *b = &m->batch;
    const struct inputs *s = &m->staged;
    const size_t rows = (size_t)b->tokens * sizeof(int32_t);

    memcpy(s->ids, b->ids, rows);
    memcpy(s->positions, b->positions, rows);
    memcpy(s->targets, b->targets, rows);
    memcpy(s->cu_seqlens, b->cu_seqlens, (size_t)(b->sequences + 1) * sizeof(int32_t));
    if (m->options.mtp) {
        mtp_shift(s->mtp_ids, b->ids, b->cu_seqlens, b->sequences, 0);
        mtp_shift(s->mtp_targets, b->targets, b->cu_seqlens, b->sequences, -100);
    }
    if (m->k->host)
        return 0;
    return m->k->to_device(m->placed.block, s->block, m->inputs_bytes, m->stream, err);
}

/* Rows of each expert, and which experts the MTP layer's rows have, so that counting them later needs
 * no copy. */
static int read_offsets(struct model *m, struct glm_error *err)
{
    const int64_t n = m->table->config.n_routed_experts + 1;

    for (int64_t i = 0; i < m->losses.layers && !m->k->host; i++) {
        const struct layer *l = i < main_layers(m) ? &m->layers[i] : &m->mtp.layer;
        if (!l->dense
            && m->k->to_host(m->host_offset + i * n, l->moe.offset,
                   (size_t)n * sizeof(int32_t), m->stream, err)
                != 0)
            return (int)err->code;
    }
    if (m->k->host || !m->options.mtp)
        return 0;
    return m->k->to_host(m->host_expert, m->mtp.layer.moe.expert,
        (size_t)(m->batch.tokens * m->table->config.num_experts_per_tok)
            * sizeof(int32_t),
        m->stream, err);
}

static int64_t count_targets(const int32_t *targets, int64_t n)
{
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++)
        count += targets[i] >= 0;
    return count;
}

static void read_kl(struct model *m)
{
    const struct run *r = &m->run;
    if (r->o->indexer_loss == MODEL_INDEXER_OFF)
        return;
    for (int64_t i = 0; i < m->losses.layers; i++) {
        const struct layer *l = i < main_layers(m) ? &m->layers[i] : &m->mtp.layer;
        m->indexer_sum[i] = l->owns_indexer ? head_sum(r, l->indexer.kl) : 0;
    }
}

static void read_heads(struct model *m)
{
    const struct run *r = &m->run;
    struct model_losses *l = &m->losses;
    if (r->o->stage == MODEL_TRAIN_INDEXER)
        return;
    l->lm_sum = head_sum(r, m->head.loss);
    if (r->o->mtp)
        l->mtp_sum = head_sum(r, m->mtp.head.loss);
}

static void read_losses(struct model *m)
{
    const struct run *r = &m->run;
    struct model_losses *l = &m->losses;
    l->indexer_rows = l->indexer_layers * r->T - (r->o->mtp ? r->S : 0);
    memset(m->indexer_sum, 0, (size_t)l->layers * sizeof *m->indexer_sum);
    l->lm_sum = l->mtp_sum = 0;
    l->lm_count = l->mtp_count = 0;
    if (r->o->stage != MODEL_TRAIN_INDEXER) {
        l->lm_count = count_targets(m->batch.targets, r->T);
        if (r->o->mtp)
            l->mtp_count = count_targets(m->staged.mtp_targets, r->T);
    }
    if (!r->late)
        read_heads(m);
    if (r->o->inference)
        read_kl(m);
}

int model_forward(struct model *m, const struct model_batch *batch,
    const struct model_replay *replay, struct glm_error *err)
{
    struct run *r = &m->run;
    m->recorded = false;
    if (check_batch(m, batch, err) != 0)
        return err->code;
    m->batch = *batch;
    r->T = batch->tokens;
    r->S = batch->sequences;
    r->cu_seqlens = m->placed.cu_seqlens;
    r->late = batch->late && !m->options.inference;
    r->err = err;
    if (place_batch(m, err) != 0 || forward(m, replay) != 0
        || m->k->stream_wait(m->stream, err) != 0 || read_offsets(m, err) != 0)
        return glm_within(err, "forward");
    read_losses(m);
    if (err->code != GLM_OK)
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
    if (backward(m, scale) != 0 || m->k->stream_wait(m->stream, err) != 0)
        return glm_within(err, "backward");
    if (m->run.late)
        read_heads(m);
    read_kl(m);
    if (m->k->lend != NULL)
        m->k->lend(m->stream, m->block, 0, m->run.keep.size + m->run.temp.size);
    return (int)err->code;
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
        .host_rows = m->host_rows,
        .K = c->index_topk < o->max_tokens ? c->index_topk : o->max_tokens};
}

static void cut(struct inputs *in, int32_t *block, int64_t tokens)
{
    *in = (struct inputs){.block = block,
        .ids = block,
        .positions = block + tokens,
        .targets = block + 2 * tokens,
        .mtp_ids = block + 3 * tokens,
        .mtp_targets = block + 4 * tokens,
        .cu_seqlens = block + 5 * tokens};
}

static int make_inputs(struct model *m, struct glm_error *err)
{
    const int64_t T = m->options.max_tokens;
    const size_t n = (size_t)(5 * T + m->options.max_sequences + 1);
    int32_t *const host = calloc(n, sizeof *host);
    int32_t *device = host;

    m->inputs_bytes = n * sizeof *host;
    if (host == NULL)
        return glm_fail(
            err, GLM_ENOMEM, "no memory for a batch of %lld tokens", (long long)T);
    cut(&m->staged, host, T);
    if (!m->k->host && (device = m->k->alloc(m->inputs_bytes, err)) == NULL)
        device = host;
    cut(&m->placed, device, T);
    return (int)err->code;
}

static int allocate(struct model *m, struct glm_error *err)
{
    const struct kernels *const k = m->k;
    prepare_run(m, k->dry != NULL ? k : &dry_kernels, true, err);
    m->batch = (struct model_batch){0};
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
    if (m) {
        m->layers = calloc(layers, sizeof *m->layers);
        m->indexer_sum = calloc(layers, sizeof *m->indexer_sum);
        m->host_offset = calloc(layers * (size_t)(table->config.n_routed_experts + 1),
            sizeof *m->host_offset);
        m->host_expert =
            calloc((size_t)(options->max_tokens * table->config.num_experts_per_tok),
                sizeof *m->host_expert);
        m->host_rows = calloc((size_t)options->max_tokens, sizeof(double));
    }
    if (!m || !m->layers || !m->indexer_sum || !m->host_offset || !m->host_expert
        || !m->host_rows) {
        glm_fail(err, GLM_ENOMEM, "no memory for a model of %zu layers", layers);
        goto out;
    }
    m->table = table;
    m->k = k;
    m->stream = stream;
    m->options = *options;
    m->losses.layers = (int64_t)layers;
    m->losses.indexer_sum = m->indexer_sum;
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
    if (m->placed.block != m->staged.block)
        m->k->release(m->placed.block);
    free(m->staged.block);
    free(m->layers);
    free(m->indexer_sum);
    free(m->host_offset);
    free(m->host_expert);
    free(m->host_rows);
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

static const struct layer *layer_of(const struct model *m, int64_t layer)
{
    return layer < main_layers(m) ? &m->layers[layer] : &m->mtp.layer;
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

void model_add_loads(const struct model *m, int64_t layer, int64_t *load)
{
    const struct layer *l = layer_of(m, layer);
    const int64_t E = m->table->config.n_routed_experts;
    const int64_t K = m->table->config.num_experts_per_tok;
    const int32_t *offset = m->k->host ? l->moe.offset : m->host_offset + layer * (E + 1);
    const int32_t *expert = m->k->host ? l->moe.expert : m->host_expert;
    for (int64_t e = 0; !l->dense && e < E; e++)
        load[e] += offset[e + 1] - offset[e];
    for (int64_t s = 1; layer == main_layers(m) && s <= m->batch.sequences; s++)
        for (int64_t k = 0; k < K; k++)
            load[expert[(m->staged.cu_seqlens[s] - 1) * K + k]]--;
}
