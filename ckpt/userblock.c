#include "ckpt/userblock.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "kernels/base/checked.h"

bool userblock_word(const char **s, const char *word)
{
    const size_t n = strlen(word);
    if (strncmp(*s, word, n) != 0)
        return false;
    *s += n;
    return true;
}

bool userblock_number(const char **s, uint64_t *out)
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

bool userblock_digest(const char **s, unsigned char out[DIGEST_SIZE])
{
    char hex[DIGEST_HEX];
    if (strnlen(*s, DIGEST_HEX - 1) < DIGEST_HEX - 1)
        return false;
    memcpy(hex, *s, DIGEST_HEX - 1);
    hex[DIGEST_HEX - 1] = '\0';
    *s += DIGEST_HEX - 1;
    return digest_from_hex(hex, out);
}

bool userblock_part(const char **s, const char *word, uint64_t *offset, uint64_t *count,
    unsigned char sha256[DIGEST_SIZE])
{
    return userblock_word(s, "\n") && userblock_word(s, word) && userblock_word(s, " ")
        && userblock_number(s, offset) && userblock_word(s, " ")
        && userblock_number(s, count) && userblock_word(s, " ")
        && userblock_digest(s, sha256);
}

int userblock_print_part(char *text, const char *word, uint64_t offset, uint64_t count,
    const unsigned char sha256[DIGEST_SIZE])
{
    char hex[DIGEST_HEX];
    digest_hex(sha256, hex);
    return sprintf(text, "%s %" PRIu64 " %" PRIu64 " %s\n", word, offset, count, hex);
}

void userblock_seal(unsigned char block[USERBLOCK], int n)
{
    unsigned char self[DIGEST_SIZE];
    char hex[DIGEST_HEX];
    digest_of(block, (size_t)n, self);
    digest_hex(self, hex);
    sprintf((char *)block + n, "self %s\n", hex);
}

int userblock_check(const char *path, const unsigned char in[USERBLOCK],
    const unsigned char again[USERBLOCK], uint64_t size, uint64_t length,
    struct glm_error *err)
{
    if (memcmp(in, again, USERBLOCK) != 0)
        return glm_fail(err, GLM_EFORMAT,
            "%s: user block: damaged (its own digest or the zeros after it differ)",
            path);
    if (size != length)
        return glm_fail(err, GLM_EFORMAT,
            "%s: %" PRIu64 " bytes long, its user block says %" PRIu64
            ": the file was cut or appended to",
            path, length, size);
    return GLM_OK;
}
