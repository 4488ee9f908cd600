/* Token files: Megatron's written by an independent script, our own written by the library; and what
 * is wrong with a file, field by field. */
#include "train/tokens.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <criterion/criterion.h>
#include <jansson.h>

#include "tests/support/rng.h"
#include "tests/support/tmpdir.h"
#include "train/tokens_block.h"
#include "train/tokens_write.h"

static char *folder;

static void begin(void)
{
    folder = tmpdir_new();
}

static void end(void)
{
    tmpdir_remove(folder);
}

TestSuite(tokens, .init = begin, .fini = end);

/* ---- Megatron -------------------------------------------------------------------------------- */

static void equals_listing(const char *name, const json_t *documents)
{
    struct glm_error err = {0};
    struct tokens t;
    char path[128];
    snprintf(path, sizeof path, "fixtures/megatron/%s", name);
    cr_assert_eq(tokens_open(&t, path, &err), GLM_OK, "%s", err.text);
    cr_assert_eq(t.documents, (int64_t)json_array_size(documents));
    for (int64_t d = 0; d < t.documents; d++) {
        const json_t *const list = json_array_get(documents, (size_t)d);
        int32_t ids[64];
        uint8_t mask[64];
        const int64_t n = tokens_length(&t, d);
        cr_assert_eq(n, (int64_t)json_array_size(list), "%s: document %ld", name, d);
        cr_assert_eq(
            tokens_read(&t, d, 0, n, 0, ids, mask, &err), GLM_OK, "%s", err.text);
        for (int64_t i = 0; i < n; i++) {
            cr_expect_eq(ids[i], json_integer_value(json_array_get(list, (size_t)i)),
                "%s: document %ld, position %ld", name, d, i);
            cr_expect_eq(mask[i], 1);
        }
    }
    cr_expect_eq(t.empty, 1);
    cr_expect_eq(t.longest, 19);
    tokens_close(&t);
}

Test(tokens, of_megatron_are_what_an_independent_script_wrote)
{
    static const char *const names[] = {"u8", "i8", "i16", "i32", "i64", "u16"};
    json_t *const listing = json_load_file("fixtures/megatron/documents.json", 0, NULL);
    cr_assert_not_null(listing);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        equals_listing(names[i], json_object_get(listing, names[i]));
    json_decref(listing);
}

Test(tokens, of_megatron_open_by_prefix_and_by_either_file)
{
    struct glm_error err = {0};
    struct tokens a, b;
    static const char *const paths[] = {
        "fixtures/megatron/u16.idx", "fixtures/megatron/u16.bin"};
    cr_assert_eq(tokens_open(&a, "fixtures/megatron/u16", &err), GLM_OK, "%s", err.text);
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(tokens_open(&b, paths[i], &err), GLM_OK, "%s", err.text);
        cr_expect_arr_eq(a.fingerprint, b.fingerprint, DIGEST_SIZE);
        tokens_close(&b);
    }
    tokens_close(&a);
}

/* The fixture's .idx has 11 sequences (sizes at 34, pointers at 78) and 9 marks (at 166). */
enum { IDX_SIZES = 34, IDX_POINTERS = 78, IDX_MARKS = 166, IDX_END = 238 };

static const struct {
    size_t at, size;
    uint64_t value;
    const char *says;
} wrong[] = {
    {0, 1, 'X', "not a Megatron index"},
    {9, 8, 2, "version 2, expected 1"},
    {17, 1, 0, "type 0"},
    {17, 1, 9, "type 9"},
    {17, 1, 7, "floating point"},
    {17, 1, 6, "floating point"},
    {17, 1, 5, "no whole number of I64 tokens"},
    {17, 1, 4, "sequence 1: pointer 14, expected 28"},
    {18, 8, 12, "too short for its 12 sequences"},
    {18, 8, UINT64_MAX, "too short for its 18446744073709551615 sequences"},
    {26, 8, 8, "8 bytes follow its tables"},
    {26, 8, 10, "too short"},
    {26, 8, UINT64_MAX / 8, "too short"},
    {IDX_SIZES, 4, 0xffffffff, "sequence 0 has the size -1"},
    {IDX_SIZES, 4, 0x7fffffff, "reach beyond the 108 bytes"},
    {IDX_SIZES, 4, 6, "sequence 1: pointer 14, expected 12"},
    {IDX_SIZES + 40, 4, 10, "its index accounts for 106"},
    {IDX_SIZES + 40, 4, 12, "reach beyond"},
    {IDX_POINTERS, 8, 2, "sequence 0: pointer 2, expected 0"},
    {IDX_POINTERS + 80, 8, UINT64_MAX, "sequence 10: pointer -1"},
    {IDX_MARKS, 8, 1, "document mark 0 is 1"},
    {IDX_MARKS + 8, 8, UINT64_MAX, "document mark 1 is -1"},
    {IDX_MARKS + 16, 8, 0, "document mark 2 is 0 after 1"},
    {IDX_MARKS + 16, 8, 12, "document mark 2 is 12"},
    {IDX_MARKS + 64, 8, 10, "document mark 8 is 10"},
};

static void expect_refused(const char *path, const char *says)
{
    struct glm_error err = {0};
    struct tokens t;
    cr_expect_eq(tokens_open(&t, path, &err), GLM_EFORMAT, "opened, though: %s", says);
    cr_expect_not_null(strstr(err.text, says), "'%s' is not in: %s", says, err.text);
    cr_expect_not_null(strstr(err.text, folder), "no file is named: %s", err.text);
    tokens_close(&t);
}

Test(tokens, of_megatron_are_refused_with_what_is_wrong)
{
    size_t idx_size, bin_size;
    unsigned char *const idx = tmpdir_read("fixtures/megatron/u16.idx", &idx_size);
    unsigned char *const bin = tmpdir_read("fixtures/megatron/u16.bin", &bin_size);
    cr_assert_eq(idx_size, IDX_END);
    char path[512], data[512];
    snprintf(path, sizeof path, "%s/x.idx", folder);
    snprintf(data, sizeof data, "%s/x.bin", folder);
    tmpdir_write(data, bin, bin_size);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        unsigned char bad[IDX_END];
        memcpy(bad, idx, sizeof bad);
        memcpy(bad + wrong[i].at, &wrong[i].value, wrong[i].size);
        tmpdir_write(path, bad, sizeof bad);
        expect_refused(path, wrong[i].says);
    }
    for (size_t n = 0; n < idx_size; n++) {
        tmpdir_write(path, idx, n);
        expect_refused(path, "x.idx: ");
    }
    tmpdir_write(path, idx, idx_size);
    tmpdir_write(data, bin, bin_size - 2);
    expect_refused(path, "reach beyond the 106 bytes");
    tmpdir_write(data, bin, bin_size - 1);
    expect_refused(path, "107 bytes are no whole number of U16 tokens");
    unlink(data);
    struct glm_error err = {0};
    struct tokens t;
    cr_expect_eq(tokens_open(&t, path, &err), GLM_EIO);
    cr_expect_not_null(strstr(err.text, "x.bin"), "%s", err.text);
    glm_error_clear(&err);
    cr_expect_eq(tokens_open(&t, "fixtures/megatron/multimodal", &err), GLM_EFORMAT);
    cr_expect_not_null(strstr(err.text, "multimodal dataset"), "%s", err.text);
    free(idx);
    free(bin);
}

Test(tokens, outside_the_vocabulary_are_named_by_file_document_and_position)
{
    struct glm_error err = {0};
    struct tokens t;
    int32_t ids[64];
    cr_assert_eq(tokens_open(&t, "fixtures/megatron/u16", &err), GLM_OK);
    cr_expect_eq(tokens_read(&t, 5, 0, 19, 65536, ids, NULL, &err), GLM_OK);
    /* Position 3 of document 5 is 65535; reading begins before it and at it. */
    cr_expect_eq(tokens_read(&t, 5, 3, 4, 65535, ids, NULL, &err), GLM_EFORMAT);
    cr_expect_str_eq(err.text,
        "fixtures/megatron/u16.bin: document 5, position 3: token id 65535 is outside "
        "the "
        "vocabulary (0 to 65534)");
    int64_t largest;
    glm_error_clear(&err);
    cr_expect_eq(tokens_check(&t, 65535, &largest, NULL, &err), GLM_EMISMATCH);
    cr_expect_not_null(strstr(err.text, "document 5, position 3"), "%s", err.text);
    glm_error_clear(&err);
    cr_expect_eq(tokens_check(&t, 65536, &largest, NULL, &err), GLM_OK, "%s", err.text);
    cr_expect_eq(largest, 65535);
    tokens_close(&t);
}

/* ---- our own --------------------------------------------------------------------------------- */

enum { DOCUMENTS = 40, LONGEST = 3000 };

static int64_t length_of(int64_t d)
{
    return d % 7 == 3 ? 0 : (int64_t)(rng_mix((uint64_t)d) % LONGEST);
}

static int32_t id_of(int64_t d, int64_t i, enum glm_dtype dtype)
{
    const uint64_t x = rng_mix((uint64_t)(d * 100000 + i));
    return (int32_t)(x % (dtype == GLM_U16 ? 65536 : 2147483648u));
}

/* masks: 0 none, 1 all, 2 from document 10 on, and then not in every call. */
static uint8_t mask_of(int64_t d, int64_t i, int masks)
{
    const bool has = masks == 1 || (masks == 2 && d >= 10 && d % 3 != 0);
    return has ? (uint8_t)(rng_mix((uint64_t)(d + i * 1000)) & 1) : 1;
}

static void write_ours(const char *path, enum glm_dtype dtype, int masks)
{
    struct glm_error err = {0};
    struct tokens_writer *w;
    int32_t ids[LONGEST];
    uint8_t mask[LONGEST];
    cr_assert_eq(
        tokens_writer_open(&w, path, dtype, false, &err), GLM_OK, "%s", err.text);
    for (int64_t d = 0; d < DOCUMENTS; d++) {
        const int64_t n = length_of(d), half = n / 2;
        const bool has = masks == 1 || (masks == 2 && d >= 10 && d % 3 != 0);
        for (int64_t i = 0; i < n; i++) {
            ids[i] = id_of(d, i, dtype);
            mask[i] = mask_of(d, i, masks);
        }
        cr_assert_eq(tokens_writer_add(w, ids, has ? mask : NULL, half, &err), GLM_OK);
        cr_assert_eq(
            tokens_writer_add(w, ids + half, has ? mask + half : NULL, n - half, &err),
            GLM_OK);
        cr_assert_eq(tokens_writer_end(w, &err), GLM_OK);
    }
    cr_assert_eq(tokens_writer_finish(w, &err), GLM_OK, "%s", err.text);
    tokens_writer_close(w);
}

static void reads_ours(const char *path, enum glm_dtype dtype, int masks)
{
    struct glm_error err = {0};
    struct tokens t;
    int64_t largest;
    int32_t ids[LONGEST];
    uint8_t mask[LONGEST];
    cr_assert_eq(tokens_open(&t, path, &err), GLM_OK, "%s", err.text);
    cr_assert_eq(t.documents, DOCUMENTS);
    cr_expect_eq(t.mask_base != 0, masks > 0);
    for (int64_t d = 0; d < DOCUMENTS; d++) {
        const int64_t n = length_of(d), from = n / 3;
        cr_assert_eq(tokens_length(&t, d), n);
        cr_assert_eq(tokens_read(&t, d, from, n - from, 0, ids, mask, &err), GLM_OK);
        for (int64_t i = from; i < n; i++) {
            cr_assert_eq(ids[i - from], id_of(d, i, dtype));
            cr_assert_eq(mask[i - from], mask_of(d, i, masks));
        }
    }
    cr_expect_eq(tokens_check(&t, 0, &largest, NULL, &err), GLM_OK, "%s", err.text);
    cr_expect_eq(largest, t.largest);
    tokens_close(&t);
}

Test(tokens, of_ours_come_back)
{
    char path[512];
    for (int masks = 0; masks < 3; masks++)
        for (int wide = 0; wide < 2; wide++) {
            const enum glm_dtype dtype = wide ? GLM_I32 : GLM_U16;
            snprintf(path, sizeof path, "%s/%d-%d.h5", folder, masks, wide);
            write_ours(path, dtype, masks);
            reads_ours(path, dtype, masks);
        }
}

Test(tokens, of_ours_are_the_same_file_every_time)
{
    char a[512], b[512];
    snprintf(a, sizeof a, "%s/a/x.h5", folder);
    snprintf(b, sizeof b, "%s/b/x.h5", folder);
    mkdir(tmpdir_path(folder, "a"), 0777);
    mkdir(tmpdir_path(folder, "b"), 0777);
    write_ours(a, GLM_I32, 1);
    write_ours(b, GLM_I32, 1);
    char first[512];
    snprintf(first, sizeof first, "%s/a", folder);
    cr_expect_eq(tmpdir_differ(first, tmpdir_path(folder, "b")), 0);
}

/* A byte changed anywhere: refused when opened, or found by the check. */
Test(tokens, of_ours_lie_under_a_digest_to_the_last_byte)
{
    char path[512];
    size_t size;
    struct tokens_writer *w;
    struct glm_error err = {0};
    snprintf(path, sizeof path, "%s/x.h5", folder);
    cr_assert_eq(tokens_writer_open(&w, path, GLM_U16, false, &err), GLM_OK);
    static const int32_t ids[] = {1, 2, 3, 4, 5, 6, 7};
    static const uint8_t mask[] = {1, 0, 1, 1, 0, 1, 1};
    cr_assert_eq(tokens_writer_add(w, ids, mask, 7, &err), GLM_OK);
    cr_assert_eq(tokens_writer_end(w, &err), GLM_OK);
    cr_assert_eq(tokens_writer_finish(w, &err), GLM_OK, "%s", err.text);
    tokens_writer_close(w);
    unsigned char *const whole = tmpdir_read(path, &size);
    for (size_t at = 0; at < size; at += at < 700 || at >= TOKENS_BLOCK ? 1 : 97) {
        struct tokens t;
        int64_t largest;
        whole[at] ^= 1;
        tmpdir_write(path, whole, size);
        glm_error_clear(&err);
        if (tokens_open(&t, path, &err) == GLM_OK) {
            tokens_check(&t, 0, &largest, NULL, &err);
            cr_expect_eq(err.code, GLM_EMISMATCH, "byte %zu of %zu", at, size);
        }
        cr_expect_not_null(strstr(err.text, path), "byte %zu: %s", at, err.text);
        tokens_close(&t);
        whole[at] ^= 1;
    }
    for (size_t n = 0; n < size; n += 61) {
        tmpdir_write(path, whole, n);
        expect_refused(path, n < TOKENS_BLOCK ? "not a token dataset" : "was cut");
    }
    free(whole);
}

/* Blocks that are sealed and wrong. */
Test(tokens, of_ours_are_held_against_the_length_of_the_file)
{
    enum { LENGTH = 10000 };
    const struct tokens_block good = {.size = LENGTH,
        .dtype = GLM_I32,
        .part = {{.offset = 5000, .count = 100}, {.offset = 5400, .count = 9},
            {.offset = 5480, .count = 100}}};
    static const struct {
        int part;
        uint64_t offset, count;
        const char *says;
    } bad[] = {
        {0, 4095, 100, "tokens (100 at byte 4095) do not lie inside"},
        {0, 0, 0, "tokens (0 at byte 0)"},
        {0, 9601, 100, "do not lie inside"},
        {0, 10001, 1, "do not lie inside"},
        {0, 5000, UINT64_MAX / 4, "do not lie inside"},
        {0, 5000, UINT64_MAX / 2, "do not lie inside"},
        {0, 5000, 101, "tokens and documents overlap"},
        {1, 5400, UINT64_MAX, "documents"},
        {1, 5400, INT64_MAX, "documents"},
        {1, 5401, 9, "documents and mask overlap"},
        {2, 5480, 99, "99 mask elements for 100 tokens"},
        {2, 0, 100, "mask (100 at byte 0)"},
        {2, 5480, 0, "mask (0 at byte 5480)"},
    };
    unsigned char raw[TOKENS_BLOCK];
    struct glm_error err = {0};
    struct tokens_block b = good, out;
    tokens_block_print(&b, raw);
    cr_expect_eq(
        tokens_block_parse(&out, "x", raw, LENGTH, &err), GLM_OK, "%s", err.text);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        b = good;
        b.part[bad[i].part].offset = bad[i].offset;
        b.part[bad[i].part].count = bad[i].count;
        tokens_block_print(&b, raw);
        glm_error_clear(&err);
        cr_expect_eq(
            tokens_block_parse(&out, "x", raw, LENGTH, &err), GLM_EFORMAT, "%zu", i);
        cr_expect_not_null(strstr(err.text, bad[i].says), "%zu: %s", i, err.text);
    }
}

Test(tokens, writer_leaves_nothing_when_it_is_abandoned_and_refuses_company)
{
    struct glm_error err = {0};
    struct tokens_writer *a, *b;
    static const int32_t id = 3;
    char path[512];
    snprintf(path, sizeof path, "%s/x.h5", folder);
    cr_assert_eq(tokens_writer_open(&a, path, GLM_U16, false, &err), GLM_OK);
    cr_expect_eq(tokens_writer_open(&b, path, GLM_U16, false, &err), GLM_EUSAGE);
    cr_expect_not_null(strstr(err.text, "another run is writing it"), "%s", err.text);
    glm_error_clear(&err);
    cr_expect_eq(tokens_writer_finish(a, &err), GLM_EFORMAT);
    cr_expect_not_null(strstr(err.text, "not one token"), "%s", err.text);
    tokens_writer_close(a);
    cr_expect_neq(access(path, F_OK), 0);
    cr_expect_neq(access(tmpdir_path(folder, "x.h5.partial"), F_OK), 0);
    /* What a killed run left is no obstacle; what is there already is. */
    tmpdir_write(tmpdir_path(folder, "x.h5.partial"), "old", 3);
    glm_error_clear(&err);
    cr_assert_eq(
        tokens_writer_open(&a, path, GLM_U16, false, &err), GLM_OK, "%s", err.text);
    cr_assert_eq(tokens_writer_add(a, &id, NULL, 1, &err), GLM_OK);
    cr_assert_eq(tokens_writer_end(a, &err), GLM_OK);
    cr_assert_eq(tokens_writer_finish(a, &err), GLM_OK, "%s", err.text);
    tokens_writer_close(a);
    cr_expect_eq(tokens_writer_open(&a, path, GLM_U16, false, &err), GLM_EUSAGE);
    cr_expect_not_null(strstr(err.text, "exists"), "%s", err.text);
}
