/* index.h5 of a checkpoint of any size, without its shards: for what works on the index alone.
 * Offsets and digests are made up, but agree with each other. */
#ifndef TESTS_SUPPORT_FULLINDEX_H
#define TESTS_SUPPORT_FULLINDEX_H

#include "ckpt/index.h"
#include "ckpt/volumes.h"

struct fullindex_options {
    const char *config; /* fixtures/configs/<config>.json */
    struct topology topo;
    struct volumes_options volumes;
};

/* dir must exist. */
int fullindex_write(
    const char *dir, const struct fullindex_options *o, struct glm_error *err);

#endif
