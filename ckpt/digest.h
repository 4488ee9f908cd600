/* SHA-256 through libcrypto. One context type, fed while bytes pass. */
#ifndef CKPT_DIGEST_H
#define CKPT_DIGEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { DIGEST_SIZE = 32, DIGEST_HEX = 65 /* with the final zero */ };

struct digest;                   /* a running SHA-256 */
struct digest *digest_new(void); /* NULL: no memory. digest_free(NULL) is harmless. */
void digest_free(struct digest *d);
void digest_begin(struct digest *d);
void digest_update(struct digest *d, const void *data, size_t size);
void digest_end(struct digest *d, unsigned char out[DIGEST_SIZE]);

void digest_of(const void *data, size_t size, unsigned char out[DIGEST_SIZE]);
void digest_hex(const unsigned char in[DIGEST_SIZE], char out[DIGEST_HEX]);
/* Exactly 64 lower-case digits and the final zero; false otherwise. */
bool digest_from_hex(const char *hex, unsigned char out[DIGEST_SIZE]);

#endif
