/* Muon and its Newton-Schulz iteration: products of many matrices at once, norms in the canonical
 * order, all else elementwise.
 *
 * Matrices of a batch go through together, as many as keep scratch memory within SCRATCH_BYTES; a
 * matrix's bits do not depend on which they are. With X [R,C] and n = min(R,C), one step is three
 * products with what is added to them inside the product (alpha AB + beta C, rounded once):
 *
 *     A = X X^T          B = c A A + b A          Y = B X + a X          (R > C: X^T X, X B)
 *
 * With low_precision X, A and B are BF16, each rounded once, and the tensor cores multiply; F32
 * takes cuBLASLt's F32. A is symmetric: only the blocks of rows on and below the diagonal are
 * multiplied, the rest is copied over (BANDS of them: 10/16 of the work), as is B.
 *
 * Memory of one matrix with low precision: u F32, in whose place Y goes once X is made, X BF16, A and
 * B BF16. Floor of the products: (10/16 (2 n n max + 2 n^3) + 2 n n max) FLOPs a step. Elementwise
 * passes: 16 bytes an element before (m, g -> m, u), 4 + 6 for norm and X, 10 after. */
#include "kernels/cuda/eight.cuh"
#include "kernels/cuda/squares.cuh"

enum { THREADS = 256, FOLD_TILE = 32, FOLD_ROWS = 8, BANDS = 4, BAND_LEAST = 128 };
static const int64_t SCRATCH_BYTES = (int64_t)2 << 30, BATCH_MOST = 32768;

/* ---- elementwise ------------------------------------------------------------------------------ */

struct unit { /* y = x / max(sqrt(squares[b]), 1e-15), matrices of `size` elements */
    const float *x;
    void *y;
    const double *squares;
    int64_t size;
};

template <class E> static __global__ void k_unit(struct unit p, bool wide)
{
    const int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * EIGHT;
    const int64_t at = blockIdx.y * p.size + i;
    const int n = eight_part(i, p.size);
    const float norm = (float)sqrt(p.squares[blockIdx.y]);
    const float by = norm < 1e-15f ? 1e-15f : norm;
    float v[EIGHT];

    eight_get(v, p.x + at, n, wide);
#pragma unroll
    for (int k = 0; k < EIGHT; k++)
        v[k] = v[k] / by;
    eight_put((E *)p.y + at, v, n, wide);
}

/* Above the diagonal: what lies below it, [B,n,n]. A block copies one tile, turned. */
template <class E> static __global__ void k_mirror(E *a, int64_t n)
{
    __shared__ E tile[FOLD_TILE][FOLD_TILE + 1];
    const int64_t row = (int64_t)blockIdx.y * FOLD_TILE,
                  col = (int64_t)blockIdx.x * FOLD_TILE;
    E *const m = a + blockIdx.z * n * n;

    if (col > row)
        return;
    for (int i = threadIdx.y; i < FOLD_TILE; i += FOLD_ROWS)
        if (row + i < n && col + threadIdx.x < n)
            tile[i][threadIdx.x] = m[(row + i) * n + col + threadIdx.x];
    __syncthreads();
    for (int i = threadIdx.y; i < FOLD_TILE; i += FOLD_ROWS)
        if (col + i < row + threadIdx.x && row + threadIdx.x < n)
            m[(col + i) * n + row + threadIdx.x] = tile[threadIdx.x][i];
}

/* ---- Newton-Schulz ---------------------------------------------------------------------------- */

/* A batch under way: X and Y [B,R,C], A and B [B,n,n] of one type. */
struct batch {
    void *x, *y, *a, *b;
    int64_t B, R, C, n;
    enum glm_dtype type;
};

static struct gemm product(const struct batch *s, void *c, const void *a, const void *b,
    int64_t M, int64_t N, int64_t K)
{
    struct gemm g = {};

    g.c = c, g.a = a, g.b = b;
    g.M = M, g.N = N, g.K = K;
    g.lda = K, g.ldb = N, g.ldc = N;
    g.a_type = g.b_type = g.c_type = s->type;
    return g;
}

static const void *behind(const void *p, int64_t elements, enum glm_dtype type)
{
    return p == NULL ? NULL : (const char *)p + elements * (int64_t)glm_dtype_size(type);
}

/* A symmetric product in bands of rows, each up to the diagonal, and the mirror image. g: the whole
 * product, [n,n]. */
static int symmetric(const struct batch *s, struct gemm g, struct cuda_gemm_more more,
    glm_stream stream, struct glm_error *err)
{
    const int64_t n = s->n, bands = n >= BANDS * BAND_LEAST ? BANDS : 1;
    const struct gemm whole = g;
    const void *const add = more.add;

    for (int64_t i = 0; i < bands; i++) {
        const int64_t row = i * n / bands, end = (i + 1) * n / bands;
        g.c = (void *)behind(whole.c, row * n, s->type);
        g.a = behind(whole.a, whole.trans_a ? row : row * whole.lda, s->type);
        more.add = behind(add, row * n, s->type);
        g.M = end - row;
        g.N = end;
        if (cuda_gemm_strided(&g, &more, stream, err) != 0)
            return (int)err->code;
    }
    if (bands == 1)
        return 0;
    const unsigned tiles = blocks_of(n, FOLD_TILE);
    return BY_TYPE(s->type, E,
        LAUNCH(k_mirror<E>, dim3(tiles, tiles, (unsigned)s->B),
            dim3(FOLD_TILE, FOLD_ROWS), 0, stream, err, (E *)whole.c, n));
}

/* One step: y = c[0] x + (c[1] A + c[2] A A) x, from the side of A. */
static int step(
    const struct batch *s, const double c[3], glm_stream stream, struct glm_error *err)
{
    const bool tall = s->R > s->C;
    const int64_t n = s->n, most = tall ? s->R : s->C, whole = s->R * s->C;
    struct gemm g = product(s, s->a, s->x, s->x, n, n, most);
    struct cuda_gemm_more more = {};

    g.lda = g.ldb = s->C;
    g.trans_a = tall;
    g.trans_b = !tall;
    more.alpha = 1;
    more.batch = s->B;
    more.stride_a = more.stride_b = whole;
    more.stride_c = n * n;
    if (symmetric(s, g, more, stream, err) != 0)
        return (int)err->code;
    g = product(s, s->b, s->a, s->a, n, n, n);
    more.alpha = (float)c[2];
    more.stride_a = more.stride_b = n * n;
    more.add = s->a;
    more.beta = (float)c[1];
    if (symmetric(s, g, more, stream, err) != 0)
        return (int)err->code;
    g = tall ? product(s, s->y, s->x, s->b, s->R, s->C, n)
             : product(s, s->y, s->b, s->x, s->R, s->C, n);
    more.alpha = 1;
    more.stride_a = tall ? whole : n * n;
    more.stride_b = tall ? n * n : whole;
    more.stride_c = whole;
    more.add = s->x;
    more.beta = (float)c[0];
    return cuda_gemm_strided(&g, &more, stream, err);
}

/* What a batch takes of scratch memory. */
struct space {
    float *u; /* [B,R,C] F32: in */
    struct batch s;
    double *squares; /* [B] */
};

static int64_t bytes_of(int64_t R, int64_t C, bool low)
{
    const int64_t n = R < C ? R : C, size = low ? 2 : 4;

    return R * C * (4 + size) + 2 * n * n * size;
}

/* Matrices that go through together. */
static int64_t batch_of(int64_t B, int64_t R, int64_t C, bool low)
{
    const int64_t fit = SCRATCH_BYTES / bytes_of(R, C, low);
    const int64_t most = fit < 1 ? 1 : fit < BATCH_MOST ? fit : BATCH_MOST;

    return most < B ? most : B;
}

static int space_new(struct space *p, int64_t B, int64_t R, int64_t C, bool low,
    glm_stream stream, struct glm_error *err)
{
    const int64_t n = R < C ? R : C;
    const size_t size = low ? 2 : 4;

    p->s.B = B, p->s.R = R, p->s.C = C, p->s.n = n;
    p->s.type = low ? GLM_BF16 : GLM_F32;
    p->u = (float *)cuda_scratch(stream, (size_t)(B * R * C) * sizeof(float), err);
    p->s.x = cuda_scratch(stream, (size_t)(B * R * C) * size, err);
    p->s.a = cuda_scratch(stream, (size_t)(B * n * n) * size, err);
    p->s.b = cuda_scratch(stream, (size_t)(B * n * n) * size, err);
    p->squares = (double *)cuda_scratch(stream, (size_t)B * sizeof(double), err);
    p->s.y = p->u;
    return (int)err->code;
}

/* p->s.x = NS(u) of the first B matrices (x and y may have changed places). */
static int ns(struct space *p, const float *u, const double (*coeff)[3], int steps,
    glm_stream stream, struct glm_error *err)
{
    struct batch *const s = &p->s;
    const int64_t size = s->R * s->C;
    struct sum_squares norm = {};
    struct unit unit = {};

    norm.out = p->squares, norm.x = u;
    norm.B = s->B, norm.R = 1, norm.C = size;
    norm.batch_stride = norm.row_stride = size;
    norm.tile_rows = 1, norm.tile_cols = size;
    norm.dtype = GLM_F32;
    if (squares_queue(&norm, stream, err) != 0)
        return (int)err->code;
    unit.x = u, unit.y = s->x, unit.squares = p->squares, unit.size = size;
    const void *const all[] = {u, s->x};
    const int64_t strides[] = {size};
    const bool wide = EIGHT_WIDE(all, strides);
    const dim3 grid(blocks_of(size, THREADS * EIGHT), (unsigned)s->B);
    if (BY_TYPE(s->type, E, LAUNCH(k_unit<E>, grid, THREADS, 0, stream, err, unit, wide))
        != 0)
        return (int)err->code;
    for (int i = 0; i < steps; i++) {
        if (step(s, coeff[i], stream, err) != 0)
            return (int)err->code;
        void *const old = s->x;
        s->x = s->y;
        s->y = old;
    }
    return 0;
}

static int check(const char *op, enum glm_dtype dtype, int64_t B, int64_t R, int64_t C,
    int steps, struct glm_error *err)
{
    if (dtype != GLM_F32)
        return glm_fail(err, GLM_EFORMAT, "%s: elements of %s: on the GPU they are F32",
            op, glm_dtype_name(dtype));
    if (B < 0 || R < 1 || C < 1 || steps < 0)
        return glm_fail(err, GLM_EFORMAT, "%s: %lld matrices of %lld x %lld in %d steps",
            op, (long long)B, (long long)R, (long long)C, steps);
    return 0;
}

/* ---- a result's way out ----------------------------------------------------------------------- */

template <class E>
static __global__ void k_copy(float *o, const E *x, int64_t all, bool wide)
{
    const int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * EIGHT;
    const int n = eight_part(i, all);
    float v[EIGHT];

    eight_get(v, x + i, n, wide);
    eight_put(o + i, v, n, wide);
}

CUDA_OP(newton_schulz)
{
    if (check("newton_schulz", p->dtype, p->B, p->R, p->C, p->steps, err) != 0)
        return err->code;
    const int64_t size = p->R * p->C, most = batch_of(p->B, p->R, p->C, p->low_precision);
    for (int64_t b = 0; b < p->B; b += most) {
        const int64_t n = p->B - b < most ? p->B - b : most;
        struct space s = {};
        cuda_begin(stream); /* each batch in the memory of the one before */
        if (space_new(&s, n, p->R, p->C, p->low_precision, stream, err) != 0
            || ns(&s, (const float *)p->x + b * size, p->coeff, p->steps, stream, err)
                != 0)
            return err->code;
        float *const o = (float *)p->o + b * size;
        const void *const all[] = {o, s.s.x};
        const int64_t flat[] = {0};
        const bool wide = EIGHT_WIDE(all, flat);
        if (BY_TYPE(s.s.type, E,
                LAUNCH(k_copy<E>, blocks_of(n * size, THREADS * EIGHT), THREADS, 0,
                    stream, err, o, (const E *)s.s.x, n * size, wide))
            != 0)
            return err->code;
    }
    return 0;
}

/* ---- Muon ------------------------------------------------------------------------------------- */

struct rates {
    float shrink, rest, keep, ahead, scale, rate;
};

/* Rows `first` on, of [B*R] rows together, `rows` of them a block; x is [B*R,C] of the batch that
 * begins at matrix b0. */
struct piece {
    struct muon p;
    struct rates c;
    int64_t b0, all;
    int rows;
    bool wide;
};

static __device__ inline int64_t row_at(const struct piece *k, int64_t row)
{
    const struct muon *p = &k->p;
    const int64_t b = k->b0 + row / p->R, r = row % p->R;
    const int64_t run = p->run > 0 ? p->run : p->R;

    return b * p->batch_stride + r / run * p->run_stride + r % run * p->row_stride;
}

static __global__ void k_before(struct piece k, float *u)
{
    const int across = (int)((k.p.C + EIGHT - 1) / EIGHT);
    const int64_t first = (int64_t)blockIdx.x * k.rows;
    float m[EIGHT], g[EIGHT];

    for (int i = threadIdx.x; i < k.rows * across; i += THREADS) {
        const int64_t row = first + i / across, d = i % across * EIGHT;
        if (row >= k.all)
            return;
        const int64_t at = row_at(&k, row) + d;
        const int n = eight_part(d, k.p.C);
        eight_get(m, (const float *)k.p.m + at, n, k.wide);
        eight_get(g, (const float *)k.p.g + at, n, k.wide);
#pragma unroll
        for (int e = 0; e < EIGHT; e++) {
            const float ge = g[e] * k.c.scale;
            m[e] += k.c.rest * (ge - m[e]);
            g[e] = k.c.ahead * ge + k.c.keep * m[e];
        }
        eight_put((float *)k.p.m + at, m, n, k.wide);
        eight_put(u + row * k.p.C + d, g, n, k.wide);
    }
}

/* Decay and update in one pass over w. */
template <class E> static __global__ void k_after(struct piece k, const E *o)
{
    const int across = (int)((k.p.C + EIGHT - 1) / EIGHT);
    const int64_t first = (int64_t)blockIdx.x * k.rows;
    float w[EIGHT], v[EIGHT];

    for (int i = threadIdx.x; i < k.rows * across; i += THREADS) {
        const int64_t row = first + i / across, d = i % across * EIGHT;
        if (row >= k.all)
            return;
        const int64_t at = row_at(&k, row) + d;
        const int n = eight_part(d, k.p.C);
        eight_get(w, (const float *)k.p.w + at, n, k.wide);
        eight_get(v, o + row * k.p.C + d, n, k.wide);
#pragma unroll
        for (int e = 0; e < EIGHT; e++) {
            w[e] -= k.c.shrink * w[e];
            w[e] -= k.c.rate * v[e];
        }
        eight_put((float *)k.p.w + at, w, n, k.wide);
    }
}

static int one_batch(struct piece k, glm_stream stream, struct glm_error *err)
{
    const struct muon *const p = &k.p;
    const unsigned grid = blocks_of(k.all, k.rows);
    struct space s = {};

    cuda_begin(stream); /* each batch in the memory of the one before */
    if (space_new(&s, k.all / p->R, p->R, p->C, p->low_precision, stream, err) != 0
        || LAUNCH(k_before, grid, THREADS, 0, stream, err, k, s.u) != 0
        || ns(&s, s.u, p->coeff, p->steps, stream, err) != 0)
        return (int)err->code;
    return BY_TYPE(s.s.type, E,
        LAUNCH(k_after<E>, grid, THREADS, 0, stream, err, k, (const E *)s.s.x));
}

CUDA_OP(muon)
{
    if (check("muon", p->dtype, p->B, p->R, p->C, p->steps, err) != 0)
        return err->code;
    const int64_t most = batch_of(p->B, p->R, p->C, p->low_precision);
    const int64_t across = (p->C + EIGHT - 1) / EIGHT;
    const void *const all[] = {p->w, p->m, p->g};
    const int64_t strides[] = {p->C, p->batch_stride, p->row_stride, p->run_stride};
    struct piece k = {};
    k.p = *p;
    k.c.shrink = (float)(p->lr * p->decay);
    k.c.rest = (float)(1 - p->momentum);
    k.c.keep = p->nesterov ? (float)p->momentum : 1;
    k.c.ahead = p->nesterov ? k.c.rest : 0;
    k.c.scale = (float)p->grad_scale;
    k.c.rate = (float)(p->lr * p->factor);
    k.rows = eight_rows(across, THREADS);
    k.wide = EIGHT_WIDE(all, strides);
    for (k.b0 = 0; k.b0 < p->B; k.b0 += most) {
        k.all = (p->B - k.b0 < most ? p->B - k.b0 : most) * p->R;
        if (one_batch(k, stream, err) != 0)
            return err->code;
    }
    return 0;
}
