/* A model on a hub as a flow source: bytes go from the network into the sink, and nowhere else. */
#ifndef CONVERT_HUBFLOW_H
#define CONVERT_HUBFLOW_H

#include "convert/ends.h"
#include "convert/hub.h"

struct hubflow;

struct hubflow_options {
    struct hub *hub;     /* borrowed */
    struct hf_reader *r; /* over the hub's store; borrowed */
    int connections;     /* files that are fetched at the same time */
    const struct glm_events *events;
};

int hubflow_open(
    struct hubflow **out, const struct hubflow_options *o, struct glm_error *err);
struct flow_source hubflow_source(struct hubflow *f);
void hubflow_close(struct hubflow *f);

#endif
