/* UTF-8 in text from outside: names of files may be any bytes, JSON and manifests may not. */
#ifndef KERNELS_BASE_UTF8_H
#define KERNELS_BASE_UTF8_H

#include <stddef.h>

/* Length of the UTF-8 sequence at p, of at most `left` bytes (shortest form, no surrogate); 0 if it
 * is none. */
size_t utf8_sequence(const unsigned char *p, size_t left);

/* A copy in which U+FFFD stands for each byte that belongs to no sequence; free it. NULL without
 * memory. */
char *utf8_mended(const char *text);

#endif
