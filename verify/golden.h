/* Golden arrays: a safetensors file read whole, its arrays by name, its metadata as text.
 *
 * The header is checked by every rule of the format before an array is handed out. */
#ifndef VERIFY_GOLDEN_H
#define VERIFY_GOLDEN_H

#include <stdint.h>

#include "kernels/base/error.h"

struct golden;

/* GLM_EFORMAT for a file that is not safetensors. */
int golden_open(struct golden **out, const char *path, struct glm_error *err);
void golden_close(struct golden *g);
/* A string of the metadata; NULL if there is none. */
const char *golden_text(const struct golden *g, const char *key);
/* The array and its number of elements; NULL if it is not there or of another type. */
const float *golden_f32(const struct golden *g, const char *name, int64_t *n);
const double *golden_f64(const struct golden *g, const char *name, int64_t *n);
const int32_t *golden_i32(const struct golden *g, const char *name, int64_t *n);

#endif
