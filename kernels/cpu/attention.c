/* Softmax attention over the keys a row sees. One item of work is one head of one row. */
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/pool.h"
#include "kernels/cpu/rows.h"

#include <inttypes.h>
#include <string.h>

/* What forward and backward share; row t, head n begins at the given element. */
struct shape {
    struct pack pack;
    int64_t N, Nk, Dq, Dv, k_stride, v_stride, most;
};

#define SHAPE(p)                                                                         \
    {                                                                                    \
        .pack = {(p)->cu_seqlens, (p)->index, (p)->T, (p)->S, (p)->K}, .N = (p)->N,      \
        .Nk = (p)->Nk, .Dq = (p)->Dq, .Dv = (p)->Dv,                                     \
        .k_stride = (p)->k_stride != 0 ? (p)->k_stride : (p)->Nk * (p)->Dq,              \
        .v_stride = (p)->v_stride != 0 ? (p)->v_stride : (p)->Nk * (p)->Dv               \
    }

static const elem *key_base(const struct shape *s, const elem *k, int64_t n)
{
    return k + (s->Nk == 1 ? 0 : n * s->Dq);
}

static const elem *value_base(const struct shape *s, const elem *v, int64_t n)
{
    return v + (s->Nk == 1 ? 0 : n * s->Dv);
}

static int check(struct shape *s, const char *op, struct glm_error *err)
{
    if (s->N < 1 || (s->Nk != 1 && s->Nk != s->N) || s->Dq < 1 || s->Dv < 1)
        return glm_fail(err, GLM_EFORMAT,
            "%s: %" PRId64 " heads, %" PRId64
            " key heads (expected 1 or as many), of %" PRId64 " and %" PRId64
            " dimensions",
            op, s->N, s->Nk, s->Dq, s->Dv);
    if (s->pack.T > INT32_MAX / s->N)
        return glm_fail(err, GLM_EFORMAT,
            "%s: %" PRId64 " rows of %" PRId64 " heads, too many", op, s->pack.T, s->N);
    return keys_check(&s->pack, op, &s->most, err);
}

/* ---- forward ---------------------------------------------------------------------------------- */

struct fwd {
    const struct attention_fwd *p;
    struct shape s;
    real *scratch; /* per range: most + Dv */
};

LANES_BODY void fwd_head(
    const struct fwd *f, int64_t t, int64_t n, real *score, real *sum)
{
    const struct attention_fwd *p = f->p;
    const struct shape *s = &f->s;
    const struct keys keys = keys_of(&s->pack, t);
    const elem *q = (const elem *)p->q + (t * s->N + n) * s->Dq;
    elem *o = (elem *)p->o + (t * s->N + n) * s->Dv;
    real top;

    rows_dots(score, q, key_base(s, p->k, n), s->k_stride, &keys, s->Dq);
    const real total = rows_exp(score, keys.count, (real)p->scale, &top);
    for (int64_t j = 0; j < keys.count; j++)
        score[j] = low(score[j] / total);
    memset(sum, 0, (size_t)s->Dv * sizeof *sum);
    rows_add(sum, score, value_base(s, p->v, n), s->v_stride, &keys, s->Dv);
    for (int64_t d = 0; d < s->Dv; d++)
        o[d] = put(sum[d]);
    ((real *)p->lse)[t * s->N + n] = top + real_log(total);
}

LANES_CLONES static void fwd_range(const void *ctx, int64_t begin, int64_t end)
{
    const struct fwd *f = ctx;
    const int64_t N = f->s.N, range = begin / rows_grain(f->s.pack.T * N);
    real *score = f->scratch + range * (f->s.most + f->s.Dv);

    for (int64_t i = begin; i < end; i++)
        fwd_head(f, i / N, i % N, score, score + f->s.most);
}

OP_FN(attention_fwd)
{
    struct fwd f = {.p = p, .s = SHAPE(p)};
    int code = check(&f.s, "attention_fwd", err);
    const int64_t items = p->T * p->N;

    if (code != 0 || items == 0)
        return code;
    f.scratch = pool_scratch(
        stream, (size_t)(rows_ranges(items) * (f.s.most + p->Dv)) * sizeof(real), err);
    if (f.scratch == NULL)
        return GLM_ENOMEM;
    pool_for(stream, items, rows_grain(items), fwd_range, &f);
    pool_scratch_free(stream, f.scratch);
    return 0;
}

/* ---- backward --------------------------------------------------------------------------------- */

struct bwd {
    const struct attention_bwd *p;
    struct shape s;
    struct block b;
    real *prob, *ds;   /* [block rows, N, most]: low(p) and dL/d(q.k) */
    real *row_scratch; /* per range of rows: Dq */
    real *key_coef;    /* per range of keys: block rows * N */
    int32_t *key_row;
    real *dv; /* [T, Nk, Dv]: the caller's, or scratch that joins dk at the end */
};

/* p and ds of one head of one row, and its dq. */
LANES_BODY void bwd_head(const struct bwd *w, int64_t t, int64_t n, real *sum)
{
    const struct attention_bwd *p = w->p;
    const struct shape *s = &w->s;
    const struct keys keys = keys_of(&s->pack, t);
    const int64_t head = t * s->N + n;
    const elem *q = (const elem *)p->q + head * s->Dq, *k = key_base(s, p->k, n);
    const elem *do_ = (const elem *)p->do_ + head * s->Dv;
    const real lse = ((const real *)p->lse)[head], scale = (real)p->scale;
    real *prob = block_coef(&w->b, w->prob, t, n), *ds = block_coef(&w->b, w->ds, t, n);
    elem *dq = (elem *)p->dq + head * s->Dq;

    rows_dots(prob, q, k, s->k_stride, &keys, s->Dq);
    rows_dots(ds, do_, value_base(s, p->v, n), s->v_stride, &keys, s->Dv);
    const real mean = rows_dot(do_, (const elem *)p->o + head * s->Dv, s->Dv);
    for (int64_t j = 0; j < keys.count; j++) {
        const real pj = real_exp(scale * prob[j] - lse);
        ds[j] = scale * pj * (ds[j] - mean);
        prob[j] = low(pj);
    }
    memset(sum, 0, (size_t)s->Dq * sizeof *sum);
    rows_add(sum, ds, k, s->k_stride, &keys, s->Dq);
    for (int64_t d = 0; d < s->Dq; d++)
        dq[d] = put(sum[d]);
}

LANES_CLONES static void bwd_rows(const void *ctx, int64_t begin, int64_t end)
{
    const struct bwd *w = ctx;
    const int64_t N = w->s.N, range = begin / rows_grain((w->b.t1 - w->b.t0) * N);

    for (int64_t i = begin; i < end; i++)
        bwd_head(w, w->b.t0 + i / N, i % N, w->row_scratch + range * w->s.Dq);
}

LANES_CLONES static void bwd_keys(const void *ctx, int64_t begin, int64_t end)
{
    const struct bwd *w = ctx;
    const struct shape *s = &w->s;
    const int64_t heads = s->N / s->Nk,
                  at = begin / rows_grain(s->pack.T) * (w->b.t1 - w->b.t0) * s->N;
    real *c = w->key_coef + at;
    int32_t *r = w->key_row + at;

    for (int64_t key = begin; key < end; key++) {
        for (int64_t n = 0; n < s->Nk; n++) {
            real *dk = (real *)w->p->dk + (key * s->Nk + n) * s->Dq;
            real *dv = w->dv + (key * s->Nk + n) * s->Dv;
            block_fold(
                &w->b, key, n * heads, (n + 1) * heads, w->ds, w->p->q, dk, s->Dq, c, r);
            block_fold(&w->b, key, n * heads, (n + 1) * heads, w->prob, w->p->do_, dv,
                s->Dv, c, r);
        }
    }
}

static int bwd_memory(
    struct bwd *w, int64_t rows, glm_stream stream, struct glm_error *err)
{
    const int64_t coefs = rows * w->s.N * w->s.most;
    const int64_t folds = rows_ranges(w->s.pack.T) * rows * w->s.N;

    w->prob = pool_scratch(stream, (size_t)coefs * sizeof(real), err);
    w->ds = pool_scratch(stream, (size_t)coefs * sizeof(real), err);
    w->row_scratch = pool_scratch(
        stream, (size_t)(rows_ranges(rows * w->s.N) * w->s.Dq) * sizeof(real), err);
    w->key_coef = pool_scratch(stream, (size_t)folds * sizeof(real), err);
    w->key_row = pool_scratch(stream, (size_t)folds * sizeof(int32_t), err);
    w->dv = w->p->dv != NULL
        ? w->p->dv
        : pool_scratch(stream, (size_t)(w->p->T * w->s.Dv) * sizeof(real), err);
    return w->prob && w->ds && w->row_scratch && w->key_coef && w->key_row && w->dv
        ? 0
        : GLM_ENOMEM;
}

/* One latent key for both: dk gets what v got. */
static void join_values(const struct bwd *w)
{
    for (int64_t t = 0; w->p->dv == NULL && t < w->p->T; t++) {
        for (int64_t d = 0; d < w->s.Dv; d++)
            ((real *)w->p->dk)[t * w->s.Dq + d] += w->dv[t * w->s.Dv + d];
    }
}

OP_FN(attention_bwd)
{
    struct bwd w = {.p = p, .s = SHAPE(p)};
    int code = check(&w.s, "attention_bwd", err);

    if (code == 0 && p->dv == NULL && (p->Nk != 1 || p->v != p->k || p->Dv > p->Dq))
        code = glm_fail(err, GLM_EFORMAT,
            "attention_bwd: no dv, though the values do not lie in the keys");
    if (code != 0 || p->T == 0)
        return code;
    const int64_t rows = block_rows(&w.s.pack, p->N, w.s.most, 2);
    w.b = (struct block){.pack = &w.s.pack, .N = p->N, .most = w.s.most};
    if ((code = bwd_memory(&w, rows, stream, err)) != 0)
        goto out;
    memset(p->dk, 0, (size_t)(p->T * p->Nk * p->Dq) * sizeof(real));
    memset(w.dv, 0, (size_t)(p->T * p->Nk * p->Dv) * sizeof(real));
    for (w.b.t0 = 0; w.b.t0 < p->T; w.b.t0 = w.b.t1) {
        w.b.t1 = w.b.t0 + rows < p->T ? w.b.t0 + rows : p->T;
        const int64_t items = (w.b.t1 - w.b.t0) * p->N;
        pool_for(stream, items, rows_grain(items), bwd_rows, &w);
        pool_for(stream, w.b.t1, rows_grain(p->T), bwd_keys, &w);
    }
    join_values(&w);
out:
    if (p->dv == NULL)
        pool_scratch_free(stream, w.dv);
    pool_scratch_free(stream, w.key_row);
    pool_scratch_free(stream, w.key_coef);
    pool_scratch_free(stream, w.row_scratch);
    pool_scratch_free(stream, w.ds);
    pool_scratch_free(stream, w.prob);
    return code;
}
