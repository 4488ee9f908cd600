/* The indexer's KL loss, rows in chunks (indexer.cuh), two arrays of scores.
 *
 *   mark     target = 0 where a key is in the row's set, -1 elsewhere
 *   main     target = sum over the main heads of exp(scale*q.k - lse), where it is not below 0
 *   score    I
 *   rows     kl; I becomes dI = coeff*(u - p), 0 outside the set and in padding: a block a row
 *   dq, dw   a block a row and head, keys ascending
 *   dk       a block a key, rows then heads ascending, on top of the chunks before
 *
 * Every sum has one writer and an order of its own. */
#include "kernels/cuda/indexer_loss.cuh"

enum { THREADS = 256, KEYS = 32, ROWS = 8, TILE = 128 };

static __global__ void k_mark(struct loss_chunk c)
{
    const int64_t i = blockIdx.x, t = c.r.t0 + i;
    float *target = c.target + i * c.r.width;

    for (int64_t s = threadIdx.x; s < c.r.width; s += THREADS)
        target[s] = c.index == NULL && s >= c.r.first[t] && s <= t ? 0 : -1;
    __syncthreads();
    for (int64_t j = threadIdx.x; c.index != NULL && j < c.K; j += THREADS) {
        const int32_t s = c.index[t * c.K + j];
        if (s >= 0)
            target[s] = 0;
    }
}

template <class E> static __global__ void k_main(struct loss_chunk c)
{
    const int64_t s = (int64_t)blockIdx.x * KEYS + threadIdx.x % KEYS;
    const int64_t t = c.r.t0 + (int64_t)blockIdx.y * ROWS + threadIdx.x / KEYS;
    float *target = c.target + (t - c.r.t0) * c.r.width + s;

    if (t >= c.r.t1 || s > t || *target < 0)
        return;
    const E *q = (const E *)c.mq + t * c.MN * c.MDq, *k = (const E *)c.mk + s * c.mk_stride;
    float sum = 0;
    for (int64_t n = 0; n < c.MN; n++) {
        const E *kn = k + (c.MNk == 1 ? 0 : n * c.MDq);
        float z = 0;
        for (int64_t d = 0; d < c.MDq; d++)
            z += get(q[n * c.MDq + d]) * get(kn[d]);
        sum += expf(c.main_scale * z - c.lse[t * c.MN + n]);
    }
    *target = sum;
}

static __global__ void k_rows(struct loss_chunk c)
{
    __shared__ float room[WARP];
    const int64_t i = blockIdx.x, t = c.r.t0 + i;
    const int64_t begin = c.r.first[t], end = t + 1;
    const bool fill = t + c.fill >= c.r.T || c.r.first[t + c.fill] != begin;
    const float *target = c.target + i * c.r.width;
    float *score = c.score + i * c.r.width;
    float sum = 0, top = -INFINITY, total = 0, kl = 0;

    for (int64_t s = begin + threadIdx.x; s < end; s += THREADS) {
        if (target[s] < 0)
            continue;
        sum += target[s];
        top = fmaxf(top, score[s]);
    }
    sum = block_sum(sum, room);
    top = block_max(top, room);
    const float whole = sum < 1e-10f ? 1e-10f : sum;
    for (int64_t s = begin + threadIdx.x; s < end; s += THREADS)
        total += target[s] < 0 ? 0 : expf(score[s] - top);
    total = block_sum(total, room);
    const float lse = top + logf(total);
    for (int64_t s = begin + threadIdx.x; s < end; s += THREADS) {
        const float p = target[s] / whole;
        if (!(target[s] < 0))
            kl += p * (logf(p > 1e-10f ? p : 1e-10f) - (score[s] - lse));
        score[s] = fill || target[s] < 0 ? 0 : c.coeff * (expf(score[s] - top) / total - p);
    }
    kl = block_sum(kl, room);
    if (threadIdx.x == 0)
        c.kl[t] = fill ? 0 : kl;
}

/* A row and a head: tiles of keys get their coefficient dI*w*[z>0]; then each thread adds up its
 * elements of dq. */
template <class E> static __global__ void k_dq(struct loss_chunk c)
{
    __shared__ float coef[TILE], room[WARP];
    const struct indexer_rows *r = &c.r;
    const int64_t t = r->t0 + blockIdx.x, n = blockIdx.y, D = r->D;
    const float *dI = c.score + (t - r->t0) * r->width;
    const E *q = (const E *)r->q + (t * r->N + n) * D;
    const float w = get(((const E *)r->w)[t * r->N + n]) * r->on_w;
    float *dq = c.dq + (t * r->N + n) * D, dw = 0;

    for (int64_t d = threadIdx.x; d < D; d += TILE)
        dq[d] = 0;
    for (int64_t base = r->first[t]; base <= t; base += TILE) {
        const int64_t s = base + threadIdx.x;
        const float g = s <= t ? dI[s] : 0;
        float z = 0;
        if (g != 0) {
            const E *k = (const E *)r->k + s * D;
            for (int64_t d = 0; d < D; d++)
                z += get(q[d]) * get(k[d]);
        }
        dw += g == 0 ? 0 : g * indexer_relu(z * r->on_z);
        __syncthreads();
        coef[threadIdx.x] = g != 0 && z > 0 ? g * w * r->on_z : 0;
        __syncthreads();
        const int64_t n_keys = t + 1 - base < TILE ? t + 1 - base : TILE;
        for (int64_t d = threadIdx.x; d < D; d += TILE) {
            float sum = dq[d];
            for (int64_t j = 0; j < n_keys; j++)
                if (coef[j] != 0)
                    sum += coef[j] * get(((const E *)r->k)[(base + j) * D + d]);
            dq[d] = sum;
        }
    }
    dw = block_sum(dw, room);
    if (threadIdx.x == 0)
        c.dw[t * r->N + n] = dw * r->on_w;
}

/* A key: its pairs (t, n) of the chunk in tiles, then each thread adds up its elements of dk. */
template <class E> static __global__ void k_dk(struct loss_chunk c)
{
    __shared__ float coef[TILE];
    const struct indexer_rows *r = &c.r;
    const int64_t s = blockIdx.x, D = r->D;
    const int64_t begin = (s > r->t0 ? s : r->t0) * r->N, end = r->t1 * r->N;
    const E *k = (const E *)r->k + s * D;
    float *dk = c.dk + s * D;

    for (int64_t base = begin; base < end; base += TILE) {
        const int64_t tn = base + threadIdx.x, t = tn / r->N;
        /* Further rows may be of another sequence. */
        const float g =
            tn < end && r->first[t] <= s ? c.score[(t - r->t0) * r->width + s] : 0;
        float z = 0;
        for (int64_t d = 0; g != 0 && d < D; d++)
            z += get(((const E *)r->q)[tn * D + d]) * get(k[d]);
        __syncthreads();
        coef[threadIdx.x] = g != 0 && z > 0
            ? g * (get(((const E *)r->w)[tn]) * r->on_w) * r->on_z
            : 0;
        __syncthreads();
        const int64_t pairs = end - base < TILE ? end - base : TILE;
        for (int64_t d = threadIdx.x; d < D; d += TILE) {
            float sum = dk[d];
            for (int64_t j = 0; j < pairs; j++)
                if (coef[j] != 0)
                    sum += coef[j] * get(((const E *)r->q)[(base + j) * D + d]);
            dk[d] = sum;
        }
    }
}

int loss_main_plain(const struct loss_chunk *c, glm_stream s, struct glm_error *err)
{
    const dim3 tiles(blocks_of(c->r.t1, KEYS), blocks_of(c->r.t1 - c->r.t0, ROWS));

    return BY_TYPE(c->r.dtype, E, LAUNCH(k_main<E>, tiles, THREADS, 0, s, err, *c));
}

int loss_back_plain(const struct loss_chunk *c, glm_stream s, struct glm_error *err)
{
    const dim3 heads((unsigned)(c->r.t1 - c->r.t0), (unsigned)c->r.N);

    if (BY_TYPE(c->r.dtype, E, LAUNCH(k_dq<E>, heads, TILE, 0, s, err, *c)) != 0)
        return (int)err->code;
    return BY_TYPE(
        c->r.dtype, E, LAUNCH(k_dk<E>, (unsigned)c->r.t1, TILE, 0, s, err, *c));
}

/* back: memory for the gradients by tensor cores, or NULL. */
static int one_chunk(
    const struct loss_chunk *c, void *back, glm_stream s, struct glm_error *err)
{
    const unsigned rows = (unsigned)(c->r.t1 - c->r.t0);

    if (LAUNCH(k_mark, rows, THREADS, 0, s, err, *c) != 0
        || (loss_main_wgmma_fits(c, s) ? loss_main_wgmma(c, s, err)
                   : loss_main_fits(c) ? loss_main_mma(c, s, err)
                                       : loss_main_plain(c, s, err))
            != 0
        || indexer_score(c->score, &c->r, s, err) != 0
        || LAUNCH(k_rows, rows, THREADS, 0, s, err, *c) != 0 || c->dq == NULL)
        return (int)err->code;
    return back != NULL ? loss_back_mma(c, back, s, err) : loss_back_plain(c, s, err);
}

static int check(const struct indexer_loss *p, struct glm_error *err)
{
    if (cuda_type("indexer_loss", p->dtype, err) != 0)
        return (int)err->code;
    if (p->T < 0 || p->S < 0 || (p->T > 0 && p->S == 0) || p->N < 1 || p->D < 1
        || p->N > 65535 || p->T > INT32_MAX / p->N || (p->index != NULL && p->K < 1))
        return glm_fail(err, GLM_EFORMAT,
            "indexer_loss: impossible shape: T %lld, S %lld, N %lld, D %lld, K %lld",
            (long long)p->T, (long long)p->S, (long long)p->N, (long long)p->D,
            (long long)p->K);
    if (p->MN < 1 || (p->MNk != 1 && p->MNk != p->MN) || p->MDq < 1)
        return glm_fail(err, GLM_EFORMAT,
            "indexer_loss: main attention of %lld heads, %lld key heads (expected 1 or as "
            "many), %lld dimensions",
            (long long)p->MN, (long long)p->MNk, (long long)p->MDq);
    if ((p->dq == NULL) != (p->dk == NULL) || (p->dq == NULL) != (p->dw == NULL))
        return glm_fail(err, GLM_EFORMAT,
            "indexer_loss: dq, dk, dw are expected all or none of them");
    return GLM_OK;
}

static struct loss_chunk chunk_of(const struct indexer_loss *p, const int32_t *first)
{
    struct loss_chunk c = {};

    c.r = indexer_rows_of(p->q, p->k, p->w, first, p->T, p->N, p->D, p->hf_scales, p->dtype);
    c.kl = (float *)p->kl;
    c.dq = (float *)p->dq;
    c.dk = (float *)p->dk;
    c.dw = (float *)p->dw;
    c.mq = p->mq;
    c.mk = p->mk;
    c.lse = (const float *)p->lse;
    c.index = p->index;
    c.K = p->K;
    c.MN = p->MN;
    c.MNk = p->MNk;
    c.MDq = p->MDq;
    c.fill = p->fill;
    c.mk_stride = p->mk_stride != 0 ? p->mk_stride : p->MNk * p->MDq;
    c.main_scale = (float)p->main_scale;
    c.coeff = (float)p->coeff;
    return c;
}

CUDA_OP(indexer_loss)
{
    if (check(p, err) != 0)
        return err->code;
    cuda_begin(stream);
    if (p->T == 0)
        return 0;
    const int64_t rows = indexer_chunk(p->T, 2);
    const size_t bytes = (size_t)(rows * indexer_width(p->T)) * sizeof(float);
    int32_t *const first = (int32_t *)cuda_scratch(stream, (size_t)p->T * sizeof *first, err);
    struct loss_chunk c = chunk_of(p, first);
    c.target = (float *)cuda_scratch(stream, bytes, err);
    c.score = (float *)cuda_scratch(stream, bytes, err);
    void *const back = c.dq == NULL || !loss_back_fits(&c)
        ? NULL
        : cuda_scratch(stream, loss_back_bytes(&c, rows), err);
    if (err->code != GLM_OK || first == NULL || c.target == NULL || c.score == NULL
        || indexer_first(first, p->cu_seqlens, p->T, p->S, stream, err) != 0
        || (p->dk != NULL
            && cuda_fill(stream, p->dk, 0, (size_t)(p->T * p->D) * sizeof(float), err) != 0))
        return err->code;
    for (c.r.t0 = 0; c.r.t0 < p->T; c.r.t0 = c.r.t1) {
        c.r.t1 = c.r.t0 + rows < p->T ? c.r.t0 + rows : p->T;
        c.r.width = indexer_width(c.r.t1);
        if (one_chunk(&c, back, stream, err) != 0)
            return err->code;
    }
    return 0;
}
