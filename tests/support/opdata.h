/* Arrays of the element types that operations are tested with, seen as doubles. */
#ifndef TESTS_SUPPORT_OPDATA_H
#define TESTS_SUPPORT_OPDATA_H

#include <stdint.h>

#include "kernels/base/dtype.h"

/* The three versions of an operation, and their type of sums. */
extern const enum glm_dtype op_dtypes[3];
enum glm_dtype op_acc(enum glm_dtype dtype);

/* Memory of exactly n elements, so that a sanitizer sees a step too far. Aborts without memory. */
void *op_zeros(enum glm_dtype dtype, int64_t n);
/* Bell-shaped numbers of variance 1, rounded to dtype. */
void *op_normals(enum glm_dtype dtype, int64_t n, uint64_t seed);
void *op_from(enum glm_dtype dtype, const double *x, int64_t n);
double op_at(enum glm_dtype dtype, const void *x, int64_t i);
void op_set(enum glm_dtype dtype, void *x, int64_t i, double value);
double *op_doubles(enum glm_dtype dtype, const void *x, int64_t n);
/* x rounded to dtype. */
double op_low(enum glm_dtype dtype, double x);

/* max |got - expected| / max(max |expected|, floor); NaN counts as infinite. */
double op_error(enum glm_dtype dtype, const void *got, const double *expected, int64_t n,
    double floor);
/* The number of elements that are not the very bits. */
int64_t op_differ(enum glm_dtype dtype, const void *a, const void *b, int64_t n);

/* cu_seqlens of sequences of the given lengths (0 ends them): [*S + 1], malloc'd; *T rows. */
int32_t *op_pack(const int *lengths, int64_t *S, int64_t *T);
/* Random key sets of K entries for such a pack: [T,K], malloc'd. */
int32_t *op_sets(const int32_t *cu, int64_t S, int64_t K, uint64_t seed);

/* Golden arrays by name: a text file of "name n" and n numbers, over and over. malloc'd. */
double *op_golden(const char *path, const char *name, int64_t n);

#endif
