/* What the kernels of heads of 256 dimensions share that use wgmma: 64 keys at a time, a warpgroup's 64
 * rows of O in 128 registers a thread. */
#ifndef KERNELS_CUDA_ATTENTION_ROWS_CUH
#define KERNELS_CUDA_ATTENTION_ROWS_CUH

#include "kernels/cuda/attention_wgmma.cuh"
#include "kernels/cuda/tensormap.h"

/* Rows of a block of two warpgroups, and the keys it takes at a time: panels of 64 columns. */
enum { ROWS = 128, KEYS = 64, PANEL = KEYS * 128, KEY_TILE = KEYS * 2 * HEAD };

#ifdef ATTENTION_WGMMA

/* x += P (registers) times 64 rows of 256 columns. */
static __device__ inline void add_product(
    float (&x)[128], const uint32_t (&p)[16], uint32_t b)
{
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++)
        ptx_wgmma_256_regs<1>(x, p + 4 * k, wgmma_mn(b + k * 16 * ROW_BYTES, PANEL), 1);
}

/* Both rows of a thread. */
static __device__ inline void softmax(float (&s)[32], const uint64_t seen[2], float scale2,
    float most[2], float sum[2], float shrink[2])
{
    if (__all_sync(0xFFFFFFFFu, (seen[0] & seen[1]) == ~(uint64_t)0)) {
        shrink[0] = online<false>(s, 0, 0, scale2, &most[0], &sum[0]);
        shrink[1] = online<false>(s, 1, 0, scale2, &most[1], &sum[1]);
    } else {
        shrink[0] = online<true>(s, 0, seen[0], scale2, &most[0], &sum[0]);
        shrink[1] = online<true>(s, 1, seen[1], scale2, &most[1], &sum[1]);
    }
}

/* Most tiles bring no new maximum. */
static __device__ inline void shrink_rows(float (&o)[128], const float shrink[2])
{
    if (!__any_sync(0xFFFFFFFFu, shrink[0] != 1 || shrink[1] != 1))
        return;
#pragma unroll
    for (int i = 0; i < 128; i++)
        o[i] *= shrink[i / 2 % 2];
}

#endif

/* A map of [T, N heads] rows, `stride` elements apart, for boxes of 64 columns and `rows` rows. */
int attention_map(struct tensor_map *map, const void *base, int64_t T, int64_t N,
    int64_t stride, int rows, glm_stream s, struct glm_error *err);

#endif
