/* The user block of index.h5. Reading is "parse loosely, print, compare": a block is accepted only if
 * printing what was read gives the same 4,096 bytes, so every byte of it is checked. */
#include "ckpt/index_block.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/digest.h"

const char *const index_part_name[INDEX_PARTS] = {
    "manifest", "tile table", "chunk table"};
static const char *const index_block_word[INDEX_PARTS] = {"manifest", "tiles", "chunks"};

void index_block_print(const struct index_block *b, unsigned char out[INDEX_BLOCK])
{
    char *const text = (char *)out, hex[DIGEST_HEX];
    unsigned char self[DIGEST_SIZE];
    int n;
    memset(out, 0, INDEX_BLOCK);
    digest_hex(b->sha256, hex);
    n = sprintf(text, "GLMCKPT 1\nsize %" PRIu64 "\nsha256 %s\n", b->size, hex);
    for (int i = 0; i < INDEX_PARTS; i++) {
        digest_hex(b->part[i].sha256, hex);
        n += sprintf(text + n, "%s %" PRIu64 " %" PRIu64 " %s\n", index_block_word[i],
            b->part[i].offset, b->part[i].bytes, hex);
    }
    digest_of(text, (size_t)n, self);
    digest_hex(self, hex);
    sprintf(text + n, "self %s\n", hex);
}

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
        if (__builtin_mul_overflow(v, 10u, &v)
            || __builtin_add_overflow(v, (uint64_t)(**s - '0'), &v))
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

static bool block_lines(struct index_block *b, const char *s)
{
    if (!block_word(&s, "GLMCKPT 1\nsize ") || !block_number(&s, &b->size)
        || !block_word(&s, "\nsha256 ") || !block_digest(&s, b->sha256))
        return false;
    for (int i = 0; i < INDEX_PARTS; i++) {
        struct index_extent *const e = &b->part[i];
        if (!block_word(&s, "\n") || !block_word(&s, index_block_word[i])
            || !block_word(&s, " ") || !block_number(&s, &e->offset)
            || !block_word(&s, " ") || !block_number(&s, &e->bytes)
            || !block_word(&s, " ") || !block_digest(&s, e->sha256))
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
    if (memcmp(in, again, INDEX_BLOCK) != 0)
        return glm_fail(err, GLM_EFORMAT,
            "%s: user block: damaged (its own digest or the zeros"
            " after it differ)",
            path);
    if (b->size != length)
        return glm_fail(err, GLM_EFORMAT,
            "%s: %" PRIu64 " bytes long, its user block says %" PRIu64
            ": the file was cut or appended to",
            path, length, b->size);
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
