/* A second method for the norm and clipping of kernels/ops.h (clip): the global gradient norm, the same
 * bits whoever holds what (DESIGN.md 7, R2; spec/training.md 5.3).
 *
 * Leaves are the sums of squares of canonical tiles, in F64. A tensor's leaves add up as a binary
 * tree over its tiles in tile order; tensors add up in table order. Each owner computes the leaves
 * of its tiles into an array that has room for all; arrays of several owners are joined by taking
 * each leaf from its owner (or by adding, all others being 0), then anyone can fold. */
#ifndef TESTS_SUPPORT_GRADNORM_H
#define TESTS_SUPPORT_GRADNORM_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/base/error.h"

/* Pairs of neighbours at each level, one that is left over as it is: the same sums as those of the first
 * 2^k < n terms as a tree, plus the rest as one. 0 terms give 0. */
double gradnorm_tree(const double *leaves, int64_t n);

/* Tensor i has leaves [first[i], first[i+1]); those with chosen[i] == group count. Square root of
 * the sum. */
double gradnorm_fold(const double *leaves, const int64_t *first,
    const signed char *chosen, signed char group, int64_t tensors);

/* min(1, limit / (norm + 1e-6)); limit <= 0: 1, no clipping. */
double gradnorm_clip(double norm, double limit);

#endif
