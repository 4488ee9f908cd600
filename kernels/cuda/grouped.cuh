/* Products of groups: which tile a block computes, seen from the device.
 *
 * Where groups begin is known to the device alone, so a block finds its tiles itself: it scans the
 * groups' tile counts into shared memory and takes tiles blockIdx.x, + gridDim.x, ... of one order,
 * which depends on `offset` and on shapes only:
 *
 *     groups ascending; in a group bands of BAND tiles of columns; in a band tile rows ascending; in
 *     a tile row columns ascending
 *
 * so that tiles that run at one time share rows of A and a band of B in the second-level cache.
 *
 * Pairs: two blocks take two tiles together, one above the other, which share B. The last tile row of
 * a group that has an odd number of them comes at the group's end in pairs side by side, which share A;
 * so no group is rounded up to two tile rows. */
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
    bool beside; /* of a pair: the other tile is beside, not below or above */
};

/* How a product is cut. */
struct group_cut {
    int tile_rows, tile_cols, across; /* across: tiles of columns */
    bool pairs;
};

static __device__ inline int group_rows(const struct grouped_gemm *p, int g)
{
    return p->kind == GROUP_TN ? (int)p->N : p->offset[g + 1] - p->offset[g];
}

/* Tiles, or pairs of tiles, of a group of `rows` rows: of whole tile rows (or pairs of them), and of
 * an odd last one. */
static __device__ inline int group_whole(const struct group_cut *cut, int rows)
{
    const int tall = (rows + cut->tile_rows - 1) / cut->tile_rows;
    return (cut->pairs ? tall / 2 : tall) * cut->across;
}

static __device__ inline int group_odd(const struct group_cut *cut, int rows)
{
    const int tall = (rows + cut->tile_rows - 1) / cut->tile_rows;
    return cut->pairs && tall % 2 == 1 ? (cut->across + 1) / 2 : 0;
}

/* Tiles (or pairs) before each group, start[0..G], by the lanes of one warp; a barrier must follow. */
static __device__ inline void group_scan(
    int *start, const struct grouped_gemm *p, const struct group_cut *cut, int lane)
{
    const int G = (int)p->G;
    int sum = 0;

    if (lane == 0)
        start[0] = 0;
    for (int g = 0; g < G; g += WARP) {
        const int i = g + lane, rows = i < G ? group_rows(p, i) : 0;
        int tiles = group_whole(cut, rows) + group_odd(cut, rows);
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

/* Tile i of start[G]; of a pair, the one of `rank` 0 or 1. */
static __device__ inline struct group_tile group_tile_at(const int *start,
    const struct grouped_gemm *p, const struct group_cut *cut, int i, int rank)
{
    int g = 0, high = (int)p->G; /* start[g] <= i < start[high] */

    while (high - g > 1) {
        const int middle = (g + high) / 2;
        if (start[middle] <= i)
            g = middle;
        else
            high = middle;
    }
    const int rows = group_rows(p, g), whole = group_whole(cut, rows), j = i - start[g];
    const int begin = p->offset[g], end = p->offset[g + 1];
    struct group_tile t = {g, 0, p->kind == GROUP_TN ? rows : end, 0, begin, end, j >= whole};

    if (t.beside) {
        t.row = rows - (rows - 1) % cut->tile_rows - 1;
        t.col = (2 * (j - whole) + rank) * cut->tile_cols;
    } else {
        const int tall = whole / cut->across, band = j / (tall * GROUP_BAND);
        const int in_band = j - band * tall * GROUP_BAND;
        const int left = cut->across - band * GROUP_BAND;
        const int width = left < GROUP_BAND ? left : GROUP_BAND;
        const int down = in_band / width;
        t.row = (cut->pairs ? 2 * down + rank : down) * cut->tile_rows;
        t.col = (band * GROUP_BAND + in_band % width) * cut->tile_cols;
    }
    t.row += p->kind == GROUP_TN ? 0 : begin;
    return t;
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
