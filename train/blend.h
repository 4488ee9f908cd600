/* Which of several datasets serves sample i: exact integers, no state but i.
 *
 * Weights w_d become integers with sum W. The order repeats after W samples, in which dataset d is
 * served exactly w_d times. Inside, the j-th turn of d may not come before floor(j W / w_d) nor after
 * ceil((j+1) W / w_d) - 1, and of those that may come the one that must come first is served (ties:
 * the lower number). For one server and unit jobs that rule meets every such deadline, so after any
 * n samples the count of d differs from n w_d / W by less than 1. */
#ifndef TRAIN_BLEND_H
#define TRAIN_BLEND_H

#include <stdint.h>

#include "kernels/base/error.h"

enum { BLEND_MAX_SOURCES = 1024, BLEND_MAX_PERIOD = 1 << 20 };

struct blend {
    int count;
    int64_t period;   /* W */
    int64_t *weight;  /* [count], sum W */
    uint16_t *source; /* [period] */
    int32_t *rank;    /* [period]: turns of that source before this one in the period */
};

/* Decimals ("0.3", "2", "1e-3" is refused) to integers of the same proportions: exactly if the
 * smallest such integers have a sum of at most BLEND_MAX_PERIOD, else to that sum by largest
 * remainders. A weight of 0 is refused. */
int blend_weights(
    const char *const *text, int count, int64_t *out, struct glm_error *err);
/* The same for integers of any size: reduced in place. */
int blend_reduce(int64_t *weight, int count, struct glm_error *err);

int blend_init(struct blend *b, const int64_t *weight, int count, struct glm_error *err);
void blend_clear(struct blend *b); /* harmless on a zeroed one */
/* The source of sample `index` >= 0; *local: how many samples it has served before. */
int blend_at(const struct blend *b, int64_t index, int64_t *local);

#endif
