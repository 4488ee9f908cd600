/* What the kernels of attention share: which keys a row sees, and the paths that attention.cu
 * chooses between.
 *
 * A path gets the operation with its strides resolved (k_stride and v_stride never 0) and T > 0.
 * cuda_begin was called; scratch is the path's. */
#ifndef KERNELS_CUDA_ATTENTION_CUH
#define KERNELS_CUDA_ATTENTION_CUH

#include "kernels/cuda/launch.cuh"

/* Any shape, any type. */
int attention_plain_fwd(
    const struct attention_fwd *p, glm_stream stream, struct glm_error *err);
int attention_plain_bwd(
    const struct attention_bwd *p, glm_stream stream, struct glm_error *err);

/* ---- the keys of a row ------------------------------------------------------------------------ */

/* The sequence of row t: the last that begins at or before it. */
static __device__ inline int sequence_of(const int32_t *cu_seqlens, int64_t S, int64_t t)
{
    int64_t begin = 0, end = S;

    while (end - begin > 1) {
        const int64_t middle = begin + (end - begin) / 2;
        if (cu_seqlens[middle] <= t)
            begin = middle;
        else
            end = middle;
    }
    return (int)begin;
}

/* The entries in front of the first -1. */
static __device__ inline int set_size(const int32_t *index, int64_t K)
{
    int64_t begin = 0, end = K;

    while (begin < end) {
        const int64_t middle = begin + (end - begin) / 2;
        if (index[middle] >= 0)
            begin = middle + 1;
        else
            end = middle;
    }
    return (int)begin;
}

/* Whether a set of n rows holds row s. */
static __device__ inline bool set_holds(const int32_t *index, int n, int64_t s)
{
    int begin = 0, end = n;

    while (begin < end) {
        const int middle = begin + (end - begin) / 2;
        if (index[middle] < s)
            begin = middle + 1;
        else
            end = middle;
    }
    return begin < n && index[begin] == s;
}

/* Key j of a row, 0 <= j < count, is row index[j] of the pack, or first + j. */
struct row_keys {
    const int32_t *index;
    int64_t first;
    int count;
};

template <class P> static __device__ inline struct row_keys keys_of(const P &p, int64_t t)
{
    const int64_t first = p.cu_seqlens[sequence_of(p.cu_seqlens, p.S, t)];

    if (p.index == NULL)
        return {NULL, first, (int)(t + 1 - first)};
    const int32_t *index = p.index + t * p.K;
    return {index, 0, set_size(index, p.K)};
}

static __device__ inline int64_t key_at(const struct row_keys &k, int j)
{
    return k.index != NULL ? k.index[j] : k.first + j;
}

#endif
