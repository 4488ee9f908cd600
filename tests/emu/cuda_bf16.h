/* BF16 and the conversions that kernels use; no arithmetic on it. */
#ifndef TESTS_EMU_CUDA_BF16_H
#define TESTS_EMU_CUDA_BF16_H

#include <cuda_runtime.h>

struct __nv_bfloat16 {
    unsigned short bits;
};

struct alignas(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;
};
typedef __nv_bfloat162 nv_bfloat162;
typedef __nv_bfloat16 nv_bfloat16;

static inline float __bfloat162float(__nv_bfloat16 x)
{
    return __uint_as_float((unsigned)x.bits << 16);
}

static inline __nv_bfloat16 __float2bfloat16_rn(float x)
{
    const unsigned u = __float_as_uint(x);

    if (x != x)
        return {0x7FFF};
    return {(unsigned short)((u + 0x7FFF + (u >> 16 & 1)) >> 16)};
}

static inline __nv_bfloat16 __float2bfloat16(float x)
{
    return __float2bfloat16_rn(x);
}
static inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 x)
{
    return x.bits;
}
static inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short x)
{
    return {x};
}
static inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y)
{
    return {__float2bfloat16_rn(x), __float2bfloat16_rn(y)};
}
static inline __nv_bfloat162 __float22bfloat162_rn(float2 v)
{
    return __floats2bfloat162_rn(v.x, v.y);
}
static inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 x, __nv_bfloat16 y)
{
    return {x, y};
}
static inline float2 __bfloat1622float2(__nv_bfloat162 v)
{
    return {__bfloat162float(v.x), __bfloat162float(v.y)};
}
static inline float __low2float(__nv_bfloat162 v)
{
    return __bfloat162float(v.x);
}
static inline float __high2float(__nv_bfloat162 v)
{
    return __bfloat162float(v.y);
}
static inline __nv_bfloat16 __low2bfloat16(__nv_bfloat162 v)
{
    return v.x;
}
static inline __nv_bfloat16 __high2bfloat16(__nv_bfloat162 v)
{
    return v.y;
}

#include <emu_ptx.h>

#endif
