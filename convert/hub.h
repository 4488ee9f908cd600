/* One commit of a model repository on a Hugging Face hub, as a store of files (hfdir.h).
 *
 * Small files and headers are fetched when asked for and checked against the digest that the hub
 * lists; files that the hub's own client has in its cache are used where they lie and never
 * written. Data files flow in through hubflow.h or hubkeep.h. */
#ifndef CONVERT_HUB_H
#define CONVERT_HUB_H

#include "convert/hfdir.h"
#include "convert/hubnet.h"
#include "convert/hubtree.h"

struct hub;

struct hub_options {
    const char *spec; /* hf://OWNER/NAME[@REVISION] */
    uint64_t limit_rate;
    int stall_s, retries;
    const struct glm_events *events;
};

struct hub_file {
    const struct hubtree_file *listed;
    char *what; /* hf://OWNER/NAME/PATH, for sentences */
    char *url;
    char *link;  /* hubnet's, of the moving thread */
    char *local; /* in the cache of the hub's client, or NULL */
};

/* Resolves the revision and reads the list of files. */
int hub_open(struct hub **out, const struct hub_options *o, struct glm_error *err);
void hub_close(struct hub *h);

/* With HF_HUB_OFFLINE: *folder (malloc'd) is the snapshot in the cache that stands for spec. NULL
 * if the network may be used. */
int hub_offline(const char *spec, char **folder, struct glm_error *err);

const struct hf_store *hub_store(const struct hub *h);
const char *hub_name(const struct hub *h);   /* hf://OWNER/NAME */
const char *hub_repo(const struct hub *h);   /* OWNER/NAME */
const char *hub_commit(const struct hub *h); /* 40 digits */
struct hubnet *hub_net(const struct hub *h);

struct flow_sink;
/* Writes once into an unfinished checkpoint's journal which commit it is of:
 *     from hf://OWNER/NAME@COMMIT */
int hub_sign(const struct hub *h, const struct flow_sink *sink, struct glm_error *err);
/* After GLM_EUSAGE: if `out` holds unfinished work of another commit of this repository, the
 * sentence says what to type to finish it. */
void hub_moved(const struct hub *h, const char *out, struct glm_error *err);
struct hub_file *hub_find(const struct hub *h, const char *name);

#endif
