/* safetensors headers: every rule of the format broken once, each with a sentence of its own; what
 * other files are; agreement with the Python library; memory and size bounds. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <criterion/criterion.h>
#include <jansson.h>

#include "convert/jsonin.h"
#include "convert/safetensors.h"
#include "tests/support/tmpdir.h"

/* Parses a header text of the given length in front of `data` bytes that are never touched. */
static int parse_n(
    struct st_header *h, const char *json, size_t n, uint64_t data, struct glm_error *err)
{
    unsigned char *bytes = malloc(n + 8);
    for (size_t i = 0; i < 8; i++)
        bytes[i] = (unsigned char)(n >> (8 * i));
    memcpy(bytes + 8, json, n);
    const int code = st_parse(h, "t.safetensors", bytes, n + 8, n + 8 + data, err);
    free(bytes);
    return code;
}

static void accepted(struct st_header *h, const char *json, uint64_t data)
{
    struct glm_error err = {0};
    cr_assert_eq(parse_n(h, json, strlen(json), data, &err), 0, "%s", err.text);
}

static void refused_n(const char *json, size_t n, uint64_t data, const char *sentence)
{
    struct st_header h;
    struct glm_error err = {0};
    cr_assert_eq(parse_n(&h, json, n, data, &err), GLM_EFORMAT, "accepted: %s", json);
    cr_assert(strstr(err.text, sentence), "wanted '%s', got '%s'", sentence, err.text);
    cr_assert(strncmp(err.text, "t.safetensors: ", 15) == 0, "%s", err.text);
    cr_assert_null(h.tensors);
    cr_assert_null(h.arena);
}

static void refused(const char *json, uint64_t data, const char *sentence)
{
    refused_n(json, strlen(json), data, sentence);
}

/* The address sanitizer's own memory is many times the program's. */
#ifdef __SANITIZE_ADDRESS__
enum { PEAK_KIB = 4096 * 1024 };
#else
enum { PEAK_KIB = 512 * 1024 };
#endif

#define T(name, dtype, shape, begin, end)                                                \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":[" shape                            \
    "],\"data_offsets\":[" #begin "," #end "]}"

Test(safetensors, reads_names_types_shapes_and_places)
{
    struct st_header h;
    accepted(&h,
        "{" T("b", "BF16", "2,3", 4, 16) ",\"__metadata__\":{\"format\":\"pt\"}," T(
            "a", "F32", "", 0, 4) "}",
        16);
    cr_assert_eq(h.count, 2);
    cr_assert_str_eq(h.tensors[0].name, "a");
    cr_assert_eq(h.tensors[0].rank, 0);
    const struct st_tensor *b = st_find(&h, "b and more", 1);
    cr_assert_not_null(b);
    cr_assert_eq(b->dtype, GLM_BF16);
    cr_assert_eq(b->rank, 2);
    cr_assert_eq(b->shape[1], 3);
    cr_assert_eq(b->begin, 4u);
    cr_assert_eq(b->end, 16u);
    cr_assert_str_eq(h.metadata, "{\"format\":\"pt\"}");
    cr_assert_null(st_find(&h, "c", 1));
    cr_assert_null(st_find(&h, "ab", 2));
    st_clear(&h);
}

Test(safetensors, accepts_white_space_around_the_object)
{
    struct st_header h;
    accepted(&h,
        " \n\t{ \"a\" : {\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]} }   \n",
        1);
    cr_assert_eq(h.count, 1);
    st_clear(&h);
    refused("x{}", 0, "byte 8: not JSON: found 'x', expected '{'");
    refused_n(
        "{}\0", 3, 0, "byte 10: not JSON: found '\\x00', expected only white space");
    refused("{}{}", 0, "byte 10: not JSON: found '{', expected only white space");
}

Test(safetensors, accepts_zero_sized_and_scalar_tensors_anywhere_in_the_chain)
{
    struct st_header h;
    accepted(&h,
        "{" T("a", "F32", "0,7", 0, 0) "," T("b", "F32", "", 0, 4) "," T("c", "I8", "0",
            4, 4) "," T("d", "U8", "2", 4, 6) "," T("e", "U8", "3,0", 6, 6) "}",
        6);
    cr_assert_eq(h.count, 5);
    st_clear(&h);
    refused("{" T("a", "F32", "", 0, 4) "," T("z", "I8", "0", 2, 2) "}", 4, "overlap");
}

Test(safetensors, accepts_an_empty_map_of_metadata)
{
    struct st_header h;
    accepted(&h, "{\"__metadata__\":{}}", 0);
    cr_assert_eq(h.count, 0);
    cr_assert_str_eq(h.metadata, "{}");
    st_clear(&h);
    accepted(&h, "{}", 0);
    cr_assert_null(h.metadata);
    st_clear(&h);
}

Test(safetensors, refuses_metadata_that_is_not_strings)
{
    refused("{\"__metadata__\":{\"a\":1}}", 0, "not a map of strings to strings");
    refused("{\"__metadata__\":null}", 0, "not a map of strings to strings");
    refused(
        "{\"__metadata__\":{},\"__metadata__\":{}}", 0, "__metadata__ is given twice");
    refused("{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}", 0, "a key is given twice");
    refused("{\"__metadata__\":{\"a\"}}", 0, "not JSON: found '}', expected ':'");
}

/* A value may be longer than any tensor's name; a key may not, and that is what is said of it. */
Test(safetensors, takes_long_values_of_metadata)
{
    enum { LONG = 70000 };
    static char json[LONG + 64];
    struct st_header h;
    for (int key = 0; key < 2; key++) {
        const int n = snprintf(json, sizeof json,
            key ? "{\"__metadata__\":{\"" : "{\"__metadata__\":{\"a\":\"");
        memset(json + n, 'x', LONG);
        strcpy(json + n + LONG, key ? "\":\"\"}}" : "\"}}");
        if (key) {
            refused(json, 0, "a string longer than 65536 bytes");
            continue;
        }
        accepted(&h, json, 0);
        cr_assert_eq(strlen(h.metadata), (size_t)LONG + 8);
        st_clear(&h);
    }
}

Test(safetensors, checks_the_length_of_the_header)
{
    struct st_header h;
    struct glm_error err = {0};
    const unsigned char one[9] = {1, 0, 0, 0, 0, 0, 0, 0, '{'};
    cr_assert_eq(st_parse(&h, "f", one, 9, 9, &err), GLM_EFORMAT);
    cr_assert_str_eq(err.text, "f: byte 0: a header of 1 bytes is too small for {}");
    const unsigned char big[8] = {0x01, 0xe1, 0xf5, 0x05}; /* 100,000,001 */
    glm_error_clear(&err);
    cr_assert_eq(st_parse(&h, "f", big, 8, UINT64_C(1) << 40, &err), GLM_EFORMAT);
    cr_assert(strstr(err.text, "100000001 bytes is over the limit of 100000000"), "%s",
        err.text);
    const unsigned char past[10] = {3, 0, 0, 0, 0, 0, 0, 0, '{', '}'};
    glm_error_clear(&err);
    cr_assert_eq(st_parse(&h, "f", past, 10, 10, &err), GLM_EFORMAT);
    cr_assert(strstr(err.text, "the header alone needs 11 bytes, 10 are there"), "%s",
        err.text);
    glm_error_clear(&err);
    cr_assert_eq(st_parse(&h, "f", past, 10, 100, &err), GLM_EFORMAT);
    cr_assert(strstr(err.text, "needs 11 bytes, 10 were read"), "%s", err.text);
    glm_error_clear(&err);
    cr_assert_eq(st_parse(&h, "f", past, 7, 7, &err), GLM_EFORMAT);
    cr_assert(strstr(err.text, "too small: 7 bytes"), "%s", err.text);
    const unsigned char wrap[8] = {
        0xf9, 255, 255, 255, 255, 255, 255, 255}; /* 2^64 - 7 */
    glm_error_clear(&err);
    cr_assert_eq(st_parse(&h, "f", wrap, 8, 8, &err), GLM_EFORMAT);
    cr_assert(strstr(err.text, "over the limit"), "%s", err.text);
}

Test(safetensors, refuses_what_is_not_utf8)
{
    static const char *const bad[] = {"\x80", "\xc0\xaf", "\xe0\x80\x80", "\xed\xa0\x80",
        "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xc3", "\xe2\x82", "\xf0\x8f\x80\x80",
        "\xff"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char json[128];
        snprintf(json, sizeof json,
            "{\"%s\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", bad[i]);
        refused(json, 1, "byte 10: the header is not UTF-8");
    }
    struct st_header h;
    accepted(&h,
        "{" T(
            "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\xf4\x8f\xbf\xbf", "U8", "1", 0, 1) "}",
        1);
    st_clear(&h);
}

Test(safetensors, refuses_what_is_not_json)
{
    refused("{\"a\"", 0, "the text ends, ':' expected");
    refused("{\"a\" 1}", 0, "expected ':'");
    refused("{\"a\":", 0, "the text ends, a value expected");
    refused("{\"a\":}", 0, "found '}', expected a value");
    refused("{a:1}", 0, "expected a key in quotes");
    refused("{\"a", 0, "a string without end");
    refused("{\"a\\", 0, "a string without end");
    refused("{\"a\":{", 0, "has no end");
    refused("{\"a\":{\"b", 0, "a string without end");
    refused("{\"a\":5}", 0, "byte 13: tensor 'a': its entry is not an object");
    refused("{\"a\":\"x\"}", 0, "its entry is not an object");
    refused("{\"a\":[]}", 0, "its entry is not an object");
    refused("{" T("a", "U8", "1", 0, 1) " 5}", 1, "expected ',' or '}'");
    refused("{" T("a", "U8", "1", 0, 1) ",}", 1, "expected a key in quotes");
    refused("{\"a\":{]}", 0, "not JSON");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[1,],\"data_offsets\":[0,1]}}", 1,
        "not JSON");
    refused("{\"a\nb\":{}}", 0, "not JSON");
    refused("{\"a\\x\":{}}", 0, "not JSON");
    refused("{\"a\\u0000b\":{}}", 0, "NUL");
}

Test(safetensors, decodes_escaped_names)
{
    struct st_header h;
    accepted(&h, "{" T("a\\\"\\u00e9\\n", "U8", "1", 0, 1) "}", 1);
    cr_assert_str_eq(h.tensors[0].name, "a\"\xc3\xa9\n");
    cr_assert_eq(h.tensors[0].name_length, 5u);
    st_clear(&h);
    refused("{" T("a", "U8", "1", 0, 1) "," T("\\u0061", "U8", "1", 1, 2) "}", 2,
        "given twice");
}

/* As long as a name may be, of characters with a short escape and a long one. */
Test(safetensors, what_is_read_can_be_written)
{
    static char json[JSONIN_MAX_STRING + 256];
    struct glm_error err = {0};
    struct st_header h, again;
    void *bytes;
    size_t size, n = 0;
    json[n++] = '{';
    json[n++] = '"';
    for (size_t i = 0; n < JSONIN_MAX_STRING; i++, n += 2)
        memcpy(json + n, &"\\b\\f\\n\\r\\t\\\"\\\\"[2 * (i % 7)], 2);
    strcpy(json + n, "\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}");
    accepted(&h, json, 1);
    cr_assert_eq(st_build(h.tensors, 1, 8, &bytes, &size, &err), 0, "%s", err.text);
    cr_assert_eq(
        st_parse(&again, "again", bytes, size, size + 1, &err), 0, "%s", err.text);
    cr_assert_str_eq(again.tensors[0].name, h.tensors[0].name);
    st_clear(&again);
    st_clear(&h);
    free(bytes);
}

Test(safetensors, refuses_fields_that_are_wrong_or_missing)
{
    refused("{\"a\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "no dtype");
    refused("{\"a\":{\"dtype\":7,\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "no dtype");
    refused("{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, "no shape");
    refused(
        "{\"a\":{\"dtype\":\"U8\",\"shape\":1,\"data_offsets\":[0,1]}}", 1, "no shape");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, "no data_offsets");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1]}}", 1,
        "not two numbers");
    refused(
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"strides\":[1]}}",
        1, "unknown field 'strides'");
    refused(
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"shape\":[1],\"data_offsets\":[0,1]}}",
        1, "a key is given twice");
    refused("{" T("a", "U8", "1.0", 0, 1) "}", 1,
        "the shape holds something that is not an integer");
    refused(
        "{" T("a", "U8", "-1", 0, 1) "}", 1, "the shape holds the negative number -1");
    refused(
        "{" T("a", "U8", "1", -1, 0) "}", 1, "data_offsets holds the negative number -1");
    refused(
        "{" T("a", "U8", "1", 1e0, 2) "}", 1, "data_offsets holds something that is not");
    refused("{" T("a", "U8", "1", 2, 1) "}", 2,
        "data_offsets end at 1, before their begin 2");
    refused(
        "{" T("a", "U8", "1,1,1,1,1,1,1,1,1", 0, 1) "}", 1, "9 dimensions, at most 8");
}

Test(safetensors, refuses_names_given_twice_and_says_where)
{
    refused("{" T("a", "U8", "1", 0, 1) "," T("b", "U8", "1", 1, 2) "," T(
                "a", "U8", "1", 2, 3) "}",
        3, "byte 113: tensor 'a': the name is given twice, first at byte 9");
}

Test(safetensors, refuses_holes_overlaps_and_bytes_without_owner)
{
    refused("{" T("a", "U8", "4", 0, 4) "," T("b", "U8", "4", 5, 9) "}", 9,
        "tensor 'b': its data begin at 5 but a ends at 4: a hole of 1 bytes");
    refused("{" T("a", "U8", "4", 0, 4) "," T("b", "U8", "4", 3, 7) "}", 7,
        "tensor 'b': its data begin at 3 but a ends at 4: they overlap by 1 bytes");
    refused(
        "{" T("a", "U8", "4", 1, 5) "}", 5, "but the start ends at 0: a hole of 1 bytes");
    refused("{" T("a", "U8", "4", 0, 4) "}", 6,
        "2 bytes follow the last tensor that no tensor owns");
    refused("{}", 1, "1 bytes follow the last tensor");
    refused("{" T("a", "U8", "4", 0, 4) "}", 3, "the file is cut");
}

Test(safetensors, refuses_sizes_that_do_not_fit_the_shape)
{
    refused("{" T("a", "BF16", "4", 0, 4) "}", 4,
        "its shape needs 8 bytes of BF16, data_offsets give 4");
    refused("{" T("a", "F4", "3", 0, 2) "}", 2,
        "3 elements of F4 are 12 bits, not whole bytes");
    refused("{" T("a", "F6_E2M3", "2", 0, 2) "}", 2, "12 bits, not whole bytes");
    struct st_header h;
    accepted(&h, "{" T("a", "F4", "4", 0, 2) "," T("b", "F6_E3M2", "4", 2, 5) "}", 5);
    st_clear(&h);
}

Test(field_reports, B_76_sizes_that_overflow_are_refused)
{
    static const char *const huge[] = {"4294967296,4294967296", "9223372036854775807,2",
        "4611686018427387904,2", "9223372036854775807", "2305843009213693952",
        "4294967295,4294967297,3"};
    for (size_t i = 0; i < sizeof huge / sizeof huge[0]; i++) {
        char json[256];
        snprintf(json, sizeof json,
            "{\"a\":{\"dtype\":\"F32\",\"shape\":[%s],\"data_offsets\":[0,4]}}", huge[i]);
        refused(json, 4, "overflows 64 bits");
    }
    refused("{" T("a", "U8", "9223372036854775808", 0, 1) "}", 1,
        "a number beyond what 64 bits hold");
    refused("{" T("a", "U8", "1", 0, 18446744073709551616) "}", 1,
        "a number beyond what 64 bits");
    refused("{" T("a", "U8", "1e999", 0, 1) "}", 1, "a number beyond what 64 bits");
    /* 2^63-1 bytes are consistent with themselves, but no file holds them. */
    refused("{" T("a", "U8", "1152921504606846975", 0, 1152921504606846975) "}", 1,
        "the file is cut");
}

Test(field_reports, B_85_known_types_are_kept_and_unknown_ones_refused)
{
    struct st_header h;
    accepted(&h,
        "{" T("a", "F8_E8M0", "2", 0, 2) "," T("b", "I64", "1", 2, 10) "," T(
            "c", "F4", "2", 10, 11) "}",
        11);
    cr_assert_eq(h.tensors[0].dtype, GLM_F8_E8M0);
    cr_assert_eq(h.tensors[1].dtype, GLM_I64);
    cr_assert_eq(h.tensors[2].dtype, GLM_F4);
    st_clear(&h);
    refused("{" T("w", "F9", "2", 0, 2) "}", 2, "tensor 'w': unknown dtype 'F9'");
    refused("{" T("w", "f32", "1", 0, 4) "}", 4, "unknown dtype 'f32'");
}

Test(safetensors, refuses_bombs_of_depth_and_length)
{
    char *json = malloc(200000);
    char *at = stpcpy(json, "{\"a\":");
    memset(at, '[', 1000);
    at[1000] = '\0';
    refused(json, 0, "nests deeper than 32 levels");
    at = stpcpy(json, "{\"a\":{\"dtype\":\"");
    memset(at, 'x', 70000);
    strcpy(at + 70000, "\"}}");
    refused(json, 0, "a string longer than 65536 bytes is refused");
    at = stpcpy(json, "{\"a\":{\"shape\":[");
    for (int i = 0; i < 35000; i++)
        at = stpcpy(at, "1,");
    strcpy(at, "1]}}");
    refused(json, 0, "the entry of 'a' is longer than 65536 bytes");
    at = stpcpy(json, "{\"");
    memset(at, 'k', 70000);
    strcpy(at + 70000, "\":{}}");
    refused(json, 0, "a string longer than 65536 bytes is refused");
    at = stpcpy(json, "{\"a\":");
    memset(at, '1', 70000);
    strcpy(at + 70000, "}");
    refused(json, 0, "longer than 65536 bytes");
    free(json);
}

Test(safetensors, shows_hostile_names_harmlessly)
{
    refused("{" T("\\u001b[31m\\n", "F9", "", 0, 1) "}", 1, "tensor '\\x1b[31m\\x0a'");
}

/* ---- other files ----------------------------------------------------------------------------- */

static void read_refused(const void *bytes, size_t size, const char *sentence)
{
    char *dir = tmpdir_new();
    struct st_header h;
    struct glm_error err = {0};
    void *copy = (void *)1;
    tmpdir_write(tmpdir_path(dir, "m.safetensors"), bytes, size);
    cr_assert_eq(
        st_read(&h, tmpdir_path(dir, "m.safetensors"), &copy, &err), GLM_EFORMAT);
    cr_assert(strstr(err.text, sentence), "wanted '%s', got '%s'", sentence, err.text);
    cr_assert(strstr(err.text, "m.safetensors: "), "%s", err.text);
    cr_assert_null(copy);
    tmpdir_remove(dir);
}

Test(field_reports, B_59_other_files_are_named_for_what_they_are)
{
    static const char lfs[] = "version https://git-lfs.github.com/spec/v1\noid sha256:"
                              "4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d1"
                              "7e2393\nsize 5363242912\n";
    read_refused(lfs, sizeof lfs - 1, "a Git LFS pointer");
    read_refused("", 0, "an empty file");
    read_refused("<!DOCTYPE html>\n<html><body>404", 31, "an HTML or XML page");
    read_refused("\n<html><head>", 13, "an HTML or XML page");
    read_refused("<h1>", 4, "an HTML or XML page");
    read_refused("\x1f\x8b\x08\x08\x4a\x5c\x11\x65\x00\x03model", 15, "gzip data");
    /* gzip without a time: the first eight bytes are a length that this file could hold. */
    char *gzip = calloc(1, 600000);
    memcpy(gzip, "\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03", 10);
    read_refused(gzip, 600000, "gzip data");
    free(gzip);
    read_refused("PK\x03\x04........", 12, "a zip archive");
    read_refused("\x89HDF\r\n\x1a\n...", 11, "an HDF5 file");
    read_refused("GGUF\x03\x00\x00\x00\x00", 9, "a GGUF file");
    read_refused("{\"a\":{\"dtype\":\"F32\"}}", 21, "bare JSON");
    read_refused("\x0a\x00", 2, "too small: 2 bytes");
}

Test(field_reports, B_59_and_B_22_a_cut_file_is_named_with_both_lengths)
{
    struct st_tensor t = {.name = "w",
        .name_length = 1,
        .dtype = GLM_U8,
        .rank = 1,
        .shape = (int64_t[]){2000000}};
    struct glm_error err = {0};
    void *bytes;
    size_t size;
    char want[128];
    cr_assert_eq(st_build(&t, 1, 8, &bytes, &size, &err), 0);
    char *file = calloc(1, size + 2000000);
    memcpy(file, bytes, size);
    const size_t lengths[] = {size + 1999999, size + 1000000, size};
    for (size_t i = 0; i < 3; i++) {
        snprintf(want, sizeof want,
            "the file is cut: its header describes %zu bytes, %zu are", size + 2000000,
            lengths[i]);
        read_refused(file, lengths[i], want);
    }
    snprintf(want, sizeof want,
        "the file is cut: the header alone needs %zu bytes, 40 are", size);
    read_refused(file, 40, want);
    free(file);
    free(bytes);
}

Test(safetensors, reads_a_file_and_keeps_its_header_bytes)
{
    char *dir = tmpdir_new();
    struct st_tensor t[2] = {{.name = "b\"\n",
                                 .name_length = 3,
                                 .dtype = GLM_F32,
                                 .rank = 2,
                                 .shape = (int64_t[]){2, 3}},
        {.name = "a", .name_length = 1, .dtype = GLM_F8_E4M3, .rank = 0}};
    struct glm_error err = {0};
    void *bytes, *copy;
    size_t size;
    cr_assert_eq(st_build(t, 2, 4096, &bytes, &size, &err), 0, "%s", err.text);
    cr_assert_eq(size % 4096, 0u);
    cr_assert_eq(((char *)bytes)[8], '{');
    cr_assert_eq(((char *)bytes)[size - 1], ' ');
    char *file = calloc(1, size + 25);
    memcpy(file, bytes, size);
    tmpdir_write(tmpdir_path(dir, "m"), file, size + 25);
    struct st_header h;
    cr_assert_eq(st_read(&h, tmpdir_path(dir, "m"), &copy, &err), 0, "%s", err.text);
    cr_assert_arr_eq(copy, bytes, size);
    cr_assert_eq(h.data_start, size);
    cr_assert_eq(h.count, 2);
    cr_assert_str_eq(h.tensors[1].name, "b\"\n");
    cr_assert_eq(h.tensors[0].begin, 24u);
    st_clear(&h);
    cr_assert_eq(st_read(&h, tmpdir_path(dir, "m"), NULL, &err), 0);
    st_clear(&h);
    cr_assert_eq(st_read(&h, tmpdir_path(dir, "none"), NULL, &err), GLM_EIO);
    glm_error_clear(&err);
    cr_assert_eq(st_read(&h, dir, NULL, &err), GLM_EFORMAT);
    free(copy);
    free(file);
    free(bytes);
    tmpdir_remove(dir);
}

Test(safetensors, writes_only_what_the_format_allows)
{
    struct st_tensor twice[2] = {
        {.name = "a", .name_length = 1}, {.name = "a", .name_length = 1}};
    struct st_tensor huge = {.name = "a",
        .name_length = 1,
        .dtype = GLM_F64,
        .rank = 2,
        .shape = (int64_t[]){INT64_C(1) << 40, INT64_C(1) << 40}};
    struct st_tensor odd = {.name = "a",
        .name_length = 1,
        .dtype = GLM_F4,
        .rank = 1,
        .shape = (int64_t[]){3}};
    struct glm_error err = {0};
    void *bytes;
    size_t size;
    cr_assert_eq(st_build(twice, 2, 8, &bytes, &size, &err), GLM_EFORMAT);
    cr_assert_null(bytes);
    glm_error_clear(&err);
    cr_assert_eq(st_build(&huge, 1, 8, &bytes, &size, &err), GLM_EFORMAT);
    glm_error_clear(&err);
    cr_assert_eq(st_build(&odd, 1, 8, &bytes, &size, &err), GLM_EFORMAT);
}

Test(field_reports, B_70_a_file_of_metadata_alone_is_accepted)
{
    struct glm_error err = {0};
    void *bytes;
    size_t size;
    cr_assert_eq(st_build(NULL, 0, 8, &bytes, &size, &err), 0, "%s", err.text);
    struct st_header h;
    cr_assert_eq(st_parse(&h, "f", bytes, size, size, &err), 0, "%s", err.text);
    cr_assert_eq(h.count, 0);
    st_clear(&h);
    free(bytes);
}

/* ---- the Python library's files -------------------------------------------------------------- */

/* fixtures/safetensors/NAME.safetensors beside NAME.json, what the library itself reads there. */
static void agrees(const char *name)
{
    char path[256];
    struct glm_error err = {0};
    struct st_header h;
    snprintf(path, sizeof path, "fixtures/safetensors/%s.json", name);
    json_error_t e;
    json_t *want = json_load_file(path, 0, &e);
    cr_assert_not_null(want, "%s: %s", path, e.text);
    snprintf(path, sizeof path, "fixtures/safetensors/%s.safetensors", name);
    cr_assert_eq(st_read(&h, path, NULL, &err), 0, "%s", err.text);
    size_t size;
    unsigned char *file = tmpdir_read(path, &size);
    cr_assert_eq((size_t)h.count, json_object_size(want));
    for (int64_t i = 0; i < h.count; i++) {
        const struct st_tensor *t = &h.tensors[i];
        const json_t *w = json_object_get(want, t->name);
        cr_assert_not_null(w, "%s: %s", name, t->name);
        cr_assert_str_eq(
            glm_dtype_name(t->dtype), json_string_value(json_object_get(w, "dtype")));
        const json_t *shape = json_object_get(w, "shape");
        cr_assert_eq((size_t)t->rank, json_array_size(shape));
        for (int d = 0; d < t->rank; d++)
            cr_assert_eq(
                t->shape[d], json_integer_value(json_array_get(shape, (size_t)d)));
        const char *hex = json_string_value(json_object_get(w, "bytes"));
        cr_assert_eq(strlen(hex), 2 * (t->end - t->begin));
        for (uint64_t b = t->begin; b < t->end; b++, hex += 2) {
            unsigned byte;
            cr_assert_eq(sscanf(hex, "%2x", &byte), 1);
            cr_assert_eq(file[h.data_start + b], byte);
        }
    }
    free(file);
    st_clear(&h);
    json_decref(want);
}

Test(safetensors, agrees_with_the_python_library)
{
    agrees("types");
    agrees("shapes");
    agrees("names");
    agrees("empty");
}

/* ---- bounds ---------------------------------------------------------------------------------- */

Test(safetensors, refuses_leading_zeros_in_numbers)
{
    refused("{" T("a", "U8", "01", 0, 1) "}", 1, "not JSON");
}

Test(safetensors, parses_a_million_tensors_below_512_mb, .timeout = 1800)
{
    char *dir = tmpdir_new();
    char *path = strdup(tmpdir_path(dir, "big.safetensors"));
    enum { COUNT = 1000000 };
    FILE *f = fopen(path, "wb+");
    fseek(f, 8, SEEK_SET);
    for (int i = 0; i < COUNT; i++)
        fprintf(f,
            "%c\"model.layers.%018d.wt\":{\"dtype\":\"U8\",\"shape\":[1],"
            "\"data_offsets\":[%d,%d]}",
            i ? ',' : '{', COUNT - i, i, i + 1);
    fputc('}', f);
    while (ftell(f) < 8 + ST_MAX_HEADER)
        fputc(' ', f);
    const uint64_t n = (uint64_t)ftell(f) - 8;
    cr_assert_eq(n, (uint64_t)ST_MAX_HEADER);
    rewind(f);
    for (int i = 0; i < 8; i++)
        fputc((int)(n >> (8 * i) & 0xff), f);
    fflush(f);
    cr_assert_eq(ftruncate(fileno(f), (off_t)(8 + n + COUNT)), 0);
    fclose(f);
    /* A process of its own, so that its peak is that of reading alone. */
    const pid_t child = fork();
    if (child == 0) {
        struct st_header h;
        struct glm_error err = {0};
        void *bytes = NULL;
        struct rusage usage;
        if (st_read(&h, path, &bytes, &err) != 0 || h.count != COUNT)
            _exit(1);
        getrusage(RUSAGE_SELF, &usage);
        _exit(usage.ru_maxrss < PEAK_KIB ? 0 : 2);
    }
    int status;
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert(WIFEXITED(status));
    cr_assert_neq(WEXITSTATUS(status), 1, "the header was not read");
    cr_assert_neq(WEXITSTATUS(status), 2, "more than 512 MB were used");
    free(path);
    tmpdir_remove(dir);
}

Test(safetensors, refuses_a_larger_header_unread)
{
    char *dir = tmpdir_new();
    const char *path = tmpdir_path(dir, "big.safetensors");
    const unsigned char length[9] = {0x01, 0xe1, 0xf5, 0x05, 0, 0, 0, 0, '{'};
    tmpdir_write(path, length, sizeof length);
    cr_assert_eq(truncate(path, 200000000), 0);
    struct st_header h;
    struct glm_error err = {0};
    struct rusage before, after;
    getrusage(RUSAGE_SELF, &before);
    cr_assert_eq(st_read(&h, path, NULL, &err), GLM_EFORMAT);
    getrusage(RUSAGE_SELF, &after);
    cr_assert(strstr(err.text, "over the limit"), "%s", err.text);
    cr_assert_lt(after.ru_maxrss - before.ru_maxrss, 10 * 1024);
    tmpdir_remove(dir);
}
