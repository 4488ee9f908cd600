/* What attention and the indexer are made of: products with the rows of keys, weighted sums of
 * rows, softmax over one row, and the fold of a block of query rows into their keys. */
#ifndef KERNELS_CPU_ROWS_H
#define KERNELS_CPU_ROWS_H

#include "kernels/cpu/keys.h"
#include "kernels/cpu/lanes.h"

#if defined(MODE_F64)
static inline real real_log(real x)
{
    return log(x);
}
#else
static inline real real_log(real x)
{
    return logf(x);
}
#endif

/* The size of pool_for's ranges: at most 256 of them, so that scratch memory stays small. */
static inline int64_t rows_grain(int64_t n)
{
    return n > 4 * 256 ? (n + 255) / 256 : 4;
}

static inline int64_t rows_ranges(int64_t n)
{
    return (n + rows_grain(n) - 1) / rows_grain(n);
}

LANES_BODY real rows_dot(const elem *a, const elem *b, int64_t D)
{
    real sum;

    LANES_SUM(sum, D, get(a[d]) * get(b[d]));
    return sum;
}

/* out[j] = a . (key j's row); rows begin at `base`, stride elements apart. */
LANES_BODY void rows_dots(real *restrict out, const elem *a, const elem *base,
    int64_t stride, const struct keys *k, int64_t D)
{
    for (int64_t j = 0; j < k->count; j++)
        out[j] = rows_dot(a, base + keys_at(k, j) * stride, D);
}

/* out += sum_j c[j] * (key j's row), in ascending j. Four rows a pass: the same sums in the same
 * order, with a quarter of the loads and stores of `out`. */
LANES_BODY void rows_add(real *restrict out, const real *c, const elem *base,
    int64_t stride, const struct keys *k, int64_t D)
{
    int64_t j = 0;

    for (; j + 4 <= k->count; j += 4) {
        const elem *r0 = base + keys_at(k, j) * stride,
                   *r1 = base + keys_at(k, j + 1) * stride;
        const elem *r2 = base + keys_at(k, j + 2) * stride,
                   *r3 = base + keys_at(k, j + 3) * stride;
        const real c0 = c[j], c1 = c[j + 1], c2 = c[j + 2], c3 = c[j + 3];
        for (int64_t d = 0; d < D; d++)
            out[d] = (((out[d] + c0 * get(r0[d])) + c1 * get(r1[d])) + c2 * get(r2[d]))
                + c3 * get(r3[d]);
    }
    for (; j < k->count; j++) {
        const elem *r = base + keys_at(k, j) * stride;
        for (int64_t d = 0; d < D; d++)
            out[d] += c[j] * get(r[d]);
    }
}

/* NaNs are passed over. */
LANES_BODY real rows_max(const real *x, int64_t n)
{
    real lane[LANES];

    for (int i = 0; i < LANES; i++)
        lane[i] = (real)-INFINITY;
    for (int64_t j = 0; j + LANES <= n; j += LANES) {
        for (int i = 0; i < LANES; i++)
            lane[i] = x[j + i] > lane[i] ? x[j + i] : lane[i];
    }
    for (int64_t j = n - n % LANES; j < n; j++)
        lane[0] = x[j] > lane[0] ? x[j] : lane[0];
    for (int i = 1; i < LANES; i++)
        lane[0] = lane[i] > lane[0] ? lane[i] : lane[0];
    return lane[0];
}

/* x = exp(scale*x - m), m the largest scale*x; returns the sum, *top = m. */
LANES_BODY real rows_exp(real *restrict x, int64_t n, real scale, real *top)
{
    real sum;

    for (int64_t j = 0; j < n; j++)
        x[j] *= scale;
    const real m = rows_max(x, n);
    for (int64_t j = 0; j < n; j++)
        x[j] = real_exp(x[j] - m);
    LANES_SUM(sum, n, x[d]);
    *top = m;
    return sum;
}

/* ---- sums over query rows --------------------------------------------------------------------- */

/* A block of query rows [t0,t1) with N heads each; coef [t1-t0,N,most] hold a coefficient per row,
 * head and key. Backward passes first fill it, in parallel over rows, then fold it into the keys, in
 * parallel over keys: each key's sum runs over t, within t over heads, ascending, whatever the size
 * of the blocks. */
struct block {
    const struct pack *pack;
    int64_t N, most, t0, t1;
};

/* Rows of a block: as many as keep `arrays` arrays of coefficients within 32 MiB. */
static inline int64_t block_rows(
    const struct pack *p, int64_t N, int64_t most, int arrays)
{
    const int64_t row = N * most * (int64_t)sizeof(real) * arrays;
    const int64_t fit = row > 0 ? ((int64_t)32 << 20) / row : 1;

    return fit < 1 ? 1 : fit < p->T ? fit : p->T;
}

static inline real *block_coef(const struct block *b, real *coef, int64_t t, int64_t n)
{
    return coef + ((t - b->t0) * b->N + n) * b->most;
}

/* out[d] += sum over the block's rows t that see key s, and heads n of [n0,n1), of
 * coef[t,n,s] * row[t,n,d]. c, r: memory for (t1-t0)*N coefficients and row numbers. */
LANES_BODY void block_fold(const struct block *b, int64_t s, int64_t n0, int64_t n1,
    const real *coef, const elem *row, real *out, int64_t D, real *c, int32_t *r)
{
    const int64_t end = keys_end(b->pack, s), begin = s > b->t0 ? s : b->t0;
    const bool all = b->pack->index == NULL;
    const int64_t place = all ? s - keys_of(b->pack, s).first : 0;
    int64_t count = 0;

    for (int64_t t = begin; t < b->t1 && t < end; t++) {
        int64_t j = place;
        if (!all) {
            const struct keys keys = keys_of(b->pack, t);
            if ((j = keys_find(&keys, s)) < 0)
                continue;
        }
        for (int64_t n = n0; n < n1; n++) {
            c[count] = coef[((t - b->t0) * b->N + n) * b->most + j];
            r[count++] = (int32_t)(t * b->N + n);
        }
    }
    rows_add(out, c, row, D, &(struct keys){.index = r, .count = count}, D);
}

#endif
