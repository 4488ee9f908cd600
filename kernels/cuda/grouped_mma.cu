/* Products of groups in BF16 by mma.sync: what runs where wgmma does not, and beside it in tests.
 *
 * A block of 8 warps makes tiles of 128 x 128, each warp 64 x 32, in steps of 32 along K; STAGES
 * steps are under way from memory (cp.async). A step of an input lies in shared memory as in global:
 * K runs along the rows ("K-major") for A in NT, NN and B in NT; else the outer index does, and
 * ldmatrix transposes. Rows are padded by 16 bytes: ldmatrix then meets every bank once.
 *
 *     K-major   [128 outer][32 k + 8]        else   [32 k][128 outer + 8]
 *
 * One block per tile, K ascending, so bits depend on the tile's own rows alone. Rows of the inputs
 * must be multiples of 16 bytes. */
#include "kernels/cuda/grouped.cuh"
#include "kernels/cuda/ptx.cuh"

enum {
    TILE = 128,
    STEP = 32,
    STAGES = 4,
    THREADS = 256,
    WARP_ROWS = 64,
    WARP_COLS = 32,
    PAD = 8,
    PIECE = 8, /* elements of one copy */
    SIDE_BYTES = TILE * (STEP + PAD) * 2 > STEP * (TILE + PAD) * 2 ? TILE * (STEP + PAD) * 2
                                                                   : STEP * (TILE + PAD) * 2
};

/* One input of a tile. Element (outer, k) is at x[outer * ld + k] if K-major, x[k * ld + outer]
 * else. */
struct side {
    const bf16 *x;
    int64_t ld;
    int outer, outer_end, k_end;
};

/* Copies one step; what is outside becomes zero. The address of nothing is x itself. */
template <bool K_MAJOR>
static __device__ inline void load(uint32_t to, const struct side *s, int k0)
{
#pragma unroll
    for (int i = 0; i < TILE * STEP / PIECE / THREADS; i++) {
        const int n = threadIdx.x + i * THREADS;
        const int per = (K_MAJOR ? STEP : TILE) / PIECE;
        const int line = n / per, at = n % per * PIECE;
        const int o = s->outer + (K_MAJOR ? line : at), k = k0 + (K_MAJOR ? at : line);
        const bool in = o < s->outer_end && k < s->k_end;
        const bf16 *from = s->x + (K_MAJOR ? o * s->ld + k : k * s->ld + o);
        const int row = K_MAJOR ? STEP + PAD : TILE + PAD;
        ptx_copy(to + (uint32_t)(line * row + at) * 2, in ? from : s->x, in ? 16 : 0);
    }
}

/* The 16 x 16 of A that begins at (outer, k) of a step, as mma wants it. */
template <bool K_MAJOR>
static __device__ inline void a_at(uint32_t r[4], uint32_t step, int outer, int k, int lane)
{
    if (K_MAJOR)
        ptx_ldmatrix(r,
            step + (uint32_t)((outer + lane % 16) * (STEP + PAD) + k + lane / 16 * 8) * 2);
    else
        ptx_ldmatrix_t(r,
            step
                + (uint32_t)((k + lane % 8 + lane / 16 * 8) * (TILE + PAD) + outer
                      + lane / 8 % 2 * 8)
                    * 2);
}

/* Two 16 x 8 of B, side by side. */
template <bool K_MAJOR>
static __device__ inline void b_at(uint32_t r[4], uint32_t step, int outer, int k, int lane)
{
    if (K_MAJOR)
        ptx_ldmatrix(r,
            step
                + (uint32_t)((outer + lane % 8 + lane / 16 * 8) * (STEP + PAD) + k
                      + lane / 8 % 2 * 8)
                    * 2);
    else
        ptx_ldmatrix_t(r,
            step + (uint32_t)((k + lane % 16) * (TILE + PAD) + outer + lane / 16 * 8) * 2);
}

typedef float sums[WARP_ROWS / 16][WARP_COLS / 8][4];

template <bool A_K, bool B_K>
static __device__ inline void multiply(sums c, uint32_t a, uint32_t b, int row, int col)
{
    const int lane = threadIdx.x % WARP;

#pragma unroll
    for (int k = 0; k < STEP; k += 16) {
        uint32_t x[WARP_ROWS / 16][4], y[WARP_COLS / 16][4];
#pragma unroll
        for (int i = 0; i < WARP_ROWS / 16; i++)
            a_at<A_K>(x[i], a, row + i * 16, k, lane);
#pragma unroll
        for (int j = 0; j < WARP_COLS / 16; j++)
            b_at<B_K>(y[j], b, col + j * 16, k, lane);
#pragma unroll
        for (int i = 0; i < WARP_ROWS / 16; i++)
#pragma unroll
            for (int j = 0; j < WARP_COLS / 8; j++)
                ptx_mma(c[i][j], x[i], &y[j / 2][j % 2 * 2]);
    }
}

template <class C>
static __device__ inline void finish(
    const struct grouped_gemm *p, const struct group_tile *t, const sums c, int row, int col)
{
    const int lane = threadIdx.x % WARP, cols = (int)group_cols(p);
    const bool pairs = group_pairs<C>(p);

#pragma unroll
    for (int i = 0; i < WARP_ROWS / 16; i++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int r = t->row + row + i * 16 + half * 8 + lane / 4;
            if (r >= t->row_end)
                continue;
            C *const out = (C *)p->c + group_row_at(p, t, r);
#pragma unroll
            for (int j = 0; j < WARP_COLS / 8; j++) {
                const int at = t->col + col + j * 8 + lane % 4 * 2;
                if (at < cols)
                    group_store(out + at, c[i][j][half * 2], c[i][j][half * 2 + 1],
                        at + 1 < cols, pairs, p->accumulate);
            }
        }
}

template <bool A_K, bool B_K, class C>
static __device__ void one_tile(
    const struct grouped_gemm *p, const struct group_tile *t, uint32_t room)
{
    const bool tn = !A_K;
    const int64_t N = p->N, K = p->K;
    const int cols = (int)group_cols(p);
    /* Counted from the group's first token, so that 32 bits are enough for tokens. */
    const int first = tn ? t->begin : 0, steps = tn ? t->end - t->begin : (int)K;
    const struct side a = {(const bf16 *)p->a + first * N, tn ? N : K, t->row, t->row_end, steps};
    const struct side b = {
        (const bf16 *)p->b + (tn ? first * K : (int64_t)t->g * N * K),
        B_K ? K : (int64_t)cols, t->col, cols, steps};
    const int warp = threadIdx.x / WARP;
    const int row = warp / (TILE / WARP_COLS) * WARP_ROWS, col = warp % (TILE / WARP_COLS) * WARP_COLS;
    const int n = (steps + STEP - 1) / STEP;
    sums c = {};

    if (n == 0 && p->accumulate)
        return;
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++) {
        if (i < n) {
            load<A_K>(room + (uint32_t)(i * 2 * SIDE_BYTES), &a, i * STEP);
            load<B_K>(room + (uint32_t)(i * 2 * SIDE_BYTES + SIDE_BYTES), &b, i * STEP);
        }
        ptx_copy_commit();
    }
    for (int i = 0; i < n; i++) {
        ptx_copy_wait<STAGES - 2>();
        __syncthreads(); /* step i is here, and all have done with step i - 1 */
        const int next = i + STAGES - 1;
        if (next < n) {
            const uint32_t to = room + (uint32_t)(next % STAGES * 2 * SIDE_BYTES);
            load<A_K>(to, &a, next * STEP);
            load<B_K>(to + SIDE_BYTES, &b, next * STEP);
        }
        ptx_copy_commit();
        const uint32_t here = room + (uint32_t)(i % STAGES * 2 * SIDE_BYTES);
        multiply<A_K, B_K>(c, here, here + SIDE_BYTES, row, col);
    }
    ptx_copy_wait<0>();
    __syncthreads();
    finish<C>(p, t, c, row, col);
}

template <bool A_K, bool B_K, class C>
static __global__ void __launch_bounds__(THREADS, 2) k_mma(struct grouped_gemm p)
{
    extern __shared__ __align__(128) char room[];
    int *const start = (int *)(room + STAGES * 2 * SIDE_BYTES);
    const struct group_cut cut = {TILE, TILE, (int)((group_cols(&p) + TILE - 1) / TILE), false};

    if (threadIdx.x < WARP)
        group_scan(start, &p, &cut, threadIdx.x);
    __syncthreads();
    const int tiles = start[p.G];
    for (int i = blockIdx.x; i < tiles; i += gridDim.x) {
        const struct group_tile t = group_tile_at(start, &p, &cut, i, 0);
        one_tile<A_K, B_K, C>(&p, &t, ptx_shared(room));
    }
}

template <bool A_K, bool B_K>
static int launch(const struct grouped_gemm *p, glm_stream s, struct glm_error *err)
{
    const int64_t room = STAGES * 2 * SIDE_BYTES + (p->G + 1) * (int64_t)sizeof(int);

    return BY_TYPE(p->c_type, C,
        LAUNCH((k_mma<A_K, B_K, C>), 2 * s->processors, THREADS, room, s, err, *p));
}

extern "C" int cuda_grouped_mma(
    const struct grouped_gemm *p, glm_stream s, struct glm_error *err)
{
    return p->kind == GROUP_NT ? launch<true, true>(p, s, err)
        : p->kind == GROUP_NN  ? launch<true, false>(p, s, err)
                               : launch<false, false>(p, s, err);
}
