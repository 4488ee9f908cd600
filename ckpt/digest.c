/* SHA-256 over OpenSSL's EVP, the only place that calls it.
 *
 * With a valid context and a digest that libcrypto ships built in, the EVP calls can fail only
 * through a broken library; a wrong digest must never come out of that, so such a failure
 * aborts. */
#include "ckpt/digest.h"

#include <stdlib.h>
#include <string.h>

#include <openssl/evp.h>

struct digest {
    EVP_MD_CTX *context;
    EVP_MD *sha256; /* fetched once: a lookup costs more than a small tile */
};

struct digest *digest_new(void)
{
    struct digest *d = calloc(1, sizeof *d);

    if (d == NULL)
        return NULL;
    d->context = EVP_MD_CTX_new();
    d->sha256 = EVP_MD_fetch(NULL, "SHA256", NULL);
    if (d->context == NULL || d->sha256 == NULL) {
        digest_free(d);
        return NULL;
    }
    return d;
}

void digest_free(struct digest *d)
{
    if (d == NULL)
        return;
    EVP_MD_CTX_free(d->context);
    EVP_MD_free(d->sha256);
    free(d);
}

void digest_begin(struct digest *d)
{
    if (EVP_DigestInit_ex2(d->context, d->sha256, NULL) != 1)
        abort();
}

void digest_update(struct digest *d, const void *data, size_t size)
{
    if (size != 0 && EVP_DigestUpdate(d->context, data, size) != 1)
        abort();
}

void digest_end(struct digest *d, unsigned char out[DIGEST_SIZE])
{
    if (EVP_DigestFinal_ex(d->context, out, NULL) != 1)
        abort();
}

void digest_of(const void *data, size_t size, unsigned char out[DIGEST_SIZE])
{
    if (EVP_Digest(size != 0 ? data : "", size, out, NULL, EVP_sha256(), NULL) != 1)
        abort();
}

void digest_hex(const unsigned char in[DIGEST_SIZE], char out[DIGEST_HEX])
{
    static const char digits[] = "0123456789abcdef";

    for (int i = 0; i < DIGEST_SIZE; i++) {
        out[2 * i] = digits[in[i] >> 4];
        out[2 * i + 1] = digits[in[i] & 15];
    }
    out[2 * DIGEST_SIZE] = '\0';
}

static int nibble(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool digest_from_hex(const char *hex, unsigned char out[DIGEST_SIZE])
{
    unsigned char got[DIGEST_SIZE];

    for (int i = 0; i < DIGEST_SIZE; i++) {
        /* A final zero is no digit: nothing behind it is read. */
        const int high = nibble(hex[2 * i]);
        const int low = high < 0 ? -1 : nibble(hex[2 * i + 1]);
        if (low < 0)
            return false;
        got[i] = (unsigned char)(high << 4 | low);
    }
    if (hex[2 * DIGEST_SIZE] != '\0')
        return false;
    memcpy(out, got, sizeof got);
    return true;
}
