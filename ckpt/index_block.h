/* Private to index.h5's writer and reader: the user block, 4,096 bytes in front of HDF5's own.
 *
 *     GLMCKPT 1
 *     size <length of the file>
 *     sha256 <of the bytes 4096...end>
 *     manifest <offset> <bytes> <sha256>
 *     tiles <offset> <bytes> <sha256>
 *     chunks <offset> <bytes> <sha256>
 *     self <sha256 of the lines above>
 *     (zeros to 4,096)
 *
 * The digests of the three tables are not needed to trust the file; they say which of its parts is
 * damaged. Offsets count from the start of the file; an empty table is 0 0. */
#ifndef CKPT_INDEX_BLOCK_H
#define CKPT_INDEX_BLOCK_H

#include <stdint.h>

#include "ckpt/userblock.h"
#include "kernels/base/error.h"

enum { INDEX_BLOCK = USERBLOCK, INDEX_CHUNK_ROW = 48 };

enum index_part { INDEX_MANIFEST, INDEX_TILES, INDEX_CHUNKS, INDEX_PARTS };

struct index_extent {
    uint64_t offset, bytes;
    unsigned char sha256[32];
};

struct index_block {
    uint64_t size;
    unsigned char sha256[32];
    struct index_extent part[INDEX_PARTS];
};

extern const char *const index_part_name[INDEX_PARTS]; /* "manifest", "tile table", ... */

void index_block_print(const struct index_block *b, unsigned char out[INDEX_BLOCK]);
/* Accepts exactly what index_block_print writes, with extents inside `length` bytes. */
int index_block_parse(struct index_block *b, const char *path,
    const unsigned char in[INDEX_BLOCK], uint64_t length, struct glm_error *err);

#endif
