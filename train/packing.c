#include "train/packing.h"

#include <stdbool.h>
#include <stdlib.h>

static int64_t packing_rows(packing_tokens_fn *tokens, const void *ctx, int64_t rank)
{
    const int64_t n = tokens(ctx, rank);
    return n < 2 ? 0 : n - 1;
}

/* Goes through the order; with `start` NULL it only counts. */
static void packing_walk(struct packs *p, int64_t documents, packing_tokens_fn *tokens,
    const void *ctx, struct pack_start *start)
{
    int64_t room = 0;
    p->count = p->rows = p->pieces = p->skipped = 0;
    for (int64_t rank = 0; rank < documents; rank++) {
        const int64_t rows = packing_rows(tokens, ctx, rank);
        p->skipped += rows == 0;
        for (int64_t at = 0; at < rows;) {
            const int64_t piece = rows - at < p->length ? rows - at : p->length;
            if (piece > room) {
                if (start != NULL)
                    start[p->count] = (struct pack_start){rank, at};
                p->count++;
                room = p->length;
            }
            room -= piece;
            at += piece;
            p->rows += piece;
            p->pieces++;
        }
    }
    if (start != NULL)
        start[p->count] = (struct pack_start){documents, 0};
}

int packing_plan(struct packs *p, int64_t documents, packing_tokens_fn *tokens,
    const void *ctx, int64_t length, struct glm_error *err)
{
    *p = (struct packs){.length = length};
    packing_walk(p, documents, tokens, ctx, NULL);
    p->start = calloc((size_t)p->count + 1, sizeof *p->start);
    if (p->start == NULL)
        return glm_fail(err, GLM_ENOMEM, "no memory for the beginnings of %lld packs",
            (long long)p->count);
    packing_walk(p, documents, tokens, ctx, p->start);
    return GLM_OK;
}

void packing_clear(struct packs *p)
{
    free(p->start);
    *p = (struct packs){0};
}

bool packing_next(const struct packs *p, int64_t no, packing_tokens_fn *tokens,
    const void *ctx, struct pack_start *at, struct pack_piece *piece)
{
    const struct pack_start end = p->start[no + 1];
    while (at->rank < end.rank || (at->rank == end.rank && at->row < end.row)) {
        const int64_t rows = packing_rows(tokens, ctx, at->rank), left = rows - at->row;
        if (left <= 0) {
            *at = (struct pack_start){at->rank + 1, 0};
            continue;
        }
        *piece =
            (struct pack_piece){at->rank, at->row, left < p->length ? left : p->length};
        at->row += piece->rows;
        return true;
    }
    return false;
}
