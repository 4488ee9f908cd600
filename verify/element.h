/* Elements of any type as numbers, and how far two of one type lie apart.
 *
 * The distance in ULP is the number of representable values of the type between two: sign-magnitude
 * codes mapped to integers, so it crosses zero rightly and +0 and -0 are 0 apart. For integers it is
 * their difference, for E8M0 that of the exponents. */
#ifndef VERIFY_ELEMENT_H
#define VERIFY_ELEMENT_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "kernels/base/dtype.h"

/* Whether this file can read the type: whole bytes, real numbers. */
bool element_known(enum glm_dtype dtype);
bool element_is_float(enum glm_dtype dtype);
/* Value of element i as float64, exact for all types but 64-bit integers. */
double element_value(enum glm_dtype dtype, const void *p, int64_t i);
void element_values(enum glm_dtype dtype, const void *p, int64_t n, double *out);
/* Position of element i among the values of its type; meaningless for NaN. */
int64_t element_key(enum glm_dtype dtype, const void *p, int64_t i);
static inline uint64_t element_distance(int64_t a, int64_t b)
{
    return a > b ? (uint64_t)a - (uint64_t)b : (uint64_t)b - (uint64_t)a;
}

#endif
