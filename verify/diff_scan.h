/* The data passes of glm-verify diff. Private to verify/. */
#ifndef VERIFY_DIFF_SCAN_H
#define VERIFY_DIFF_SCAN_H

#include "verify/compare.h"
#include "verify/side.h"

struct diff {
    const struct diff_options *o;
    struct diff_report *report;
    struct side a, b;
};

/* A run of tile rows of one expert of one pair: about 32 MB. */
struct diff_job {
    int64_t pair, e, lo, hi; /* bands [lo, hi) */
    uint64_t bytes;
};

enum { DIFF_JOB_BYTES = 32 << 20, DIFF_READ_BYTES = 16 << 20 };

/* Jobs over all pairs that want() accepts. */
int diff_jobs(const struct diff *d,
    bool (*want)(const struct diff *d, const struct diff_pair *p), struct diff_job **out,
    int64_t *count, struct glm_error *err);
struct rect diff_band(const struct tile_grid *g, int64_t e, int64_t band);
/* Rows of a rectangle this wide that are read at a time. step: a multiple of it, if it is cut. */
int64_t diff_rows(const struct rect *at, size_t element, int64_t step);

/* Fills stats, tiles and verdict of the pairs still to be compared. */
int diff_scan(struct diff *d, struct glm_error *err);
/* Fills report->layers. */
int diff_norms(struct diff *d, struct glm_error *err);
/* Whether a pair is compared by value: types differ or codes have scales, in tolerance mode. */
bool diff_by_value(const struct diff *d, const struct diff_pair *p);

#endif
