/* Between numerics.c, which runs the model, and numerics_compare.c, which looks at what came. */
#ifndef VERIFY_NUMERICS_INSIDE_H
#define VERIFY_NUMERICS_INSIDE_H

#include "verify/golden.h"
#include "verify/numerics.h"

struct numerics {
    const struct numerics_options *o;
    const struct golden *g;
    const struct table *table;
    const struct model_param *params; /* the host's */
    const struct kernels *k;
    glm_stream stream;
    struct model_param *there; /* where the model runs; the host's own on the host */
    struct model *m;
    struct model_batch batch;
    const char *reference; /* of the run */
    bool both;             /* MTP and the indexer's loss are on */
    bool replay;
    struct numerics_report *report;
    struct glm_error *err;
};

int numerics_missing(const struct numerics *r, const char *array);
int64_t numerics_elements(const struct table_entry *e);
struct home numerics_home(const struct numerics *r);

/* Each adds rows. After forward: */
int numerics_sets(struct numerics *r);
int numerics_logits(struct numerics *r);
/* After backward: */
int numerics_losses(struct numerics *r);
int numerics_gradients(struct numerics *r);

#endif
