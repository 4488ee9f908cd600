/* The canonical grid. Its constants are part of the format: 128 rows are one FP8 block row, a
 * 128 x 16384 BF16 tile is 4 MiB, and a column-cut matrix gets narrow tiles so that a cut between
 * ranks falls on few of them (spec/format.md B). */
#include "ckpt/tile.h"

enum {
    TILE_ROWS = 128,
    TILE_COLUMNS = 16384,
    TILE_CUT_ROWS = 1024,
    TILE_CUT_COLUMNS = 256
};

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t ceil_div(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

void tile_grid_init(
    struct tile_grid *g, const int64_t *shape, int rank, bool stack, bool column_cut)
{
    rect_dims(g->dims, shape, rank, stack);
    g->tile[0] = 1;
    if (rank <= 1) {
        g->tile[1] = 1;
        g->tile[2] = g->dims[2];
    } else if (column_cut) {
        g->tile[1] = TILE_CUT_ROWS;
        g->tile[2] = TILE_CUT_COLUMNS;
    } else {
        g->tile[1] = TILE_ROWS;
        g->tile[2] = smaller(g->dims[2], TILE_COLUMNS);
    }
    const bool none = g->dims[0] == 0 || g->dims[1] == 0 || g->dims[2] == 0;
    for (int i = 0; i < RECT_AXES; i++) {
        if (g->tile[i] < 1)
            g->tile[i] = 1;
        g->count[i] = none ? 0 : ceil_div(g->dims[i], g->tile[i]);
    }
}

int64_t tile_count(const struct tile_grid *g)
{
    return g->count[0] * g->count[1] * g->count[2];
}

int64_t tile_index(const struct tile_grid *g, int64_t e, int64_t gr, int64_t gc)
{
    return (e * g->count[1] + gr) * g->count[2] + gc;
}

struct rect tile_rect(const struct tile_grid *g, int64_t index)
{
    const int64_t gc = index % g->count[2], rows = index / g->count[2];
    const int64_t gr = rows % g->count[1], e = rows / g->count[1];
    const struct rect one = {.lo = {e, gr, gc}, .hi = {e + 1, gr + 1, gc + 1}};
    return tile_span(g, &one);
}

struct rect tile_cover(const struct tile_grid *g, const struct rect *elements)
{
    struct rect tiles = {.lo = {0}};
    if (!rect_empty(elements))
        for (int i = 0; i < RECT_AXES; i++) {
            tiles.lo[i] = elements->lo[i] / g->tile[i];
            tiles.hi[i] = ceil_div(elements->hi[i], g->tile[i]);
        }
    return tiles;
}

struct rect tile_span(const struct tile_grid *g, const struct rect *tiles)
{
    struct rect elements = {.lo = {0}};
    if (!rect_empty(tiles))
        for (int i = 0; i < RECT_AXES; i++) {
            elements.lo[i] = tiles->lo[i] * g->tile[i];
            elements.hi[i] = smaller(tiles->hi[i] * g->tile[i], g->dims[i]);
        }
    return elements;
}

bool tile_aligned(const struct tile_grid *g, const struct rect *elements)
{
    for (int i = 0; i < RECT_AXES; i++)
        if (elements->lo[i] % g->tile[i] != 0
            || (elements->hi[i] % g->tile[i] != 0 && elements->hi[i] != g->dims[i]))
            return false;
    return true;
}
