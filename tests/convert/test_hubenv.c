/* hf:// names, addresses and the environment. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <criterion/criterion.h>

#include "convert/hubenv.h"
#include "tests/support/tmpdir.h"

Test(hubenv, parses_repository_and_revision)
{
    struct hubspec s;
    struct glm_error err = {0};
    cr_assert_eq(hubspec_parse(&s, "hf://zai-org/GLM-5.2", &err), GLM_OK);
    cr_assert_str_eq(s.owner, "zai-org");
    cr_assert_str_eq(s.name, "GLM-5.2");
    cr_assert_str_eq(s.revision, "main");
    cr_assert_eq(hubspec_parse(&s, "hf://a/b@refs/pr/1", &err), GLM_OK);
    cr_assert_str_eq(s.revision, "refs/pr/1");
}

Test(hubenv, refuses_names_that_could_lead_elsewhere)
{
    static const char *const bad[] = {"hf://", "hf://a", "hf://a/", "hf:///b",
        "hf://a/b/c", "hf://../b", "hf://a/..", "hf://a/.b", "hf://a/b@", "hf://a/b@/x",
        "hf://a/b@../x", "hf://a/b@x y", "hf://a/b@x\n", "hf://a b/c", "hf://a/b?c",
        "hf://a/b%2f", "hf://-a/b", "hf://a--b/c", "hf://a/b@x:y"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct hubspec s;
        struct glm_error err = {0};
        cr_assert_eq(hubspec_parse(&s, bad[i], &err), GLM_EUSAGE, "%s", bad[i]);
    }
}

Test(hubenv, compares_addresses_by_scheme_host_and_port)
{
    char a[HUBENV_ORIGIN];
    cr_assert(hubenv_origin("https://HuggingFace.co/a/b?c", false, a));
    cr_assert_str_eq(a, "https://huggingface.co:443");
    cr_assert(hubenv_origin("http://127.0.0.2:81/x", true, a));
    cr_assert_str_eq(a, "http://127.0.0.2:81");
    cr_assert(hubenv_origin("http://localhost/", true, a));
    cr_assert(hubenv_origin("http://[::1]:5/", true, a));
    static const char *const bad[] = {"http://127.0.0.1/", "file:///etc/passwd",
        "ftp://x/", "gopher://x/", "x", "", "https://user:word@x/", "https://"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        cr_assert_not(hubenv_origin(bad[i], false, a), "%s", bad[i]);
    static const char *const far[] = {"http://192.0.2.1/",
        "http://127.0.0.1.example.org/", "http://example.org/", "http://127.1.1/x"};
    for (size_t i = 0; i < sizeof far / sizeof far[0]; i++)
        if (strcmp(far[i], "http://127.1.1/x")
            != 0) /* libcurl writes that as 127.1.0.1 */
            cr_assert_not(hubenv_origin(far[i], true, a), "%s", far[i]);
}

static void clear_environment(void)
{
    static const char *const names[] = {"HF_ENDPOINT", "HF_TOKEN",
        "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH", "HF_HOME", "XDG_CACHE_HOME",
        "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE",
        "HF_HUB_DISABLE_IMPLICIT_TOKEN", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE",
        "SSL_CERT_FILE", "SSL_CERT_DIR"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        unsetenv(names[i]);
    setenv("HOME", "/nonexistent", 1);
}

static struct hubenv read_good(void)
{
    struct hubenv e;
    struct glm_error err = {0};
    cr_assert_eq(hubenv_read(&e, &err), GLM_OK, "%s", err.text);
    return e;
}

Test(hubenv, has_the_defaults_of_the_hubs_client)
{
    clear_environment();
    struct hubenv e = read_good();
    cr_assert_str_eq(e.endpoint, "https://huggingface.co");
    cr_assert_null(e.token);
    cr_assert_str_eq(e.cache, "/nonexistent/.cache/huggingface/hub");
    cr_assert_not(e.offline || e.loopback);
    hubenv_clear(&e);
    setenv("XDG_CACHE_HOME", "/x", 1);
    e = read_good();
    cr_assert_str_eq(e.cache, "/x/huggingface/hub");
    hubenv_clear(&e);
    setenv("HF_HOME", "/h", 1);
    e = read_good();
    cr_assert_str_eq(e.cache, "/h/hub");
    hubenv_clear(&e);
    setenv("HF_HUB_CACHE", "/c", 1);
    setenv("HF_HUB_OFFLINE", "yes", 1);
    e = read_good();
    cr_assert_str_eq(e.cache, "/c");
    cr_assert(e.offline);
    hubenv_clear(&e);
}

Test(hubenv, takes_the_token_from_the_first_place_that_has_one)
{
    char *dir = tmpdir_new();
    clear_environment();
    setenv("HF_HOME", dir, 1);
    tmpdir_write(tmpdir_path(dir, "token"), "hf_home\n", 8);
    struct hubenv e = read_good();
    cr_assert_str_eq(e.token, "hf_home");
    hubenv_clear(&e);
    tmpdir_write(tmpdir_path(dir, "other"), "hf_path", 7);
    setenv("HF_TOKEN_PATH", tmpdir_path(dir, "other"), 1);
    e = read_good();
    cr_assert_str_eq(e.token, "hf_path");
    hubenv_clear(&e);
    setenv("HF_TOKEN", " hf_said ", 1);
    e = read_good();
    cr_assert_str_eq(e.token, "hf_said");
    hubenv_clear(&e);
    setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1", 1);
    e = read_good();
    cr_assert_null(e.token);
    hubenv_clear(&e);
    tmpdir_remove(dir);
}

Test(hubenv, refuses_a_token_that_could_become_a_header)
{
    struct hubenv e;
    struct glm_error err = {0};
    clear_environment();
    setenv("HF_TOKEN", "hf_a\r\nX-Evil: 1", 1);
    cr_assert_eq(hubenv_read(&e, &err), GLM_EUSAGE);
    cr_assert_null(
        strstr(err.text, "hf_a"), "the token is in the sentence: %s", err.text);
    hubenv_clear(&e);
}

Test(hubenv, takes_no_part_of_a_binary_file_for_a_token)
{
    char *dir = tmpdir_new();
    struct hubenv e;
    struct glm_error err = {0};
    clear_environment();
    tmpdir_write(tmpdir_path(dir, "token"), "hf_a\0bc\n", 8);
    setenv("HF_TOKEN_PATH", tmpdir_path(dir, "token"), 1);
    cr_assert_eq(hubenv_read(&e, &err), GLM_EUSAGE);
    cr_assert_null(e.token);
    cr_assert_null(strstr(err.text, "hf_a"), "%s", err.text);
    hubenv_clear(&e);
    tmpdir_remove(dir);
}

Test(hubenv, says_when_a_token_file_cannot_be_read)
{
    char *dir = tmpdir_new();
    struct hubenv e;
    struct glm_error err = {0};
    clear_environment();
    setenv("HF_TOKEN_PATH", dir, 1); /* a folder */
    cr_assert_neq(hubenv_read(&e, &err), GLM_OK);
    hubenv_clear(&e);
    tmpdir_remove(dir);
}

Test(hubenv, refuses_endpoints_in_the_clear)
{
    static const char *const bad[] = {"http://huggingface.co", "http://192.0.2.1:8080",
        "huggingface.co/x y", "file:///tmp", "https://a:b@c", "https://x/?y"};
    clear_environment();
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct hubenv e;
        struct glm_error err = {0};
        setenv("HF_ENDPOINT", bad[i], 1);
        cr_assert_eq(hubenv_read(&e, &err), GLM_EUSAGE, "%s", bad[i]);
        hubenv_clear(&e);
    }
    setenv("HF_ENDPOINT", "http://127.0.0.1:8080/", 1);
    struct hubenv e = read_good();
    cr_assert_str_eq(e.endpoint, "http://127.0.0.1:8080");
    cr_assert(e.loopback);
    hubenv_clear(&e);
}
