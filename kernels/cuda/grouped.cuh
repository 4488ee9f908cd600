/* Products of groups: which tile a block computes, seen from the device.
 *
 * Where groups begin is known to the device alone, so a block finds its tiles itself: it scans the
 * groups' tile counts into shared memory and takes tiles blockIdx.x, + gridDim.x, ... of one order,
 * which depends on `offset` and on shapes only:
 *
 *     groups ascending; in a group bands of BAND tiles of columns; in a band tile rows ascending; in
 *     a tile row columns ascending
 *
 * so that tiles that run at one time share rows of A and a band of B in the second-level cache. */
#ifndef KERNELS_CUDA_GROUPED_CUH
#define KERNELS_CUDA_GROUPED_CUH

#include "kernels/cuda/vec.cuh"

enum { GROUP_BAND = 8, GROUPS_MOST = 4096 };

/* One tile: rows [row, row_end) and columns from col on of the output. NT, NN: rows of the whole of
 * A and C. TN: of C[g]; then the sum runs over tokens [begin, end). */
struct group_tile {
    int g;
    int row, row_end, col;
    int begin, end;
};

/* Tile rows before each group, start[0..G], by the first warp of a block; a barrier must follow. */
static __device__ inline void group_scan(int *start, const struct grouped_gemm *p, int tile_rows)
{
    const int lane = threadIdx.x, G = (int)p->G;
    int sum = 0;

    if (lane >= WARP)
        return;
    if (lane == 0)
        start[0] = 0;
    for (int g = 0; g < G; g += WARP) {
        const int i = g + lane;
        const int rows = i >= G ? 0
            : p->kind == GROUP_TN ? (int)p->N
                                  : p->offset[i + 1] - p->offset[i];
        int tiles = (rows + tile_rows - 1) / tile_rows;
        for (int k = 1; k < WARP; k *= 2) {
            const int before = __shfl_up_sync(0xFFFFFFFFu, tiles, k);
            if (lane >= k)
                tiles += before;
        }
        if (i < G)
            start[i + 1] = sum + tiles;
        sum += __shfl_sync(0xFFFFFFFFu, tiles, WARP - 1);
    }
}

/* Tile i of start[G] * across, across: tiles of columns. */
static __device__ inline struct group_tile group_tile_at(const int *start,
    const struct grouped_gemm *p, int64_t i, int across, int tile_rows, int tile_cols)
{
    const int tile_row = (int)(i / across);
    int low_ = 0, high = (int)p->G; /* start[low_] <= tile_row < start[high] */

    while (high - low_ > 1) {
        const int middle = (low_ + high) / 2;
        if (start[middle] <= tile_row)
            low_ = middle;
        else
            high = middle;
    }
    const int tall = start[low_ + 1] - start[low_];
    const int64_t j = i - (int64_t)start[low_] * across, band = j / ((int64_t)tall * GROUP_BAND);
    const int64_t in_band = j - band * tall * GROUP_BAND;
    const int left = across - (int)band * GROUP_BAND;
    const int width = left < GROUP_BAND ? left : GROUP_BAND;
    const int down = (int)(in_band / width) * tile_rows;
    const int col = ((int)band * GROUP_BAND + (int)(in_band % width)) * tile_cols;
    const int begin = p->offset[low_], end = p->offset[low_ + 1];

    if (p->kind == GROUP_TN)
        return (struct group_tile){low_, down, (int)p->N, col, begin, end};
    return (struct group_tile){low_, begin + down, end, col, begin, end};
}

/* Columns of the output. */
static __host__ __device__ inline int64_t group_cols(const struct grouped_gemm *p)
{
    return p->kind == GROUP_TN ? p->K : p->N;
}

/* C at row r of a tile, the way it is stored. */
static __device__ inline int64_t group_row_at(
    const struct grouped_gemm *p, const struct group_tile *t, int r)
{
    return p->kind == GROUP_TN ? ((int64_t)t->g * p->N + r) * p->K : (int64_t)r * p->N;
}

/* Whether pairs of elements of C, from even columns on, may be accessed at once. */
template <class C> static __device__ inline bool group_pairs(const struct grouped_gemm *p)
{
    return group_cols(p) % 2 == 0 && (uintptr_t)p->c % (2 * sizeof(C)) == 0;
}

/* Two neighbours of C, the second if `both`, at once if `pair`. */
template <class C>
static __device__ inline void group_store(C *at, float x, float y, bool both, bool pair, bool add)
{
    if (pair) {
        if (add) {
            const vec<C, 2> was = vec_load<2>(at);
            x += get(was.at[0]);
            y += get(was.at[1]);
        }
        vec_store(at, vec<C, 2>{{put<C>(x), put<C>(y)}});
        return;
    }
    at[0] = put<C>(add ? x + get(at[0]) : x);
    if (both)
        at[1] = put<C>(add ? y + get(at[1]) : y);
}

/* The makers of tiles; each queues one kernel. */
#ifdef __cplusplus
extern "C" {
#endif
int cuda_grouped_mma(const struct grouped_gemm *p, glm_stream s, struct glm_error *err);
int cuda_grouped_wgmma(const struct grouped_gemm *p, glm_stream s, struct glm_error *err);
int cuda_grouped_plain(const struct grouped_gemm *p, glm_stream s, struct glm_error *err);
#ifdef __cplusplus
}
#endif

#endif
