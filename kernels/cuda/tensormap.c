#include "kernels/cuda/tensormap.h"

#include <cuda.h>
#include <string.h>

_Static_assert(sizeof(struct tensor_map) == sizeof(CUtensorMap), "the driver's size");

typedef CUresult encode_fn(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
    const cuuint64_t *, const cuuint64_t *, const cuuint32_t *, const cuuint32_t *,
    CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
    CUtensorMapFloatOOBfill);

/* The driver's function; this library is not linked to the driver, so that it loads without one. */
static encode_fn *find(struct glm_error *err)
{
    union {
        void *p;
        encode_fn *f;
    } entry = {NULL};
    enum cudaDriverEntryPointQueryResult result;

    if (cuda_check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry.p,
                       12000, cudaEnableDefault, &result),
            "cuTensorMapEncodeTiled", err)
        != 0)
        return NULL;
    if (result != cudaDriverEntryPointSuccess || entry.p == NULL) {
        glm_fail(err, GLM_EDEVICE, "CUDA: the driver has no cuTensorMapEncodeTiled");
        return NULL;
    }
    return entry.f;
}

int cuda_tensor_map(struct tensor_map *map, const void *base, int rank,
    const int64_t size[], const int64_t stride[], const int box[], glm_stream s,
    struct glm_error *err)
{
    static const cuuint32_t ones[3] = {1, 1, 1};
    cuuint64_t sizes[3] = {1, 1, 1}, strides[3] = {0};
    cuuint32_t boxes[3] = {1, 1, 1};
    CUtensorMap out;
    union {
        const void *in;
        void *out;
    } address = {base};

    if (s->dry)
        return (int)err->code;
    encode_fn *const encode = find(err);
    if (encode == NULL)
        return (int)err->code;
    for (int i = 0; i < rank; i++) {
        sizes[i] = (cuuint64_t)size[i];
        boxes[i] = (cuuint32_t)box[i];
        if (i + 1 < rank)
            strides[i] = (cuuint64_t)stride[i];
    }
    const CUresult status = encode(&out, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        (cuuint32_t)rank, address.out, sizes, strides, boxes, ones,
        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (status != CUDA_SUCCESS)
        return glm_fail(err, GLM_EDEVICE,
            "CUDA: no tensor map of %lld x %lld x %lld elements (status %d)",
            (long long)sizes[0], (long long)sizes[1], (long long)sizes[2], (int)status);
    memcpy(map, &out, sizeof out);
    return (int)err->code;
}
