/* The user block of our token dataset: 4,096 bytes in front of HDF5's own.
 *
 *     GLMDATA 1
 *     size <length of the file>
 *     dtype U16|I32
 *     largest <largest id>
 *     tokens <offset> <count> <sha256>
 *     documents <offset> <count> <sha256>
 *     mask <offset> <count> <sha256>           (no mask: 0 0 and the digest of nothing)
 *     rest <sha256 of the bytes from 4096 on that are in none of the three>
 *     self <sha256 of the lines above>
 *     (zeros to 4,096)
 *
 * Every byte of the file lies under exactly one digest. documents counts documents; there is one
 * number more than that: offsets in tokens, I64, the last one the number of tokens. Offsets in the
 * file count from its start. */
#ifndef TRAIN_TOKENS_BLOCK_H
#define TRAIN_TOKENS_BLOCK_H

#include <stdint.h>

#include "ckpt/ckpt.h"
#include "kernels/base/dtype.h"
#include "kernels/base/error.h"

enum { TOKENS_BLOCK = USERBLOCK };
enum tokens_part { TOKENS_IDS, TOKENS_DOCUMENTS, TOKENS_MASK, TOKENS_PARTS };

struct tokens_extent {
    uint64_t offset, count;
    unsigned char sha256[DIGEST_SIZE];
};

struct tokens_block {
    uint64_t size, largest;
    enum glm_dtype dtype;
    struct tokens_extent part[TOKENS_PARTS];
    unsigned char rest[DIGEST_SIZE];
};

extern const char
    *const tokens_part_name[TOKENS_PARTS]; /* "tokens", "documents", "mask" */

/* Bytes of a part; only for a block that was parsed or is to be printed. */
uint64_t tokens_part_bytes(const struct tokens_block *b, enum tokens_part part);

void tokens_block_print(const struct tokens_block *b, unsigned char out[TOKENS_BLOCK]);
/* Accepts exactly what tokens_block_print writes, with parts inside `length` bytes that do not
 * overlap. */
int tokens_block_parse(struct tokens_block *b, const char *path,
    const unsigned char in[TOKENS_BLOCK], uint64_t length, struct glm_error *err);

#endif
