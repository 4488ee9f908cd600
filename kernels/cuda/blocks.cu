/* Blocks between layouts. A block of threads takes whole rows t, a thread eight neighbours of one
 * head; a sum over heads is one thread's, in ascending order. Bound by memory. */
#include "kernels/cuda/eight.cuh"

enum { THREADS = 256 };

/* X: the type of x and add. */
template <class E, class X>
static __global__ void k_move(struct blocks p, int rows, bool wide)
{
    const int across = (int)((p.D + EIGHT - 1) / EIGHT), per = (int)p.N * across;
    const int64_t first = (int64_t)blockIdx.x * rows;
    float v[EIGHT], a[EIGHT];

    for (int i = threadIdx.x; i < rows * per; i += THREADS) {
        const int64_t t = first + i / per, h = i % per / across, d = i % across * EIGHT;
        if (t >= p.T)
            return;
        const int n = eight_part(d, p.D);
        eight_get(v, (const X *)p.x + t * p.x_row + h * p.x_head + d, n, wide);
        if (p.add != NULL) {
            eight_get(a, (const X *)p.add + t * p.add_row + h * p.add_head + d, n, wide);
#pragma unroll
            for (int k = 0; k < EIGHT; k++)
                v[k] += a[k];
        }
        eight_put((E *)p.y + t * p.y_row + h * p.y_head + d, v, n, wide);
    }
}

template <class E, class X>
static __global__ void k_total(struct blocks p, int rows, bool wide)
{
    const int across = (int)((p.D + EIGHT - 1) / EIGHT);
    const int64_t first = (int64_t)blockIdx.x * rows;

    for (int i = threadIdx.x; i < rows * across; i += THREADS) {
        const int64_t t = first + i / across, d = i % across * EIGHT;
        if (t >= p.T)
            return;
        const int n = eight_part(d, p.D);
        const X *const x = (const X *)p.x + t * p.x_row + d;
        float sum[EIGHT] = {0}, v[EIGHT];
#pragma unroll 4
        for (int64_t h = 0; h < p.N; h++) {
            eight_get(v, x + h * p.x_head, n, wide);
#pragma unroll
            for (int k = 0; k < EIGHT; k++)
                sum[k] += v[k];
        }
        eight_put((E *)p.y + t * p.y_row + d, sum, n, wide);
    }
}

CUDA_OP(blocks)
{
    if (cuda_type("blocks", p->dtype, err) != 0)
        return err->code;
    const int64_t per = (p->sum ? 1 : p->N) * ((p->D + EIGHT - 1) / EIGHT);
    if (p->T < 0 || p->N < 1 || p->D < 1 || (p->sum && p->add != NULL)
        || per > INT32_MAX / EIGHT)
        return glm_fail(err, GLM_EFORMAT,
            "blocks: impossible shape: T %lld, N %lld, D %lld, or a sum with a second "
            "input",
            (long long)p->T, (long long)p->N, (long long)p->D);
    const void *const all[] = {p->y, p->x, p->add};
    const bool adds = p->add != NULL;
    const int64_t strides[] = {p->y_row, p->x_row, p->x_head, p->sum ? 0 : p->y_head,
        adds ? p->add_row : 0, adds ? p->add_head : 0};
    const bool wide = EIGHT_WIDE(all, strides);
    const int rows = eight_rows(per, THREADS);
    const unsigned grid = blocks_of(p->T, rows);
    cuda_begin(stream);
    return BY_TYPE(p->dtype, E,
        BY_TYPE(p->acc_in ? GLM_F32 : p->dtype, X,
            p->sum
                ? LAUNCH((k_total<E, X>), grid, THREADS, 0, stream, err, *p, rows, wide)
                : LAUNCH((k_move<E, X>), grid, THREADS, 0, stream, err, *p, rows, wide)));
}
