/* Which keys a row sees: all of its sequence up to itself, or a set of them. */
#ifndef KERNELS_CPU_KEYS_H
#define KERNELS_CPU_KEYS_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/base/error.h"

/* The T rows of a pack, as the operations get them. */
struct pack {
    const int32_t *cu_seqlens; /* [S+1] */
    const int32_t *index; /* [T,K], rows of the pack, or NULL: all that can be seen */
    int64_t T, S, K;
};

/* Key j of a row, 0 <= j < count, is row index[j] of the pack, or first + j. */
struct keys {
    const int32_t *index;
    int64_t first, count;
};

/* Checks the boundaries, and that every set is ascending, within its row's sequence and not empty.
 * *most: the largest count. op names the operation in the error. */
int keys_check(
    const struct pack *p, const char *op, int64_t *most, struct glm_error *err);

/* Of a pack that keys_check passed. */
struct keys keys_of(const struct pack *p, int64_t t);
/* The end of row t's sequence. */
int64_t keys_end(const struct pack *p, int64_t t);

static inline int64_t keys_at(const struct keys *k, int64_t j)
{
    return k->index != NULL ? k->index[j] : k->first + j;
}

/* The j with keys_at(k, j) == s, or -1. */
int64_t keys_find(const struct keys *k, int64_t s);

#endif
