/* What a step of training consumes: the samples of its number, packed into micro-batches.
 *
 * Sample i is a function of recipe and i alone (train/dataset.h), so the position of a run is one
 * number. The rows that packing left empty are not handed on: nothing is computed on them, and they
 * do not count as tokens of an expert. With mock_data tokens come from a generator. */
#ifndef TRAIN_FEED_H
#define TRAIN_FEED_H

#include "train/dataset.h"
#include "train/model.h"
#include "train/recipe.h"

struct feed;

struct feed_batch { /* of one step; buffers sized by feed_batch_init */
    /* samples of it, of a micro-batch; samples is a multiple of micro */
    int64_t samples, micro;
    int64_t length;           /* rows of a sample */
    struct model_batch *part; /* [parts] */
    int64_t parts;
    int64_t rows, targets, mtp_targets; /* of all parts; targets that count */
    int32_t *memory;
    struct sample one;
};

/* part: PART_TRAIN, or PART_VALID for evaluations (GLM.eval, else the split). *out is freed with
 * feed_close, NULL on failure. */
int feed_open(struct feed **out, const struct recipe *r, enum dataset_part part,
    struct glm_error *err);
void feed_close(struct feed *f);
int64_t feed_epoch(const struct feed *f); /* samples; INT64_MAX for mock data */
void feed_fingerprint(const struct feed *f, unsigned char out[DIGEST_SIZE]);

int feed_batch_init(struct feed_batch *b, int64_t samples, int64_t micro, int64_t length,
    struct glm_error *err);
void feed_batch_clear(struct feed_batch *b); /* harmless on a zeroed one */
/* Samples [first, first + count) of the feed, count <= b->samples; the last micro-batch may be
 * smaller. Allocates nothing. */
int feed_fill(struct feed *f, int64_t first, int64_t count, struct feed_batch *b,
    struct glm_error *err);

#endif
