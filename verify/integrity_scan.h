/* The data pass of glm-verify integrity: one job read, hashed, compared. Private to verify/. */
#ifndef VERIFY_INTEGRITY_SCAN_H
#define VERIFY_INTEGRITY_SCAN_H

#include "verify/integrity.h"
#include "verify/scan.h"

struct integrity {
    const char *dir;
    struct integrity_report *report;
    const struct glm_events *events;
    struct index *ix;
    struct manifest *m; /* NULL: index.h5 is not usable */
    bool *skip;         /* [shards] missing */
    uint64_t *length;   /* [shards] as found */
    int64_t *derived;   /* [tensors] the derived weight of a master; -1 */
    struct scan scan;
    uint64_t done, total;
};

void *integrity_worker_new(void *ctx, struct glm_error *err);
void integrity_worker_free(void *state);
int integrity_job(void *ctx, void *state, int64_t job, struct glm_error *err);
void integrity_job_done(void *ctx, int64_t job);
uint64_t integrity_job_bytes(const struct integrity *g, int64_t job);

#endif
