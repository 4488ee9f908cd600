/* add and SwiGLU: a thread takes eight neighbours of the flat array. Bound by memory: 6 bytes an
 * element of BF16 for add and forward, 10 for backward. */
#include "kernels/cuda/eight.cuh"

enum { THREADS = 256 };

static __device__ inline int64_t first_of_thread(void)
{
    return ((int64_t)blockIdx.x * THREADS + threadIdx.x) * EIGHT;
}

static unsigned blocks_for(int64_t n)
{
    return blocks_of(n, (int64_t)THREADS * EIGHT);
}

static const int64_t flat[] = {0};

template <class E> static __global__ void k_add(struct add p, bool wide)
{
    const int64_t i = first_of_thread();
    const int n = eight_part(i, p.n);
    float a[EIGHT], b[EIGHT];

    eight_get(a, (const E *)p.a + i, n, wide);
    eight_get(b, (const E *)p.b + i, n, wide);
#pragma unroll
    for (int k = 0; k < EIGHT; k++)
        a[k] += b[k];
    eight_put((E *)p.y + i, a, n, wide);
}

CUDA_OP(add)
{
    if (cuda_type("add", p->dtype, err) != 0)
        return err->code;
    const void *const all[] = {p->y, p->a, p->b};
    const bool wide = EIGHT_WIDE(all, flat);
    cuda_begin(stream);
    return BY_TYPE(p->dtype, E,
        LAUNCH(k_add<E>, blocks_for(p->n), THREADS, 0, stream, err, *p, wide));
}

static __device__ inline float sigmoid(float a)
{
    return 1 / (1 + expf(-a));
}

template <class E> static __global__ void k_swiglu(struct swiglu_fwd p, bool wide)
{
    const int64_t i = first_of_thread();
    const int n = eight_part(i, p.n);
    float a[EIGHT], b[EIGHT];

    eight_get(a, (const E *)p.a + i, n, wide);
    eight_get(b, (const E *)p.b + i, n, wide);
#pragma unroll
    for (int k = 0; k < EIGHT; k++)
        a[k] = low<E>(a[k] * sigmoid(a[k])) * b[k];
    eight_put((E *)p.h + i, a, n, wide);
}

CUDA_OP(swiglu_fwd)
{
    if (cuda_type("swiglu_fwd", p->dtype, err) != 0)
        return err->code;
    const void *const all[] = {p->h, p->a, p->b};
    const bool wide = EIGHT_WIDE(all, flat);
    cuda_begin(stream);
    return BY_TYPE(p->dtype, E,
        LAUNCH(k_swiglu<E>, blocks_for(p->n), THREADS, 0, stream, err, *p, wide));
}

template <class E> static __global__ void k_swiglu_bwd(struct swiglu_bwd p, bool wide)
{
    const int64_t i = first_of_thread();
    const int n = eight_part(i, p.n);
    float g[EIGHT], a[EIGHT], b[EIGHT];

    eight_get(g, (const E *)p.dh + i, n, wide);
    eight_get(a, (const E *)p.a + i, n, wide);
    eight_get(b, (const E *)p.b + i, n, wide);
#pragma unroll
    for (int k = 0; k < EIGHT; k++) {
        const float s = sigmoid(a[k]), da = g[k] * b[k] * s * (1 + a[k] * (1 - s));
        b[k] = g[k] * a[k] * s;
        a[k] = da;
    }
    eight_put((E *)p.da + i, a, n, wide);
    eight_put((E *)p.db + i, b, n, wide);
}

CUDA_OP(swiglu_bwd)
{
    if (cuda_type("swiglu_bwd", p->dtype, err) != 0)
        return err->code;
    const void *const all[] = {p->da, p->db, p->dh, p->a, p->b};
    const bool wide = EIGHT_WIDE(all, flat);
    cuda_begin(stream);
    return BY_TYPE(p->dtype, E,
        LAUNCH(k_swiglu_bwd<E>, blocks_for(p->n), THREADS, 0, stream, err, *p, wide));
}
