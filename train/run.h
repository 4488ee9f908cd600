/* A training run, from a recipe to its checkpoints: glm-train's one call.
 *
 * Starts at a checkpoint, at random weights, or, with resume, at the newest checkpoint of the run;
 * saves every so many steps, when asked to stop, and at the end. A step is one update of every
 * parameter: micro-batches add up gradients of sums, one division by the step's targets follows
 * (spec/training.md 5). The same recipe gives the same bits, interrupted or not.
 *
 * Asked to stop (events->stop) it drops the step it is in, saves the last whole one and returns 0
 * with report.stopped. A loss or gradient that is not a number: GLM_EMISMATCH that names the first
 * tensor, nothing is saved. A save that fails for want of space is a note, and training goes on,
 * unless it is the last one. */
#ifndef TRAIN_RUN_H
#define TRAIN_RUN_H

#include "kernels/base/events.h"
#include "train/recipe.h"
#include "train/state.h"

struct train_options {
    const char *run_dir;   /* NULL: the recipe's */
    const char *eval_only; /* a checkpoint: its validation loss, nothing is trained */
    bool resume, take_lease;
    int threads;               /* 0: 1 */
    int64_t stop_at;           /* after this step, saved; 0: the recipe's last */
    double stop_after_seconds; /* 0: never */
    double peak_tflops;        /* of the device, for MFU; 0: not known */
    bool no_save;              /* nothing is written but metrics */
    bool no_metrics;           /* no metrics.jsonl, no event file */
};

struct train_step {          /* what a step was like */
    int64_t step, steps;     /* of the run */
    int64_t samples, tokens; /* since its beginning */
    int64_t rows, targets;   /* of the step */
    double loss; /* what is minimised: lm + coeff mtp + coeff sum of KL, per target */
    double lm, mtp,
        indexer; /* per target; KL per row, mean over the layers that have an indexer.
                    lm NaN: a stage without, or a step without targets */
    bool mtp_on, indexer_on; /* whether there are such losses */
    double norm, clip, lr, weight_decay;
    /* the fullest expert's tokens over the mean, worst layer; NaN: none */
    double expert_load;
    double seconds, tokens_per_second;
    double tflops, mfu; /* NaN: not known */
    double left_seconds;
    uint64_t memory_bytes; /* resident */
};

struct train_eval {
    int64_t step, samples, targets;
    double loss, perplexity, seconds;
};

struct train_watch {
    void *ctx;
    void (*step)(void *ctx, const struct train_step *s);
    void (*eval)(void *ctx, const struct train_eval *e);
    /* waited: what training waited for of the seconds. */
    void (*saved)(void *ctx, const char *path, double seconds, double waited);
    /* The state before the first step of this process (s NULL) and after each. */
    int (*state)(void *ctx, const struct state *state, const struct train_step *s,
        struct glm_error *err);
};

struct train_report {
    /* where this process began, where it ended, the recipe's last */
    int64_t first, step, steps;
    int stopped;     /* signal that asked for it; 0 */
    const char *why; /* of an early end: "signal", "time", "exit_interval"; NULL */
    double first_loss, last_loss; /* of this process; NaN without a step */
    struct train_eval eval;       /* the last one; targets 0: none */
    double seconds;
    char checkpoint[4096]; /* the newest of the run, "" if there is none */
};

/* watch, events may be NULL. */
int train_run(const struct recipe *r, const struct train_options *o,
    const struct train_watch *watch, const struct glm_events *events,
    struct train_report *report, struct glm_error *err);

#endif
