/* Rows of experts: a counting sort of (token, slot) by expert, stable, on the device.
 *
 *     k_count  a warp per chunk of CHUNK items counts them by expert     count[e, chunk]
 *     k_scan   a warp per expert: counts -> exclusive sums over chunks; totals to offset[e + 1]
 *     k_total  one warp: totals -> offsets
 *     k_fill   a warp per chunk walks its items in order, 32 at a time: the rank of an item among
 *              equal experts of its 32 is a count of lower lanes, the counters in shared memory go on
 *
 * Integers only; every place is a function of the counts before it. Experts out of range, which
 * nothing may ask for, get no row. */
#include "kernels/cuda/launch.cuh"

enum { CHUNK = 256, MOST_EXPERTS = 16384 };

static __global__ void k_count(struct moe_plan p, int32_t *count, int64_t chunks)
{
    extern __shared__ int32_t here[];
    const int64_t n = p.T * p.K, begin = (int64_t)blockIdx.x * CHUNK;

    for (int64_t e = threadIdx.x; e < p.E; e += WARP)
        here[e] = 0;
    __syncwarp();
    for (int64_t i = begin + threadIdx.x; i < begin + CHUNK && i < n; i += WARP) {
        if ((uint32_t)p.expert[i] < (uint32_t)p.E)
            atomicAdd(&here[p.expert[i]], 1);
    }
    __syncwarp();
    for (int64_t e = threadIdx.x; e < p.E; e += WARP)
        count[e * chunks + blockIdx.x] = here[e];
}

/* The sum of x over the lanes before, and over all. */
static __device__ inline int32_t warp_scan(int32_t x, int32_t *all)
{
    int32_t sum = x;

    for (int k = 1; k < WARP; k *= 2) {
        const int32_t other = __shfl_up_sync(0xFFFFFFFFu, sum, k);
        if ((int)threadIdx.x % WARP >= k)
            sum += other;
    }
    *all = __shfl_sync(0xFFFFFFFFu, sum, WARP - 1);
    return sum - x;
}

static __global__ void k_scan(int32_t *count, int32_t *offset, int64_t chunks)
{
    int32_t *const mine = count + (int64_t)blockIdx.x * chunks;
    int32_t sum = 0;

    for (int64_t c = 0; c < chunks; c += WARP) {
        const int64_t i = c + threadIdx.x;
        int32_t all;
        const int32_t before = warp_scan(i < chunks ? mine[i] : 0, &all);
        if (i < chunks)
            mine[i] = sum + before;
        sum += all;
    }
    if (threadIdx.x == 0)
        offset[blockIdx.x + 1] = sum;
}

static __global__ void k_total(int32_t *offset, int64_t E)
{
    int32_t sum = 0;

    if (threadIdx.x == 0)
        offset[0] = 0;
    for (int64_t e = 0; e < E; e += WARP) {
        const int64_t i = e + threadIdx.x;
        const int32_t x = i < E ? offset[i + 1] : 0;
        int32_t all;
        const int32_t before = warp_scan(x, &all);
        if (i < E)
            offset[i + 1] = sum + before + x;
        sum += all;
    }
}

static __global__ void k_fill(struct moe_plan p, const int32_t *count, int64_t chunks)
{
    extern __shared__ int32_t next[];
    const int64_t n = p.T * p.K, begin = (int64_t)blockIdx.x * CHUNK;
    const unsigned lower = (1u << threadIdx.x) - 1;

    for (int64_t e = threadIdx.x; e < p.E; e += WARP)
        next[e] = p.offset[e] + count[e * chunks + blockIdx.x];
    __syncwarp();
    for (int64_t i = begin + threadIdx.x; i < begin + CHUNK; i += WARP) {
        const int32_t e = i < n ? p.expert[i] : -1;
        const unsigned same = __match_any_sync(0xFFFFFFFFu, e);
        const bool counts = (uint32_t)e < (uint32_t)p.E;
        const int32_t first = counts ? next[e] : 0;
        __syncwarp();
        if (counts) {
            const int32_t row = first + __popc(same & lower);
            p.token[row] = (int32_t)(i / p.K);
            p.slot[row] = (int32_t)(i % p.K);
            p.row[i] = row;
            if ((same & lower) == 0)
                next[e] = first + __popc(same);
        }
        __syncwarp();
    }
}

CUDA_OP(moe_plan)
{
    const int64_t n = p->T < 0 || p->K < 1 ? -1 : p->T * p->K;

    if (n < 0 || p->E < 1 || n > INT32_MAX)
        return glm_fail(err, GLM_EFORMAT, "moe_plan: %lld rows of %lld in %lld experts",
            (long long)p->T, (long long)p->K, (long long)p->E);
    if (p->E > MOST_EXPERTS)
        return glm_fail(err, GLM_EUSAGE, "moe_plan: %lld experts: on the GPU at most %d",
            (long long)p->E, MOST_EXPERTS);
    cuda_begin(stream);
    const int64_t chunks = (n + CHUNK - 1) / CHUNK;
    const size_t room = (size_t)p->E * sizeof(int32_t);
    int32_t *count = (int32_t *)cuda_scratch(stream, room * (size_t)(chunks + 1), err);
    if (count == NULL
        || LAUNCH(k_count, (unsigned)chunks, WARP, room, stream, err, *p, count, chunks) != 0
        || LAUNCH(k_scan, (unsigned)p->E, WARP, 0, stream, err, count, p->offset, chunks) != 0
        || LAUNCH(k_total, 1, WARP, 0, stream, err, p->offset, p->E) != 0)
        return err->code;
    return LAUNCH(k_fill, (unsigned)chunks, WARP, room, stream, err, *p,
        (const int32_t *)count, chunks);
}
