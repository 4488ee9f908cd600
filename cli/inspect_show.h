/* What glm-inspect prints: each view for people and, the same facts, as JSON. */
#ifndef CLI_INSPECT_SHOW_H
#define CLI_INSPECT_SHOW_H

#include "cli/jsonout.h"
#include "verify/verify.h"

struct show {
    struct inspect *in;
    const char *path;
    struct jsonout *json; /* NULL: for people */
    bool ascii;           /* bars of '#' instead of blocks */
    int threads;
    const struct glm_events *events;
};

int show_summary(const struct show *s, struct glm_error *err);
int show_tree(const struct show *s, struct glm_error *err);
int show_topology(const struct show *s, struct glm_error *err);
int show_provenance(const struct show *s, struct glm_error *err);
/* slice NULL: statistics and histogram only. */
int show_tensor(const struct show *s, const char *section, const char *name,
    const char *slice, struct glm_error *err);

/* The table of a training run, or json's keys; svg: also a picture of its curves, or NULL. */
int show_metrics(
    struct jsonout *json, const char *run, const char *svg, struct glm_error *err);

/* "1,234,567"; returns buf. */
const char *show_count(int64_t n, char *buf, size_t size);
const char *show_shape(int rank, const int64_t *shape, char *buf, size_t size);

#endif
