/* One run of the model on a golden batch; every figure is the worst of its kind. */
#include "tests/support/parity.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/random.h"
#include "tests/support/golden.h"
#include "tests/support/opdata.h"
#include "tests/support/tinymodel.h"

/* As in the script. */
static const double MTP_COEFF = 0.3, INDEXER_COEFF = 0.5;

struct run {
    const struct parity_options *o;
    struct golden *g;
    struct tinymodel *t;
    struct model *m;
    struct model_batch b;
    double lm_count, mtp_count;
    struct parity *out;
    struct glm_error *err;
};

static int missing(const struct run *r, const char *name)
{
    return glm_fail(r->err, GLM_EFORMAT, "golden array '%s' is not there", name);
}

/* ---- comparing -------------------------------------------------------------------------------- */

static double apart(const double *got, const double *want, int64_t n)
{
    double worst = 0, largest = 0;
    for (int64_t i = 0; i < n; i++) {
        const double d = fabs(got[i] - want[i]);
        worst = d > worst || d != d ? d : worst;
        largest = fabs(want[i]) > largest ? fabs(want[i]) : largest;
    }
    return worst / largest;
}

static double cosine_gap(const double *a, const double *b, int64_t n)
{
    double ab = 0, aa = 0, bb = 0;
    for (int64_t i = 0; i < n; i++) {
        ab += a[i] * b[i];
        aa += a[i] * a[i];
        bb += b[i] * b[i];
    }
    return 1 - ab / sqrt(aa * bb);
}

static int logits(struct run *r)
{
    const bool low = r->o->dtype == GLM_BF16;
    const struct model_config *c = &r->t->table->config;
    const int64_t T = r->b.tokens, V = c->vocab_size, H = c->hidden_size;
    int64_t n = 0, head = r->t->table->count - 1;
    const float *want = golden_f32(r->g, low ? "logits_bf16" : "logits", &n);
    if (!want || n != T * V)
        return missing(r, "logits");
    void *got = op_zeros(r->t->dtype, n);
    const int code = kernels_find("cpu")->gemm(&(struct gemm){.c = got,
                                                   .a = model_hidden(r->m),
                                                   .b = r->t->params[head].w,
                                                   .M = T,
                                                   .N = V,
                                                   .K = H,
                                                   .lda = H,
                                                   .ldb = H,
                                                   .ldc = V,
                                                   .trans_b = true,
                                                   .a_type = r->t->dtype,
                                                   .b_type = r->t->dtype,
                                                   .c_type = r->t->dtype},
        NULL, r->err);
    double *a = op_doubles(r->t->dtype, got, n), *b = op_doubles(GLM_F32, want, n);
    r->out->logits = apart(a, b, n);
    if (low)
        r->out->bf16_cosine = 1 - cosine_gap(a, b, n);
    free(a);
    free(b);
    free(got);
    return code;
}

static int64_t rows_apart(const int32_t *a, const int32_t *b, int64_t T, int64_t K)
{
    int64_t wrong = 0;
    for (int64_t t = 0; t < T; t++)
        wrong += memcmp(a + t * K, b + t * K, (size_t)K * sizeof *a) != 0;
    return wrong;
}

static int sets(struct run *r)
{
    const struct model_config *c = &r->t->table->config;
    const int64_t T = r->b.tokens, layers = c->num_hidden_layers + r->o->both;
    for (int64_t i = 0; i < layers; i++) {
        char name[32];
        int64_t n = 0;
        snprintf(name, sizeof name, "index.%d", (int)i);
        const int32_t *index = golden_i32(r->g, name, &n);
        if (!index && (i >= c->num_hidden_layers || c->layer_owns_indexer[i]))
            return missing(r, name);
        if (index)
            r->out->index_wrong += rows_apart(model_index(r->m, i), index, T, n / T);
        snprintf(name, sizeof name, "expert.%d", (int)i);
        const int32_t *expert = golden_i32(r->g, name, &n);
        if (!expert && model_expert(r->m, i))
            return missing(r, name);
        if (expert)
            r->out->expert_wrong += rows_apart(model_expert(r->m, i), expert, T, n / T);
    }
    return 0;
}

static int losses(struct run *r)
{
    const struct model_losses *l = model_losses(r->m);
    int64_t n;
    const double *lm = golden_f64(r->g, "lm", &n);
    if (!lm || l->lm_count != (int64_t)lm[1])
        return missing(r, "lm");
    r->out->loss = fabs(l->lm_sum - lm[0]) / lm[0];
    if (!r->o->both)
        return 0;
    const double *mtp = golden_f64(r->g, "mtp", &n), *kl = golden_f64(r->g, "kl", &n);
    if (!mtp || !kl || l->mtp_count != (int64_t)mtp[1] || n != l->layers)
        return missing(r, "mtp");
    r->out->mtp = fabs(l->mtp_sum - mtp[0]) / mtp[0];
    r->out->kl = apart(l->indexer_sum, kl, n);
    return 0;
}

/* ---- gradients -------------------------------------------------------------------------------- */

static int64_t place(const char *name, int64_t k, int64_t size)
{
    const struct random_stream s = random_open(0, "parity", name);
    uint32_t x[4];
    philox4x32_10((uint32_t[4]){(uint32_t)k, 0, s.name[0], s.name[1]}, s.key, x);
    return (int64_t)(((uint64_t)x[1] << 32 | x[0]) % (uint64_t)size);
}

static void one_gradient(
    struct run *r, int64_t i, const double *stat, const float *want, int64_t n)
{
    const char *name = r->t->table->entries[i].name;
    const int64_t size = tinymodel_count(r->t, i);
    double *a = op_zeros(GLM_F64, n), *b = op_doubles(GLM_F32, want, n);
    double worst = 0, sum = 0;
    for (int64_t k = 0; k < n; k++) {
        a[k] = op_at(
            r->t->acc, r->t->params[i].dw, r->out->whole ? k : place(name, k, size));
        worst = fabs(a[k] - b[k]) > worst || a[k] != a[k] ? fabs(a[k] - b[k]) : worst;
    }
    for (int64_t k = 0; k < size; k++) {
        const double g = op_at(r->t->acc, r->t->params[i].dw, k);
        sum += g * g;
    }
    const double cosine = cosine_gap(a, b, n), gradient = worst / stat[2];
    const double norm = fabs(sqrt(sum) - stat[0]) / stat[0];
    r->out->cosine =
        cosine > r->out->cosine || cosine != cosine ? cosine : r->out->cosine;
    r->out->norm = norm > r->out->norm || norm != norm ? norm : r->out->norm;
    if (gradient > r->out->gradient || gradient != gradient) {
        r->out->gradient = gradient;
        snprintf(r->out->worst, sizeof r->out->worst, "%s", name);
    }
    r->out->gradients++;
    r->out->elements += n;
    free(a);
    free(b);
}

static bool all_zero(const struct run *r, int64_t i)
{
    for (int64_t k = 0; k < tinymodel_count(r->t, i); k++)
        if (op_at(r->t->acc, r->t->params[i].dw, k) != 0)
            return false;
    return true;
}

static int gradients(struct run *r)
{
    r->out->indexer_still = true;
    for (int64_t i = 0; i < r->t->table->count; i++) {
        const struct table_entry *e = &r->t->table->entries[i];
        char name[256];
        int64_t n = 0, m = 0;
        if (!r->t->params[i].dw)
            continue;
        if (!r->o->both && e->kind == KIND_INDEXER) {
            r->out->indexer_still = r->out->indexer_still && all_zero(r, i);
            continue;
        }
        snprintf(name, sizeof name, "%s.stat.%s", r->o->both ? "all" : "lm", e->name);
        const double *stat = golden_f64(r->g, name, &m);
        snprintf(name, sizeof name, "%s.grad.%s", r->o->both ? "all" : "lm", e->name);
        const float *want = golden_f32(r->g, name, &n);
        if (!stat || m != 3 || !want)
            return missing(r, name);
        one_gradient(r, i, stat, want, n);
    }
    return 0;
}

/* ---- the run ---------------------------------------------------------------------------------- */

static int batch(struct run *r)
{
    int64_t T = 0, n = 0;
    r->b.ids = golden_i32(r->g, "ids", &T);
    r->b.positions = golden_i32(r->g, "positions", &n);
    r->b.targets = golden_i32(r->g, "targets", &n);
    r->b.cu_seqlens = golden_i32(r->g, "cu_seqlens", &n);
    r->b.tokens = T;
    r->b.sequences = n - 1;
    return r->b.ids && r->b.positions && r->b.targets && r->b.cu_seqlens
        ? 0
        : missing(r, "ids");
}

/* The sets that transformers chose in bfloat16. */
static int bf16_sets(struct run *r, const int32_t **index, const int32_t **expert)
{
    const struct model_config *c = &r->t->table->config;
    for (int64_t i = 0; i < c->num_hidden_layers; i++) {
        char name[32];
        int64_t n;
        snprintf(name, sizeof name, "bf16.index.%d", (int)i);
        index[i] = golden_i32(r->g, name, &n);
        if (c->layer_owns_indexer[i] && !index[i])
            return missing(r, name);
        snprintf(name, sizeof name, "bf16.expert.%d", (int)i);
        expert[i] = golden_i32(r->g, name, &n);
        if (!c->layer_is_dense[i] && !expert[i])
            return missing(r, name);
    }
    return 0;
}

static int train(struct run *r)
{
    const struct model_options o = {.dtype = r->o->dtype,
        .max_tokens = r->b.tokens,
        .max_sequences = r->b.sequences,
        .indexer_loss = r->o->both ? MODEL_INDEXER_SPARSE : MODEL_INDEXER_OFF,
        .indexer_coeff = INDEXER_COEFF,
        .mtp = r->o->both,
        .mtp_coeff = MTP_COEFF,
        .absorbed = r->o->absorbed,
        .hf_rounding = true,
        .hf_scales = true,
        .zero_padding_row_grad = true};
    glm_stream stream = kernels_find("cpu")->stream_new(r->o->threads, r->err);
    if (!stream)
        return r->err->code;
    const int32_t *index[64], *expert[64];
    const struct model_replay replay = {.index = index, .expert = expert};
    const bool low = r->o->dtype == GLM_BF16;
    r->m = tinymodel_model(r->t, &o, stream);
    if ((low && bf16_sets(r, index, expert) != 0)
        || model_forward(r->m, &r->b, low ? &replay : NULL, r->err) != 0 || logits(r) != 0
        || low)
        goto out;
    const struct model_losses *l = model_losses(r->m);
    const struct model_scale scale = {.lm = 1.0 / (double)l->lm_count,
        .mtp = l->mtp_count > 0 ? 1.0 / (double)l->mtp_count : 0,
        .indexer = 1.0 / (double)r->b.tokens};
    if (model_backward(r->m, &scale, r->err) != 0 || losses(r) != 0 || sets(r) != 0)
        goto out;
    gradients(r);
out:
    model_free(r->m);
    kernels_find("cpu")->stream_free(stream);
    return r->err->code;
}

int parity_run(struct parity *out, const char *path, const struct parity_options *o,
    struct glm_error *err)
{
    struct run r = {.o = o, .out = out, .err = err};
    int64_t n = 0;
    *out = (struct parity){0};
    if (golden_open(&r.g, path, err) != 0)
        return err->code;
    const char *config = golden_text(r.g, "config");
    const int32_t *seed = golden_i32(r.g, "seed", &n);
    out->whole = golden_text(r.g, "whole") && strcmp(golden_text(r.g, "whole"), "1") == 0;
    if (!config || !seed || n != 2) {
        missing(&r, "seed");
        goto out;
    }
    r.t = tinymodel_new(config, (uint32_t)seed[0], seed[1] != 0, o->dtype, !o->both);
    if (batch(&r) == 0)
        train(&r);
    tinymodel_free(r.t);
out:
    golden_close(r.g);
    return glm_within(err, "%s", path);
}
