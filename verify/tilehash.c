#include "verify/tilehash.h"

#include <assert.h>
#include <stdlib.h>

void tilehash_init(struct tilehash *h)
{
    *h = (struct tilehash){0};
}

void tilehash_clear(struct tilehash *h)
{
    for (int64_t i = 0; i < h->capacity; i++)
        digest_free(h->running[i]);
    free(h->running);
    tilehash_init(h);
}

static int tilehash_reserve(struct tilehash *h, int64_t columns, struct glm_error *err)
{
    if (columns <= h->capacity)
        return GLM_OK;
    struct digest **running = realloc(h->running, (size_t)columns * sizeof *running);
    if (running == NULL)
        return glm_fail(
            err, GLM_ENOMEM, "out of memory for %lld digests", (long long)columns);
    h->running = running;
    for (; h->capacity < columns; h->capacity++)
        if ((running[h->capacity] = digest_new()) == NULL)
            return glm_fail(
                err, GLM_ENOMEM, "out of memory for %lld digests", (long long)columns);
    return GLM_OK;
}

int tilehash_begin(struct tilehash *h, const struct tile_grid *grid,
    const struct rect *at, size_t element, struct glm_error *err)
{
    assert(tile_aligned(grid, at));
    h->grid = grid;
    h->at = *at;
    h->element = element;
    h->row_bytes = (uint64_t)rect_len(at, 2) * element;
    h->pos = 0;
    h->size = (uint64_t)rect_count(at) * element;
    const int64_t width = grid->tile[2];
    h->columns = width > 0 ? (rect_len(at, 2) + width - 1) / width : 0;
    return tilehash_reserve(h, h->columns, err);
}

/* Where the fed position lies: row of the rectangle's expert, byte in the row, and how many bytes
 * from there belong to the same tile without a break. */
struct tilehash_spot {
    /* absolute expert and row; tile column from the rectangle's left */
    int64_t e, row, column;
    uint64_t run;
    bool begins, ends; /* this run is the tile's first, its last */
};

static struct tilehash_spot tilehash_locate(const struct tilehash *h)
{
    const uint64_t line = h->pos / h->row_bytes, in_row = h->pos % h->row_bytes;
    const int64_t rows = rect_len(&h->at, 1);
    struct tilehash_spot s = {
        .e = h->at.lo[0] + (int64_t)line / rows,
        .row = h->at.lo[1] + (int64_t)line % rows,
    };
    const int64_t height = h->grid->tile[1];
    const int64_t top = s.row - s.row % height;
    const int64_t bottom = top + height < h->at.hi[1] ? top + height : h->at.hi[1];
    if (h->columns == 1) { /* the tile is one run of bytes */
        const uint64_t past = (uint64_t)(s.row - top) * h->row_bytes + in_row;
        s.run = (uint64_t)(bottom - top) * h->row_bytes - past;
        s.begins = past == 0;
        s.ends = true;
        return s;
    }
    const uint64_t width = (uint64_t)h->grid->tile[2] * h->element;
    s.column = (int64_t)(in_row / width);
    const uint64_t left = (uint64_t)s.column * width;
    const uint64_t right = left + width < h->row_bytes ? left + width : h->row_bytes;
    s.run = right - in_row;
    s.begins = s.row == top && in_row == left;
    s.ends = s.row + 1 == bottom;
    return s;
}

int tilehash_feed(struct tilehash *h, const void *data, size_t size, tilehash_done *done,
    void *ctx, struct glm_error *err)
{
    const unsigned char *p = data;
    assert(size <= h->size - h->pos);
    while (size > 0) {
        const struct tilehash_spot s = tilehash_locate(h);
        const size_t take = s.run < size ? (size_t)s.run : size;
        struct digest *const d = h->running[s.column];
        if (s.begins)
            digest_begin(d);
        digest_update(d, p, take);
        p += take;
        size -= take;
        h->pos += take;
        if (!s.ends || take < s.run)
            continue;
        unsigned char sha256[DIGEST_SIZE];
        digest_end(d, sha256);
        const int64_t gc = h->at.lo[2] / h->grid->tile[2] + s.column;
        const int64_t tile = tile_index(h->grid, s.e, s.row / h->grid->tile[1], gc);
        if (done(ctx, tile, sha256, err) != GLM_OK)
            return err->code;
    }
    return GLM_OK;
}
