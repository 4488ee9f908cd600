/* What the kernels of attention that use wgmma share. */
#ifndef KERNELS_CUDA_ATTENTION_WGMMA_CUH
#define KERNELS_CUDA_ATTENTION_WGMMA_CUH

#include "kernels/cuda/attention_fast.cuh"
#include "kernels/cuda/wgmma.cuh"

#if defined(CUDA_EMULATED) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define ATTENTION_WGMMA 1 /* elsewhere the kernels are empty and never started */

enum { ROW_BYTES = 128 }; /* of a panel */

/* Copies that were asked for are there for everybody, and for wgmma. */
static __device__ inline void arrived(void)
{
    ptx_copy_wait<0>();
    ptx_shared_to_async();
    __syncthreads();
}

/* A warp's 16 rows x 32 keys to row t's 128 bytes of keys. */
static __device__ inline void store_tile(
    unsigned char *to, int row, int col, const float (&x)[16])
{
    const int l = threadIdx.x % WARP;

#pragma unroll
    for (int i = 0; i < 8; i++)
        *(uint32_t *)(to
            + chunk_at<ROW_BYTES>(row + l / 4 + 8 * (i % 2), col / 8 + i / 2)
            + l % 4 * 4) = ptx_pack(x[2 * i], x[2 * i + 1]);
}

#endif
#endif
