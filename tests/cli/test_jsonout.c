#include "cli/jsonout.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

static char *print(struct jsonout *j, struct glm_error *err)
{
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    jsonout_print(j, f, err);
    fclose(f);
    return text;
}

Test(jsonout, keeps_the_order_in_which_keys_were_added)
{
    struct jsonout j;
    struct glm_error err = {0};
    unsigned char digest[32] = {0x01, 0xAB};
    jsonout_init(&j);
    jsonout_str(&j, NULL, "z", "ä\"\n");
    jsonout_uint(&j, NULL, "bytes", 1506659881000u);
    json_t *o = jsonout_object(&j, NULL, "topology");
    jsonout_int(&j, o, "tp", -1);
    json_t *a = jsonout_array(&j, NULL, "list");
    jsonout_bool(&j, a, NULL, true);
    jsonout_real(&j, a, NULL, 0.5);
    jsonout_real(&j, a, NULL, NAN);
    jsonout_real(&j, a, NULL, INFINITY);
    jsonout_str(&j, NULL, "a", NULL);
    jsonout_digest(&j, NULL, "id", digest);
    char *text = print(&j, &err);
    cr_expect_eq(err.code, GLM_OK, "%s", err.text);
    cr_expect_str_eq(text,
        "{\n  \"z\": \"ä\\\"\\n\",\n  \"bytes\": 1506659881000,\n  \"topology\": {\n    "
        "\"tp\": -1\n"
        "  },\n  \"list\": [\n    true,\n    0.5,\n    null,\n    null\n  ],\n  \"a\": "
        "null,\n"
        "  \"id\": "
        "\"01ab000000000000000000000000000000000000000000000000000000000000\"\n}\n");
    free(text);
    jsonout_clear(&j);
}

/* One for each byte that belongs to no character: stray, cut short, overlong, a surrogate half. */
Test(jsonout, bytes_that_are_not_utf8_become_replacement_characters)
{
#define BAD "\xef\xbf\xbd"
    static const struct {
        const char *text, *mended;
    } cases[] = {{"\xff", BAD},
        {"a\xff\xfe"
         "b",
            "a" BAD BAD "b"},
        {"\xe2\x82", BAD BAD}, {"\xe2\x82\xac\x80", "\xe2\x82\xac" BAD},
        {"\xc0\xaf", BAD BAD}, {"\xed\xa0\x80", BAD BAD BAD},
        {"\xf4\x90\x80\x80", BAD BAD BAD BAD}, {"\xf0\x9f\x98\x80", "\xf0\x9f\x98\x80"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct jsonout j;
        struct glm_error err = {0};
        char wanted[64];
        jsonout_init(&j);
        jsonout_str(&j, NULL, cases[i].text, cases[i].text);
        char *text = print(&j, &err);
        snprintf(wanted, sizeof wanted, "{\n  \"%s\": \"%s\"\n}\n", cases[i].mended,
            cases[i].mended);
        cr_expect_eq(err.code, GLM_OK, "%s", err.text);
        cr_expect_str_eq(text, wanted);
        free(text);
        jsonout_clear(&j);
    }
}

Test(jsonout, what_cannot_be_stored_is_an_error_that_names_the_key)
{
    struct jsonout j;
    struct glm_error err = {0};
    jsonout_init(&j);
    jsonout_uint(&j, NULL, "bytes", UINT64_MAX);
    jsonout_str(&j, jsonout_object(&j, NULL, "later"), "x", "y");
    char *text = print(&j, &err);
    cr_expect_eq(err.code, GLM_ENOMEM);
    cr_expect_str_eq(err.text, "JSON output: key 'bytes' cannot be stored");
    cr_expect_str_eq(text, "");
    free(text);
    jsonout_clear(&j);
}
