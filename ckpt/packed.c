/* Byte shuffle and zstd, tuned for weights.
 *
 * Shuffle puts byte j of every element into plane j (HDF5's filter 2):
 *
 *     elements  a0 a1 | b0 b1 | c0 c1        planes  a0 b0 c0 | a1 b1 c1
 *
 * A plane of exponents has a skewed histogram and hardly a repeated string; a plane of low
 * fraction bits is noise. So the work is Huffman coding, and searching for matches is mostly
 * waste: the fast strategy with a hash of 64 entries still sees long runs (untouched optimizer
 * state, padding) and hurries over the rest. zstd would then leave literals uncompressed; forcing
 * Huffman is a switch of its experimental interface, which the shared library of Debian honours. A
 * library that refuses any of these settings gets level 1: larger, slower, as readable.
 *
 * The frame is standard, with content size and without checksum (each stored chunk has a SHA-256
 * in the chunk table). */
#define ZSTD_STATIC_LINKING_ONLY /* ZSTD_c_literalCompressionMode; nothing else of it is used */
#include "ckpt/packed.h"

#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <zstd.h>
#include <zstd_errors.h>

#include "kernels/base/simd.h"

struct packer {
    ZSTD_CCtx *compressor;
    ZSTD_DCtx *decompressor;
    unsigned char *scratch; /* a chunk in planes */
    size_t room;
};

/* ---- shuffle ---- */

/* n elements of E bytes <-> E planes of n bytes. The loads and stores of a whole element are what
 * the compiler turns into packs and unpacks. */
#define SHUFFLE(type)                                                                    \
    SIMD_BODY void shuffle_##type(                                                       \
        unsigned char *restrict out, const unsigned char *restrict in, size_t n)         \
    {                                                                                    \
        for (size_t i = 0; i < n; i++) {                                                 \
            type v;                                                                      \
            memcpy(&v, in + i * sizeof v, sizeof v);                                     \
            for (size_t j = 0; j < sizeof v; j++)                                        \
                out[j * n + i] = (unsigned char)(v >> (8 * j));                          \
        }                                                                                \
    }                                                                                    \
    SIMD_BODY void unshuffle_##type(                                                     \
        unsigned char *restrict out, const unsigned char *restrict in, size_t n)         \
    {                                                                                    \
        for (size_t i = 0; i < n; i++) {                                                 \
            type v = 0;                                                                  \
            for (size_t j = 0; j < sizeof v; j++)                                        \
                v = (type)(v | (type)in[j * n + i] << (8 * j));                          \
            memcpy(out + i * sizeof v, &v, sizeof v);                                    \
        }                                                                                \
    }

SHUFFLE(uint16_t)
SHUFFLE(uint32_t)
SHUFFLE(uint64_t)

SIMD_BODY void shuffle_any(
    unsigned char *out, const unsigned char *in, size_t n, size_t element, bool back)
{
    if (element == 2)
        back ? unshuffle_uint16_t(out, in, n) : shuffle_uint16_t(out, in, n);
    else if (element == 4)
        back ? unshuffle_uint32_t(out, in, n) : shuffle_uint32_t(out, in, n);
    else
        back ? unshuffle_uint64_t(out, in, n) : shuffle_uint64_t(out, in, n);
}

SIMD_AVX2 static void shuffle_avx2(
    unsigned char *out, const unsigned char *in, size_t n, size_t element, bool back)
{
    shuffle_any(out, in, n, element, back);
}

static void shuffle(
    unsigned char *out, const void *in, size_t size, size_t element, bool back)
{
    if (simd_avx2())
        shuffle_avx2(out, in, size / element, element, back);
    else
        shuffle_any(out, in, size / element, element, back);
}

/* ---- zstd ---- */

static bool tune(ZSTD_CCtx *c)
{
    static const struct {
        ZSTD_cParameter name;
        int value;
    } setting[] = {
        {ZSTD_c_compressionLevel, 1},
        {ZSTD_c_strategy, ZSTD_fast},
        {ZSTD_c_minMatch, 7},
        {ZSTD_c_hashLog, 6},
        {ZSTD_c_literalCompressionMode, ZSTD_ps_enable},
    };

    for (size_t i = 0; i < sizeof setting / sizeof setting[0]; i++)
        if (ZSTD_isError(ZSTD_CCtx_setParameter(c, setting[i].name, setting[i].value)))
            return false;
    return true;
}

struct packer *packer_new(void)
{
    struct packer *p = calloc(1, sizeof *p);

    if (p == NULL)
        return NULL;
    p->compressor = ZSTD_createCCtx();
    p->decompressor = ZSTD_createDCtx();
    if (p->compressor == NULL || p->decompressor == NULL) {
        packer_free(p);
        return NULL;
    }
    if (!tune(p->compressor)) {
        ZSTD_CCtx_reset(p->compressor, ZSTD_reset_session_and_parameters);
        ZSTD_CCtx_setParameter(p->compressor, ZSTD_c_compressionLevel, 1);
    }
    return p;
}

void packer_free(struct packer *p)
{
    if (p == NULL)
        return;
    ZSTD_freeCCtx(p->compressor);
    ZSTD_freeDCtx(p->decompressor);
    free(p->scratch);
    free(p);
}

size_t packer_bound(size_t size)
{
    const size_t bound = ZSTD_compressBound(size);

    return bound > size ? bound : size;
}

static int reserve(struct packer *p, size_t size, struct glm_error *err)
{
    if (size <= p->room)
        return GLM_OK;
    unsigned char *const grown = malloc(size);
    if (grown == NULL)
        return glm_fail(err, GLM_ENOMEM, "no memory for a chunk of %zu bytes", size);
    free(p->scratch); /* nothing in it outlives a call */
    p->scratch = grown;
    p->room = size;
    return GLM_OK;
}

static bool known_element(size_t element)
{
    return element == 1 || element == 2 || element == 4 || element == 8;
}

/* Every filter of the pipeline skipped. */
static uint32_t raw_mask(size_t element)
{
    return element >= 2 ? 3 : 1;
}

int packer_pack(struct packer *p, const void *chunk, size_t size, size_t element,
    void *out, size_t *out_size, uint32_t *mask, struct glm_error *err)
{
    const void *planes = chunk;

    assert(known_element(element) && size % element == 0);
    if (element >= 2) {
        if (reserve(p, size, err) != 0)
            return (int)err->code;
        shuffle(p->scratch, chunk, size, element, false);
        planes = p->scratch;
    }
    const size_t n = ZSTD_compress2(p->compressor, out, packer_bound(size), planes, size);
    if (ZSTD_isError(n))
        return glm_fail(err,
            ZSTD_getErrorCode(n) == ZSTD_error_memory_allocation ? GLM_ENOMEM : GLM_EIO,
            "zstd cannot compress a chunk of %zu bytes: %s", size, ZSTD_getErrorName(n));
    if ((uint64_t)n * 100 < (uint64_t)size * 97) {
        *out_size = n;
        *mask = 0;
        return GLM_OK;
    }
    memcpy(out, chunk, size);
    *out_size = size;
    *mask = raw_mask(element);
    return GLM_OK;
}

static int unpack_raw(const void *stored, size_t stored_size, uint32_t mask, void *chunk,
    size_t size, size_t element, struct glm_error *err)
{
    if (mask != raw_mask(element))
        return glm_fail(err, GLM_EFORMAT,
            "filter mask 0x%x: expected 0 (compressed) or 0x%x (stored raw)", mask,
            raw_mask(element));
    if (stored_size != size)
        return glm_fail(
            err, GLM_EFORMAT, "raw chunk of %zu bytes: expected %zu", stored_size, size);
    memcpy(chunk, stored, size);
    return GLM_OK;
}

/* One frame, all of `stored`, of exactly `size` bytes. */
static int check_frame(
    const void *stored, size_t stored_size, size_t size, struct glm_error *err)
{
    const unsigned long long content = ZSTD_getFrameContentSize(stored, stored_size);

    if (content == ZSTD_CONTENTSIZE_ERROR)
        return glm_fail(
            err, GLM_EFORMAT, "chunk of %zu bytes is no zstd frame", stored_size);
    if (content == ZSTD_CONTENTSIZE_UNKNOWN)
        return glm_fail(
            err, GLM_EFORMAT, "zstd frame without content size: expected %zu", size);
    if (content != size)
        return glm_fail(err, GLM_EFORMAT,
            "zstd frame of a %llu-byte chunk: expected %zu bytes", content, size);
    const size_t frame = ZSTD_findFrameCompressedSize(stored, stored_size);
    if (ZSTD_isError(frame))
        return glm_fail(err, GLM_EFORMAT, "zstd frame in %zu bytes is damaged: %s",
            stored_size, ZSTD_getErrorName(frame));
    if (frame != stored_size)
        return glm_fail(err, GLM_EFORMAT,
            "zstd frame of %zu bytes is followed by %zu more", frame,
            stored_size - frame);
    return GLM_OK;
}

int packer_unpack(struct packer *p, const void *stored, size_t stored_size, uint32_t mask,
    void *chunk, size_t size, size_t element, struct glm_error *err)
{
    void *planes = chunk;

    assert(known_element(element) && size % element == 0);
    if (mask != 0)
        return unpack_raw(stored, stored_size, mask, chunk, size, element, err);
    if (check_frame(stored, stored_size, size, err) != 0)
        return (int)err->code;
    if (element >= 2) {
        if (reserve(p, size, err) != 0)
            return (int)err->code;
        planes = p->scratch;
    }
    const size_t n =
        ZSTD_decompressDCtx(p->decompressor, planes, size, stored, stored_size);
    if (ZSTD_isError(n) || n != size)
        return glm_fail(err,
            ZSTD_getErrorCode(n) == ZSTD_error_memory_allocation ? GLM_ENOMEM
                                                                 : GLM_EFORMAT,
            "zstd frame of %zu bytes does not decode: %s", stored_size,
            ZSTD_isError(n) ? ZSTD_getErrorName(n) : "wrong length");
    if (element >= 2)
        shuffle(chunk, p->scratch, size, element, true);
    return GLM_OK;
}
