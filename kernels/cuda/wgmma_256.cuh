/* The widest wgmma with both inputs in shared memory; the rest of wgmma.cuh applies. */
#ifndef KERNELS_CUDA_WGMMA_256_CUH
#define KERNELS_CUDA_WGMMA_256_CUH

#include "kernels/cuda/wgmma.cuh"

#ifdef CUDA_EMULATED
template <int A_MN, int B_MN>
static inline void ptx_wgmma_256(float (&d)[128], uint64_t a, uint64_t b, int more)
{
    emu_wgmma_shared(d, 256, a, A_MN, b, B_MN, more);
}
#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)

#define D4_(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define D16_(d, i) D4_(d, i), D4_(d, i + 4), D4_(d, i + 8), D4_(d, i + 12)
#define D64_(d, i) D16_(d, i), D16_(d, i + 16), D16_(d, i + 32), D16_(d, i + 48)

/* A and B are read along M / N where A_MN / B_MN is 1. more: onto d, not anew. */
template <int A_MN, int B_MN>
static __device__ inline void ptx_wgmma_256(float (&d)[128], uint64_t a, uint64_t b, int more)
{
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %130, 0; "
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,"
        "%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,"
        "%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,"
        "%59,%60,%61,%62,%63,%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,"
        "%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,%96,"
        "%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,"
        "%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127}, "
        "%128, %129, p, 1, 1, %131, %132;}"
        : D64_(d, 0), D64_(d, 64)
        : "l"(a), "l"(b), "r"(more), "n"(A_MN), "n"(B_MN)
        : "memory");
}

#undef D4_
#undef D16_
#undef D64_
#endif

#endif
