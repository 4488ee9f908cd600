/* Compressed chunks: what is stored is what a plain shuffle and a stock zstd decoder understand,
 * sizes keep their promise, and damaged or foreign frames are refused. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <criterion/criterion.h>
#include <zstd.h>

#include "ckpt/packed.h"
#include "kernels/base/bf16.h"

static uint64_t next(uint64_t *state) /* splitmix64 */
{
    uint64_t z = *state += 0x9E3779B97F4A7C15u;

    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static float gaussian(uint64_t *state)
{
    const double u = ((double)(next(state) >> 11) + 1) * 0x1p-53;
    const double v = (double)(next(state) >> 11) * 0x1p-53;

    return (float)(0.02 * sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
}

static void fill_bf16(uint16_t *x, size_t n)
{
    uint64_t state = 1;

    for (size_t i = 0; i < n; i++)
        x[i] = bf16_from_f32(gaussian(&state));
}

/* The definition of HDF5's shuffle, byte by byte. */
static void plain_unshuffle(
    unsigned char *out, const unsigned char *in, size_t n, size_t element)
{
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < element; j++)
            out[i * element + j] = in[j * n + i];
}

struct case_ {
    size_t size, element;
};

static const struct case_ cases[] = {
    {1, 1},
    {2, 2},
    {4, 4},
    {8, 8},
    {6, 2},
    {62, 2},
    {64, 2},
    {66, 2},
    {127, 1},
    {1020, 4},
    {4096, 8},
    {4104, 8},
    {100002, 2},
    {262144, 2},
    {99996, 4},
    {1 << 20, 1},
};
enum { CASES = sizeof cases / sizeof cases[0] };

Test(packed, holds_a_shuffled_standard_frame)
{
    struct packer *p = packer_new();
    struct glm_error err = {0};

    for (int k = 0; k < CASES; k++) {
        const size_t size = cases[k].size, element = cases[k].element;
        unsigned char *in = malloc(size), *out = malloc(packer_bound(size));
        unsigned char *planes = malloc(size), *back = malloc(size);
        size_t stored;
        uint32_t mask;

        for (size_t i = 0; i < size; i++) /* compressible, every byte plane different */
            in[i] = (unsigned char)(i % element * 50 + (i / 7 % 3));
        cr_assert_eq(packer_pack(p, in, size, element, out, &stored, &mask, &err), 0,
            "%s", err.text);
        cr_assert_leq(stored, packer_bound(size));
        if (mask == 0) {
            cr_assert_lt(stored * 100, size * 97);
            cr_assert_eq(ZSTD_getFrameContentSize(out, stored), size);
            cr_assert_eq(ZSTD_decompress(planes, size, out, stored), size);
            plain_unshuffle(back, planes, size / element, element);
        } else {
            cr_assert_eq(mask, element >= 2 ? 3u : 1u);
            cr_assert_eq(stored, size);
            memcpy(back, out, size);
        }
        cr_expect_eq(memcmp(in, back, size), 0, "size %zu, element %zu", size, element);
        memset(back, 0xA5, size);
        cr_assert_eq(packer_unpack(p, out, stored, mask, back, size, element, &err), 0,
            "%s", err.text);
        cr_expect_eq(memcmp(in, back, size), 0, "size %zu, element %zu", size, element);
        free(in);
        free(out);
        free(planes);
        free(back);
    }
    packer_free(p);
    packer_free(NULL);
}

Test(packed, compresses_gaussian_bf16_to_68_percent)
{
    const size_t n = 1 << 20;
    struct packer *p = packer_new();
    struct glm_error err = {0};
    uint16_t *x = malloc(2 * n);
    unsigned char *out = malloc(packer_bound(2 * n));
    size_t stored;
    uint32_t mask;

    fill_bf16(x, n);
    cr_assert_eq(packer_pack(p, x, 2 * n, 2, out, &stored, &mask, &err), 0);
    cr_expect_eq(mask, 0);
    cr_expect_leq((double)stored, 0.68 * 2 * (double)n);
    memset(x, 0, 2 * n);
    cr_assert_eq(packer_pack(p, x, 2 * n, 2, out, &stored, &mask, &err), 0);
    cr_expect_leq(stored, 2 * n / 1000, "zeros: %zu bytes", stored);
    free(x);
    free(out);
    packer_free(p);
}

Test(packed, stores_noise_raw)
{
    static unsigned char in[65536], back[65536];
    unsigned char *out = malloc(packer_bound(sizeof in));
    struct packer *p = packer_new();
    struct glm_error err = {0};
    uint64_t state = 3;
    size_t stored;
    uint32_t mask;

    for (size_t i = 0; i < sizeof in; i++)
        in[i] = (unsigned char)next(&state);
    for (size_t element = 1; element <= 8; element *= 2) {
        cr_assert_eq(
            packer_pack(p, in, sizeof in, element, out, &stored, &mask, &err), 0);
        cr_expect_eq(mask, element == 1 ? 1u : 3u);
        cr_expect_eq(stored, sizeof in);
        cr_expect_eq(memcmp(in, out, sizeof in), 0, "raw bytes are not shuffled");
        cr_assert_eq(
            packer_unpack(p, out, stored, mask, back, sizeof in, element, &err), 0);
        cr_expect_eq(memcmp(in, back, sizeof in), 0);
    }
    free(out);
    packer_free(p);
}

Test(packed, gives_the_same_bytes_whatever_was_packed_before)
{
    enum { N = 40000 };
    static uint16_t x[N];
    unsigned char *a = malloc(packer_bound(sizeof x)),
                  *b = malloc(packer_bound(sizeof x));
    struct packer *fresh = packer_new(), *used = packer_new();
    struct glm_error err = {0};
    size_t na, nb;
    uint32_t ma, mb;

    fill_bf16(x, N);
    cr_assert_eq(packer_pack(used, x, sizeof x, 4, b, &nb, &mb, &err), 0);
    cr_assert_eq(packer_pack(used, x, 2000, 2, b, &nb, &mb, &err), 0);
    cr_assert_eq(packer_pack(used, x, sizeof x, 2, b, &nb, &mb, &err), 0);
    cr_assert_eq(packer_pack(fresh, x, sizeof x, 2, a, &na, &ma, &err), 0);
    cr_assert_eq(na, nb);
    cr_expect_eq(memcmp(a, b, na), 0);
    free(a);
    free(b);
    packer_free(fresh);
    packer_free(used);
}

/* ---- what is refused ---- */

struct sample {
    struct packer *p;
    unsigned char *stored, *back;
    size_t stored_size, size;
};

static struct sample sample(void)
{
    struct sample s = {.p = packer_new(), .size = 20000};
    uint16_t *x = malloc(s.size);
    struct glm_error err = {0};
    uint32_t mask;

    fill_bf16(x, s.size / 2);
    s.stored = malloc(packer_bound(s.size) + 100);
    s.back = malloc(s.size);
    cr_assert_eq(
        packer_pack(s.p, x, s.size, 2, s.stored, &s.stored_size, &mask, &err), 0);
    cr_assert_eq(mask, 0);
    free(x);
    return s;
}

static void drop(struct sample *s)
{
    packer_free(s->p);
    free(s->stored);
    free(s->back);
}

static void expect_refused(
    struct sample *s, size_t stored, uint32_t mask, size_t size, const char *says)
{
    struct glm_error err = {0};

    cr_expect_eq(packer_unpack(s->p, s->stored, stored, mask, s->back, size, 2, &err),
        GLM_EFORMAT, "%s", says);
    cr_expect_not_null(strstr(err.text, says), "'%s' does not say '%s'", err.text, says);
}

Test(packed, refuses_every_truncation)
{
    struct sample s = sample();
    struct glm_error err = {0};

    for (size_t n = 0; n < s.stored_size; n += n < 64 ? 1 : 97) {
        unsigned char *cut =
            malloc(n + 1); /* its own block: an overread is seen by ASan */
        memcpy(cut, s.stored, n);
        glm_error_clear(&err);
        cr_expect_eq(packer_unpack(s.p, cut, n, 0, s.back, s.size, 2, &err), GLM_EFORMAT);
        free(cut);
    }
    drop(&s);
}

Test(packed, refuses_what_packer_pack_never_writes)
{
    struct sample s = sample();

    expect_refused(&s, s.stored_size + 1, 0, s.size, "followed by 1 more");
    expect_refused(&s, s.stored_size, 0, s.size - 2, "expected 19998 bytes");
    expect_refused(&s, s.stored_size, 1, s.size, "filter mask 0x1");
    expect_refused(&s, s.stored_size, 2, s.size, "filter mask 0x2");
    expect_refused(&s, s.stored_size, 7, s.size, "filter mask 0x7");
    expect_refused(&s, s.stored_size, 3, s.size, "raw chunk of");
    /* A second frame behind the first, as a concatenating writer leaves it. */
    memcpy(s.stored + s.stored_size, s.stored, 32);
    expect_refused(&s, s.stored_size + 32, 0, s.size, "followed by 32 more");
    s.stored[0] ^= 1;
    expect_refused(&s, s.stored_size, 0, s.size, "no zstd frame");
    drop(&s);
}

Test(packed, refuses_a_frame_without_content_size)
{
    struct sample s = sample();
    ZSTD_CCtx *c = ZSTD_createCCtx();
    unsigned char *raw = calloc(1, s.size);

    ZSTD_CCtx_setParameter(c, ZSTD_c_contentSizeFlag, 0);
    const size_t n = ZSTD_compress2(c, s.stored, packer_bound(s.size), raw, s.size);
    cr_assert(!ZSTD_isError(n));
    expect_refused(&s, n, 0, s.size, "without content size");
    ZSTD_freeCCtx(c);
    free(raw);
    drop(&s);
}

/* A flipped bit is refused or gives other data, and never touches memory outside (ASan). */
Test(packed, survives_every_flipped_bit_of_the_headers)
{
    struct sample s = sample();

    for (size_t bit = 0; bit < s.stored_size * 8; bit += bit < 2048 ? 1 : 509) {
        struct glm_error err = {0};
        s.stored[bit / 8] ^= (unsigned char)(1 << bit % 8);
        const int code =
            packer_unpack(s.p, s.stored, s.stored_size, 0, s.back, s.size, 2, &err);
        cr_expect(code == 0 || code == GLM_EFORMAT, "bit %zu: %s", bit, err.text);
        s.stored[bit / 8] ^= (unsigned char)(1 << bit % 8);
    }
    drop(&s);
}
