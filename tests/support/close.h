/* How near an operation must come to a naive float64 computation, in one table with reasons. */
#ifndef TESTS_SUPPORT_CLOSE_H
#define TESTS_SUPPORT_CLOSE_H

#include <stdint.h>

#include "kernels/base/dtype.h"

enum close_kind {
    CLOSE_COPY, /* moved, not computed */
    CLOSE_FEW,  /* a few roundings of one element */
    CLOSE_SUM,  /* a sum, or what follows from sums of up to some thousands of terms */
    CLOSE_GRAD, /* a chain of sums and roundings: backward passes */
};

/* max |got - want| / max |want| that may be. */
double close_limit(enum close_kind kind, enum glm_dtype stored, enum glm_dtype computed);

/* Fails the running test unless n elements of got (of type stored) are close to want. computed is
 * the operation's element type: an F32 gradient in BF16 mode holds values rounded to BF16 before. */
void close_check(const char *what, enum close_kind kind, enum glm_dtype stored,
    enum glm_dtype computed, const void *got, const double *want, int64_t n);

/* Fails the running test unless the bytes are the same. */
void close_same(
    const char *what, enum glm_dtype type, const void *a, const void *b, int64_t n);

#endif
