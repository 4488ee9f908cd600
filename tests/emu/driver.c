/* The driver's maker of tensor maps, with the checks that it makes. */
#include "tests/emu/tensormap.h"

#include <cuda.h>
#include <string.h>

static CUresult encode(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank,
    void *base, const cuuint64_t *size, const cuuint64_t *stride, const cuuint32_t *box,
    const cuuint32_t *step, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
    CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill)
{
    struct emu_tensor t = {.base = base,
        .size = {1, 1, 1},
        .stride = {2, 0, 0},
        .box = {1, 1, 1},
        .rank = (int)rank};

    (void)promotion;
    if (type != CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 || rank < 1 || rank > 3
        || (uintptr_t)base % 16 != 0 || interleave != 0 || fill != 0
        || swizzle != CU_TENSOR_MAP_SWIZZLE_128B || box[0] * 2 != 128)
        return CUDA_ERROR_INVALID_VALUE;
    for (int i = 0; i < t.rank; i++) {
        if (size[i] < 1 || size[i] > (cuuint64_t)1 << 32 || box[i] < 1 || box[i] > 256
            || step[i] != 1)
            return CUDA_ERROR_INVALID_VALUE;
        if (i > 0 && (stride[i - 1] % 16 != 0 || stride[i - 1] >> 40 != 0))
            return CUDA_ERROR_INVALID_VALUE;
        t.size[i] = (int64_t)size[i];
        t.box[i] = (int)box[i];
        if (i > 0)
            t.stride[i] = (int64_t)stride[i - 1];
    }
    _Static_assert(sizeof t <= sizeof *map, "it fits");
    memcpy(map, &t, sizeof t);
    return CUDA_SUCCESS;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function,
    unsigned version, unsigned long long flags,
    enum cudaDriverEntryPointQueryResult *result)
{
    union {
        CUresult (*f)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
            const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
            const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
            CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
        void *p;
    } found = {encode};

    (void)version;
    (void)flags;
    *function = strcmp(symbol, "cuTensorMapEncodeTiled") == 0 ? found.p : NULL;
    *result = cudaDriverEntryPointSuccess;
    return cudaSuccess;
}
