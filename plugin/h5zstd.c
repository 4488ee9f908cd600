/* The HDF5 filter 32015, zstd, as a plugin that any HDF5 program loads from HDF5_PLUGIN_PATH or
 * from the library's plugin folder. Debian has none; without it compressed checkpoints could not
 * be opened by stock h5dump, HDFView or h5py.
 *
 * The identifier and its one parameter, the level in cd_values[0], are those of the registered
 * filter: files go both ways between this plugin and others. Reading accepts one frame per chunk
 * whose header tells its content size. Chunks come from files that may be hostile, so the claimed
 * size is bounded (HDF5 chunks stay below 4 GiB), must be possible for the compressed length, and
 * nothing is kept of a frame that does not decode to exactly that size. A filter reports failure
 * by returning 0; HDF5 turns that into an error of the read or write.
 *
 * No function of libhdf5 is called. A program that loads HDF5 privately, as Python does with the
 * copy inside h5py, has no symbol of it for a plugin, and linking one would bring a second HDF5
 * into the process. Filter buffers are malloc's in every release build of HDF5. */
#include <stdint.h>
#include <stdlib.h>

#include <H5PLextern.h>
#include <hdf5.h>
#include <zstd.h>

enum { FILTER_ID = 32015, DEFAULT_LEVEL = 3 };

/* A zstd block is at least 3 bytes and makes at most 128 KiB. A frame that promises more than its
 * blocks can hold is refused before memory is taken for it. */
static int plausible(unsigned long long content, size_t frame)
{
    return content <= UINT32_MAX && content / (128 * 1024) <= frame / 3;
}

static size_t decode(size_t size, size_t *room, void **buffer)
{
    const unsigned long long content = ZSTD_getFrameContentSize(*buffer, size);
    void *out;
    size_t n;

    if (content == ZSTD_CONTENTSIZE_ERROR || content == ZSTD_CONTENTSIZE_UNKNOWN
        || content == 0 || !plausible(content, size))
        return 0;
    out = malloc((size_t)content);
    if (out == NULL)
        return 0;
    n = ZSTD_decompress(out, (size_t)content, *buffer, size);
    if (ZSTD_isError(n) || n != content) {
        free(out);
        return 0;
    }
    free(*buffer);
    *buffer = out;
    *room = (size_t)content;
    return n;
}

static size_t encode(int level, size_t size, size_t *room, void **buffer)
{
    const size_t bound = ZSTD_compressBound(size);
    void *out;
    size_t n;

    if (ZSTD_isError(bound))
        return 0;
    out = malloc(bound);
    if (out == NULL)
        return 0;
    n = ZSTD_compress(out, bound, *buffer, size, level); /* writes the content size */
    if (ZSTD_isError(n)) {
        free(out);
        return 0;
    }
    free(*buffer);
    *buffer = out;
    *room = bound;
    return n;
}

static int level_of(size_t count, const unsigned *values)
{
    const int asked =
        count > 0 ? (int)values[0] : DEFAULT_LEVEL; /* negative levels wrap back */
    const int least = ZSTD_minCLevel(), most = ZSTD_maxCLevel();

    return asked < least ? least : asked > most ? most : asked;
}

static size_t filter(unsigned flags, size_t count, const unsigned values[], size_t size,
    size_t *room, void **buffer)
{
    if (flags & H5Z_FLAG_REVERSE)
        return decode(size, room, buffer);
    return encode(level_of(count, values), size, room, buffer);
}

static const H5Z_class2_t h5zstd = {
    .version = H5Z_CLASS_T_VERS,
    .id = FILTER_ID,
    .encoder_present = 1,
    .decoder_present = 1,
    .name = "zstd",
    .filter = filter,
};

/* The two functions that HDF5 looks up in a plugin. */
H5PL_type_t H5PLget_plugin_type(void)
{
    return H5PL_TYPE_FILTER;
}

const void *H5PLget_plugin_info(void)
{
    return &h5zstd;
}
