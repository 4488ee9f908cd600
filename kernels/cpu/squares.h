/* The sum of squares of a sequence of elements, in F64 and in the order that kernels/ops.h gives to
 * sum_squares: 16 lanes in leaves of 1024 elements, leaves in a binary tree. Elements come in pieces
 * of any length; the pieces do not change the bits. */
#ifndef KERNELS_CPU_SQUARES_H
#define KERNELS_CPU_SQUARES_H

#include "kernels/cpu/lanes.h"

enum { SQUARES_LEAF = 1024, SQUARES_LEVELS = 64 };

struct squares {
    double lane[LANES];
    int64_t at;      /* elements in the leaf that is being filled */
    uint64_t leaves; /* full ones: bit k is set if tree[k] holds the sum of 2^k */
    double tree[SQUARES_LEVELS];
};

LANES_BODY void squares_begin(struct squares *s)
{
    *s = (struct squares){.at = 0};
}

LANES_BODY double squares_fold(double *lane)
{
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            lane[i] += lane[i + half];
    return lane[0];
}

LANES_BODY void squares_close_leaf(struct squares *s)
{
    double sum = squares_fold(s->lane);
    int level = 0;

    for (; s->leaves >> level & 1; level++)
        sum = s->tree[level] + sum;
    s->tree[level] = sum;
    s->leaves++;
    s->at = 0;
    for (int i = 0; i < LANES; i++)
        s->lane[i] = 0;
}

LANES_BODY void squares_one(struct squares *s, elem x)
{
    const double v = (double)get(x);
    s->lane[s->at++ % LANES] += v * v;
}

LANES_BODY void squares_add(struct squares *s, const elem *x, int64_t n)
{
    for (int64_t i = 0; i < n;) {
        const int64_t room = SQUARES_LEAF - s->at, stop = n - i < room ? n : i + room;
        while (i < stop && s->at % LANES != 0)
            squares_one(s, x[i++]);
        for (; stop - i >= LANES; i += LANES, s->at += LANES)
            for (int k = 0; k < LANES; k++) {
                const double v = (double)get(x[i + k]);
                s->lane[k] += v * v;
            }
        while (i < stop)
            squares_one(s, x[i++]);
        if (s->at == SQUARES_LEAF)
            squares_close_leaf(s);
    }
}

LANES_BODY double squares_end(struct squares *s)
{
    double sum = 0;
    bool any = s->at > 0;

    if (any)
        sum = squares_fold(s->lane);
    for (int level = 0; level < SQUARES_LEVELS; level++)
        if (s->leaves >> level & 1) {
            sum = any ? s->tree[level] + sum : s->tree[level];
            any = true;
        }
    return sum;
}

#endif
