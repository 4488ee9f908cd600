/* A flow between arrays: what engine and conversions do, without files. */
#ifndef TESTS_SUPPORT_MEMFLOW_H
#define TESTS_SUPPORT_MEMFLOW_H

#include "convert/flow.h"

struct memflow { /* one end; zero it first */
    const struct manifest *m;
    unsigned char **data; /* [tensor]: all its elements, row-major */
    unsigned char **done; /* [tensor][tile]: how often it was put */
    int64_t puts;
    /* For tests, may be NULL: called before a put or read counts. */
    int (*before)(
        void *ctx, int64_t tensor, const struct rect *at, struct glm_error *err);
    void *ctx;
    pthread_mutex_t lock;
};

/* m stays the caller's. Elements are zero. */
void memflow_init(struct memflow *f, const struct manifest *m);
void memflow_clear(struct memflow *f);
struct flow_source memflow_source(struct memflow *f);
struct flow_sink memflow_sink(struct memflow *f, bool whole_width);

#endif
