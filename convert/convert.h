/* The door of convert/: other people's checkpoints to ours and back, and ours to ours.
 *
 * Four calls, one per command. Each streams in bounded memory, can be stopped (events->stop) and
 * continued by calling it again, and leaves either the whole output or none. They print nothing:
 * what happened is in the report, what happens is told to events. */
#ifndef CONVERT_CONVERT_H
#define CONVERT_CONVERT_H

#include <stdbool.h>
#include <stdint.h>

#include "ckpt/ckpt.h"
#include "convert/codec.h"
#include "convert/hfdir.h"
#include "convert/safetensors.h"
#include "kernels/base/events.h"

/* dtype: "same", "bf16", "f32", "mxfp8", "fp8". scale_rule: codec.h's names; NULL: the default of
 * dtype. Which tensors change is in the table. */

struct import_options {
    const char *src, *out;
    struct topology topology;
    const char *dtype, *scale_rule;
    enum ckpt_encoding encoding;
    uint64_t shard_size;          /* 0: 4 GiB */
    const char *layers, *experts; /* "0-3,78"; NULL: all */
    bool no_mtp, replace, restart, take_lease, dry_run, no_verify;
    int threads;
    /* src hf://OWNER/NAME[@REVISION]: the rest is of the network */
    const char *keep;    /* folder that keeps the files as they are; NULL: none */
    uint64_t limit_rate; /* bytes per second; 0: no limit */
    int connections;     /* files fetched at the same time; 0: 4 */
    int stall_s;         /* seconds without a byte that end a connection; 0: 20 */
    int retries;         /* attempts after a failure; -1: 5 */
};

struct export_options {
    const char *ckpt, *out;
    const char *dtype, *scale_rule;
    uint64_t max_shard_size; /* 0: 5 GB */
    bool same_files, replace, restart, take_lease, dry_run, no_verify;
    int threads;
};

enum convert_compress {
    COMPRESS_SAME,
    COMPRESS_NONE,
    COMPRESS_ZSTD
}; /* same: as the input */

struct recode_options {
    const char *ckpt, *out;
    const char *dtype, *scale_rule;
    const char *report_path; /* the error of each tensor, tab-separated; NULL: none */
    enum convert_compress compress;
    uint64_t shard_size;
    bool replace, restart, take_lease, dry_run, no_verify;
    int threads;
};

struct reshard_options {
    const char *ckpt, *out;
    struct topology topology;
    enum convert_compress compress;
    uint64_t shard_size;
    bool replace, restart, take_lease, dry_run, no_verify;
    int threads;
};

/* What a call did (or, with dry_run, would do). Zeroed by the call first; owns nothing. */
struct convert_report {
    bool dry_run, resumed;
    int64_t hf_tensors;        /* as Hugging Face counts them, members apart */
    int64_t tensors, elements; /* logical tensors; all their elements */
    int64_t converted;         /* tensors whose type changed */
    int64_t files, shards;     /* files of the source; files of the output */
    /* skipped: durable from an earlier run */
    uint64_t read_bytes, written_bytes, skipped_bytes;
    double seconds;    /* of the call; dry run: estimate, 0 if unknown */
    char topology[64]; /* "tp2,pp2,ep4"; "" for export */
    char layout[256];  /* pipeline layout in force */
    /* of the checkpoint written. Of an export: the id of the one read, and the fingerprint that an
     * import of what was written has; zeros where it converts or does not check what it reads */
    unsigned char fingerprint[32], id[32];
    bool has_error;           /* error holds what the numbers lost */
    struct codec_error error; /* all converted tensors together */
};

int convert_import(const struct import_options *o, struct convert_report *report,
    const struct glm_events *events, struct glm_error *err);
int convert_export(const struct export_options *o, struct convert_report *report,
    const struct glm_events *events, struct glm_error *err);
int convert_recode(const struct recode_options *o, struct convert_report *report,
    const struct glm_events *events, struct glm_error *err);
int convert_reshard(const struct reshard_options *o, struct convert_report *report,
    const struct glm_events *events, struct glm_error *err);

#endif
