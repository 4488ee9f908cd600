/* The running digest of a file that comes from a hub: SHA-256 of its bytes, or the SHA-1 that git
 * gives a small file. Its state can be written down and taken up by another process. */
#ifndef CONVERT_HUBSUM_H
#define CONVERT_HUBSUM_H

#define OPENSSL_SUPPRESS_DEPRECATED /* EVP has no way to save a state; these structs do */
#include <openssl/sha.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { HUBSUM_HEX = 65, HUBSUM_TEXT = 320 };

enum hubsum_kind {
    HUBSUM_NONE,   /* nothing to compare with */
    HUBSUM_SHA256, /* 64 digits: large files */
    HUBSUM_GIT     /* 40 digits: SHA-1 of "blob <size>\0" and the bytes */
};

struct hubsum {
    enum hubsum_kind kind;
    uint64_t at; /* bytes of the file so far */
    union {
        SHA256_CTX sha256;
        SHA_CTX sha1;
    } state;
};

/* What kind of digest a text is: 64 or 40 lower-case hex digits. */
enum hubsum_kind hubsum_kind_of(const char *digits);
void hubsum_begin(struct hubsum *s, enum hubsum_kind kind, uint64_t file_size);
void hubsum_update(struct hubsum *s, const void *data, size_t size);
/* The digits; "" for HUBSUM_NONE. Works on a copy: s can go on. */
void hubsum_hex(const struct hubsum *s, char out[HUBSUM_HEX]);

/* One word per field, no tabs, no line end. */
void hubsum_save(const struct hubsum *s, char out[HUBSUM_TEXT]);
bool hubsum_load(struct hubsum *s, const char *text);

#endif
