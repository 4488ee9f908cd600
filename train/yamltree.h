/* A small YAML file as a tree: what a recipe needs and no more.
 *
 * libyaml reads the text; this keeps scalars as text with their line. Refused, with the line: more
 * than one document, anchors and aliases (a short text must not stand for a huge one), tags, keys
 * that are not scalars, the same key twice in one map, more than YAMLTREE_MAX_DEPTH levels or
 * YAMLTREE_MAX_NODES nodes, texts above YAMLTREE_MAX_BYTES. */
#ifndef TRAIN_YAMLTREE_H
#define TRAIN_YAMLTREE_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/base/error.h"

enum {
    YAMLTREE_MAX_DEPTH = 16,
    YAMLTREE_MAX_NODES = 1 << 16,
    YAMLTREE_MAX_BYTES = 1 << 20
};

enum yamltree_kind { YAMLTREE_SCALAR, YAMLTREE_LIST, YAMLTREE_MAP };

struct yamltree {
    enum yamltree_kind kind;
    int line;                      /* 1-based */
    bool quoted;                   /* a quoted scalar is text, whatever it looks like */
    char *name;                    /* its key, inside a map */
    char *text;                    /* of a scalar */
    struct yamltree *first, *next; /* children in file order */
};

/* *out is freed with yamltree_free; an empty text gives an empty map. path is for sentences. Failure is
 * GLM_EFORMAT "path:line: …" or GLM_ENOMEM, and *out is NULL. */
int yamltree_parse(struct yamltree **out, const char *path, const char *text, size_t size,
    struct glm_error *err);
void yamltree_free(struct yamltree *n);

const struct yamltree *yamltree_get(const struct yamltree *map, const char *name);
/* An unquoted null, ~ or nothing: as if the key were not there. */
bool yamltree_is_null(const struct yamltree *n);

#endif
