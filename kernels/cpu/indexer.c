/* The lightning indexer: scores, exact top-k of them, and its KL loss. */
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/mutate.h"
#include "kernels/cpu/pool.h"
#include "kernels/cpu/rows.h"

#include <inttypes.h>
#include <string.h>

/* The scales of I[t,s] = sum_n (w*on_w) * relu((q.k)*on_z). */
struct scales {
    real on_w, on_z;
};

static struct scales scales_of(int64_t N, int64_t D, bool hf)
{
    if (!hf)
        return (struct scales){(real)(1 / sqrt((double)N * (double)D)), 1};
    return (struct scales){(real)(1 / sqrt((double)N)), (real)(1 / sqrt((double)D))};
}

/* A NaN stays one. */
LANES_BODY real relu(real z)
{
#ifdef MUTATE_NO_RELU
    return z;
#else
    return z < 0 ? 0 : z;
#endif
}

LANES_BODY real relu_slope(real z)
{
#ifdef MUTATE_NO_RELU
    (void)z;
    return 1;
#else
    return z > 0 ? 1 : 0;
#endif
}

static int check(const char *op, int64_t T, int64_t N, int64_t D, struct glm_error *err)
{
    if (N < 1 || D < 1 || T > INT32_MAX / N)
        return glm_fail(err, GLM_EFORMAT,
            "%s: %" PRId64 " rows of %" PRId64 " heads of %" PRId64 " dimensions", op, T,
            N, D);
    return 0;
}

/* ---- top-k ------------------------------------------------------------------------------------ */

#if defined(MODE_F64)
enum { SCORE_BITS = 64 };
typedef uint64_t rank;
#else
enum { SCORE_BITS = 32 };
typedef uint32_t rank;
#endif

/* Scores as integers of the same order: NaN 0, then -infinity, up to infinity; -0 as +0. */
LANES_BODY rank rank_of(real score)
{
    const rank sign = (rank)1 << (SCORE_BITS - 1);
    const real x = score + 0; /* -0 becomes +0 */
    rank bits;

    memcpy(&bits, &x, sizeof bits);
    bits = (bits & sign) != 0 ? ~bits : bits | sign;
    return x == x ? bits : 0;
}

/* The k-th largest of n ranks, 1 <= k <= n; *ties: how many that equal it belong to the k largest.
 * Byte by byte from the top: which value has the k-th largest there, among those that agree with
 * what is known. */
static rank rank_select(const rank *x, int64_t n, int64_t k, int64_t *ties)
{
    rank known = 0;

    for (int shift = SCORE_BITS - 8; shift >= 0; shift -= 8) {
        int64_t count[256] = {0};
        int byte = 255;
        for (int64_t i = 0; i < n; i++) {
            if (shift == SCORE_BITS - 8 || x[i] >> shift >> 8 == known)
                count[x[i] >> shift & 255]++;
        }
        for (; count[byte] < k; byte--)
            k -= count[byte];
        known = (rank)(known << 8 | (rank)byte);
    }
    *ties = k;
    return known;
}

struct topk {
    const struct indexer_topk *p;
    struct pack pack;
    struct scales scales;
    real *score; /* per range: most scores */
    rank *rank;  /* and as many ranks */
    int64_t most;
};

LANES_BODY void score_row(
    const struct topk *k, int64_t t, const struct keys *keys, real *score)
{
    const struct indexer_topk *p = k->p;
    const elem *q = (const elem *)p->q + t * p->N * p->D;
    const elem *w = (const elem *)p->w + t * p->N;

    for (int64_t j = 0; j < keys->count; j++) {
        const elem *key = (const elem *)p->k + keys_at(keys, j) * p->D;
        real sum = 0;
        for (int64_t n = 0; n < p->N; n++)
            sum += get(w[n]) * k->scales.on_w
                * relu(rows_dot(q + n * p->D, key, p->D) * k->scales.on_z);
        score[j] = sum;
    }
}

LANES_BODY void topk_row(const struct topk *k, int64_t t, real *score, rank *ranks)
{
    const int64_t K = k->p->K;
    const struct keys keys = keys_of(&k->pack, t);
    int32_t *index = k->p->index + t * K;
    real *out = k->p->score == NULL ? NULL : (real *)k->p->score + t * K;
    rank least = 0;
    int64_t ties = K, count = 0;

    if (keys.count > K || out != NULL)
        score_row(k, t, &keys, score);
    for (int64_t j = 0; keys.count > K && j < keys.count; j++)
        ranks[j] = rank_of(score[j]);
    if (keys.count > K)
        least = rank_select(ranks, keys.count, K, &ties);
    for (int64_t j = 0; j < keys.count && count < K; j++) {
        if (keys.count > K && (ranks[j] < least || (ranks[j] == least && ties-- <= 0)))
            continue;
        if (out != NULL)
            out[count] = score[j];
        index[count++] = (int32_t)keys_at(&keys, j);
    }
    for (; count < K; count++) {
        index[count] = -1;
        if (out != NULL)
            out[count] = 0;
    }
}

LANES_CLONES static void topk_range(const void *ctx, int64_t begin, int64_t end)
{
    const struct topk *k = ctx;
    const int64_t at = begin / rows_grain(k->p->T) * k->most;

    for (int64_t t = begin; t < end; t++)
        topk_row(k, t, k->score + at, k->rank + at);
}

OP_FN(indexer_topk)
{
    struct topk k = {.p = p,
        .pack = {p->cu_seqlens, NULL, p->T, p->S, p->K},
        .scales = scales_of(p->N, p->D, p->hf_scales)};
    int code = check("indexer_topk", p->T, p->N, p->D, err);

    if (code == 0 && p->K < 1)
        code = glm_fail(err, GLM_EFORMAT, "indexer_topk: the %" PRId64 " largest", p->K);
    if (code == 0)
        code = keys_check(&k.pack, "indexer_topk", &k.most, err);
    if (code != 0 || p->T == 0)
        return code;
    const size_t n = (size_t)(rows_ranges(p->T) * k.most);
    k.score = pool_scratch(stream, n * sizeof *k.score, err);
    k.rank = pool_scratch(stream, n * sizeof *k.rank, err);
    if (k.score == NULL || k.rank == NULL)
        code = GLM_ENOMEM;
    else
        pool_for(stream, p->T, rows_grain(p->T), topk_range, &k);
    pool_scratch_free(stream, k.rank);
    pool_scratch_free(stream, k.score);
    return code;
}

/* ---- loss ------------------------------------------------------------------------------------- */

struct loss {
    const struct indexer_loss *p;
    struct pack pack;
    struct block b;
    struct scales scales;
    real *coef;        /* [block rows, N, most]: q.k, then its gradient */
    real *row_scratch; /* per range of rows: three arrays of `most` */
    real *key_coef;    /* per range of keys: block rows * N */
    int32_t *key_row;
};

/* target = A / max(sum A, 1e-10): the heads' mean attention. dots: memory. */
LANES_BODY void loss_target(const struct loss *l, int64_t t, const struct keys *keys,
    real *restrict target, real *dots)
{
    const struct indexer_loss *p = l->p;
    const int64_t stride = p->mk_stride != 0 ? p->mk_stride : p->MNk * p->MDq;
    const real scale = (real)p->main_scale;
    real sum;

    memset(target, 0, (size_t)keys->count * sizeof *target);
    for (int64_t n = 0; n < p->MN; n++) {
        const elem *q = (const elem *)p->mq + (t * p->MN + n) * p->MDq;
        const elem *k = (const elem *)p->mk + (p->MNk == 1 ? 0 : n * p->MDq);
        const real lse = ((const real *)p->lse)[t * p->MN + n];
        rows_dots(dots, q, k, stride, keys, p->MDq);
        for (int64_t j = 0; j < keys->count; j++)
            target[j] += real_exp(scale * dots[j] - lse);
    }
    LANES_SUM(sum, keys->count, target[d]);
    const real total = sum < (real)1e-10 ? (real)1e-10 : sum;
    for (int64_t j = 0; j < keys->count; j++)
        target[j] /= total;
}

/* q.k per head in z, and the scores. */
LANES_BODY void loss_scores(
    const struct loss *l, int64_t t, const struct keys *keys, real *restrict score)
{
    const struct indexer_loss *p = l->p;

    memset(score, 0, (size_t)keys->count * sizeof *score);
    for (int64_t n = 0; n < p->N; n++) {
        const real w = get(((const elem *)p->w)[t * p->N + n]) * l->scales.on_w;
        real *restrict z = block_coef(&l->b, l->coef, t, n);
        rows_dots(z, (const elem *)p->q + (t * p->N + n) * p->D, p->k, p->D, keys, p->D);
        for (int64_t j = 0; j < keys->count; j++)
            score[j] += w * relu(z[j] * l->scales.on_z);
    }
}

/* dw and dq of the row; coef becomes dL/d(q.k). dI: the gradient of the scores. */
LANES_BODY void loss_backward(
    const struct loss *l, int64_t t, const struct keys *keys, const real *dI)
{
    const struct indexer_loss *p = l->p;
    const real on_z = l->scales.on_z, on_w = l->scales.on_w;

    for (int64_t n = 0; n < p->N; n++) {
        const real w = get(((const elem *)p->w)[t * p->N + n]) * on_w;
        real *restrict z = block_coef(&l->b, l->coef, t, n);
        real *dq = (real *)p->dq + (t * p->N + n) * p->D;
        real dw;
        LANES_SUM(dw, keys->count, dI[d] * relu(z[d] * on_z));
        ((real *)p->dw)[t * p->N + n] = dw * on_w;
        for (int64_t j = 0; j < keys->count; j++)
            z[j] = dI[j] * w * relu_slope(z[j]) * on_z;
        memset(dq, 0, (size_t)p->D * sizeof *dq);
        rows_add(dq, z, p->k, p->D, keys, p->D);
    }
}

LANES_BODY void loss_row(
    const struct loss *l, int64_t t, real *score, real *target, real *u)
{
    const struct keys keys = keys_of(&l->pack, t);
    const bool fill = t >= keys_end(&l->pack, t) - l->p->fill;
    real top, kl;

    loss_target(l, t, &keys, target, u);
    loss_scores(l, t, &keys, score);
    memcpy(u, score, (size_t)keys.count * sizeof *u);
    const real total = rows_exp(u, keys.count, 1, &top);
    const real lse = top + real_log(total);
    LANES_SUM(kl, keys.count,
        target[d]
            * (real_log(target[d] > (real)1e-10 ? target[d] : (real)1e-10)
                - (score[d] - lse)));
    ((real *)l->p->kl)[t] = fill ? 0 : kl;
    if (l->p->dq == NULL)
        return;
    for (int64_t j = 0; j < keys.count; j++)
        u[j] = fill ? 0 : (real)l->p->coeff * (u[j] / total - target[j]);
    loss_backward(l, t, &keys, u);
}

LANES_CLONES static void loss_rows(const void *ctx, int64_t begin, int64_t end)
{
    const struct loss *l = ctx;
    const int64_t most = l->b.most, range = begin / rows_grain(l->b.t1 - l->b.t0);
    real *memory = l->row_scratch + range * 3 * most;

    for (int64_t i = begin; i < end; i++)
        loss_row(l, l->b.t0 + i, memory, memory + most, memory + 2 * most);
}

LANES_CLONES static void loss_keys(const void *ctx, int64_t begin, int64_t end)
{
    const struct loss *l = ctx;
    const struct indexer_loss *p = l->p;
    const int64_t at = begin / rows_grain(p->T) * (l->b.t1 - l->b.t0) * p->N;

    for (int64_t s = begin; s < end; s++)
        block_fold(&l->b, s, 0, p->N, l->coef, p->q, (real *)p->dk + s * p->D, p->D,
            l->key_coef + at, l->key_row + at);
}

static int loss_check(const struct indexer_loss *p, struct glm_error *err)
{
    if (p->MN < 1 || (p->MNk != 1 && p->MNk != p->MN) || p->MDq < 1)
        return glm_fail(err, GLM_EFORMAT,
            "indexer_loss: main attention of %" PRId64 " heads, %" PRId64
            " key heads (expected 1 or as many), %" PRId64 " dimensions",
            p->MN, p->MNk, p->MDq);
    if ((p->dq == NULL) != (p->dk == NULL) || (p->dq == NULL) != (p->dw == NULL))
        return glm_fail(err, GLM_EFORMAT,
            "indexer_loss: dq, dk, dw are expected all or none of them");
    return check("indexer_loss", p->T, p->N, p->D, err);
}

static int loss_memory(
    struct loss *l, int64_t rows, glm_stream stream, struct glm_error *err)
{
    const int64_t N = l->b.N, most = l->b.most, folds = rows_ranges(l->pack.T) * rows * N;

    l->coef = pool_scratch(stream, (size_t)(rows * N * most) * sizeof(real), err);
    l->row_scratch =
        pool_scratch(stream, (size_t)(rows_ranges(rows) * 3 * most) * sizeof(real), err);
    l->key_coef = pool_scratch(stream, (size_t)folds * sizeof(real), err);
    l->key_row = pool_scratch(stream, (size_t)folds * sizeof(int32_t), err);
    return l->coef && l->row_scratch && l->key_coef && l->key_row ? 0 : GLM_ENOMEM;
}

OP_FN(indexer_loss)
{
    struct loss l = {.p = p,
        .pack = {p->cu_seqlens, p->index, p->T, p->S, p->K},
        .scales = scales_of(p->N, p->D, p->hf_scales)};
    int code = loss_check(p, err);

    l.b = (struct block){.pack = &l.pack, .N = p->N};
    if (code == 0)
        code = keys_check(&l.pack, "indexer_loss", &l.b.most, err);
    if (code != 0 || p->T == 0)
        return code;
    const int64_t rows = block_rows(&l.pack, p->N, l.b.most, 1);
    if ((code = loss_memory(&l, rows, stream, err)) != 0)
        goto out;
    if (p->dk != NULL)
        memset(p->dk, 0, (size_t)(p->T * p->D) * sizeof(real));
    for (l.b.t0 = 0; l.b.t0 < p->T; l.b.t0 = l.b.t1) {
        l.b.t1 = l.b.t0 + rows < p->T ? l.b.t0 + rows : p->T;
        pool_for(stream, l.b.t1 - l.b.t0, rows_grain(l.b.t1 - l.b.t0), loss_rows, &l);
        if (p->dk != NULL)
            pool_for(stream, l.b.t1, rows_grain(p->T), loss_keys, &l);
    }
out:
    pool_scratch_free(stream, l.key_row);
    pool_scratch_free(stream, l.key_coef);
    pool_scratch_free(stream, l.row_scratch);
    pool_scratch_free(stream, l.coef);
    return code;
}
