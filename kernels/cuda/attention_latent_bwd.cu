/* Backward over latent keys (attention_latent.cuh), Hopper, deterministic.
 *
 * A block has one row. Per tile of 64 keys it recomputes P and dS, adds dS K to its dq, and makes
 * the tile's parts of dk = dS^T q and dv = P^T do: 64 keys of 576 + 512 numbers, or, without dv, of
 * 576 for both. These do not meet other rows' parts there: each (row, key) pair has a place of its own in scratch memory, in BF16, the
 * pairs of a key behind one another in order of rows. A second kernel adds each key's pairs up in that
 * order. So nothing but selected pairs is computed, and no sum's order is left to chance.
 *
 * Rows are worked off in chunks, for the size of the scratch memory. The places of a chunk: a bit a
 * (key, row) is set (integer atomics), counted per key, the counts are scanned, and a pair's place is
 * its key's beginning plus the bits in front of its own.
 *
 * The floor: 2*64*(2*576 + 512 + 1088) operations a pair, and 2176 bytes (without dv 1152) written and
 * read. */
#include "kernels/cuda/attention_latent.cuh"

enum { THREADS = 256 };
enum { MARK_WORDS = 16, MOST_ROWS = 32 * MARK_WORDS, SCAN = 1024, SCAN_EACH = 8 };
enum { SHARED = 2 * K_TILE + V_TILE + 2 * PANEL };
static const int64_t PLACES = (int64_t)3 << 30; /* bytes of scratch for pairs */

struct chunk {
    struct attention_bwd p;
    int64_t t0, t1, most; /* rows; pairs a row may have */
    int pair;             /* elements of a pair: LATENT + VALUE, or LATENT */
    uint32_t *marks;      /* [T, MARK_WORDS] */
    int32_t *begin;       /* [T + 1]: counts, then their scan */
    int32_t *place;       /* [t1 - t0, most] */
    bf16 *pairs;          /* [places, pair]; columns in the order of accumulators */
    float *delta;         /* [T, N] */
};

/* ---- places ----------------------------------------------------------------------------------- */

static __global__ void k_mark(struct chunk c)
{
    const int64_t t = c.t0 + blockIdx.x, row = blockIdx.x;
    const struct row_keys keys = latent_keys(c.p, t);

    for (int j = threadIdx.x; j < keys.count; j += THREADS)
        atomicOr(c.marks + key_at(keys, j) * MARK_WORDS + row / 32, 1u << row % 32);
}

static __global__ void k_count(struct chunk c)
{
    const int64_t key = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    int n = 0;

    if (key >= c.p.T)
        return;
#pragma unroll
    for (int i = 0; i < MARK_WORDS; i++)
        n += __popc(c.marks[key * MARK_WORDS + i]);
    c.begin[key] = n;
}

/* Counts to the sums of those in front, in one block. */
static __global__ void k_scan(int32_t *x, int64_t n)
{
    __shared__ int sums[SCAN];
    int before = 0;

    for (int64_t at = 0; at < n; at += SCAN * SCAN_EACH) {
        const int64_t own = at + (int64_t)threadIdx.x * SCAN_EACH;
        int v[SCAN_EACH], sum = 0;
#pragma unroll
        for (int i = 0; i < SCAN_EACH; i++) {
            v[i] = own + i < n ? x[own + i] : 0;
            sum += v[i];
        }
        sums[threadIdx.x] = sum;
        __syncthreads();
        for (int k = 1; k < SCAN; k *= 2) {
            const int add = (int)threadIdx.x >= k ? sums[threadIdx.x - k] : 0;
            __syncthreads();
            sums[threadIdx.x] += add;
            __syncthreads();
        }
        int here = before + sums[threadIdx.x] - sum;
        before += sums[SCAN - 1];
#pragma unroll
        for (int i = 0; i < SCAN_EACH; i++) {
            if (own + i < n)
                x[own + i] = here;
            here += v[i];
        }
        __syncthreads();
    }
    if (threadIdx.x == 0)
        x[n] = before;
}

static __global__ void k_place(struct chunk c)
{
    const int64_t t = c.t0 + blockIdx.x, row = blockIdx.x;
    const struct row_keys keys = latent_keys(c.p, t);

    for (int j = threadIdx.x; j < keys.count; j += THREADS) {
        const int64_t key = key_at(keys, j);
        const uint32_t *marks = c.marks + key * MARK_WORDS;
        int at = c.begin[key] + __popc(marks[row / 32] & ((1u << row % 32) - 1));
        for (int i = 0; i < row / 32; i++)
            at += __popc(marks[i]);
        c.place[row * c.most + j] = at;
    }
}

/* delta = do.o of each (row, head), a warp each. */
static __global__ void k_delta(struct chunk c)
{
    const int64_t head = (int64_t)blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP;
    float sum = 0;

    if (head >= c.p.T * c.p.N)
        return;
    for (int i = threadIdx.x % WARP; i < VALUE; i += WARP)
        sum += get(((const bf16 *)c.p.do_)[head * VALUE + i])
            * get(((const bf16 *)c.p.o)[head * VALUE + i]);
    sum = warp_sum(sum);
    if (threadIdx.x % WARP == 0)
        c.delta[head] = sum;
}

/* ---- pairs ------------------------------------------------------------------------------------ */

#ifdef ATTENTION_WGMMA

/* One panel of a tile's parts: x[64 keys, 64 columns] (+)= L^T R over the 64 heads. */
static __device__ inline void part(
    float (&x)[32], uint32_t left, uint32_t right, bool more)
{
#pragma unroll
    for (int k = 0; k < 4; k++)
        ptx_wgmma_64<1, 1>(x, wgmma_mn(left + k * 2048, PANEL),
            wgmma_mn(right + k * 2048, PANEL), more || k > 0);
}

/* Two rows of a warp's 16, in the order of accumulators: a lane's 16 bytes hold columns 8*n + 2*lane
 * and the next of n = 4*m ... 4*m + 3. */
static __device__ inline void store_part(bf16 *const to[2], int panel, const float (&x)[32])
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
#pragma unroll
        for (int m = 0; m < 2; m++) {
            uint32_t v[4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                v[i] = ptx_pack(
                    x[16 * m + 4 * i + 2 * half], x[16 * m + 4 * i + 2 * half + 1]);
            if (to[half] != NULL)
                *(uint4 *)(to[half] + panel * 64 + 32 * m + threadIdx.x % 4 * 8) =
                    make_uint4(v[0], v[1], v[2], v[3]);
        }
    }
}

/* Queues panel i of dk, or from K_PANELS on of dv; joined: of dk with dv's part in it. */
static __device__ inline void queue_part(float (&x)[32], int i, bool joined, uint32_t q_at,
    uint32_t do_at, uint32_t p_at, uint32_t ds_at)
{
    const bool of_k = i < K_PANELS;

    ptx_hold(x);
    ptx_wgmma_begin();
    part(x, of_k ? ds_at : p_at,
        of_k ? q_at + (uint32_t)(i * PANEL) : do_at + (uint32_t)((i - K_PANELS) * PANEL),
        false);
    if (joined)
        part(x, p_at, do_at + (uint32_t)(i * PANEL), true);
    ptx_wgmma_commit();
}

/* The panels, alternately to the warpgroups, one multiplied while one is stored. Their number is odd;
 * the second warpgroup's last turn repeats the last panel, the one without values, and stores
 * nothing. */
template <bool JOINED>
static __device__ inline void parts(bf16 *const to[2], uint32_t q_at, uint32_t do_at,
    uint32_t p_at, uint32_t ds_at)
{
    constexpr int panels = JOINED ? K_PANELS : K_PANELS + V_PANELS, turns = (panels + 1) / 2;
    const int group = threadIdx.x / 128;
    float x[2][32];

    queue_part(x[0], group, JOINED, q_at, do_at, p_at, ds_at);
#pragma unroll
    for (int i = 0; i < turns; i++) {
        const int next = 2 * i + 2 + group < panels ? 2 * i + 2 + group : panels - 1;
        if (i + 1 < turns) { /* known when compiled */
            queue_part(x[(i + 1) % 2], next, JOINED && i + 2 < turns, q_at, do_at, p_at,
                ds_at);
            ptx_wgmma_wait<1>();
        } else {
            ptx_wgmma_wait<0>();
        }
        ptx_hold(x[i % 2]);
        if (2 * i + group < panels)
            store_part(to, 2 * i + group, x[i % 2]);
    }
}

/* dq += dS times K: columns [256*group, +256) and [512 + 32*group, +32). */
static __device__ inline void add_rows(
    float (&x)[128], float (&y)[16], uint32_t ds, uint32_t k_at)
{
    const int group = threadIdx.x / 128;
    const uint32_t wide = k_at + (uint32_t)(4 * group * PANEL);
    const uint32_t narrow = k_at + 8 * PANEL + (uint32_t)(64 * group);

#pragma unroll
    for (int k = 0; k < 4; k++) {
        const uint64_t a = wgmma_k(ds + k * 32);
        ptx_wgmma_256<0, 1>(x, a, wgmma_mn(wide + k * 2048, PANEL), 1);
        ptx_wgmma_32<0, 1>(y, a, wgmma_mn(narrow + k * 2048, PANEL), 1);
    }
}

static __device__ inline void store_dq(
    const struct attention_bwd &p, int64_t t, const float (&x)[128], const float (&y)[16])
{
    const int l = threadIdx.x % WARP, group = threadIdx.x / 128;

#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int head = threadIdx.x / WARP % 4 * 16 + l / 4 + 8 * half;
        bf16 *to = (bf16 *)p.dq + (t * p.N + head) * LATENT + l % 4 * 2;
        if (head >= p.N)
            continue;
#pragma unroll
        for (int n = 0; n < 32; n++)
            *(uint32_t *)(to + 256 * group + 8 * n) =
                ptx_pack(x[4 * n + 2 * half], x[4 * n + 2 * half + 1]);
#pragma unroll
        for (int n = 0; n < 4; n++)
            *(uint32_t *)(to + VALUE + 32 * group + 8 * n) =
                ptx_pack(y[4 * n + 2 * half], y[4 * n + 2 * half + 1]);
    }
}

/* Which of its 32 keys of tile j count, and lse and delta of the thread's heads. */
static __device__ inline struct row_stats head_stats(const struct chunk &c, int64_t t)
{
    struct row_stats r;

#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int head = threadIdx.x / WARP % 4 * 16 + threadIdx.x % WARP / 4 + 8 * half;
        const int64_t at = t * c.p.N + (head < c.p.N ? head : 0);
        r.lse2[half] = ((const float *)c.p.lse)[at] * LOG2E;
        r.delta[half] = c.delta[at];
        r.seen[half] = 0;
    }
    return r;
}

template <bool JOINED>
static __global__ __launch_bounds__(THREADS, 1) void k_pairs(struct chunk c)
{
    extern __shared__ __align__(1024) unsigned char mem[];
    const struct attention_bwd &p = c.p;
    const int64_t t = c.t0 + blockIdx.x;
    const struct row_keys keys = latent_keys(p, t);
    const bf16 *k = (const bf16 *)p.k;
    const uint32_t q_at = ptx_shared(mem), k_at = q_at + K_TILE, do_at = k_at + K_TILE;
    const uint32_t p_at = do_at + V_TILE, ds_at = p_at + PANEL;
    const int col = threadIdx.x / 128 * 32, tiles = (keys.count + 63) / 64;
    const int warp_row = threadIdx.x / WARP % 4 * 16;
    const int32_t *place = c.place + blockIdx.x * c.most;
    struct row_stats r = head_stats(c, t);
    float dq[128], dq_rope[16], s[16], d[16];
    int row[2];

#pragma unroll
    for (int i = 0; i < 128; i++)
        dq[i] = 0;
#pragma unroll
    for (int i = 0; i < 16; i++)
        dq_rope[i] = 0;
    head_rows((int)p.N, row);
    gather<K_PANELS>(q_at, (const bf16 *)p.q + t * p.N * LATENT, LATENT, row);
    gather<V_PANELS>(do_at, (const bf16 *)p.do_ + t * p.N * VALUE, VALUE, row);
    tile_keys(keys, 0, row);
    gather<K_PANELS>(k_at, k, p.k_stride, row);
    ptx_copy_commit();
    for (int j = 0; j < tiles; j++) {
        const int left = keys.count - j * 64;
        bf16 *to[2];
        tile_keys(keys, j + 1, row);
        arrived();
        ptx_wgmma_begin();
        half_products<K_PANELS>(s, q_at, k_at, col);
        half_products<V_PANELS>(d, do_at, k_at, col);
        ptx_wgmma_commit();
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int i = warp_row + threadIdx.x % WARP / 4 + 8 * half;
            to[half] = i < left ? c.pairs + (int64_t)place[j * 64 + i] * c.pair : NULL;
            r.seen[half] = left >= 64 ? ~(uint64_t)0 : ((uint64_t)1 << left) - 1;
        }
        ptx_wgmma_wait<0>();
        ptx_hold(s);
        ptx_hold(d);
        backward<4>(s, d, r, col, (float)p.scale);
#pragma unroll
        for (int i = 0; i < 16; i++)
            d[i] *= (float)p.scale; /* joined panels have no factor of their own */
        store_tile(mem + (p_at - q_at), warp_row, col, s);
        store_tile(mem + (ds_at - q_at), warp_row, col, d);
        ptx_shared_to_async();
        __syncthreads();
        ptx_hold(dq);
        ptx_hold(dq_rope);
        ptx_wgmma_begin();
        add_rows(dq, dq_rope, ds_at, k_at);
        ptx_wgmma_commit();
        ptx_wgmma_wait<0>();
        ptx_hold(dq);
        ptx_hold(dq_rope);
        __syncthreads(); /* nobody reads K any more */
        if (j + 1 < tiles)
            gather<K_PANELS>(k_at, k, p.k_stride, row);
        ptx_copy_commit();
        parts<JOINED>(to, q_at, do_at, p_at, ds_at);
    }
    ptx_copy_wait<0>();
    store_dq(p, t, dq, dq_rope);
}

#else
template <bool JOINED> static __global__ void k_pairs(struct chunk) {}
#endif

/* A key's pairs in order of rows onto dk and dv: 8 columns a thread. */
static __global__ void k_fold(struct chunk c)
{
    const int64_t key = blockIdx.x;
    const int i = threadIdx.x, panel = i / 8, m = i / 4 % 2, lane = i % 4;
    const int begin = c.begin[key], end = c.begin[key + 1];
    const uint4 *x = (const uint4 *)(c.pairs + (int64_t)begin * c.pair) + i;
    float *to = panel < K_PANELS
        ? (float *)c.p.dk + key * LATENT + panel * 64
        : (float *)c.p.dv + key * VALUE + (panel - K_PANELS) * 64;
    float sum[8];

    if (begin == end)
        return;
    to += 32 * m + 2 * lane;
#pragma unroll
    for (int e = 0; e < 8; e++)
        sum[e] = to[e / 2 * 8 + e % 2];
#pragma unroll 4
    for (int n = begin; n < end; n++, x += c.pair / 8) {
        const uint4 v = *x;
        const uint32_t w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int e = 0; e < 8; e++)
            sum[e] += __uint_as_float(e % 2 == 0 ? w[e / 2] << 16 : w[e / 2] & 0xFFFF0000u);
    }
#pragma unroll
    for (int e = 0; e < 8; e++)
        to[e / 2 * 8 + e % 2] = sum[e];
}

/* ---- the host's part -------------------------------------------------------------------------- */

static int memory(struct chunk *c, int64_t rows, glm_stream stream, struct glm_error *err)
{
    const int64_t T = c->p.T;

    c->marks = (uint32_t *)cuda_scratch(
        stream, (size_t)(T * MARK_WORDS) * sizeof *c->marks, err);
    c->begin = (int32_t *)cuda_scratch(stream, (size_t)(T + 1) * sizeof *c->begin, err);
    c->place =
        (int32_t *)cuda_scratch(stream, (size_t)(rows * c->most) * sizeof *c->place, err);
    c->pairs =
        (bf16 *)cuda_scratch(stream, (size_t)(rows * c->most * c->pair) * sizeof(bf16), err);
    c->delta = (float *)cuda_scratch(stream, (size_t)(T * c->p.N) * sizeof(float), err);
    return c->marks != NULL && c->begin != NULL && c->place != NULL && c->pairs != NULL
            && c->delta != NULL
        ? GLM_OK
        : (int)err->code;
}

static int one_chunk(const struct chunk *c, glm_stream stream, struct glm_error *err)
{
    const unsigned rows = (unsigned)(c->t1 - c->t0);
    const int64_t T = c->p.T;

    if (cuda_fill(stream, c->marks, 0, (size_t)(T * MARK_WORDS) * sizeof *c->marks, err)
            != 0
        || LAUNCH(k_mark, rows, THREADS, 0, stream, err, *c) != 0
        || LAUNCH(k_count, blocks_of(T, THREADS), THREADS, 0, stream, err, *c) != 0
        || LAUNCH(k_scan, 1, SCAN, 0, stream, err, c->begin, T) != 0
        || LAUNCH(k_place, rows, THREADS, 0, stream, err, *c) != 0
        || (c->p.dv == NULL
                   ? LAUNCH(k_pairs<true>, rows, THREADS, SHARED, stream, err, *c)
                   : LAUNCH(k_pairs<false>, rows, THREADS, SHARED, stream, err, *c))
            != 0)
        return (int)err->code;
    return LAUNCH(k_fold, (unsigned)c->t1, c->pair / 8, 0, stream, err, *c);
}

int attention_latent_bwd(
    const struct attention_bwd *p, glm_stream stream, struct glm_error *err)
{
    const int64_t most = p->index != NULL && p->K < p->T ? p->K : p->T;
    struct chunk c = {};

    c.p = *p;
    c.most = most;
    c.pair = p->dv == NULL ? LATENT : LATENT + VALUE;
    int64_t rows = PLACES / (most * c.pair * (int64_t)sizeof(bf16));
    rows = rows < 1 ? 1 : rows < MOST_ROWS ? rows : (int64_t)MOST_ROWS;
    rows = rows < p->T ? rows : p->T;
    if (memory(&c, rows, stream, err) != 0
        || cuda_fill(stream, p->dk, 0, (size_t)(p->T * LATENT) * sizeof(float), err) != 0
        || (p->dv != NULL
            && cuda_fill(stream, p->dv, 0, (size_t)(p->T * VALUE) * sizeof(float), err) != 0)
        || LAUNCH(k_delta, blocks_of(p->T * p->N, THREADS / WARP), THREADS, 0, stream, err,
               c)
            != 0)
        return (int)err->code;
    for (; c.t0 < p->T; c.t0 = c.t1) {
        c.t1 = c.t0 + rows < p->T ? c.t0 + rows : p->T;
        if (one_chunk(&c, stream, err) != 0)
            return (int)err->code;
    }
    return GLM_OK;
}
