/* Attention of 256-dimensional heads on the tensor cores, by mma.sync: every card since 8.0.
 *
 * Forward: a block has 128 rows of one head, a warp 16 of them; keys pass by in tiles of 64, copied
 * one tile ahead. Scores stay in registers: the accumulator of Q K^T is, rounded to BF16, the left
 * operand of P V. Running maximum and sum a row (base 2), O divided by the sum at the end.
 *
 * Backward in two kernels, so that every element has one writer and no workspace is needed; 7/5 of
 * the products. dk, dv: a block has 64 keys and walks the row tiles behind them in ascending order;
 * dq: a block has 64 rows and walks the key tiles in front. P and dS cross between the warps in
 * shared memory, in BF16.
 *
 * Sums are in an order that depends on the sequence alone. The floor is what shared memory delivers
 * to ldmatrix: about 0.45 of the tensor cores' rate. */
#include "kernels/cuda/attention_fast.cuh"

enum { THREADS = 256, ROWS = 128, KEYS = 64, ROW_BYTES = 2 * HEAD };
enum { KEY_TILE = KEYS * ROW_BYTES, P_BYTES = 2 * KEYS, P_TILE = TILE * P_BYTES };

/* ---- forward ---------------------------------------------------------------------------------- */

/* s += rows [row, +16) of Q times the 64 keys of a tile. */
static __device__ inline void scores(float (&s)[32], uint32_t q, int row, uint32_t k)
{
#pragma unroll 2
    for (int kk = 0; kk < HEAD / 16; kk++) {
        uint32_t x[4], y[4];
        load_a<ROW_BYTES>(x, q, row, kk);
#pragma unroll
        for (int n = 0; n < 4; n++) {
            load_b<ROW_BYTES>(y, k, 16 * n, kk);
            ptx_mma(s + 8 * n, x, y);
            ptx_mma(s + 8 * n + 4, x, y + 2);
        }
    }
}

/* o += P times the 64 rows of V. */
static __device__ inline void add_values(
    float (&o)[128], const uint32_t (&p)[16], uint32_t v)
{
#pragma unroll
    for (int kk = 0; kk < KEYS / 16; kk++) {
#pragma unroll
        for (int n = 0; n < HEAD / 16; n++) {
            uint32_t y[4];
            load_b_t<ROW_BYTES>(y, v, 16 * n, kk);
            ptx_mma(o + 8 * n, p + 4 * kk, y);
            ptx_mma(o + 8 * n + 4, p + 4 * kk, y + 2);
        }
    }
}

static __global__ __launch_bounds__(THREADS, 1) void k_fwd(struct fast a, int slots)
{
    extern __shared__ __align__(128) unsigned char room[];
    const int64_t head = blockIdx.x / slots;
    const struct tile t = tile_of<ROWS>(a, slots - 1 - (int)blockIdx.x % slots);
    if (t.rows == 0)
        return;
    const bf16 *k = a.k + t.first * a.k_stride + head * HEAD;
    const bf16 *v = a.v + t.first * a.v_stride + head * HEAD;
    const uint32_t q_at = ptx_shared(room), k_at = q_at + ROWS * ROW_BYTES;
    const uint32_t v_at = k_at + 2 * KEY_TILE;
    const int warp_row = threadIdx.x / WARP * 16, tiles = (t.at + t.rows - 1) / KEYS + 1;
    const int row = t.at + warp_row + threadIdx.x % WARP / 4;
    const float scale2 = a.scale * LOG2E;
    float o[128] = {}, most[2] = {-INFINITY, -INFINITY}, sum[2] = {};
    int j = next_keys(a, t, 0, tiles), stage = 0;

    load_rows<ROWS, THREADS>(q_at, a.q + (t.first * (int64_t)a.N + head) * HEAD,
        (int64_t)a.N * HEAD, t.at, t.n);
    load_rows<KEYS, THREADS>(k_at, k, a.k_stride, j * KEYS, t.n);
    load_rows<KEYS, THREADS>(v_at, v, a.v_stride, j * KEYS, t.n);
    ptx_copy_commit();
    while (j < tiles) {
        const int next = next_keys(a, t, j + 1, tiles);
        if (next < tiles) {
            const uint32_t to = (uint32_t)(stage ^ 1) * KEY_TILE;
            load_rows<KEYS, THREADS>(k_at + to, k, a.k_stride, next * KEYS, t.n);
            load_rows<KEYS, THREADS>(v_at + to, v, a.v_stride, next * KEYS, t.n);
        }
        ptx_copy_commit();
        ptx_copy_wait<1>();
        __syncthreads();
        float s[32] = {};
        uint32_t p[16];
        scores(s, q_at, warp_row, k_at + (uint32_t)stage * KEY_TILE);
        const uint64_t seen[2] = {seen_keys(a, t, row, j), seen_keys(a, t, row + 8, j)};
        const float shrink[2] = {online<true>(s, 0, seen[0], scale2, &most[0], &sum[0]),
            online<true>(s, 1, seen[1], scale2, &most[1], &sum[1])};
        pack(p, s);
#pragma unroll
        for (int i = 0; i < 128; i++)
            o[i] *= shrink[i / 2 % 2];
        add_values(o, p, v_at + (uint32_t)stage * KEY_TILE);
        __syncthreads();
        j = next;
        stage ^= 1;
    }
    ptx_copy_wait<0>();
    store_rows(a, t, head, t.at + warp_row, o, most, sum);
}

int attention_mma_fwd(
    const struct attention_fwd *p, glm_stream stream, struct glm_error *err)
{
    const int slots = tile_slots(p->T, p->S, ROWS);
    struct fast a;

    if (fast_fwd_args(&a, p, stream, err) != 0)
        return (int)err->code;
    return LAUNCH(k_fwd, (unsigned)(slots * p->N), THREADS,
        ROWS * ROW_BYTES + 4 * KEY_TILE, stream, err, a, slots);
}

/* ---- backward --------------------------------------------------------------------------------- */

/* x += rows [row, +16) of A times rows [col, +32) of B, both of HEAD columns. */
static __device__ inline void product(
    float (&x)[16], uint32_t a, int row, uint32_t b, int col)
{
#pragma unroll 4
    for (int kk = 0; kk < HEAD / 16; kk++) {
        uint32_t f[4], y[4];
        load_a<ROW_BYTES>(f, a, row, kk);
#pragma unroll
        for (int n = 0; n < 2; n++) {
            load_b<ROW_BYTES>(y, b, col + 16 * n, kk);
            ptx_mma(x + 8 * n, f, y);
            ptx_mma(x + 8 * n + 4, f, y + 2);
        }
    }
}

/* P and dS of rows [at, +64) against a tile of keys j, to shared memory: row t's 64 keys in 128
 * bytes. A warp has 16 rows and 32 keys. */
static __device__ inline void probabilities(const struct fast &a, const struct tile &t,
    int64_t head, int at, int j, uint32_t q, uint32_t do_, uint32_t k, uint32_t v,
    unsigned char *p_out, unsigned char *ds_out)
{
    const int l = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int row = warp % 4 * 16, col = warp / 4 * 32;
    const struct row_stats r = stats_of(a, t, head, at + row, j);
    float s[16] = {}, d[16] = {};

    product(s, q, row, k, col);
    product(d, do_, row, v, col);
    backward<4>(s, d, r, col, a.scale);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int half = i % 2, n = i / 2;
        const uint32_t to = chunk_at<P_BYTES>(row + l / 4 + 8 * half, col / 8 + n)
            + (uint32_t)(l % 4 * 4);
        if (p_out != NULL)
            *(uint32_t *)(p_out + to) = ptx_pack(s[2 * i], s[2 * i + 1]);
        *(uint32_t *)(ds_out + to) = ptx_pack(d[2 * i], d[2 * i + 1]);
    }
}

/* x += columns [key, +32) of P, transposed, times columns [col, +64) of rows. */
static __device__ inline void add_keys(
    float x[2][8][4], uint32_t p, int key, uint32_t rows, int col)
{
#pragma unroll
    for (int kk = 0; kk < TILE / 16; kk++) {
        uint32_t f[2][4], y[4];
        load_a_t<P_BYTES>(f[0], p, key, kk);
        load_a_t<P_BYTES>(f[1], p, key + 16, kk);
#pragma unroll
        for (int n = 0; n < 4; n++) {
            load_b_t<ROW_BYTES>(y, rows, col + 16 * n, kk);
#pragma unroll
            for (int m = 0; m < 2; m++) {
                ptx_mma(x[m][2 * n], f[m], y);
                ptx_mma(x[m][2 * n + 1], f[m], y + 2);
            }
        }
    }
}

/* Stores a warp's 32 keys x 64 columns, times `by`. */
static __device__ inline void store_keys(float *to, const struct fast &a,
    const struct tile &t, int64_t head, int key, int col, float x[2][8][4], float by)
{
    const int l = threadIdx.x % WARP;

#pragma unroll
    for (int m = 0; m < 4; m++) {
        const int i = t.at + key + l / 4 + 8 * m;
        if (i >= t.n)
            continue;
        float *row = to + ((int64_t)(t.first + i) * a.N + head) * HEAD + col + l % 4 * 2;
#pragma unroll
        for (int n = 0; n < 8; n++)
            *(float2 *)(row + 8 * n) =
                make_float2(
                    x[m / 2][n][m % 2 * 2] * by, x[m / 2][n][m % 2 * 2 + 1] * by);
    }
}

static __global__ __launch_bounds__(THREADS, 1) void k_dkv(struct fast a, int slots)
{
    extern __shared__ __align__(128) unsigned char room[];
    const int64_t head = blockIdx.x / slots;
    const struct tile t = tile_of<KEYS>(a, (int)blockIdx.x % slots);
    if (t.rows == 0)
        return;
    const int64_t stride = (int64_t)a.N * HEAD;
    const int64_t first = (t.first * (int64_t)a.N + head) * HEAD;
    const uint32_t k_at = ptx_shared(room), v_at = k_at + KEY_TILE;
    const uint32_t q_at = v_at + KEY_TILE, do_at = q_at + 2 * KEY_TILE;
    const uint32_t p_at = do_at + 2 * KEY_TILE, ds_at = p_at + P_TILE;
    const int warp = threadIdx.x / WARP, key = warp % 2 * 32, col = warp / 2 * 64;
    const int tiles = (t.n + TILE - 1) / TILE;
    float dk[2][8][4] = {}, dv[2][8][4] = {};
    int i = next_rows(a, t, t.at / TILE, tiles), stage = 0;

    load_rows<KEYS, THREADS>(
        k_at, a.k + t.first * a.k_stride + head * HEAD, a.k_stride, t.at, t.n);
    load_rows<KEYS, THREADS>(
        v_at, a.v + t.first * a.v_stride + head * HEAD, a.v_stride, t.at, t.n);
    load_rows<TILE, THREADS>(q_at, a.q + first, stride, i * TILE, t.n);
    load_rows<TILE, THREADS>(do_at, a.do_ + first, stride, i * TILE, t.n);
    ptx_copy_commit();
    while (i < tiles) {
        const int next = next_rows(a, t, i + 1, tiles);
        const uint32_t here = (uint32_t)stage * KEY_TILE;
        if (next < tiles) {
            const uint32_t to = (uint32_t)(stage ^ 1) * KEY_TILE;
            load_rows<TILE, THREADS>(q_at + to, a.q + first, stride, next * TILE, t.n);
            load_rows<TILE, THREADS>(
                do_at + to, a.do_ + first, stride, next * TILE, t.n);
        }
        ptx_copy_commit();
        ptx_copy_wait<1>();
        __syncthreads();
        probabilities(a, t, head, i * TILE, t.at / KEYS, q_at + here, do_at + here, k_at,
            v_at, room + (p_at - k_at), room + (ds_at - k_at));
        __syncthreads();
        add_keys(dv, p_at, key, do_at + here, col);
        add_keys(dk, ds_at, key, q_at + here, col);
        __syncthreads();
        i = next;
        stage ^= 1;
    }
    ptx_copy_wait<0>();
    store_keys(a.dk, a, t, head, key, col, dk, a.scale);
    store_keys(a.dv, a, t, head, key, col, dv, 1);
}

/* x += rows [row, +16) of dS times columns [col, +128) of K. */
static __device__ inline void add_rows(
    float x[16][4], uint32_t ds, int row, uint32_t k, int col)
{
#pragma unroll
    for (int kk = 0; kk < KEYS / 16; kk++) {
        uint32_t f[4], y[4];
        load_a<P_BYTES>(f, ds, row, kk);
#pragma unroll
        for (int n = 0; n < 8; n++) {
            load_b_t<ROW_BYTES>(y, k, col + 16 * n, kk);
            ptx_mma(x[2 * n], f, y);
            ptx_mma(x[2 * n + 1], f, y + 2);
        }
    }
}

static __global__ __launch_bounds__(THREADS, 1) void k_dq(struct fast a, int slots)
{
    extern __shared__ __align__(128) unsigned char room[];
    const int64_t head = blockIdx.x / slots;
    const struct tile t = tile_of<TILE>(a, slots - 1 - (int)blockIdx.x % slots);
    if (t.rows == 0)
        return;
    const bf16 *k = a.k + t.first * a.k_stride + head * HEAD;
    const bf16 *v = a.v + t.first * a.v_stride + head * HEAD;
    const int64_t stride = (int64_t)a.N * HEAD;
    const int64_t first = (t.first * (int64_t)a.N + head) * HEAD;
    const uint32_t q_at = ptx_shared(room), do_at = q_at + KEY_TILE;
    const uint32_t k_at = do_at + KEY_TILE, v_at = k_at + 2 * KEY_TILE;
    const uint32_t ds_at = v_at + 2 * KEY_TILE;
    const int l = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int row = warp % 4 * 16, col = warp / 4 * 128;
    const int tiles = t.at / KEYS + 1;
    float dq[16][4] = {};
    int j = next_keys(a, t, 0, tiles), stage = 0;

    load_rows<TILE, THREADS>(q_at, a.q + first, stride, t.at, t.n);
    load_rows<TILE, THREADS>(do_at, a.do_ + first, stride, t.at, t.n);
    load_rows<KEYS, THREADS>(k_at, k, a.k_stride, j * KEYS, t.n);
    load_rows<KEYS, THREADS>(v_at, v, a.v_stride, j * KEYS, t.n);
    ptx_copy_commit();
    while (j < tiles) {
        const int next = next_keys(a, t, j + 1, tiles);
        const uint32_t here = (uint32_t)stage * KEY_TILE;
        if (next < tiles) {
            const uint32_t to = (uint32_t)(stage ^ 1) * KEY_TILE;
            load_rows<KEYS, THREADS>(k_at + to, k, a.k_stride, next * KEYS, t.n);
            load_rows<KEYS, THREADS>(v_at + to, v, a.v_stride, next * KEYS, t.n);
        }
        ptx_copy_commit();
        ptx_copy_wait<1>();
        __syncthreads();
        probabilities(a, t, head, t.at, j, q_at, do_at, k_at + here, v_at + here, NULL,
            room + (ds_at - q_at));
        __syncthreads();
        add_rows(dq, ds_at, row, k_at + here, col);
        __syncthreads();
        j = next;
        stage ^= 1;
    }
    ptx_copy_wait<0>();
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int i = t.at + row + l / 4 + 8 * half;
        if (i >= t.n)
            continue;
        bf16 *to = a.dq + first + i * stride + col + l % 4 * 2;
#pragma unroll
        for (int n = 0; n < 16; n++)
            *(uint32_t *)(to + 8 * n) =
                ptx_pack(dq[n][2 * half] * a.scale, dq[n][2 * half + 1] * a.scale);
    }
}

int attention_mma_bwd(
    const struct attention_bwd *p, glm_stream stream, struct glm_error *err)
{
    const int slots = tile_slots(p->T, p->S, TILE);
    const unsigned blocks = (unsigned)(slots * p->N);
    struct fast a;

    if (fast_bwd_args(&a, p, stream, err) != 0
        || LAUNCH(k_dkv, blocks, THREADS, 6 * KEY_TILE + 2 * P_TILE, stream, err, a, slots)
            != 0)
        return (int)err->code;
    return LAUNCH(
        k_dq, blocks, THREADS, 6 * KEY_TILE + P_TILE, stream, err, a, slots);
}
