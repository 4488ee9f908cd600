/* Comparing: one function for each kind of quantity, each remembers where its worst is. */
#include "verify/numerics_inside.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/random.h"
#include "kernels/kernels.h"

/* float32 against float32, with room for the order of sums; the float64 reference takes rotary
 * angles as float32 products and keeps gradients as float32. A set has no rounding. */
static const struct {
    const char *name;
    double bound;
} quantities[NUMERICS_QUANTITIES] = {
    [NUMERICS_INDEX] = {"index sets", 0},
    [NUMERICS_EXPERT] = {"expert sets", 0},
    [NUMERICS_LOGITS] = {"logits", 1e-5},
    [NUMERICS_LOGITS_COSINE] = {"logits, 1 - cosine", 1e-3},
    [NUMERICS_LOSS] = {"loss", 1e-5},
    [NUMERICS_MTP_LOSS] = {"MTP loss", 1e-5},
    [NUMERICS_INDEXER_LOSS] = {"indexer loss", 1e-5},
    [NUMERICS_GRADIENT] = {"gradients", 1e-4},
    [NUMERICS_GRADIENT_COSINE] = {"gradients, 1 - cosine", 1e-6},
    [NUMERICS_GRADIENT_NORM] = {"gradient norms", 1e-5},
    [NUMERICS_GRADIENT_SUM] = {"gradient sums", 1e-5},
    [NUMERICS_INDEXER_GRADIENT] = {"indexer gradients", 0},
};

/* Of gradients in bfloat16, where transformers rounds each of them and each sum in them. */
static const double LOW_COSINE = 5e-3;

const char *numerics_name(enum numerics_quantity q)
{
    return quantities[q].name;
}

/* ---- rows ------------------------------------------------------------------------------------- */

static struct numerics_row row(const struct numerics *r, enum numerics_quantity q)
{
    return (struct numerics_row){
        .reference = r->reference, .quantity = q, .bound = quantities[q].bound};
}

/* Whether this difference is the worst so far, and then takes it. NaN stays. */
static bool worse(struct numerics_row *w, double d)
{
    const bool first = w->compared++ == 0;

    if (!first && !(d > w->worst || (d != d && w->worst == w->worst)))
        return false;
    w->worst = d;
    return true;
}

static void put(struct numerics *r, const struct numerics_row *w)
{
    struct numerics_report *const report = r->report;

    if (!(w->worst <= w->bound) && report->first < 0)
        report->first = report->count;
    report->rows[report->count] = *w;
    if (w->worst == 0)
        report->rows[report->count].where[0] = '\0';
    report->count++;
}

/* d over a scale; where the reference is 0 nothing but 0 will do. */
static double relative(double d, double scale)
{
    if (scale == 0)
        return d == 0 ? 0 : INFINITY;
    return fabs(d) / fabs(scale);
}

static double cosine_gap(const double *a, const double *b, int64_t n)
{
    double ab = 0, aa = 0, bb = 0;

    for (int64_t i = 0; i < n; i++) {
        ab += a[i] * b[i];
        aa += a[i] * a[i];
        bb += b[i] * b[i];
    }
    return aa == 0 && bb == 0 ? 0 : 1 - ab / sqrt(aa * bb);
}

static double largest(const double *x, int64_t n)
{
    double most = 0;

    for (int64_t i = 0; i < n; i++)
        most = fabs(x[i]) > most ? fabs(x[i]) : most;
    return most;
}

static double *doubles(struct numerics *r, enum glm_dtype type, const void *x, int64_t n)
{
    double *const out = malloc((size_t)n * sizeof *out + 1);

    if (out == NULL)
        glm_fail(r->err, GLM_ENOMEM, "no memory for %lld numbers", (long long)n);
    else
        tensors_cast(out, GLM_F64, x, type, n);
    return out;
}

/* ---- sets ------------------------------------------------------------------------------------- */

struct set_row {
    struct numerics_row row;
    int64_t layer; /* of the first row that differs; INT64_MAX: none */
};

static void compare_rows(const struct numerics *r, struct set_row *s, int64_t layer,
    const int32_t *got, const int32_t *want, int64_t width)
{
    struct numerics_row *const w = &s->row;

    for (int64_t t = 0; t < r->batch.tokens; t++) {
        w->compared++;
        if (memcmp(got + t * width, want + t * width, (size_t)width * sizeof *got) == 0)
            continue;
        if (w->worst++ == 0) {
            s->layer = layer;
            snprintf(w->where, sizeof w->where, "layer %lld, token %lld",
                (long long)layer, (long long)t);
        }
    }
}

/* The host's copy of a set that the model chose; buf has room for one. NULL for none. */
static const int32_t *chosen(
    const struct numerics *r, const int32_t *set, int64_t width, int32_t *buf)
{
    const struct home home = numerics_home(r);

    if (set == NULL)
        return NULL;
    return home_get(
        &home, set, (size_t)(r->batch.tokens * width) * sizeof *buf, buf, r->err);
}

static int compare_sets(struct numerics *r, struct set_row sets[2], int32_t *buf)
{
    const struct model_config *const c = &r->table->config;
    const int64_t T = r->batch.tokens, layers = c->num_hidden_layers + r->both;
    const int64_t width[2] = {model_keys(r->m), c->num_experts_per_tok};

    for (int64_t i = 0; i < layers; i++) {
        const bool owns = i >= c->num_hidden_layers || c->layer_owns_indexer[i];
        const int32_t *const made[2] = {
            owns ? model_index(r->m, i) : NULL, model_expert(r->m, i)};
        for (int k = 0; k < 2; k++) {
            char name[40];
            int64_t n = 0;
            snprintf(name, sizeof name, "%s%s.%lld",
                r->o->dtype == GLM_BF16 ? "bf16." : "", k == 0 ? "index" : "expert",
                (long long)i);
            const int32_t *const want = golden_i32(r->g, name, &n);
            const int32_t *const got = chosen(r, made[k], width[k], buf);
            if (r->err->code != GLM_OK)
                return r->err->code;
            if (got == NULL)
                continue;
            if (want == NULL || n != T * width[k])
                return numerics_missing(r, name);
            compare_rows(r, &sets[k], i, got, want, width[k]);
        }
    }
    return GLM_OK;
}

int numerics_sets(struct numerics *r)
{
    const int64_t most = model_keys(r->m) + r->table->config.num_experts_per_tok;
    int32_t *const buf = malloc((size_t)(r->batch.tokens * most) * sizeof *buf);
    struct set_row sets[2] = {
        {row(r, NUMERICS_INDEX), INT64_MAX}, {row(r, NUMERICS_EXPERT), INT64_MAX}};

    if (buf == NULL)
        return glm_fail(r->err, GLM_ENOMEM, "no memory for a set of keys");
    compare_sets(r, sets, buf);
    free(buf);
    if (r->err->code != GLM_OK)
        return r->err->code;
    put(r, &sets[0].row);
    put(r, &sets[1].row);
    /* A layer's keys come before its experts, and these before the next layer's keys. */
    if (r->report->first == r->report->count - 2 && sets[1].layer < sets[0].layer)
        r->report->first++;
    return GLM_OK;
}

/* ---- logits ----------------------------------------------------------------------------------- */

static const struct model_param *head_of(const struct numerics *r)
{
    int64_t member;
    const char *const name = r->table->config.tie_word_embeddings
        ? "model.embed_tokens.weight"
        : "lm_head.weight";
    const struct table_entry *const e = table_find(r->table, name, strlen(name), &member);

    return e != NULL ? &r->there[e - r->table->entries] : NULL;
}

static int compute_logits(struct numerics *r, const struct model_param *head, void *out)
{
    const struct model_config *const c = &r->table->config;
    const struct home home = numerics_home(r);
    const size_t bytes =
        (size_t)(r->batch.tokens * c->vocab_size) * glm_dtype_size(r->o->dtype);
    void *const there = r->k->host ? out : r->k->alloc(bytes, r->err);
    const struct gemm g = {.c = there,
        .a = model_hidden(r->m),
        .b = head->w,
        .M = r->batch.tokens,
        .N = c->vocab_size,
        .K = c->hidden_size,
        .lda = c->hidden_size,
        .ldb = c->hidden_size,
        .ldc = c->vocab_size,
        .trans_b = true,
        .a_type = r->o->dtype,
        .b_type = r->o->dtype,
        .c_type = r->o->dtype};

    if (there != NULL && r->k->gemm(&g, r->stream, r->err) == GLM_OK
        && r->k->stream_wait(r->stream, r->err) == GLM_OK)
        home_get(&home, there, bytes, out, r->err);
    if (!r->k->host)
        r->k->release(there);
    return r->err->code;
}

static void compare_logits(
    struct numerics *r, const double *got, const double *want, int64_t n)
{
    const int64_t V = r->table->config.vocab_size;
    struct numerics_row w = row(r, NUMERICS_LOGITS);
    struct numerics_row cosine = row(r, NUMERICS_LOGITS_COSINE);
    const double scale = largest(want, n);

    if (r->o->dtype == GLM_BF16) {
        worse(&cosine, cosine_gap(got, want, n));
        cosine.compared = n;
        put(r, &cosine);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        if (worse(&w, relative(got[i] - want[i], scale)))
            snprintf(w.where, sizeof w.where, "token %lld, vocabulary entry %lld",
                (long long)(i / V), (long long)(i % V));
    put(r, &w);
}

int numerics_logits(struct numerics *r)
{
    const char *const name = r->o->dtype == GLM_BF16 ? "logits_bf16" : "logits";
    const struct model_param *const head = head_of(r);
    int64_t n = 0;
    const float *const want = golden_f32(r->g, name, &n);

    if (want == NULL || n != r->batch.tokens * r->table->config.vocab_size)
        return numerics_missing(r, name);
    if (head == NULL)
        return glm_fail(r->err, GLM_EFORMAT, "the model has no head");
    void *const got = malloc((size_t)n * glm_dtype_size(r->o->dtype));
    double *a = NULL, *b = NULL;
    if (got == NULL)
        glm_fail(r->err, GLM_ENOMEM, "no memory for %lld logits", (long long)n);
    else if (compute_logits(r, head, got) == GLM_OK
        && (a = doubles(r, r->o->dtype, got, n)) != NULL
        && (b = doubles(r, GLM_F32, want, n)) != NULL)
        compare_logits(r, a, b, n);
    free(a);
    free(b);
    free(got);
    return r->err->code;
}

/* ---- losses ----------------------------------------------------------------------------------- */

/* name: a sum and the number of targets in it. */
static int compare_loss(struct numerics *r, enum numerics_quantity q, const char *name,
    double sum, int64_t count)
{
    struct numerics_row w = row(r, q);
    int64_t n = 0;
    const double *const want = golden_f64(r->g, name, &n);

    if (want == NULL || n != 2)
        return numerics_missing(r, name);
    if ((double)count != want[1])
        return glm_fail(r->err, GLM_EFORMAT,
            "golden array '%s' counts %.0f targets, its batch has %lld", name, want[1],
            (long long)count);
    worse(&w, relative(sum - want[0], want[0]));
    snprintf(
        w.where, sizeof w.where, "%.7g, expected %.7g", sum / want[1], want[0] / want[1]);
    put(r, &w);
    return GLM_OK;
}

int numerics_losses(struct numerics *r)
{
    const struct model_losses *const l = model_losses(r->m);
    struct numerics_row w = row(r, NUMERICS_INDEXER_LOSS);
    int64_t n = 0;

    if (compare_loss(r, NUMERICS_LOSS, "lm", l->lm_sum, l->lm_count) != GLM_OK
        || !r->both)
        return r->err->code;
    if (compare_loss(r, NUMERICS_MTP_LOSS, "mtp", l->mtp_sum, l->mtp_count) != GLM_OK)
        return r->err->code;
    const double *const kl = golden_f64(r->g, "kl", &n);
    if (kl == NULL || n != l->layers)
        return numerics_missing(r, "kl");
    for (int64_t i = 0; i < n; i++)
        if (worse(&w, relative(l->indexer_sum[i] - kl[i], largest(kl, n))))
            snprintf(w.where, sizeof w.where, "layer %lld", (long long)i);
    put(r, &w);
    return GLM_OK;
}

/* ---- gradients -------------------------------------------------------------------------------- */

int64_t numerics_elements(const struct table_entry *e)
{
    int64_t n = 1;

    for (int d = 0; d < e->rank; d++)
        n *= e->shape[d];
    return n;
}

/* Which element is the k-th that the file keeps of a tensor. */
static int64_t place(const struct random_stream *s, int64_t k, int64_t size)
{
    uint32_t x[4];

    philox4x32_10((uint32_t[4]){(uint32_t)k, 0, s->name[0], s->name[1]}, s->key, x);
    return (int64_t)(((uint64_t)x[1] << 32 | x[0]) % (uint64_t)size);
}

struct gradient {
    const void *g;
    enum glm_dtype type;
    int64_t size;
    double norm, sum, most;
};

static struct gradient measure(const struct numerics *r, int64_t i)
{
    enum { CHUNK = 1024 };
    const enum glm_dtype type = r->o->dtype == GLM_F64 ? GLM_F64 : GLM_F32;
    struct gradient g = {.g = r->params[i].dw,
        .type = type,
        .size = numerics_elements(&r->table->entries[i])};
    double x[CHUNK];

    for (int64_t at = 0; at < g.size; at += CHUNK) {
        const int64_t n = g.size - at < CHUNK ? g.size - at : CHUNK;
        tensors_cast(
            x, GLM_F64, (const char *)g.g + (size_t)at * glm_dtype_size(type), type, n);
        for (int64_t k = 0; k < n; k++) {
            g.norm += x[k] * x[k];
            g.sum += x[k];
            g.most = fabs(x[k]) > g.most || x[k] != x[k] ? fabs(x[k]) : g.most;
        }
    }
    g.norm = sqrt(g.norm);
    return g;
}

/* [4]: elements, cosine, norm, sum */
static int compare_gradient(struct numerics *r, struct numerics_row rows[4],
    const char *name, const struct gradient *g, const double *stat, const float *want,
    int64_t n)
{
    const struct random_stream s = random_open(0, "parity", name);
    double *const a = malloc((size_t)n * sizeof *a + 1),
                  *const b = doubles(r, GLM_F32, want, n);
    double d[4] = {0};

    if (a == NULL || b == NULL) {
        glm_fail(r->err, GLM_ENOMEM, "no memory for %lld numbers", (long long)n);
        goto out;
    }
    for (int64_t k = 0; k < n; k++) {
        const int64_t at = r->report->whole ? k : place(&s, k, g->size);
        tensors_cast(&a[k], GLM_F64,
            (const char *)g->g + (size_t)at * glm_dtype_size(g->type), g->type, 1);
        const double off = relative(a[k] - b[k], stat[2]);
        d[0] = off > d[0] || off != off ? off : d[0];
    }
    d[1] = cosine_gap(a, b, n);
    d[2] = relative(g->norm - stat[0], stat[0]);
    d[3] = relative(g->sum - stat[1], stat[0] * sqrt((double)g->size));
    for (int k = 0; k < 4; k++)
        if (worse(&rows[k], d[k]))
            snprintf(rows[k].where, sizeof rows[k].where, "%s", name);
    r->report->elements += n;
out:
    free(a);
    free(b);
    return r->err->code;
}

int numerics_gradients(struct numerics *r)
{
    const bool low = r->o->dtype == GLM_BF16;
    const char *const kind = low ? "bf16" : r->both ? "all" : "lm";
    struct numerics_row still = row(r, NUMERICS_INDEXER_GRADIENT);
    struct numerics_row rows[4] = {row(r, NUMERICS_GRADIENT),
        row(r, NUMERICS_GRADIENT_COSINE), row(r, NUMERICS_GRADIENT_NORM),
        row(r, NUMERICS_GRADIENT_SUM)};

    for (int64_t i = 0; i < r->table->count; i++) {
        const struct table_entry *const e = &r->table->entries[i];
        char stat_name[256], grad_name[256];
        int64_t n = 0, m = 0;
        if (r->params[i].dw == NULL
            || (!r->both && e->layer >= r->table->config.num_hidden_layers))
            continue;
        const struct gradient g = measure(r, i);
        if (!r->both && e->kind == KIND_INDEXER) {
            if (worse(&still, g.most))
                snprintf(still.where, sizeof still.where, "%s", e->name);
            continue;
        }
        snprintf(stat_name, sizeof stat_name, "%s.stat.%s", kind, e->name);
        snprintf(grad_name, sizeof grad_name, "%s.grad.%s", kind, e->name);
        const double *const stat = golden_f64(r->g, stat_name, &m);
        const float *const want = golden_f32(r->g, grad_name, &n);
        if (stat == NULL || m != 3)
            return numerics_missing(r, stat_name);
        if (want == NULL || n < 1 || (r->report->whole && n != g.size))
            return numerics_missing(r, grad_name);
        if (compare_gradient(r, rows, e->name, &g, stat, want, n) != GLM_OK)
            return r->err->code;
    }
    rows[1].bound = low ? LOW_COSINE : rows[1].bound;
    for (int k = 0; k < 4; k++)
        if (!low || k == 1)
            put(r, &rows[k]);
    if (!r->both)
        put(r, &still);
    return GLM_OK;
}
