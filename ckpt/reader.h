/* Reading a checkpoint: tensors by rectangle, verified by tile, at any topology. Thread safe. */
#ifndef CKPT_READER_H
#define CKPT_READER_H

#include "ckpt/dio.h"
#include "ckpt/index.h"

struct reader;
struct reader_scratch; /* buffers of one thread */

/* Opens index and checks that every shard is there with its length. */
int reader_open(struct reader **out, const char *ckpt_dir, struct glm_error *err);
void reader_close(struct reader *r);
/* From now on reader_read hashes nothing, unless its caller wants the digests: for who knows the
 * disk. index.h5 is checked when it is opened, and packed frames still are. */
void reader_trust(struct reader *r);
const struct index *reader_index(const struct reader *r);
const struct manifest *reader_manifest(const struct reader *r);

struct reader_scratch *reader_scratch_new(void);
void reader_scratch_free(struct reader_scratch *s);

/* Reads a rectangle (elements, matrix form) row-major into out (rect_count * element size bytes).
 * verify: the rectangle must be whole tiles; each is hashed and compared, and a difference is
 * GLM_EFORMAT naming file, tensor, tile. digests (may be NULL): 32 bytes per tile of the rectangle,
 * row-major, as computed. Without verify any rectangle may be read and digests must be NULL.
 * A derived weight is read from its master and rounded. out should be DIO_ALIGN-aligned with
 * 2*DIO_ALIGN spare bytes; *at is where the data starts inside it (usually out). */
int reader_read(struct reader *r, int64_t tensor, const struct rect *at_rect, bool verify,
    void *out, size_t capacity, unsigned char **at, unsigned char *digests,
    struct reader_scratch *s, struct glm_error *err);

/* Stored frame of one tile of a zstd piece, its SHA-256 checked. buf: capacity >= frame bytes. */
int reader_frame(struct reader *r, int64_t piece, int64_t tile_in_piece, void *buf,
    size_t capacity, size_t *size, uint32_t *mask, struct glm_error *err);

/* Hashes the tiles of a buffer that holds a tile-aligned rectangle (pitch = its width). False: no
 * memory, nothing was hashed. */
bool reader_hash_tiles(const struct tile_grid *g, const struct rect *elements,
    size_t element_size, const void *data, unsigned char *digests);

#endif
