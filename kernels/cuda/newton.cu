/* Newton-Schulz: products of many matrices at once, norms in the canonical order.
 *
 * With X [R,C] and n = min(R,C), one step is three products with what is added to them inside the
 * product (alpha AB + beta C, rounded once):
 *
 *     A = X X^T          B = c A A + b A          X' = B X + a X         (R > C: X^T X, X B)
 *
 * A and B are symmetric: bands of rows are multiplied up to the diagonal, the rest is copied over:
 * (bands + 1) / (2 bands) of the work, with as many bands as make the fewest rounds of tiles on the
 * device's multiprocessors (16 of 2048 x 2048: 4 bands, 10 rounds in place of 16).
 *
 * In F32 that is all. With low_precision (BF16 operands, tensor cores, F32 sums) and matrices longer
 * than wide, up to CHAIN steps go by without touching X, as polynomials of one symmetric matrix
 * commute:
 *
 *     W = B + a I        A' = W A W, as M = B A + a A, A' = M B + a M        Q' = W Q
 *
 * and then X' = Q X. Five steps are 3 + 2: 37 n^3 of products instead of 55 with C = 3 R. An
 * eigenvalue of A that rounding made negative grows with each step that A is carried over instead of
 * made from X, twelvefold: three steps leave it far from where the polynomial would blow it up; the
 * result is as near to the polynomial in float64 as with each step on its own (random matrices,
 * spectra 1/i, 1/i^2, e^-i/30, low rank with noise). X, A, B, W, M and Q are BF16, each rounded once. */
#include "kernels/cuda/newton.cuh"

#include "kernels/cuda/eight.cuh"
#include "kernels/cuda/squares.cuh"

enum { THREADS = 256, TURN = 64, CHAIN = 3 };
/* What a product's blocks take of it, and bands begin at; the most bands. */
enum { TILE_ROWS = 128, TILE_COLS = 256, BANDS = 8 };
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

static __host__ __device__ inline int64_t band_begin(int64_t n, int bands, int i)
{
    return i == bands ? n : i * n / bands / TILE_ROWS * TILE_ROWS;
}

/* Whether rows and columns [from, to] are of one band, which made both halves. */
static __device__ inline bool one_band(int64_t n, int bands, int64_t from, int64_t to)
{
    bool one = false;
    for (int i = 0; i < bands; i++)
        one |= band_begin(n, bands, i) <= from && to < band_begin(n, bands, i + 1);
    return one;
}

/* Above the diagonal: what lies below it, [B,n,n]. A block turns one tile over. */
template <class E> static __global__ void k_mirror(E *a, int64_t n, int bands, bool wide)
{
    __shared__ E tile[TURN][TURN + 2];
    const int64_t row = (int64_t)blockIdx.y * TURN, col = (int64_t)blockIdx.x * TURN;
    const int each = TURN / EIGHT, side = threadIdx.x % each * EIGHT;
    E *const m = a + blockIdx.z * n * n;
    float v[EIGHT];

    if (col > row || one_band(n, bands, col, row + TURN - 1 < n ? row + TURN - 1 : n - 1))
        return;
    for (int i = threadIdx.x / each; i < TURN; i += THREADS / each) {
        const int64_t at = col + side;
        eight_get(v, m + (row + i) * n + at, row + i < n ? eight_part(at, n) : 0, wide);
#pragma unroll
        for (int k = 0; k < EIGHT; k++)
            tile[i][side + k] = put<E>(v[k]);
    }
    __syncthreads();
    for (int i = threadIdx.x / each; i < TURN; i += THREADS / each) {
        const int64_t at = row + side, r = col + i;
        E *const to = m + r * n + at;
#pragma unroll
        for (int k = 0; k < EIGHT; k++)
            v[k] = get(tile[side + k][i]);
        if (col < row) {
            eight_put(to, v, r < n ? eight_part(at, n) : 0, wide);
            continue;
        }
        for (int k = 0; k < EIGHT; k++)
            if (at + k < n && r < at + k)
                to[k] = put<E>(v[k]);
    }
}

/* The same in BF16 where rows are multiples of 16 bytes: pairs of columns in a word, so that a thread's
 * eight words are eight columns of two rows. */
static __global__ void k_mirror_pairs(bf16 *a, int64_t n, int bands)
{
    __shared__ unsigned tile[TURN][TURN / 2 + 1];
    const int64_t row = (int64_t)blockIdx.y * TURN, col = (int64_t)blockIdx.x * TURN;
    const int each = TURN / EIGHT, side = threadIdx.x % each * EIGHT,
              one = threadIdx.x / each;
    bf16 *const m = a + blockIdx.z * n * n;
    unsigned w[EIGHT];

    static_assert(THREADS / (TURN / EIGHT) == TURN / 2, "a thread for two rows");
    if (col > row || one_band(n, bands, col, row + TURN - 1 < n ? row + TURN - 1 : n - 1))
        return;
    for (int i = one; i < TURN; i += THREADS / each) {
        if (row + i >= n || col + side >= n)
            continue;
        const uint4 v = *(const uint4 *)(m + (row + i) * n + col + side);
        unsigned *const to = &tile[i][side / 2];
        to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
    }
    __syncthreads();
    const int64_t at = row + side;
    if (at >= n)
        return;
#pragma unroll
    for (int k = 0; k < EIGHT; k++)
        w[k] = tile[side + k][one];
    for (int high = 0; high < 2; high++) {
        const int64_t r = col + 2 * one + high;
        unsigned v[EIGHT / 2];
        if (r >= n)
            return;
#pragma unroll
        for (int k = 0; k < EIGHT / 2; k++)
            v[k] = high ? w[2 * k] >> 16 | (w[2 * k + 1] & 0xFFFF0000u)
                        : (w[2 * k] & 0xFFFFu) | w[2 * k + 1] << 16;
        if (r < at) {
            *(uint4 *)(m + r * n + at) = make_uint4(v[0], v[1], v[2], v[3]);
            continue;
        }
        for (int k = 0; k < EIGHT; k++)
            if (r < at + k)
                m[r * n + at + k] = __ushort_as_bfloat16(
                    (unsigned short)(k % 2 == 0 ? v[k / 2] : v[k / 2] >> 16));
    }
}

/* a += by I */
template <class E> static __global__ void k_diagonal(E *a, int64_t B, int64_t n, float by)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;

    if (i >= B * n)
        return;
    E *const to = a + i / n * n * n + i % n * (n + 1);
    *to = put<E>(get(*to) + by);
}

/* ---- products --------------------------------------------------------------------------------- */

static const void *behind(const void *p, int64_t elements, enum glm_dtype type)
{
    return p == NULL ? NULL : (const char *)p + elements * (int64_t)glm_dtype_size(type);
}

/* c = alpha a b + beta add, of n x n matrices or as g and more say besides. */
static struct gemm product(const struct newton *s, void *c, const void *a, const void *b)
{
    struct gemm g = {};

    g.c = c, g.a = a, g.b = b;
    g.M = g.N = g.K = g.lda = g.ldb = g.ldc = s->n;
    g.a_type = g.b_type = g.c_type = s->type;
    return g;
}

/* Rounds of tiles that the bands' products take. */
static int64_t rounds(int64_t B, int64_t n, int bands, int processors)
{
    int64_t sum = 0;

    for (int i = 0; i < bands; i++) {
        const int64_t end = band_begin(n, bands, i + 1);
        const int64_t rows = end - band_begin(n, bands, i);
        const int64_t tiles = B * blocks_of(rows, TILE_ROWS) * blocks_of(end, TILE_COLS);
        sum += (tiles + processors - 1) / processors;
    }
    return sum;
}

static int bands_of(int64_t B, int64_t n, int processors)
{
    int best = 1;

    for (int i = 2; i <= BANDS && i * TILE_ROWS <= n; i++)
        if (rounds(B, n, i, processors) < rounds(B, n, best, processors))
            best = i;
    return best;
}

/* A symmetric product in bands of rows, each up to the diagonal, and the mirror image. g: the whole
 * product, [n,n]. */
static int symmetric(const struct newton *s, struct gemm g, struct cuda_gemm_more more,
    glm_stream stream, struct glm_error *err)
{
    const int64_t n = s->n;
    const int bands = bands_of(s->B, n, stream->processors);
    const struct gemm whole = g;
    const void *const add = more.add;

    for (int i = 0; i < bands; i++) {
        const int64_t row = band_begin(n, bands, i), end = band_begin(n, bands, i + 1);
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
    const dim3 tiles(blocks_of(n, TURN), blocks_of(n, TURN), (unsigned)s->B);
    if (s->type == GLM_BF16 && n % EIGHT == 0)
        return LAUNCH(
            k_mirror_pairs, tiles, THREADS, 0, stream, err, (bf16 *)whole.c, n, bands);
    return BY_TYPE(s->type, E,
        LAUNCH(k_mirror<E>, tiles, THREADS, 0, stream, err, (E *)whole.c, n, bands,
            n % EIGHT == 0));
}

/* c = alpha a b + beta add, all symmetric [n,n] that commute; add may be NULL. */
static int square(const struct newton *s, void *c, double alpha, const void *a,
    const void *b, double beta, const void *add, glm_stream stream, struct glm_error *err)
{
    struct cuda_gemm_more more = {};

    more.alpha = (float)alpha, more.beta = (float)beta;
    more.add = add;
    more.batch = s->B;
    more.stride_a = more.stride_b = more.stride_c = s->n * s->n;
    return symmetric(s, product(s, c, a, b), more, stream, err);
}

/* A = X X^T, or X^T X. */
static int gram(const struct newton *s, glm_stream stream, struct glm_error *err)
{
    const bool tall = s->R > s->C;
    struct gemm g = product(s, s->a, s->x, s->x);
    struct cuda_gemm_more more = {};

    g.K = tall ? s->R : s->C;
    g.lda = g.ldb = s->C;
    g.trans_a = tall;
    g.trans_b = !tall;
    more.alpha = 1;
    more.batch = s->B;
    more.stride_a = more.stride_b = s->R * s->C;
    more.stride_c = s->n * s->n;
    return symmetric(s, g, more, stream, err);
}

/* X = q X + beta X (X q + beta X); beta 0: nothing is added. X and Y change places. */
static int apply(struct newton *s, const void *q, double beta, glm_stream stream,
    struct glm_error *err)
{
    const bool tall = s->R > s->C;
    const int64_t n = s->n, whole = s->R * s->C;
    struct gemm g = product(s, s->y, tall ? s->x : q, tall ? q : s->x);
    struct cuda_gemm_more more = {};
    void *const old = s->x;

    g.M = s->R, g.N = s->C;
    g.ldb = g.ldc = s->C;
    more.alpha = 1, more.beta = (float)beta;
    more.add = beta != 0 ? s->x : NULL;
    more.batch = s->B;
    more.stride_a = tall ? whole : n * n;
    more.stride_b = tall ? n * n : whole;
    more.stride_c = whole;
    if (cuda_gemm_strided(&g, &more, stream, err) != 0)
        return (int)err->code;
    s->x = s->y;
    s->y = old;
    return 0;
}

static int diagonal(
    const struct newton *s, void *a, double by, glm_stream stream, struct glm_error *err)
{
    return BY_TYPE(s->type, E,
        LAUNCH(k_diagonal<E>, blocks_of(s->B * s->n, THREADS), THREADS, 0, stream, err,
            (E *)a, s->B, s->n, (float)by));
}

/* ---- steps ------------------------------------------------------------------------------------ */

static void swap(void **a, void **b)
{
    void *const old = *a;
    *a = *b;
    *b = old;
}

/* B = c[2] A A + c[1] A. */
static int poly(
    const struct newton *s, const double c[3], glm_stream stream, struct glm_error *err)
{
    return square(s, s->b, c[2], s->a, s->a, c[1], s->a, stream, err);
}

/* A = W A W with W = B + a I, by way of M in t. */
static int carry(
    const struct newton *s, double a, glm_stream stream, struct glm_error *err)
{
    if (square(s, s->t, 1, s->b, s->a, a, s->a, stream, err) != 0)
        return (int)err->code;
    return square(s, s->a, 1, s->t, s->b, a, s->t, stream, err);
}

/* `count` steps with one look at X. */
static int chain(struct newton *s, const double (*c)[3], int count, glm_stream stream,
    struct glm_error *err)
{
    if (gram(s, stream, err) != 0)
        return (int)err->code;
    for (int i = 0; i < count; i++) {
        const double a = c[i][0];
        if (poly(s, c[i], stream, err) != 0)
            return (int)err->code;
        if (count == 1)
            return apply(s, s->b, a, stream, err);
        if ((i + 1 < count && carry(s, a, stream, err) != 0)
            || diagonal(s, s->b, a, stream, err) != 0
            || (i > 0 && square(s, s->t, 1, s->b, s->q, 0, NULL, stream, err) != 0))
            return (int)err->code;
        swap(&s->q, i > 0 ? &s->t : &s->b);
    }
    return apply(s, s->q, 0, stream, err);
}

/* Steps of which A is carried over: products by shapes alone. */
static int chain_most(const struct newton *s)
{
    const int64_t most = s->R > s->C ? s->R : s->C;

    return s->type == GLM_BF16 && 4 * most >= 5 * s->n ? CHAIN : 1;
}

/* ---- a batch ---------------------------------------------------------------------------------- */

static int64_t bytes_of(int64_t R, int64_t C, bool low)
{
    const int64_t n = R < C ? R : C, size = low ? 2 : 4;

    return R * C * (4 + size) + 4 * n * n * size;
}

int64_t newton_batch(int64_t B, int64_t R, int64_t C, bool low)
{
    const int64_t fit = SCRATCH_BYTES / bytes_of(R, C, low);
    const int64_t most = fit < 1 ? 1 : fit < BATCH_MOST ? fit : BATCH_MOST;

    return most < B ? most : B;
}

int newton_open(struct newton *s, int64_t B, int64_t R, int64_t C, bool low,
    glm_stream stream, struct glm_error *err)
{
    const size_t size = low ? 2 : 4;

    s->B = B, s->R = R, s->C = C, s->n = R < C ? R : C;
    s->type = low ? GLM_BF16 : GLM_F32;
    s->u = (float *)cuda_scratch(stream, (size_t)(B * R * C) * sizeof(float), err);
    s->x = cuda_scratch(stream, (size_t)(B * R * C) * size, err);
    s->squares = (double *)cuda_scratch(stream, (size_t)B * sizeof(double), err);
    void **const squares[] = {&s->a, &s->b, &s->t, &s->q};
    for (int i = 0; i < (chain_most(s) > 1 ? 4 : 2); i++)
        *squares[i] = cuda_scratch(stream, (size_t)(B * s->n * s->n) * size, err);
    s->y = s->u;
    return (int)err->code;
}

int newton_run(struct newton *s, const float *u, const double (*coeff)[3], int steps,
    glm_stream stream, struct glm_error *err)
{
    const int64_t size = s->R * s->C;
    struct sum_squares norm = {};
    struct unit unit = {};

    norm.out = s->squares, norm.x = u;
    norm.B = s->B, norm.R = 1, norm.C = size;
    norm.batch_stride = norm.row_stride = size;
    norm.tile_rows = 1, norm.tile_cols = size;
    norm.dtype = GLM_F32;
    if (squares_queue(&norm, stream, err) != 0)
        return (int)err->code;
    unit.x = u, unit.y = s->x, unit.squares = s->squares, unit.size = size;
    const void *const all[] = {u, s->x};
    const int64_t strides[] = {size};
    const bool wide = EIGHT_WIDE(all, strides);
    const dim3 grid(blocks_of(size, THREADS * EIGHT), (unsigned)s->B);
    if (BY_TYPE(s->type, E, LAUNCH(k_unit<E>, grid, THREADS, 0, stream, err, unit, wide))
        != 0)
        return (int)err->code;
    for (int i = 0, count; i < steps; i += count) {
        const int left = steps - i, most = chain_most(s);
        count = left < most ? left : most == CHAIN && left == 4 ? 2 : most;
        if (chain(s, coeff + i, count, stream, err) != 0)
            return (int)err->code;
    }
    return 0;
}

int newton_check(const char *op, enum glm_dtype dtype, int64_t B, int64_t R, int64_t C,
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
    if (newton_check("newton_schulz", p->dtype, p->B, p->R, p->C, p->steps, err) != 0)
        return err->code;
    const int64_t size = p->R * p->C;
    const int64_t most = newton_batch(p->B, p->R, p->C, p->low_precision);
    for (int64_t b = 0; b < p->B; b += most) {
        const int64_t n = p->B - b < most ? p->B - b : most;
        struct newton s = {};
        cuda_begin(stream); /* each batch in the memory of the one before */
        if (newton_open(&s, n, p->R, p->C, p->low_precision, stream, err) != 0
            || newton_run(
                   &s, (const float *)p->x + b * size, p->coeff, p->steps, stream, err)
                != 0)
            return err->code;
        float *const o = (float *)p->o + b * size;
        const void *const all[] = {o, s.x};
        const int64_t flat[] = {0};
        const bool wide = EIGHT_WIDE(all, flat);
        if (BY_TYPE(s.type, E,
                LAUNCH(k_copy<E>, blocks_of(n * size, THREADS * EIGHT), THREADS, 0,
                    stream, err, o, (const E *)s.x, n * size, wide))
            != 0)
            return err->code;
    }
    return 0;
}
