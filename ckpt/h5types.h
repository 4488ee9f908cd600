/* Element types as HDF5 types, and what an element reads as where data is missing.
 *
 * BF16 is a 16-bit HDF5 float, so every tool shows its values. The 8-bit floats are unsigned bytes
 * with a `dtype` attribute: HDF5 floats have infinities where E4M3 has numbers, and E8M0 has no
 * mantissa, so a float type would show wrong values or cannot be built. */
#ifndef CKPT_H5TYPES_H
#define CKPT_H5TYPES_H

#include <hdf5.h>

#include "kernels/base/dtype.h"
#include "kernels/base/error.h"

/* A new type id (H5Tclose it); negative with err set for a type that cannot be stored. Under the
 * lock of h5error.h, as all here. */
hid_t h5type_new(enum glm_dtype dtype, struct glm_error *err);
/* The fill value's bytes (little-endian, glm_dtype_size): NaN, or the minimum, or 0 for bytes. */
void h5type_fill(enum glm_dtype dtype, unsigned char fill[8]);

/* Fixed-size attributes: variable-length ones lie in a heap without a checksum. */
int h5attr_text(hid_t object, const char *name, const char *value, struct glm_error *err);
int h5attr_numbers(hid_t object, const char *name, const int64_t *values, int count,
    struct glm_error *err);

#endif
