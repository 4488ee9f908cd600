/* Eight neighbouring elements at a time: one 16-byte access in BF16, two in F32.
 *
 * A thread takes `n` of eight, 0 <= n <= 8; `wide` says that all addresses of eight are multiples of
 * 16 bytes, which the host finds (eight_wide). What is narrow or a tail goes element by element; the
 * numbers are the same. */
#ifndef KERNELS_CUDA_EIGHT_CUH
#define KERNELS_CUDA_EIGHT_CUH

#include "kernels/cuda/launch.cuh"

enum { EIGHT = 8 };

/* Of the elements from `at` on, how many of n a thread takes. */
static __device__ inline int eight_part(int64_t at, int64_t n)
{
    return n - at >= EIGHT ? EIGHT : n > at ? (int)(n - at) : 0;
}

static __device__ inline void eight_words(float *x, uint4 v)
{
    const unsigned w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int k = 0; k < 4; k++) {
        x[2 * k] = __uint_as_float(w[k] << 16);
        x[2 * k + 1] = __uint_as_float(w[k] & 0xFFFF0000u);
    }
}

/* Eight as they lie in memory, for a thread that holds many of them: in as few registers. */
template <class E> struct eight;
template <> struct eight<bf16> {
    uint4 v;
};
template <> struct eight<float> {
    float4 v[2];
};

static __device__ inline eight<bf16> eight_take(const bf16 *p)
{
    eight<bf16> x;
    x.v = *(const uint4 *)p;
    return x;
}

static __device__ inline eight<float> eight_take(const float *p)
{
    eight<float> x;
    x.v[0] = ((const float4 *)p)[0];
    x.v[1] = ((const float4 *)p)[1];
    return x;
}

static __device__ inline void eight_open(float *x, const eight<bf16> &e)
{
    eight_words(x, e.v);
}

static __device__ inline void eight_open(float *x, const eight<float> &e)
{
    const float4 a = e.v[0], b = e.v[1];
    x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w;
    x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
}

/* x[0..8) = p[0..n), zeros behind. */
template <class E>
static __device__ inline void eight_get(float *x, const E *p, int n, bool wide)
{
    if (wide && n == EIGHT) {
        eight_open(x, eight_take(p));
        return;
    }
#pragma unroll
    for (int k = 0; k < EIGHT; k++)
        x[k] = k < n ? get(p[k]) : 0;
}

static __device__ inline unsigned eight_pair(float even, float odd)
{
    return (unsigned)__bfloat16_as_ushort(put<bf16>(even))
        | (unsigned)__bfloat16_as_ushort(put<bf16>(odd)) << 16;
}

static __device__ inline void eight_put8(bf16 *p, const float *x)
{
    *(uint4 *)p = make_uint4(eight_pair(x[0], x[1]), eight_pair(x[2], x[3]),
        eight_pair(x[4], x[5]), eight_pair(x[6], x[7]));
}

static __device__ inline void eight_put8(float *p, const float *x)
{
    ((float4 *)p)[0] = make_float4(x[0], x[1], x[2], x[3]);
    ((float4 *)p)[1] = make_float4(x[4], x[5], x[6], x[7]);
}

template <class E>
static __device__ inline void eight_put(E *p, const float *x, int n, bool wide)
{
    if (wide && n == EIGHT) {
        eight_put8(p, x);
        return;
    }
#pragma unroll
    for (int k = 0; k < EIGHT; k++)
        if (k < n)
            p[k] = put<E>(x[k]);
}

/* Rounds as the hardware does, but a NaN keeps its sign and upper payload, as on the CPU. */
static __device__ inline bf16 narrow(float v)
{
    return v == v ? put<bf16>(v)
                  : __ushort_as_bfloat16((unsigned short)(__float_as_uint(v) >> 16 | 0x40));
}

static __device__ inline void eight_narrow(bf16 *y, const float *v, int n, bool wide)
{
    unsigned h[EIGHT];

#pragma unroll
    for (int k = 0; k < EIGHT; k++)
        h[k] = __bfloat16_as_ushort(narrow(v[k]));
    if (wide && n == EIGHT) {
        *(uint4 *)y = make_uint4(
            h[0] | h[1] << 16, h[2] | h[3] << 16, h[4] | h[5] << 16, h[6] | h[7] << 16);
        return;
    }
#pragma unroll
    for (int k = 0; k < EIGHT; k++)
        if (k < n)
            y[k] = __ushort_as_bfloat16((unsigned short)h[k]);
}

template <class E> static __device__ inline void eight_low(float *x)
{
#pragma unroll
    for (int k = 0; k < EIGHT; k++)
        x[k] = low<E>(x[k]);
}

/* The pointers are multiples of 16 bytes (NULL is) and the strides, in elements, of 8. */
#define EIGHT_WIDE(pointers, strides)                                                    \
    eight_wide(pointers, sizeof(pointers) / sizeof *(pointers), strides,                 \
        sizeof(strides) / sizeof *(strides))

static inline bool eight_wide(
    const void *const *p, size_t pointers, const int64_t *stride, size_t strides)
{
    for (size_t i = 0; i < pointers; i++)
        if ((uintptr_t)p[i] % 16 != 0)
            return false;
    for (size_t i = 0; i < strides; i++)
        if (stride[i] % EIGHT != 0)
            return false;
    return true;
}

/* Rows of `per` vectors to blocks of `threads`: as many rows a block as give each thread work. */
static inline int eight_rows(int64_t per, int threads)
{
    return per >= threads ? 1 : (int)(threads / per);
}

#endif
