/* Element types by name and width: one table, the spelling of safetensors. */
#include "kernels/base/dtype.h"

#include <assert.h>
#include <string.h>

static const struct {
    const char *name;
    int bits;
} types[GLM_DTYPE_COUNT] = {
    [GLM_BOOL] = {"BOOL", 8},
    [GLM_U8] = {"U8", 8},
    [GLM_I8] = {"I8", 8},
    [GLM_I16] = {"I16", 16},
    [GLM_U16] = {"U16", 16},
    [GLM_I32] = {"I32", 32},
    [GLM_U32] = {"U32", 32},
    [GLM_I64] = {"I64", 64},
    [GLM_U64] = {"U64", 64},
    [GLM_F16] = {"F16", 16},
    [GLM_BF16] = {"BF16", 16},
    [GLM_F32] = {"F32", 32},
    [GLM_F64] = {"F64", 64},
    [GLM_C64] = {"C64", 64}, /* complex of two F32 */
    [GLM_F8_E4M3] = {"F8_E4M3", 8},
    [GLM_F8_E5M2] = {"F8_E5M2", 8},
    [GLM_F8_E8M0] = {"F8_E8M0", 8},
    [GLM_F8_E4M3FNUZ] = {"F8_E4M3FNUZ", 8},
    [GLM_F8_E5M2FNUZ] = {"F8_E5M2FNUZ", 8},
    [GLM_F6_E2M3] = {"F6_E2M3", 6},
    [GLM_F6_E3M2] = {"F6_E3M2", 6},
    [GLM_F4] = {"F4", 4},
};

const char *glm_dtype_name(enum glm_dtype dtype)
{
    assert(dtype >= 0 && dtype < GLM_DTYPE_COUNT);
    return types[dtype].name;
}

bool glm_dtype_find(const char *name, size_t length, enum glm_dtype *out)
{
    for (int i = 0; i < GLM_DTYPE_COUNT; i++)
        if (strlen(types[i].name) == length && memcmp(types[i].name, name, length) == 0) {
            *out = (enum glm_dtype)i;
            return true;
        }
    return false;
}

int glm_dtype_bits(enum glm_dtype dtype)
{
    assert(dtype >= 0 && dtype < GLM_DTYPE_COUNT);
    return types[dtype].bits;
}

size_t glm_dtype_size(enum glm_dtype dtype)
{
    const int bits = glm_dtype_bits(dtype);

    assert(bits % 8 == 0);
    return (size_t)bits / 8;
}
