/* Products of groups, plainly: any types, any shapes, F32 fused multiply-adds in ascending K. For F32
 * (which is for tests) and for rows of BF16 that are no multiples of 16 bytes. */
#include "kernels/cuda/grouped.cuh"

enum { TILE = 64, STEP = 16, SIDE = 16, EACH = TILE / SIDE, THREADS = SIDE * SIDE };

static __device__ inline float value(const void *p, enum glm_dtype type, int64_t i)
{
    return type == GLM_BF16 ? get(((const bf16 *)p)[i]) : ((const float *)p)[i];
}

static __device__ inline void store(const struct grouped_gemm *p, int64_t i, float x)
{
    if (p->c_type == GLM_BF16) {
        bf16 *c = (bf16 *)p->c + i;
        *c = put<bf16>(p->accumulate ? x + get(*c) : x);
    } else {
        float *c = (float *)p->c + i;
        *c = p->accumulate ? x + *c : x;
    }
}

/* Where element (outer, k) of each input lies: first + outer * by_outer + k * by_k. */
struct side {
    int64_t first, by_outer, by_k;
    int outer, outer_end; /* of the tile */
};

static __device__ inline void fill(float (*to)[TILE + 1], const void *x, enum glm_dtype type,
    const struct side *s, int k0, int k_end)
{
    const bool k_runs = s->by_k == 1; /* neighbours in memory are neighbours in k */

    for (int i = threadIdx.x; i < TILE * STEP; i += THREADS) {
        const int k = k_runs ? i % STEP : i / TILE, o = k_runs ? i / STEP : i % TILE;
        const bool in = k0 + k < k_end && s->outer + o < s->outer_end;
        to[k][o] = in
            ? value(x, type, s->first + (s->outer + o) * s->by_outer + (k0 + k) * s->by_k)
            : 0;
    }
}

static __device__ void one_tile(const struct grouped_gemm *p, const struct group_tile *t,
    float (*a)[TILE + 1], float (*b)[TILE + 1])
{
    const bool tn = p->kind == GROUP_TN;
    const int64_t N = p->N, K = p->K;
    const int cols = (int)group_cols(p);
    const struct side sa = {0, tn ? 1 : K, tn ? N : 1, t->row, t->row_end};
    const struct side sb = {tn ? 0 : t->g * N * K, p->kind == GROUP_NT ? K : 1,
        p->kind == GROUP_NT ? 1 : group_cols(p), t->col, cols};
    const int k_begin = tn ? t->begin : 0, k_end = tn ? t->end : (int)K;
    const int x = threadIdx.x % SIDE, y = threadIdx.x / SIDE;
    float sum[EACH][EACH] = {};

    if (k_begin == k_end && p->accumulate)
        return;
    for (int k0 = k_begin; k0 < k_end; k0 += STEP) {
        __syncthreads();
        fill(a, p->a, p->a_type, &sa, k0, k_end);
        fill(b, p->b, p->b_type, &sb, k0, k_end);
        __syncthreads();
        for (int k = 0; k < STEP; k++)
#pragma unroll
            for (int i = 0; i < EACH; i++)
#pragma unroll
                for (int j = 0; j < EACH; j++)
                    sum[i][j] = fmaf(a[k][y + i * SIDE], b[k][x + j * SIDE], sum[i][j]);
    }
    for (int i = 0; i < EACH; i++)
        for (int j = 0; j < EACH; j++) {
            const int r = t->row + y + i * SIDE, c = t->col + x + j * SIDE;
            if (r < t->row_end && c < cols)
                store(p, group_row_at(p, t, r) + c, sum[i][j]);
        }
}

static __global__ void __launch_bounds__(THREADS) k_plain(struct grouped_gemm p)
{
    extern __shared__ int start[];
    __shared__ float a[STEP][TILE + 1], b[STEP][TILE + 1];
    const struct group_cut cut = {TILE, TILE, (int)((group_cols(&p) + TILE - 1) / TILE), false};

    if (threadIdx.x < WARP)
        group_scan(start, &p, &cut, threadIdx.x);
    __syncthreads();
    const int tiles = start[p.G];
    for (int i = blockIdx.x; i < tiles; i += gridDim.x) {
        const struct group_tile t = group_tile_at(start, &p, &cut, i, 0);
        one_tile(&p, &t, a, b);
    }
}

extern "C" int cuda_grouped_plain(
    const struct grouped_gemm *p, glm_stream s, struct glm_error *err)
{
    return LAUNCH(k_plain, 4 * s->processors, THREADS, (p->G + 1) * (int64_t)sizeof(int), s,
        err, *p);
}
