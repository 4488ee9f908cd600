/* Which tiles are durable: a bitmap, and the runs that wait for the next sync.
 *
 * Data is written by many threads. Now and then (LEDGER_BATCH bytes) what was written is made
 * durable and only then journaled, as "done <group> <first row> <count>"; a group is a file. */
#ifndef CKPT_LEDGER_H
#define CKPT_LEDGER_H

#include <pthread.h>

#include "ckpt/work.h"

struct ledger_run {
    int64_t group, first, count; /* rows [first, first+count) of one file */
};

struct ledger {
    int64_t rows;
    uint64_t batch; /* bytes between syncs */
    /* private */
    unsigned char *bits;
    struct ledger_run *runs;
    int64_t run_count, run_room;
    int64_t done;
    uint64_t pending_bytes;
    bool broken; /* a sync failed: nothing is journaled any more */
    pthread_mutex_t lock, sync_lock;
};

/* Makes the groups of the runs durable: data first, then what depends on it. Runs are sorted. */
typedef int ledger_sync_fn(
    void *ctx, const struct ledger_run *runs, int64_t count, struct glm_error *err);

/* Another value, for tests of resuming between batches: make EXTRA_CFLAGS=-DLEDGER_BATCH_BYTES=... */
#ifndef LEDGER_BATCH_BYTES
#define LEDGER_BATCH_BYTES (256 << 20)
#endif
enum { LEDGER_BATCH = LEDGER_BATCH_BYTES };

int ledger_init(struct ledger *l, int64_t rows, struct glm_error *err);
void ledger_clear(struct ledger *l);
bool ledger_has(struct ledger *l, int64_t first, int64_t count);
/* The number of rows not yet written, and the first such row (-1: none). */
int64_t ledger_missing(struct ledger *l, int64_t *first);
/* Rows are written (not yet durable). *due: a sync is due, the caller should call ledger_sync.
 * group -1: nothing to journal by itself (a packed shard journals when it is whole). */
int ledger_add(struct ledger *l, int64_t group, int64_t first, int64_t count,
    uint64_t bytes, bool *due, struct glm_error *err);
/* Syncs and journals everything added so far. One at a time; others wait for it. After a failure no
 * later call journals anything: the kernel reports a lost write once, and rows whose bytes were
 * lost may be added after that. */
int ledger_sync(struct ledger *l, struct work *w, ledger_sync_fn *fn, void *ctx,
    struct glm_error *err);
/* Rows that turned out not to be there after all (a file that a power cut took). Returns how many
 * of them counted as there. */
int64_t ledger_forget(struct ledger *l, int64_t first, int64_t count);
/* A journal line "done G F N": marks its rows; false if the line is no such line or out of range. */
bool ledger_replay(struct ledger *l, const char *line, struct ledger_run *run);

#endif
