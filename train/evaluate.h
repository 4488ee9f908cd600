/* The loss on the validation part: the same samples every time, nothing is trained. */
#ifndef TRAIN_EVALUATE_H
#define TRAIN_EVALUATE_H

#include "train/run.h"
#include "train/trainer.h"

/* eval_iters global batches, at most one epoch, through t's model and its batch buffers. */
int evaluate_run(struct trainer *t, struct train_eval *out,
    const struct glm_events *events, struct glm_error *err);

#endif
