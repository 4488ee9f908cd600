/* Sums of squares of tiles: the leaves of the gradient's norm. A tile is one thread's. */
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/pool.h"
#include "kernels/cpu/squares.h"

LANES_CLONES static void tiles(const void *ctx, int64_t begin, int64_t end)
{
    const struct sum_squares *p = ctx;
    const int64_t down = (p->R + p->tile_rows - 1) / p->tile_rows;
    const int64_t across = (p->C + p->tile_cols - 1) / p->tile_cols;
    const elem *const x = p->x;

    for (int64_t i = begin; i < end; i++) {
        const int64_t b = i / across / down;
        const int64_t row = i / across % down * p->tile_rows,
                      col = i % across * p->tile_cols;
        const int64_t rows = p->R - row < p->tile_rows ? p->R - row : p->tile_rows;
        const int64_t cols = p->C - col < p->tile_cols ? p->C - col : p->tile_cols;
        struct squares s;

        squares_begin(&s);
        for (int64_t r = row; r < row + rows; r++)
            squares_add(&s, x + b * p->batch_stride + r * p->row_stride + col, cols);
        p->out[i] = squares_end(&s);
    }
}

OP_FN(sum_squares)
{
    if (p->B < 0 || p->R < 0 || p->C < 0 || p->tile_rows < 1 || p->tile_cols < 1)
        return glm_fail(err, GLM_EFORMAT,
            "sum_squares: %lld matrices of %lld x %lld in tiles of %lld x %lld",
            (long long)p->B, (long long)p->R, (long long)p->C, (long long)p->tile_rows,
            (long long)p->tile_cols);
    const int64_t down = (p->R + p->tile_rows - 1) / p->tile_rows;
    const int64_t across = (p->C + p->tile_cols - 1) / p->tile_cols;
    pool_each(stream, p->B * down * across, 1, tiles, p);
    return 0;
}
