/* Two SHA-256 side by side.
 *
 * A download needs each byte in two digests: the file's, to compare with the hub's, and a tile's,
 * for the checkpoint. One SHA-256 is a chain in which each instruction waits for the one before, so
 * the processor's unit stands idle half of the time; two independent chains fill it. Both walk over
 * the same bytes, the file's in order, the tiles' run by run:
 *
 *     bytes   |--tile 0, row 0--|--tile 1, row 0--|--tile 0, row 1--| …
 *     file    a block here is up to 63 bytes ahead of the tile's, as its first tile may begin anywhere
 *
 * Only whole blocks at both places go through the pair; what is left over goes through libcrypto,
 * as everything does on processors without the instructions. */
#include "convert/hubhash.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(SIMD_BASELINE)
#define HUBHASH_PAIR
#include <cpuid.h>
#include <immintrin.h>
#endif

enum { BLOCK = 64 };

#ifdef HUBHASH_PAIR

static const uint32_t constants[64] __attribute__((aligned(16))) = {0x428a2f98,
    0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7,
    0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa,
    0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3,
    0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13,
    0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70,
    0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08,
    0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3, 0x748f82ee,
    0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

#define PAIR __attribute__((target("sha,sse4.1,ssse3")))

/* The instructions want the state as ABEF and CDGH. */
PAIR static inline void load_state(const SHA_LONG h[8], __m128i *abef, __m128i *cdgh)
{
    const __m128i dcba = _mm_loadu_si128((const __m128i *)(const void *)h);
    const __m128i hgfe = _mm_loadu_si128((const __m128i *)(const void *)(h + 4));
    const __m128i cdab = _mm_shuffle_epi32(dcba, 0xb1);
    const __m128i efgh = _mm_shuffle_epi32(hgfe, 0x1b);
    *abef = _mm_alignr_epi8(cdab, efgh, 8);
    *cdgh = _mm_blend_epi16(efgh, cdab, 0xf0);
}

PAIR static inline void store_state(SHA_LONG h[8], __m128i abef, __m128i cdgh)
{
    const __m128i feba = _mm_shuffle_epi32(abef, 0x1b);
    const __m128i dchg = _mm_shuffle_epi32(cdgh, 0xb1);
    _mm_storeu_si128((__m128i *)(void *)h, _mm_blend_epi16(feba, dchg, 0xf0));
    _mm_storeu_si128((__m128i *)(void *)(h + 4), _mm_alignr_epi8(dchg, feba, 8));
}

/* Four rounds with words w. */
#define ROUNDS(s0, s1, w, i)                                                             \
    do {                                                                                 \
        __m128i m_ = _mm_add_epi32(                                                      \
            w, _mm_load_si128((const __m128i *)(const void *)(constants + 4 * (i))));    \
        s1 = _mm_sha256rnds2_epu32(s1, s0, m_);                                          \
        s0 = _mm_sha256rnds2_epu32(s0, s1, _mm_shuffle_epi32(m_, 0x0e));                 \
    } while (0)

/* The next four words of the schedule, in the place of the oldest. */
#define SCHEDULE(w0, w1, w2, w3)                                                         \
    w0 = _mm_sha256msg2_epu32(                                                           \
        _mm_add_epi32(_mm_sha256msg1_epu32(w0, w1), _mm_alignr_epi8(w3, w2, 4)), w3)

#define BOTH(i, w0, w1, w2, w3)                                                          \
    do {                                                                                 \
        SCHEDULE(a##w0, a##w1, a##w2, a##w3);                                            \
        SCHEDULE(b##w0, b##w1, b##w2, b##w3);                                            \
        ROUNDS(as0, as1, a##w0, i);                                                      \
        ROUNDS(bs0, bs1, b##w0, i);                                                      \
    } while (0)

#define WORDS(p, i)                                                                      \
    _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(const void *)(p) + (i)), swap)

PAIR static void pair_blocks(SHA_LONG a[8], const unsigned char *pa, SHA_LONG b[8],
    const unsigned char *pb, size_t blocks)
{
    const __m128i swap =
        _mm_set_epi64x(0x0c0d0e0f08090a0bll, 0x0405060700010203ll); /* big end first */
    __m128i as0, as1, bs0, bs1;

    load_state(a, &as0, &as1);
    load_state(b, &bs0, &bs1);
    for (; blocks > 0; blocks--, pa += BLOCK, pb += BLOCK) {
        const __m128i ka0 = as0, ka1 = as1, kb0 = bs0, kb1 = bs1;
        __m128i aw0 = WORDS(pa, 0), bw0 = WORDS(pb, 0);
        ROUNDS(as0, as1, aw0, 0);
        ROUNDS(bs0, bs1, bw0, 0);
        __m128i aw1 = WORDS(pa, 1), bw1 = WORDS(pb, 1);
        ROUNDS(as0, as1, aw1, 1);
        ROUNDS(bs0, bs1, bw1, 1);
        __m128i aw2 = WORDS(pa, 2), bw2 = WORDS(pb, 2);
        ROUNDS(as0, as1, aw2, 2);
        ROUNDS(bs0, bs1, bw2, 2);
        __m128i aw3 = WORDS(pa, 3), bw3 = WORDS(pb, 3);
        ROUNDS(as0, as1, aw3, 3);
        ROUNDS(bs0, bs1, bw3, 3);
        for (int i = 4; i < 16; i += 4) {
            BOTH(i, w0, w1, w2, w3);
            BOTH(i + 1, w1, w2, w3, w0);
            BOTH(i + 2, w2, w3, w0, w1);
            BOTH(i + 3, w3, w0, w1, w2);
        }
        as0 = _mm_add_epi32(as0, ka0);
        as1 = _mm_add_epi32(as1, ka1);
        bs0 = _mm_add_epi32(bs0, kb0);
        bs1 = _mm_add_epi32(bs1, kb1);
    }
    store_state(a, as0, as1);
    store_state(b, bs0, bs1);
}

static bool can_pair(void)
{
    unsigned eax, ebx, ecx, edx;
    return __builtin_cpu_supports("sse4.1")
        && __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && (ebx & (1u << 29)) != 0;
}

#else

static void pair_blocks(SHA_LONG a[8], const unsigned char *pa, SHA_LONG b[8],
    const unsigned char *pb, size_t blocks)
{
    (void)a, (void)pa, (void)b, (void)pb, (void)blocks;
}

static bool can_pair(void)
{
    return false;
}

#endif

/* ---- the walk --------------------------------------------------------------------------------- */

struct walk {
    SHA256_CTX *file;
    const unsigned char *data;
    size_t size, at; /* at: what is in the file's digest */
};

static void count(SHA256_CTX *c, size_t bytes)
{
    const uint64_t bits = ((uint64_t)c->Nh << 32 | c->Nl) + (uint64_t)bytes * 8;
    c->Nl = (SHA_LONG)bits;
    c->Nh = (SHA_LONG)(bits >> 32);
}

/* The file's digest comes to a whole block, if there are bytes enough. */
static void align_file(struct walk *w)
{
    const size_t want = (BLOCK - w->file->num) % BLOCK;
    const size_t n = want < w->size - w->at ? want : w->size - w->at;
    SHA256_Update(w->file, w->data + w->at, n);
    w->at += n;
}

/* A run of bytes that belong to one tile. */
static void take_run(struct walk *w, SHA256_CTX *tile, const unsigned char *p, size_t n)
{
    size_t pairs = n / BLOCK;
    if (pairs > 0 && w->file->num != 0)
        align_file(w);
    if (pairs > (w->size - w->at) / BLOCK)
        pairs = (w->size - w->at) / BLOCK;
    if (tile->num != 0 || w->file->num != 0)
        pairs = 0;
    if (pairs > 0) {
        pair_blocks(w->file->h, w->data + w->at, tile->h, p, pairs);
        count(w->file, pairs * BLOCK);
        count(tile, pairs * BLOCK);
        w->at += pairs * BLOCK;
    }
    SHA256_Update(tile, p + pairs * BLOCK, n - pairs * BLOCK);
}

static bool walk_pairs(struct hubsum *file, const struct tile_grid *g,
    const struct rect *at, size_t element, const unsigned char *data,
    unsigned char *digests)
{
    const size_t width = (size_t)rect_len(at, 2) * element;
    const size_t size = width * (size_t)rect_len(at, 1);
    const struct rect tiles = tile_cover(g, at);
    const int64_t columns = rect_len(&tiles, 2);
    const size_t tile_width = (size_t)g->tile[2] * element;
    SHA256_CTX *band = malloc((size_t)columns * sizeof *band);
    struct walk w = {&file->state.sha256, data, size, 0};

    if (band == NULL)
        return false;
    for (int64_t row = at->lo[1]; row < at->hi[1];) {
        const int64_t left = at->hi[1] - row;
        const int64_t rows = left < g->tile[1] ? left : g->tile[1];
        for (int64_t c = 0; c < columns; c++)
            SHA256_Init(&band[c]);
        const unsigned char *p = data + (size_t)(row - at->lo[1]) * width;
        if (columns == 1)
            take_run(&w, &band[0], p, (size_t)rows * width);
        for (int64_t r = 0; columns > 1 && r < rows; r++)
            for (int64_t c = 0; c < columns; c++) {
                const size_t from = (size_t)c * tile_width;
                const size_t n = width - from < tile_width ? width - from : tile_width;
                take_run(&w, &band[c], p + (size_t)r * width + from, n);
            }
        for (int64_t c = 0; c < columns; c++, digests += DIGEST_SIZE)
            SHA256_Final(digests, &band[c]);
        row += rows;
    }
    SHA256_Update(w.file, data + w.at, size - w.at);
    file->at += size;
    free(band);
    return true;
}

bool hubhash_plain(struct hubsum *file, const struct tile_grid *g, const struct rect *at,
    size_t element, const unsigned char *data, unsigned char *digests)
{
    hubsum_update(file, data, (size_t)rect_count(at) * element);
    return reader_hash_tiles(g, at, element, data, digests);
}

bool hubhash(struct hubsum *file, const struct tile_grid *g, const struct rect *at,
    size_t element, const unsigned char *data, unsigned char *digests)
{
    static atomic_int able = -1;
    if (able < 0)
        able = can_pair();
    return able && file->kind == HUBSUM_SHA256
        ? walk_pairs(file, g, at, element, data, digests)
        : hubhash_plain(file, g, at, element, data, digests);
}
