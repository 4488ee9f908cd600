/* shard-*.h5: created by libhdf5, filled by plain writes; read by offsets from the manifest.
 *
 * Plain: all datasets are made at once with early allocation and no fill, their offsets are taken,
 * the file is closed; data then goes in with pwrite. zstd: plain pieces (scales, single numbers) get
 * their room first, the same way; then chunks go in through the library in the
 * order of the manifest (pieces, tiles), so equal content gives equal bytes. Every call into
 * libhdf5 is made under one lock (h5error.h). */
#ifndef CKPT_SHARD_H
#define CKPT_SHARD_H

#include "ckpt/manifest.h"

/* Makes the file (replacing one of that name) for shard `no` of m at `path`
 * (full path of the file) and fills piece offsets and shard.bytes. Nothing is synced. The bytes
 * depend on the manifest alone. */
int shard_create_plain(
    struct manifest *m, int64_t no, const char *path, struct glm_error *err);

struct packed_shard; /* an open zstd shard */
int shard_create_packed(struct packed_shard **out, struct manifest *m, int64_t no,
    const char *path, struct glm_error *err);
/* Stores the next chunk: tile number `tile` (piece's own row-major tile order) of piece `piece`.
 * Edge tiles must have been padded with zeros to the chunk shape before packing. */
int shard_put_chunk(struct packed_shard *s, int64_t piece, int64_t tile,
    const void *stored, size_t size, uint32_t mask, struct glm_error *err);
/* Closes the file; fills chunks[first_chunk...].offset (bytes, mask, sha256 are the caller's to
 * fill), piece.bytes and shard.bytes. Frees s, also on failure. Not synced. */
int shard_close_packed(
    struct packed_shard *s, struct ckpt_chunk *chunks, struct glm_error *err);
void shard_abandon_packed(struct packed_shard *s);

/* Chunk shape of a piece (matrix form): min(tile, piece) on each axis. */
void shard_chunk_dims(
    const struct manifest *m, const struct ckpt_piece *p, int64_t dims[3]);
int64_t shard_piece_tiles(
    const struct manifest *m, const struct ckpt_piece *p, struct rect *tiles);

/* A piece as its dataset sees it: first element and lengths along the axes that the dataset has:
 * [n] for ranks 0 and 1 (a scalar is [1]), [E,R,C] for a stack, [R,C] for all else. Returns how many
 * axes. The manifest's text uses the same form. */
int shard_axes(
    const struct ckpt_tensor *t, const struct rect *at, int64_t lo[3], int64_t n[3]);

/* SHA-256 of all bytes of the file outside its extents (plain pieces, chunk frames), file order. */
int shard_skeleton(const struct manifest *m, const struct ckpt_chunk *chunks, int64_t no,
    const char *path, unsigned char out[32], struct glm_error *err);

#endif
