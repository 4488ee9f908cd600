/* Head and cross-entropy in one: logits exist for a chunk of rows at a time.
 *
 * A chunk takes as many rows as keep its logits within CHUNK_BYTES (4096 of GLM-5's 154,880 columns
 * in BF16), a number that V and the type give. Logits are a product rounded to elem; a block a row
 * then finds the largest and the sum of exp in one sweep: a thread keeps a maximum and a sum of its
 * own columns and rescales the sum when the maximum grows, the block folds threads in a fixed tree.
 * A row's bits depend on V alone.
 *
 * Backward computes a chunk's logits (the losses too, if the forward pass is asked of it) and turns them into scale*(softmax - onehot) in place, so
 * that in BF16 the gradient of a logit is rounded to BF16, the operand of the tensor cores (the
 * CPU's stays in F32). dh = dlogit W; dw += dlogit^T h, chunks ascending. Bound by 6 T V H FLOPs
 * backward, 2 T V H forward; the sweeps read and write 6 bytes an element of BF16. */
#include <math.h>

#include "kernels/cuda/eight.cuh"

enum { THREADS = 512 };
static const int64_t CHUNK_ROWS = 128, CHUNK_MOST = 32768;
static const int64_t CHUNK_BYTES = (int64_t)1216 << 20;

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t chunk_rows(int64_t V, enum glm_dtype dtype)
{
    const int64_t fit = CHUNK_BYTES / (V * (int64_t)glm_dtype_size(dtype));
    const int64_t whole = fit / CHUNK_ROWS * CHUNK_ROWS;

    return whole < CHUNK_ROWS ? CHUNK_ROWS : least(whole, CHUNK_MOST);
}

/* Where the rows of a chunk's logits begin: at multiples of 16 bytes. */
static int64_t pitch_of(int64_t V)
{
    return (V + EIGHT - 1) / EIGHT * EIGHT;
}

static int logits(void *c, const void *h, const void *w, int64_t rows, int64_t V,
    int64_t H, enum glm_dtype dtype, glm_stream s, struct glm_error *err)
{
    struct gemm p = {};
    struct cuda_gemm_more one = {};

    p.c = c, p.a = h, p.b = w;
    p.M = rows, p.N = V, p.K = H;
    p.lda = H, p.ldb = H, p.ldc = pitch_of(V);
    p.trans_b = true;
    p.a_type = p.b_type = p.c_type = dtype;
    one.alpha = 1, one.batch = 1;
    return cuda_gemm_strided(&p, &one, s, err);
}

static int check(const char *op, int64_t T, int64_t V, int64_t H, enum glm_dtype dtype,
    struct glm_error *err)
{
    if (cuda_type(op, dtype, err) != 0)
        return (int)err->code;
    if (T < 0 || V <= 0 || H <= 0)
        return glm_fail(err, GLM_EFORMAT, "%s: impossible shape: T %lld, V %lld, H %lld",
            op, (long long)T, (long long)V, (long long)H);
    return 0;
}

/* ---- forward ---------------------------------------------------------------------------------- */

/* The maximum of what was seen, and the sum of exp(x - most). */
struct soft {
    float most, sum;
};

/* What to take off so that exp is 0 where there is nothing yet but -inf. */
static __device__ inline float finite(float most)
{
    return most == -INFINITY ? 0 : most;
}

static __device__ inline void soft_add(struct soft *s, const float *x, int n)
{
    float most = s->most;
#pragma unroll
    for (int k = 0; k < EIGHT; k++)
        most = k < n ? fmaxf(most, x[k]) : most;
    const float by = finite(most);
    float sum = s->sum * expf(s->most - by);
#pragma unroll
    for (int k = 0; k < EIGHT; k++)
        sum += k < n ? expf(x[k] - by) : 0;
    s->most = most;
    s->sum = sum;
}

template <class E>
static __global__ void k_loss(float *loss, float *lse, const E *logit,
    const int32_t *target, int64_t V, int64_t pitch)
{
    __shared__ float room[WARP];
    const int64_t t = blockIdx.x, hit = target[t];
    const E *const x = logit + t * pitch;
    struct soft s = {-INFINITY, 0};
    float v[EIGHT];

    for (int64_t d = threadIdx.x * EIGHT; d < V; d += THREADS * EIGHT) {
        const int n = eight_part(d, V);
        eight_get(v, x + d, n, true);
        soft_add(&s, v, n);
    }
    const float most = block_max(s.most, room);
    const float sum = block_sum(s.sum * expf(s.most - finite(most)), room);
    if (threadIdx.x > 0)
        return;
    const float mine = most + (float)log((double)sum);
    lse[t] = mine;
    loss[t] = hit < 0 || hit >= V ? 0 : mine - get(x[hit]);
}

/* Loss and lse of a chunk's rows from its logits. */
static int losses(float *loss, float *lse, const void *c, const int32_t *target,
    int64_t rows, int64_t V, enum glm_dtype dtype, glm_stream s, struct glm_error *err)
{
    return BY_TYPE(dtype, E,
        LAUNCH(k_loss<E>, (unsigned)rows, THREADS, 0, s, err, loss, lse, (const E *)c,
            target, V, pitch_of(V)));
}

CUDA_OP(linear_ce_fwd)
{
    if (check("linear_ce_fwd", p->T, p->V, p->H, p->dtype, err) != 0)
        return err->code;
    const int64_t chunk = least(chunk_rows(p->V, p->dtype), p->T);
    const size_t size = glm_dtype_size(p->dtype);
    cuda_begin(stream);
    if (p->T == 0)
        return 0;
    void *const c = cuda_scratch(stream, (size_t)(chunk * pitch_of(p->V)) * size, err);
    if (c == NULL)
        return err->code;
    for (int64_t row = 0; row < p->T; row += chunk) {
        const int64_t rows = least(p->T - row, chunk);
        const char *const h = (const char *)p->h + (size_t)(row * p->H) * size;
        if (logits(c, h, p->w, rows, p->V, p->H, p->dtype, stream, err) != 0
            || losses((float *)p->loss + row, (float *)p->lse + row, c, p->target + row,
                   rows, p->V, p->dtype, stream, err)
                != 0)
            return err->code;
    }
    return 0;
}

/* ---- backward --------------------------------------------------------------------------------- */

/* logit -> scale * (softmax - onehot), in place; 0 behind V and for rows without a target. */
template <class E>
static __global__ void k_gradient(E *logit, const float *lse, const int32_t *target,
    float scale, int64_t V, int64_t pitch)
{
    const int64_t t = blockIdx.y, hit = target[t];
    const int64_t d = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * EIGHT;
    E *const x = logit + t * pitch + d;
    const bool some = hit >= 0 && hit < V;
    const float mine = lse[t];
    float v[EIGHT] = {0};

    if (d >= pitch)
        return;
    if (some)
        eight_get(v, x, EIGHT, true);
#pragma unroll
    for (int k = 0; k < EIGHT; k++) {
        const float p = expf(v[k] - mine);
        v[k] = some && d + k < V ? scale * (d + k == hit ? p - 1 : p) : 0;
    }
    eight_put(x, v, EIGHT, true);
}

/* dh = dlogit W and dw += dlogit^T h of one chunk. */
static int spread(const struct linear_ce_bwd *p, const void *c, int64_t row, int64_t rows,
    glm_stream s, struct glm_error *err)
{
    const size_t size = glm_dtype_size(p->dtype), at = (size_t)(row * p->H) * size;
    struct gemm g = {};
    struct cuda_gemm_more one = {};

    one.alpha = 1, one.batch = 1;
    g.c = (char *)p->dh + at, g.a = c, g.b = p->w;
    g.M = rows, g.N = p->H, g.K = p->V;
    g.lda = pitch_of(p->V), g.ldb = p->H, g.ldc = p->H;
    g.a_type = g.b_type = g.c_type = p->dtype;
    if (cuda_gemm_strided(&g, &one, s, err) != 0 || p->dw == NULL)
        return (int)err->code;
    g.c = p->dw, g.b = (const char *)p->h + at;
    g.M = p->V, g.K = rows;
    g.trans_a = true;
    g.accumulate = true;
    g.c_type = GLM_F32;
    return cuda_gemm_strided(&g, &one, s, err);
}

/* Rows [row, row+rows) by way of their logits in c. */
static int bwd_chunk(const struct linear_ce_bwd *p, void *c, int64_t row, int64_t rows,
    glm_stream s, struct glm_error *err)
{
    const char *const h =
        (const char *)p->h + (size_t)(row * p->H) * glm_dtype_size(p->dtype);
    const float *const lse = (const float *)(p->loss != NULL ? p->its_lse : p->lse) + row;
    const dim3 grid(blocks_of(pitch_of(p->V), THREADS * EIGHT), (unsigned)rows);

    if (logits(c, h, p->w, rows, p->V, p->H, p->dtype, s, err) != 0)
        return (int)err->code;
    if (p->loss != NULL
        && losses((float *)p->loss + row, (float *)p->its_lse + row, c, p->target + row,
               rows, p->V, p->dtype, s, err)
            != 0)
        return (int)err->code;
    if (BY_TYPE(p->dtype, E,
            LAUNCH(k_gradient<E>, grid, THREADS, 0, s, err, (E *)c, lse, p->target + row,
                (float)p->scale, p->V, pitch_of(p->V)))
        != 0)
        return (int)err->code;
    return spread(p, c, row, rows, s, err);
}

CUDA_OP(linear_ce_bwd)
{
    if (check("linear_ce_bwd", p->T, p->V, p->H, p->dtype, err) != 0)
        return err->code;
    if ((p->loss == NULL) != (p->its_lse == NULL))
        return glm_fail(
            err, GLM_EFORMAT, "linear_ce_bwd: of loss and its_lse one is missing");
    const int64_t chunk = least(chunk_rows(p->V, p->dtype), p->T);
    cuda_begin(stream);
    if (p->T == 0)
        return 0;
    void *const c = cuda_scratch(
        stream, (size_t)(chunk * pitch_of(p->V)) * glm_dtype_size(p->dtype), err);
    for (int64_t row = 0; row < p->T && err->code == GLM_OK; row += chunk)
        bwd_chunk(p, c, row, least(p->T - row, chunk), stream, err);
    return (int)err->code;
}
