/* What a run leaves behind about itself, step by step.
 *
 * RUN/metrics.jsonl: a line of JSON for each step, always the same keys in the same order, null where
 * there is nothing to say. Numbers read back bit for bit. RUN/events.out.tfevents.*: the same for
 * TensorBoard. A resumed run takes lines behind its step away, so a file is one run's history. */
#ifndef TRAIN_METRICS_H
#define TRAIN_METRICS_H

#include <stdbool.h>

#include "train/tfevents.h"

/* One step. NaN: null. Losses are means over their tokens (rows); loss is what is minimised. */
struct metrics_row {
    int64_t step, samples, tokens; /* consumed up to and with this step */
    double loss, lm_loss, mtp_loss, indexer_loss;
    double grad_norm, clip; /* clip: the coefficient gradients were multiplied by */
    double lr, weight_decay;
    double step_seconds, tokens_per_second, tflops, mfu; /* mfu: of the peak, 0 to 1 */
    double memory_bytes;
    double eval_loss, eval_perplexity; /* where this step was evaluated */
    double expert_load; /* the fullest expert's tokens over the mean, worst layer */
    double wall_time;   /* seconds since 1970 */
};
/* All numbers NaN, counts 0. */
struct metrics_row metrics_row_empty(void);

struct metric {             /* a number of a row by its name */
    const char *name, *tag; /* in JSON; in TensorBoard, NULL: not there */
    size_t at;
};
extern const struct metric metrics_numbers[]; /* ends with a NULL name */
static inline double metrics_get(const struct metrics_row *r, const struct metric *m)
{
    const void *const at = (const char *)r + m->at;
    return *(const double *)at;
}

struct metrics {
    char *path;
    int fd; /* -1: closed */
    /* bytes of whole lines: a line that does not fit the disk is taken back */
    int64_t end;
    struct tfevents events;
};

/* Opens RUN's files for a run that goes on behind resume_step (0: from the start; a file that is
 * there is begun anew). Lines of later steps, and a cut last line, go. GLM_EFORMAT names a line that
 * is not ours. On failure *m is closed. */
int metrics_open(struct metrics *m, const char *run_dir, int64_t resume_step,
    double wall_time, struct glm_error *err);
/* GLM_EIO (a full disk): the files are as before, or lack this step; a run may go on and warn. */
int metrics_write(
    struct metrics *m, const struct metrics_row *row, struct glm_error *err);
int metrics_close(
    struct metrics *m, struct glm_error *err); /* harmless on a zeroed one */

/* A row as its line, with line feed; returns the length. */
enum { METRICS_LINE = 1024 };
size_t metrics_print(const struct metrics_row *row, char buf[METRICS_LINE]);
/* Reads all lines: RUN/metrics.jsonl, or the file itself. *rows is the caller's to free. A last line
 * without line feed was cut by a crash and is passed over. */
int metrics_read(
    const char *path, struct metrics_row **rows, int64_t *count, struct glm_error *err);

#endif
