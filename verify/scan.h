/* The reading order of an integrity check: jobs of about 32 MB, in file order. Pure but for memory.
 *
 * A span is a run of a piece: whole tile rows of a plain piece, or chunks of a compressed one. A job
 * is a few neighbouring spans of one shard, or that shard's structure. */
#ifndef VERIFY_SCAN_H
#define VERIFY_SCAN_H

#include "ckpt/ckpt.h"

enum { SCAN_JOB_BYTES = 32 << 20, SCAN_READ_BYTES = 8 << 20 };

struct scan_span {
    int64_t piece;
    int64_t lo, hi; /* plain: bands (tile rows, experts above each other); zstd: chunks */
    uint64_t begin, end; /* bytes in the file (zstd: first to last byte of the frames) */
};

struct scan_job {
    int64_t shard;
    int64_t first_span, spans;
    bool structure;
};

struct scan {
    struct scan_span *spans;
    struct scan_job *jobs;
    int64_t span_count, span_capacity, job_count, job_capacity;
};

/* skip[shard]: leave that shard out. */
int scan_plan(struct scan *out, const struct manifest *m, const struct ckpt_chunk *chunks,
    const bool *skip, struct glm_error *err);
void scan_clear(struct scan *s);

/* Elements of a span's bands [lo, hi) of a plain piece, all in one expert when hi - lo is 1. */
int64_t scan_bands(const struct manifest *m, const struct ckpt_piece *p);
struct rect scan_band(const struct manifest *m, const struct ckpt_piece *p, int64_t band);

#endif
