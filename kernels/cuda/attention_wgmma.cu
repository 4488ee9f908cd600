/* Attention of 256-dimensional heads backward by wgmma (Hopper). Work is cut as in attention_mma.cu, but
 * for dq, where a block has 128 rows; two warpgroups a block.
 *
 * dk, dv: the warpgroups share the keys for P and dS (32 each, written to shared memory in BF16), and
 * the columns for dv += P^T dO, dk += dS^T Q (128 each), which run on while the copy engine fetches the
 * next rows. dq: a warpgroup has 64 rows; dS stays in registers as the left operand of dS K.
 *
 * Where dS fits in scratch memory k_dkv leaves it there and dq is one product of it (k_dq_kept), five
 * products in all; else k_dq computes it again.
 *
 * The floor is 7/5 of the products at the tensor cores' rate; with tiles of 64 keys shared memory
 * serves Q K^T just as fast as they take it. */
#include "kernels/cuda/attention_rows.cuh"
#include "kernels/cuda/tma.cuh"
#include "kernels/cuda/wgmma_256.cuh"

enum { THREADS = 256 };
enum { P_TILE = TILE * 128 };

/* Where a block of k_dkv keeps its tiles: keys, two stages of rows, P and dS. */
enum { V_AT = KEY_TILE, Q_AT = 2 * KEY_TILE, DO_AT = 4 * KEY_TILE };
enum { P_AT = 6 * KEY_TILE, DS_AT = P_AT + P_TILE, FULL_AT = DS_AT + P_TILE };
enum { KEYS_FULL_AT = FULL_AT + 2 * 8, DKV_BYTES = KEYS_FULL_AT + 8 };

/* Q, K, V and dO for the copy engine. */
struct maps {
    struct tensor_map q, k, v, do_;
};

/* Of k_dq_kept: keys and two tiles of dS a stage. */
enum { STAGES = 4, STAGE = KEY_TILE + 2 * P_TILE };

#ifdef ATTENTION_WGMMA

/* As load_rows, into panels of 64 columns: what wgmma reads. A thread stays in one chunk of rows
 * THREADS/32 apart. */
template <int R>
static __device__ inline void load_panels(
    uint32_t to, const bf16 *base, int64_t stride, int at, int n)
{
    const int chunk = threadIdx.x % 32, row = threadIdx.x / 32;
    const bf16 *from = base + (at + row) * stride + chunk * 8;

    to += (uint32_t)(chunk / 8 * R * ROW_BYTES) + chunk_at<ROW_BYTES>(row, chunk % 8);
    if (at + R <= n) {
#pragma unroll
        for (int i = 0; i < R; i += THREADS / 32)
            ptx_copy(to + (uint32_t)(i * ROW_BYTES), from + i * stride, 16);
        return;
    }
#pragma unroll
    for (int i = 0; i < R; i += THREADS / 32) {
        const bool there = at + row + i < n;
        ptx_copy(to + (uint32_t)(i * ROW_BYTES), there ? from + i * stride : base,
            there ? 16 : 0);
    }
}

/* s = rows of A times rows of B, both panels along K: A's of RA rows a panel, B's of RB. */
template <int RA, int RB>
static __device__ inline void products(float (&s)[32], uint32_t a, uint32_t b)
{
#pragma unroll
    for (int k = 0; k < HEAD / 16; k++)
        ptx_wgmma_64<0, 0>(s, wgmma_k(a + k / 4 * RA * ROW_BYTES + k % 4 * 32),
            wgmma_k(b + k / 4 * RB * ROW_BYTES + k % 4 * 32), k > 0);
}

/* ---- backward: dk, dv ------------------------------------------------------------------------- */

/* s = 64 rows of A times rows [col, +32) of B. */
static __device__ inline void half_products(
    float (&s)[16], uint32_t a, uint32_t b, int col)
{
    b += (uint32_t)(col * ROW_BYTES);
#pragma unroll
    for (int k = 0; k < HEAD / 16; k++)
        ptx_wgmma_32<0, 0>(s, wgmma_k(a + k / 4 * PANEL + k % 4 * 32),
            wgmma_k(b + k / 4 * PANEL + k % 4 * 32), k > 0);
}

/* x += P, transposed, times 128 columns from panel 2*group on. */
static __device__ inline void add_keys(
    float (&x)[64], uint32_t p, uint32_t rows, int group)
{
    rows += (uint32_t)(2 * group * PANEL);
#pragma unroll
    for (int k = 0; k < TILE / 16; k++)
        ptx_wgmma_128<1, 1>(x, wgmma_mn(p + k * 16 * ROW_BYTES, PANEL),
            wgmma_mn(rows + k * 16 * ROW_BYTES, PANEL), 1);
}

/* A warp's 16 keys x 128 columns, times `by`. */
static __device__ inline void store_keys(float *to, const struct fast &a,
    const struct tile &t, int64_t head, int key, int col, const float (&x)[64], float by)
{
    const int l = threadIdx.x % WARP;

#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int i = t.at + key + l / 4 + 8 * half;
        if (i >= t.n)
            continue;
        float *row = to + ((int64_t)(t.first + i) * a.N + head) * HEAD + col + l % 4 * 2;
#pragma unroll
        for (int n = 0; n < 16; n++)
            *(float2 *)(row + 8 * n) =
                make_float2(x[4 * n + 2 * half] * by, x[4 * n + 2 * half + 1] * by);
    }
}

/* Queues the products of the stage's rows with the group's 32 keys. */
static __device__ inline void queue_products(
    float (&s)[16], float (&d)[16], uint32_t mem, int stage, int group)
{
    const uint32_t rows = mem + (uint32_t)(stage * KEY_TILE);

    ptx_wgmma_begin();
    half_products(s, rows + Q_AT, mem, 32 * group);
    half_products(d, rows + DO_AT, mem + V_AT, 32 * group);
    ptx_wgmma_commit();
}

/* Queues dv += P^T dO, dk += dS^T Q of the stage's rows and the group's 128 columns. */
static __device__ inline void queue_sums(
    float (&dk)[64], float (&dv)[64], uint32_t mem, int stage, int group)
{
    const uint32_t rows = mem + (uint32_t)(stage * KEY_TILE);

    ptx_wgmma_begin();
    add_keys(dv, mem + P_AT, rows + DO_AT, group);
    add_keys(dk, mem + DS_AT, rows + Q_AT, group);
    ptx_wgmma_commit();
}

/* Products to P and dS in shared memory, for everybody to see. */
static __device__ inline void store_probabilities(float (&s)[16], float (&d)[16],
    const struct row_stats &r, unsigned char *room, int row, int group, float scale)
{
    backward<4>(s, d, r, 32 * group, scale);
    store_tile(room + P_AT, row, 32 * group, s);
    store_tile(room + DS_AT, row, 32 * group, d);
    ptx_shared_to_async();
    __syncthreads();
}

/* The tile of dS as it lies in shared memory, for k_dq_kept. */
static __device__ inline void keep_ds(const struct fast &a, const struct tile &t,
    int64_t head, int i, int j, const unsigned char *room)
{
    if (a.ds == NULL)
        return;
    uint4 *to = (uint4 *)ds_tile(a, head, t.slot + i, j) + threadIdx.x;
    const uint4 *from = (const uint4 *)(room + DS_AT) + threadIdx.x;
#pragma unroll
    for (int e = 0; e < P_TILE / 16; e += THREADS)
        to[e] = from[e];
}

/* 64 rows of one head by the copy engine. */
static __device__ inline void fetch_tile(
    uint32_t to, const struct tensor_map *map, uint32_t full, int64_t head, int row)
{
    for (int i = 0; i < HEAD / 64; i++)
        ptx_box_2d(to + (uint32_t)(i * PANEL), map, full, (int)head * HEAD + i * 64, row);
}

/* Asks for rows i of Q and dO to a stage: one thread's boxes, which report to full[stage]. Behind the
 * last row they have the next sequence's: their P is 0. */
static __device__ inline void ask_rows(const struct maps &m, const struct tile &t, int64_t head,
    int i, uint32_t mem, int stage)
{
    const uint32_t full = mem + FULL_AT + (uint32_t)stage * 8;

    if (threadIdx.x != 0)
        return;
    ptx_barrier_expect(full, 2 * KEY_TILE);
    fetch_tile(
        mem + Q_AT + (uint32_t)(stage * KEY_TILE), &m.q, full, head, t.first + i * TILE);
    fetch_tile(
        mem + DO_AT + (uint32_t)(stage * KEY_TILE), &m.do_, full, head, t.first + i * TILE);
}

static __device__ inline void ask_keys(
    const struct maps &m, const struct tile &t, int64_t head, uint32_t mem)
{
    if (threadIdx.x != 0)
        return;
    for (int i = 0; i < 3; i++)
        ptx_barrier_init(mem + FULL_AT + i * 8, 1);
    ptx_barrier_fence();
    ptx_barrier_expect(mem + KEYS_FULL_AT, 2 * KEY_TILE);
    fetch_tile(mem, &m.k, mem + KEYS_FULL_AT, head, t.first + t.at);
    fetch_tile(mem + V_AT, &m.v, mem + KEYS_FULL_AT, head, t.first + t.at);
}

/* Until what was asked for to the stage is there; n: of the tiles of rows so far. */
static __device__ inline void await_rows(uint32_t mem, int stage, int n)
{
    ptx_barrier_wait(mem + FULL_AT + (uint32_t)stage * 8, n / 2 % 2);
}

static __global__ __launch_bounds__(THREADS, 1) void k_dkv(
    struct fast a, int slots, const __grid_constant__ struct maps m)
{
    extern __shared__ __align__(1024) unsigned char room[];
    const struct place place = place_of(a, slots);
    const int64_t head = place.head;
    const struct tile t = tile_of<KEYS>(a, place.slot);
    if (t.rows == 0)
        return;
    const uint32_t mem = ptx_shared(room);
    const int group = threadIdx.x / 128, row = threadIdx.x / WARP % 4 * 16;
    const int j = t.at / KEYS, tiles = (t.n + TILE - 1) / TILE;
    float dk[64], dv[64], s[16], d[16];
    int i = next_rows(a, t, j, tiles), next = next_rows(a, t, i + 1, tiles), stage = 0;

#pragma unroll
    for (int e = 0; e < 64; e++)
        dk[e] = dv[e] = 0;
    if (i < tiles) { /* a set may leave these keys to nobody */
        struct row_stats r = stats_of(a, t, head, i * TILE + row, j);
        ask_keys(m, t, head, mem);
        ask_rows(m, t, head, i, mem, 0);
        __syncthreads(); /* the barriers are there */
        ptx_barrier_wait(mem + KEYS_FULL_AT, 0);
        await_rows(mem, 0, 0);
        queue_products(s, d, mem, 0, group);
        if (next < tiles)
            ask_rows(m, t, head, next, mem, 1);
        ptx_wgmma_wait<0>();
        ptx_hold(s);
        ptx_hold(d);
        store_probabilities(s, d, r, room, row, group, a.scale);
        keep_ds(a, t, head, i, j, room);
        for (int n = 1; next < tiles; n++) { /* the sums of i run while next arrives */
            const int after = next_rows(a, t, next + 1, tiles);
            r = stats_of(a, t, head, next * TILE + row, j);
            ptx_hold(dk);
            ptx_hold(dv);
            queue_sums(dk, dv, mem, stage, group);
            await_rows(mem, stage ^ 1, n);
            queue_products(s, d, mem, stage ^ 1, group);
            ptx_wgmma_wait<1>();
            ptx_hold(dk);
            ptx_hold(dv);
            __syncthreads(); /* nobody reads the rows of i, P or dS any more */
            if (after < tiles)
                ask_rows(m, t, head, after, mem, stage);
            ptx_wgmma_wait<0>();
            ptx_hold(s);
            ptx_hold(d);
            store_probabilities(s, d, r, room, row, group, a.scale);
            keep_ds(a, t, head, next, j, room);
            i = next;
            next = after;
            stage ^= 1;
        }
        ptx_hold(dk);
        ptx_hold(dv);
        queue_sums(dk, dv, mem, stage, group);
        ptx_wgmma_wait<0>();
        ptx_hold(dk);
        ptx_hold(dv);
    }
    store_keys(a.dk, a, t, head, row, 128 * group, dk, a.scale);
    store_keys(a.dv, a, t, head, row, 128 * group, dv, 1);
}

/* ---- backward: dq ----------------------------------------------------------------------------- */

static __device__ inline void store_dq(const struct fast &a, const struct tile &t,
    int64_t head, int row, const float (&dq)[128])
{
    const int l = threadIdx.x % WARP;

#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int i = row + l / 4 + 8 * half;
        if (i >= t.n)
            continue;
        bf16 *to = a.dq + ((int64_t)(t.first + i) * a.N + head) * HEAD + l % 4 * 2;
#pragma unroll
        for (int n = 0; n < 32; n++)
            *(uint32_t *)(to + 8 * n) = ptx_pack(
                dq[4 * n + 2 * half] * a.scale, dq[4 * n + 2 * half + 1] * a.scale);
    }
}

static __global__ __launch_bounds__(THREADS, 1) void k_dq(struct fast a, int slots)
{
    extern __shared__ __align__(1024) unsigned char room[];
    const struct place place = place_of(a, slots);
    const int64_t head = place.head;
    const struct tile t = tile_of<ROWS>(a, slots - 1 - place.slot);
    if (t.rows == 0)
        return;
    const bf16 *k = a.k + t.first * a.k_stride + head * HEAD;
    const bf16 *v = a.v + t.first * a.v_stride + head * HEAD;
    const int64_t stride = (int64_t)a.N * HEAD;
    const int64_t first = (t.first * (int64_t)a.N + head) * HEAD;
    const uint32_t q_at = ptx_shared(room), do_at = q_at + ROWS * 2 * HEAD;
    const uint32_t v_at = do_at + ROWS * 2 * HEAD, k_at = v_at + KEY_TILE;
    const uint32_t group_at = threadIdx.x / 128 * 64 * ROW_BYTES;
    const int row = t.at + threadIdx.x / WARP * 16;
    const int tiles = (t.at + t.rows - 1) / KEYS + 1;
    float dq[128], s[32], d[32];
    uint32_t p[16];
    int j = next_keys(a, t, 0, tiles), stage = 0;

#pragma unroll
    for (int e = 0; e < 128; e++)
        dq[e] = 0;
    load_panels<ROWS>(q_at, a.q + first, stride, t.at, t.n);
    load_panels<ROWS>(do_at, a.do_ + first, stride, t.at, t.n);
    load_panels<KEYS>(k_at, k, a.k_stride, j * KEYS, t.n);
    load_panels<KEYS>(v_at, v, a.v_stride, j * KEYS, t.n);
    ptx_copy_commit();
    while (j < tiles) {
        const int next = next_keys(a, t, j + 1, tiles);
        const uint32_t here = (uint32_t)stage * KEY_TILE, there = KEY_TILE - here;
        arrived();
        ptx_wgmma_begin();
        products<ROWS, KEYS>(s, q_at + group_at, k_at + here);
        products<ROWS, KEYS>(d, do_at + group_at, v_at);
        ptx_wgmma_commit();
        if (next < tiles)
            load_panels<KEYS>(k_at + there, k, a.k_stride, next * KEYS, t.n);
        const struct row_stats r = stats_of(a, t, head, row, j);
        ptx_wgmma_wait<0>();
        ptx_hold(s);
        ptx_hold(d);
        __syncthreads(); /* nobody reads V any more */
        if (next < tiles)
            load_panels<KEYS>(v_at, v, a.v_stride, next * KEYS, t.n);
        ptx_copy_commit();
        backward<8>(s, d, r, 0, a.scale);
        pack(p, d);
        ptx_hold(dq);
        ptx_wgmma_begin();
        add_product(dq, p, k_at + here);
        ptx_wgmma_commit();
        ptx_wgmma_wait<0>();
        ptx_hold(dq);
        j = next;
        stage ^= 1;
    }
    ptx_copy_wait<0>();
    store_dq(a, t, head, row, dq);
}

/* ---- backward: dq from dS that was kept ------------------------------------------------------- */

/* Keys j and dS of both warpgroups' rows against them, zeros where no tile was kept. */
static __device__ inline void load_stage(const struct fast &a, const struct tile &t,
    int64_t head, uint32_t mem, int j, int tiles)
{
    const uint32_t to = mem + (uint32_t)(j % STAGES * STAGE);

    if (j >= tiles)
        return;
    load_panels<KEYS>(
        to, a.k + t.first * a.k_stride + head * HEAD, a.k_stride, j * KEYS, t.n);
#pragma unroll
    for (int g = 0; g < 2; g++) {
        const int i = t.at / TILE + g;
        const bool kept = j <= i && i * TILE < t.n
            && (a.any == NULL
                || a.any[(int64_t)(t.slot + i) * (a.words / 2) + j] != 0);
        const unsigned char *from =
            (const unsigned char *)(kept ? ds_tile(a, head, t.slot + i, j) : a.ds);
#pragma unroll
        for (int e = threadIdx.x * 16; e < P_TILE; e += THREADS * 16)
            ptx_copy(to + KEY_TILE + (uint32_t)(g * P_TILE + e), from + e, kept ? 16 : 0);
    }
}

static __global__ __launch_bounds__(THREADS, 1) void k_dq_kept(struct fast a, int slots)
{
    extern __shared__ __align__(1024) unsigned char room[];
    const struct place place = place_of(a, slots);
    const int64_t head = place.head;
    const struct tile t = tile_of<ROWS>(a, slots - 1 - place.slot);
    if (t.rows == 0)
        return;
    const uint32_t mem = ptx_shared(room);
    const int group = threadIdx.x / 128, tiles = (t.at + t.rows - 1) / KEYS + 1;
    float dq[128];

#pragma unroll
    for (int e = 0; e < 128; e++)
        dq[e] = 0;
#pragma unroll
    for (int j = 0; j < STAGES - 1; j++) {
        load_stage(a, t, head, mem, j, tiles);
        ptx_copy_commit();
    }
    for (int j = 0; j < tiles; j++) {
        const uint32_t here = mem + (uint32_t)(j % STAGES * STAGE);
        ptx_copy_wait<STAGES - 2>();
        ptx_shared_to_async();
        __syncthreads(); /* stage j is there, stage j - 1 is free */
        ptx_hold(dq);
        ptx_wgmma_begin();
#pragma unroll
        for (int k = 0; k < KEYS / 16; k++)
            ptx_wgmma_256<0, 1>(dq,
                wgmma_k(here + KEY_TILE + (uint32_t)(group * P_TILE) + k * 32),
                wgmma_mn(here + k * 16 * ROW_BYTES, PANEL), 1);
        ptx_wgmma_commit();
        load_stage(a, t, head, mem, j + STAGES - 1, tiles);
        ptx_copy_commit();
        ptx_wgmma_wait<0>();
        ptx_hold(dq);
    }
    ptx_copy_wait<0>();
    store_dq(a, t, head, t.at + threadIdx.x / WARP * 16, dq);
}

#else /* another card's code: never started there */
static __global__ void k_dkv(struct fast, int, const __grid_constant__ struct maps)
{
}
static __global__ void k_dq(struct fast, int) {}
static __global__ void k_dq_kept(struct fast, int) {}
#endif

/* ---- the host's part -------------------------------------------------------------------------- */

/* dS is kept where a head's fits: that saves computing it again for dq. Heads are worked off in
 * equal chunks that share this many bytes. */
static const int64_t KEPT = (int64_t)640 << 20;

static int bwd_heads(
    const struct fast *a, const struct maps *m, glm_stream stream, struct glm_error *err)
{
    const int heads = a->heads;
    const int key_slots = tile_slots(a->T, a->S, KEYS);
    const int row_slots = tile_slots(a->T, a->S, ROWS);

    if (LAUNCH(k_dkv, (unsigned)(key_slots * heads), THREADS, DKV_BYTES, stream, err, *a,
            key_slots, *m)
        != 0)
        return (int)err->code;
    return a->ds != NULL ? LAUNCH(k_dq_kept, (unsigned)(row_slots * heads), THREADS,
                               STAGES * STAGE, stream, err, *a, row_slots)
                         : LAUNCH(k_dq, (unsigned)(row_slots * heads), THREADS,
                               2 * ROWS * 2 * HEAD + 3 * KEY_TILE, stream, err, *a,
                               row_slots);
}

int attention_wgmma_bwd(
    const struct attention_bwd *p, glm_stream stream, struct glm_error *err)
{
    const int64_t slots = tile_slots(p->T, p->S, TILE);
    const int64_t head = slots * (slots + 1) / 2 * TILE * TILE;
    const bool lean = stream->attention == CUDA_ATTENTION_LEAN;
    const int64_t fit = lean ? 0 : KEPT / (head * (int64_t)sizeof(bf16));
    struct fast a;
    struct maps m = {};

    if (fast_bwd_args(&a, p, stream, err) != 0
        || attention_map(&m.q, p->q, p->T, p->N, p->N * HEAD, TILE, stream, err) != 0
        || attention_map(&m.k, p->k, p->T, p->N, p->k_stride, KEYS, stream, err) != 0
        || attention_map(&m.v, p->v, p->T, p->N, p->v_stride, KEYS, stream, err) != 0
        || attention_map(&m.do_, p->do_, p->T, p->N, p->N * HEAD, TILE, stream, err) != 0)
        return (int)err->code;
    if (fit == 0)
        return bwd_heads(&a, &m, stream, err);
    const int chunks = (int)((a.N + fit - 1) / fit), heads = (a.N + chunks - 1) / chunks;
    a.ds_head = head;
    a.ds = (bf16 *)cuda_scratch(stream, (size_t)(heads * head) * sizeof(bf16), err);
    if (a.ds == NULL)
        return (int)err->code;
    for (; a.head0 < a.N; a.head0 += heads) {
        a.heads = a.N - a.head0 < heads ? a.N - a.head0 : heads;
        if (bwd_heads(&a, &m, stream, err) != 0)
            return (int)err->code;
    }
    return GLM_OK;
}
