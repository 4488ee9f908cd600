/* The target of the indexer's loss (indexer_main.cu) on Hopper.
 *
 * A block: 128 rows x 128 keys, all heads one after another. One thread fetches pieces of 64 elements of
 * both sides through a ring; two warpgroups multiply 64 rows x 128 keys each and meet nowhere, so that
 * one makes its head's exponentials while the other multiplies. Products and sum lie in 64 registers
 * each. Heads ascend; one writer per element.
 *
 * Rows behind the chunk's last, and keys a row does not see, are computed and not stored. Bounded by the
 * tensor cores: 2*MN*MDq FLOPs a pair of the tiles that touch the diagonal or lie below it. */
#include "kernels/cuda/indexer_loss.cuh"
#include "kernels/cuda/tma.cuh"
#include "kernels/cuda/wgmma.cuh"

enum {
    TILE = 128,
    PART = 64,             /* elements of a piece: rows of 128 bytes in shared memory */
    SIDE = TILE * PART * 2, /* bytes */
    GROUP = 128,
    THREADS = 3 * GROUP,
    WARPS = 2 * GROUP / WARP,
    STAGES = 6,
    BARRIERS_AT = STAGES * 2 * SIDE,
    ROOM = BARRIERS_AT + STAGES * 16
};

#if defined(CUDA_EMULATED) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
static const float log2_e = 1.4426950408889634f;

static __device__ inline uint32_t full_of(uint32_t mem, int stage)
{
    return mem + BARRIERS_AT + (uint32_t)stage * 16;
}

static __device__ inline uint32_t empty_of(uint32_t mem, int stage)
{
    return mem + BARRIERS_AT + (uint32_t)stage * 16 + 8;
}

static __device__ inline void feed(const struct loss_chunk *c, const struct tensor_map *q,
    const struct tensor_map *k, int t0, int s0, uint32_t mem)
{
    const int parts = (int)(c->MDq / PART), all = parts * (int)c->MN;

    for (int i = 0; i < all; i++) {
        const int stage = i % STAGES, round = i / STAGES;
        const uint32_t at = mem + (uint32_t)(stage * 2 * SIDE);
        ptx_barrier_wait(empty_of(mem, stage), (round & 1) ^ 1);
        ptx_barrier_expect(full_of(mem, stage), 2 * SIDE);
        ptx_box_2d(at, q, full_of(mem, stage), i * PART, t0);
        ptx_box_2d(at + SIDE, k, full_of(mem, stage), (c->MNk == 1 ? i % parts : i) * PART, s0);
    }
}

static __device__ inline void multiply(float (&d)[64], uint32_t a, uint32_t b, bool more)
{
    ptx_wgmma_begin();
#pragma unroll
    for (int k = 0; k < PART / 16; k++)
        ptx_wgmma_128<0, 0>(d, wgmma_k(a + k * 32), wgmma_k(b + k * 32), more || k > 0);
    ptx_wgmma_commit();
}

/* This warp has done with what the barrier guards. */
static __device__ inline void release(uint32_t bar)
{
    __syncwarp();
    if (threadIdx.x % WARP == 0)
        ptx_barrier_arrive(bar);
}

/* thread: of the two warpgroups. */
static __device__ inline void sum_heads(
    float (&sum)[64], const struct loss_chunk *c, int64_t row, uint32_t mem, int thread)
{
    const uint32_t a = mem + (uint32_t)(thread / GROUP * (SIDE / 2)), b = mem + SIDE;
    const int parts = (int)(c->MDq / PART);
    const float scale = c->main_scale * log2_e;
    float d[64];
    int stage = 0, parity = 0;

    for (int head = 0; head < (int)c->MN; head++) {
        float lse[2];
        int last = -1;
#pragma unroll
        for (int half = 0; half < 2; half++)
            lse[half] = row + 8 * half < c->r.t1
                ? c->lse[(row + 8 * half) * c->MN + head] * log2_e
                : 0;
        for (int part = 0; part < parts; part++) {
            ptx_barrier_wait(full_of(mem, stage), parity);
            multiply(d, a + (uint32_t)(stage * 2 * SIDE), b + (uint32_t)(stage * 2 * SIDE),
                part > 0);
            ptx_wgmma_wait<1>();
            if (last >= 0)
                release(empty_of(mem, last));
            last = stage;
            if (++stage == STAGES) {
                stage = 0;
                parity ^= 1;
            }
        }
        ptx_wgmma_wait<0>();
        ptx_hold(d);
        release(empty_of(mem, last));
#pragma unroll
        for (int i = 0; i < 64; i++)
            sum[i] += ptx_exp2(d[i] * scale - lse[i / 2 % 2]);
    }
}

static __device__ inline void store(
    const float (&sum)[64], const struct loss_chunk *c, int64_t t, int64_t s)
{
#pragma unroll
    for (int i = 0; i < 64; i++) {
        const int64_t row = t + i / 2 % 2 * 8, key = s + i / 4 * 8 + i % 2;
        if (row >= c->r.t1 || key > row)
            continue;
        float *const to = c->target + (row - c->r.t0) * c->r.width + key;
        if (*to >= 0)
            *to = sum[i];
    }
}

static __global__ void __launch_bounds__(THREADS, 1) k_main(struct loss_chunk c,
    const __grid_constant__ struct tensor_map q, const __grid_constant__ struct tensor_map k)
{
    extern __shared__ __align__(1024) char room[];
    const int64_t s0 = (int64_t)blockIdx.x * TILE, t0 = c.r.t0 + (int64_t)blockIdx.y * TILE;
    const int64_t end = t0 + TILE < c.r.t1 ? t0 + TILE : c.r.t1;
    const uint32_t mem = ptx_shared(room);
    const int thread = threadIdx.x, lane = thread % WARP;

    if (s0 >= end || c.r.first[t0] >= s0 + TILE)
        return;
    if (thread == 0) {
        for (int i = 0; i < STAGES; i++) {
            ptx_barrier_init(full_of(mem, i), 1);
            ptx_barrier_init(empty_of(mem, i), WARPS);
        }
        ptx_barrier_fence();
    }
    __syncthreads();
    if (thread < GROUP) {
        ptx_registers_less<40>();
        if (thread == 0)
            feed(&c, &q, &k, (int)t0, (int)s0, mem);
    } else {
        ptx_registers_more<232>();
        const int64_t row = t0 + (thread - GROUP) / WARP * 16 + lane / 4;
        float sum[64] = {};
        sum_heads(sum, &c, row, mem, thread - GROUP);
        store(sum, &c, row, s0 + lane % 4 * 2);
    }
}
#else
static __global__ void k_main(struct loss_chunk, const __grid_constant__ struct tensor_map,
    const __grid_constant__ struct tensor_map)
{
}
#endif

/* The target is attention's, and so is the choice. */
bool loss_main_wgmma_fits(const struct loss_chunk *c, glm_stream s)
{
    return s->attention >= CUDA_ATTENTION_LEAN && loss_main_fits(c);
}

static int map_of(struct tensor_map *map, const void *base, int64_t width, int64_t rows,
    int64_t stride, glm_stream s, struct glm_error *err)
{
    const int64_t size[] = {width, rows}, row[] = {stride * 2};
    const int box[] = {PART, TILE};

    return cuda_tensor_map(map, base, 2, size, row, box, s, err);
}

int loss_main_wgmma(const struct loss_chunk *c, glm_stream s, struct glm_error *err)
{
    const dim3 grid(blocks_of(c->r.t1, TILE), blocks_of(c->r.t1 - c->r.t0, TILE));
    struct tensor_map q = {}, k = {};

    if (map_of(&q, c->mq, c->MN * c->MDq, c->r.T, c->MN * c->MDq, s, err) != 0
        || map_of(&k, c->mk, c->MNk * c->MDq, c->r.T, c->mk_stride, s, err) != 0)
        return (int)err->code;
    return LAUNCH(k_main, grid, THREADS, ROOM, s, err, *c, q, k);
}
