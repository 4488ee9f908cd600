/* One row of operations per backend. */
#ifndef KERNELS_KERNELS_H
#define KERNELS_KERNELS_H

#include "kernels/ops.h"

struct kernels {
    const char *name; /* "cpu", "cuda" */
#define KERNELS_MEMBER(op) op##_fn *op;
    OPS(KERNELS_MEMBER)
#undef KERNELS_MEMBER
    /* The pool of n threads (CPU) or a CUDA stream. NULL with a sentence on failure. */
    glm_stream (*stream_new)(int threads, struct glm_error *err);
    void (*stream_free)(glm_stream stream);
    int (*stream_wait)(glm_stream stream, struct glm_error *err);
};

/* NULL if this build does not have it. */
const struct kernels *kernels_find(const char *name);

#endif
