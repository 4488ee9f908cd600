/* Arrays of any float type for tests of operations, and the pools that they run on. */
#ifndef TESTS_SUPPORT_VALUES_H
#define TESTS_SUPPORT_VALUES_H

#include <stdint.h>

#include "kernels/base/dtype.h"
#include "kernels/base/stream.h"

double value_at(enum glm_dtype type, const void *p, int64_t i);
void value_set(enum glm_dtype type, void *p, int64_t i, double x); /* rounded to type */
enum glm_dtype value_acc(enum glm_dtype type); /* F64 for F64, else F32 */

/* New arrays; free() them. Random values are normal times scale, rounded to type; one in sixteen
 * is 0, or a thousandth, or eight times as large. The same (seed, n) gives the same numbers in
 * every type, but for the rounding. */
void *values_random(enum glm_dtype type, int64_t n, uint32_t seed, double scale);
void *values_filled(enum glm_dtype type, int64_t n, double x);
void *values_copy(enum glm_dtype type, const void *from, int64_t n);
double *values_double(enum glm_dtype type, const void *from, int64_t n);

/* A place inside an array. */
void *value_ptr(enum glm_dtype type, const void *p, int64_t i);

/* The element types of operations, and the pools: VALUE_POOLS of them, 1 thread (no pool), 1, 2
 * and 4 threads. */
enum { VALUE_TYPES = 3, VALUE_POOLS = 4 };
extern const enum glm_dtype value_types[VALUE_TYPES];
glm_stream value_pool(
    int which); /* made when first asked for; they live as long as the test */

#endif
