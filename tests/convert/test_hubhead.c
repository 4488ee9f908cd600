/* Response headers: what each means, and that a liar gets nothing out of it. */
#include <stdio.h>
#include <string.h>

#include <criterion/criterion.h>

#include "convert/hubhead.h"

static struct hubhead h;

static bool feed(const char *text)
{
    bool good = true;
    hubhead_begin(&h);
    while (*text != '\0' && good) {
        const size_t n = strcspn(text, "\n") + 1;
        good = hubhead_line(&h, text, n);
        text += n;
    }
    return good;
}

Test(hubhead, reads_the_answer_that_sends_to_a_cdn)
{
    cr_assert(
        feed("HTTP/1.1 302 Found\r\n"
             "X-Repo-Commit: 0123456789abcdef0123456789abcdef01234567\r\n"
             "X-Linked-Size: 5368709120\r\n"
             "X-Linked-ETag: \"0123456789abcdef0123456789abcdef0123456789abcdef01234567"
             "89abcdef\"\r\n"
             "Location: https://cdn.example.org/x?Signature=y\r\n\r\n"));
    cr_assert_eq(h.status, 302);
    cr_assert(h.has_linked_size && h.linked_size == 5368709120u);
    cr_assert_eq(strlen(h.linked_etag), 64);
    cr_assert_str_eq(h.location, "https://cdn.example.org/x?Signature=y");
    cr_assert_str_eq(h.commit, "0123456789abcdef0123456789abcdef01234567");
    cr_assert_null(h.trouble);
}

Test(hubhead, reads_a_range)
{
    cr_assert(feed("HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 10-19/100\r\n"
                   "Content-Length: 10\r\n\r\n"));
    cr_assert(h.has_range && h.first == 10 && h.last == 19 && h.total == 100);
    cr_assert(h.has_length && h.length == 10);
    feed("HTTP/1.1 206 x\r\ncontent-range: BYTES 0-0/*\r\n\r\n");
    cr_assert(h.has_range && h.total == UINT64_MAX);
}

Test(hubhead, calls_contradictions_and_nonsense_trouble)
{
    static const char *const bad[] = {"Content-Length: 1\r\nContent-Length: 2\r\n",
        "Content-Length: -1\r\n", "Content-Length: 18446744073709551616\r\n",
        "Content-Length: 1 2\r\n", "Content-Range: bytes 5-4/9\r\n",
        "Content-Range: bytes 5-9/9\r\n", "Content-Range: bytes 0-1/2x\r\n",
        "Content-Range: bytes 0-1/2\r\nContent-Range: bytes 0-0/2\r\n"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char text[256];
        snprintf(text, sizeof text, "HTTP/1.1 206 x\r\n%s\r\n", bad[i]);
        feed(text);
        cr_assert_not_null(h.trouble, "%s", bad[i]);
    }
    feed("HTTP/1.1 206 x\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n");
    cr_assert_null(h.trouble);
}

Test(hubhead, takes_a_tag_only_if_it_is_a_digest)
{
    static const struct {
        const char *line;
        size_t length;
    } tags[] = {{"ETag: \"0123456789abcdef0123456789abcdef01234567\"", 40},
        {"ETag: W/\"0123456789abcdef0123456789abcdef01234567\"", 40},
        {"ETag: 0123456789abcdef0123456789abcdef01234567", 40},
        {"ETag: \"0123456789ABCDEF0123456789abcdef01234567\"", 0},
        {"ETag: \"d41d8cd98f00b204e9800998ecf8427e-12\"", 0}, {"ETag: \"\"", 0},
        {"ETag: \"", 0}, {"ETag:", 0}};
    for (size_t i = 0; i < sizeof tags / sizeof tags[0]; i++) {
        char text[256];
        snprintf(text, sizeof text, "HTTP/1.1 200 OK\r\n%s\r\n\r\n", tags[i].line);
        feed(text);
        cr_assert_eq(strlen(h.etag), tags[i].length, "%s", tags[i].line);
    }
}

Test(hubhead, knows_how_long_to_wait)
{
    feed("HTTP/1.1 429 x\r\nRateLimit: \"api\";r=0;t=55\r\n\r\n");
    cr_assert_eq(h.wait_s, 56);
    feed("HTTP/1.1 429 x\r\nRateLimit: \"api\";r=3;t=55\r\n\r\n");
    cr_assert_eq(h.wait_s, -1, "something is left");
    feed("HTTP/1.1 503 x\r\nRetry-After: 7\r\n\r\n");
    cr_assert_eq(h.wait_s, 7);
    feed("HTTP/1.1 503 x\r\nRetry-After: Sun, 06 Nov 1994 08:49:37 GMT\r\n\r\n");
    cr_assert_eq(h.wait_date, 784111777);
    cr_assert_eq(h.wait_s, -1);
    feed("HTTP/1.1 503 x\r\nRetry-After: 99999999999\r\n\r\n");
    cr_assert_eq(h.wait_s, -1, "three thousand years are nothing said");
    feed("HTTP/1.1 503 x\r\nDate: Sun, 06 Nov 1994 08:49:30 GMT\r\n"
         "Retry-After: Sun, 06 Nov 1994 08:49:37 GMT\r\n\r\n");
    cr_assert_eq(h.wait_date - h.date, 7, "by the server's own clock");
}

Test(hubhead, finds_the_next_page)
{
    feed("HTTP/1.1 200 OK\r\nLink: </a>; rel=\"xet-auth\", <https://x/b>; "
         "rel=\"next\"\r\n\r\n");
    cr_assert_str_eq(h.next, "https://x/b");
    feed("HTTP/1.1 200 OK\r\nLink: </b>; rel=next\r\n\r\n");
    cr_assert_str_eq(h.next, "/b", "quotes may be left out");
    feed("HTTP/1.1 200 OK\r\nLink: </b>; rel=nextish\r\n\r\n");
    cr_assert_str_eq(h.next, "");
    feed("HTTP/1.1 200 OK\r\nLink: </a>; rel=\"prev\"\r\n\r\n");
    cr_assert_str_eq(h.next, "");
}

Test(hubhead, takes_no_address_that_does_not_fit_for_none)
{
    static char line[HUBHEAD_URL + 64];
    static const char *const forms[] = {"Location: %s", "Link: <%s>; rel=\"next\""};
    char *address = calloc(1, HUBHEAD_URL + 1);
    cr_assert_not_null(address);
    memset(address, 'a', HUBHEAD_URL);
    for (int i = 0; i < 2; i++) {
        feed("HTTP/1.1 302 x\r\n");
        snprintf(line, sizeof line, forms[i], address);
        cr_assert(hubhead_line(&h, line, strlen(line)));
        cr_assert_not_null(h.trouble, "%s", forms[i]);
    }
    free(address);
}

Test(hubhead, begins_anew_with_each_status_line)
{
    feed("HTTP/1.1 103 Early Hints\r\nContent-Length: 5\r\n\r\n"
         "HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n");
    cr_assert(h.status == 200 && h.length == 7 && h.trouble == NULL);
}

Test(hubhead, ends_at_what_is_no_http)
{
    cr_assert_not(feed("220 mail.example.org ESMTP\r\n"));
    cr_assert_not_null(h.trouble);
    cr_assert_not(feed("HTTP/1.1 abc\r\n"));
    cr_assert_not(feed("HTTP/1.1\r\n"));
}

Test(hubhead, ends_at_a_quarter_of_a_megabyte)
{
    static char line[8002];
    bool good;
    int lines = 0;
    memset(line, 'x', 8000);
    memcpy(line, "X-F: ", 5);
    feed("HTTP/1.1 200 OK\r\n");
    do
        good = hubhead_line(&h, line, 8000);
    while (good && ++lines < 1000);
    cr_assert_not(good);
    cr_assert_eq(lines, HUBHEAD_TOTAL / 8000);
    cr_assert_not_null(h.trouble);
}

Test(hubhead, shows_no_control_characters)
{
    feed("HTTP/1.1 403 x\r\nX-Error-Message: a\x1b[31mb\x80\r\n\r\n");
    cr_assert_str_eq(h.error_message, "a?[31mb?");
}
