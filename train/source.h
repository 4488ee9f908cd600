/* One source of a dataset: a part of one token file, cut into samples. */
#ifndef TRAIN_SOURCE_H
#define TRAIN_SOURCE_H

#include "train/dataset.h"
#include "train/packing.h"
#include "train/permute.h"

enum { SOURCE_STEP = 32 };

struct source {
    struct tokens file;
    /* outlives it; sources and split are not looked at */
    const struct dataset_options *o;
    int64_t lo, hi; /* documents of the part */
    int64_t tokens, skipped, samples, rows;
    char name[DIGEST_HEX + 8]; /* of its random streams */
    struct packs packs;        /* packed only */
    /* The order of documents now laid out: for stream of `epoch`, for packs always of epoch 0. */
    int64_t epoch;
    struct permutation order;
    /* stream: tokens before every SOURCE_STEP-th document of the order */
    int64_t *before;
};

int source_open(struct source *s, const char *path, const char *split,
    const struct dataset_options *o, struct glm_error *err);
void source_close(struct source *s); /* harmless on a zeroed one */
/* Sample `number` of an epoch's cut, as it lies: the caller has permuted. */
int source_fill(struct source *s, int64_t epoch, int64_t number, struct sample *out,
    struct glm_error *err);
/* The place in the epoch's cut that sample `local` (counted over epochs) takes. */
void source_locate(
    const struct source *s, int64_t local, int64_t *epoch, int64_t *number);

#endif
