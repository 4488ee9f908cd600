/* One block of memory for a whole step: taken from the bottom, given back in one cut.
 *
 * A dry arena has no memory: it hands out addresses that must not be followed and counts. The model
 * runs its step once on dry arenas and operations that do nothing; the peak is the size to get. */
#ifndef TRAIN_ARENA_H
#define TRAIN_ARENA_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct arena {
    char *base; /* NULL: dry */
    size_t at, peak, size;
};

enum { ARENA_ALIGN = 256 };

static inline void *arena_take(struct arena *a, size_t bytes)
{
    const size_t begin = a->at;
    a->at += (bytes + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
    if (a->at > a->peak)
        a->peak = a->at;
    if (!a->base)
        return (void *)(uintptr_t)(ARENA_ALIGN
            + begin); /* NOLINT: an address, never followed */
    assert(a->at <= a->size);
    return a->base + begin;
}

#endif
