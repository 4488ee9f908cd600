/* One step: micro-batches forward and backward, then one update of every parameter. */
#ifndef TRAIN_STEP_H
#define TRAIN_STEP_H

#include "train/run.h"
#include "train/trainer.h"

/* Fills what the step itself knows of *out: counts, losses, norm, rates; the state goes on by one.
 * GLM_ESTOPPED: asked to stop; nothing has changed, nor on any failure before the update.
 * GLM_EMISMATCH: a loss or a gradient is not a number, the first tensor named. flops: of the step. */
int step_run(struct trainer *t, struct train_step *out, uint64_t *flops,
    const struct glm_events *events, struct glm_error *err);

#endif
