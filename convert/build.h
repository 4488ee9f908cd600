/* What the commands that write a checkpoint have in common: table, side files, provenance, plan
 * digest, the run, the report. */
#ifndef CONVERT_BUILD_H
#define CONVERT_BUILD_H

#include "convert/convert.h"
#include "convert/ends.h"
#include "convert/recode.h"
#include "convert/target.h"

struct build { /* a checkpoint in the making; zero it first */
    struct table *table;
    struct manifest *m; /* handed to the writer by build_run */
    char *config;       /* text of config.json to store */
    size_t config_size;
    void **kept; /* bytes of side files, freed by build_clear */
    int64_t kept_count;
    struct digest *plan; /* running digest of all that decides the output */
    enum ckpt_encoding encoding;
};

int build_begin(struct build *b, const char *command, struct glm_error *err);
void build_clear(struct build *b);

/* Parses b->config and builds the table. */
int build_table(struct build *b, const char *path, bool drop_mtp, struct glm_error *err);
/* Side file; takes over data (malloc'd). */
int build_file(struct build *b, const char *path, bool header, void *data, uint64_t size,
    struct glm_error *err);
/* Adds to the plan digest: kind, value. */
void build_plan(struct build *b, const char *key, const void *data, size_t size);
/* Places the tensors: topology, volumes. */
int build_place(struct build *b, const struct topology *topology,
    enum ckpt_encoding encoding, uint64_t shard_size, struct glm_error *err);
uint64_t build_bytes(const struct build *b); /* that the output will need, nearly */

struct build_run {
    const char *out, *verb;
    bool replace, restart, take_lease;
    bool seal; /* a commit that is cut off is completed, without the sums of the errors */
    int threads;
    enum codec_rule rule;
};
/* Opens the writer, lets the source flow into it, commits, fills the report. *items (may be NULL)
 * receives the items for their errors; free it. */
int build_run(struct build *b, const struct flow_source *source,
    const struct build_run *o, struct convert_report *report, struct flow_item **items,
    const struct glm_events *events, struct glm_error *err);
/* The figures that are known before anything is written. */
void build_report(const struct build *b, struct convert_report *report);

/* Refuses an output that is the input (or lies inside it). */
int build_apart(const char *in, const char *out, struct glm_error *err);
/* Takes over the parent's files, provenance and identity. config.json's text becomes b->config.
 * headers: also those of the files that were imported, which hold while no element changes. */
int build_inherit(
    struct build *b, const struct reader *parent, bool headers, struct glm_error *err);
/* config.json as a checkpoint holds it, into b->config. */
int build_config(struct build *b, const struct reader *r, struct glm_error *err);
/* Encoding of the output: as asked, or packed if any piece of the input is. */
enum ckpt_encoding build_encoding(
    const struct manifest *m, enum convert_compress compress);
double build_seconds(void); /* monotonic */

#endif
