/* The hub's JSON: what commit a revision is, and the list of files of a commit. Hostile input. */
#ifndef CONVERT_HUBTREE_H
#define CONVERT_HUBTREE_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/base/error.h"

enum {
    HUBTREE_PAGE = 4 << 20,
    HUBTREE_FILES = 100000,
    HUBTREE_PATHS = 16 << 20,
    HUBTREE_COMMIT = 65
};

struct hubtree_file {
    char *path; /* as the hub names it; slashes between folders */
    uint64_t size;
    char digest[65]; /* of the content: 64 digits SHA-256, 40 git's SHA-1, "" not said */
};

struct hubtree {
    struct hubtree_file *files;
    int64_t count, room;
    size_t path_bytes;
};

/* Adds the files of one page; folders are left out. what: for sentences. */
int hubtree_page(struct hubtree *t, const char *what, const char *text, size_t size,
    struct glm_error *err);
/* After the last page: sorted by path; a name that is there twice, or twice but for the case of
 * its letters, or that leads out of a folder, is refused. */
int hubtree_check(struct hubtree *t, const char *what, struct glm_error *err);
void hubtree_clear(struct hubtree *t);
const struct hubtree_file *hubtree_find(const struct hubtree *t, const char *path);

/* The commit id in the answer about a revision: 40 (or 64) hex digits. */
int hubtree_commit(const char *what, const char *text, size_t size,
    char commit[HUBTREE_COMMIT], struct glm_error *err);

#endif
