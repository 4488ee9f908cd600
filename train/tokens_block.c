#include "train/tokens_block.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "kernels/base/checked.h"

const char *const tokens_part_name[TOKENS_PARTS] = {"tokens", "documents", "mask"};

static bool block_part_bytes(
    const struct tokens_block *b, enum tokens_part part, uint64_t *out)
{
    const uint64_t n = b->part[part].count;
    switch (part) {
    case TOKENS_IDS:
        return checked_mul_u64(n, glm_dtype_size(b->dtype), out);
    case TOKENS_DOCUMENTS:
        return n < INT64_MAX && checked_mul_u64(n + 1, 8, out);
    default:
        *out = n;
        return true;
    }
}

uint64_t tokens_part_bytes(const struct tokens_block *b, enum tokens_part part)
{
    uint64_t bytes = 0;
    block_part_bytes(b, part, &bytes);
    return bytes;
}

void tokens_block_print(const struct tokens_block *b, unsigned char out[TOKENS_BLOCK])
{
    char *const text = (char *)out, hex[DIGEST_HEX];
    memset(out, 0, TOKENS_BLOCK);
    int n = sprintf(text, "GLMDATA 1\nsize %" PRIu64 "\ndtype %s\nlargest %" PRIu64 "\n",
        b->size, glm_dtype_name(b->dtype), b->largest);
    for (int i = 0; i < TOKENS_PARTS; i++)
        n += userblock_print_part(text + n, tokens_part_name[i], b->part[i].offset,
            b->part[i].count, b->part[i].sha256);
    digest_hex(b->rest, hex);
    n += sprintf(text + n, "rest %s\n", hex);
    userblock_seal(out, n);
}

/* ---- reading -------------------------------------------------------------------------------- */

static bool block_dtype(const char **s, enum glm_dtype *out)
{
    *out = userblock_word(s, "U16") ? GLM_U16 : GLM_I32;
    return *out == GLM_U16 || userblock_word(s, "I32");
}

static bool block_lines(struct tokens_block *b, const char *s)
{
    if (!userblock_word(&s, "GLMDATA 1\nsize ") || !userblock_number(&s, &b->size)
        || !userblock_word(&s, "\ndtype ") || !block_dtype(&s, &b->dtype)
        || !userblock_word(&s, "\nlargest ") || !userblock_number(&s, &b->largest))
        return false;
    for (int i = 0; i < TOKENS_PARTS; i++) {
        struct tokens_extent *const e = &b->part[i];
        if (!userblock_part(&s, tokens_part_name[i], &e->offset, &e->count, e->sha256))
            return false;
    }
    return userblock_word(&s, "\nrest ") && userblock_digest(&s, b->rest);
}

static int block_extents(const struct tokens_block *b, const char *path, uint64_t length,
    struct glm_error *err)
{
    for (int i = 0; i < TOKENS_PARTS; i++) {
        const struct tokens_extent *const e = &b->part[i];
        uint64_t bytes;
        if (i == TOKENS_MASK && e->count == 0 && e->offset == 0)
            continue;
        if (!block_part_bytes(b, (enum tokens_part)i, &bytes) || bytes == 0
            || e->offset < TOKENS_BLOCK || e->offset > length
            || bytes > length - e->offset)
            return glm_fail(err, GLM_EFORMAT,
                "%s: user block: %s (%" PRIu64 " at byte %" PRIu64
                ") do not lie inside the file's %" PRIu64 " bytes",
                path, tokens_part_name[i], e->count, e->offset, length);
        for (int k = 0; k < i; k++)
            if (e->offset < b->part[k].offset + tokens_part_bytes(b, (enum tokens_part)k)
                && b->part[k].offset < e->offset + bytes)
                return glm_fail(err, GLM_EFORMAT, "%s: user block: %s and %s overlap",
                    path, tokens_part_name[k], tokens_part_name[i]);
    }
    if (b->part[TOKENS_MASK].count != 0
        && b->part[TOKENS_MASK].count != b->part[TOKENS_IDS].count)
        return glm_fail(err, GLM_EFORMAT,
            "%s: user block: %" PRIu64 " mask elements for %" PRIu64 " tokens", path,
            b->part[TOKENS_MASK].count, b->part[TOKENS_IDS].count);
    return GLM_OK;
}

int tokens_block_parse(struct tokens_block *b, const char *path,
    const unsigned char in[TOKENS_BLOCK], uint64_t length, struct glm_error *err)
{
    char text[TOKENS_BLOCK + 1];
    unsigned char again[TOKENS_BLOCK];
    memcpy(text, in, TOKENS_BLOCK);
    text[TOKENS_BLOCK] = '\0';
    memset(b, 0, sizeof *b);
    if (!block_lines(b, text))
        return glm_fail(err, GLM_EFORMAT,
            "%s: not a token dataset: its first bytes are not the lines of one (GLMDATA "
            "1)",
            path);
    tokens_block_print(b, again);
    if (userblock_check(path, in, again, b->size, length, err) != GLM_OK)
        return (int)err->code;
    return block_extents(b, path, length, err);
}
