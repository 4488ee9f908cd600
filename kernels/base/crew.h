/* N threads over numbered jobs, taken in ascending order; results handed over in that order.
 *
 * What comes out does not depend on the thread count: `done` is called for 0, 1, 2, ... one at a
 * time, and of several failures the one of the lowest job is kept. */
#ifndef KERNELS_BASE_CREW_H
#define KERNELS_BASE_CREW_H

#include <stdint.h>

#include "kernels/base/error.h"
#include "kernels/base/events.h"

struct crew {
    int threads; /* below 1: 1 */
    int64_t count;
    void *ctx;
    const struct glm_events *events; /* only its stop flag is looked at */
    /* One thread's own state: buffers. NULL without an error set counts as out of memory. */
    void *(*start)(void *ctx, struct glm_error *err);
    void (*stop)(void *state);
    int (*work)(void *ctx, void *state, int64_t job, struct glm_error *err);
    void (*done)(void *ctx, int64_t job); /* in order, under one lock; may be NULL */
};

int crew_run(const struct crew *c, struct glm_error *err);

#endif
