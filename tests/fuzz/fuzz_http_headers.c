/* Fuzzes the reader of a hub's response headers.
 *
 * Covers: convert/hubhead.c
 *
 * Input: header lines as they come off the wire, each with its line end. */
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "convert/hubhead.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool holds)
{
    if (!holds)
        abort();
}

static bool ends(const char *text, size_t room)
{
    return memchr(text, '\0', room) != NULL;
}

/* What callers rely on, whatever came. */
static void check(const struct hubhead *h)
{
    must(ends(h->location, sizeof h->location) && ends(h->next, sizeof h->next));
    must(ends(h->error_code, sizeof h->error_code));
    must(ends(h->error_message, sizeof h->error_message));
    const size_t tag = strlen(h->etag), linked = strlen(h->linked_etag);
    must((tag == 0 || tag == 40 || tag == 64)
        && (linked == 0 || linked == 40 || linked == 64));
    must(!h->has_range || (h->first <= h->last && h->last < h->total));
    must(h->wait_s >= -1 && h->wait_s <= 86400 * 365);
    must(h->status == 0 || (h->status >= 100 && h->status <= 999));
    for (const char *p = h->error_message; *p != '\0'; p++)
        must(*p >= 0x20 && *p < 0x7f);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct hubhead h;
    hubhead_begin(&h);
    while (size > 0) {
        const uint8_t *end = memchr(data, '\n', size);
        const size_t n = end != NULL ? (size_t)(end - data) + 1 : size;
        /* Exactly as long as it is, so that ASan sees a step beyond. */
        char *line = malloc(n);
        if (line == NULL)
            abort();
        memcpy(line, data, n);
        const bool good = hubhead_line(&h, line, n);
        free(line);
        must(good || h.trouble != NULL);
        check(&h);
        if (!good)
            break;
        data += n;
        size -= n;
    }
    return 0;
}
