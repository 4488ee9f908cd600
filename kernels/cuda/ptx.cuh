/* Instructions that C has no words for, each behind a small function that names its section of the
 * PTX ISA. Fragments: lane l holds rows l/4 (and +8), columns 2*(l%4), +1 (and +8) of a 16x16 tile of
 * A or a 16x8 tile of C; B [16,8] lies the same with rows and columns exchanged. */
#ifndef KERNELS_CUDA_PTX_CUH
#define KERNELS_CUDA_PTX_CUH

#include <cuda_bf16.h>
#include <stdint.h>

#ifndef CUDA_EMULATED

/* A pointer into shared memory as the 32-bit address that instructions take. */
static __device__ inline uint32_t ptx_shared(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* 9.7.14.5.8 (mma.sync m16n8k16): c += A B, BF16 in, F32 sums. */
static __device__ inline void ptx_mma(float c[4], const uint32_t a[4], const uint32_t b[2])
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* 9.7.14.5.15 (ldmatrix): four 8x8 matrices of 16-bit elements; lane l gives the address of row l%8
 * of matrix l/8 and gets elements 2*(l%4), +1 of row l/4 of each. */
static __device__ inline void ptx_ldmatrix(uint32_t r[4], uint32_t row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(row)
                 : "memory");
}

/* The same of the transposed matrices: rows 2*(l%4), +1 of column l/4. */
static __device__ inline void ptx_ldmatrix_t(uint32_t r[4], uint32_t row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(row)
                 : "memory");
}

/* 9.7.9.25.3 (cp.async): 16 bytes from global to shared memory, the ones from `bytes` on zero. */
static __device__ inline void ptx_copy(uint32_t to, const void *from, int bytes)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to),
        "l"(from), "r"(bytes)
        : "memory");
}

static __device__ inline void ptx_copy_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits until at most N of this thread's committed groups are under way. */
template <int N> static __device__ inline void ptx_copy_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* 9.7.3.21 (ex2): 2^x to 2 units of the last place; 2^-inf = 0. */
static __device__ inline float ptx_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* 9.7.3.12 (max): 0 of what is below, and NaN of NaN. */
static __device__ inline float ptx_relu(float x)
{
    float y;
    asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(y) : "f"(x));
    return y;
}

#endif /* CUDA_EMULATED: tests/emu has their meaning in plain C */

/* Two floats rounded to BF16, the first in the lower half. */
static __device__ inline uint32_t ptx_pack(float lo, float hi)
{
    const __nv_bfloat162 pair = __floats2bfloat162_rn(lo, hi);
    return *(const uint32_t *)&pair;
}

#endif
