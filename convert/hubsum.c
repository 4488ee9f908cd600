/* SHA-256 and git's SHA-1 with a state that survives the process.
 *
 * A state is the chaining value, the count of bytes hashed and the bytes of the block that is not
 * full: all that FIPS 180 needs to go on. It is written as hex, big end first, so it does not
 * depend on the machine. */
#include "convert/hubsum.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { BLOCK = 64 };

enum hubsum_kind hubsum_kind_of(const char *digits)
{
    const size_t n = strspn(digits, "0123456789abcdef");
    if (digits[n] != '\0')
        return HUBSUM_NONE;
    return n == 64 ? HUBSUM_SHA256 : n == 40 ? HUBSUM_GIT : HUBSUM_NONE;
}

void hubsum_begin(struct hubsum *s, enum hubsum_kind kind, uint64_t file_size)
{
    char head[40];
    *s = (struct hubsum){.kind = kind};
    if (kind == HUBSUM_SHA256)
        SHA256_Init(&s->state.sha256);
    if (kind != HUBSUM_GIT)
        return;
    const int n = snprintf(head, sizeof head, "blob %" PRIu64, file_size) + 1;
    SHA1_Init(&s->state.sha1);
    SHA1_Update(&s->state.sha1, head, (size_t)n);
}

void hubsum_update(struct hubsum *s, const void *data, size_t size)
{
    s->at += size;
    if (s->kind == HUBSUM_SHA256)
        SHA256_Update(&s->state.sha256, data, size);
    else if (s->kind == HUBSUM_GIT)
        SHA1_Update(&s->state.sha1, data, size);
}

static size_t to_hex(const unsigned char *in, size_t n, char *out)
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < n; i++) {
        out[2 * i] = digits[in[i] >> 4];
        out[2 * i + 1] = digits[in[i] & 15];
    }
    out[2 * n] = '\0';
    return 2 * n;
}

void hubsum_hex(const struct hubsum *s, char out[HUBSUM_HEX])
{
    unsigned char digest[32];
    struct hubsum copy = *s;
    out[0] = '\0';
    if (s->kind == HUBSUM_SHA256) {
        SHA256_Final(digest, &copy.state.sha256);
        to_hex(digest, 32, out);
    } else if (s->kind == HUBSUM_GIT) {
        SHA1_Final(digest, &copy.state.sha1);
        to_hex(digest, 20, out);
    }
}

/* The fields of a state, whatever its kind. */
struct view {
    uint32_t words[8];
    int count;
    uint64_t bits;
    const unsigned char *rest;
    unsigned rest_size;
};

static struct view look(const struct hubsum *s)
{
    struct view v = {0};
    if (s->kind == HUBSUM_SHA256) {
        const SHA256_CTX *c = &s->state.sha256;
        v.count = 8;
        for (int i = 0; i < 8; i++)
            v.words[i] = c->h[i];
        v.bits = (uint64_t)c->Nh << 32 | c->Nl;
        v.rest = (const unsigned char *)c->data;
        v.rest_size = c->num;
    } else if (s->kind == HUBSUM_GIT) {
        const SHA_CTX *c = &s->state.sha1;
        const uint32_t h[5] = {c->h0, c->h1, c->h2, c->h3, c->h4};
        v.count = 5;
        memcpy(v.words, h, sizeof h);
        v.bits = (uint64_t)c->Nh << 32 | c->Nl;
        v.rest = (const unsigned char *)c->data;
        v.rest_size = c->num;
    }
    return v;
}

void hubsum_save(const struct hubsum *s, char out[HUBSUM_TEXT])
{
    const struct view v = look(s);
    int n = snprintf(
        out, HUBSUM_TEXT, "%d %" PRIu64 " %" PRIu64 " ", (int)s->kind, s->at, v.bits);
    for (int i = 0; i < v.count; i++)
        n += snprintf(out + n, HUBSUM_TEXT - (size_t)n, "%08" PRIx32, v.words[i]);
    out[n++] = '-';
    to_hex(v.rest, v.rest_size, out + n); /* at most 63 bytes */
}

static int digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool from_hex(const char *text, unsigned char *out, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const int hi = digit(text[2 * i]), lo = hi < 0 ? -1 : digit(text[2 * i + 1]);
        if (lo < 0)
            return false;
        out[i] = (unsigned char)(hi << 4 | lo);
    }
    return true;
}

bool hubsum_load(struct hubsum *s, const char *text)
{
    unsigned char words[32], rest[BLOCK];
    uint32_t h[8];
    uint64_t at, bits;
    int kind, used = 0;

    *s = (struct hubsum){0};
    if (sscanf(text, "%d %" SCNu64 " %" SCNu64 " %n", &kind, &at, &bits, &used) < 3
        || used == 0 || (kind != HUBSUM_SHA256 && kind != HUBSUM_GIT))
        return false;
    const size_t count = kind == HUBSUM_SHA256 ? 8 : 5, left = (size_t)(bits / 8 % BLOCK);
    const char *p = text + used;
    if (bits % 8 != 0 || strlen(p) != 8 * count + 1 + 2 * left || p[8 * count] != '-'
        || !from_hex(p, words, 4 * count) || !from_hex(p + 8 * count + 1, rest, left))
        return false;
    for (size_t i = 0; i < count; i++)
        h[i] = (uint32_t)words[4 * i] << 24 | (uint32_t)words[4 * i + 1] << 16
            | (uint32_t)words[4 * i + 2] << 8 | words[4 * i + 3];
    hubsum_begin(s, (enum hubsum_kind)kind, 0);
    s->at = at;
    if (kind == HUBSUM_SHA256) {
        SHA256_CTX *c = &s->state.sha256;
        for (int i = 0; i < 8; i++)
            c->h[i] = h[i];
        c->Nl = (SHA_LONG)bits;
        c->Nh = (SHA_LONG)(bits >> 32);
        c->num = (unsigned)left;
        memcpy(c->data, rest, left);
    } else {
        SHA_CTX *c = &s->state.sha1;
        c->h0 = h[0];
        c->h1 = h[1];
        c->h2 = h[2];
        c->h3 = h[3];
        c->h4 = h[4];
        c->Nl = (SHA_LONG)bits;
        c->Nh = (SHA_LONG)(bits >> 32);
        c->num = (unsigned)left;
        memcpy(c->data, rest, left);
    }
    return true;
}
