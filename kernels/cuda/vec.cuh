/* Several elements in one access of up to 16 bytes.
 *
 *     vec<E, V> a = vec_load<V>(x + i);      // x + i aligned to V elements
 *     vec_store(y + i, a);
 *
 * A kernel is written for V elements a thread and made twice: with V filling 16 bytes, and with 1 for
 * rows or pointers that are not aligned; vec_fits says on the host which one to take. The element
 * order of sums does not depend on V. */
#ifndef KERNELS_CUDA_VEC_CUH
#define KERNELS_CUDA_VEC_CUH

#include "kernels/cuda/launch.cuh"

template <class E, int V> struct alignas(sizeof(E) * V) vec {
    E at[V];
};

template <int V, class E> static __device__ inline vec<E, V> vec_load(const E *p)
{
    return *(const vec<E, V> *)p;
}

template <class E, int V> static __device__ inline void vec_store(E *p, vec<E, V> x)
{
    *(vec<E, V> *)p = x;
}

/* A store of 16 bytes that does not push others out of the second-level cache. */
template <class E, int V> static __device__ inline void vec_stream(E *p, vec<E, V> x)
{
#ifndef CUDA_EMULATED
    if (sizeof x == 16) {
        __stcs((uint4 *)p, *(const uint4 *)&x);
        return;
    }
#endif
    vec_store(p, x);
}

/* Elements in 16 bytes. */
template <class E> static constexpr int vec_wide = 16 / (int)sizeof(E);

/* Whether rows of `row` elements of `size` bytes that begin at p can be walked in 16-byte accesses.
 * NULL fits. */
static inline bool vec_fits(const void *p, int64_t row, size_t size)
{
    return (uintptr_t)p % 16 == 0 && (size_t)row * size % 16 == 0;
}

#endif
