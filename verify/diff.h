/* glm-verify diff: are two checkpoints (or Hugging Face directories) the same, and if not, where?
 *
 * Two checkpoints are compared by fingerprint, whatever their topologies; only tiles whose recorded
 * digests differ are read. A Hugging Face directory has no fingerprints: its tiles are hashed while
 * it is read once. With a tolerance, or with two Hugging Face directories, elements are compared.
 *
 * Elements are different when their bits are (+0 and -0 differ, by 0 ULP; equal NaN bits do not). A
 * pair with a NaN on either side counts as nan and stays out of max_abs and max_ulp. In tolerance
 * mode types may differ and codes are multiplied by their scales; then values are compared: two NaN
 * agree, one NaN is beyond any tolerance, so is an infinity against another value, and else a pair is
 * within if
 *     |a - b| <= atol + rtol |b|   or, with --ulp N, its distance is at most N ULP
 * of the type, of the smaller type where they differ. */
#ifndef VERIFY_DIFF_H
#define VERIFY_DIFF_H

#include "kernels/base/events.h"
#include "verify/findings.h"

struct diff_options {
    const char *section; /* NULL: "weight"; "all" */
    bool tolerance;      /* one of the three was given */
    double atol, rtol;
    int ulp;    /* below 0: not given */
    bool quick; /* names, shapes, types, fingerprints of checkpoints; no data is read */
    bool norms; /* relative norms per layer also when nothing differs */
    int threads;
    const struct glm_events *events;
};

struct diff_stats {
    int64_t elements; /* compared one by one */
    int64_t different, beyond, nan;
    /* row-major index in the tensor of the first and last different one */
    int64_t first, last;
    double max_abs; /* INFINITY if an infinity met something else */
    uint64_t max_ulp;
};

struct diff_tile {
    int64_t tile;
    struct rect at;
    struct diff_stats stats;
};

enum { DIFF_TILES = 16 }; /* of a tensor, described one by one; the rest is counted */

enum diff_verdict {
    DIFF_EQUAL,
    DIFF_WITHIN /* different, within the tolerance */,
    DIFF_DIFFERENT,
    DIFF_DTYPE,
    DIFF_SHAPE,
    DIFF_ONLY_A,
    DIFF_ONLY_B,
    DIFF_UNCOMPARED /* while it runs; none is left of it */
};
const char *diff_verdict_name(enum diff_verdict v);

enum diff_method { DIFF_BY_METADATA, DIFF_BY_DIGEST, DIFF_BY_ELEMENT, DIFF_METHODS };

struct diff_pair {
    char name[192];
    enum ckpt_section section;
    const struct table_entry *entry; /* of A, or of B; NULL in "train" */
    bool stack;
    int64_t a, b;                    /* private: rows; -1: not on that side */
    enum glm_dtype dtype_a, dtype_b; /* of the side that has it, when only one does */
    int rank_a, rank_b;
    int64_t shape_a[4], shape_b[4];
    int64_t dims[RECT_AXES];
    bool is_scale;
    enum diff_verdict verdict;
    enum diff_method method;
    struct diff_stats stats;
    int64_t tiles, tiles_different;
    struct diff_tile *detail; /* the first DIFF_TILES of them; owned */
    int64_t detail_count;
};

struct diff_layer {
    int layer;             /* -1: embedding, final norm and head */
    double norm_a, norm_d; /* ||A||, ||A - B||, float64 sums in a fixed order */
};

struct diff_report {
    struct diff_pair *pairs; /* A's order, then what only B has */
    int64_t pair_count;
    int64_t count[DIFF_UNCOMPARED + 1], by_method[DIFF_METHODS];
    struct diff_layer *layers; /* those with differences; all with options.norms */
    int64_t layer_count;
    uint64_t bytes_read;
    struct side *sides; /* private: the tables that entries point into */
    bool hf_a, hf_b;
    unsigned char fingerprint_a[32], fingerprint_b[32]; /* of checkpoints */
};

/* GLM_OK: equal (or within the tolerance). GLM_EMISMATCH: different. The report is the caller's to
 * clear in every case, and does not depend on the thread count. */
int diff_run(struct diff_report *out, const char *a, const char *b,
    const struct diff_options *o, struct glm_error *err);
void diff_clear(struct diff_report *r);

/* Row-major index in a tensor of these dims to an index tuple in its own axes; returns the rank. */
int diff_index(const struct diff_pair *p, int64_t linear, int64_t out[4]);
/* Hugging Face name of the member that holds a tile (or the pair's own name). */
void diff_member_name(
    const struct diff_pair *p, const struct diff_tile *t, char *buf, size_t size);

#endif
