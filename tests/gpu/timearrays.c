/* Arrays of a line that is timed. */
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/timeline.h"
#include "tests/support/opdata.h"
#include "tests/support/rng.h"

static bool dropped(const struct timeline *l, const char *field)
{
    for (int i = 0; i < DROPS; i++)
        if (l->drop[i] != NULL && strcmp(l->drop[i], field) == 0)
            return true;
    return false;
}

static double bytes_of(const struct field *f)
{
    return (double)f->n * (double)glm_dtype_size(f->type);
}

double timeline_size(const struct timeline *l)
{
    struct fields f;
    double sum = 0;

    op_fields(l->op, l->p, &f);
    for (int i = 0; i < f.count; i++)
        sum += dropped(l, f.field[i].name) ? 0 : bytes_of(&f.field[i]);
    return sum;
}

double timeline_bytes(const struct timeline *l)
{
    struct fields f;
    double sum = 0;

    op_fields(l->op, l->p, &f);
    for (int i = 0; i < f.count; i++)
        if (!dropped(l, f.field[i].name))
            sum += bytes_of(&f.field[i]) * (f.field[i].dir == INOUT ? 2 : 1);
    return l->bytes > 0 ? l->bytes : sum;
}

/* ---- integers --------------------------------------------------------------------------------- */

/* K different experts of E for each token, ascending. */
static void experts(int32_t *to, int64_t T, int64_t E, int64_t K, uint64_t *state)
{
    for (int64_t t = 0; t < T; t++) {
        int64_t left = K;
        for (int64_t e = 0; e < E; e++)
            if ((int64_t)rng_below(state, (uint64_t)(E - e)) < left)
                to[t * K + K - left--] = (int32_t)e;
    }
}

/* The rows of T tokens' K slots, or (rows NULL) each row's token. */
static int plan(int32_t *rows, int32_t *tokens, int64_t T, int64_t K, uint64_t *state)
{
    const int64_t E = K > 16 ? K : 16, n = T * K;
    int32_t *const all = calloc((size_t)(4 * n + E + 1), sizeof *all);
    struct glm_error err = {0};

    if (all == NULL)
        return GLM_ENOMEM;
    experts(all, T, E, K, state);
    cpu_moe_plan(&(struct moe_plan){.expert = all,
                     .token = all + n,
                     .slot = all + 2 * n,
                     .row = all + 3 * n,
                     .offset = all + 4 * n,
                     .T = T,
                     .E = E,
                     .K = K},
        NULL, &err);
    memcpy(rows != NULL ? rows : tokens, rows != NULL ? all + 3 * n : all + n,
        (size_t)n * sizeof *all);
    free(all);
    return (int)err.code;
}

/* Groups of about equal size: an eighth more or less. */
static void offsets(int32_t *to, int64_t G, int64_t rows, uint64_t *state)
{
    const int64_t each = rows / G, play = each / 8;

    for (int64_t g = 0; g <= G; g++)
        to[g] = (int32_t)(g == 0 ? 0
                : g == G         ? rows
                         : g * each + (int64_t)rng_below(state, (uint64_t)play + 1));
}

/* Key sets: all where few can be seen, else K of them, ascending. */
static void sets(int32_t *to, int64_t T, int64_t K, uint64_t *state)
{
    for (int64_t t = 0; t < T; t++) {
        int64_t left = K < t + 1 ? K : t + 1, at = 0;
        for (int64_t s = 0; s <= t && left > 0; s++)
            if ((int64_t)rng_below(state, (uint64_t)(t + 1 - s)) < left) {
                to[t * K + at++] = (int32_t)s;
                left--;
            }
        while (at < K)
            to[t * K + at++] = -1;
    }
}

static int64_t below_of(enum op_id op, const void *p)
{
    switch (op) {
    case OP_embedding_fwd:
        return ((const struct embedding_fwd *)p)->V;
    case OP_embedding_bwd:
        return ((const struct embedding_bwd *)p)->V;
    case OP_linear_ce_fwd:
        return ((const struct linear_ce_fwd *)p)->V;
    case OP_linear_ce_bwd:
        return ((const struct linear_ce_bwd *)p)->V;
    default:
        return 1;
    }
}

static int integers(const struct timeline *l, const struct field *f, int32_t *to)
{
    const char *name = f->name;
    uint64_t state = 3;

    if (strcmp(name, "positions") == 0) {
        for (int64_t i = 0; i < f->n; i++)
            to[i] = (int32_t)i;
    } else if (strcmp(name, "cu_seqlens") == 0) {
        const int64_t T = l->op == OP_attention_fwd
            ? ((const struct attention_fwd *)l->p)->T
            : l->op == OP_attention_bwd ? ((const struct attention_bwd *)l->p)->T
            : l->op == OP_indexer_topk  ? ((const struct indexer_topk *)l->p)->T
                                        : ((const struct indexer_loss *)l->p)->T;
        to[0] = 0;
        to[f->n - 1] = (int32_t)T;
    } else if (strcmp(name, "index") == 0) {
        const int64_t K = l->op == OP_attention_fwd
            ? ((const struct attention_fwd *)l->p)->K
            : l->op == OP_attention_bwd ? ((const struct attention_bwd *)l->p)->K
                                        : ((const struct indexer_loss *)l->p)->K;
        sets(to, f->n / K, K, &state);
    } else if (strcmp(name, "expert") == 0) {
        const int64_t E = l->op == OP_moe_plan ? ((const struct moe_plan *)l->p)->E
                                               : ((const struct router_bwd *)l->p)->E;
        const int64_t K = l->op == OP_moe_plan ? ((const struct moe_plan *)l->p)->K
                                               : ((const struct router_bwd *)l->p)->K;
        experts(to, f->n / K, E, K, &state);
    } else if (strcmp(name, "offset") == 0) {
        const struct grouped_gemm *p = (const void *)l->p;
        offsets(to, p->G, p->rows, &state);
    } else if (strcmp(name, "token") == 0) {
        const struct moe_gather *p = (const void *)l->p;
        return plan(NULL, to, p->T, p->rows / p->T, &state);
    } else if (strcmp(name, "row") == 0) {
        const int64_t T = l->op == OP_moe_combine_fwd
            ? ((const struct moe_combine_fwd *)l->p)->T
            : l->op == OP_moe_combine_bwd ? ((const struct moe_combine_bwd *)l->p)->T
                                          : ((const struct moe_gather_bwd *)l->p)->T;
        return plan(to, NULL, T, f->n / T, &state);
    } else {
        for (int64_t i = 0; i < f->n; i++)
            to[i] = (int32_t)rng_below(&state, (uint64_t)below_of(l->op, l->p));
    }
    return 0;
}

/* ---- filling ---------------------------------------------------------------------------------- */

static int fill_integers(
    struct timearrays *a, const struct timeline *l, int i, struct glm_error *err)
{
    const struct field *f = &a->f.field[i];
    const size_t bytes = (size_t)f->n * sizeof(int32_t);
    int32_t *host = malloc(bytes > 0 ? bytes : 1);

    if (host == NULL || integers(l, f, host) != 0)
        glm_fail(err, GLM_ENOMEM, "no memory for %s", f->name);
    else
        a->k->to_device(a->memory[i], host, bytes, a->stream, err);
    free(host);
    return (int)err->code;
}

static int fill_floats(struct timearrays *a, const struct timesupport *gpu, int i,
    uint64_t seed, struct glm_error *err)
{
    const struct field *f = &a->f.field[i];
    const uint64_t mine = seed * 1000003 + (uint64_t)i * 7919;
    /* Squares' means, reciprocal roots. */
    const bool positive = strcmp(f->name, "rstd") == 0 || strcmp(f->name, "v") == 0;
    const float spread = positive ? 0.02f : 1.0f, mean = positive ? 1.0f : 0.0f;

    if (gpu->fill != NULL) {
        const int code = gpu->fill(
            a->memory[i], f->n, f->type == GLM_BF16, mine, spread / 37837.2f, mean);
        return code == 0
            ? 0
            : glm_fail(err, GLM_EDEVICE, "filling %s: CUDA %d", f->name, code);
    }
    void *const x = op_normals(f->type, f->n, mine);
    for (int64_t n = 0; positive && n < f->n; n++)
        op_set(f->type, x, n, 1);
    a->k->to_device(
        a->memory[i], x, (size_t)f->n * glm_dtype_size(f->type), a->stream, err);
    free(x);
    return (int)err->code;
}

static void *there(const struct timearrays *a, const char *field)
{
    for (int i = 0; i < a->f.count; i++)
        if (strcmp(a->f.field[i].name, field) == 0)
            return a->memory[i];
    return NULL;
}

/* What the forward pass leaves to the backward pass. */
static int forward(struct timearrays *a, enum op_id op, struct glm_error *err)
{
    if (op == OP_attention_bwd) {
        const struct attention_bwd *p = (const void *)a->p;
        return a->k->attention_fwd(&(struct attention_fwd){.o = there(a, "o"),
                                       .lse = there(a, "lse"),
                                       .q = p->q,
                                       .k = p->k,
                                       .v = p->v,
                                       .index = p->index,
                                       .cu_seqlens = p->cu_seqlens,
                                       .T = p->T,
                                       .S = p->S,
                                       .N = p->N,
                                       .Nk = p->Nk,
                                       .Dq = p->Dq,
                                       .Dv = p->Dv,
                                       .K = p->K,
                                       .k_stride = p->k_stride,
                                       .v_stride = p->v_stride,
                                       .scale = p->scale,
                                       .dtype = p->dtype},
            a->stream, err);
    }
    if (op == OP_linear_ce_bwd) {
        const struct linear_ce_bwd *p = (const void *)a->p;
        void *const loss = a->k->alloc((size_t)p->T * sizeof(double), err);
        if (loss != NULL)
            a->k->linear_ce_fwd(&(struct linear_ce_fwd){.loss = loss,
                                    .lse = there(a, "lse"),
                                    .h = p->h,
                                    .w = p->w,
                                    .target = p->target,
                                    .T = p->T,
                                    .V = p->V,
                                    .H = p->H,
                                    .dtype = p->dtype},
                a->stream, err);
        a->k->stream_wait(a->stream, err);
        a->k->release(loss);
    }
    if (op == OP_indexer_loss) {
        const struct indexer_loss *p = (const void *)a->p;
        void *const o =
            a->k->alloc((size_t)(p->T * p->MN * p->MDq) * sizeof(double), err);
        if (o != NULL)
            a->k->attention_fwd(&(struct attention_fwd){.o = o,
                                    .lse = there(a, "lse"),
                                    .q = p->mq,
                                    .k = p->mk,
                                    .v = p->mk,
                                    .index = p->index,
                                    .cu_seqlens = p->cu_seqlens,
                                    .T = p->T,
                                    .S = p->S,
                                    .N = p->MN,
                                    .Nk = p->MNk,
                                    .Dq = p->MDq,
                                    .Dv = p->MDq,
                                    .K = p->K,
                                    .scale = p->main_scale,
                                    .dtype = p->dtype},
                a->stream, err);
        a->k->stream_wait(a->stream, err);
        a->k->release(o);
    }
    return (int)err->code;
}

/* Latent keys: the values lie in them. */
static bool lies_in_k(const struct timeline *l, const char *name)
{
    if (strcmp(name, "v") != 0)
        return false;
    return l->op == OP_attention_fwd ? ((const struct attention_fwd *)l->p)->Nk == 1
        : l->op == OP_attention_bwd  ? ((const struct attention_bwd *)l->p)->Nk == 1
                                     : false;
}

int timearrays_open(struct timearrays *a, const struct timeline *l,
    const struct kernels *k, glm_stream stream, const struct timesupport *gpu,
    uint64_t seed, struct glm_error *err)
{
    *a = (struct timearrays){.k = k, .stream = stream};
    memcpy(a->p, l->p, op_size(l->op));
    op_fields(l->op, l->p, &a->f);
    for (int i = 0; i < a->f.count; i++) {
        const struct field *f = &a->f.field[i];
        if (lies_in_k(l, f->name)) {
            void *const in = there(a, "k");
            memcpy(a->p + f->at, &in, sizeof in);
            continue;
        }
        if (!dropped(l, f->name)) {
            a->memory[i] = k->alloc((size_t)bytes_of(f) + 1, err);
            if (a->memory[i] == NULL)
                return (int)err->code;
            if (f->type == GLM_I32
                    ? f->dir == IN && fill_integers(a, l, i, err) != 0
                    : f->type != GLM_F64 && fill_floats(a, gpu, i, seed, err) != 0)
                return (int)err->code;
        }
        memcpy(a->p + f->at, &a->memory[i], sizeof a->memory[i]);
    }
    return forward(a, l->op, err);
}

void timearrays_close(struct timearrays *a)
{
    for (int i = 0; i < a->f.count; i++)
        a->k->release(a->memory[i]);
    a->f.count = 0;
}
