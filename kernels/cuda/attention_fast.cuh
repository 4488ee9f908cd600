/* What the tensor-core paths of attention share: heads of 256 dimensions, as many key heads as
 * query heads, BF16.
 *
 * Tiles belong to one sequence and count from its first row, so that a row's bits depend on its
 * sequence alone. Tile slots: sequence s has the slots from cu_seqlens[s]/SIZE + s on, one per SIZE
 * rows; some slots stay empty. T/SIZE + S slots hold every tile, and a block finds its own by a
 * binary search: no list, nothing read by the host.
 *
 * Key sets become bits (k_bits): bit j%32 of word j/32 of row t says that the set of t holds key j of
 * its sequence; any[] tells of each 64 x 64 tile whether it has a bit at all, so that tiles without
 * are skipped. */
#ifndef KERNELS_CUDA_ATTENTION_FAST_CUH
#define KERNELS_CUDA_ATTENTION_FAST_CUH

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/ptx.cuh"

enum { HEAD = 256, TILE = 64 }; /* dimensions of a head; rows and keys of a tile of the map */
static const float LOG2E = 1.4426950408889634f;

struct fast {
    const bf16 *q, *k, *v, *do_;
    bf16 *o, *dq;
    float *lse, *dk, *dv, *delta;
    const int32_t *cu_seqlens;
    const uint32_t *bits;     /* [T, words] or NULL: all earlier keys */
    const unsigned char *any; /* [slots of TILE, words/2] */
    int64_t k_stride, v_stride;
    int T, S, N, words;
    float scale;
    /* dS of heads [head0, ...), where backward keeps it: tiles of 64 x 64, see ds_tile. */
    bf16 *ds;
    int64_t ds_head; /* elements a head */
    int head0, heads; /* of this launch */
};

/* The tile of rows in slot x (of TILE) and keys j <= x: x*(x+1)/2 tiles lie in front of slot x. */
static __device__ inline bf16 *ds_tile(const struct fast &a, int64_t head, int64_t x, int j)
{
    return a.ds + (head - a.head0) * a.ds_head + (x * (x + 1) / 2 + j) * (TILE * TILE);
}

/* Rows first + at ... of the sequence of n rows that begins at row first of the pack. rows 0: an
 * empty slot. */
struct tile {
    int first, n, at, rows, slot;
};

static __host__ __device__ inline int tile_slots(int64_t T, int64_t S, int size)
{
    return (int)(T / size + S);
}

template <int SIZE> static __device__ inline struct tile tile_of(const struct fast &a, int x)
{
    int begin = 0, end = a.S;

    while (end - begin > 1) {
        const int middle = begin + (end - begin) / 2;
        if (a.cu_seqlens[middle] / SIZE + middle <= x)
            begin = middle;
        else
            end = middle;
    }
    struct tile t;
    t.first = a.cu_seqlens[begin];
    t.n = a.cu_seqlens[begin + 1] - t.first;
    t.at = (x - t.first / SIZE - begin) * SIZE;
    t.rows = t.at >= t.n ? 0 : t.n - t.at < SIZE ? t.n - t.at : SIZE;
    t.slot = t.first / TILE + begin; /* of the sequence's first row, in the map */
    return t;
}

/* Which head and slot a block has: heads in groups, so that a group's keys stay in the second-level
 * cache, and in a group the slots one after the other, each for all its heads: the caller numbers
 * them by falling work, and the last blocks to start are short ones. */
struct place {
    int64_t head;
    int slot;
};

static __device__ inline struct place place_of(const struct fast &a, int slots)
{
    const int group = a.heads % 8 == 0 ? 8 : a.heads < 8 ? a.heads : 1;
    const int x = (int)blockIdx.x, in = x % (slots * group);
    return {a.head0 + x / (slots * group) * group + in % group, in / group};
}

/* ---- rows in shared memory -------------------------------------------------------------------- */

/* 16-byte chunk `chunk` of row `row`, rows of BYTES bytes: chunks change places with the row so that
 * eight rows of one chunk lie in different banks. */
template <int BYTES> static __device__ inline uint32_t chunk_at(int row, int chunk)
{
    return (uint32_t)(row * BYTES + ((chunk ^ (row & 7)) << 4));
}

/* Copies rows [at, at + ROWS) of one head, those from n on as zeros. base: row 0 of the sequence. */
template <int ROWS, int THREADS>
static __device__ inline void load_rows(
    uint32_t to, const bf16 *base, int64_t stride, int at, int n)
{
#pragma unroll
    for (int i = threadIdx.x; i < ROWS * (HEAD / 8); i += THREADS) {
        const int row = i / (HEAD / 8), chunk = i % (HEAD / 8), from = at + row;
        const bool there = from < n;
        ptx_copy(to + chunk_at<2 * HEAD>(row, chunk),
            base + (there ? from : 0) * stride + chunk * 8, there ? 16 : 0);
    }
}

/* Fragments from swizzled rows of BYTES bytes. A: rows [row, +16), columns [16*k, +16). */
template <int BYTES>
static __device__ inline void load_a(uint32_t r[4], uint32_t base, int row, int k)
{
    const int l = threadIdx.x % WARP;
    ptx_ldmatrix(r, base + chunk_at<BYTES>(row + l % 16, 2 * k + l / 16));
}

/* A of the transposed: rows (of A) = columns [col, +16) of memory, columns = rows [16*k, +16). */
template <int BYTES>
static __device__ inline void load_a_t(uint32_t r[4], uint32_t base, int col, int k)
{
    const int l = threadIdx.x % WARP;
    ptx_ldmatrix_t(r,
        base + chunk_at<BYTES>(16 * k + l % 8 + l / 16 * 8, col / 8 + l / 8 % 2));
}

/* B of 16 columns n = rows [row, +16) of memory, its 16 rows k = columns [16*k, +16): r[0..1] the
 * first 8 columns, r[2..3] the others. */
template <int BYTES>
static __device__ inline void load_b(uint32_t r[4], uint32_t base, int row, int k)
{
    const int l = threadIdx.x % WARP;
    ptx_ldmatrix(r, base + chunk_at<BYTES>(row + l % 8 + l / 16 * 8, 2 * k + l / 8 % 2));
}

/* B of 16 columns [col, +16) of memory, its 16 rows k = rows [16*k, +16). */
template <int BYTES>
static __device__ inline void load_b_t(uint32_t r[4], uint32_t base, int col, int k)
{
    const int l = threadIdx.x % WARP;
    ptx_ldmatrix_t(r, base + chunk_at<BYTES>(16 * k + l % 16, col / 8 + l / 16));
}

/* ---- tiles that matter, keys that are seen ---------------------------------------------------- */

/* The first tile of keys from j on, below `tiles`, of which a row of tile t sees one. */
static __device__ inline int next_keys(
    const struct fast &a, const struct tile &t, int j, int tiles)
{
    if (a.any == NULL)
        return j;
    for (; j < tiles; j++) {
        for (int row = t.at; row < t.at + t.rows; row += TILE) {
            if (a.any[(int64_t)(t.slot + row / TILE) * (a.words / 2) + j] != 0)
                return j;
        }
    }
    return j;
}

/* The first tile of rows from i on, below `tiles`, that sees a key of tile t. */
static __device__ inline int next_rows(
    const struct fast &a, const struct tile &t, int i, int tiles)
{
    if (a.any == NULL)
        return i;
    while (i < tiles
        && a.any[(int64_t)(t.slot + i) * (a.words / 2) + t.at / TILE] == 0)
        i++;
    return i;
}

/* Which of the 64 keys of tile j row `row` of its sequence sees: of its set, or all up to itself. */
static __device__ inline uint64_t seen_keys(
    const struct fast &a, const struct tile &t, int row, int j)
{
    const int ahead = row - j * TILE;

    if (row >= t.n || ahead < 0)
        return 0;
    if (a.bits != NULL)
        return *(const uint64_t *)(a.bits + (int64_t)(t.first + row) * a.words + 2 * j);
    return ahead >= TILE - 1 ? ~(uint64_t)0 : ((uint64_t)2 << ahead) - 1;
}

/* ---- softmax on accumulators ------------------------------------------------------------------ */

/* Rows l/4 (half 0) or l/4 + 8 (half 1) of a warp's 16 x 64 products q.k, in place to probabilities
 * against the new maximum; by how much the old sums shrink. most: the largest q.k so far. MASKED:
 * only the keys in `seen` count. */
template <bool MASKED>
static __device__ inline float online(
    float (&s)[32], int half, uint64_t seen, float scale2, float *most, float *sum)
{
    float top = *most, part = 0;

    seen >>= threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < 16; i++) {
        float &x = s[i / 2 * 4 + 2 * half + i % 2];
        if (MASKED && (seen >> (i / 2 * 8 + i % 2) & 1) == 0)
            x = -INFINITY;
        top = fmaxf(top, x);
    }
    top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFu, top, 1));
    top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFu, top, 2));
    const float base = MASKED && top == -INFINITY ? 0 : top * scale2;
    const float shrink = ptx_exp2(*most * scale2 - base);
#pragma unroll
    for (int i = 0; i < 16; i++) {
        float &x = s[i / 2 * 4 + 2 * half + i % 2];
        x = ptx_exp2(x * scale2 - base);
        part += x;
    }
    *most = top;
    *sum = *sum * shrink + part;
    return shrink;
}

/* Probabilities of a warp's 16 x 64 products as left operands: p[4*k ...] for keys [16*k, +16). */
static __device__ inline void pack(uint32_t (&p)[16], const float (&s)[32])
{
#pragma unroll
    for (int i = 0; i < 16; i++)
        p[i] = ptx_pack(s[2 * i], s[2 * i + 1]);
}

/* Divides by the sums and stores rows [row, +16) of the sequence, a warp's, with their lse. */
static __device__ inline void store_rows(const struct fast &a, const struct tile &t,
    int64_t head, int row, const float (&o)[128], const float most[2], const float sum[2])
{
    const int l = threadIdx.x % WARP;

#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int i = row + l / 4 + 8 * half;
        float all = sum[half];
        all += __shfl_xor_sync(0xFFFFFFFFu, all, 1);
        all += __shfl_xor_sync(0xFFFFFFFFu, all, 2);
        if (i >= t.n)
            continue;
        const int64_t at = (int64_t)(t.first + i) * a.N + head;
        const float part = 1 / all;
        if (l % 4 == 0)
            a.lse[at] = most[half] * a.scale + logf(all);
#pragma unroll
        for (int n = 0; n < 32; n++)
            *(uint32_t *)(a.o + at * HEAD + 8 * n + l % 4 * 2) =
                ptx_pack(o[4 * n + 2 * half] * part, o[4 * n + 2 * half + 1] * part);
    }
}

/* What backward needs of a warp's rows row + l/4 (+ 8): lse in base 2, delta, the keys seen. */
struct row_stats {
    float lse2[2], delta[2];
    uint64_t seen[2];
};

static __device__ inline struct row_stats stats_of(
    const struct fast &a, const struct tile &t, int64_t head, int row, int j)
{
    struct row_stats r;

#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int i = row + threadIdx.x % WARP / 4 + 8 * half;
        const int64_t at = (int64_t)(t.first + (i < t.n ? i : 0)) * a.N + head;
        r.lse2[half] = a.lse[at] * LOG2E;
        r.delta[half] = a.delta[at];
        r.seen[half] = seen_keys(a, t, i, j);
    }
    return r;
}

/* Products q.k and do.v of 16 rows x 8*G keys from key `col` of the tile on, in place to p and, but
 * for the factor `scale` that the sums get at their end, ds. */
template <int G, bool MASKED>
static __device__ inline void backward_of(
    float (&s)[4 * G], float (&d)[4 * G], const struct row_stats &r, int col, float scale2)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const uint64_t seen = MASKED ? r.seen[half] >> (col + threadIdx.x % 4 * 2) : 0;
        const float lse2 = r.lse2[half], delta = r.delta[half];
#pragma unroll
        for (int i = 0; i < 2 * G; i++) {
            float &x = s[i / 2 * 4 + 2 * half + i % 2], &y = d[i / 2 * 4 + 2 * half + i % 2];
            x = !MASKED || (seen >> (i / 2 * 8 + i % 2) & 1) != 0
                ? ptx_exp2(x * scale2 - lse2)
                : 0;
            y = x * (y - delta);
        }
    }
}

template <int G>
static __device__ inline void backward(float (&s)[4 * G], float (&d)[4 * G],
    const struct row_stats &r, int col, float scale)
{
    if (__all_sync(0xFFFFFFFFu, (r.seen[0] & r.seen[1]) == ~(uint64_t)0))
        backward_of<G, false>(s, d, r, col, scale * LOG2E);
    else
        backward_of<G, true>(s, d, r, col, scale * LOG2E);
}

/* ---- the host's part, in attention_mask.cu ---------------------------------------------------- */

/* Whether the operation has the shape of these paths. */
template <class P> static inline bool fast_serves(const P *p)
{
    return p->dtype == GLM_BF16 && p->Nk == p->N && p->Dq == HEAD && p->Dv == HEAD
        && p->scale > 0 && p->k_stride % 8 == 0 && p->v_stride % 8 == 0
        && (((uintptr_t)p->q | (uintptr_t)p->k | (uintptr_t)p->v | (uintptr_t)p->o) & 15)
        == 0
        && (p->T / TILE + p->S) * p->N < INT32_MAX;
}

/* Fills in the arguments and, with sets, queues the kernel that makes their bits. */
int fast_fwd_args(struct fast *a, const struct attention_fwd *p, glm_stream stream,
    struct glm_error *err);
/* Also queues delta = do.o. */
int fast_bwd_args(struct fast *a, const struct attention_bwd *p, glm_stream stream,
    struct glm_error *err);

/* Hopper's own instructions. */
int attention_tma_fwd(
    const struct attention_fwd *p, glm_stream stream, struct glm_error *err);
int attention_wgmma_bwd(
    const struct attention_bwd *p, glm_stream stream, struct glm_error *err);
/* Every card's. */
int attention_mma_fwd(
    const struct attention_fwd *p, glm_stream stream, struct glm_error *err);
int attention_mma_bwd(
    const struct attention_bwd *p, glm_stream stream, struct glm_error *err);

#endif
