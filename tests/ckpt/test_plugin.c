/* The HDF5 filter plugin, loaded by the real library from its build folder: it reads what
 * packer_pack stored, packer_unpack reads what it stored, and hostile frames are errors. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <criterion/criterion.h>
#include <zstd.h>

#include "ckpt/packed.h"
#include "tests/support/packedfile.h"
#include "tests/support/tmpdir.h"

/* The program is build/CONFIG/tests/ckpt/test_plugin, the plugin build/CONFIG/plugin/. */
static void load_plugin(void)
{
    char path[4096];
    const ssize_t n = readlink("/proc/self/exe", path, sizeof path - 32);

    cr_assert_gt(n, 0);
    path[n] = '\0';
    for (int i = 0; i < 3; i++)
        *strrchr(path, '/') = '\0';
    strcat(path, "/plugin");
    setenv("HDF5_PLUGIN_PATH", path, 1);
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    cr_assert_gt(H5Zfilter_avail(32015), 0, "no plugin in %s", path);
}

Test(plugin, reads_what_packer_pack_stored, .init = load_plugin)
{
    char *dir = tmpdir_new();

    cr_assert_eq(packedfile_write(tmpdir_path(dir, "a.h5")), 0);
    const hid_t file = H5Fopen(tmpdir_path(dir, "a.h5"), H5F_ACC_RDONLY, H5P_DEFAULT);
    for (int i = 0; i < PACKEDFILE_SETS; i++) {
        const struct packedfile_set *set = &packedfile_sets[i];
        const size_t size = (size_t)(set->dims[0] * set->dims[1]) * set->element;
        unsigned char *want = malloc(size), *got = calloc(1, size);
        const hid_t d = H5Dopen2(file, set->name, H5P_DEFAULT), type = H5Dget_type(d);

        packedfile_fill(set, want);
        cr_assert_geq(
            H5Dread(d, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, got), 0, "%s", set->name);
        cr_expect_eq(memcmp(want, got, size), 0, "%s", set->name);
        H5Tclose(type);
        H5Dclose(d);
        free(want);
        free(got);
    }
    H5Fclose(file);
    tmpdir_remove(dir);
}

Test(plugin, both_ways_of_storing_occur_in_that_file, .init = load_plugin)
{
    char *dir = tmpdir_new();
    const hsize_t origin[2] = {0, 0};
    unsigned mask;
    hsize_t size;

    cr_assert_eq(packedfile_write(tmpdir_path(dir, "a.h5")), 0);
    const hid_t file = H5Fopen(tmpdir_path(dir, "a.h5"), H5F_ACC_RDONLY, H5P_DEFAULT);
    for (int i = 0; i < PACKEDFILE_SETS; i++) {
        const struct packedfile_set *set = &packedfile_sets[i];
        const hsize_t raw = set->chunk[0] * set->chunk[1] * set->element;
        const hid_t d = H5Dopen2(file, set->name, H5P_DEFAULT);
        cr_assert_geq(H5Dget_chunk_info_by_coord(d, origin, &mask, NULL, &size), 0);
        if (strcmp(set->name, "noise") == 0)
            cr_expect(mask == 3 && size == raw);
        else
            cr_expect(mask == 0 && size < raw, "%s", set->name);
        H5Dclose(d);
    }
    H5Fclose(file);
    tmpdir_remove(dir);
}

/* Writes set 0 through the filters and returns the file, open. */
static hid_t write_through_filters(const char *path, const void *data)
{
    const struct packedfile_set *set = &packedfile_sets[0];
    const hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    const hid_t type = packedfile_type(set), plist = packedfile_plist(set);
    const hid_t space = H5Screate_simple(2, set->dims, NULL);
    const hid_t d =
        H5Dcreate2(file, set->name, type, space, H5P_DEFAULT, plist, H5P_DEFAULT);

    cr_assert_geq(d, 0);
    if (data != NULL)
        cr_assert_geq(H5Dwrite(d, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data), 0);
    H5Dclose(d);
    H5Sclose(space);
    H5Pclose(plist);
    H5Tclose(type);
    H5Fflush(file, H5F_SCOPE_LOCAL);
    return file;
}

Test(plugin, stores_what_packer_unpack_reads, .init = load_plugin)
{
    const struct packedfile_set *set = &packedfile_sets[0];
    const size_t chunk = (size_t)(set->chunk[0] * set->chunk[1]) * 2;
    const hsize_t origin[2] = {0, 0};
    unsigned char *want = malloc((size_t)(set->dims[0] * set->dims[1]) * 2);
    unsigned char *stored = malloc(packer_bound(chunk)), *got = malloc(chunk);
    struct packer *p = packer_new();
    struct glm_error err = {0};
    char *dir = tmpdir_new();
    hsize_t size;
    uint32_t mask;

    packedfile_fill(set, want);
    const hid_t file = write_through_filters(tmpdir_path(dir, "b.h5"), want);
    const hid_t d = H5Dopen2(file, set->name, H5P_DEFAULT);
    cr_assert_geq(H5Dget_chunk_storage_size(d, origin, &size), 0);
    cr_assert_leq(size, packer_bound(chunk));
    cr_assert_geq(H5Dread_chunk(d, H5P_DEFAULT, origin, &mask, stored), 0);
    cr_assert_eq(
        packer_unpack(p, stored, size, mask, got, chunk, 2, &err), 0, "%s", err.text);
    cr_expect_eq(memcmp(want, got, chunk), 0);
    H5Dclose(d);
    H5Fclose(file);
    packer_free(p);
    free(want);
    free(stored);
    free(got);
    tmpdir_remove(dir);
}

/* Stores `frame` as a chunk and reads it: true if HDF5 reports an error. */
static bool refused(const char *path, const void *frame, size_t size)
{
    static uint16_t got[300 * 500];
    const hsize_t origin[2] = {0, 0};
    const hid_t file = write_through_filters(path, NULL);
    const hid_t d = H5Dopen2(file, packedfile_sets[0].name, H5P_DEFAULT),
                type = H5Dget_type(d);

    cr_assert_geq(H5Dwrite_chunk(d, H5P_DEFAULT, 0, origin, size, frame), 0);
    const bool failed = H5Dread(d, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, got) < 0;
    H5Tclose(type);
    H5Dclose(d);
    H5Fclose(file);
    return failed;
}

Test(plugin, refuses_hostile_frames, .init = load_plugin)
{
    enum { CHUNK = 128 * 500 * 2 };
    char *dir = tmpdir_new();
    char path[4096];
    unsigned char *raw = calloc(1, CHUNK), *frame = malloc(ZSTD_compressBound(CHUNK));
    ZSTD_CCtx *c = ZSTD_createCCtx();

    snprintf(path, sizeof path, "%s/c.h5", dir);
    for (int i = 0; i < CHUNK; i++)
        raw[i] = (unsigned char)(i % 251 * (i % 251) / 64);
    const size_t n = ZSTD_compress(frame, ZSTD_compressBound(CHUNK), raw, CHUNK, 1);
    cr_assert(!refused(path, frame, n), "the control must be readable");
    cr_expect(refused(path, frame, n / 2), "cut");
    cr_expect(refused(path, frame, 3), "shorter than a header");
    cr_expect(refused(path, raw + 1, 100), "no frame");
    ZSTD_CCtx_setParameter(c, ZSTD_c_contentSizeFlag, 0);
    const size_t m = ZSTD_compress2(c, frame, ZSTD_compressBound(CHUNK), raw, CHUNK);
    cr_expect(refused(path, frame, m), "no content size");
    /* Magic, single segment with an 8-byte content size, one empty last block. */
    static const unsigned char bomb[] = {
        0x28, 0xB5, 0x2F, 0xFD, 0xE0, 0, 0, 0, 0, 0, 1, 0, 0, 1, 0, 0};
    cr_expect(refused(path, bomb, sizeof bomb), "a content size of 1 TiB");
    static const unsigned char lie[] = {
        0x28, 0xB5, 0x2F, 0xFD, 0xE0, 0, 0, 0, 0x70, 0, 0, 0, 0, 1, 0, 0};
    cr_expect(refused(path, lie, sizeof lie), "1.75 GiB promised in three bytes");
    static const unsigned char empty[] = {0x28, 0xB5, 0x2F, 0xFD, 0x20, 0, 1, 0, 0};
    cr_expect(refused(path, empty, sizeof empty), "nothing in it");
    ZSTD_freeCCtx(c);
    free(raw);
    free(frame);
    tmpdir_remove(dir);
}
