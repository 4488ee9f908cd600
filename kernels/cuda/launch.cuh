/* Starting kernels, element types, reductions in fixed trees.
 *
 *     template <class E> __global__ void k_rows(struct rmsnorm_fwd p) { ... }
 *     CUDA_OP(rmsnorm_fwd)                     // int cuda_rmsnorm_fwd(p, stream, err)
 *     {
 *         ... checks of shapes ...
 *         cuda_begin(stream);
 *         return BY_TYPE(p->dtype, E, LAUNCH(k_rows<E>, grid, block, 0, stream, err, *p));
 *     }
 *
 * Every function of one block must give the same bits whatever runs beside it: sums go lane, warp
 * (shuffle tree), warps in order. No floating-point atomics. */
#ifndef KERNELS_CUDA_LAUNCH_CUH
#define KERNELS_CUDA_LAUNCH_CUH

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "kernels/cuda/cuda.h"

typedef __nv_bfloat16 bf16;

#define CUDA_OP(op)                                                                      \
    extern "C" int cuda_##op(const struct op *p, glm_stream stream, struct glm_error *err)

#ifndef CUDA_EMULATED
/* Queues kernel<<<grid, block, shared, stream>>>(...) unless the stream is dry or the grid empty.
 * A kernel that takes more than 48 KiB of shared memory is told so first. */
#define LAUNCH(kernel, grid, block, shared, s, err, ...)                                 \
    cuda_launch((const void *)(kernel), #kernel, dim3(grid), (int)(shared), (s), (err),  \
        [&](dim3 grid_) {                                                                \
            (kernel)<<<grid_, (block), (size_t)(shared), (s)->stream>>>(__VA_ARGS__);    \
        })

template <class F>
static inline int cuda_launch(const void *kernel, const char *name, dim3 grid, int shared,
    glm_stream s, struct glm_error *err, F go)
{
    if (s->dry || grid.x == 0 || grid.y == 0 || grid.z == 0)
        return (int)err->code;
    if (shared > 48 * 1024
        && cuda_check(cudaFuncSetAttribute(
                          kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared),
               name, err)
            != 0)
        return (int)err->code;
    go(grid);
    return cuda_check(cudaGetLastError(), name, err);
}
#endif

/* ---- element types ---------------------------------------------------------------------------- */

/* call with E the element type; call must be an int expression. The type was checked before. */
#define BY_TYPE(dtype, E, ...)                                                           \
    ((dtype) == GLM_BF16 ? ([&] { typedef bf16 E; return (int)(__VA_ARGS__); }())        \
                         : ([&] { typedef float E; return (int)(__VA_ARGS__); }()))

static __device__ inline float get(float x) { return x; }
static __device__ inline float get(bf16 x) { return __bfloat162float(x); }
template <class E> static __device__ inline E put(float x);
template <> __device__ inline float put<float>(float x) { return x; }
template <> __device__ inline bf16 put<bf16>(float x) { return __float2bfloat16_rn(x); }
/* Rounding to the element type and back. */
template <class E> static __device__ inline float low(float x) { return get(put<E>(x)); }

/* ---- reductions ------------------------------------------------------------------------------- */

enum { WARP = 32 };

static __device__ inline float warp_sum(float x)
{
#pragma unroll
    for (int k = 16; k > 0; k /= 2)
        x += __shfl_xor_sync(0xFFFFFFFFu, x, k);
    return x;
}

static __device__ inline float warp_max(float x)
{
#pragma unroll
    for (int k = 16; k > 0; k /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, k));
    return x;
}

/* Of a whole block of at most 1024 threads, a multiple of 32, the result in every thread. `room` is
 * shared memory of 32 floats that nothing else uses; may be called again at once. */
static __device__ inline float block_sum(float x, float *room)
{
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int warps = blockDim.x / WARP;
    x = warp_sum(x);
    __syncthreads();
    if (lane == 0)
        room[warp] = x;
    __syncthreads();
    float sum = 0;
    for (int w = 0; w < warps; w++)
        sum += room[w];
    return sum;
}

static __device__ inline float block_max(float x, float *room)
{
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int warps = blockDim.x / WARP;
    x = warp_max(x);
    __syncthreads();
    if (lane == 0)
        room[warp] = x;
    __syncthreads();
    float most = room[0];
    for (int w = 1; w < warps; w++)
        most = fmaxf(most, room[w]);
    return most;
}

static inline unsigned blocks_of(int64_t n, int64_t per)
{
    return (unsigned)((n + per - 1) / per);
}

#endif
