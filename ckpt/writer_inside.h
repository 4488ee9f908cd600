/* What writer.c, writer_put.c and writer_resume.c share: the state of a checkpoint being written. Private. */
#ifndef CKPT_WRITER_INSIDE_H
#define CKPT_WRITER_INSIDE_H

#include <pthread.h>

#include "ckpt/dio.h"
#include "ckpt/ledger.h"
#include "ckpt/shard.h"
#include "ckpt/writer.h"

enum { CHUNK_ROW = 48 }; /* of chunks.part: offset, bytes, mask, SHA-256 */

enum shard_phase { SHARD_ABSENT, SHARD_OPEN, SHARD_WHOLE };

struct shard_state {
    pthread_mutex_t lock;
    pthread_cond_t turn;             /* packed: the cursor moved */
    _Atomic(enum shard_phase) phase; /* whole is looked at without the lock */
    struct dio file;
    struct packed_shard *packed; /* NULL for a plain shard */
    bool is_packed;
    int64_t left;   /* tiles still to come */
    int64_t cursor; /* packed: chunks stored so far */
};

struct writer {
    struct manifest *m;
    struct work *work;
    struct ledger ledger;
    unsigned char *tiles;       /* [tile_count][32] */
    struct ckpt_chunk *chunks;  /* [chunk_count] */
    struct shard_state *shards; /* [shard_count] */
    int64_t *chunk_base; /* [piece_count]: chunks before a packed piece in its shard */
    struct dio tiles_part, chunks_part;
    pthread_mutex_t lock;
    bool new_files; /* created since the folder was last synced; under lock */
    volatile bool failed;
    unsigned char *fingerprint, *id; /* the caller's, filled by the commit; may be NULL */
};

/* Makes the shard's file unless it is there. Called under the shard's lock. */
int writer_ensure_shard(struct writer *w, int64_t no, struct glm_error *err);
/* The same, and opens it. Takes the lock. */
int writer_open_shard(struct writer *w, int64_t no, struct glm_error *err);
/* All tiles of a packed shard are stored: closes it, makes it durable, journals it. */
int writer_finish_packed(struct writer *w, int64_t no, struct glm_error *err);
/* The ledger's sync: data, then the folder, then digests. ctx: the writer. */
int writer_sync_runs(
    void *ctx, const struct ledger_run *runs, int64_t count, struct glm_error *err);
void writer_shard_path(const struct writer *w, int64_t no, char out[4096]);

/* Calls fn for each run of rows of /tiles that a piece holds. */
int writer_piece_rows(struct writer *w, const struct ckpt_piece *p,
    int (*fn)(struct writer *, int64_t first, int64_t count, struct glm_error *),
    struct glm_error *err);

/* A journal line of an earlier run (ctx: the writer): what it says is durable is marked, if the
 * files still are what it speaks of. */
int writer_replay_line(void *ctx, char *line, struct glm_error *err);

#endif
