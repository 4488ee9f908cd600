/* Products of groups in BF16 on Hopper's tensor cores.
 *
 * A block keeps a multiprocessor to itself and makes tiles of 128 x 256: one thread feeds STAGES steps
 * of 64 along K through the copy engine, two warpgroups multiply 64 x 256 each, their sums in 128
 * registers a thread. Warpgroups meet only through barriers in shared memory: full[i], the step lies
 * there; empty[i], all warps have done with it. The feeder runs ahead into the next tile while the
 * others store one.
 *
 * A step in shared memory, panels of 128-byte rows with 128-byte swizzle (wgmma.cuh):
 *
 *     K along the rows  (A of NT, NN; B of NT)     [128 or 256 outer][64 k]       one panel
 *     else              (A of TN; B of NN, TN)     [64 k][64 outer]               2 or 4 panels
 *
 * Rows of A behind a group's end belong to the next: they are computed and not stored. In TN they
 * would be added, so the last step's are overwritten with zeros. What is outside the arrays arrives as
 * zeros.
 *
 * Pairs: two blocks of a cluster make two tiles that share B (or A, grouped.cuh); each fetches half of
 * what is shared and sends it to both. Then `empty` counts the warps of both blocks.
 *
 * One block per tile, K ascending in steps of 16 inside the tensor core: bits depend on the tile's own
 * rows alone. FLOPs bound it: 128 x 256 x 64 need 1024 cycles, and 48 KiB from the second-level
 * cache, 32 in pairs. */
#include "kernels/cuda/grouped.cuh"
#include "kernels/cuda/tma.cuh"
#include "kernels/cuda/wgmma_256.cuh"

#ifdef CUDA_EMULATED
enum { STAGES = 2 }; /* so that a pair's memory fits one block's */
#else
enum { STAGES = 4 };
#endif

enum {
    ROWS = 128,
    COLS = 256,
    STEP = 64,
    PANEL = 64,       /* elements of a row of a panel */
    PANEL_ROW = 128,  /* its bytes */
    PANEL_BYTES = STEP * PANEL_ROW, /* of 64 rows */
    A_BYTES = ROWS * STEP * 2,
    B_BYTES = COLS * STEP * 2,
    STAGE_BYTES = A_BYTES + B_BYTES,
    GROUP = 128, /* threads of a warpgroup */
    THREADS = 3 * GROUP,
    MULTIPLIERS = 2 * GROUP,
    SLAB_BYTES = 16 * PANEL_ROW, /* of each warp, for stores */
    ALIGN = 1024
};

enum {
    SLABS_AT = STAGES * STAGE_BYTES,
    BARRIERS_AT = SLABS_AT + MULTIPLIERS / WARP * SLAB_BYTES,
    START_AT = BARRIERS_AT + 2 * STAGES * 8
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(CUDA_EMULATED)
#define HOPPER /* elsewhere the kernels are empty and not called */

/* Shared memory, from a multiple of ALIGN on. */
struct room {
    uint32_t stage, full, empty;
    char *slab;
    int *start;
    struct ptx_pair pair;
};

#ifdef CUDA_EMULATED /* a pair is one block */
#define PAIR_ROOM(groups) ((START_AT + ((groups) + 1) * 4 + ALIGN - 1) / ALIGN * ALIGN)
enum { PAIR_BLOCKS = 1 };
#else
#define PAIR_ROOM(groups) 0
enum { PAIR_BLOCKS = 2 };
#endif

static __device__ inline struct room room_of(char *memory, int rank, int groups)
{
    char *const at =
        memory + (ALIGN - ptx_shared(memory) % ALIGN) % ALIGN + rank * PAIR_ROOM(groups);
    const uint32_t base = ptx_shared(at);
    return (struct room){base, base + BARRIERS_AT, base + BARRIERS_AT + STAGES * 8,
        at + SLABS_AT, (int *)(at + START_AT), {rank, PAIR_ROOM(groups)}};
}

/* Where the ring is: step number `at` of all that the block has seen. */
struct turn {
    int stage, parity;
};

static __device__ inline void turn_next(struct turn *t)
{
    if (++t->stage == STAGES) {
        t->stage = 0;
        t->parity ^= 1;
    }
}

/* Length of the sum of a tile. */
template <int KIND>
static __device__ inline int sum_length(const struct grouped_gemm *p, const struct group_tile *t)
{
    return KIND == GROUP_TN ? t->end - t->begin : (int)p->K;
}

/* ---- the feeder ------------------------------------------------------------------------------- */

/* One box of a step; `both`: to both blocks of the pair. */
static __device__ inline void box_2d(const struct room *m, uint32_t to,
    const struct tensor_map *map, uint32_t full, int x, int y, bool both)
{
    if (both)
        ptx_box_2d_both(to, map, full, x, y, m->pair);
    else
        ptx_box_2d(to, map, full, x, y);
}

static __device__ inline void box_3d(const struct room *m, uint32_t to,
    const struct tensor_map *map, uint32_t full, int x, int y, int z, bool both)
{
    if (both)
        ptx_box_3d_both(to, map, full, x, y, z, m->pair);
    else
        ptx_box_3d(to, map, full, x, y, z);
}

/* Half h of A: 64 outer. */
template <int KIND>
static __device__ inline void feed_a(const struct room *m, const struct group_tile *t,
    const struct tensor_map *a, uint32_t to, uint32_t full, int k, int h, bool both)
{
    const int outer = t->row + h * PANEL;

    if (KIND == GROUP_TN)
        box_2d(m, to + h * PANEL_BYTES, a, full, outer, t->begin + k, both);
    else
        box_2d(m, to + h * PANEL_BYTES, a, full, k, outer, both);
}

/* Half h of B: 128 outer. */
template <int KIND>
static __device__ inline void feed_b(const struct room *m, const struct group_tile *t,
    const struct tensor_map *b, uint32_t to, uint32_t full, int k, int h, bool both)
{
    to += A_BYTES + h * (B_BYTES / 2);
    if (KIND == GROUP_NT)
        box_3d(m, to, b, full, k, t->col + h * (COLS / 2), t->g, both);
    for (int i = 0; KIND != GROUP_NT && i < COLS / 2 / PANEL; i++) {
        const int outer = t->col + h * (COLS / 2) + i * PANEL;
        if (KIND == GROUP_NN)
            box_3d(m, to + i * PANEL_BYTES, b, full, outer, k, t->g, both);
        else
            box_2d(m, to + i * PANEL_BYTES, b, full, outer, t->begin + k, both);
    }
}

/* Where C is added to: part `i` of `parts` of the tile's rows of C into the second-level cache, while
 * the others multiply. */
static __device__ inline void feed_c(
    const struct grouped_gemm *p, const struct group_tile *t, int i, int parts)
{
    const int size = p->c_type == GLM_BF16 ? 2 : 4, each = (ROWS + parts - 1) / parts;
    const int left = (int)group_cols(p) - t->col, cols = left < COLS ? left : COLS;
    const int first = t->row + i * each;

    for (int r = first; r < first + each && r < t->row + ROWS && r < t->row_end && cols > 0; r++)
        ptx_prefetch((const char *)p->c + (group_row_at(p, t, r) + t->col) * size,
            cols * size);
}

template <int KIND, bool PAIR>
static __device__ void feed(const struct grouped_gemm *p, const struct tensor_map *a,
    const struct tensor_map *b, const struct room *m, const struct group_cut *cut)
{
    const int tiles = m->start[p->G], rank = m->pair.mine, step = PAIR ? PAIR_BLOCKS : 1;
    const bool ahead = p->accumulate && group_cols(p) % 8 == 0 && (uintptr_t)p->c % 16 == 0;
    struct turn turn = {0, 0};

    ptx_map_prefetch(a);
    ptx_map_prefetch(b);
    for (int i = blockIdx.x / step; i < tiles; i += gridDim.x / step) {
        const struct group_tile t = group_tile_at(m->start, p, cut, i, rank);
        const int length = sum_length<KIND>(p, &t);
        for (int k = 0; k < length; k += STEP) {
            const uint32_t full = m->full + turn.stage * 8;
            const uint32_t to = m->stage + turn.stage * STAGE_BYTES;
            ptx_barrier_wait(m->empty + turn.stage * 8, turn.parity ^ 1);
            ptx_barrier_expect(full, STAGE_BYTES);
            for (int h = 0; h < 2; h++) {
                if (!PAIR || !t.beside || h == rank)
                    feed_a<KIND>(m, &t, a, to, full, k, h, PAIR && t.beside);
                if (!PAIR || t.beside || h == rank)
                    feed_b<KIND>(m, &t, b, to, full, k, h, PAIR && !t.beside);
            }
            if (ahead)
                feed_c(p, &t, k / STEP, (length + STEP - 1) / STEP);
            turn_next(&turn);
        }
    }
}

/* ---- the multipliers -------------------------------------------------------------------------- */

/* Rows [valid, STEP) of this warpgroup's panel of A and of its half of B's become zeros. */
static __device__ void clear_tail(char *stage, int group, int valid, int rank)
{
    const int thread = threadIdx.x % GROUP, chunks = (STEP - valid) * PANEL_ROW / 16;
    char *const panel[3] = {stage + group * PANEL_BYTES,
        stage + A_BYTES + 2 * group * PANEL_BYTES,
        stage + A_BYTES + (2 * group + 1) * PANEL_BYTES};

    for (int i = 0; i < 3; i++)
        for (int c = thread; c < chunks; c += GROUP)
            *(uint4 *)(panel[i] + valid * PANEL_ROW + c * 16) = make_uint4(0, 0, 0, 0);
    ptx_shared_to_async();
    ptx_meet(1 + rank, MULTIPLIERS);
}

template <int KIND>
static __device__ inline void multiply(float (&d)[128], uint32_t stage, int group, bool more)
{
    const uint32_t a = stage + group * (ROWS / 2 * PANEL_ROW), b = stage + A_BYTES;
    enum { A_MN = KIND == GROUP_TN, B_MN = KIND != GROUP_NT, TALL = 16 * PANEL_ROW };

    ptx_wgmma_begin();
#pragma unroll
    for (int k = 0; k < STEP / 16; k++) {
        const uint64_t da = A_MN ? wgmma_mn(a + k * TALL, PANEL_BYTES) : wgmma_k(a + k * 32);
        const uint64_t db = B_MN ? wgmma_mn(b + k * TALL, PANEL_BYTES) : wgmma_k(b + k * 32);
        ptx_wgmma_256<A_MN, B_MN>(d, da, db, more || k > 0);
    }
    ptx_wgmma_commit();
}

/* ---- storing ---------------------------------------------------------------------------------- */

/* Pairs from registers, as they are: 32 whole bytes of a row in F32. */
template <class C>
static __device__ void store_pairs(const struct grouped_gemm *p, const struct group_tile *t,
    const float (&d)[128], int group)
{
    const int lane = threadIdx.x % WARP, warp = threadIdx.x % GROUP / WARP;
    const int cols = (int)group_cols(p);
    const bool pairs = group_pairs<C>(p);

#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int r = t->row + group * 64 + warp * 16 + half * 8 + lane / 4;
        if (r >= t->row_end)
            continue;
        C *const out = (C *)p->c + group_row_at(p, t, r);
#pragma unroll
        for (int j = 0; j < COLS / 8; j++) {
            const int at = t->col + j * 8 + lane % 4 * 2;
            if (at < cols)
                group_store(out + at, d[4 * j + 2 * half], d[4 * j + 2 * half + 1],
                    at + 1 < cols, pairs, p->accumulate);
        }
    }
}

/* The same of F32 whose pairs are aligned; where C is added to, 32 loads are under way together. */
static __device__ void store_wide(const struct grouped_gemm *p, const struct group_tile *t,
    const float (&d)[128], int group)
{
    enum { BATCH = 32 };
    const int lane = threadIdx.x % WARP, warp = threadIdx.x % GROUP / WARP;
    const int cols = (int)group_cols(p);

#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int r = t->row + group * 64 + warp * 16 + half * 8 + lane / 4;
        if (r >= t->row_end)
            continue;
        float *const out = (float *)p->c + group_row_at(p, t, r) + t->col + lane % 4 * 2;
        const int left = cols - t->col - lane % 4 * 2;
#pragma unroll
        for (int j0 = 0; j0 < COLS / 8; j0 += BATCH) {
            float2 was[BATCH];
#pragma unroll
            for (int j = 0; j < BATCH; j++)
                was[j] = p->accumulate && (j0 + j) * 8 < left
                    ? *(const float2 *)(out + (j0 + j) * 8)
                    : make_float2(0, 0);
#pragma unroll
            for (int j = 0; j < BATCH; j++) {
                const float *x = &d[4 * (j0 + j) + 2 * half];
                if ((j0 + j) * 8 < left)
                    *(float2 *)(out + (j0 + j) * 8) =
                        make_float2(was[j].x + x[0], was[j].y + x[1]);
            }
        }
    }
}

/* BF16 in 16-byte pieces: each warp turns 16 x 64 at a time in its slab (rows of 128 bytes, chunk c of
 * row r at c ^ (r & 7)), so that 8 lanes write 128 bytes of a row. */
static __device__ void store_slabs(const struct grouped_gemm *p, const struct group_tile *t,
    const float (&d)[128], int group, char *slab)
{
    const int lane = threadIdx.x % WARP, warp = threadIdx.x % GROUP / WARP;
    const int row = t->row + group * 64 + warp * 16, cols = (int)group_cols(p);
    const int chunk = lane % 8;

#pragma unroll
    for (int q = 0; q < COLS / 64; q++) {
        const int col = t->col + q * 64 + chunk * 8;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int r = i * 4 + lane / 8;
            if (p->accumulate && row + r < t->row_end && col < cols)
                *(uint4 *)(slab + r * PANEL_ROW + (chunk ^ (r & 7)) * 16) =
                    *(const uint4 *)((const bf16 *)p->c + group_row_at(p, t, row + r) + col);
        }
        __syncwarp();
#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int r = half * 8 + lane / 4;
                uint32_t *const at = (uint32_t *)(slab + r * PANEL_ROW + (j ^ (r & 7)) * 16
                    + lane % 4 * 4);
                float x = d[q * 32 + j * 4 + half * 2], y = d[q * 32 + j * 4 + half * 2 + 1];
                if (p->accumulate) {
                    x += __uint_as_float(*at << 16);
                    y += __uint_as_float(*at & 0xFFFF0000u);
                }
                *at = ptx_pack(x, y);
            }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int r = i * 4 + lane / 8;
            if (row + r < t->row_end && col < cols)
                *(uint4 *)((bf16 *)p->c + group_row_at(p, t, row + r) + col) =
                    *(const uint4 *)(slab + r * PANEL_ROW + (chunk ^ (r & 7)) * 16);
        }
        __syncwarp();
    }
}

template <class C>
static __device__ inline void store(const struct grouped_gemm *p, const struct group_tile *t,
    const float (&d)[128], int group, char *slab)
{
    const int cols = (int)group_cols(p);

    if (sizeof(C) == 2 && cols % 8 == 0 && (uintptr_t)p->c % 16 == 0)
        store_slabs(p, t, d, group, slab);
    else if (sizeof(C) == 4 && group_pairs<C>(p))
        store_wide(p, t, d, group);
    else
        store_pairs<C>(p, t, d, group);
}

/* ---- the kernel ------------------------------------------------------------------------------- */

/* This warp has done with a stage. */
template <bool PAIR> static __device__ inline void release(const struct room *m, int stage, int lane)
{
    if (!PAIR && lane == 0)
        ptx_barrier_arrive(m->empty + stage * 8);
    if (PAIR && lane < 2)
        ptx_barrier_arrive_at(m->empty + stage * 8, lane, m->pair);
}

/* thread: of the multipliers' 256. */
template <int KIND, bool PAIR, class C>
static __device__ void work(const struct grouped_gemm *p, const struct room *m, char *stages,
    const struct group_cut *cut, int thread)
{
    const int group = thread / GROUP, lane = thread % WARP, step = PAIR ? PAIR_BLOCKS : 1;
    const int tiles = m->start[p->G], rank = m->pair.mine;
    char *const slab = m->slab + thread / WARP * SLAB_BYTES;
    struct turn turn = {0, 0};

    for (int i = blockIdx.x / step; i < tiles; i += gridDim.x / step) {
        const struct group_tile t = group_tile_at(m->start, p, cut, i, rank);
        const int length = sum_length<KIND>(p, &t);
        float d[128];
        int last = -1; /* stage of the step before */

        if (length == 0) {
            const float zeros[128] = {};
            if (!p->accumulate)
                store<C>(p, &t, zeros, group, slab);
            continue;
        }
        for (int k = 0; k < length; k += STEP) {
            ptx_barrier_wait(m->full + turn.stage * 8, turn.parity);
            if (KIND == GROUP_TN && length - k < STEP)
                clear_tail(stages + turn.stage * STAGE_BYTES, group, length - k, rank);
            multiply<KIND>(d, m->stage + turn.stage * STAGE_BYTES, group, k > 0);
            ptx_wgmma_wait<1>();
            if (last >= 0)
                release<PAIR>(m, last, lane);
            last = turn.stage;
            turn_next(&turn);
        }
        ptx_wgmma_wait<0>();
        ptx_hold(d);
        release<PAIR>(m, last, lane);
        store<C>(p, &t, d, group, slab);
    }
}

template <int KIND, bool PAIR, class C>
static __device__ inline void body(const struct grouped_gemm *p, const struct tensor_map *a,
    const struct tensor_map *b, char *memory)
{
    const int rank = PAIR ? ptx_rank() : 0, thread = threadIdx.x % THREADS;
    const struct room m = room_of(memory, rank, (int)p->G);
    const struct group_cut cut = {ROWS, COLS, (int)((group_cols(p) + COLS - 1) / COLS), PAIR};

    if (thread < WARP)
        group_scan(m.start, p, &cut, thread);
    if (thread == 0) {
        for (int i = 0; i < STAGES; i++) {
            ptx_barrier_init(m.full + i * 8, 1);
            ptx_barrier_init(m.empty + i * 8, (PAIR ? 2 : 1) * MULTIPLIERS / WARP);
        }
        ptx_barrier_fence();
    }
    if (PAIR)
        ptx_cluster_sync();
    __syncthreads();
    if (thread < GROUP) {
        ptx_registers_less<40>();
        if (thread == 0)
            feed<KIND, PAIR>(p, a, b, &m, &cut);
    } else {
        ptx_registers_more<232>();
        work<KIND, PAIR, C>(p, &m, m.slab - SLABS_AT, &cut, thread - GROUP);
    }
    if (PAIR) /* no block leaves while the other may write into it */
        ptx_cluster_sync();
}

#endif /* HOPPER */

template <int KIND, class C>
static __global__ void __launch_bounds__(THREADS, 1) k_wgmma(struct grouped_gemm p,
    const __grid_constant__ struct tensor_map a, const __grid_constant__ struct tensor_map b)
{
#ifdef HOPPER
    extern __shared__ char memory[];
    body<KIND, false, C>(&p, &a, &b, memory);
#endif
}

template <int KIND, class C>
static __global__ void __cluster_dims__(2) __launch_bounds__(THREADS, 1) k_pair(struct grouped_gemm p,
    const __grid_constant__ struct tensor_map a, const __grid_constant__ struct tensor_map b)
{
#ifdef HOPPER
    extern __shared__ char memory[];
    body<KIND, true, C>(&p, &a, &b, memory);
#endif
}

/* ---- queueing --------------------------------------------------------------------------------- */

static int maps(const struct grouped_gemm *p, struct tensor_map *a, struct tensor_map *b,
    glm_stream s, struct glm_error *err)
{
    const bool tn = p->kind == GROUP_TN, nt = p->kind == GROUP_NT;
    const int64_t a_size[] = {tn ? p->N : p->K, p->rows}, a_row[] = {a_size[0] * 2};
    const int a_box[] = {STEP, PANEL};
    const int64_t b_width = p->kind == GROUP_NN ? p->N : p->K;
    const int64_t b_size[] = {b_width, tn ? p->rows : nt ? p->N : p->K, p->G};
    const int64_t b_row[] = {b_width * 2, b_width * b_size[1] * 2};
    const int b_box[] = {STEP, nt ? COLS / 2 : STEP, 1};

    if (cuda_tensor_map(a, p->a, 2, a_size, a_row, a_box, s, err) != 0)
        return err->code;
    return cuda_tensor_map(b, p->b, tn ? 2 : 3, b_size, b_row, b_box, s, err);
}

template <int KIND>
static int launch(const struct grouped_gemm *p, glm_stream s, struct glm_error *err)
{
    const int64_t room = ALIGN + START_AT + (p->G + 1) * (int64_t)sizeof(int);
    struct tensor_map a, b;

    if (maps(p, &a, &b, s, err) != 0)
        return err->code;
    if (s->grouped != CUDA_GROUPED_PAIR)
        return BY_TYPE(p->c_type, C,
            LAUNCH((k_wgmma<KIND, C>), s->processors, THREADS, room, s, err, *p, a, b));
#ifdef CUDA_EMULATED
    const int64_t rooms = ALIGN + 2 * PAIR_ROOM(p->G);
    return BY_TYPE(p->c_type, C,
        LAUNCH((k_pair<KIND, C>), s->processors, 2 * THREADS, rooms, s, err, *p, a, b));
#else
    return BY_TYPE(p->c_type, C,
        LAUNCH((k_pair<KIND, C>), s->processors / 2 * 2, THREADS, room, s, err, *p, a, b));
#endif
}

extern "C" int cuda_grouped_wgmma(
    const struct grouped_gemm *p, glm_stream s, struct glm_error *err)
{
    return p->kind == GROUP_NT ? launch<GROUP_NT>(p, s, err)
        : p->kind == GROUP_NN  ? launch<GROUP_NN>(p, s, err)
                               : launch<GROUP_TN>(p, s, err);
}
