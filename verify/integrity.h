/* glm-verify integrity: is every byte of a checkpoint what was written?
 *
 * Every byte of every file lies under exactly one digest (spec/format.md C), and each is computed
 * again: the user block, manifest, tables and HDF5 structures of index.h5; each tile of each plain
 * piece; the stored bytes of each compressed chunk, and the tile decoded from it; the rest of each
 * shard. A weight that is derived from its master is rounded and hashed as well. All damage is found
 * in one run. */
#ifndef VERIFY_INTEGRITY_H
#define VERIFY_INTEGRITY_H

#include "kernels/base/events.h"
#include "verify/findings.h"

struct integrity_options {
    int threads;
    bool quick; /* user block, index.h5's own digest, manifest, file lengths; no data */
    const struct glm_events *events;
};

struct integrity_report {
    struct findings findings;
    bool opened; /* index.h5 could be read: the figures below mean something */
    bool quick;
    int64_t shards, tensors, tiles, chunks;
    int64_t tiles_checked, chunks_checked;
    uint64_t bytes, bytes_checked; /* of the shards */
    unsigned char fingerprint[32], id[32];
    int64_t extra_files; /* foreign files in the folder: told, not counted as damage */
    char **extra;        /* their names, sorted; at most INTEGRITY_EXTRA */
};

enum { INTEGRITY_EXTRA = 64 };

/* GLM_OK: intact. GLM_EMISMATCH: not intact, the report says why. GLM_EUSAGE: dir is no checkpoint.
 * GLM_EIO: nothing wrong was found, but something could not be read (the report says what).
 * The report is the caller's to clear in every case; its findings are sorted. */
int integrity_run(struct integrity_report *out, const char *dir,
    const struct integrity_options *o, struct glm_error *err);
void integrity_clear(struct integrity_report *r);

#endif
