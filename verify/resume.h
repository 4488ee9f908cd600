/* glm-verify resume: do N + M steps in one process and N steps, a save, an exit, a new process and M
 * steps give the same bits?
 *
 * Compared are, at the moment of loading and after each of the M steps, loss and its parts, gradient
 * norm and learning rate, and by tile digests every weight, master, moment, momentum, expert bias and
 * counter. Of the first process only digests are kept. Every process is a child that begins with
 * reading the recipe; the caller must have no threads. */
#ifndef VERIFY_RESUME_H
#define VERIFY_RESUME_H

#include "kernels/base/events.h"
#include "verify/trace.h"

struct resume_options {
    const char *recipe;
    struct recipe_options keys; /* --set, --ignore-key */
    int64_t n, m;               /* 0: half of the recipe's steps, at most 5 */
    const char *dir; /* for checkpoint and digests, kept; NULL: beside the run, removed */
    const struct topology
        *then; /* the checkpoint is resharded to it for the restart; NULL: not */
    int threads;
    const struct glm_events *events;
    /* Called between the two processes with the checkpoint: what is done to it has to be found. */
    int (*between)(void *ctx, const char *ckpt, struct glm_error *err);
    void *between_ctx;
};

struct resume_report {
    int64_t n, m;
    struct trace_counts counts;
    struct trace_difference difference;
    double seconds;
};

/* GLM_OK: the same bits. GLM_EMISMATCH names the first difference, or says why the second process
 * would not go on. */
int resume_run(
    struct resume_report *report, const struct resume_options *o, struct glm_error *err);

#endif
