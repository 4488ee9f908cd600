/* Private to the manifest's text form (printing and parsing): what both sides must agree on. */
#ifndef CKPT_MANIFEST_TEXT_H
#define CKPT_MANIFEST_TEXT_H

#include "ckpt/manifest.h"

/* Paths and provenance values are arbitrary bytes: those below 0x20, 0x7F and '%' are written as
 * %XX with upper-case digits. *out is malloc'd; NULL: no memory. */
char *manifest_escape(const char *text);
/* The inverse; false if the field is not what manifest_escape writes. *out NULL with true never
 * happens except without memory, which sets *no_memory. */
bool manifest_unescape(const char *field, size_t length, char **out, bool *no_memory);

/* A name in section train: letters, digits, '.', '_', '-'; 1 to 200 bytes; not "." or "..". */
bool manifest_train_name_ok(const char *name, size_t length);
/* A provenance key: lower-case letters, digits, '.', '_', '-'; 1 to 100 bytes. */
bool manifest_key_ok(const char *key, size_t length);

/* What must be known before the table, and hence the rest of the text, can be read. */
struct manifest_peek {
    bool without_mtp;
    uint64_t config_offset, config_bytes; /* of config.json in index.h5 */
    unsigned char config_sha256[32];
};
int manifest_peek(struct manifest_peek *out, const char *path, const char *text,
    size_t size, struct glm_error *err);

/* Calls fn for each line `file` or `source` that can be read (others are passed over), until it
 * returns non-zero. Needs no table: for saying which part of a damaged index.h5 is damaged. */
void manifest_each_file(const char *text, size_t size,
    int (*fn)(void *ctx, const struct ckpt_file *f), void *ctx);

/* Geometry: whether n pieces of a tensor are each whole tiles and cover it exactly once. The cuts
 * along rows and columns run through all experts, so sorted by rows, columns, experts the pieces
 * form a chain; that makes this a sort and one pass. */
int manifest_cover(const struct ckpt_tensor *t, const struct ckpt_piece *pieces,
    int64_t n, struct glm_error *err);

#endif
