/* A model on a hub as a flow source by way of whole files on disk: for --keep, and for outputs that
 * must be written in an order of their own, or made of weights and scales that lie apart. */
#ifndef CONVERT_HUBKEEP_H
#define CONVERT_HUBKEEP_H

#include "convert/ends.h"
#include "convert/hub.h"

struct hubkeep;

struct hubkeep_options {
    struct hub *hub;     /* borrowed */
    struct hf_reader *r; /* over the hub's store; borrowed */
    const char
        *folder; /* NULL: in the unfinished checkpoint, until the files were read */
    int connections;
    const struct glm_events *events;
};

int hubkeep_open(
    struct hubkeep **out, const struct hubkeep_options *o, struct glm_error *err);
struct flow_source hubkeep_source(struct hubkeep *k);
void hubkeep_close(struct hubkeep *k);

#endif
