/* A copy of the training state on the host, to be saved while training goes on.
 *
 * Memory is taken once, for the whole state: on a GPU page-locked, so that a copy runs at the speed
 * of the bus. The copy is a state like any other to state_check and state_save; nothing else may be
 * done with it. */
#ifndef TRAIN_SNAPSHOT_H
#define TRAIN_SNAPSHOT_H

#include "train/state.h"

struct snapshot {
    struct state
        state; /* its tensors lie in memory; seed, texts and the rest are the original's */
    void *memory;
    size_t bytes;
    struct home home;
};

/* GLM_ENOMEM says how much is needed and how much there is: the state would not fit with a tenth of
 * the machine's memory to spare. `like` must outlive it. */
int snapshot_new(struct snapshot **out, const struct state *like, const struct home *home,
    struct glm_error *err);
void snapshot_free(struct snapshot *s); /* NULL is harmless */
/* Returns when every byte is there. */
int snapshot_take(struct snapshot *s, const struct state *from, struct glm_error *err);

#endif
