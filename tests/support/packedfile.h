/* An HDF5 file whose chunks were made by packer_pack and stored with H5Dwrite_chunk: what stock
 * tools must be able to read through the filters shuffle + 32015. */
#ifndef TESTS_SUPPORT_PACKEDFILE_H
#define TESTS_SUPPORT_PACKEDFILE_H

#include <stddef.h>

#include <hdf5.h>

struct packedfile_set {
    const char *name;
    size_t element; /* bytes; stored as unsigned integers, "bf16" as a 16-bit float */
    hsize_t dims[2], chunk[2];
};

enum { PACKEDFILE_SETS = 5 };
extern const struct packedfile_set packedfile_sets[PACKEDFILE_SETS];

/* Writes the file; the filter 32015 must be loadable. 0, or -1 if anything failed. */
int packedfile_write(const char *path);
/* The elements of a set, row-major, little-endian: element i of
 *     bf16   (0x3C00 + i * 40503 mod 384) with the sign bit of i's lowest bit
 *     noise  the low bytes of i * 0x9E3779B97F4A7C15, mixed (stored raw, filters masked)
 *     codes  (i * i / 7) mod 23
 *     f32    1000000 + i           zeros  0 */
void packedfile_fill(const struct packedfile_set *set, void *out);
/* A creation list: chunked, shuffle for elements of 2 bytes or more, then 32015. */
hid_t packedfile_plist(const struct packedfile_set *set);
hid_t packedfile_type(const struct packedfile_set *set);

#endif
