/* A JSON object walked member by member, in memory that does not grow with the text.
 *
 * safetensors headers and index files are one big object from a hostile source: up to 100 MB and
 * millions of members. A tree of all of it costs ten times its size, so the object is walked here
 * and only one member at a time is handed to the JSON library. The walk finds where a member ends;
 * whether it is well formed is the library's business. Bounds: bytes of a member, depth. */
#ifndef CONVERT_JSONIN_H
#define CONVERT_JSONIN_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/base/error.h"

enum { JSONIN_MAX_DEPTH = 32, JSONIN_MAX_STRING = 65536, JSONIN_SHOWN = 128 };

struct jsonin {
    const char *path; /* for sentences */
    const char *text;
    size_t size, at; /* at: the next byte of text to look at */
    size_t base;     /* what to add to `at` for the byte's place in the file */
    bool started;
};

struct jsonin_slice {
    const char *text;
    size_t size;
    size_t at; /* place in the file */
};

/* Steps into the object, white space before the brace allowed. */
int jsonin_open(struct jsonin *j, struct glm_error *err);
/* The next member's key (a slice with its quotes); *end at the closing brace. */
int jsonin_key(
    struct jsonin *j, struct jsonin_slice *key, bool *end, struct glm_error *err);
/* Its value: at most cap bytes. name: for the sentence. */
int jsonin_value(struct jsonin *j, size_t cap, const char *name,
    struct jsonin_slice *value, struct glm_error *err);
/* Only white space may follow the object. */
int jsonin_close(struct jsonin *j, struct glm_error *err);

/* Decodes a string slice into buf[JSONIN_MAX_STRING + 1], zero-terminated. NUL is refused. */
int jsonin_string(const struct jsonin *j, const struct jsonin_slice *s, char *buf,
    size_t *length, struct glm_error *err);
/* Parses one slice with the library: duplicate keys refused. A json_t, or NULL with a sentence. */
void *jsonin_load(const struct jsonin *j, const struct jsonin_slice *s, const char *name,
    struct glm_error *err);

/* Whether text is UTF-8 (shortest forms, no surrogates); *bad: the first byte that is not. */
bool jsonin_utf8(const char *text, size_t size, size_t *bad);
/* A name for a sentence: other bytes than printable ASCII as \xNN, cut to what buf holds. */
const char *jsonin_shown(const char *name, size_t length, char buf[JSONIN_SHOWN]);

#endif
