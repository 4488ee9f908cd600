/* Whole or absent: the NAME.partial folder, its lease, its journal, and the one commit.
 *
 * Work on NAME happens in NAME.partial/. `lease` (O_EXCL) says who works there; `journal` says what
 * is durable; a commit fsyncs all, removes both, and renames the folder. (spec/format.md G) */
#ifndef CKPT_WORK_H
#define CKPT_WORK_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/base/error.h"

struct work;

struct work_options {
    const char *target; /* NAME */
    /* SHA-256 of sources, table, topology, encoding, options */
    const unsigned char *plan;
    bool replace;        /* NAME may exist, empty or one of ours: exchanged at the end */
    bool restart;        /* discard a partial of another plan */
    bool take_lease;     /* take over a lease held on another host */
    uint64_t need_bytes; /* refused (GLM_EIO) before writing if less is free */
    bool
        seal; /* a commit leaves a mark that work_finish knows, until it is over; not with replace */
};

/* Creates or continues NAME.partial. *resumed says which. A partial with another plan is GLM_EUSAGE
 * unless restart. NAME exists: GLM_EUSAGE unless replace. */
int work_open(struct work **out, const struct work_options *o, bool *resumed,
    struct glm_error *err);
const char *work_path(const struct work *w); /* ".../NAME.partial" */
/* Calls fn for every intact journal line after the first, as it was written. */
int work_replay(struct work *w, int (*fn)(void *ctx, char *line, struct glm_error *err),
    void *ctx, struct glm_error *err);
/* Appends lines (each ending in LF in `text`; the check field is added here) and fdatasyncs. */
int work_journal(struct work *w, const char *text, struct glm_error *err);
/* Removes journal and lease and extras (names ended by NULL), fsyncs the folder, renames it to NAME
 * (exchanging and deleting the old one with replace), fsyncs the parent. Frees w on success. */
int work_commit(struct work *w, const char *const *extras, struct glm_error *err);
/* A commit (with seal) that was cut off after its work was whole, and before its rename: completes it.
 * *finished: NAME is there now. false: nothing of this plan was waiting, work_open has its turn. */
int work_finish(const struct work_options *o, const char *const *extras, bool *finished,
    struct glm_error *err);
/* Leaves everything for the next run; drops the lease. */
void work_close(struct work *w);

#endif
