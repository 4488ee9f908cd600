/* The hub's lists: what is taken, and each name and number that is not. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <criterion/criterion.h>

#include "convert/hubtree.h"

static int read_list(struct hubtree *t, const char *text, struct glm_error *err)
{
    *t = (struct hubtree){0};
    if (hubtree_page(t, "hub", text, strlen(text), err) == GLM_OK)
        hubtree_check(t, "hub", err);
    return (int)err->code;
}

Test(hubtree, takes_files_with_the_digest_of_their_content)
{
    struct hubtree t;
    struct glm_error err = {0};
    cr_assert_eq(
        read_list(&t,
            "[{\"type\":\"directory\",\"oid\":\"x\",\"size\":0,\"path\":\"a\"},"
            "{\"type\":\"file\",\"oid\":\"ffffffffffffffffffffffffffffffffffffffff\","
            "\"size\":5368709120,\"path\":\"m.safetensors\",\"lfs\":{\"oid\":"
            "\"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\","
            "\"size\":1,\"pointerSize\":130}},"
            "{\"type\":\"file\",\"oid\":\"0123456789abcdef0123456789abcdef01234567\","
            "\"size\":3,\"path\":\"config.json\"}]",
            &err),
        GLM_OK, "%s", err.text);
    cr_assert_eq(t.count, 2);
    cr_assert_str_eq(t.files[0].path, "config.json");
    cr_assert_eq(strlen(t.files[0].digest), 40);
    const struct hubtree_file *f = hubtree_find(&t, "m.safetensors");
    cr_assert_not_null(f);
    cr_assert_eq(f->size, 5368709120u);
    cr_assert_eq(strlen(f->digest), 64, "a large file's own, not its pointer's");
    cr_assert_null(hubtree_find(&t, "a"));
    hubtree_clear(&t);
}

Test(hubtree, refuses_names_that_lead_elsewhere)
{
    static const char *const names[] = {"../x", "a/../../x", "/x", "a//b", "a/", ".",
        "..", "", "..\\\\x", "\\\\\\\\h\\\\x", "C:x", "a\\nb", "CON", "a/NUL.txt",
        "a\\u0000b", "x.", "\\ud800"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct hubtree t;
        struct glm_error err = {0};
        char text[256];
        snprintf(text, sizeof text, "[{\"type\":\"file\",\"size\":1,\"path\":\"%s\"}]",
            names[i]);
        cr_assert_eq(read_list(&t, text, &err), GLM_EFORMAT, "%s", names[i]);
        hubtree_clear(&t);
    }
}

Test(hubtree, refuses_the_same_name_twice)
{
    static const char *const pairs[][2] = {{"a", "a"}, {"config.json", "Config.json"}};
    for (size_t i = 0; i < 2; i++) {
        struct hubtree t;
        struct glm_error err = {0};
        char text[256];
        snprintf(text, sizeof text,
            "[{\"type\":\"file\",\"size\":1,\"path\":\"%s\"},"
            "{\"type\":\"file\",\"size\":1,\"path\":\"%s\"}]",
            pairs[i][0], pairs[i][1]);
        cr_assert_eq(read_list(&t, text, &err), GLM_EFORMAT);
        cr_assert(strstr(err.text, pairs[i][1]), "%s", err.text);
        hubtree_clear(&t);
    }
}

Test(hubtree, refuses_what_is_no_list)
{
    static const char *const texts[] = {"", "{}", "[1]", "[{}]", "[{\"path\":5}]", "[{",
        "[{\"path\":\"a\",\"size\":-1}]", "[{\"path\":\"a\",\"size\":1.5}]",
        "[{\"path\":\"a\"}]", "[{\"path\":\"a\",\"size\":18446744073709551616}]",
        "[{\"path\":\"a\",\"path\":\"b\",\"size\":1}]", "<html>", "[\"\xff\"]"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct hubtree t;
        struct glm_error err = {0};
        cr_assert_eq(read_list(&t, texts[i], &err), GLM_EFORMAT, "%s", texts[i]);
        cr_assert(strncmp(err.text, "hub: ", 5) == 0, "%s", err.text);
        hubtree_clear(&t);
    }
}

Test(hubtree, says_when_a_page_of_html_came)
{
    struct hubtree t;
    struct glm_error err = {0};
    read_list(&t, "\n <!DOCTYPE html>", &err);
    cr_assert(strstr(err.text, "HTML"), "%s", err.text);
}

Test(hubtree, takes_only_a_commit_for_a_commit)
{
    char commit[HUBTREE_COMMIT];
    struct glm_error err = {0};
    const char *good = "{\"sha\":\"0123456789abcdef0123456789abcdef01234567\"}";
    cr_assert_eq(hubtree_commit("hub", good, strlen(good), commit, &err), GLM_OK);
    cr_assert_eq(strlen(commit), 40);
    static const char *const bad[] = {"{}", "[]", "{\"sha\":\"../../etc\"}",
        "{\"sha\":5}", "{\"sha\":\"0123456789ABCDEF0123456789abcdef01234567\"}"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        glm_error_clear(&err);
        cr_assert_eq(
            hubtree_commit("hub", bad[i], strlen(bad[i]), commit, &err), GLM_EFORMAT);
    }
}

Test(hubtree, bounds_the_names_before_it_looks_at_them)
{
    struct hubtree t = {0};
    struct glm_error err = {0};
    const size_t length = HUBTREE_PAGE - 100;
    char *text = malloc(length + 100);
    int pages = 0;
    cr_assert_not_null(text);
    strcpy(text, "[{\"size\":1,\"path\":\"");
    const size_t at = strlen(text);
    memset(text + at, 'x', length - at);
    strcpy(text + length, "\"}]");
    while (pages < 10 && hubtree_page(&t, "hub", text, strlen(text), &err) == GLM_OK)
        pages++;
    cr_assert_eq(err.code, GLM_EFORMAT);
    cr_assert_eq(pages, HUBTREE_PATHS / HUBTREE_PAGE, "%d pages were kept", pages);
    hubtree_clear(&t);
    free(text);
}
