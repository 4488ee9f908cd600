/* Buffers that are used again: memory that is touched for the first time costs as much as a pass of
 * the digest. Its user locks. */
#ifndef CONVERT_HUBPOOL_H
#define CONVERT_HUBPOOL_H

#include <stdbool.h>
#include <stddef.h>

struct hubpool { /* begins as {.most = bytes} */
    size_t most; /* in use and kept together */
    size_t used, kept;
    struct hubspare {
        unsigned char *data;
        size_t size;
    } spare[32];
    int count;
};

/* Whether n bytes more may be in use; always, if none are. */
bool hubpool_has_room(const struct hubpool *p, size_t n);

/* For direct I/O, at least n bytes; *size: how many. NULL: no memory for *size bytes. */
unsigned char *hubpool_take(struct hubpool *p, size_t n, size_t *size);

/* What hubpool_take gave, with its size. */
void hubpool_give(struct hubpool *p, unsigned char *data, size_t size);

/* Frees what is kept; what is in use stays so. */
void hubpool_clear(struct hubpool *p);

#endif
