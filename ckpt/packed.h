/* The compressed chunk: byte shuffle and one standard zstd frame, exactly what HDF5's filters
 * shuffle + 32015 make of a chunk, so stock tools read it (spec/checkpoint.md 4.4). */
#ifndef CKPT_PACKED_H
#define CKPT_PACKED_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/base/error.h"

struct packer; /* scratch and zstd contexts of one thread */
struct packer *packer_new(void);
void packer_free(struct packer *p);

/* Room that packer_pack may need in out for a chunk of `size` bytes. */
size_t packer_bound(size_t size);

/* One chunk of `size` bytes with elements of `element` bytes -> out. Shuffles when element >= 2.
 * A frame that is not below 97 % of raw is stored raw: then *mask has the bits of the filters set
 * (bit i: filter i of the pipeline skipped) and out holds the raw bytes. The same input gives the
 * same bytes on every machine with one libzstd version. */
int packer_pack(struct packer *p, const void *chunk, size_t size, size_t element,
    void *out, size_t *out_size, uint32_t *mask, struct glm_error *err);

/* The inverse. Refuses (GLM_EFORMAT) a frame whose content size is not exactly `size`, that has
 * trailing bytes, or a mask that packer_pack never writes. */
int packer_unpack(struct packer *p, const void *stored, size_t stored_size, uint32_t mask,
    void *chunk, size_t size, size_t element, struct glm_error *err);

#endif
