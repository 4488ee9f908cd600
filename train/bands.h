/* All of a list of tensors looked at by several threads, band by band.
 *
 * A band is a row of tiles as wide as its tensor (state.h): in memory one piece. From a device it is
 * copied to page-locked memory of the thread's first; one thread at a time copies, for a stream serves
 * one caller. What comes out does not depend on the number of threads: of several failures the first
 * in the order of list and bands is kept. */
#ifndef TRAIN_BANDS_H
#define TRAIN_BANDS_H

#include "train/tensors.h"

struct band {
    int64_t tensor, band; /* numbers of them */
    const struct train_tensor *t;
    struct tile_grid grid;
    struct rect at;
    const unsigned char *data; /* where the host sees it */
};

struct bands {
    const struct train_tensors *all;
    int threads; /* below 1: 1 */
    void *ctx;
    bool (*wanted)(const struct train_tensor *t); /* NULL: all */
    /* A thread's own; NULL: none. */
    void *(*start)(void *ctx);
    void (*stop)(void *own);
    int (*work)(void *ctx, void *own, const struct band *b, struct glm_error *err);
};

int bands_run(const struct bands *b, struct glm_error *err);

#endif
