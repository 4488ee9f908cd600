/* What comes before the tensor-core paths: key sets as bits, delta = do.o. */
#include "kernels/cuda/attention_fast.cuh"

enum { THREADS = 256 };

/* A block a row: its words are put together in shared memory (integer atomics: the order does not
 * matter), written, and the tiles that have a bit marked. */
static __global__ void k_bits(
    const int32_t *index, int64_t K, struct fast a, uint32_t *bits, unsigned char *any)
{
    extern __shared__ uint32_t word[];
    const int t = blockIdx.x, s = sequence_of(a.cu_seqlens, a.S, t);
    const int first = a.cu_seqlens[s], slot = first / TILE + s + (t - first) / TILE;

    for (int i = threadIdx.x; i < a.words; i += THREADS)
        word[i] = 0;
    __syncthreads();
    for (int64_t i = threadIdx.x; i < K; i += THREADS) {
        const int key = index[t * K + i] - first;
        if (key >= 0)
            atomicOr(&word[key / 32], 1u << key % 32);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < a.words; i += THREADS)
        bits[(int64_t)t * a.words + i] = word[i];
    for (int i = threadIdx.x; i < a.words / 2; i += THREADS) {
        if ((word[2 * i] | word[2 * i + 1]) != 0)
            any[(int64_t)slot * (a.words / 2) + i] = 1; /* all that write write 1 */
    }
}

template <class P>
static int common(struct fast *a, const P *p, glm_stream stream, struct glm_error *err)
{
    const int words = (int)((p->T + TILE - 1) / TILE * 2);

    *a = {};
    a->q = (const bf16 *)p->q;
    a->k = (const bf16 *)p->k;
    a->v = (const bf16 *)p->v;
    a->o = (bf16 *)p->o;
    a->lse = (float *)p->lse;
    a->cu_seqlens = p->cu_seqlens;
    a->k_stride = p->k_stride;
    a->v_stride = p->v_stride;
    a->T = (int)p->T;
    a->S = (int)p->S;
    a->N = a->heads = (int)p->N;
    a->words = words;
    a->scale = (float)p->scale;
    if (p->index == NULL)
        return GLM_OK;
    const size_t map = (size_t)tile_slots(p->T, p->S, TILE) * (size_t)(words / 2);
    uint32_t *bits = (uint32_t *)cuda_scratch(
        stream, (size_t)p->T * (size_t)words * sizeof *bits, err);
    unsigned char *any = (unsigned char *)cuda_scratch(stream, map, err);
    if (bits == NULL || any == NULL || cuda_fill(stream, any, 0, map, err) != 0)
        return (int)err->code;
    a->bits = bits;
    a->any = any;
    return LAUNCH(k_bits, (unsigned)p->T, THREADS, (size_t)words * sizeof *bits, stream,
        err, p->index, p->K, *a, bits, any);
}

int fast_fwd_args(struct fast *a, const struct attention_fwd *p, glm_stream stream,
    struct glm_error *err)
{
    return common(a, p, stream, err);
}

/* delta of each (row, head): a warp, 8 elements a lane. */
static __global__ void k_delta(struct fast a)
{
    const int64_t head = (int64_t)blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP;
    const int64_t at = head * HEAD + threadIdx.x % WARP * 8;
    float sum = 0;

    if (head >= (int64_t)a.T * a.N)
        return;
    const uint4 x = *(const uint4 *)(a.do_ + at), y = *(const uint4 *)(a.o + at);
    const bf16 *u = (const bf16 *)&x, *w = (const bf16 *)&y;
#pragma unroll
    for (int i = 0; i < 8; i++)
        sum += get(u[i]) * get(w[i]);
    sum = warp_sum(sum);
    if (threadIdx.x % WARP == 0)
        a.delta[head] = sum;
}

int fast_bwd_args(struct fast *a, const struct attention_bwd *p, glm_stream stream,
    struct glm_error *err)
{
    const int64_t heads = p->T * p->N;

    if (common(a, p, stream, err) != 0)
        return (int)err->code;
    a->do_ = (const bf16 *)p->do_;
    a->dq = (bf16 *)p->dq;
    a->dk = (float *)p->dk;
    a->dv = (float *)p->dv;
    a->delta = (float *)cuda_scratch(stream, (size_t)heads * sizeof(float), err);
    if (a->delta == NULL)
        return (int)err->code;
    return LAUNCH(k_delta, blocks_of(heads, THREADS / WARP), THREADS, 0, stream, err, *a);
}
