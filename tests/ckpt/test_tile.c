/* Rectangles and the canonical grid, held against element-by-element loops. */
#include "ckpt/tile.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/rng.h"

static struct rect make(
    int64_t e0, int64_t e1, int64_t r0, int64_t r1, int64_t c0, int64_t c1)
{
    return (struct rect){.lo = {e0, r0, c0}, .hi = {e1, r1, c1}};
}

Test(rect, sees_every_rank_as_a_matrix)
{
    const int64_t shape[4] = {3, 5, 7, 2};
    const int64_t want[5][3] = {{1, 1, 1}, {1, 1, 3}, {1, 3, 5}, {1, 3, 35}, {1, 3, 70}};
    int64_t d[3];
    for (int rank = 0; rank <= 4; rank++) {
        rect_dims(d, shape, rank, false);
        cr_assert_arr_eq(d, want[rank], sizeof d, "rank %d", rank);
    }
    rect_dims(d, shape, 3, true);
    cr_assert_arr_eq(d, shape, sizeof d);
}

Test(rect, intersects_as_sets_of_elements_do)
{
    uint64_t s = 1;
    for (int round = 0; round < 2000; round++) {
        struct rect r[2], both;
        for (int k = 0; k < 2; k++)
            for (int i = 0; i < 3; i++) {
                r[k].lo[i] = (int64_t)rng_below(&s, 5);
                r[k].hi[i] = r[k].lo[i] + (int64_t)rng_below(&s, 4);
            }
        int64_t common = 0, first = 0;
        for (int64_t e = 0; e < 8; e++)
            for (int64_t y = 0; y < 8; y++)
                for (int64_t x = 0; x < 8; x++) {
                    const struct rect one = make(e, e + 1, y, y + 1, x, x + 1);
                    const bool in0 = rect_contains(&r[0], &one),
                               in1 = rect_contains(&r[1], &one);
                    first += in0;
                    common += in0 && in1;
                }
        cr_assert_eq(rect_count(&r[0]), first);
        cr_assert_eq(rect_intersect(&r[0], &r[1], &both), common > 0);
        cr_assert_eq(rect_count(&both), common);
        cr_assert(rect_contains(&r[0], &both) && rect_contains(&r[1], &both));
    }
}

Test(rect, equals_only_itself)
{
    const struct rect a = make(0, 1, 2, 3, 4, 9), b = make(0, 1, 2, 3, 4, 8);
    cr_assert(rect_equal(&a, &a));
    cr_assert_not(rect_equal(&a, &b));
}

Test(tile, has_the_sizes_of_the_format)
{
    const struct {
        int64_t shape[3];
        int rank;
        bool stack, cut;
        int64_t tile[3], count;
    } rows[] = {
        {{0}, 0, false, false, {1, 1, 1}, 1},
        {{6144}, 1, false, false, {1, 1, 6144}, 1},
        {{16384, 2048}, 2, false, false, {1, 128, 2048}, 128},
        {{576, 6144}, 2, false, false, {1, 128, 6144}, 5},
        {{6144, 12288}, 2, false, true, {1, 1024, 256}, 6 * 48},
        {{300, 40000}, 2, false, false, {1, 128, 16384}, 9},
        {{256, 2048, 6144}, 3, true, false, {1, 128, 6144}, 4096},
        {{256, 6144, 2048}, 3, true, true, {1, 1024, 256}, 256 * 48},
        {{300, 3, 5}, 3, false, false, {1, 128, 15}, 3},
        {{0, 5}, 2, false, false, {1, 128, 5}, 0},
        {{5, 0}, 2, false, false, {1, 128, 1}, 0},
        {{0}, 1, false, false, {1, 1, 1}, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct tile_grid g;
        tile_grid_init(&g, rows[i].shape, rows[i].rank, rows[i].stack, rows[i].cut);
        cr_assert_arr_eq(g.tile, rows[i].tile, sizeof g.tile, "row %zu", i);
        cr_assert_eq(tile_count(&g), rows[i].count, "row %zu", i);
    }
}

Test(tile, covers_every_element_once)
{
    const struct {
        int64_t shape[3];
        int rank;
        bool stack, cut;
    } rows[] = {
        {{260, 300}, 2, false, false},
        {{1100, 600}, 2, false, true},
        {{130, 16400}, 2, false, false},
        {{3, 200, 90}, 3, true, false},
        {{2, 1030, 300}, 3, true, true},
        {{77}, 1, false, false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct tile_grid g;
        tile_grid_init(&g, rows[i].shape, rows[i].rank, rows[i].stack, rows[i].cut);
        unsigned char *seen = calloc((size_t)(g.dims[0] * g.dims[1] * g.dims[2]), 1);
        for (int64_t k = 0; k < tile_count(&g); k++) {
            const struct rect t = tile_rect(&g, k);
            cr_assert_eq(
                tile_index(&g, t.lo[0], t.lo[1] / g.tile[1], t.lo[2] / g.tile[2]), k);
            cr_assert(tile_aligned(&g, &t));
            for (int64_t e = t.lo[0]; e < t.hi[0]; e++)
                for (int64_t y = t.lo[1]; y < t.hi[1]; y++)
                    for (int64_t x = t.lo[2]; x < t.hi[2]; x++)
                        seen[(e * g.dims[1] + y) * g.dims[2] + x]++;
        }
        for (int64_t k = 0; k < g.dims[0] * g.dims[1] * g.dims[2]; k++)
            cr_assert_eq(seen[k], 1, "row %zu element %lld", i, (long long)k);
        free(seen);
    }
}

Test(tile, cover_and_span_are_the_smallest_whole_tiles)
{
    const int64_t shape[3] = {4, 500, 70};
    struct tile_grid g;
    uint64_t s = 7;
    tile_grid_init(&g, shape, 3, true, false);
    for (int round = 0; round < 1000; round++) {
        struct rect r;
        for (int i = 0; i < 3; i++) {
            r.lo[i] = (int64_t)rng_below(&s, (uint64_t)shape[i]);
            r.hi[i] =
                r.lo[i] + 1 + (int64_t)rng_below(&s, (uint64_t)(shape[i] - r.lo[i]));
        }
        const struct rect tiles = tile_cover(&g, &r), span = tile_span(&g, &tiles);
        int64_t touched = 0;
        for (int64_t k = 0; k < tile_count(&g); k++) {
            const struct rect t = tile_rect(&g, k);
            struct rect both;
            touched += rect_intersect(&t, &r, &both);
        }
        cr_assert_eq(rect_count(&tiles), touched);
        cr_assert(rect_contains(&span, &r));
        cr_assert(tile_aligned(&g, &span));
        cr_assert_eq(tile_aligned(&g, &r), rect_equal(&r, &span));
    }
    const struct rect none = make(1, 1, 0, 5, 0, 5);
    const struct rect tiles = tile_cover(&g, &none);
    cr_assert(rect_empty(&tiles));
}
