/* Arrays as the GPU's copy engine sees them; kernels use them through tma.cuh. */
#ifndef KERNELS_CUDA_TENSORMAP_H
#define KERNELS_CUDA_TENSORMAP_H

#ifdef __cplusplus
extern "C" {
#endif

#include "kernels/cuda/cuda.h"

/* The driver's CUtensorMap. */
#ifdef __cplusplus
struct alignas(64) tensor_map {
    char opaque[128];
};
#else
struct tensor_map {
    _Alignas(64) char opaque[128];
};
#endif

/* BF16, `rank` dimensions (2 or 3) of `size` elements, the first contiguous; stride[i] bytes between
 * neighbours in dimension i + 1, multiples of 16, as is base. A box takes box[i] elements, box[0] 64.
 * On a dry stream nothing is made. GLM_EDEVICE with a sentence. */
int cuda_tensor_map(struct tensor_map *map, const void *base, int rank,
    const int64_t size[], const int64_t stride[], const int box[], glm_stream s,
    struct glm_error *err);

#ifdef __cplusplus
}
#endif
#endif
