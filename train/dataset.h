/* Training samples from token datasets: sample i, asked for by its number alone.
 *
 * A dataset is a weighted blend of sources, each a part (train, valid, test) of the documents of one
 * token file. Sample i is a function of the files, the options and i; nothing is drawn, nothing is
 * carried from sample to sample, so the position of a run is one number.
 *
 *   stream     The documents of an epoch are laid one after the other, in an order of that epoch's,
 *              and cut every `length` tokens: length + 1 tokens give `length` rows, the last token is
 *              the first of the next cut, what is left at the end is dropped. One sequence a sample.
 *   documents  Whole documents are packed into packs of `length` rows (packing.h); what is packed
 *              with what depends on the seed, the order of the packs on the epoch too. Each document
 *              is a sequence, labels never cross documents, positions restart. Rows that stay empty
 *              are the pack's last sequence: id 0, label 0, mask 0.
 *
 * Empty documents are legal and add nothing. A source in which not one sample fits is refused. */
#ifndef TRAIN_DATASET_H
#define TRAIN_DATASET_H

#include <stdbool.h>
#include <stdint.h>

#include "train/tokens.h"

enum dataset_packing { PACKING_STREAM, PACKING_DOCUMENTS };
enum dataset_part { PART_TRAIN, PART_VALID, PART_TEST };
enum { DATASET_PARTS = 3, DATASET_MAX_LENGTH = 1 << 26 };

struct dataset_source {
    const char *path;
    const char *weight; /* a decimal; NULL in all sources: by their number of samples */
};

struct dataset_options {
    const struct dataset_source *sources;
    int source_count;
    int64_t length; /* rows of a sample */
    int64_t vocab;  /* ids are held below it when they are read; 0: any */
    uint32_t seed;
    enum dataset_packing packing;
    enum dataset_part part;
    /* "969,30,1": shares of the documents, in their stored order; NULL: all train */
    const char *split;
    /* no loss where the row's token is `end` (Megatron's eod_mask_loss) */
    bool mask_after_end;
    int32_t end;
};

struct dataset; /* one thread at a time */

/* One sample; buffers of `length` elements that sample_init makes. */
struct sample {
    int64_t length;
    int32_t *tokens, *labels; /* labels[r] follows tokens[r] in its document */
    uint8_t *loss_mask;       /* 1: the row's loss counts */
    int32_t *positions;       /* 0 at the first row of each sequence */
    int32_t *cu_seqlens; /* [sequences + 1], room for length + 1; the last is `length` */
    int32_t sequences;   /* with the empty rows' */
    int64_t rows;        /* that are filled; the rest are empty */
    /* where it comes from */
    int source;
    int64_t epoch, number; /* of the source; the place in that epoch's cut */
};

int sample_init(struct sample *s, int64_t length, struct glm_error *err);
void sample_clear(struct sample *s); /* harmless on a zeroed one */

int dataset_open(
    struct dataset **out, const struct dataset_options *o, struct glm_error *err);
void dataset_close(struct dataset *ds); /* NULL: nothing */

/* Fills *s with sample `index` >= 0; allocates nothing. s->length must be the dataset's. */
int dataset_sample(
    struct dataset *ds, int64_t index, struct sample *s, struct glm_error *err);
/* Where sample `index` comes from, without reading it. */
void dataset_locate(const struct dataset *ds, int64_t index, int *source, int64_t *epoch,
    int64_t *number);

/* Samples until every source of the blend has been through at least once; with one source its epoch. */
int64_t dataset_epoch(const struct dataset *ds);

/* SHA-256 over what sample i depends on: files, weights, order, options. vocab is not part of it. */
void dataset_fingerprint(const struct dataset *ds, unsigned char out[DIGEST_SIZE]);

struct dataset_report {
    const char *path;
    int64_t weight;            /* of the sum of all sources' */
    int64_t documents, tokens; /* of the part */
    int64_t skipped; /* documents that give no row: empty; packed: of one token too */
    int64_t samples, rows; /* of an epoch; rows that are filled */
};
int dataset_sources(const struct dataset *ds);
struct dataset_report dataset_report(const struct dataset *ds, int source);

/* Documents [lo, hi) of a part. Borders: the shares' sums, rounded half up to whole documents. */
int dataset_split(const char *split, int64_t documents, enum dataset_part part,
    int64_t *lo, int64_t *hi, struct glm_error *err);
const char *dataset_part_name(enum dataset_part part);

#endif
