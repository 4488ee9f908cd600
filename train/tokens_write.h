/* Writing our HDF5 token dataset: streaming, in memory that does not grow with it, whole or absent.
 *
 * Ids, document offsets and the mask are spooled to files without a name beside OUT while they come.
 * At the end libhdf5 lays out OUT.partial, the spools are copied to where it put the datasets, and
 * the file takes its name when everything is durable. A run that is interrupted leaves at most an
 * OUT.partial, which the next run overwrites; two runs at the same time are refused. */
#ifndef TRAIN_TOKENS_WRITE_H
#define TRAIN_TOKENS_WRITE_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/base/dtype.h"
#include "kernels/base/error.h"

struct tokens_writer;

/* dtype: GLM_U16 or GLM_I32. A path that exists is GLM_EUSAGE unless replace. */
int tokens_writer_open(struct tokens_writer **out, const char *path, enum glm_dtype dtype,
    bool replace, struct glm_error *err);
/* Appends to the document that is being written. Ids fit dtype (the caller has looked); mask: 0 or 1
 * each, NULL: all 1. A dataset has a mask if any call brought one. */
int tokens_writer_add(struct tokens_writer *w, const int32_t *ids, const uint8_t *mask,
    int64_t n, struct glm_error *err);
/* Ends the document; nothing before it makes an empty one. */
int tokens_writer_end(struct tokens_writer *w, struct glm_error *err);
/* A dataset without a token is GLM_EFORMAT. */
int tokens_writer_finish(struct tokens_writer *w, struct glm_error *err);
/* Frees it; without a finish that succeeded nothing is left on disk. NULL: nothing. */
void tokens_writer_close(struct tokens_writer *w);

#endif
