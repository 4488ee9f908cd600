/* Central differences of a scalar function in double, against a gradient. */
#ifndef TESTS_SUPPORT_DIFFERENCES_H
#define TESTS_SUPPORT_DIFFERENCES_H

#include <stdint.h>

typedef double differences_fn(void *ctx);

/* Checks up to 32 of the n entries of x, which the function reads; they are as before on return.
 * Fails the running test if an entry of grad is off by more than 1e-7 of the largest. */
void differences_check(const char *what, differences_fn *fn, void *ctx, double *x,
    int64_t n, const double *grad);

/* sum_i c_i y_i: with a random c, a scalar whose gradient by y is c. */
double differences_dot(const double *c, const double *y, int64_t n);

#endif
