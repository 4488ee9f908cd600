/* The loss's gradients by mma.sync, BF16, rows of 128 elements.
 *
 * With z = q.k of head n of row t (a "pair" (t,n)) and key s, and dz = dI[t,s]*w[t,n]*on_w*on_z where
 * z > 0:      dq[t,n] = sum_s dz k[s]      dw[t,n] = on_w * sum_s dI[t,s]*relu(z*on_z)
 *             dk[s]   = sum_t sum_n dz q[t,n]
 * Both are one walk: 128 rows of 128 elements stay in registers as the A side (16 a warp), the other
 * side comes by 64 through a ring by cp.async; a first product gives z, dz is rounded to BF16 as the A
 * side of a second product with the same 64, whose sums stay in registers.
 *   dq: pairs stay, keys come, ascending.    dk: keys stay, pairs come, ascending.
 * A block of dk takes at most SEGMENT rows (a function of shapes), or few blocks would do all the work;
 * its sums go to a place of their own, and k_fold adds them up, segments ascending.
 * Bounded by the tensor cores: 2*2*2*N*128 FLOPs a pair of row and key. */
#include "kernels/cuda/indexer_loss.cuh"
#include "kernels/cuda/ptx.cuh"

enum {
    THREADS = 256,
    STAY = 128, /* rows that stay, 16 a warp */
    COME = 64,  /* rows a step */
    GROUP = 32, /* of them at a time */
    DIM = 128,
    STEPS = DIM / 16,
    PIECES = DIM * 2 / 16,
    STAGES = 4,
    BYTES = COME * DIM * 2,
    FOLD = 256
};

static __device__ inline uint32_t place(uint32_t room, int row, int piece)
{
    return room + (uint32_t)(row * PIECES + (piece ^ (row & 7))) * 16;
}

/* Queues rows [at, at + COME) of x; zeros from `end` on. */
static __device__ void load(uint32_t to, const bf16 *x, int64_t at, int64_t end)
{
    for (int i = threadIdx.x; i < COME * PIECES; i += THREADS) {
        const int row = i / PIECES, piece = i % PIECES;
        const bool in = at + row < end;
        ptx_copy(place(to, row, piece), x + (in ? at + row : 0) * DIM + piece * 8, in ? 16 : 0);
    }
}

/* Fragments of rows `at`, at + 8 of x. */
static __device__ void hold(uint32_t a[STEPS][4], const bf16 *x, int64_t at, int64_t end)
{
    const int lane = threadIdx.x % WARP;

#pragma unroll
    for (int half = 0; half < 2; half++) {
        const bool in = at + 8 * half < end;
        const uint32_t *row = (const uint32_t *)(x + (in ? at + 8 * half : 0) * DIM);
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            a[step][half] = in ? row[step * 8 + lane % 4] : 0;
            a[step][half + 2] = in ? row[step * 8 + 4 + lane % 4] : 0;
        }
    }
}

/* z of the rows that stay and the GROUP that came at `row`. */
static __device__ inline void products(
    float z[GROUP / 8][4], const uint32_t a[STEPS][4], uint32_t room, int row)
{
    const int lane = threadIdx.x % WARP;

#pragma unroll
    for (int j = 0; j < GROUP / 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            z[j][e] = 0;
#pragma unroll
    for (int step = 0; step < STEPS; step += 2) {
        uint32_t b[GROUP / 8][4];
#pragma unroll
        for (int j = 0; j < GROUP / 8; j++)
            ptx_ldmatrix(b[j], place(room, row + j * 8 + lane % 8, step * 2 + lane / 8));
#pragma unroll
        for (int j = 0; j < GROUP / 8; j++)
            ptx_mma(z[j], a[step], b[j]);
#pragma unroll
        for (int j = 0; j < GROUP / 8; j++)
            ptx_mma(z[j], a[step + 1], b[j] + 2);
    }
}

/* out += dz (as A) times the GROUP rows that came at `row`. */
static __device__ inline void spread(
    float out[DIM / 8][4], const float dz[GROUP / 8][4], uint32_t room, int row)
{
    const int lane = threadIdx.x % WARP;

#pragma unroll
    for (int i = 0; i < GROUP / 16; i++) {
        const float(*z)[4] = dz + 2 * i;
        const uint32_t a[4] = {ptx_pack(z[0][0], z[0][1]), ptx_pack(z[0][2], z[0][3]),
            ptx_pack(z[1][0], z[1][1]), ptx_pack(z[1][2], z[1][3])};
#pragma unroll
        for (int j = 0; j < DIM / 8; j += 2) {
            uint32_t b[4];
            ptx_ldmatrix_t(b, place(room, row + i * 16 + lane % 16, j + lane / 16));
            ptx_mma(out[j], a, b);
            ptx_mma(out[j + 1], a, b + 2);
        }
    }
}

/* ---- dq and dw: blocks of 128 pairs, whole rows as N divides 128 ------------------------------ */

/* dI of the thread's keys of a step, two of each tile of 8: 0 outside [first, last]. */
static __device__ inline void load_slopes(
    float g[COME / 4], const float *dI, int64_t s0, int64_t first, int64_t last)
{
#pragma unroll
    for (int j = 0; j < COME / 8; j++) {
        const int64_t s = s0 + j * 8 + threadIdx.x % 4 * 2;
        const bool low_in = s >= first && s <= last, high_in = s + 1 >= first && s + 1 <= last;
        const float2 two = low_in || high_in ? *(const float2 *)(dI + s) : make_float2(0, 0);
        g[2 * j] = low_in ? two.x : 0;
        g[2 * j + 1] = high_in ? two.y : 0;
    }
}

static __global__ void __launch_bounds__(THREADS, 1) k_dq(struct loss_chunk c)
{
    extern __shared__ __align__(128) char room[];
    const struct indexer_rows *r = &c.r;
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, N = (int)r->N;
    /* The last rows see most keys: they begin first. */
    const int64_t block = gridDim.x - 1 - blockIdx.x, pairs = r->t1 * N;
    const int64_t pair = r->t0 * N + block * STAY + warp * 16 + lane / 4;
    const int64_t top = (r->t0 * N + block * STAY) / N, end_row = top + STAY / N;
    const int64_t stop = end_row < r->t1 ? end_row : r->t1; /* keys [begin, stop) */
    const int64_t begin = r->first[top] / COME * COME;
    const int64_t t = pair / N; /* of the whole warp, as 16 divides N */
    const bool here = t < r->t1;
    const float *const dI = c.score + ((here ? t : r->t0) - r->t0) * r->width;
    const int64_t first = here ? r->first[t] : 0;
    const uint32_t ring = ptx_shared(room);
    float out[DIM / 8][4] = {}, dw[2] = {0, 0}, w[2], g[COME / 4], next[COME / 4];
    uint32_t a[STEPS][4];

    for (int i = 0; i < STAGES - 1; i++) {
        load(ring + (uint32_t)(i * BYTES), (const bf16 *)r->k, begin + i * COME, stop);
        ptx_copy_commit();
    }
    hold(a, (const bf16 *)r->q, pair, pairs);
#pragma unroll
    for (int half = 0; half < 2; half++)
        w[half] = here ? get(((const bf16 *)r->w)[pair + 8 * half]) * r->on_w : 0;
    load_slopes(next, dI, begin, first, here ? t : -1);
    for (int64_t s0 = begin, i = 0; s0 < stop; s0 += COME, i++) {
#pragma unroll
        for (int j = 0; j < COME / 4; j++)
            g[j] = next[j];
        ptx_copy_wait<STAGES - 2>();
        __syncthreads();
        load(ring + (uint32_t)((i + STAGES - 1) % STAGES * BYTES), (const bf16 *)r->k,
            s0 + (STAGES - 1) * COME, stop);
        ptx_copy_commit();
        load_slopes(next, dI, s0 + COME, first, here ? t : -1);
        const uint32_t now = ring + (uint32_t)(i % STAGES * BYTES);
#pragma unroll
        for (int row = 0; row < COME; row += GROUP) {
            float z[GROUP / 8][4];
            products(z, a, now, row);
#pragma unroll
            for (int j = 0; j < GROUP / 8; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const float slope = g[(row / 8 + j) * 2 + e % 2];
                    if (slope != 0)
                        dw[e / 2] += slope * ptx_relu(z[j][e] * r->on_z);
                    z[j][e] = slope != 0 && z[j][e] > 0 ? slope * w[e / 2] * r->on_z : 0;
                }
            spread(out, z, now, row);
        }
    }
    ptx_copy_wait<0>();
#pragma unroll
    for (int half = 0; half < 2; half++) {
        dw[half] += __shfl_xor_sync(0xFFFFFFFFu, dw[half], 1);
        dw[half] += __shfl_xor_sync(0xFFFFFFFFu, dw[half], 2);
        if (!here)
            continue;
        if (lane % 4 == 0)
            c.dw[pair + 8 * half] = dw[half] * r->on_w;
        float2 *const to = (float2 *)(c.dq + (pair + 8 * half) * DIM);
#pragma unroll
        for (int j = 0; j < DIM / 8; j++)
            to[j * 4 + lane % 4] = make_float2(out[j][2 * half], out[j][2 * half + 1]);
    }
}

/* ---- dk: blocks of 128 keys and a segment of rows --------------------------------------------- */

struct segments {
    float *part; /* [count, T, DIM] */
    int64_t rows;
    int count;
};

/* Rows of segment i that see keys from s0 on: [begin, end), empty if none. */
static __device__ void segment_rows(const struct indexer_rows *r, const struct segments *g,
    int i, int64_t s0, int64_t *begin, int64_t *end)
{
    const int64_t from = r->t0 + i * g->rows, to = from + g->rows;

    *begin = from > s0 ? from : s0;
    *end = to < r->t1 ? to : r->t1;
}

/* Of a step's pairs what a thread needs: by 16 pairs, which are of one row, dI of its two keys times
 * the scales; by 8 pairs the weights of two. */
struct pairs {
    float dI[COME / 16][2];
    uint32_t w[COME / 8];
};

static __device__ inline void load_pairs(struct pairs *x, const struct loss_chunk *c, int64_t p0,
    int64_t last, int shift, int64_t s)
{
    const struct indexer_rows *r = &c->r;

#pragma unroll
    for (int i = 0; i < COME / 16; i++) {
        const int64_t p = p0 + i * 16, t = p >> shift;
        const bool here = p < last;
        const int64_t from = here ? r->first[t] : 0;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int64_t key = s + 8 * half;
            x->dI[i][half] = here && key >= from && key <= t
                ? c->score[(t - r->t0) * r->width + key] * r->on_w * r->on_z
                : 0;
        }
#pragma unroll
        for (int j = 0; j < 2; j++)
            x->w[2 * i + j] =
                here ? ((const uint32_t *)r->w)[(p + j * 8) / 2 + threadIdx.x % 4] : 0;
    }
}

static __global__ void __launch_bounds__(THREADS, 1) k_dk(struct loss_chunk c, struct segments g)
{
    extern __shared__ __align__(128) char room[];
    const struct indexer_rows *r = &c.r;
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, N = (int)r->N;
    const int64_t s0 = (int64_t)blockIdx.x * STAY, s = s0 + warp * 16 + lane / 4;
    const uint32_t ring = ptx_shared(room);
    float out[DIM / 8][4] = {};
    uint32_t a[STEPS][4];
    struct pairs next;
    int64_t begin, end;
    const int shift = 31 - __clz(N); /* N is a power of two */

    segment_rows(r, &g, blockIdx.y, s0, &begin, &end);
    if (begin >= end)
        return;
    const int64_t first = begin * N, last = end * N; /* pairs */
    for (int i = 0; i < STAGES - 1; i++) {
        load(ring + (uint32_t)(i * BYTES), (const bf16 *)r->q, first + i * COME, last);
        ptx_copy_commit();
    }
    hold(a, (const bf16 *)r->k, s, r->t1);
    load_pairs(&next, &c, first, last, shift, s);
    for (int64_t p0 = first, i = 0; p0 < last; p0 += COME, i++) {
        const struct pairs now_pairs = next;
        ptx_copy_wait<STAGES - 2>();
        __syncthreads();
        load(ring + (uint32_t)((i + STAGES - 1) % STAGES * BYTES), (const bf16 *)r->q,
            p0 + (STAGES - 1) * COME, last);
        ptx_copy_commit();
        if (r->first[p0 >> shift] >= s0 + STAY) /* the rows of other sequences */
            break;
        load_pairs(&next, &c, p0 + COME, last, shift, s);
        const uint32_t now = ring + (uint32_t)(i % STAGES * BYTES);
#pragma unroll
        for (int row = 0; row < COME; row += GROUP) {
            float z[GROUP / 8][4];
            products(z, a, now, row);
#pragma unroll
            for (int j = 0; j < GROUP / 8; j++) {
                const uint32_t two = now_pairs.w[row / 8 + j];
                const float w[2] = {
                    __uint_as_float(two << 16), __uint_as_float(two & 0xFFFF0000u)};
                const float *const g = now_pairs.dI[(row + j * 8) / 16];
#pragma unroll
                for (int e = 0; e < 4; e++)
                    z[j][e] = g[e / 2] != 0 && z[j][e] > 0 ? g[e / 2] * w[e % 2] : 0;
            }
            spread(out, z, now, row);
        }
    }
    ptx_copy_wait<0>();
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (s + 8 * half >= r->T)
            continue;
        float2 *const to =
            (float2 *)(g.part + ((int64_t)blockIdx.y * r->T + s + 8 * half) * DIM);
#pragma unroll
        for (int j = 0; j < DIM / 8; j++)
            to[j * 4 + lane % 4] = make_float2(out[j][2 * half], out[j][2 * half + 1]);
    }
}

static __global__ void k_fold(struct loss_chunk c, struct segments g)
{
    const int64_t i = (int64_t)blockIdx.x * FOLD + threadIdx.x, s = i / DIM;
    float sum = 0;

    if (s >= c.r.t1)
        return;
    for (int k = 0; k < g.count; k++) {
        int64_t begin, end;
        segment_rows(&c.r, &g, k, s / STAY * STAY, &begin, &end);
        if (begin < end)
            sum += g.part[k * c.r.T * DIM + i];
    }
    c.dk[i] += sum;
}

/* ---- starting --------------------------------------------------------------------------------- */

bool loss_back_fits(const struct loss_chunk *c)
{
    const struct indexer_rows *r = &c->r;

    return r->dtype == GLM_BF16 && r->D == DIM && r->N % 16 == 0 && STAY % r->N == 0
        && ((uintptr_t)r->q | (uintptr_t)r->k | (uintptr_t)r->w) % 16 == 0
        && ((uintptr_t)c->dq | (uintptr_t)c->dk) % 8 == 0;
}

/* 128 rows a segment, or 32 segments. */
static struct segments segments_of(int64_t rows)
{
    struct segments g = {};

    g.rows = rows / 32 > 128 ? (rows + 31) / 32 : 128;
    g.count = (int)((rows + g.rows - 1) / g.rows);
    return g;
}

size_t loss_back_bytes(const struct loss_chunk *c, int64_t rows)
{
    return (size_t)(segments_of(rows).count * c->r.T * DIM) * sizeof(float);
}

int loss_back_mma(const struct loss_chunk *c, void *scratch, glm_stream s, struct glm_error *err)
{
    const int64_t rows = c->r.t1 - c->r.t0;
    struct segments g = segments_of(rows);

    g.part = (float *)scratch;
    if (LAUNCH(k_dq, blocks_of(rows * c->r.N, STAY), THREADS, STAGES * BYTES, s, err, *c) != 0
        || LAUNCH(k_dk, dim3(blocks_of(c->r.t1, STAY), (unsigned)g.count), THREADS,
               STAGES * BYTES, s, err, *c, g)
            != 0)
        return (int)err->code;
    return LAUNCH(k_fold, blocks_of(c->r.t1 * DIM, FOLD), FOLD, 0, s, err, *c, g);
}
