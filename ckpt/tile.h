/* Canonical tiles: the fixed grid on which fingerprints are computed. Pure.
 *
 * The grid is counted in elements and depends on shape and table alone (spec/format.md B), so it is
 * the same for BF16, F32, FP8, masters and moments, and at every topology:
 *   rank 0, 1                            the whole tensor
 *   rank 2, column-cut in the table      1024 rows x 256 columns
 *   every other rank 2                   128 rows x min(C, 16384) columns
 *   expert stack                         1 x the rank-2 tile
 *   other rank >= 3                      as [d0, d1*d2*...]
 * Last tiles are smaller. Tiles are numbered row-major over [E, grid rows, grid columns]. */
#ifndef CKPT_TILE_H
#define CKPT_TILE_H

#include "ckpt/rect.h"

struct tile_grid {
    int64_t dims[RECT_AXES];  /* the tensor in matrix form */
    int64_t tile[RECT_AXES];  /* tile[0] is 1 */
    int64_t count[RECT_AXES]; /* tiles along each axis; a zero-sized tensor has none */
};

void tile_grid_init(
    struct tile_grid *g, const int64_t *shape, int rank, bool stack, bool column_cut);
int64_t tile_count(const struct tile_grid *g);
int64_t tile_index(const struct tile_grid *g, int64_t e, int64_t gr, int64_t gc);
struct rect tile_rect(
    const struct tile_grid *g, int64_t index); /* elements of one tile */
/* The tiles (in tile coordinates) that an element rectangle touches. */
struct rect tile_cover(const struct tile_grid *g, const struct rect *elements);
/* Elements covered by a rectangle in tile coordinates. */
struct rect tile_span(const struct tile_grid *g, const struct rect *tiles);
/* Whether a rectangle's edges all lie on the grid (or at the tensor's end). */
bool tile_aligned(const struct tile_grid *g, const struct rect *elements);

#endif
