/* Sums of squares of tiles, with the CPU's bits.
 *
 * A leaf of 1024 elements is four threads', of which thread q has lanes 4q .. 4q+3 in double: element
 * i of the leaf goes to lane i % 16, so a thread reads four neighbours (16 bytes of F32), then the
 * four that lie 16 further, and the warp's eight leaves are eight streams. The square of a float is
 * exact in double, so a fused multiply-add is the CPU's multiplication and addition. The four
 * threads fold their lanes in halves; one block a tile then folds the leaves' sums as a binary
 * tree, 2^12 of them at a time in shared memory: pairs of neighbours at each level, one that is left
 * over as it is. Bound by memory: an element is read once. */
#include "kernels/cuda/squares.cuh"

#include "kernels/cuda/launch.cuh"

enum { THREADS = 256, LEAF = 1024, LANE = 4, QUARTERS = 4, STEP = 16 };
enum { BLOCK_LEAVES = THREADS / QUARTERS, TREE = 4096 };

struct tiling {
    struct sum_squares p;
    int64_t down, across; /* tiles of a matrix */
    int64_t most;         /* leaves of a whole tile */
    int64_t blocks;       /* of k_leaves for a tile */
};

struct tile {
    int64_t first, rows, cols; /* first: its first element in x */
};

static __device__ inline struct tile tile_of(const struct tiling *g, int64_t i)
{
    const struct sum_squares *p = &g->p;
    const int64_t b = i / g->across / g->down;
    const int64_t row = i / g->across % g->down * p->tile_rows;
    const int64_t col = i % g->across * p->tile_cols;
    struct tile t;

    t.first = b * p->batch_stride + row * p->row_stride + col;
    t.rows = p->R - row < p->tile_rows ? p->R - row : p->tile_rows;
    t.cols = p->C - col < p->tile_cols ? p->C - col : p->tile_cols;
    return t;
}

static __device__ inline void get4(float *x, const float *p)
{
    const float4 v = *(const float4 *)p;
    x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
}

static __device__ inline void get4(float *x, const bf16 *p)
{
    const uint2 v = *(const uint2 *)p;
    x[0] = __uint_as_float(v.x << 16), x[1] = __uint_as_float(v.x & 0xFFFF0000u);
    x[2] = __uint_as_float(v.y << 16), x[3] = __uint_as_float(v.y & 0xFFFF0000u);
}

/* Adds the thread's four elements of each step from `at` to the leaf's end, all in one row at a
 * time: cols and all addresses are multiples of four. */
template <class E>
static __device__ inline void wide_lanes(
    double *lane, const E *x, struct tile t, int64_t stride, int64_t at, int64_t end)
{
    const int64_t down = STEP / t.cols, across = STEP % t.cols;
    int64_t r = at / t.cols, c = at % t.cols;
    float v[LANE];

#pragma unroll 8
    for (; at < end; at += STEP) {
        get4(v, x + r * stride + c);
#pragma unroll
        for (int k = 0; k < LANE; k++)
            lane[k] += (double)v[k] * (double)v[k];
        r += down;
        c += across;
        if (c >= t.cols) {
            c -= t.cols;
            r++;
        }
    }
}

template <class E>
static __device__ inline void narrow_lanes(
    double *lane, const E *x, struct tile t, int64_t stride, int64_t at, int64_t end)
{
    for (; at < end; at += STEP) {
#pragma unroll
        for (int k = 0; k < LANE; k++) {
            const int64_t i = at + k;
            if (i >= end)
                break;
            const double v = (double)get(x[i / t.cols * stride + i % t.cols]);
            lane[k] += v * v;
        }
    }
}

template <class E>
static __global__ void k_leaves(struct tiling g, double *leaf, bool wide)
{
    const int64_t i = blockIdx.x / g.blocks, q = threadIdx.x % QUARTERS;
    const int64_t l = blockIdx.x % g.blocks * BLOCK_LEAVES + threadIdx.x / QUARTERS;
    struct tile t = tile_of(&g, i);
    const int64_t all = t.rows * t.cols, begin = l * LEAF;
    const int64_t end = all < begin + LEAF ? all : begin + LEAF;
    double lane[LANE] = {0, 0, 0, 0};

    if (t.cols == g.p.row_stride || t.rows == 1) { /* no gaps: one long row */
        t.cols = all;
        t.rows = 1;
    }
    const E *const x = (const E *)g.p.x + t.first;
    if (wide && t.cols % LANE == 0)
        wide_lanes(lane, x, t, g.p.row_stride, begin + q * LANE, end);
    else
        narrow_lanes(lane, x, t, g.p.row_stride, begin + q * LANE, end);
#pragma unroll
    for (int k = 0; k < LANE; k++) {
        lane[k] += __shfl_xor_sync(0xFFFFFFFFu, lane[k], 2);
        lane[k] += __shfl_xor_sync(0xFFFFFFFFu, lane[k], 1);
    }
    if (q == 0 && begin < all)
        leaf[i * g.most + l] = (lane[0] + lane[2]) + (lane[1] + lane[3]);
}

/* A block a tile. Sums of 2^12 leaves take the places of the first leaves, which were read. */
static __global__ void k_tree(struct tiling g, double *leaf)
{
    __shared__ double node[TREE];
    const struct tile t = tile_of(&g, blockIdx.x);
    double *const mine = leaf + blockIdx.x * g.most;
    int64_t n = (t.rows * t.cols + LEAF - 1) / LEAF;

    for (;;) {
        const int64_t parts = (n + TREE - 1) / TREE;
        for (int64_t part = 0; part < parts; part++) {
            const int here = (int)(n - part * TREE < TREE ? n - part * TREE : TREE);
            for (int k = threadIdx.x; k < here; k += THREADS)
                node[k] = mine[part * TREE + k];
            __syncthreads();
            for (int s = 1; s < here; s *= 2) {
                for (int k = 2 * s * (int)threadIdx.x; k + s < here; k += 2 * s * THREADS)
                    node[k] += node[k + s];
                __syncthreads();
            }
            if (threadIdx.x == 0)
                mine[part] = node[0];
            __syncthreads();
        }
        if (parts == 1)
            break;
        n = parts;
    }
    if (threadIdx.x == 0)
        g.p.out[blockIdx.x] = node[0];
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

int squares_queue(const struct sum_squares *p, glm_stream s, struct glm_error *err)
{
    struct tiling g;
    g.p = *p;
    g.down = (p->R + p->tile_rows - 1) / p->tile_rows;
    g.across = (p->C + p->tile_cols - 1) / p->tile_cols;
    g.most = (least(p->R, p->tile_rows) * least(p->C, p->tile_cols) + LEAF - 1) / LEAF;
    g.blocks = (g.most + BLOCK_LEAVES - 1) / BLOCK_LEAVES;
    const int64_t tiles = p->B * g.down * g.across;
    if (tiles == 0)
        return 0;
    const bool wide = (uintptr_t)p->x % 16 == 0 && p->batch_stride % LANE == 0
        && p->row_stride % LANE == 0 && (g.across == 1 || p->tile_cols % LANE == 0);
    double *const leaf =
        (double *)cuda_scratch(s, (size_t)(tiles * g.most) * sizeof *leaf, err);
    if (leaf == NULL
        || BY_TYPE(p->dtype, E,
               LAUNCH(k_leaves<E>, (unsigned)(tiles * g.blocks), THREADS, 0, s, err, g,
                   leaf, wide))
            != 0)
        return (int)err->code;
    return LAUNCH(k_tree, (unsigned)tiles, THREADS, 0, s, err, g, leaf);
}

CUDA_OP(sum_squares)
{
    if (cuda_type("sum_squares", p->dtype, err) != 0)
        return err->code;
    if (p->B < 0 || p->R < 0 || p->C < 0 || p->tile_rows < 1 || p->tile_cols < 1)
        return glm_fail(err, GLM_EFORMAT,
            "sum_squares: %lld matrices of %lld x %lld in tiles of %lld x %lld",
            (long long)p->B, (long long)p->R, (long long)p->C, (long long)p->tile_rows,
            (long long)p->tile_cols);
    cuda_begin(stream);
    return squares_queue(p, stream, err);
}
