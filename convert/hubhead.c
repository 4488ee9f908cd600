/* Header lines of HTTP as far as a download needs them.
 *
 * Nothing here trusts the sender: values are bounded, numbers are digits that fit 64 bits, a length
 * or range that is given twice with two meanings is trouble and not a choice. What is not
 * understood counts as not said. */
#include "convert/hubhead.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>

void hubhead_begin(struct hubhead *h)
{
    memset(h, 0, sizeof *h);
    h->total = UINT64_MAX;
    h->wait_s = h->wait_date = h->date = -1;
}

/* Digits only, and what they say fits; *p moves behind them. */
static bool take_number(const char **p, const char *end, uint64_t *out)
{
    uint64_t n = 0;
    const char *q = *p;
    for (; q < end && *q >= '0' && *q <= '9'; q++) {
        if (n > (UINT64_MAX - 9) / 10)
            return false;
        n = n * 10 + (uint64_t)(*q - '0');
    }
    if (q == *p)
        return false;
    *p = q;
    *out = n;
    return true;
}

static bool whole_number(const char *v, const char *end, uint64_t *out)
{
    return take_number(&v, end, out) && v == end;
}

static void copy(char *out, size_t room, const char *v, const char *end)
{
    const size_t n =
        (size_t)(end - v) < room ? (size_t)(end - v) : 0; /* too long: not said */
    memcpy(out, v, n);
    out[n] = '\0';
}

/* Text for a sentence: printable ASCII, cut. */
static void copy_shown(char *out, size_t room, const char *v, const char *end)
{
    size_t n = 0;
    for (; v < end && n + 1 < room; v++)
        out[n++] = *v >= 0x20 && *v < 0x7f ? *v : '?';
    out[n] = '\0';
}

static bool is_hex(const char *v, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!((v[i] >= '0' && v[i] <= '9') || (v[i] >= 'a' && v[i] <= 'f')))
            return false;
    return true;
}

static void take_etag(char out[65], const char *v, const char *end)
{
    if (end - v > 2 && (v[0] == 'W' || v[0] == 'w') && v[1] == '/')
        v += 2;
    if (end - v >= 2 && v[0] == '"' && end[-1] == '"') {
        v++;
        end--;
    }
    const size_t n = (size_t)(end - v);
    if ((n == 64 || n == 40) && is_hex(v, n))
        copy(out, 65, v, end);
}

/* bytes FIRST-LAST/TOTAL, TOTAL may be a star; bytes * / TOTAL comes with 416. */
static void take_range(struct hubhead *h, const char *v, const char *end)
{
    uint64_t first, last, total = UINT64_MAX;
    if (end - v < 6 || strncasecmp(v, "bytes ", 6) != 0)
        return;
    v += 6;
    if (!take_number(&v, end, &first) || v == end || *v++ != '-'
        || !take_number(&v, end, &last) || v == end || *v++ != '/')
        return;
    if (!(end - v == 1 && *v == '*') && !whole_number(v, end, &total)) {
        h->trouble = "a Content-Range that makes no sense";
        return;
    }
    if (last < first || last >= total) {
        h->trouble = "a Content-Range that makes no sense";
        return;
    }
    if (h->has_range && (h->first != first || h->last != last || h->total != total)) {
        h->trouble = "two Content-Range headers that differ";
        return;
    }
    h->has_range = true;
    h->first = first;
    h->last = last;
    h->total = total;
}

static void take_length(struct hubhead *h, const char *v, const char *end)
{
    uint64_t n;
    if (!whole_number(v, end, &n))
        h->trouble = "a Content-Length that is no number";
    else if (h->has_length && h->length != n)
        h->trouble = "two Content-Length headers that differ";
    else {
        h->has_length = true;
        h->length = n;
    }
}

/* "api";r=0;t=55: seconds only if nothing is left. */
static void take_ratelimit(struct hubhead *h, const char *v, const char *end)
{
    uint64_t left = UINT64_MAX, wait = UINT64_MAX;
    for (const char *p = v; p < end; p++) {
        if (*p != ';')
            continue;
        const char *q = p + 1;
        while (q < end && *q == ' ')
            q++;
        if (end - q < 3 || q[1] != '=')
            continue;
        const char key = *q;
        q += 2;
        if (key == 'r')
            take_number(&q, end, &left);
        else if (key == 't')
            take_number(&q, end, &wait);
    }
    if (left == 0 && wait < 86400 * 365)
        h->wait_s = (int64_t)wait + 1;
}

static int64_t http_date(const char *v, const char *end)
{
    char text[64];
    struct tm when = {0};
    copy(text, sizeof text, v, end);
    const char *stop = strptime(text, "%a, %d %b %Y %H:%M:%S GMT", &when);
    return stop != NULL && *stop == '\0' ? (int64_t)timegm(&when) : -1;
}

static void take_retry(struct hubhead *h, const char *v, const char *end)
{
    uint64_t n;
    if (whole_number(v, end, &n)) {
        if (n < 86400 * 365 && h->wait_s < 0)
            h->wait_s = (int64_t)n;
        return;
    }
    h->wait_date = http_date(v, end);
}

/* An address that does not fit is none that could be left out: a list would seem to end. */
static void take_address(
    struct hubhead *h, char out[HUBHEAD_URL], const char *v, const char *end)
{
    if (end - v >= HUBHEAD_URL)
        h->trouble = "an address of more than 8 KiB";
    else
        copy(out, HUBHEAD_URL, v, end);
}

static bool is_next(const char *p, const char *end)
{
    return (end - p >= 10 && strncasecmp(p, "rel=\"next\"", 10) == 0)
        || (end - p >= 8 && strncasecmp(p, "rel=next", 8) == 0
            && (end - p == 8 || strchr(" \t;,", p[8]) != NULL));
}

/* Link: <url>; rel="next", <url>; rel="other" */
static void take_link(struct hubhead *h, const char *v, const char *end)
{
    while (v < end) {
        const char *open = memchr(v, '<', (size_t)(end - v));
        const char *close = open ? memchr(open, '>', (size_t)(end - open)) : NULL;
        if (!close)
            return;
        const char *stop = memchr(close, '<', (size_t)(end - close));
        stop = stop ? stop : end;
        for (const char *p = close + 1; p < stop; p++)
            if (is_next(p, stop))
                take_address(h, h->next, open + 1, close);
        v = stop;
    }
}

static void take_commit(struct hubhead *h, const char *v, const char *end)
{
    const size_t n = (size_t)(end - v);
    if ((n == 40 || n == 64) && is_hex(v, n))
        copy(h->commit, sizeof h->commit, v, end);
}

static void take_field(
    struct hubhead *h, const char *name, size_t n, const char *v, const char *end)
{
#define IS(text) (n == sizeof(text) - 1 && strncasecmp(name, text, n) == 0)
    uint64_t size;
    if (IS("location")) {
        take_address(h, h->location, v, end);
    } else if (IS("etag")) {
        take_etag(h->etag, v, end);
    } else if (IS("x-linked-etag")) {
        take_etag(h->linked_etag, v, end);
    } else if (IS("x-linked-size")) {
        if (whole_number(v, end, &size)) {
            h->has_linked_size = true;
            h->linked_size = size;
        }
    } else if (IS("content-length")) {
        take_length(h, v, end);
    } else if (IS("content-range")) {
        take_range(h, v, end);
    } else if (IS("content-encoding")) {
        h->encoded = !(end - v == 8 && strncasecmp(v, "identity", 8) == 0) && end > v;
    } else if (IS("content-type")) {
        h->html = end - v >= 9 && strncasecmp(v, "text/html", 9) == 0;
    } else if (IS("x-repo-commit")) {
        take_commit(h, v, end);
    } else if (IS("date")) {
        h->date = http_date(v, end);
    } else if (IS("retry-after")) {
        take_retry(h, v, end);
    } else if (IS("ratelimit")) {
        take_ratelimit(h, v, end);
    } else if (IS("link")) {
        take_link(h, v, end);
    } else if (IS("x-error-code")) {
        copy_shown(h->error_code, sizeof h->error_code, v, end);
    } else if (IS("x-error-message")) {
        copy_shown(h->error_message, sizeof h->error_message, v, end);
    }
#undef IS
}

/* HTTP/1.1 200 OK, HTTP/2 200 */
static bool take_status(struct hubhead *h, const char *line, const char *end)
{
    const size_t bytes = h->bytes;
    const char *p = memchr(line, ' ', (size_t)(end - line));
    uint64_t status;
    hubhead_begin(h);
    h->bytes = bytes; /* interim answers count too */
    if (p == NULL) {
        h->trouble = "no HTTP answer";
        return false;
    }
    p++;
    if (!take_number(&p, end, &status) || status < 100 || status > 999) {
        h->trouble = "no HTTP answer";
        return false;
    }
    h->status = (int)status;
    return true;
}

bool hubhead_line(struct hubhead *h, const char *line, size_t size)
{
    const char *end = line + size;
    h->bytes += size;
    if (h->bytes > HUBHEAD_TOTAL) {
        h->trouble = "more than 256 KiB of headers";
        return false;
    }
    while (end > line && (end[-1] == '\r' || end[-1] == '\n'))
        end--;
    if (end - line >= 5 && strncasecmp(line, "HTTP/", 5) == 0)
        return take_status(h, line, end);
    if (h->status == 0) {
        h->trouble = "no HTTP answer";
        return false;
    }
    const char *colon = memchr(line, ':', (size_t)(end - line));
    if (colon == NULL)
        return true;
    const char *v = colon + 1;
    while (v < end && (*v == ' ' || *v == '\t'))
        v++;
    while (end > v && (end[-1] == ' ' || end[-1] == '\t'))
        end--;
    take_field(h, line, (size_t)(colon - line), v, end);
    return true;
}
