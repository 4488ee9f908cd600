/* Attention forward, heads of 256 dimensions, by wgmma and Hopper's copy engine.
 *
 * A block has 128 rows: one thread fetches (Q once, K and V two tiles ahead), two warpgroups multiply
 * 64 rows each and meet nowhere, so that one's softmax runs beside the other's products. The products of
 * tile j+1 with Q and of tile j with P are queued together; the softmax of j+1 runs beside the second.
 * full: the tile lies there; empty: all warps have done with it.
 *
 * Shared memory would bound it: of each tile both warpgroups read Q and K (64 KiB each) and V (32), and
 * the tile itself is written (64), 2048 cycles at 128 bytes, and the tensor cores take 2048. So HELD of
 * Q's 16 steps along K stay in registers, fragments of the left side: 8 of them save 256 cycles.
 *
 * Rows of a tile behind a sequence's end are those of the next, or zeros behind the last: no row sees
 * them, or they are not stored. */
#include "kernels/cuda/attention_rows.cuh"
#include "kernels/cuda/tma.cuh"

enum { GROUP = 128, THREADS = 3 * GROUP, WARPS = 2 * GROUP / WARP, HELD = 8 };
enum { Q_PANEL = ROWS * 128, K_AT = ROWS * 2 * HEAD, V_AT = K_AT + 2 * KEY_TILE };
enum { BARRIERS_AT = V_AT + 2 * KEY_TILE, ROOM = BARRIERS_AT + 9 * 8 };

struct maps {
    struct tensor_map q, k, v;
};

#ifdef ATTENTION_WGMMA

/* Barriers: Q's, then K's and V's two stages, each full and empty. */
static __device__ inline uint32_t full_k(uint32_t bars, int stage)
{
    return bars + 8 + stage * 8;
}

static __device__ inline uint32_t empty_k(uint32_t bars, int stage)
{
    return bars + 24 + stage * 8;
}

static __device__ inline uint32_t full_v(uint32_t bars, int stage)
{
    return bars + 40 + stage * 8;
}

static __device__ inline uint32_t empty_v(uint32_t bars, int stage)
{
    return bars + 56 + stage * 8;
}

/* A tile of one head: panels of 64 columns, each one box. */
static __device__ inline void fetch(uint32_t to, const struct tensor_map *map, uint32_t full,
    int64_t head, int row, int panel_bytes)
{
    ptx_barrier_expect(full, HEAD / 64 * panel_bytes);
    for (int i = 0; i < HEAD / 64; i++)
        ptx_box_2d(to + (uint32_t)(i * panel_bytes), map, full, (int)head * HEAD + i * 64, row);
}

static __device__ inline void feed(const struct fast &a, const struct maps &maps,
    const struct tile &t, int64_t head, int tiles, uint32_t mem)
{
    const uint32_t bars = mem + BARRIERS_AT;

    fetch(mem, &maps.q, bars, head, t.first + t.at, Q_PANEL);
    for (int j = next_keys(a, t, 0, tiles), n = 0; j < tiles;
         j = next_keys(a, t, j + 1, tiles), n++) {
        const int stage = n % 2, parity = (n / 2 % 2) ^ 1, row = t.first + j * KEYS;
        const uint32_t at = (uint32_t)(stage * KEY_TILE);
        ptx_barrier_wait(empty_k(bars, stage), parity);
        fetch(mem + K_AT + at, &maps.k, full_k(bars, stage), head, row, PANEL);
        ptx_barrier_wait(empty_v(bars, stage), parity);
        fetch(mem + V_AT + at, &maps.v, full_v(bars, stage), head, row, PANEL);
    }
}

/* This warp has done with what the barrier guards. */
static __device__ inline void release(uint32_t bar)
{
    if (threadIdx.x % WARP == 0)
        ptx_barrier_arrive(bar);
}

/* s = Q K^T: the first HELD steps of Q from registers. q: of the warpgroup's rows. */
static __device__ inline void queue_scores(
    float (&s)[32], const uint32_t (&held)[4 * HELD], uint32_t q, uint32_t k)
{
#pragma unroll
    for (int i = 0; i < HEAD / 16; i++) {
        const uint64_t b = wgmma_k(k + (uint32_t)(i / 4 * PANEL + i % 4 * 32));
        if (i < HELD)
            ptx_wgmma_64_regs<0>(s, held + 4 * i, b, i > 0);
        else
            ptx_wgmma_64<0, 0>(
                s, wgmma_k(q + (uint32_t)(i / 4 * Q_PANEL + i % 4 * 32)), b, i > 0);
    }
    ptx_wgmma_commit();
}

static __device__ inline void rows_fwd(const struct fast &a, const struct tile &t,
    int64_t head, int tiles, uint32_t mem, int thread)
{
    const int group = thread / GROUP, warp_row = thread / WARP * 16;
    const int row = t.at + warp_row + thread % WARP / 4;
    const uint32_t bars = mem + BARRIERS_AT;
    const uint32_t q = mem + (uint32_t)(group * 64 * ROW_BYTES);
    const float scale2 = a.scale * LOG2E;
    float o[128], s[32], most[2] = {-INFINITY, -INFINITY}, sum[2] = {}, shrink[2];
    uint32_t p[16], held[4 * HELD];
    int j = next_keys(a, t, 0, tiles);

#pragma unroll
    for (int i = 0; i < 128; i++)
        o[i] = 0;
    uint64_t seen[2] = {seen_keys(a, t, row, j), seen_keys(a, t, row + 8, j)};
    ptx_barrier_wait(bars, 0);
#pragma unroll
    for (int i = 0; i < HELD; i++)
        load_a<ROW_BYTES>(held + 4 * i, mem + (uint32_t)(i / 4 * Q_PANEL), warp_row, i % 4);
    ptx_barrier_wait(full_k(bars, 0), 0);
    ptx_wgmma_begin();
    queue_scores(s, held, q, mem + K_AT);
    ptx_wgmma_wait<0>();
    ptx_hold(s);
    release(empty_k(bars, 0));
    softmax(s, seen, scale2, most, sum, shrink);
    pack(p, s);
    int n = 0; /* tiles done */
    for (j = next_keys(a, t, j + 1, tiles); j < tiles;
         j = next_keys(a, t, j + 1, tiles), n++) {
        const int stage = n % 2, next = stage ^ 1;
        seen[0] = seen_keys(a, t, row, j);
        seen[1] = seen_keys(a, t, row + 8, j);
        ptx_barrier_wait(full_k(bars, next), (n + 1) / 2 % 2);
        ptx_hold(o);
        ptx_wgmma_begin();
        queue_scores(s, held, q, mem + K_AT + (uint32_t)(next * KEY_TILE));
        ptx_barrier_wait(full_v(bars, stage), n / 2 % 2);
        add_product(o, p, mem + V_AT + (uint32_t)(stage * KEY_TILE));
        ptx_wgmma_commit();
        ptx_wgmma_wait<1>();
        ptx_hold(s);
        release(empty_k(bars, next));
        softmax(s, seen, scale2, most, sum, shrink);
        ptx_wgmma_wait<0>();
        ptx_hold(o);
        release(empty_v(bars, stage));
        shrink_rows(o, shrink);
        pack(p, s);
    }
    ptx_barrier_wait(full_v(bars, n % 2), n / 2 % 2);
    ptx_hold(o);
    ptx_wgmma_begin();
    add_product(o, p, mem + V_AT + (uint32_t)(n % 2 * KEY_TILE));
    ptx_wgmma_commit();
    ptx_wgmma_wait<0>();
    ptx_hold(o);
    store_rows(a, t, head, t.at + warp_row, o, most, sum);
}

static __global__ __launch_bounds__(THREADS, 1) void k_fwd(
    struct fast a, const __grid_constant__ struct maps maps, int slots)
{
    extern __shared__ __align__(1024) unsigned char room[];
    const struct place place = place_of(a, slots);
    const struct tile t = tile_of<ROWS>(a, slots - 1 - place.slot);
    if (t.rows == 0)
        return;
    const uint32_t mem = ptx_shared(room), bars = mem + BARRIERS_AT;
    const int tiles = (t.at + t.rows - 1) / KEYS + 1, thread = threadIdx.x;

    if (thread == 0) {
        ptx_barrier_init(bars, 1);
        for (int i = 0; i < 2; i++) {
            ptx_barrier_init(full_k(bars, i), 1);
            ptx_barrier_init(full_v(bars, i), 1);
            ptx_barrier_init(empty_k(bars, i), WARPS);
            ptx_barrier_init(empty_v(bars, i), WARPS);
        }
        ptx_barrier_fence();
    }
    __syncthreads();
    if (thread < GROUP) {
        ptx_registers_less<24>();
        if (thread == 0)
            feed(a, maps, t, place.head, tiles, mem);
    } else {
        ptx_registers_more<240>();
        rows_fwd(a, t, place.head, tiles, mem, thread - GROUP);
    }
}

#else
static __global__ void k_fwd(struct fast, const __grid_constant__ struct maps, int) {}
#endif

int attention_map(struct tensor_map *map, const void *base, int64_t T, int64_t N,
    int64_t stride, int rows, glm_stream s, struct glm_error *err)
{
    const int64_t size[] = {N * HEAD, T}, row[] = {stride * 2};
    const int box[] = {64, rows};

    return cuda_tensor_map(map, base, 2, size, row, box, s, err);
}

int attention_tma_fwd(
    const struct attention_fwd *p, glm_stream stream, struct glm_error *err)
{
    const int slots = tile_slots(p->T, p->S, ROWS);
    struct fast a;
    struct maps m = {};

    if (fast_fwd_args(&a, p, stream, err) != 0
        || attention_map(&m.q, p->q, p->T, p->N, p->N * HEAD, ROWS, stream, err) != 0
        || attention_map(&m.k, p->k, p->T, p->N, p->k_stride, KEYS, stream, err) != 0
        || attention_map(&m.v, p->v, p->T, p->N, p->v_stride, KEYS, stream, err) != 0)
        return (int)err->code;
    return LAUNCH(
        k_fwd, (unsigned)(slots * p->N), THREADS, ROOM, stream, err, a, m, slots);
}
