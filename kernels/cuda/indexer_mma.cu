/* Scores by mma.sync, BF16, rows of 128 elements.
 *
 * A block: 256 keys, 32 a warp, against up to 64 rows, two a step. Keys are the A side (16 keys a tile)
 * and stay in registers; the heads of a row are the B side (8 a tile) and come through shared memory, a
 * ring of STAGES steps by cp.async, 16-byte pieces exchanged within a row so that ldmatrix meets no
 * bank twice. A thread so holds the products of 4 keys with two heads of each tile: weights and the
 * sum over heads stay in the thread, and only the four lanes of a quad add up at the end, three
 * shuffles for 32 keys.
 *
 * Order: heads 2c, 2c+1 of ascending tiles in lane c, then lanes 0+1, 2+3, then both: fixed. One writer
 * per score. Bounded by the tensor cores: 2*N*128 FLOPs a pair; K9 of the guide. */
#include "kernels/cuda/indexer.cuh"
#include "kernels/cuda/ptx.cuh"

enum {
    THREADS = 256,
    WARPS = THREADS / WARP,
    DIM = 128,
    STEPS = DIM / 16,   /* of 16 elements of the sum */
    ROW = DIM * 2 / 16, /* 16-byte pieces of a row */
    KEYS = 32 * WARPS,
    ROWS = 64,
    PAIR = 2, /* rows a step */
    STAGES = 3,
    HEADS_MOST = 64
};

static __host__ __device__ inline int stage_bytes(int64_t N)
{
    return PAIR * (int)N * (DIM + 1) * 2;
}

/* Fragments of 32 keys, zeros behind the last. */
static __device__ void load_keys(uint32_t a[2][STEPS][4], const struct indexer_rows *r, int64_t s0)
{
    const int lane = threadIdx.x % WARP;

#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int64_t s = s0 + 16 * m + 8 * half + lane / 4;
            const uint32_t *k = (const uint32_t *)((const bf16 *)r->k + s * DIM);
#pragma unroll
            for (int step = 0; step < STEPS; step++) {
                a[m][step][half] = s < r->T ? k[step * 8 + lane % 4] : 0;
                a[m][step][half + 2] = s < r->T ? k[step * 8 + 4 + lane % 4] : 0;
            }
        }
}

/* Queues the heads and weights of rows t, t + 1 (zeros from `end` on). */
static __device__ void load_rows(
    uint32_t to, const struct indexer_rows *r, int64_t t, int64_t end)
{
    const int N = (int)r->N, pieces = PAIR * N * ROW;

    for (int i = threadIdx.x; i < pieces; i += THREADS) {
        const int head = i / ROW, piece = i % ROW; /* heads of both rows, one behind the other */
        const int64_t at = t * N + head;
        ptx_copy(to + (uint32_t)(head * ROW + (piece ^ (head & 7))) * 16,
            (const bf16 *)r->q + (at < end * N ? at : 0) * DIM + piece * 8,
            at < end * N ? 16 : 0);
    }
    to += (uint32_t)pieces * 16;
    for (int i = threadIdx.x; i < PAIR * N / 8; i += THREADS) {
        const int64_t at = t * N + i * 8;
        ptx_copy(to + (uint32_t)i * 16, (const bf16 *)r->w + (at < end * N ? at : 0),
            at < end * N ? 16 : 0);
    }
}

/* The scores of a row: sum[m][half] of the thread's heads. */
static __device__ void multiply(float sum[2][2], const uint32_t a[2][STEPS][4], uint32_t heads,
    const uint32_t *w, int N, float scale)
{
    const int lane = threadIdx.x % WARP;

    for (int j = 0; j < N / 8; j++) {
        const int head = j * 8 + lane % 8;
        float c[2][4] = {};
#pragma unroll
        for (int step = 0; step < STEPS; step += 2) {
            uint32_t b[4];
            ptx_ldmatrix(b, heads + (uint32_t)(head * ROW + ((step * 2 + lane / 8) ^ (lane & 7))) * 16);
            ptx_mma(c[0], a[0][step], b);
            ptx_mma(c[1], a[1][step], b);
            ptx_mma(c[0], a[0][step + 1], b + 2);
            ptx_mma(c[1], a[1][step + 1], b + 2);
        }
        const uint32_t two = w[j * 4 + lane % 4];
        const float w0 = __uint_as_float(two << 16) * scale,
                    w1 = __uint_as_float(two & 0xFFFF0000u) * scale;
#pragma unroll
        for (int m = 0; m < 2; m++)
#pragma unroll
            for (int half = 0; half < 2; half++)
                sum[m][half] += w0 * ptx_relu(c[m][2 * half]) + w1 * ptx_relu(c[m][2 * half + 1]);
    }
}

/* Over the quad; lane c gets the sum of m = c/2, half = c%2. */
static __device__ float fold(const float sum[2][2])
{
    const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
    float v[2];

#pragma unroll
    for (int m = 0; m < 2; m++)
        v[m] = (odd ? sum[m][1] : sum[m][0])
            + __shfl_xor_sync(0xFFFFFFFFu, odd ? sum[m][0] : sum[m][1], 1);
    return (high ? v[1] : v[0]) + __shfl_xor_sync(0xFFFFFFFFu, high ? v[0] : v[1], 2);
}

static __global__ void __launch_bounds__(THREADS, 2) k_score(float *score, struct indexer_rows r)
{
    extern __shared__ __align__(128) char room[];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, N = (int)r.N;
    const int64_t s0 = (int64_t)blockIdx.x * KEYS, from = r.t0 + (int64_t)blockIdx.y * ROWS;
    const int64_t begin = from > s0 ? from : s0, end = from + ROWS < r.t1 ? from + ROWS : r.t1;
    const int64_t s = s0 + warp * 32 + lane % 4 / 2 * 16 + lane % 2 * 8 + lane / 4;
    const uint32_t ring = ptx_shared(room);
    const int bytes = stage_bytes(N);
    uint32_t a[2][STEPS][4];

    if (begin >= end || indexer_idle(&r, begin, end, s0, KEYS))
        return;
    for (int i = 0; i < STAGES - 1; i++) {
        load_rows(ring + (uint32_t)(i * bytes), &r, begin + i * PAIR, end);
        ptx_copy_commit();
    }
    load_keys(a, &r, s0 + warp * 32);
    for (int64_t t = begin, i = 0; t < end; t += PAIR, i++) {
        ptx_copy_wait<STAGES - 2>();
        __syncthreads(); /* step i is here, and all have done with step i - 1 */
        load_rows(ring + (uint32_t)((i + STAGES - 1) % STAGES * bytes), &r,
            t + (STAGES - 1) * PAIR, end);
        ptx_copy_commit();
        const int at = (int)(i % STAGES) * bytes, weights = at + PAIR * N * DIM * 2;
#pragma unroll
        for (int j = 0; j < PAIR; j++) {
            float sum[2][2] = {};
            multiply(sum, a, ring + (uint32_t)(at + j * N * DIM * 2),
                (const uint32_t *)(room + weights) + j * N / 2, N, r.on_w * r.on_z);
            const float x = fold(sum);
            if (t + j < end && s <= t + j && s >= r.first[t + j])
                score[(t + j - r.t0) * r.width + s] = x;
        }
    }
    ptx_copy_wait<0>();
}

bool indexer_score_fits(const struct indexer_rows *r)
{
    return r->dtype == GLM_BF16 && r->D == DIM && r->N % 8 == 0 && r->N <= HEADS_MOST
        && ((uintptr_t)r->q | (uintptr_t)r->k | (uintptr_t)r->w) % 16 == 0;
}

int indexer_score_mma(
    float *score, const struct indexer_rows *r, glm_stream s, struct glm_error *err)
{
    const dim3 grid(blocks_of(r->t1, KEYS), blocks_of(r->t1 - r->t0, ROWS));

    return LAUNCH(
        k_score, grid, THREADS, STAGES * stage_bytes(r->N), s, err, score, *r);
}
