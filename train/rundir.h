/* A run's folder: its checkpoints by step, who works there, what may go.
 *
 *     RUN/step-000000010     committed checkpoints
 *         latest             name of the newest, a hint that may lag
 *         run.partial/       the lease of the process that trains here (ckpt/work.h)
 *         metrics.jsonl ...
 *
 * One process trains in a folder at a time. A checkpoint that has to go is renamed first, so that
 * what is half removed has no checkpoint's name. */
#ifndef TRAIN_RUNDIR_H
#define TRAIN_RUNDIR_H

#include "ckpt/ckpt.h"

struct rundir {
    char *path;
    struct work *lease;
    int64_t *step; /* committed, ascending */
    int64_t steps;
};

/* Creates the folder if need be, takes the lease, lists the checkpoints, removes what killed saves
 * left. GLM_EUSAGE: another process trains here. */
int rundir_open(
    struct rundir *d, const char *path, bool take_lease, struct glm_error *err);
void rundir_close(struct rundir *d); /* harmless on a zeroed one */

/* The folder and those above it. */
int rundir_create(const char *path, struct glm_error *err);

/* "RUN/step-000000010", malloc'd; NULL: no memory (err set). */
char *rundir_name(const struct rundir *d, int64_t step, struct glm_error *err);
int64_t rundir_latest(const struct rundir *d); /* -1: none */
bool rundir_has(const struct rundir *d, int64_t step);
/* A checkpoint of this step has been committed: says so in `latest`, and removes all but the newest
 * `keep` (0: none is removed). */
int rundir_committed(struct rundir *d, int64_t step, int64_t keep, struct glm_error *err);
/* Removes RUN/NAME.partial of a save that failed. */
void rundir_discard(const struct rundir *d, int64_t step);

#endif
