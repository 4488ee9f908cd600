/* Whole documents packed into packs of a fixed number of rows.
 *
 * A document of n tokens has n - 1 rows (a token and the one that follows it as its label); one of
 * fewer than two tokens has none and is passed over. A document of more than `length` rows is cut
 * after every `length` rows; a piece that is cut off ends with the label that the next one begins
 * with, so no row is lost. Pieces are taken in order; one that does not fit what is left of a pack
 * begins the next. Each piece is a sequence of its own in its pack.
 *
 * A pack is therefore a run of pieces, and its beginning says everything about it. */
#ifndef TRAIN_PACKING_H
#define TRAIN_PACKING_H

#include <stdint.h>

#include "kernels/base/error.h"

struct pack_start {
    int64_t rank; /* of the document in the order */
    int64_t row;  /* first row of the document in this pack */
};

struct packs {
    int64_t length, count;
    struct pack_start *start; /* [count + 1]; the last is the end */
    int64_t rows;             /* filled, of count * length */
    int64_t pieces;
    int64_t skipped; /* documents without a row */
};

/* Tokens of the document at a rank of the order. */
typedef int64_t packing_tokens_fn(const void *ctx, int64_t rank);

int packing_plan(struct packs *p, int64_t documents, packing_tokens_fn *tokens,
    const void *ctx, int64_t length, struct glm_error *err);
void packing_clear(struct packs *p); /* harmless on a zeroed one */

/* The piece at *at (its first row), and *at moved to the next one. False at the end of pack `no`. */
struct pack_piece {
    int64_t rank, row, rows;
};
_Bool packing_next(const struct packs *p, int64_t no, packing_tokens_fn *tokens,
    const void *ctx, struct pack_start *at, struct pack_piece *piece);

#endif
