/* What a training process was like, in a file: per step its numbers and the digests of all tiles.
 *
 * 32 bytes per tile and step, so a run can be held against another one without its state.
 *
 *     names     lines of section, name, and per axis dimension, tile, tiles; an empty line
 *     records   step, loss, lm, mtp, indexer, norm, lr (8 bytes each), then the tiles' digests in
 *               the order of the names; the state before the first step has zeros for numbers */
#ifndef VERIFY_TRACE_H
#define VERIFY_TRACE_H

#include <stdio.h>

#include "train/train.h"

enum { TRACE_NUMBERS = 6 };
extern const char *const trace_number_names[TRACE_NUMBERS];

struct trace_writer {
    FILE *file;
    char *path;
    int64_t from; /* records of earlier steps are left out */
    unsigned char *digests;
    int64_t tiles;
};

int trace_create(
    struct trace_writer *w, const char *path, int64_t from, struct glm_error *err);
/* The state after a step, or before the first one (s NULL). */
int trace_add(struct trace_writer *w, const struct state *state,
    const struct train_step *s, struct glm_error *err);
int trace_finish(
    struct trace_writer *w, struct glm_error *err); /* harmless on a zeroed one */

struct trace_difference {
    bool found;
    int64_t step;
    bool loaded;   /* in the state as it was loaded, before a step */
    char what[64]; /* "loss", …; "" for a tensor */
    double a, b;   /* of a number */
    char tensor[256], section[32];
    int64_t tile;
    struct tile_grid grid;
    struct rect at;  /* elements of the tile */
    int64_t tensors; /* that differ at that step */
};

struct trace_counts {
    int64_t records, tensors, tiles;
};

/* b's records, which may begin later, against a's of the same steps. Differences are data;
 * GLM_EMISMATCH is that the two do not list the same tensors. */
int trace_compare(const char *a, const char *b, struct trace_difference *d,
    struct trace_counts *counts, struct glm_error *err);

#endif
