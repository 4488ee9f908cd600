/* Two runs of elements held against each other. Pure. */
#ifndef VERIFY_COMPARE_H
#define VERIFY_COMPARE_H

#include "verify/diff.h"

void compare_init(struct diff_stats *s);
void compare_merge(struct diff_stats *sum, const struct diff_stats *part);

struct compare {
    const struct diff_options *o;
    enum glm_dtype dtype; /* of both, or of the ULP that float32 numbers are counted in */
    bool numbers;         /* the runs are float32 values of tensors whose types differ */
};

/* n elements; linear: index of the first in the tensor. */
void compare_run(const struct compare *c, const void *a, const void *b, int64_t n,
    int64_t linear, struct diff_stats *s);

#endif
