/* Conversion between BF16 and F32: eight neighbours a thread, bound by memory. */
#include "kernels/cuda/eight.cuh"

enum { THREADS = 256 };

static __device__ inline void store(float *y, const float *v, int n, bool wide)
{
    eight_put(y, v, n, wide);
}

static __device__ inline void store(bf16 *y, const float *v, int n, bool wide)
{
    eight_narrow(y, v, n, wide);
}

template <class From, class To>
static __global__ void k_convert(To *y, const From *x, int64_t all, bool wide)
{
    const int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * EIGHT;
    const int n = eight_part(i, all);
    float v[EIGHT];

    eight_get(v, x + i, n, wide);
    store(y + i, v, n, wide);
}

CUDA_OP(convert)
{
    static const int64_t flat[] = {0};
    if (cuda_type("convert", p->from, err) != 0 || cuda_type("convert", p->to, err) != 0)
        return err->code;
    const void *const all[] = {p->y, p->x};
    const bool wide = EIGHT_WIDE(all, flat);
    const unsigned grid = blocks_of(p->n, (int64_t)THREADS * EIGHT);
    cuda_begin(stream);
    return BY_TYPE(p->from, From,
        BY_TYPE(p->to, To,
            LAUNCH((k_convert<From, To>), grid, THREADS, 0, stream, err, (To *)p->y,
                (const From *)p->x, p->n, wide)));
}
