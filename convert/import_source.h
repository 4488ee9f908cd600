/* Where glm-import reads from: a folder, or a hub. */
#ifndef CONVERT_IMPORT_SOURCE_H
#define CONVERT_IMPORT_SOURCE_H

#include "convert/build.h"
#include "convert/hub.h"
#include "convert/target.h"

struct import_source { /* zero it first; closing is harmless at any time */
    char *folder;      /* HF_HUB_OFFLINE: the snapshot that is read */
    struct hub *hub;   /* NULL: a folder */
    struct hf_source *s;
    struct hf_reader *r;
    struct hubflow *flow;
    struct hubkeep *keep;
    struct flow_source source;
};

/* Opens the model and checks it against the table; nothing but headers and side files is read. */
int import_source_open(struct import_source *in, const struct import_options *o,
    const struct target_form *form, const struct glm_events *events,
    struct glm_error *err);
/* Adds to the plan what decides the content. */
int import_source_plan(
    const struct import_source *in, struct build *b, struct glm_error *err);
/* Repository and revision for the provenance; revision may be "". */
void import_source_origin(const struct import_source *in, char *repo, size_t repo_room,
    char *revision, size_t revision_room);
/* Seconds that reading and hashing will take at least; 0: not known. */
double import_source_estimate(const struct import_source *in, int threads);
void import_source_close(struct import_source *in);

#endif
