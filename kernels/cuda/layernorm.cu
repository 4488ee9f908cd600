/* LayerNorm: a warp a row up to 1024 columns, else a block a row; rows are short (the indexer's keys
 * have 128 columns), so that a second read of one comes out of the cache. Gradients of weight and
 * bias: fixed slices of rows, eight rows of a slice side by side, all folded in order. */
#include "kernels/cuda/rows.cuh"

enum { WARP_MOST = 1024, SIDE = 8 };

/* x - mean in the places that exist, 0 behind them. */
static __device__ inline void centre(float *x, float mean, int n)
{
#pragma unroll
    for (int k = 0; k < EIGHT; k++)
        x[k] = k < n ? x[k] - mean : 0;
}

template <class E, int TEAM>
static __global__ void k_fwd(struct layernorm_fwd p, bool wide)
{
    __shared__ float room[WARP];
    const int64_t t = (int64_t)blockIdx.x * (ROW_THREADS / TEAM) + row_team<TEAM>();
    const int64_t D = p.D, from = row_lane<TEAM>() * EIGHT;
    if (t >= p.T) /* whole teams, and with block_sum the only one */
        return;
    const E *const x = (const E *)p.x + t * D;
    float sum = 0, squares = 0, v[EIGHT], w[EIGHT], b[EIGHT];

    for (int64_t d = from; d < D; d += TEAM * EIGHT) {
        eight_get(v, x + d, eight_part(d, D), wide);
        sum += row_sum8(v);
    }
    const float mean = row_sum<TEAM>(sum, room) / (float)D;
    for (int64_t d = from; d < D; d += TEAM * EIGHT) {
        const int n = eight_part(d, D);
        eight_get(v, x + d, n, wide);
        centre(v, mean, n);
#pragma unroll
        for (int k = 0; k < EIGHT; k++)
            squares += v[k] * v[k];
    }
    const float rstd = 1 / sqrtf(row_sum<TEAM>(squares, room) / (float)D + p.eps);
    for (int64_t d = from; d < D; d += TEAM * EIGHT) {
        const int n = eight_part(d, D);
        eight_get(v, x + d, n, wide);
        eight_get(w, (const E *)p.w + d, n, wide);
        eight_get(b, (const E *)p.b + d, n, wide);
#pragma unroll
        for (int k = 0; k < EIGHT; k++)
            v[k] = (v[k] - mean) * rstd * w[k] + b[k];
        eight_put((E *)p.y + t * D + d, v, n, wide);
    }
    if (row_lane<TEAM>() == 0) {
        ((float *)p.mean)[t] = mean;
        ((float *)p.rstd)[t] = rstd;
    }
}

static int shape(const char *op, int64_t T, int64_t D, struct glm_error *err)
{
    if (T < 0 || D <= 0)
        return glm_fail(err, GLM_EFORMAT, "%s: impossible shape: T %lld, D %lld", op,
            (long long)T, (long long)D);
    return 0;
}

CUDA_OP(layernorm_fwd)
{
    if (cuda_type("layernorm_fwd", p->dtype, err) != 0
        || shape("layernorm_fwd", p->T, p->D, err) != 0)
        return err->code;
    const void *const all[] = {p->y, p->x, p->w, p->b};
    const int64_t strides[] = {p->D};
    const bool wide = EIGHT_WIDE(all, strides);
    cuda_begin(stream);
    if (p->D <= WARP_MOST)
        return BY_TYPE(p->dtype, E,
            LAUNCH((k_fwd<E, WARP>), blocks_of(p->T, ROW_THREADS / WARP), ROW_THREADS, 0,
                stream, err, *p, wide));
    return BY_TYPE(p->dtype, E,
        LAUNCH((k_fwd<E, ROW_THREADS>), (unsigned)p->T, ROW_THREADS, 0, stream, err, *p,
            wide));
}

template <class E, int TEAM>
static __global__ void k_bwd(struct layernorm_bwd p, bool wide)
{
    __shared__ float room[WARP];
    const int64_t t = (int64_t)blockIdx.x * (ROW_THREADS / TEAM) + row_team<TEAM>();
    const int64_t D = p.D, from = row_lane<TEAM>() * EIGHT;
    if (t >= p.T)
        return;
    const E *const x = (const E *)p.x + t * D, *const dy = (const E *)p.dy + t * D;
    const float mean = ((const float *)p.mean)[t], rstd = ((const float *)p.rstd)[t];
    float sum = 0, dot = 0, v[EIGHT], g[EIGHT], w[EIGHT];

    for (int64_t d = from; d < D; d += TEAM * EIGHT) {
        const int n = eight_part(d, D);
        eight_get(v, x + d, n, wide);
        eight_get(g, dy + d, n, wide);
        eight_get(w, (const E *)p.w + d, n, wide);
#pragma unroll
        for (int k = 0; k < EIGHT; k++) {
            sum += g[k] * w[k];
            dot += g[k] * w[k] * ((v[k] - mean) * rstd);
        }
    }
    const float mean_d = row_sum<TEAM>(sum, room) / (float)D;
    const float mean_dot = row_sum<TEAM>(dot, room) / (float)D;
    for (int64_t d = from; d < D; d += TEAM * EIGHT) {
        const int n = eight_part(d, D);
        eight_get(v, x + d, n, wide);
        eight_get(g, dy + d, n, wide);
        eight_get(w, (const E *)p.w + d, n, wide);
#pragma unroll
        for (int k = 0; k < EIGHT; k++)
            v[k] =
                rstd * (__fmul_rn(g[k], w[k]) - mean_d - (v[k] - mean) * rstd * mean_dot);
        eight_put((E *)p.dx + t * D + d, v, n, wide);
    }
}

/* part[s, 0, d] and part[s, 1, d]: sums of slice s for dw and db. Block [32, SIDE]. */
template <class E> static __global__ void k_weight(struct layernorm_bwd p, float *part)
{
    __shared__ float side[2][SIDE][ROW_COLUMNS];
    const int64_t d = (int64_t)blockIdx.x * ROW_COLUMNS + threadIdx.x, s = blockIdx.y;
    const int64_t begin = s * p.T / gridDim.y, end = (s + 1) * p.T / gridDim.y;
    float dw = 0, db = 0;

    for (int64_t t = begin + threadIdx.y; t < end && d < p.D; t += SIDE) {
        const float g = get(((const E *)p.dy)[t * p.D + d]);
        const float x = get(((const E *)p.x)[t * p.D + d]);
        dw += g * ((x - ((const float *)p.mean)[t]) * ((const float *)p.rstd)[t]);
        db += g;
    }
    side[0][threadIdx.y][threadIdx.x] = dw;
    side[1][threadIdx.y][threadIdx.x] = db;
    __syncthreads();
    if (threadIdx.y > 1 || d >= p.D)
        return;
    float sum = 0;
    for (int i = 0; i < SIDE; i++)
        sum += side[threadIdx.y][i][threadIdx.x];
    part[(s * 2 + threadIdx.y) * p.D + d] = sum;
}

/* dw and db first: dx may take the place of dy. */
CUDA_OP(layernorm_bwd)
{
    if (cuda_type("layernorm_bwd", p->dtype, err) != 0
        || shape("layernorm_bwd", p->T, p->D, err) != 0)
        return err->code;
    const void *const all[] = {p->dx, p->dy, p->x, p->w};
    const int64_t strides[] = {p->D};
    const bool wide = EIGHT_WIDE(all, strides);
    const int parts = rows_blocks(p->T, SIDE);
    const unsigned columns = blocks_of(p->D, ROW_COLUMNS);
    cuda_begin(stream);
    if (p->T == 0)
        return 0;
    float *const part =
        (float *)cuda_scratch(stream, (size_t)(parts * 2 * p->D) * sizeof *part, err);
    if (part == NULL
        || BY_TYPE(p->dtype, E,
               LAUNCH(k_weight<E>, dim3(columns, (unsigned)parts),
                   dim3(ROW_COLUMNS, SIDE), 0, stream, err, *p, part))
            != 0
        || rows_fold((float *)p->dw, part, parts, 2 * p->D, p->D, stream, err) != 0
        || rows_fold((float *)p->db, part + p->D, parts, 2 * p->D, p->D, stream, err)
            != 0)
        return err->code;
    if (p->D <= WARP_MOST)
        return BY_TYPE(p->dtype, E,
            LAUNCH((k_bwd<E, WARP>), blocks_of(p->T, ROW_THREADS / WARP), ROW_THREADS, 0,
                stream, err, *p, wide));
    return BY_TYPE(p->dtype, E,
        LAUNCH((k_bwd<E, ROW_THREADS>), (unsigned)p->T, ROW_THREADS, 0, stream, err, *p,
            wide));
}
