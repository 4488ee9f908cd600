/* What a run computes with, made from a recipe: everything is allocated here, once. */
#ifndef TRAIN_TRAINER_H
#define TRAIN_TRAINER_H

#include "kernels/base/events.h"
#include "train/feed.h"
#include "train/flops.h"
#include "train/model.h"
#include "train/optimizer.h"
#include "train/recipe.h"
#include "train/schedule.h"
#include "train/state.h"
#include "train/wholestep.h"

struct trainer {
    const struct recipe *recipe;
    const struct kernels *k;
    glm_stream stream;
    struct table *table;
    bool without_mtp;
    struct params *params;
    struct muon_layout *layout; /* [recipe's layouts, or one] */
    struct optimizer *optimizer;
    struct model_param *model_params;
    struct model *model;
    /* [layers, MTP layer last] row of the router's bias; -1: dense layer */
    int64_t *bias_row;
    int64_t *
        *load; /* [layers] where the tokens of its experts are counted; NULL: dense */
    int64_t *routed; /* [most experts] one of them on the host */
    int64_t layers;
    struct wholestep whole;
    struct schedule schedule;
    struct feed *feed, *valid; /* valid: NULL if the recipe never evaluates */
    struct feed_batch batch;
    struct flops_options flops;
    struct state state;
    struct origin origin;
};

struct trainer_options {
    int threads;
    bool train; /* optimizer and training data; else only what an evaluation wants */
    const struct glm_events *events; /* NULL: nobody is told that auto went by a GPU */
};

/* Weights are undefined until trainer_start. On failure *t is as if closed. */
int trainer_open(struct trainer *t, const struct recipe *r,
    const struct trainer_options *o, struct glm_error *err);
void trainer_close(struct trainer *t); /* harmless on a zeroed one */

/* Weights as the recipe begins: its checkpoint, or random. */
int trainer_start(struct trainer *t, struct glm_error *err);
/* The whole state of a checkpoint of this run. */
int trainer_resume(struct trainer *t, const char *ckpt, const struct glm_events *events,
    struct glm_error *err);
/* Weights alone. */
int trainer_weights(struct trainer *t, const char *ckpt, struct glm_error *err);

#endif
