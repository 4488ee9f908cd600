/* The header lines of a hub's answer, read as hostile input. Pure: no network, no clock. */
#ifndef CONVERT_HUBHEAD_H
#define CONVERT_HUBHEAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { HUBHEAD_URL = 8192, HUBHEAD_TOTAL = 256 << 10 };

struct hubhead {
    int status; /* 0: no status line yet */
    size_t bytes;
    const char *trouble; /* what is wrong with these lines as a whole; NULL: nothing */
    char location[HUBHEAD_URL], next[HUBHEAD_URL]; /* next: Link: <...>; rel="next" */
    /* Digests without quotes and W/, "" unless 64 or 40 hex digits */
    char etag[65], linked_etag[65];
    bool has_length, has_linked_size, has_range, encoded, html;
    uint64_t length, linked_size;
    uint64_t first, last, total; /* Content-Range; total UINT64_MAX: not said */
    char commit[65];             /* X-Repo-Commit; "" unless hex digits */
    char error_code[64], error_message[256];
    int64_t wait_s;    /* Retry-After or RateLimit: seconds to wait; -1: not said */
    int64_t wait_date; /* Retry-After as a date: seconds since 1970; -1: not said */
    int64_t date;      /* the server's clock, the same way */
};

void hubhead_begin(struct hubhead *h);
/* One line as it came, line end included or not. A status line begins anew (interim answers,
 * proxies). False: this is no HTTP, or more than HUBHEAD_TOTAL bytes; h->trouble says so. */
bool hubhead_line(struct hubhead *h, const char *line, size_t size);

#endif
