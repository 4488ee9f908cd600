#include "tests/support/packedfile.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/packed.h"

const struct packedfile_set packedfile_sets[PACKEDFILE_SETS] = {
    {"bf16", 2, {300, 500}, {128, 500}},
    {"noise", 2, {1, 4096}, {1, 2048}},
    {"codes", 1, {10, 1000}, {4, 1000}},
    {"f32", 4, {7, 600}, {7, 256}},
    {"zeros", 8, {64, 64}, {64, 64}},
};

static uint64_t value(const struct packedfile_set *set, uint64_t i)
{
    uint64_t z = (i + 1) * 0x9E3779B97F4A7C15u;

    switch (set->name[0]) {
    case 'b':
        return (0x3C00 + i * 40503 % 384) | (i & 1) << 15;
    case 'n':
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
        return z ^ z >> 27;
    case 'c':
        return i * i / 7 % 23;
    case 'f':
        return 1000000 + i;
    default:
        return 0;
    }
}

void packedfile_fill(const struct packedfile_set *set, void *out)
{
    const size_t n = (size_t)(set->dims[0] * set->dims[1]);

    for (size_t i = 0; i < n; i++) {
        const uint64_t v = value(set, i);
        memcpy((unsigned char *)out + i * set->element, &v, set->element);
    }
}

hid_t packedfile_plist(const struct packedfile_set *set)
{
    const unsigned level = 3;
    const hid_t p = H5Pcreate(H5P_DATASET_CREATE);

    if (p < 0 || H5Pset_chunk(p, 2, set->chunk) < 0
        || (set->element >= 2 && H5Pset_shuffle(p) < 0)
        || H5Pset_filter(p, 32015, H5Z_FLAG_MANDATORY, 1, &level) < 0)
        return -1;
    return p;
}

hid_t packedfile_type(const struct packedfile_set *set)
{
    if (strcmp(set->name, "bf16") != 0)
        return H5Tcopy(set->element == 1 ? H5T_STD_U8LE
                : set->element == 2      ? H5T_STD_U16LE
                : set->element == 4      ? H5T_STD_U32LE
                                         : H5T_STD_U64LE);
    const hid_t t = H5Tcopy(H5T_IEEE_F32LE);
    if (t < 0 || H5Tset_fields(t, 15, 7, 8, 0, 7) < 0 || H5Tset_size(t, 2) < 0
        || H5Tset_precision(t, 16) < 0 || H5Tset_ebias(t, 127) < 0)
        return -1;
    return t;
}

/* One chunk, cut from the matrix and padded with zeros. */
static void cut(const struct packedfile_set *set, const unsigned char *data, hsize_t r0,
    hsize_t c0, unsigned char *chunk)
{
    const size_t width = (size_t)set->chunk[1] * set->element;

    memset(chunk, 0, (size_t)set->chunk[0] * width);
    for (hsize_t r = 0; r < set->chunk[0] && r0 + r < set->dims[0]; r++) {
        const hsize_t left = set->dims[1] - c0;
        const hsize_t n = left < set->chunk[1] ? left : set->chunk[1];
        memcpy(chunk + r * width, data + ((r0 + r) * set->dims[1] + c0) * set->element,
            n * set->element);
    }
}

static int write_set(hid_t file, const struct packedfile_set *set, struct packer *p)
{
    const size_t size = (size_t)(set->chunk[0] * set->chunk[1]) * set->element;
    unsigned char *data = malloc((size_t)(set->dims[0] * set->dims[1]) * set->element);
    unsigned char *chunk = malloc(size), *stored = malloc(packer_bound(size));
    const hid_t type = packedfile_type(set), plist = packedfile_plist(set);
    const hid_t space = H5Screate_simple(2, set->dims, NULL);
    const hid_t d =
        H5Dcreate2(file, set->name, type, space, H5P_DEFAULT, plist, H5P_DEFAULT);
    struct glm_error err = {0};
    int result = d < 0 ? -1 : 0;

    packedfile_fill(set, data);
    for (hsize_t r = 0; result == 0 && r < set->dims[0]; r += set->chunk[0])
        for (hsize_t c = 0; result == 0 && c < set->dims[1]; c += set->chunk[1]) {
            const hsize_t at[2] = {r, c};
            size_t n;
            uint32_t mask;
            cut(set, data, r, c, chunk);
            if (packer_pack(p, chunk, size, set->element, stored, &n, &mask, &err) != 0
                || H5Dwrite_chunk(d, H5P_DEFAULT, mask, at, n, stored) < 0)
                result = -1;
        }
    if (H5Dclose(d) < 0 || H5Sclose(space) < 0 || H5Pclose(plist) < 0
        || H5Tclose(type) < 0)
        result = -1;
    free(data);
    free(chunk);
    free(stored);
    return result;
}

int packedfile_write(const char *path)
{
    struct packer *p = packer_new();
    const hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    int result = p == NULL || file < 0 ? -1 : 0;

    for (int i = 0; result == 0 && i < PACKEDFILE_SETS; i++)
        result = write_set(file, &packedfile_sets[i], p);
    if (file >= 0 && H5Fclose(file) < 0)
        result = -1;
    packer_free(p);
    return result;
}
