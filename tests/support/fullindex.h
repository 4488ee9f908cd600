/* A checkpoint of any size without its data: what lists, plans or checks the structure of 1.5 TB can
 * so be tested on a small disk. Digests are made up; reading data fails, as it must. Without shards
 * offsets are made up, too, but agree with each other; with them they are real skeletons over holes. */
#ifndef TESTS_SUPPORT_FULLINDEX_H
#define TESTS_SUPPORT_FULLINDEX_H

#include "ckpt/index.h"
#include "ckpt/volumes.h"

struct fullindex_options {
    const char *config; /* fixtures/configs/<config>.json */
    struct topology topo;
    struct volumes_options volumes;
    bool shards; /* plain ones only */
};

/* dir must exist. */
int fullindex_write(
    const char *dir, const struct fullindex_options *o, struct glm_error *err);

#endif
