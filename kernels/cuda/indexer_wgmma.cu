/* Scores by wgmma (Hopper), BF16, 32 heads of 128 elements.
 *
 * A block: 192 keys, 64 a warpgroup, against up to ROWS rows, two a step. As in indexer_mma.cu keys are
 * the A side and stay in registers, heads of two rows are the B side [64,128] and come through a ring
 * by cp.async; a thread holds the products of 2 keys with 16 heads of each row, so that weights and
 * most of the sum over heads stay in it. Two sets of accumulators: while the tensor cores work on a
 * step, the threads add up the one before.
 *
 * Order of sums: heads 2c, 2c+1 of ascending tiles of 8 in lane c of a quad, then lanes 0+1, 2+3, then
 * both. One writer per score. Bounded by the tensor cores: 2*32*128 FLOPs a pair; K9 of the guide. */
#include "kernels/cuda/indexer.cuh"
#include "kernels/cuda/wgmma.cuh"

enum {
    THREADS = 384,
    WARPS = THREADS / WARP,
    HEADS = 32,
    DIM = 128,
    STEPS = DIM / 16,
    KEYS = 16 * WARPS,
    ROWS = 64,
    PAIR = 2,                   /* rows a step */
    COLS = PAIR * HEADS,        /* heads a step */
    PANEL = COLS * 128,         /* bytes: 64 elements of each head */
    STAGE = DIM / 64 * PANEL,
    STAGES = 6,
    BATCH = 8,                  /* steps whose accumulators follow each other */
    WEIGHTS = COLS * 2,         /* bytes a step */
    SHARED = STAGES * (STAGE + WEIGHTS)
};

#if defined(CUDA_EMULATED) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
/* Fragments of the warp's 16 keys from s on, zeros behind the last. */
static __device__ void load_keys(uint32_t a[STEPS][4], const struct indexer_rows *r, int64_t s)
{
    const int lane = threadIdx.x % WARP;

#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int64_t key = s + 8 * half + lane / 4;
        const uint32_t *k = (const uint32_t *)((const bf16 *)r->k + (key < r->T ? key : 0) * DIM);
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            a[step][half] = key < r->T ? k[step * 8 + lane % 4] : 0;
            a[step][half + 2] = key < r->T ? k[step * 8 + 4 + lane % 4] : 0;
        }
    }
}

/* Queues heads and weights of rows t, t + 1 to a stage (zeros from `end` on). */
static __device__ void load_rows(uint32_t to, uint32_t weights, const struct indexer_rows *r,
    int64_t t, int64_t end)
{
    for (int i = threadIdx.x; i < COLS * 16; i += THREADS) {
        const int col = i / 16, piece = i % 16;
        const bool in = t + col / HEADS < end;
        ptx_copy(to + (uint32_t)(piece / 8 * PANEL + col * 128 + ((piece ^ col) & 7) * 16),
            (const bf16 *)r->q + (in ? t * HEADS + col : 0) * DIM + piece * 8, in ? 16 : 0);
    }
    if (threadIdx.x < WEIGHTS / 16) {
        const bool in = t + threadIdx.x * 8 / HEADS < end;
        ptx_copy(weights + threadIdx.x * 16,
            (const bf16 *)r->w + (in ? t * HEADS + threadIdx.x * 8 : 0), in ? 16 : 0);
    }
}

static __device__ inline void multiply(
    float (&acc)[32], const uint32_t a[STEPS][4], uint32_t stage)
{
    ptx_wgmma_begin();
#pragma unroll
    for (int step = 0; step < STEPS; step++)
        ptx_wgmma_64_regs<0>(acc, a[step],
            wgmma_k(stage + (uint32_t)(step / 4 * PANEL + step % 4 * 32)), step > 0);
    ptx_wgmma_commit();
}

/* The step's scores: lane c of a quad writes row c/2, key c%2*8 of the thread's two. */
static __device__ inline void finish(float *score, const float (&acc)[32], const uint32_t *w,
    const struct indexer_rows *r, int64_t t, int64_t end, int64_t s)
{
    const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
    float sum[PAIR][2] = {}, v[PAIR];

#pragma unroll
    for (int j = 0; j < COLS / 8; j++) {
        const uint32_t two = w[j * 4 + threadIdx.x % 4];
        const float w0 = __uint_as_float(two << 16), w1 = __uint_as_float(two & 0xFFFF0000u);
#pragma unroll
        for (int half = 0; half < 2; half++)
            sum[j / (HEADS / 8)][half] += w0 * ptx_relu(acc[4 * j + 2 * half])
                + w1 * ptx_relu(acc[4 * j + 2 * half + 1]);
    }
#pragma unroll
    for (int m = 0; m < PAIR; m++)
        v[m] = (odd ? sum[m][1] : sum[m][0])
            + __shfl_xor_sync(0xFFFFFFFFu, odd ? sum[m][0] : sum[m][1], 1);
    const float x =
        (high ? v[1] : v[0]) + __shfl_xor_sync(0xFFFFFFFFu, high ? v[0] : v[1], 2);
    const int64_t row = t + high, key = s + 8 * odd;
    if (row < end && key <= row && key >= r->first[row])
        score[(row - r->t0) * r->width + key] = x * (r->on_w * r->on_z);
}

/* What the steps of a block share. */
struct walk {
    const struct indexer_rows *r;
    int64_t begin, end; /* rows */
    int64_t s;          /* the thread's first key */
    uint32_t ring, weights;
    const char *weights_at;
};

static __device__ inline void queue(const struct walk *k, int i)
{
    load_rows(k->ring + (uint32_t)(i % STAGES * STAGE),
        k->weights + (uint32_t)(i % STAGES * WEIGHTS), k->r, k->begin + i * PAIR, k->end);
    ptx_copy_commit();
}

/* Starts the products of step i. */
static __device__ inline void start(
    const struct walk *k, float (&acc)[32], const uint32_t a[STEPS][4], int i)
{
    ptx_copy_wait<STAGES - 3>();
    ptx_shared_to_async();
    __syncthreads(); /* step i is here; all have done with step i - 2 */
    queue(k, i + STAGES - 2);
    multiply(acc, a, k->ring + (uint32_t)(i % STAGES * STAGE));
}

static __device__ inline void end_step(
    float *score, const struct walk *k, const float (&acc)[32], int i)
{
    finish(score, acc, (const uint32_t *)(k->weights_at + i % STAGES * WEIGHTS), k->r,
        k->begin + i * PAIR, k->end, k->s);
}

/* BATCH steps at a time, all of them when the rows end sooner: what lies behind the last row is zeros
 * and is not written. Within a batch a step is at work while the one before is added up; across batches
 * accumulators are not carried, as the compiler would copy them and wait for each product. */
static __device__ void scores(float *score, const struct walk *k)
{
    const int n = (int)((k->end - k->begin + PAIR - 1) / PAIR);
    uint32_t a[STEPS][4];

    for (int i = 0; i < STAGES - 2; i++)
        queue(k, i);
    load_keys(a, k->r, k->s - threadIdx.x % WARP / 4);
    for (int i = 0; i < n; i += BATCH) {
        float acc[2][32];
        start(k, acc[0], a, i);
#pragma unroll
        for (int j = 1; j < BATCH; j++) {
            start(k, acc[j % 2], a, i + j);
            ptx_wgmma_wait<1>();
            ptx_hold(acc[(j - 1) % 2]);
            end_step(score, k, acc[(j - 1) % 2], i + j - 1);
        }
        ptx_wgmma_wait<0>();
        ptx_hold(acc[(BATCH - 1) % 2]);
        end_step(score, k, acc[(BATCH - 1) % 2], i + BATCH - 1);
    }
    ptx_copy_wait<0>();
}
#endif

static __global__ void __launch_bounds__(THREADS, 1) k_score(float *score, struct indexer_rows r)
{
#if defined(CUDA_EMULATED) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ __align__(1024) char room[];
    const int64_t s0 = (int64_t)blockIdx.x * KEYS, from = r.t0 + (int64_t)blockIdx.y * ROWS;
    const int64_t begin = from > s0 ? from : s0, end = from + ROWS < r.t1 ? from + ROWS : r.t1;

    if (begin >= end || indexer_idle(&r, begin, end, s0, KEYS))
        return;
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const uint32_t ring = ptx_shared(room);
    const struct walk k = {&r, begin, end, s0 + warp * 16 + lane / 4, ring, ring + STAGES * STAGE,
        room + STAGES * STAGE};
    scores(score, &k);
#endif
}

bool indexer_wgmma_fits(const struct indexer_rows *r, glm_stream s)
{
    return s->major == 9 && r->N == HEADS && indexer_score_fits(r);
}

int indexer_score_wgmma(
    float *score, const struct indexer_rows *r, glm_stream s, struct glm_error *err)
{
    const dim3 grid(blocks_of(r->t1, KEYS), blocks_of(r->t1 - r->t0, ROWS));

    return LAUNCH(k_score, grid, THREADS, SHARED, s, err, score, *r);
}
