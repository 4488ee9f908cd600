/* HDF5 types, fill values and attributes of the checkpoint's datasets. */
#include "ckpt/h5types.h"

#include <string.h>

#include "ckpt/h5error.h"

static hid_t h5type_bf16(void)
{
    const hid_t t = H5Tcopy(H5T_IEEE_F32LE);
    /* Sign at bit 15, 8 exponent bits from bit 7, 7 mantissa bits from bit 0. Fields move before
     * the size shrinks: HDF5 refuses a size that cuts a field. */
    if (t < 0 || H5Tset_fields(t, 15, 7, 8, 0, 7) < 0 || H5Tset_size(t, 2) < 0
        || H5Tset_ebias(t, 127) < 0)
        return -1;
    return t;
}

static hid_t h5type_c64(void)
{
    const hid_t t = H5Tcreate(H5T_COMPOUND, 8);
    if (t < 0 || H5Tinsert(t, "r", 0, H5T_IEEE_F32LE) < 0
        || H5Tinsert(t, "i", 4, H5T_IEEE_F32LE) < 0)
        return -1;
    return t;
}

static hid_t h5type_f16(void)
{
    const hid_t t = H5Tcopy(H5T_IEEE_F32LE);
    if (t < 0 || H5Tset_fields(t, 15, 10, 5, 0, 10) < 0 || H5Tset_size(t, 2) < 0
        || H5Tset_ebias(t, 15) < 0)
        return -1;
    return t;
}

hid_t h5type_new(enum glm_dtype dtype, struct glm_error *err)
{
    hid_t t = -1;
    switch (dtype) {
    case GLM_BF16:
        t = h5type_bf16();
        break;
    case GLM_F16:
        t = h5type_f16();
        break;
    case GLM_F32:
        t = H5Tcopy(H5T_IEEE_F32LE);
        break;
    case GLM_F64:
        t = H5Tcopy(H5T_IEEE_F64LE);
        break;
    case GLM_C64:
        t = h5type_c64();
        break;
    case GLM_I8:
        t = H5Tcopy(H5T_STD_I8LE);
        break;
    case GLM_I16:
        t = H5Tcopy(H5T_STD_I16LE);
        break;
    case GLM_U16:
        t = H5Tcopy(H5T_STD_U16LE);
        break;
    case GLM_I32:
        t = H5Tcopy(H5T_STD_I32LE);
        break;
    case GLM_U32:
        t = H5Tcopy(H5T_STD_U32LE);
        break;
    case GLM_I64:
        t = H5Tcopy(H5T_STD_I64LE);
        break;
    case GLM_U64:
        t = H5Tcopy(H5T_STD_U64LE);
        break;
    default:
        if (glm_dtype_bits(dtype) != 8) {
            glm_fail(err, GLM_EFORMAT,
                "elements of type %s are not whole bytes; the checkpoint"
                " cannot store them",
                glm_dtype_name(dtype));
            return -1;
        }
        t = H5Tcopy(H5T_STD_U8LE);
    }
    if (t < 0)
        h5_fail(err, "cannot make the HDF5 type of %s", glm_dtype_name(dtype));
    return t;
}

void h5type_fill(enum glm_dtype dtype, unsigned char fill[8])
{
    static const struct {
        enum glm_dtype dtype;
        unsigned char bytes[8];
    } values[] = {
        {GLM_BF16, {0xC0, 0x7F}},
        {GLM_F16, {0x00, 0x7E}},
        {GLM_F32, {0x00, 0x00, 0xC0, 0x7F}},
        {GLM_F64, {0, 0, 0, 0, 0, 0, 0xF8, 0x7F}},
        {GLM_C64, {0x00, 0x00, 0xC0, 0x7F, 0x00, 0x00, 0xC0, 0x7F}},
        {GLM_F8_E4M3, {0x7F}},
        {GLM_F8_E5M2, {0x7F}},
        {GLM_F8_E8M0, {0xFF}},
        {GLM_F8_E4M3FNUZ, {0x80}},
        {GLM_F8_E5M2FNUZ, {0x80}},
        {GLM_I8, {0x80}},
        {GLM_I16, {0x00, 0x80}},
        {GLM_I32, {0, 0, 0, 0x80}},
        {GLM_I64, {0, 0, 0, 0, 0, 0, 0, 0x80}},
    };
    memset(fill, 0, 8);
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++)
        if (values[i].dtype == dtype)
            memcpy(fill, values[i].bytes, 8);
}

static int h5attr_put(hid_t object, const char *name, hid_t type, hid_t space,
    const void *value, struct glm_error *err)
{
    const hid_t a = type < 0 || space < 0
        ? -1
        : H5Acreate2(object, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
    if (a < 0 || H5Awrite(a, type, value) < 0)
        h5_fail(err, "cannot write attribute '%s'", name);
    if (a >= 0)
        H5Aclose(a);
    return err->code;
}

int h5attr_text(hid_t object, const char *name, const char *value, struct glm_error *err)
{
    const hid_t type = H5Tcopy(H5T_C_S1), space = H5Screate(H5S_SCALAR);
    if (type < 0 || H5Tset_size(type, strlen(value) + (*value == '\0')) < 0
        || H5Tset_strpad(type, H5T_STR_NULLPAD) < 0)
        h5_fail(err, "cannot make the type of attribute '%s'", name);
    else
        h5attr_put(object, name, type, space, value, err);
    h5_close_type(type);
    h5_close_space(space);
    return err->code;
}

int h5attr_numbers(hid_t object, const char *name, const int64_t *values, int count,
    struct glm_error *err)
{
    const hsize_t dims[1] = {(hsize_t)count};
    const hid_t space = H5Screate_simple(1, dims, NULL);
    /* a scalar tensor has no dimensions: an attribute of length 0 */
    const int64_t none = 0;
    h5attr_put(object, name, H5T_STD_I64LE, space, count > 0 ? values : &none, err);
    h5_close_space(space);
    return err->code;
}
