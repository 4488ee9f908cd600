#include "verify/element.h"

#include <string.h>

bool element_known(enum glm_dtype dtype)
{
    return glm_dtype_bits(dtype) >= 8 && dtype != GLM_C64;
}

bool element_is_float(enum glm_dtype dtype)
{
    switch (dtype) {
    case GLM_F16:
    case GLM_BF16:
    case GLM_F32:
    case GLM_F64:
    case GLM_F8_E4M3:
    case GLM_F8_E5M2:
    case GLM_F8_E8M0:
    case GLM_F8_E4M3FNUZ:
    case GLM_F8_E5M2FNUZ:
        return true;
    default:
        return false;
    }
}

/* The raw code, zero-extended. Data may lie anywhere. */
static uint64_t element_code(const void *p, int64_t i, size_t size)
{
    const unsigned char *const at = (const unsigned char *)p + (size_t)i * size;
    uint64_t code = 0;
    memcpy(&code, at, size); /* little-endian, like the format */
    return code;
}

static double element_f32(uint32_t code)
{
    float f;
    memcpy(&f, &code, sizeof f);
    return f;
}

/* A small float of e exponent and m mantissa bits. ieee: the top exponent is Inf and NaN. */
static double element_small(uint32_t code, int e, int m, int bias, bool ieee)
{
    const uint32_t mantissa = code & ((1u << m) - 1),
                   exponent = code >> m & ((1u << e) - 1);
    const double sign = code >> (e + m) & 1 ? -1.0 : 1.0;
    if (ieee && exponent == (1u << e) - 1)
        return mantissa != 0 ? NAN : sign * INFINITY;
    if (exponent == 0)
        return sign * ldexp((double)mantissa, 1 - bias - m);
    return sign * ldexp((double)(mantissa | 1u << m), (int)exponent - bias - m);
}

static double element_f8(enum glm_dtype dtype, uint32_t code)
{
    switch (dtype) {
    case GLM_F8_E4M3: /* no infinities; S.1111.111 is NaN */
        return (code & 0x7f) == 0x7f ? NAN : element_small(code, 4, 3, 7, false);
    case GLM_F8_E5M2:
        return element_small(code, 5, 2, 15, true);
    case GLM_F8_E8M0:
        return code == 0xff ? NAN : ldexp(1.0, (int)code - 127);
    case GLM_F8_E4M3FNUZ: /* the code of -0 is the only NaN */
        return code == 0x80 ? NAN : element_small(code, 4, 3, 8, false);
    default:
        return code == 0x80 ? NAN : element_small(code, 5, 2, 16, false);
    }
}

double element_value(enum glm_dtype dtype, const void *p, int64_t i)
{
    const uint64_t code = element_code(p, i, glm_dtype_size(dtype));
    double d;
    switch (dtype) {
    case GLM_BF16:
        return element_f32((uint32_t)code << 16);
    case GLM_F32:
        return element_f32((uint32_t)code);
    case GLM_F64:
        memcpy(&d, &code, sizeof d);
        return d;
    case GLM_F16:
        return element_small((uint32_t)code, 5, 10, 15, true);
    case GLM_I8:
        return (int8_t)code;
    case GLM_I16:
        return (int16_t)code;
    case GLM_I32:
        return (int32_t)code;
    case GLM_I64:
        return (double)(int64_t)code;
    case GLM_BOOL:
    case GLM_U8:
    case GLM_U16:
    case GLM_U32:
    case GLM_U64:
        return (double)code;
    default:
        return element_f8(dtype, (uint32_t)code);
    }
}

void element_values(enum glm_dtype dtype, const void *p, int64_t n, double *out)
{
    if (dtype == GLM_BF16) {
        const unsigned char *const bytes = p;
        for (int64_t i = 0; i < n; i++)
            out[i] = element_f32(
                (uint32_t)bytes[2 * i] << 16 | (uint32_t)bytes[2 * i + 1] << 24);
    } else if (glm_dtype_size(dtype) == 1) {
        double table[256];
        for (int c = 0; c < 256; c++) {
            const uint8_t code = (uint8_t)c;
            table[c] = element_value(dtype, &code, 0);
        }
        for (int64_t i = 0; i < n; i++)
            out[i] = table[((const unsigned char *)p)[i]];
    } else {
        for (int64_t i = 0; i < n; i++)
            out[i] = element_value(dtype, p, i);
    }
}

int64_t element_key(enum glm_dtype dtype, const void *p, int64_t i)
{
    const size_t size = glm_dtype_size(dtype);
    const uint64_t code = element_code(p, i, size);
    if (element_is_float(dtype) && dtype != GLM_F8_E8M0) {
        const uint64_t sign = (uint64_t)1 << (8 * size - 1);
        return code & sign ? -(int64_t)(code & (sign - 1)) : (int64_t)code;
    }
    switch (dtype) {
    case GLM_I8:
        return (int8_t)code;
    case GLM_I16:
        return (int16_t)code;
    case GLM_I32:
        return (int32_t)code;
    case GLM_U64: /* order kept, halves swapped around zero */
        return (int64_t)(code ^ (uint64_t)1 << 63);
    default:
        return (int64_t)code;
    }
}
