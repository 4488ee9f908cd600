/* Two digests in one walk against libcrypto's two walks: every shape of tile, every skew. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <criterion/criterion.h>

#include "convert/hubhash.h"

static void same(const int64_t *shape, int rank, bool stack, bool column_cut,
    size_t element, int64_t row_from, int64_t row_to, size_t skew, enum hubsum_kind kind)
{
    struct tile_grid g;
    tile_grid_init(&g, shape, rank, stack, column_cut);
    const struct rect at = {{0, row_from, 0}, {1, row_to, g.dims[2]}};
    const size_t size = (size_t)rect_count(&at) * element;
    const struct rect tiles = tile_cover(&g, &at);
    const size_t sums = (size_t)rect_count(&tiles) * DIGEST_SIZE;
    /* Exactly as long as it is, so that a sanitizer sees a step beyond. */
    unsigned char *data = malloc(size), *a = malloc(sums), *b = malloc(sums);
    for (size_t i = 0; i < size; i++)
        data[i] = (unsigned char)(i * 2654435761u >> 13);
    struct hubsum x, y;
    char hx[HUBSUM_HEX], hy[HUBSUM_HEX];
    hubsum_begin(&x, kind, size + skew);
    hubsum_update(
        &x, "0123456789012345678901234567890123456789012345678901234567890123", skew);
    y = x;
    cr_assert(hubhash(&x, &g, &at, element, data, a));
    cr_assert(hubhash_plain(&y, &g, &at, element, data, b));
    cr_assert_eq(memcmp(a, b, sums), 0, "tiles of %lld x %lld, skew %zu",
        (long long)g.dims[1], (long long)g.dims[2], skew);
    cr_assert_eq(x.at, y.at);
    hubsum_hex(&x, hx);
    hubsum_hex(&y, hy);
    cr_assert_str_eq(hx, hy, "file of %lld x %lld, skew %zu", (long long)g.dims[1],
        (long long)g.dims[2], skew);
    hubsum_update(&x, "more", 4); /* and both go on the same way */
    hubsum_update(&y, "more", 4);
    hubsum_hex(&x, hx);
    hubsum_hex(&y, hy);
    cr_assert_str_eq(hx, hy);
    free(data);
    free(a);
    free(b);
}

Test(hubhash, equals_two_walks_for_every_shape)
{
    static const int64_t shapes[][2] = {{1, 1}, {3, 5}, {128, 64}, {130, 65}, {256, 32},
        {1024, 256}, {1030, 700}, {72, 256}, {129, 513}, {1, 40000}, {200, 1},
        {2, 16385}};
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
        for (int cut = 0; cut < 2; cut++)
            for (size_t element = 1; element <= 4; element *= 2)
                for (size_t skew = 0; skew < 64; skew += 7)
                    same(shapes[s], 2, false, cut, element, 0, shapes[s][0], skew,
                        HUBSUM_SHA256);
}

Test(hubhash, equals_two_walks_at_every_skew)
{
    const int64_t shape[2] = {257, 96};
    for (size_t skew = 0; skew < 64; skew++)
        same(shape, 2, false, false, 2, 0, 257, skew, HUBSUM_SHA256);
}

Test(hubhash, takes_a_band_of_rows)
{
    const int64_t shape[2] = {4096, 700};
    same(shape, 2, false, true, 2, 1024, 3072, 9, HUBSUM_SHA256);
    same(shape, 2, false, false, 2, 128, 4096, 9, HUBSUM_SHA256);
}

Test(hubhash, takes_vectors_and_scalars)
{
    const int64_t vector[1] = {6144};
    same(vector, 1, false, false, 4, 0, 1, 3, HUBSUM_SHA256);
    same(vector, 0, false, false, 4, 0, 1, 63, HUBSUM_SHA256);
}

Test(hubhash, takes_files_that_git_digests)
{
    const int64_t shape[2] = {130, 65};
    same(shape, 2, false, false, 2, 0, 130, 5, HUBSUM_GIT);
}
