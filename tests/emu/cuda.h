/* The part of the driver's interface that kernels/cuda/tensormap.c calls. */
#ifndef TESTS_EMU_CUDA_H
#define TESTS_EMU_CUDA_H

#include <cuda_runtime_api.h>
#include <stdint.h>

typedef uint32_t cuuint32_t;
typedef uint64_t cuuint64_t;
typedef int CUresult;
typedef int CUtensorMapDataType, CUtensorMapInterleave, CUtensorMapSwizzle;
typedef int CUtensorMapL2promotion, CUtensorMapFloatOOBfill;
typedef struct {
    _Alignas(64) uint64_t opaque[16];
} CUtensorMap;

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 = 9,
    CU_TENSOR_MAP_INTERLEAVE_NONE = 0,
    CU_TENSOR_MAP_SWIZZLE_128B = 3,
    CU_TENSOR_MAP_L2_PROMOTION_L2_256B = 3,
    CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE = 0
};

enum cudaDriverEntryPointQueryResult { cudaDriverEntryPointSuccess = 0 };
enum { cudaEnableDefault = 0 };

cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function,
    unsigned version, unsigned long long flags,
    enum cudaDriverEntryPointQueryResult *result);

#endif
