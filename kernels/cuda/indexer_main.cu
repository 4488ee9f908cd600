/* The main heads' attention summed over heads, by mma.sync: the target of the indexer's loss, BF16.
 *
 * A block: 128 rows x 128 keys, all heads one after another; 8 warps of 64 x 32. Pieces of 64 elements
 * of both sides come through a ring of STAGES steps by cp.async, 16-byte pieces exchanged within a row
 * so that ldmatrix meets no bank twice. At a head's last piece its products become exp(scale*q.k - lse)
 * and are added to the sum, both in registers. Heads ascend; one writer per element. Bounded by the
 * tensor cores: 2*MN*MDq FLOPs a pair; the pairs are those of tiles that touch the diagonal or lie
 * below it, whether a key is in a row's set or not. */
#include "kernels/cuda/indexer_loss.cuh"
#include "kernels/cuda/ptx.cuh"

enum {
    THREADS = 256,
    TILE = 128,
    PART = 64,             /* elements of a piece */
    PIECES = PART * 2 / 16, /* of 16 bytes in a row of it */
    SIDE = TILE * PART * 2, /* bytes */
    STAGES = 4,
    APART = THREADS / PIECES, EACH = TILE / APART, /* rows that a thread copies */
    DOWN = 4, ACROSS = 4 /* fragments of 16 rows, of 8 keys a warp has */
};

static const float log2_e = 1.4426950408889634f;

static __device__ inline uint32_t place(uint32_t side, int row, int piece)
{
    return side + (uint32_t)(row * PIECES + (piece ^ (row & 7))) * 16;
}

/* Where a thread's pieces come from: rows threadIdx/8, +32, .. of both sides, piece threadIdx%8. */
struct source {
    const bf16 *q, *k;
    int64_t q_step, k_step; /* elements between its rows */
    int q_rows, k_rows;     /* of them that are there */
    int parts, k_parts;     /* pieces of a head; after how many k begins again (0: never) */
};

static __device__ inline struct source source_of(
    const struct loss_chunk *c, int64_t t0, int64_t s0)
{
    const int row = threadIdx.x / PIECES, piece = threadIdx.x % PIECES;
    const int64_t q_left = c->r.t1 - t0 - row, k_left = c->r.t1 - s0 - row;
    struct source f;

    f.q = (const bf16 *)c->mq + (t0 + row) * c->MN * c->MDq + piece * 8;
    f.k = (const bf16 *)c->mk + (s0 + row) * c->mk_stride + piece * 8;
    f.q_step = APART * c->MN * c->MDq;
    f.k_step = APART * c->mk_stride;
    f.q_rows = q_left <= 0 ? 0 : (int)min((q_left + APART - 1) / APART, (int64_t)EACH);
    f.k_rows = k_left <= 0 ? 0 : (int)min((k_left + APART - 1) / APART, (int64_t)EACH);
    f.parts = (int)(c->MDq / PART);
    f.k_parts = c->MNk == 1 ? f.parts : 0;
    return f;
}

/* Queues piece i of all of a row: heads lie one behind the other. */
static __device__ inline void load(uint32_t to, const struct loss_chunk *c, const struct source *f, int i)
{
    const int row = threadIdx.x / PIECES, piece = threadIdx.x % PIECES;
    const bf16 *q = f->q + i * PART;
    const bf16 *k = f->k + (f->k_parts > 0 ? i % f->k_parts : i) * PART;

    if (i >= f->parts * (int)c->MN)
        return;
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        const bool q_in = j < f->q_rows, k_in = j < f->k_rows;
        ptx_copy(place(to, row + j * APART, piece),
            q_in ? q + j * f->q_step : (const bf16 *)c->mq, q_in ? 16 : 0);
        ptx_copy(place(to + SIDE, row + j * APART, piece),
            k_in ? k + j * f->k_step : (const bf16 *)c->mk, k_in ? 16 : 0);
    }
}

static __device__ void multiply(
    float acc[DOWN][ACROSS][4], uint32_t room, int row, int col)
{
    const int lane = threadIdx.x % WARP;

#pragma unroll
    for (int step = 0; step < PART / 16; step++) {
        uint32_t a[DOWN][4], b[ACROSS / 2][4];
#pragma unroll
        for (int i = 0; i < DOWN; i++)
            ptx_ldmatrix(a[i], place(room, row + i * 16 + lane % 16, step * 2 + lane / 16));
#pragma unroll
        for (int j = 0; j < ACROSS / 2; j++)
            ptx_ldmatrix(b[j],
                place(room + SIDE, col + j * 16 + lane / 16 * 8 + lane % 8,
                    step * 2 + lane / 8 % 2));
#pragma unroll
        for (int i = 0; i < DOWN; i++)
#pragma unroll
            for (int j = 0; j < ACROSS; j++)
                ptx_mma(acc[i][j], a[i], b[j / 2] + j % 2 * 2);
    }
}

/* lse * log2 e of the thread's rows. */
static __device__ inline void load_lse(
    float lse[DOWN][2], const struct loss_chunk *c, int64_t t, int head)
{
#pragma unroll
    for (int i = 0; i < DOWN; i++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int64_t row = t + i * 16 + half * 8;
            lse[i][half] = row < c->r.t1 ? c->lse[row * c->MN + head] : 0;
        }
}

/* sum += exp(scale * product - lse); the products begin anew. */
static __device__ inline void finish_head(float sum[DOWN][ACROSS][4],
    float acc[DOWN][ACROSS][4], const float lse[DOWN][2], float scale)
{
#pragma unroll
    for (int i = 0; i < DOWN; i++)
#pragma unroll
        for (int j = 0; j < ACROSS; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                sum[i][j][e] += ptx_exp2(acc[i][j][e] * scale - lse[i][e / 2] * log2_e);
                acc[i][j][e] = 0;
            }
}

static __device__ void store(
    const float sum[DOWN][ACROSS][4], const struct loss_chunk *c, int64_t t, int64_t s)
{
#pragma unroll
    for (int i = 0; i < DOWN; i++)
#pragma unroll
        for (int j = 0; j < ACROSS; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int64_t row = t + i * 16 + e / 2 * 8, key = s + j * 8 + e % 2;
                if (row >= c->r.t1 || key > row)
                    continue;
                float *const to = c->target + (row - c->r.t0) * c->r.width + key;
                if (*to >= 0)
                    *to = sum[i][j][e];
            }
}

static __global__ void __launch_bounds__(THREADS, 1) k_main(struct loss_chunk c)
{
    extern __shared__ __align__(128) char room[];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int row = warp / 4 * 64, col = warp % 4 * 32;
    const int64_t s0 = (int64_t)blockIdx.x * TILE, t0 = c.r.t0 + (int64_t)blockIdx.y * TILE;
    const int64_t end = t0 + TILE < c.r.t1 ? t0 + TILE : c.r.t1;
    const uint32_t ring = ptx_shared(room);
    float acc[DOWN][ACROSS][4] = {}, sum[DOWN][ACROSS][4] = {}, lse[DOWN][2];

    if (s0 >= end || c.r.first[t0] >= s0 + TILE)
        return;
    const struct source from = source_of(&c, t0, s0);
    for (int i = 0; i < STAGES - 1; i++) {
        load(ring + (uint32_t)(i * 2 * SIDE), &c, &from, i);
        ptx_copy_commit();
    }
    for (int head = 0, i = 0; head < (int)c.MN; head++) {
        load_lse(lse, &c, t0 + row + lane / 4, head); /* needed after the products */
        for (int part = 0; part < from.parts; part++, i++) {
            ptx_copy_wait<STAGES - 2>();
            __syncthreads(); /* piece i is here, and all have done with piece i - 1 */
            load(ring + (uint32_t)((i + STAGES - 1) % STAGES * 2 * SIDE), &c, &from,
                i + STAGES - 1);
            ptx_copy_commit();
            multiply(acc, ring + (uint32_t)(i % STAGES * 2 * SIDE), row, col);
        }
        finish_head(sum, acc, lse, c.main_scale * log2_e);
    }
    ptx_copy_wait<0>();
    store(sum, &c, t0 + row + lane / 4, s0 + col + lane % 4 * 2);
}

bool loss_main_fits(const struct loss_chunk *c)
{
    return c->r.dtype == GLM_BF16 && c->MDq % PART == 0 && c->mk_stride % 8 == 0
        && ((uintptr_t)c->mq | (uintptr_t)c->mk) % 16 == 0;
}

int loss_main_mma(const struct loss_chunk *c, glm_stream s, struct glm_error *err)
{
    const dim3 grid(blocks_of(c->r.t1, TILE), blocks_of(c->r.t1 - c->r.t0, TILE));

    return LAUNCH(k_main, grid, THREADS, STAGES * 2 * SIDE, s, err, *c);
}
