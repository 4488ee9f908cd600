/* wgmma, Hopper's product of a warpgroup (128 threads, 4 warps): d [64,N] += A [64,16] B [16,N], BF16
 * in, F32 sums (PTX ISA 9.7.15). Queued: d, and A in registers, must be left alone from
 * ptx_wgmma_begin until ptx_wgmma_wait says that the group is done; ptx_hold then keeps the compiler
 * from reading d too early.
 *
 * Operands in shared memory are panels of 64 elements (128 bytes) a row, as many rows as the tile
 * has, chunks of 16 bytes exchanged by 128-byte swizzle: chunk c of row r lies at c ^ (r & 7). A panel
 * begins at a multiple of 1024 bytes. Two readings: along the row is K (wgmma_k), or along the row is
 * M or N (wgmma_mn), then the rows are K and the panels lie `panel` bytes apart. Shared memory that
 * threads wrote, by stores or cp.async, needs ptx_shared_to_async before the barrier in front.
 *
 * Accumulators: d[4*i + ...] as in ptx_mma for columns [8*i, +8), the warp's rows [16*(warp%4), +16). */
#ifndef KERNELS_CUDA_WGMMA_CUH
#define KERNELS_CUDA_WGMMA_CUH

#include "kernels/cuda/ptx.cuh"

/* 9.7.15.5.1.2 (matrix descriptor), layout 1: 128-byte swizzle; offsets in 16 bytes. */
static __device__ inline uint64_t wgmma_k(uint32_t at)
{
    return (uint64_t)1 << 62 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 16
        | (at & 0x3FFFF) >> 4;
}

static __device__ inline uint64_t wgmma_mn(uint32_t at, uint32_t panel)
{
    return (uint64_t)1 << 62 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)(panel >> 4) << 16
        | (at & 0x3FFFF) >> 4;
}

#ifdef CUDA_EMULATED
#include <emu_wgmma.h>
#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* The compiler may not move uses of these registers across. */
template <int N> static __device__ inline void ptx_hold(float (&d)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}

static __device__ inline void ptx_wgmma_begin(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

static __device__ inline void ptx_wgmma_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Until at most N committed groups are under way. */
template <int N> static __device__ inline void ptx_wgmma_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

/* 9.7.13.4 (fence.proxy.async): what this thread wrote to shared memory is seen by wgmma. */
static __device__ inline void ptx_shared_to_async(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

#define D4_(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define D16_(d, i) D4_(d, i), D4_(d, i + 4), D4_(d, i + 8), D4_(d, i + 12)
#define D64_(d, i) D16_(d, i), D16_(d, i + 16), D16_(d, i + 32), D16_(d, i + 48)

/* A and B in shared memory, read along M / N where A_MN / B_MN is 1. more: onto d, not anew. */
template <int A_MN, int B_MN>
static __device__ inline void ptx_wgmma_32(float (&d)[16], uint64_t a, uint64_t b, int more)
{
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %18, 0; "
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, "
        "%16, %17, p, 1, 1, %19, %20;}"
        : D16_(d, 0)
        : "l"(a), "l"(b), "r"(more), "n"(A_MN), "n"(B_MN)
        : "memory");
}

template <int A_MN, int B_MN>
static __device__ inline void ptx_wgmma_64(float (&d)[32], uint64_t a, uint64_t b, int more)
{
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %34, 0; "
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,"
        "%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
        "%32, %33, p, 1, 1, %35, %36;}"
        : D16_(d, 0), D16_(d, 16)
        : "l"(a), "l"(b), "r"(more), "n"(A_MN), "n"(B_MN)
        : "memory");
}

template <int A_MN, int B_MN>
static __device__ inline void ptx_wgmma_128(float (&d)[64], uint64_t a, uint64_t b, int more)
{
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %66, 0; "
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,"
        "%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,"
        "%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,"
        "%59,%60,%61,%62,%63}, "
        "%64, %65, p, 1, 1, %67, %68;}"
        : D64_(d, 0)
        : "l"(a), "l"(b), "r"(more), "n"(A_MN), "n"(B_MN)
        : "memory");
}

/* N = 64, A in registers (fragments as in ptx_mma). */
template <int B_MN>
static __device__ inline void ptx_wgmma_64_regs(
    float (&d)[32], const uint32_t *a, uint64_t b, int more)
{
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %37, 0; "
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,"
        "%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
        "{%32,%33,%34,%35}, %36, p, 1, 1, %38;}"
        : D16_(d, 0), D16_(d, 16)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(more), "n"(B_MN)
        : "memory");
}

/* N = 256, A in registers (fragments as in ptx_mma). */
template <int B_MN>
static __device__ inline void ptx_wgmma_256_regs(
    float (&d)[128], const uint32_t *a, uint64_t b, int more)
{
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %133, 0; "
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,"
        "%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,"
        "%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,"
        "%59,%60,%61,%62,%63,%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,"
        "%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,%96,"
        "%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,"
        "%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127}, "
        "{%128,%129,%130,%131}, %132, p, 1, 1, %134;}"
        : D64_(d, 0), D64_(d, 64)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(more), "n"(B_MN)
        : "memory");
}

#undef D4_
#undef D16_
#undef D64_
#endif

#endif
