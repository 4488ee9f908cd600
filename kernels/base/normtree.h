/* The sum of n numbers as a binary tree: the first 2^k < n of them as a tree, plus the rest as one. */
#ifndef KERNELS_BASE_NORMTREE_H
#define KERNELS_BASE_NORMTREE_H

#include <stdint.h>

static inline double normtree(const double *x, int64_t n)
{
    int64_t first = 1;

    if (n <= 1)
        return n < 1 ? 0 : x[0];
    while (2 * first < n)
        first *= 2;
    return normtree(x, first) + normtree(x + first, n - first);
}

#endif
