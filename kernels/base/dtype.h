/* Element types, by the names that safetensors gives them. */
#ifndef KERNELS_BASE_DTYPE_H
#define KERNELS_BASE_DTYPE_H

#include <stdbool.h>
#include <stddef.h>

enum glm_dtype {
    GLM_BOOL,
    GLM_U8,
    GLM_I8,
    GLM_I16,
    GLM_U16,
    GLM_I32,
    GLM_U32,
    GLM_I64,
    GLM_U64,
    GLM_F16,
    GLM_BF16,
    GLM_F32,
    GLM_F64,
    GLM_C64,
    GLM_F8_E4M3,
    GLM_F8_E5M2,
    GLM_F8_E8M0,
    GLM_F8_E4M3FNUZ,
    GLM_F8_E5M2FNUZ,
    GLM_F6_E2M3,
    GLM_F6_E3M2,
    GLM_F4,
    GLM_DTYPE_COUNT
};

const char *glm_dtype_name(enum glm_dtype dtype); /* "BF16"; static */
/* name need not be terminated. False if there is no such type. */
bool glm_dtype_find(const char *name, size_t length, enum glm_dtype *out);
int glm_dtype_bits(enum glm_dtype dtype); /* 4, 6, 8, 16, 32, 64 */
/* Bytes of one element; only for types of whole bytes. */
size_t glm_dtype_size(enum glm_dtype dtype);

#endif
