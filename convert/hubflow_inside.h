/* What hubflow.c, hubflow_plan.c and hubflow_settle.c share: the state of a download in progress.
 *
 * A file that is fetched is a stream: its bytes from some offset on, cut into pieces that lie end to
 * end. A piece is the bytes of one job, or filler: bytes that only the digest needs. A piece goes
 *
 *     filling -> full -> taken (in the digest) -> processed (in the sink) -> settled (durable)
 *
 * and at each step pieces of a stream go in order, but for "processed". */
#ifndef CONVERT_HUBFLOW_INSIDE_H
#define CONVERT_HUBFLOW_INSIDE_H

#include <pthread.h>

#include "convert/hubflow.h"
#include "convert/hubpool.h"
#include "convert/hubsum.h"

enum {
    HUBFLOW_FILLER = 8 << 20,
    HUBFLOW_GAP =
        64 << 10, /* unwanted bytes that are cheaper to read than a new request */
    HUBFLOW_SETTLE =
        32 << 20, /* processed bytes of one stream that make a sync worthwhile */
    HUBFLOW_POOL = 128 << 20, /* bytes in pieces, all streams together */
    HUBFLOW_MARKS = 32,
    HUBFLOW_MARK = 2 << 20, /* bytes between two states that are kept */
};

enum { PIECE_HASH = -1, PIECE_SKIP = -2 };

struct hubpiece {
    uint64_t begin, end;
    int64_t job; /* or PIECE_HASH, PIECE_SKIP */
    unsigned char *data;
    size_t room;            /* of data */
    unsigned char *digests; /* of the job's tiles, if they were made with the file's */
    bool processed;
};

struct hubmark { /* the digest after so many pieces */
    int64_t pieces;
    struct hubsum sum;
};

struct hubstream {
    struct hubflow *flow;
    struct hub_file *file;
    int32_t no;
    bool whole; /* all of the file passes, so its digest can be compared */
    struct hubpiece *pieces;
    int64_t count, room;
    /* the moving thread's */
    unsigned char *filling;
    size_t filling_room;
    uint64_t got;
    /* under the lock */
    int64_t full, taken, settled;
    uint64_t settled_at;
    int64_t
        examined; /* pieces that the last settling found processed, from the first on */
    bool hashing, waits, active, received;
    bool verified, wrong;
    struct hubsum sum;
    struct hubmark marks[HUBFLOW_MARKS];
    int mark_count;
};

struct hubplace { /* of a job */
    int32_t stream;
    int64_t piece;
};

/* What the journal says of a file; across rounds what this process knows. */
struct hubstate {
    bool known, verified;
    int wrong; /* times that its digest did not match */
    struct hubsum sum;
};

struct hubflow {
    struct hubflow_options o;
    const struct hf_source *s;
    struct flow_source reads; /* the reader's: for files in the cache */
    struct hubstate *states;  /* [file_count] */
    /* of a round */
    struct flow_ask *asks;
    int64_t ask_count;
    const struct flow_sink *sink;
    bool (*written)(void *flow, int64_t job);
    void *written_ctx;
    struct hubstream *streams;
    int stream_count;
    struct hubplace *places; /* [ask_count] */
    int64_t *local;          /* jobs of files in the cache */
    int64_t local_count, local_next;
    int next_stream; /* the next to start */
    int active;      /* streams with a transfer */
    int turn;        /* where take looks first */
    pthread_mutex_t lock;
    pthread_cond_t arrived; /* pieces, ends, failures */
    pthread_cond_t due;     /* something to settle */
    bool failed, ending;
    struct glm_error error;
    uint64_t window; /* bytes of a connection that may be received and not yet durable */
    struct hubpool pool; /* buffers for pieces; under the lock */
    pthread_t settler;
    bool settling;
};

/* hubflow_plan.c: the streams of a round, out of asks and states. */
int hubflow_plan(struct hubflow *f, struct glm_error *err);
void hubflow_plan_clear(struct hubflow *f);
/* States out of the journal's lines; sets again where a tile is not covered by one. */
int hubflow_recall(struct hubflow *f, struct glm_error *err);

/* hubflow_settle.c: makes what is processed durable and writes down how far that is. */
void *hubflow_settler(void *flow);
int hubflow_settle(struct hubflow *f, struct glm_error *err);
bool hubflow_settle_due(const struct hubflow *f);

/* Under the lock. */
void hubflow_fail(struct hubflow *f, const struct glm_error *err);
void hubflow_give(struct hubflow *f, struct hubpiece *p);

#endif
