/* The text in the first 4,096 bytes of our HDF5 files: what checkpoints and token datasets share.
 *
 * Lines of words, numbers and digests; the last is `self <sha256 of the lines above>`, then zeros.
 * Reading is "parse loosely, print, compare": a block is accepted only if printing what was read
 * gives the same bytes, so every byte of it is checked. */
#ifndef CKPT_USERBLOCK_H
#define CKPT_USERBLOCK_H

#include <stdbool.h>
#include <stdint.h>

#include "ckpt/digest.h"
#include "kernels/base/error.h"

enum { USERBLOCK = 4096 };

/* Each moves *s over what it reads and returns false if something else stands there. */
bool userblock_word(const char **s, const char *word);
bool userblock_number(const char **s, uint64_t *out);
bool userblock_digest(const char **s, unsigned char out[DIGEST_SIZE]);
/* "\nWORD OFFSET COUNT SHA256": the line of a part of the file. */
bool userblock_part(const char **s, const char *word, uint64_t *offset, uint64_t *count,
    unsigned char sha256[DIGEST_SIZE]);

/* Prints "WORD OFFSET COUNT SHA256\n"; returns its length. */
int userblock_print_part(char *text, const char *word, uint64_t offset, uint64_t count,
    const unsigned char sha256[DIGEST_SIZE]);
/* Adds the last line to n bytes of text. What is behind it must be zero already. */
void userblock_seal(unsigned char block[USERBLOCK], int n);

/* Is the block what printing it again gave, and the file as long as it says? */
int userblock_check(const char *path, const unsigned char in[USERBLOCK],
    const unsigned char again[USERBLOCK], uint64_t size, uint64_t length,
    struct glm_error *err);

#endif
