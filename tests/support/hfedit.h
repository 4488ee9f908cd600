/* A Hugging Face directory taken apart and put together wrong: for tests of what is refused.
 *
 * Only headers are real; data is a hole of the right length. Load a directory, change the list of
 * tensors, save: the safetensors files and the index are written anew, in agreement. */
#ifndef TESTS_SUPPORT_HFEDIT_H
#define TESTS_SUPPORT_HFEDIT_H

#include <jansson.h>

#include "convert/safetensors.h"

struct hfedit_tensor {
    char *name;
    int file;
    enum glm_dtype dtype;
    int rank;
    int64_t shape[ST_MAX_RANK];
};

struct hfedit {
    char *dir;
    struct hfedit_tensor *tensors;
    int count;
    char *files[512];
    int file_count;
};

/* All abort the test on failure. */
void hfedit_load(struct hfedit *h, const char *dir);
void hfedit_save(const struct hfedit *h);
void hfedit_clear(struct hfedit *h);
int hfedit_find(const struct hfedit *h, const char *name); /* -1: none */
void hfedit_drop(struct hfedit *h, const char *name);
int hfedit_drop_like(struct hfedit *h, const char *part); /* how many names held it */
/* Replaces `from` by `to` in each name that holds `where` ("" all); how many. */
int hfedit_rename(struct hfedit *h, const char *where, const char *from, const char *to);
void hfedit_add(struct hfedit *h, int file, const char *name, enum glm_dtype dtype,
    int rank, const int64_t *shape);

/* One key of DIR/FILE (JSON) set; value NULL: removed. Takes value over. */
void hfedit_json(const char *dir, const char *file, const char *object, const char *key,
    json_t *value);

#endif
