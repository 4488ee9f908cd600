/* RMSNorm: a row is read once and held in registers by a warp (to 512 columns) or a block (to 8192);
 * what is longer, or not aligned, is read
 * again, from the cache. Backward, blocks are as many as the device takes at
 * once and walk over rows, the next row on its way while this one is worked on, and keep their part
 * of the weight's gradient in registers. Bound by memory: 4 bytes an element of BF16 forward, 6
 * backward (8 with dx_add). */
#include "kernels/cuda/rows.cuh"

/* ---- forward ---------------------------------------------------------------------------------- */

template <class E, int TEAM, int HELD> static __global__ void k_fwd(struct rmsnorm_fwd p)
{
    __shared__ float room[WARP];
    const int64_t t = (int64_t)blockIdx.x * (ROW_THREADS / TEAM) + row_team<TEAM>();
    const int64_t D = p.D, stride = p.x_stride == 0 ? D : p.x_stride;
    if (t >= p.T) /* whole teams; a block that is one has no such row */
        return;
    eight<E> x[HELD], w[HELD];
    float squares = 0, y[EIGHT], f[EIGHT];

    row_get<E, TEAM, HELD>(x, (const E *)p.x + t * stride, D);
    row_get<E, TEAM, HELD>(w, (const E *)p.w, D);
#pragma unroll
    for (int v = 0; v < HELD; v++) {
        eight_open(y, x[v]);
#pragma unroll
        for (int k = 0; k < EIGHT; k++)
            squares += y[k] * y[k];
    }
    squares = row_sum<TEAM>(squares, room);
    const float rstd = 1 / sqrtf(squares / (float)D + p.eps);
    if (row_lane<TEAM>() == 0)
        ((float *)p.rstd)[t] = rstd;
#pragma unroll
    for (int v = 0; v < HELD; v++) {
        const int64_t d = (int64_t)(v * TEAM + row_lane<TEAM>()) * EIGHT;
        eight_open(y, x[v]);
        eight_open(f, w[v]);
#pragma unroll
        for (int k = 0; k < EIGHT; k++)
            y[k] = f[k] * low<E>(y[k] * rstd);
        if (d < D)
            eight_put8((E *)p.y + t * D + d, y);
    }
}

/* Rows of any length and alignment. */
template <class E> static __global__ void k_long_fwd(struct rmsnorm_fwd p)
{
    __shared__ float room[WARP];
    const int64_t t = blockIdx.x, stride = p.x_stride == 0 ? p.D : p.x_stride;
    const E *x = (const E *)p.x + t * stride, *w = (const E *)p.w;
    E *y = (E *)p.y + t * p.D;
    float squares = 0;

    for (int64_t d = threadIdx.x; d < p.D; d += ROW_THREADS)
        squares += get(x[d]) * get(x[d]);
    squares = block_sum(squares, room);
    const float rstd = 1 / sqrtf(squares / (float)p.D + p.eps);
    if (threadIdx.x == 0)
        ((float *)p.rstd)[t] = rstd;
    for (int64_t d = threadIdx.x; d < p.D; d += ROW_THREADS)
        y[d] = put<E>(get(w[d]) * low<E>(get(x[d]) * rstd));
}

CUDA_OP(rmsnorm_fwd)
{
    if (cuda_type("rmsnorm_fwd", p->dtype, err) != 0)
        return err->code;
    if (p->T < 0 || p->D <= 0 || (p->x_stride != 0 && p->x_stride < p->D))
        return glm_fail(err, GLM_EFORMAT, "rmsnorm_fwd: impossible shape: T %lld, D %lld",
            (long long)p->T, (long long)p->D);
    const void *const all[] = {p->y, p->x, p->w};
    const int64_t strides[] = {p->D, p->x_stride};
    const bool wide = EIGHT_WIDE(all, strides);
    cuda_begin(stream);
    if (p->D > ROWS_MOST || !wide)
        return BY_TYPE(p->dtype, E,
            LAUNCH(k_long_fwd<E>, (unsigned)p->T, ROW_THREADS, 0, stream, err, *p));
    return BY_TYPE(p->dtype, E,
        BY_WIDTH(p->D, TEAM, HELD,
            LAUNCH((k_fwd<E, TEAM, HELD>), blocks_of(p->T, ROW_THREADS / TEAM),
                ROW_THREADS, 0, stream, err, *p)));
}

/* ---- backward --------------------------------------------------------------------------------- */

struct back {
    struct rmsnorm_bwd p;
    int64_t x_stride, dx_stride;
    float *part; /* [blocks, D]: sums for dw */
};

/* A row of dx, and what it adds to dw. */
template <class E, int TEAM, int HELD>
static __device__ inline void back_row(const struct back *b, int64_t t, const eight<E> *x,
    const eight<E> *dy, const eight<E> *w, float (*dw)[EIGHT], float *room)
{
    const int64_t D = b->p.D;
    const float rstd = ((const float *)b->p.rstd)[t];
    const E *const add = (const E *)b->p.dx_add;
    eight<E> more[HELD]; /* on its way while the row is summed up */
    float dot = 0, g[EIGHT], y[EIGHT], f[EIGHT];

    if (add != NULL)
        row_get<E, TEAM, HELD>(more, add + t * D, D);
#pragma unroll
    for (int v = 0; v < HELD; v++) {
        eight_open(g, dy[v]);
        eight_open(y, x[v]);
        eight_open(f, w[v]);
#pragma unroll
        for (int k = 0; k < EIGHT; k++) {
            dot += g[k] * f[k] * (y[k] * rstd);
            dw[v][k] += g[k] * low<E>(y[k] * rstd);
        }
    }
    const float mean = row_sum<TEAM>(dot, room) / (float)D;
#pragma unroll
    for (int v = 0; v < HELD; v++) {
        const int64_t d = (int64_t)(v * TEAM + row_lane<TEAM>()) * EIGHT;
        if (d >= D)
            break;
        eight_open(g, dy[v]);
        eight_open(y, x[v]);
        eight_open(f, w[v]);
#pragma unroll
        for (int k = 0; k < EIGHT; k++)
            g[k] = rstd * (g[k] * f[k] - y[k] * rstd * mean);
        if (add != NULL) {
            eight_open(y, more[v]);
#pragma unroll
            for (int k = 0; k < EIGHT; k++)
                g[k] += y[k];
        }
        eight_put8((E *)b->p.dx + t * b->dx_stride + d, g);
    }
}

template <class E, int TEAM, int HELD>
static __global__ void __launch_bounds__(ROW_THREADS, 2) k_bwd(struct back b)
{
    enum { TEAMS = ROW_THREADS / TEAM };
    __shared__ float room[WARP];
    __shared__ alignas(16) float sums[(TEAMS - 1) * HELD * TEAM * EIGHT + 1];
    const int64_t D = b.p.D, step = (int64_t)gridDim.x * TEAMS;
    const E *const all_x = (const E *)b.p.x, *const all_dy = (const E *)b.p.dy;
    int64_t t = (int64_t)blockIdx.x * TEAMS + row_team<TEAM>();
    eight<E> x[HELD], dy[HELD], w[HELD], next_x[HELD], next_dy[HELD];
    float dw[HELD][EIGHT] = {};

    row_get<E, TEAM, HELD>(w, (const E *)b.p.w, D);
    if (t < b.p.T) {
        row_get<E, TEAM, HELD>(next_x, all_x + t * b.x_stride, D);
        row_get<E, TEAM, HELD>(next_dy, all_dy + t * D, D);
    }
    for (; t < b.p.T; t += step) {
        const int64_t next = t + step;
#pragma unroll
        for (int v = 0; v < HELD; v++) {
            x[v] = next_x[v];
            dy[v] = next_dy[v];
        }
        if (next < b.p.T) {
            row_get<E, TEAM, HELD>(next_x, all_x + next * b.x_stride, D);
            row_get<E, TEAM, HELD>(next_dy, all_dy + next * D, D);
        }
        back_row<E, TEAM, HELD>(&b, t, x, dy, w, dw, room);
    }
    row_part<TEAM, HELD>(b.part + blockIdx.x * D, dw, D, sums);
}

/* Rows of any length and alignment: dx, and the weight's gradient by slices of rows. */
template <class E> static __global__ void k_long_bwd(struct back b)
{
    __shared__ float room[WARP];
    const int64_t t = blockIdx.x, D = b.p.D;
    const E *x = (const E *)b.p.x + t * b.x_stride;
    const E *dy = (const E *)b.p.dy + t * D, *w = (const E *)b.p.w;
    const E *add = b.p.dx_add == NULL ? NULL : (const E *)b.p.dx_add + t * D;
    E *dx = (E *)b.p.dx + t * b.dx_stride;
    const float rstd = ((const float *)b.p.rstd)[t];
    float dot = 0;

    for (int64_t d = threadIdx.x; d < D; d += ROW_THREADS)
        dot += get(dy[d]) * get(w[d]) * (get(x[d]) * rstd);
    const float mean = block_sum(dot, room) / (float)D;
    for (int64_t d = threadIdx.x; d < D; d += ROW_THREADS) {
        const float g = rstd * (get(dy[d]) * get(w[d]) - get(x[d]) * rstd * mean);
        dx[d] = put<E>(add == NULL ? g : g + get(add[d]));
    }
}

template <class E> static __global__ void k_long_weight(struct back b)
{
    const int64_t d = (int64_t)blockIdx.x * ROW_THREADS + threadIdx.x;
    float sum = 0;

    if (d >= b.p.D)
        return;
    for (int64_t t = blockIdx.y; t < b.p.T; t += gridDim.y)
        sum += get(((const E *)b.p.dy)[t * b.p.D + d])
            * low<E>(get(((const E *)b.p.x)[t * b.x_stride + d])
                * ((const float *)b.p.rstd)[t]);
    b.part[blockIdx.y * b.p.D + d] = sum;
}

/* dw first: dx may take the place of dy. */
static int long_rows(
    const struct back *b, int parts, glm_stream stream, struct glm_error *err)
{
    const dim3 grid(blocks_of(b->p.D, ROW_THREADS), (unsigned)parts);

    if (BY_TYPE(b->p.dtype, E,
            LAUNCH(k_long_weight<E>, grid, ROW_THREADS, 0, stream, err, *b))
        != 0)
        return (int)err->code;
    return BY_TYPE(b->p.dtype, E,
        LAUNCH(k_long_bwd<E>, (unsigned)b->p.T, ROW_THREADS, 0, stream, err, *b));
}

static int short_rows(
    const struct back *b, int parts, glm_stream stream, struct glm_error *err)
{
    return BY_TYPE(b->p.dtype, E,
        BY_WIDTH(b->p.D, TEAM, HELD,
            LAUNCH((k_bwd<E, TEAM, HELD>), (unsigned)parts, ROW_THREADS, 0, stream, err,
                *b)));
}

CUDA_OP(rmsnorm_bwd)
{
    if (cuda_type("rmsnorm_bwd", p->dtype, err) != 0)
        return err->code;
    if (p->T < 0 || p->D <= 0 || (p->x_stride != 0 && p->x_stride < p->D)
        || (p->dx_stride != 0 && p->dx_stride < p->D))
        return glm_fail(err, GLM_EFORMAT, "rmsnorm_bwd: impossible shape: T %lld, D %lld",
            (long long)p->T, (long long)p->D);
    const void *const all[] = {p->dx, p->dy, p->x, p->w, p->dx_add};
    const int64_t strides[] = {p->D, p->x_stride, p->dx_stride};
    const bool is_long = p->D > ROWS_MOST || !EIGHT_WIDE(all, strides);
    const int parts = rows_blocks(p->T, p->D <= ROWS_WARP ? ROW_THREADS / WARP : 1);
    struct back b = {};
    cuda_begin(stream);
    if (p->T == 0)
        return 0;
    b.p = *p;
    b.x_stride = p->x_stride == 0 ? p->D : p->x_stride;
    b.dx_stride = p->dx_stride == 0 ? p->D : p->dx_stride;
    b.part = (float *)cuda_scratch(stream, (size_t)(parts * p->D) * sizeof *b.part, err);
    if (b.part == NULL || (is_long ? long_rows : short_rows)(&b, parts, stream, err) != 0)
        return err->code;
    return rows_fold((float *)p->dw, b.part, parts, p->D, p->D, stream, err);
}
