/* Digests of tiles while their rows pass.
 *
 * Data is fed in the order in which a piece or a Hugging Face tensor lies in its file: row-major over
 * a rectangle of whole tiles. Tiles that are narrower than the rectangle arrive interleaved, row by
 * row; each has its own running digest, so any tensor is hashed in one sequential pass and in memory
 * that does not depend on its size. */
#ifndef VERIFY_TILEHASH_H
#define VERIFY_TILEHASH_H

#include "ckpt/ckpt.h"

/* tile: canonical number in the tensor. */
typedef int tilehash_done(
    void *ctx, int64_t tile, const unsigned char sha256[32], struct glm_error *err);

struct tilehash {
    const struct tile_grid *grid;
    struct rect at; /* elements, whole tiles */
    size_t element; /* bytes */
    uint64_t row_bytes;
    uint64_t pos, size; /* bytes fed, bytes in all */
    /* one per tile column; grown as needed, kept between tensors */
    struct digest **running;
    int64_t columns, capacity;
};

void tilehash_init(struct tilehash *h);
void tilehash_clear(struct tilehash *h);
/* Starts on a tile-aligned rectangle of a grid that outlives the pass. */
int tilehash_begin(struct tilehash *h, const struct tile_grid *grid,
    const struct rect *at, size_t element, struct glm_error *err);
/* The next bytes; any cut is allowed. done is called as each tile completes. */
int tilehash_feed(struct tilehash *h, const void *data, size_t size, tilehash_done *done,
    void *ctx, struct glm_error *err);

#endif
