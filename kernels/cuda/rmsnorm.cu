/* RMSNorm: a block a row in both directions; the weight's gradient by fixed slices of rows. */
#include "kernels/cuda/launch.cuh"

enum { THREADS = 256, COLUMNS = 32, SLICES = 64 };

template <class E> static __global__ void k_fwd(struct rmsnorm_fwd p)
{
    __shared__ float room[WARP];
    const int64_t t = blockIdx.x, stride = p.x_stride == 0 ? p.D : p.x_stride;
    const E *x = (const E *)p.x + t * stride, *w = (const E *)p.w;
    E *y = (E *)p.y + t * p.D;
    float squares = 0;

    for (int64_t d = threadIdx.x; d < p.D; d += THREADS)
        squares += get(x[d]) * get(x[d]);
    squares = block_sum(squares, room);
    const float rstd = 1 / sqrtf(squares / (float)p.D + p.eps);
    if (threadIdx.x == 0)
        ((float *)p.rstd)[t] = rstd;
    for (int64_t d = threadIdx.x; d < p.D; d += THREADS)
        y[d] = put<E>(get(w[d]) * low<E>(get(x[d]) * rstd));
}

CUDA_OP(rmsnorm_fwd)
{
    if (cuda_type("rmsnorm_fwd", p->dtype, err) != 0)
        return err->code;
    if (p->T < 0 || p->D <= 0 || (p->x_stride != 0 && p->x_stride < p->D))
        return glm_fail(err, GLM_EFORMAT, "rmsnorm_fwd: impossible shape: T %lld, D %lld",
            (long long)p->T, (long long)p->D);
    cuda_begin(stream);
    return BY_TYPE(p->dtype, E,
        LAUNCH(k_fwd<E>, (unsigned)p->T, THREADS, 0, stream, err, *p));
}

template <class E> static __global__ void k_bwd(struct rmsnorm_bwd p)
{
    __shared__ float room[WARP];
    const int64_t t = blockIdx.x, D = p.D;
    const E *x = (const E *)p.x + t * (p.x_stride == 0 ? D : p.x_stride);
    const E *dy = (const E *)p.dy + t * D, *w = (const E *)p.w;
    const E *add = p.dx_add == NULL ? NULL : (const E *)p.dx_add + t * D;
    E *dx = (E *)p.dx + t * (p.dx_stride == 0 ? D : p.dx_stride);
    const float rstd = ((const float *)p.rstd)[t];
    float dot = 0;

    for (int64_t d = threadIdx.x; d < D; d += THREADS)
        dot += get(dy[d]) * get(w[d]) * (get(x[d]) * rstd);
    const float mean = block_sum(dot, room) / (float)D;
    for (int64_t d = threadIdx.x; d < D; d += THREADS) {
        const float g = rstd * (get(dy[d]) * get(w[d]) - get(x[d]) * rstd * mean);
        dx[d] = put<E>(add == NULL ? g : g + get(add[d]));
    }
}

/* Slice s of the rows, a warp's lanes side by side in columns: part[s, d]. */
template <class E> static __global__ void k_weight(struct rmsnorm_bwd p, float *part)
{
    const int64_t d = (int64_t)blockIdx.x * COLUMNS + threadIdx.x, s = blockIdx.y;
    const int64_t stride = p.x_stride == 0 ? p.D : p.x_stride;
    const int64_t begin = s * p.T / SLICES, end = (s + 1) * p.T / SLICES;
    float sum = 0;

    if (d >= p.D)
        return;
    for (int64_t t = begin; t < end; t++)
        sum += get(((const E *)p.dy)[t * p.D + d])
            * low<E>(get(((const E *)p.x)[t * stride + d]) * ((const float *)p.rstd)[t]);
    part[s * p.D + d] = sum;
}

static __global__ void k_fold(float *dw, const float *part, int64_t D)
{
    const int64_t d = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    float sum = 0;

    if (d >= D)
        return;
    for (int s = 0; s < SLICES; s++)
        sum += part[s * D + d];
    dw[d] += sum;
}

/* dw first: dx may take the place of dy. */
CUDA_OP(rmsnorm_bwd)
{
    if (cuda_type("rmsnorm_bwd", p->dtype, err) != 0)
        return err->code;
    if (p->T < 0 || p->D <= 0 || (p->x_stride != 0 && p->x_stride < p->D)
        || (p->dx_stride != 0 && p->dx_stride < p->D))
        return glm_fail(err, GLM_EFORMAT, "rmsnorm_bwd: impossible shape: T %lld, D %lld",
            (long long)p->T, (long long)p->D);
    cuda_begin(stream);
    float *part = (float *)cuda_scratch(stream, (size_t)(SLICES * p->D) * sizeof *part, err);
    if (part == NULL)
        return err->code;
    const dim3 grid(blocks_of(p->D, COLUMNS), SLICES);
    if (BY_TYPE(p->dtype, E, LAUNCH(k_weight<E>, grid, COLUMNS, 0, stream, err, *p, part)) != 0
        || LAUNCH(k_fold, blocks_of(p->D, THREADS), THREADS, 0, stream, err, (float *)p->dw,
               (const float *)part, p->D)
            != 0)
        return err->code;
    return BY_TYPE(p->dtype, E, LAUNCH(k_bwd<E>, (unsigned)p->T, THREADS, 0, stream, err, *p));
}
