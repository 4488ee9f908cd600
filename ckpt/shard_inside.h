/* What shard.c and shard_packed.c share. Private. Called under the lock of h5error.h. */
#ifndef CKPT_SHARD_INSIDE_H
#define CKPT_SHARD_INSIDE_H

#include <hdf5.h>

#include "ckpt/shard.h"

enum { SHARD_NAME = 512 };

int shard_dataset_name(
    const struct ckpt_tensor *t, char name[SHARD_NAME], struct glm_error *err);
/* A new file with every dataset of the shard, in manifest order. Negative: err says why. */
hid_t shard_new_file(
    const struct manifest *m, int64_t no, const char *path, struct glm_error *err);
/* Gives every plain piece of the shard its room, in manifest order. The file is closed. */
int shard_allocate_all(
    struct manifest *m, int64_t no, const char *path, struct glm_error *err);
int shard_length(const char *path, uint64_t *bytes, struct glm_error *err);

#endif
