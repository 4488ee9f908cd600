/* safetensors headers: read from hostile bytes, written strictly (spec/checkpoint.md 1.1). */
#ifndef CONVERT_SAFETENSORS_H
#define CONVERT_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/base/dtype.h"
#include "kernels/base/error.h"

enum { ST_MAX_HEADER = 100000000, ST_MAX_RANK = 8 };
/* As file_size: only the header is at hand; the file is as long as its tensors say. */
#define ST_SIZE_UNKNOWN UINT64_MAX

struct st_tensor {
    const char *name; /* zero-terminated, in the header's arena */
    size_t name_length;
    enum glm_dtype dtype;
    int rank;
    const int64_t *shape; /* in the arena */
    uint64_t begin, end;  /* relative to data_start */
};

struct st_header {
    struct st_tensor *tensors; /* sorted by name (bytes) */
    int64_t count;
    uint64_t data_start; /* 8 + N */
    uint64_t file_size;
    char *metadata; /* JSON text of __metadata__, or NULL */
    void *arena;
};

/* Parses the header of a file of file_size bytes whose first `size` bytes are text (8-byte length
 * included; size >= 8+N). Every rule of the format is checked; GLM_EFORMAT names tensor and byte. */
int st_parse(struct st_header *out, const char *path, const void *bytes, size_t size,
    uint64_t file_size, struct glm_error *err);
/* Opens, reads the header only, closes. Names what a non-safetensors file is (LFS pointer, empty,
 * HTML, gzip, cut). header_bytes (may be NULL): malloc'd copy of the 8+N bytes. */
int st_read(
    struct st_header *out, const char *path, void **header_bytes, struct glm_error *err);
void st_clear(struct st_header *h);
const struct st_tensor *st_find(
    const struct st_header *h, const char *name, size_t length);

/* Builds header bytes (8 + JSON + spaces so that the data starts at a multiple of `align`) for
 * tensors in the given data order; begin/end are filled in. metadata: {"format":"pt"}. */
int st_build(struct st_tensor *tensors, int64_t count, size_t align, void **bytes,
    size_t *size, struct glm_error *err);

#endif
