/* Attention of up to 64 heads over one latent key a token (the absorbed form): 576 dimensions, the
 * first 512 of them the value. What forward and backward share.
 *
 * A block has one row of the pack, its heads the 64 rows of the products; the keys of its set, or all
 * earlier ones, are gathered in tiles of 64. In shared memory everything is panels of 64 columns. */
#ifndef KERNELS_CUDA_ATTENTION_LATENT_CUH
#define KERNELS_CUDA_ATTENTION_LATENT_CUH

#include "kernels/cuda/attention_wgmma.cuh"
#include "kernels/cuda/wgmma_256.cuh"

enum { HEADS = 64, LATENT = 576, VALUE = 512, K_PANELS = 9, V_PANELS = 8 };
enum { PANEL = 64 * 128, K_TILE = K_PANELS * PANEL, V_TILE = V_PANELS * PANEL };

template <class P> static inline bool latent_serves(const P *p)
{
    return p->dtype == GLM_BF16 && p->Nk == 1 && p->N <= HEADS && p->Dq == LATENT
        && p->Dv == VALUE && p->v == p->k && p->v_stride == p->k_stride
        && p->k_stride % 8 == 0 && p->scale > 0
        && (((uintptr_t)p->q | (uintptr_t)p->k | (uintptr_t)p->o) & 15) == 0;
}

/* As keys_of. Sets are mostly as full as they can be: one look instead of a search. */
template <class P> static __device__ inline struct row_keys latent_keys(const P &p, int64_t t)
{
    const int64_t first = p.cu_seqlens[sequence_of(p.cu_seqlens, p.S, t)];

    if (p.index == NULL)
        return {NULL, first, (int)(t + 1 - first)};
    const int32_t *index = p.index + t * p.K;
    const int most = (int)(t + 1 - first < p.K ? t + 1 - first : p.K);
    return {index, 0, index[most - 1] >= 0 ? most : set_size(index, most)};
}

#ifdef ATTENTION_WGMMA

/* The rows of the pack that this thread gathers of key tile j: -1 behind the last. */
static __device__ inline void tile_keys(const struct row_keys &keys, int j, int row[2])
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int at = j * 64 + threadIdx.x / 8 + 32 * half;
        row[half] = at < keys.count ? (int)key_at(keys, at) : -1;
    }
}

/* Rows threadIdx.x/8 and + 32 of a tile of 64, 8 threads a row: from row[] of `from`, zeros for -1. */
template <int PANELS>
static __device__ inline void gather(
    uint32_t to, const bf16 *from, int64_t stride, const int row[2])
{
    const int chunk = threadIdx.x % 8;

#pragma unroll
    for (int half = 0; half < 2; half++) {
        const bf16 *x = from + (row[half] < 0 ? 0 : row[half]) * stride + chunk * 8;
        const uint32_t y =
            to + chunk_at<ROW_BYTES>((int)threadIdx.x / 8 + 32 * half, chunk);
#pragma unroll
        for (int i = 0; i < PANELS; i++)
            ptx_copy(y + (uint32_t)(i * PANEL), x + i * 64, row[half] < 0 ? 0 : 16);
    }
}

/* The rows of heads that this thread gathers. */
static __device__ inline void head_rows(int N, int row[2])
{
    row[0] = (int)threadIdx.x / 8 < N ? (int)threadIdx.x / 8 : -1;
    row[1] = (int)threadIdx.x / 8 + 32 < N ? (int)threadIdx.x / 8 + 32 : -1;
}

/* s = 64 rows of A times rows [col, +32) of B, along PANELS panels. */
template <int PANELS>
static __device__ inline void half_products(
    float (&s)[16], uint32_t a, uint32_t b, int col)
{
    b += (uint32_t)(col * ROW_BYTES);
#pragma unroll
    for (int k = 0; k < PANELS * 4; k++)
        ptx_wgmma_32<0, 0>(s, wgmma_k(a + k / 4 * PANEL + k % 4 * 32),
            wgmma_k(b + k / 4 * PANEL + k % 4 * 32), k > 0);
}

#endif

int attention_latent_fwd(
    const struct attention_fwd *p, glm_stream stream, struct glm_error *err);
int attention_latent_bwd(
    const struct attention_bwd *p, glm_stream stream, struct glm_error *err);

#endif
