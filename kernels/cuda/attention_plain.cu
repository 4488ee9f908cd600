/* Attention of every shape and type, simply: the path of tests, of tiny models and of F32.
 *
 * Forward and dq: a block works off (row, head) pairs. A warp a key for the dot products, which go to
 * the block's strip of scratch memory; then a thread an element of the output, over the keys in
 * order. dk and dv: a block a key and key head. It walks the rows behind the key in ascending order,
 * THREADS at a time, keeps those that see the key (ballots: the order stays), recomputes p and ds of
 * 128 (row, head) pairs, a warp a pair, and adds them in order, a thread an element.
 *
 * One writer per element, sums in an order of shapes alone. The floor is not approached. */
#include "kernels/cuda/attention.cuh"

enum { THREADS = 128, WARPS = THREADS / WARP, BLOCKS = 2048 };
static const int64_t STRIPS = (int64_t)1 << 28; /* bytes of scratch that forward and dq may take */

/* Of a warp: sum over d of x[d]*y[d]. */
template <class E> static __device__ inline float dot(const E *x, const E *y, int64_t n)
{
    float sum = 0;

    for (int64_t d = threadIdx.x % WARP; d < n; d += WARP)
        sum += get(x[d]) * get(y[d]);
    return warp_sum(sum);
}

template <class E, class P> static __device__ inline const E *key_base(const P &p, int64_t n)
{
    return (const E *)p.k + (p.Nk == 1 ? 0 : n * p.Dq);
}

template <class E, class P>
static __device__ inline const E *value_base(const P &p, int64_t n)
{
    return (const E *)p.v + (p.Nk == 1 ? 0 : n * p.Dv);
}

/* ---- forward ---------------------------------------------------------------------------------- */

template <class E>
static __device__ void fwd_head(
    const struct attention_fwd &p, int64_t t, int64_t n, float *score, float *room)
{
    const struct row_keys keys = keys_of(p, t);
    const int64_t head = t * p.N + n;
    const E *q = (const E *)p.q + head * p.Dq, *k = key_base<E>(p, n);
    const E *v = value_base<E>(p, n);
    E *o = (E *)p.o + head * p.Dv;
    float most = -INFINITY, total = 0;

    for (int j = threadIdx.x / WARP; j < keys.count; j += WARPS) {
        const float s = (float)p.scale * dot(q, k + key_at(keys, j) * p.k_stride, p.Dq);
        if (threadIdx.x % WARP == 0)
            score[j] = s;
    }
    __syncthreads();
    for (int j = threadIdx.x; j < keys.count; j += THREADS)
        most = fmaxf(most, score[j]);
    most = block_max(most, room);
    for (int j = threadIdx.x; j < keys.count; j += THREADS) {
        score[j] = expf(score[j] - most);
        total += score[j];
    }
    total = block_sum(total, room);
    for (int j = threadIdx.x; j < keys.count; j += THREADS)
        score[j] = low<E>(score[j] / total);
    if (threadIdx.x == 0)
        ((float *)p.lse)[head] = most + logf(total);
    __syncthreads();
    for (int64_t d = threadIdx.x; d < p.Dv; d += THREADS) {
        float sum = 0;
        for (int j = 0; j < keys.count; j++)
            sum += score[j] * get(v[key_at(keys, j) * p.v_stride + d]);
        o[d] = put<E>(sum);
    }
    __syncthreads(); /* score is free again */
}

template <class E>
static __global__ void k_fwd(struct attention_fwd p, float *strips, int64_t strip)
{
    __shared__ float room[WARP];

    for (int64_t i = blockIdx.x; i < p.T * p.N; i += gridDim.x)
        fwd_head<E>(p, i / p.N, i % p.N, strips + blockIdx.x * strip, room);
}

/* Blocks that share STRIPS, one strip of `floats` each. */
static unsigned strips(int64_t items, int64_t floats)
{
    int64_t n = STRIPS / (floats * (int64_t)sizeof(float));

    n = n < 1 ? 1 : n < BLOCKS ? n : (int64_t)BLOCKS;
    return (unsigned)(n < items ? n : items);
}

int attention_plain_fwd(
    const struct attention_fwd *p, glm_stream stream, struct glm_error *err)
{
    const int64_t strip = p->index != NULL && p->K < p->T ? p->K : p->T;
    const unsigned blocks = strips(p->T * p->N, strip);
    float *room = (float *)cuda_scratch(
        stream, (size_t)(blocks * strip) * sizeof *room, err);

    if (room == NULL)
        return (int)err->code;
    return BY_TYPE(p->dtype, E,
        LAUNCH(k_fwd<E>, blocks, THREADS, 0, stream, err, *p, room, strip));
}

/* ---- backward: dq ----------------------------------------------------------------------------- */

/* delta = do.o of each (row, head), a warp each. */
template <class E> static __global__ void k_delta(struct attention_bwd p, float *delta)
{
    const int64_t head = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP;

    if (head >= p.T * p.N)
        return;
    const float sum =
        dot((const E *)p.do_ + head * p.Dv, (const E *)p.o + head * p.Dv, p.Dv);
    if (threadIdx.x % WARP == 0)
        delta[head] = sum;
}

/* Of a warp: p of one key of one row and head; *ds its dL/d(q.k). */
template <class E>
static __device__ inline float coefs(const struct attention_bwd &p, int64_t head,
    const E *k, const E *v, float delta, float *ds)
{
    const float qk = dot((const E *)p.q + head * p.Dq, k, p.Dq);
    const float dov = dot((const E *)p.do_ + head * p.Dv, v, p.Dv);
    const float prob = expf((float)p.scale * qk - ((const float *)p.lse)[head]);

    *ds = (float)p.scale * prob * (dov - delta);
    return prob;
}

template <class E>
static __global__ void k_dq(
    struct attention_bwd p, const float *delta, float *strips, int64_t strip)
{
    float *ds = strips + blockIdx.x * strip;

    for (int64_t head = blockIdx.x; head < p.T * p.N; head += gridDim.x) {
        const struct row_keys keys = keys_of(p, head / p.N);
        const E *k = key_base<E>(p, head % p.N), *v = value_base<E>(p, head % p.N);
        E *dq = (E *)p.dq + head * p.Dq;

        for (int j = threadIdx.x / WARP; j < keys.count; j += WARPS) {
            const int64_t s = key_at(keys, j);
            float x;
            coefs(p, head, k + s * p.k_stride, v + s * p.v_stride, delta[head], &x);
            if (threadIdx.x % WARP == 0)
                ds[j] = x;
        }
        __syncthreads();
        for (int64_t d = threadIdx.x; d < p.Dq; d += THREADS) {
            float sum = 0;
            for (int j = 0; j < keys.count; j++)
                sum += ds[j] * get(k[key_at(keys, j) * p.k_stride + d]);
            dq[d] = put<E>(sum);
        }
        __syncthreads();
    }
}

/* ---- backward: dk, dv ------------------------------------------------------------------------- */

/* Which of the THREADS rows from t0 on see key s: their numbers to rows[], ascending. */
static __device__ int rows_that_see(const struct attention_bwd &p, int64_t s, int64_t t0,
    int64_t end, int32_t *rows, int *counts)
{
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int64_t t = t0 + threadIdx.x;
    bool sees = t < end;

    if (sees && p.index != NULL)
        sees = set_holds(p.index + t * p.K, set_size(p.index + t * p.K, p.K), s);
    const unsigned votes = __ballot_sync(0xFFFFFFFFu, sees);
    __syncthreads(); /* rows and counts of the call before are done with */
    if (lane == 0)
        counts[warp] = __popc(votes);
    __syncthreads();
    int at = 0, all = 0;
    for (int w = 0; w < WARPS; w++) {
        at += w < warp ? counts[w] : 0;
        all += counts[w];
    }
    if (sees)
        rows[at + __popc(votes & ((1u << lane) - 1))] = (int32_t)t;
    __syncthreads();
    return all;
}

/* Adds the pairs (rows[r], head) r < n, heads of key head kn, onto sums[Dq + Dv]. */
template <class E>
static __device__ void add_rows(const struct attention_bwd &p, const float *delta,
    int64_t s, int64_t kn, const int32_t *rows, int n, float *pc, float *dc, float *sums)
{
    const int heads = (int)(p.N / p.Nk), pairs = n * heads;
    const E *k = key_base<E>(p, kn) + s * p.k_stride;
    const E *v = value_base<E>(p, kn) + s * p.v_stride;

    for (int i0 = 0; i0 < pairs; i0 += THREADS) {
        const int m = pairs - i0 < THREADS ? pairs - i0 : THREADS;
        for (int i = threadIdx.x / WARP; i < m; i += WARPS) {
            const int64_t head =
                rows[(i0 + i) / heads] * p.N + kn * heads + (i0 + i) % heads;
            float ds;
            const float prob = coefs(p, head, k, v, delta[head], &ds);
            if (threadIdx.x % WARP == 0) {
                pc[i] = low<E>(prob);
                dc[i] = ds;
            }
        }
        __syncthreads();
        for (int64_t d = threadIdx.x; d < p.Dq + p.Dv; d += THREADS) {
            const bool of_k = d < p.Dq;
            const E *x = of_k ? (const E *)p.q + d : (const E *)p.do_ + d - p.Dq;
            const int64_t D = of_k ? p.Dq : p.Dv;
            const float *c = of_k ? dc : pc;
            float sum = sums[d];
            for (int i = 0; i < m; i++)
                sum += c[i]
                    * get(x[(rows[(i0 + i) / heads] * p.N + kn * heads + (i0 + i) % heads)
                        * D]);
            sums[d] = sum;
        }
        __syncthreads();
    }
}

template <class E>
static __global__ void k_dkv(struct attention_bwd p, const float *delta)
{
    extern __shared__ float sums[];
    __shared__ float pc[THREADS], dc[THREADS];
    __shared__ int32_t rows[THREADS];
    __shared__ int counts[WARPS];
    const int64_t s = blockIdx.x, kn = blockIdx.y;
    const int64_t end = p.cu_seqlens[sequence_of(p.cu_seqlens, p.S, s) + 1];
    float *dk = (float *)p.dk + (s * p.Nk + kn) * p.Dq;
    float *dv = (float *)p.dv + (s * p.Nk + kn) * p.Dv;

    for (int64_t d = threadIdx.x; d < p.Dq + p.Dv; d += THREADS)
        sums[d] = 0;
    for (int64_t t0 = s; t0 < end; t0 += THREADS) {
        const int n = rows_that_see(p, s, t0, end, rows, counts);
        add_rows<E>(p, delta, s, kn, rows, n, pc, dc, sums);
    }
    __syncthreads();
    for (int64_t d = threadIdx.x; d < p.Dq; d += THREADS)
        dk[d] = p.dv == NULL && d < p.Dv ? sums[d] + sums[p.Dq + d] : sums[d];
    for (int64_t d = threadIdx.x; p.dv != NULL && d < p.Dv; d += THREADS)
        dv[d] = sums[p.Dq + d];
}

int attention_plain_bwd(
    const struct attention_bwd *p, glm_stream stream, struct glm_error *err)
{
    const int64_t strip = p->index != NULL && p->K < p->T ? p->K : p->T;
    const int64_t heads = p->T * p->N;
    const unsigned blocks = strips(heads, strip);
    const size_t shared = (size_t)(p->Dq + p->Dv) * sizeof(float);
    float *room = (float *)cuda_scratch(
        stream, (size_t)(blocks * strip) * sizeof *room, err);
    float *delta = (float *)cuda_scratch(stream, (size_t)heads * sizeof *delta, err);

    if (room == NULL || delta == NULL)
        return (int)err->code;
    if ((int)shared > stream->shared_bytes - 4096)
        return glm_fail(err, GLM_EFORMAT,
            "attention_bwd: heads of %lld and %lld dimensions, the GPU serves %d in all",
            (long long)p->Dq, (long long)p->Dv, (stream->shared_bytes - 4096) / 4);
    if (BY_TYPE(p->dtype, E,
            LAUNCH(k_delta<E>, blocks_of(heads, WARPS), THREADS, 0, stream, err, *p,
                delta))
            != 0
        || BY_TYPE(p->dtype, E,
               LAUNCH(k_dq<E>, blocks, THREADS, 0, stream, err, *p, delta, room, strip))
            != 0)
        return (int)err->code;
    const dim3 grid((unsigned)p->T, (unsigned)p->Nk);
    return BY_TYPE(p->dtype, E,
        LAUNCH(k_dkv<E>, grid, THREADS, shared, stream, err, *p, delta));
}
