/* A step as one piece of work: gradients to zero, every micro-batch forward and backward, norm,
 * clipping, the update. It is queued without a look in between: what the host knows (tokens, rates)
 * lies with the backend before it, losses and norm are read behind it, and the operations themselves
 * change nothing when one of these is not a number (optimizer.h).
 *
 * On a backend that can record (kernels.h) the second step in a row of the same shapes is recorded and
 * replayed, and all that follow replay it. Shapes are the numbers of tokens and
 * sequences of each micro-batch and the losses' scales. A step of other shapes is launched, operation
 * by operation; two of them in a row take the recording's place. So packed documents, whose number
 * differs from step to step, are launched. The bits are the same either way. */
#ifndef TRAIN_WHOLESTEP_H
#define TRAIN_WHOLESTEP_H

#include "kernels/base/events.h"
#include "train/model.h"
#include "train/optimizer.h"

struct wholestep {
    /* Set by the owner. model was made for as many parts. */
    struct model *model;
    struct params *params;
    struct optimizer *optimizer;
    const struct kernels *k;
    glm_stream stream;
    int64_t **
        load; /* [layers, MTP layer last] where tokens of experts are counted; NULL: not */
    bool ahead;  /* as model was made: all parts are placed before the first is queued */
    bool record; /* steps may be recorded, which takes `ahead` */
    /* Its own. */
    struct wholestep_shape {
        int64_t *rows; /* [2 parts] tokens, sequences */
        int64_t parts;
        struct model_scale scale;
    } last, recorded;
    void *recording;
    int64_t replays;
    char why[256]; /* why a step could not be recorded, "" if none was refused */
};

void wholestep_clear(struct wholestep *w); /* harmless on a zeroed one */

/* Runs it and waits. Losses: model_losses_of each part; norm, and whether there was an update:
 * optimizer_end. Parts without tokens are left out. GLM_ESTOPPED: asked to stop between launched
 * micro-batches; nothing but gradients has changed, nor on any failure. */
int wholestep_run(struct wholestep *w, struct model_batch *part, int64_t parts,
    const struct model_scale *scale, const struct optimizer_step *rates,
    const struct glm_events *events, struct glm_error *err);

#endif
