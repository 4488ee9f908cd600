/* The checkpoints of a run: written before training goes on, or beside it (async_save).
 *
 * Beside: a copy of the state is taken (snapshot.h), which is all that training waits for; a thread
 * writes it. One save is on its way at a time: the next one waits for it. A checkpoint has a name
 * only when it is whole, so a process that dies with a save on its way leaves what it leaves when it
 * dies in the middle of any save. Functions are for the thread that trains. */
#ifndef TRAIN_SAVER_H
#define TRAIN_SAVER_H

#include <pthread.h>

#include "train/rundir.h"
#include "train/snapshot.h"

struct saver {
    struct rundir *dir; /* borrowed, as state is */
    struct state *state;
    struct state_save how; /* path is set for each save */
    int64_t keep_last;
    void (*saved)(void *ctx, const char *path, double seconds, double waited);
    void *ctx;
    struct snapshot *copy; /* NULL: before training goes on */
    /* The save on its way: */
    bool under_way, joined;
    bool done; /* atomic */
    pthread_t thread;
    int64_t step;
    char *path;
    double start, waited, seconds;
    struct glm_error err;
};

/* GLM_ENOMEM: no room for a copy; saver_save then writes before training goes on. */
int saver_beside(struct saver *s, const struct home *home, struct glm_error *err);
/* The save on its way has ended, well or not: saver_wait will not wait. */
bool saver_done(const struct saver *s);
/* Waits for the save on its way, if there is one, and takes it into the run's list. Its failure is
 * this call's. */
int saver_wait(struct saver *s, struct glm_error *err);
/* Saves the state's step, unless the run has it, and waits only without a copy. No save may be on
 * its way. */
int saver_save(struct saver *s, struct glm_error *err);
void saver_close(struct saver *s); /* waits; harmless on a zeroed one */

#endif
