/* Rotary position: the table of angles; the rotation in place, four pairs a thread, bound by the
 * bytes of the rotated columns. */
#include "kernels/cuda/eight.cuh"

enum { THREADS = 256, TABLE_ROWS = 16 };

/* In double where the CPU's table is, so that both round the same numbers. */
template <class E> static __global__ void k_table(struct rope_table p)
{
    const int64_t pairs = p.D / 2, first = (int64_t)blockIdx.x * TABLE_ROWS;

    for (int64_t i = threadIdx.x; i < TABLE_ROWS * pairs; i += THREADS) {
        const int64_t t = first + i / pairs, j = i % pairs;
        if (t >= p.T)
            return;
        const float frequency = (float)pow(p.theta, -(double)(2 * j) / (double)p.D);
        const float angle = (float)p.positions[t] * frequency;
        ((float *)p.cos)[t * pairs + j] = low<E>((float)cos((double)angle));
        ((float *)p.sin)[t * pairs + j] = low<E>((float)sin((double)angle));
    }
}

CUDA_OP(rope_table)
{
    if (cuda_type("rope_table", p->dtype, err) != 0)
        return err->code;
    if (p->T < 0 || p->D <= 0 || p->D % 2 != 0)
        return glm_fail(err, GLM_EFORMAT,
            "rope_table: impossible shape: T %lld, D %lld (even)", (long long)p->T,
            (long long)p->D);
    if (!(p->theta > 0))
        return glm_fail(
            err, GLM_EFORMAT, "rope_table: theta is %g, expected more than 0", p->theta);
    cuda_begin(stream);
    return BY_TYPE(p->dtype, E,
        LAUNCH(k_table<E>, blocks_of(p->T, TABLE_ROWS), THREADS, 0, stream, err, *p));
}

/* No product is contracted with the sum behind it: F32 has the CPU's bits. */
template <class E> static __global__ void k_rotate(struct rope p, int rows, bool wide)
{
    const int across = (int)((p.D + EIGHT - 1) / EIGHT), per = (int)p.N * across;
    const int64_t pairs = p.D / 2, first = (int64_t)blockIdx.x * rows;
    const float sign = p.inverse ? -1.0f : 1.0f;
    float x[EIGHT];

    for (int i = threadIdx.x; i < rows * per; i += THREADS) {
        const int64_t t = first + i / per, h = i % per / across, d = i % across * EIGHT;
        if (t >= p.T)
            return;
        const int n = eight_part(d, p.D);
        E *const at = (E *)p.x + t * p.row_stride + h * p.head_stride + p.at + d;
        const float *const c = (const float *)p.cos + t * pairs + d / 2;
        const float *const s = (const float *)p.sin + t * pairs + d / 2;
        eight_get(x, at, n, wide);
#pragma unroll
        for (int k = 0; k < EIGHT / 2; k++) {
            if (2 * k >= n)
                break;
            const float x0 = x[2 * k], x1 = x[2 * k + 1], sk = sign * s[k];
            x[2 * k] = low<E>(__fmul_rn(x0, c[k])) - low<E>(__fmul_rn(x1, sk));
            x[2 * k + 1] = low<E>(__fmul_rn(x1, c[k])) + low<E>(__fmul_rn(x0, sk));
        }
        eight_put(at, x, n, wide);
    }
}

CUDA_OP(rope)
{
    if (cuda_type("rope", p->dtype, err) != 0)
        return err->code;
    const int64_t per = p->N * ((p->D + EIGHT - 1) / EIGHT);
    if (p->T < 0 || p->N < 0 || p->D <= 0 || p->D % 2 != 0 || per > INT32_MAX / EIGHT)
        return glm_fail(err, GLM_EFORMAT,
            "rope: impossible shape: T %lld, N %lld, D %lld (even)", (long long)p->T,
            (long long)p->N, (long long)p->D);
    if (p->at < 0 || (p->N > 1 && p->head_stride < p->at + p->D)
        || p->row_stride < (p->N - 1) * p->head_stride + p->at + p->D)
        return glm_fail(err, GLM_EFORMAT,
            "rope: heads overlap: at %lld, head_stride %lld, row_stride %lld",
            (long long)p->at, (long long)p->head_stride, (long long)p->row_stride);
    cuda_begin(stream);
    if (p->N == 0)
        return 0;
    const void *const all[] = {p->x};
    const int64_t strides[] = {p->row_stride, p->N > 1 ? p->head_stride : 0, p->at};
    const bool wide = EIGHT_WIDE(all, strides);
    const int rows = eight_rows(per, THREADS);
    return BY_TYPE(p->dtype, E,
        LAUNCH(
            k_rotate<E>, blocks_of(p->T, rows), THREADS, 0, stream, err, *p, rows, wide));
}
