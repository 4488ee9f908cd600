/* --json: one object on stdout, keys in the order in which they were added.
 *
 * The setters can be called in a row without looking: the first failure (memory) is kept and
 * jsonout_print reports it. Names of files may be any bytes and JSON is UTF-8: U+FFFD stands for each
 * byte of a text or key that is not. */
#ifndef CLI_JSONOUT_H
#define CLI_JSONOUT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "kernels/base/error.h"

struct jsonout {
    json_t *root;
    bool failed;
    const char *failed_key;
};

void jsonout_init(struct jsonout *j);
void jsonout_clear(struct jsonout *j); /* harmless on a zeroed one */

/* to: the object (or array; then key is NULL) that takes the value; NULL: the root. */
void jsonout_str(
    struct jsonout *j, json_t *to, const char *key, const char *value); /* NULL: null */
void jsonout_int(struct jsonout *j, json_t *to, const char *key, int64_t value);
void jsonout_uint(struct jsonout *j, json_t *to, const char *key, uint64_t value);
void jsonout_real(
    struct jsonout *j, json_t *to, const char *key, double value); /* NaN, Inf: null */
void jsonout_bool(struct jsonout *j, json_t *to, const char *key, bool value);
/* SHA-256 as 64 lower-case digits. */
void jsonout_digest(
    struct jsonout *j, json_t *to, const char *key, const unsigned char value[32]);
/* A new object or array inside; borrowed, never NULL to the setters (they ignore a failed one). */
json_t *jsonout_object(struct jsonout *j, json_t *to, const char *key);
json_t *jsonout_array(struct jsonout *j, json_t *to, const char *key);

/* Prints the object and a line feed. */
int jsonout_print(struct jsonout *j, FILE *out, struct glm_error *err);

#endif
