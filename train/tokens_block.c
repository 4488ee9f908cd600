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
    unsigned char self[DIGEST_SIZE];
    memset(out, 0, TOKENS_BLOCK);
    int n = sprintf(text, "GLMDATA 1\nsize %" PRIu64 "\ndtype %s\nlargest %" PRIu64 "\n",
        b->size, glm_dtype_name(b->dtype), b->largest);
    for (int i = 0; i < TOKENS_PARTS; i++) {
        digest_hex(b->part[i].sha256, hex);
        n += sprintf(text + n, "%s %" PRIu64 " %" PRIu64 " %s\n", tokens_part_name[i],
            b->part[i].offset, b->part[i].count, hex);
    }
    digest_hex(b->rest, hex);
    n += sprintf(text + n, "rest %s\n", hex);
    digest_of(text, (size_t)n, self);
    digest_hex(self, hex);
    sprintf(text + n, "self %s\n", hex);
}

/* ---- reading -------------------------------------------------------------------------------- */

/* Moves *s over a word. */
static bool block_word(const char **s, const char *word)
{
    const size_t n = strlen(word);
    if (strncmp(*s, word, n) != 0)
        return false;
    *s += n;
    return true;
}

static bool block_number(const char **s, uint64_t *out)
{
    uint64_t v = 0;
    if (**s < '0' || **s > '9')
        return false;
    for (; **s >= '0' && **s <= '9'; (*s)++)
        if (!checked_mul_u64(v, 10, &v) || !checked_add_u64(v, (uint64_t)(**s - '0'), &v))
            return false;
    *out = v;
    return true;
}

static bool block_digest(const char **s, unsigned char out[DIGEST_SIZE])
{
    char hex[DIGEST_HEX];
    if (strnlen(*s, DIGEST_HEX - 1) < DIGEST_HEX - 1)
        return false;
    memcpy(hex, *s, DIGEST_HEX - 1);
    hex[DIGEST_HEX - 1] = '\0';
    *s += DIGEST_HEX - 1;
    return digest_from_hex(hex, out);
}

static bool block_dtype(const char **s, enum glm_dtype *out)
{
    *out = block_word(s, "U16") ? GLM_U16 : GLM_I32;
    return *out == GLM_U16 || block_word(s, "I32");
}

static bool block_lines(struct tokens_block *b, const char *s)
{
    if (!block_word(&s, "GLMDATA 1\nsize ") || !block_number(&s, &b->size)
        || !block_word(&s, "\ndtype ") || !block_dtype(&s, &b->dtype)
        || !block_word(&s, "\nlargest ") || !block_number(&s, &b->largest))
        return false;
    for (int i = 0; i < TOKENS_PARTS; i++) {
        struct tokens_extent *const e = &b->part[i];
        if (!block_word(&s, "\n") || !block_word(&s, tokens_part_name[i])
            || !block_word(&s, " ") || !block_number(&s, &e->offset)
            || !block_word(&s, " ") || !block_number(&s, &e->count)
            || !block_word(&s, " ") || !block_digest(&s, e->sha256))
            return false;
    }
    return block_word(&s, "\nrest ") && block_digest(&s, b->rest);
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
    if (memcmp(in, again, TOKENS_BLOCK) != 0)
        return glm_fail(err, GLM_EFORMAT,
            "%s: user block: damaged (its own digest or the zeros after it differ)",
            path);
    if (b->size != length)
        return glm_fail(err, GLM_EFORMAT,
            "%s: %" PRIu64 " bytes long, its user block says %" PRIu64
            ": the file was cut or appended to",
            path, length, b->size);
    return block_extents(b, path, length, err);
}
