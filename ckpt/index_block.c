#include "ckpt/index_block.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/userblock.h"

const char *const index_part_name[INDEX_PARTS] = {
    "manifest", "tile table", "chunk table"};
static const char *const index_block_word[INDEX_PARTS] = {"manifest", "tiles", "chunks"};

void index_block_print(const struct index_block *b, unsigned char out[INDEX_BLOCK])
{
    char *const text = (char *)out, hex[DIGEST_HEX];
    memset(out, 0, INDEX_BLOCK);
    digest_hex(b->sha256, hex);
    int n = sprintf(text, "GLMCKPT 1\nsize %" PRIu64 "\nsha256 %s\n", b->size, hex);
    for (int i = 0; i < INDEX_PARTS; i++)
        n += userblock_print_part(text + n, index_block_word[i], b->part[i].offset,
            b->part[i].bytes, b->part[i].sha256);
    userblock_seal(out, n);
}

static bool block_lines(struct index_block *b, const char *s)
{
    if (!userblock_word(&s, "GLMCKPT 1\nsize ") || !userblock_number(&s, &b->size)
        || !userblock_word(&s, "\nsha256 ") || !userblock_digest(&s, b->sha256))
        return false;
    for (int i = 0; i < INDEX_PARTS; i++) {
        struct index_extent *const e = &b->part[i];
        if (!userblock_part(&s, index_block_word[i], &e->offset, &e->bytes, e->sha256))
            return false;
    }
    return true;
}

int index_block_parse(struct index_block *b, const char *path,
    const unsigned char in[INDEX_BLOCK], uint64_t length, struct glm_error *err)
{
    char text[INDEX_BLOCK + 1];
    unsigned char again[INDEX_BLOCK];
    memcpy(text, in, INDEX_BLOCK);
    text[INDEX_BLOCK] = '\0';
    memset(b, 0, sizeof *b);
    if (!block_lines(b, text))
        return glm_fail(err, GLM_EFORMAT,
            "%s: user block: not the lines of a checkpoint index", path);
    index_block_print(b, again);
    if (userblock_check(path, in, again, b->size, length, err) != GLM_OK)
        return (int)err->code;
    for (int i = 0; i < INDEX_PARTS; i++) {
        const struct index_extent *const e = &b->part[i];
        if (e->bytes == 0 ? e->offset != 0
                          : e->offset < INDEX_BLOCK || e->offset > length
                    || e->bytes > length - e->offset)
            return glm_fail(err, GLM_EFORMAT,
                "%s: user block: the %s (%" PRIu64 " bytes at %" PRIu64
                ") is not inside the file",
                path, index_part_name[i], e->bytes, e->offset);
    }
    return 0;
}
