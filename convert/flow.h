/* The one engine under import, export, convert and reshard: tensors flow from a source to a sink.
 *
 * Work is cut into jobs: rectangles of whole tiles, about FLOW_TARGET bytes, in an order that the
 * sink chooses. N threads take jobs in that order; each reads one, checks or computes its tile
 * digests in the one pass over the bytes, changes its type if asked, and hands it to the sink.
 * Memory is bounded by a budget for what is in flight, whatever the size of the model. */
#ifndef CONVERT_FLOW_H
#define CONVERT_FLOW_H

#include "ckpt/ckpt.h"
#include "convert/codec.h"
#include "kernels/base/events.h"

enum {
    FLOW_TARGET = 8 << 20,  /* bytes of a job, where tiles allow */
    FLOW_ALONE = 256 << 10, /* a member of at least this many bytes is a job by itself */
    FLOW_WIDEST =
        32 << 20, /* a band of tiles past this is cut by columns, where the sink allows */
    FLOW_BUDGET = 192 << 20, /* bytes in flight, all threads together */
    FLOW_KEEP = 40 << 20,    /* a thread's buffer past this is given back after the job */
};

struct flow_thread { /* what one thread owns */
    struct reader_scratch *reader;
    struct writer_scratch *writer;
    struct dio_buffer in, out, aux, wide, back;
    unsigned char *digests;
    size_t digest_room;
    int64_t job; /* that it works on */
};

/* A job as a source sees it that hands out the jobs itself. */
struct flow_ask {
    int64_t tensor; /* of the source */
    int64_t scale;  /* the tensor whose member's scales it needs too; -1: none */
    struct rect at; /* rows of one member, whole width */
    bool copied;    /* its bytes go into the sink as they are */
    bool done;      /* written by an earlier run */
    bool again;     /* set by recall and end: what was read is not to be believed */
};

struct flow_sink;

struct flow_jobs { /* of a run; valid until end */
    struct flow_ask *asks;
    int64_t count;
    const struct flow_sink *sink;
    /* Whether a job and all it makes are in the sink; and whether they are safe there. */
    bool (*written)(void *flow, int64_t job);
    bool (*durable)(void *flow, int64_t job);
    void *flow; /* their first argument */
};

/* A source whose bytes have to be fetched first. Jobs are rows of one member, as wide as the
 * tensor. */
struct flow_feed {
    /* NULL, or once, before the first begin: sets again where what an earlier run wrote cannot be
     * relied on. Such a job counts as not done. */
    int (*recall)(void *ctx, const struct flow_jobs *jobs, struct glm_error *err);
    int (*begin)(void *ctx, const struct flow_jobs *jobs, struct glm_error *err);
    /* NULL: jobs run in the sink's order and read waits. Else a job that can be done now; waits for
     * one. -1: there are no more, or *err says why. */
    int64_t (*take)(void *ctx, struct glm_error *err);
    void (*done)(void *ctx, int64_t job, bool good);
    /* After the last job. good: none failed. Sets again where a job must be done anew; then begin
     * comes once more, unless err was set. */
    int (*end)(void *ctx, bool good, struct glm_error *err);
};

struct flow_source {
    const struct manifest *m; /* what the source holds */
    void *ctx;
    /* Reads whole tiles into buf (capacity has 2*DIO_ALIGN to spare); *data: where they start.
     * *known: digests (one per tile) were filled in by a verified read. */
    int (*read)(void *ctx, int64_t tensor, const struct rect *at, struct dio_buffer *buf,
        unsigned char **data, unsigned char *digests, bool *known, struct flow_thread *t,
        struct glm_error *err);
    /* NULL, or: chunk shape under a tile if it is stored as a frame; and the frame itself. */
    bool (*chunk_dims)(
        void *ctx, int64_t tensor, const struct rect *tile, int64_t dims[3]);
    int (*frame)(void *ctx, int64_t tensor, const struct rect *tile, void *buf,
        size_t room, size_t *size, uint32_t *mask, struct glm_error *err);
    const unsigned char *tiles; /* recorded tile digests, NULL if there are none */
    /* NULL, or where a rectangle lies: sinks without an order of their own are fed in this one, so
     * that each file of the source is read from its start to its end. */
    uint64_t (*place)(void *ctx, int64_t tensor, const struct rect *at);
    /* NULL, or asked after the last read: an error if the source has changed meanwhile. */
    int (*unchanged)(void *ctx, struct glm_error *err);
    const struct flow_feed *feed; /* NULL: jobs are taken in order */
};

struct flow_sink {
    const struct manifest *m; /* what the sink shall hold */
    void *ctx;
    bool whole_width; /* jobs must be as wide as the tensor */
    bool any_order;   /* within a key jobs may come in any order */
    /* Sort key of a tensor's member: jobs run in ascending (key, tensor, rectangle) order; with
     * any_order a source that has a place comes between key and tensor. */
    uint64_t (*key)(void *ctx, int64_t tensor, int64_t member);
    bool (*has)(void *ctx, int64_t tensor, const struct rect *at);
    int (*put)(void *ctx, int64_t tensor, const struct rect *at, const void *data,
        const unsigned char *digests, struct flow_thread *t, struct glm_error *err);
    /* NULL, or the writer's counterparts. */
    bool (*chunk_dims)(
        void *ctx, int64_t tensor, const struct rect *tile, int64_t dims[3]);
    int (*put_frames)(void *ctx, int64_t tensor, const struct rect *at,
        const struct writer_frame *frames, const unsigned char *digests,
        struct glm_error *err);
    /* A derived tensor: digests only. NULL: derived tensors are put like the rest. */
    int (*note)(void *ctx, int64_t tensor, const struct rect *at,
        const unsigned char *digests, struct glm_error *err);
    void (*fail)(void *ctx); /* wakes those who wait inside put; may be NULL */
    /* For a source with a state of its own to keep: NULL, or the writer's (writer.h). */
    const char *(*folder)(void *ctx);
    int (*journal)(void *ctx, const char *line, struct glm_error *err);
    int (*recall)(void *ctx, int (*fn)(void *fn_ctx, char *line, struct glm_error *err),
        void *fn_ctx, struct glm_error *err);
    int (*settle)(void *ctx, struct glm_error *err);
    int (*forget)(
        void *ctx, int64_t tensor, const struct rect *at, struct glm_error *err);
    bool (*durable)(void *ctx, int64_t tensor, const struct rect *at);
};

/* What becomes of one tensor of the sink. */
enum flow_action {
    FLOW_COPY,   /* same type: bytes pass unchanged */
    FLOW_RECODE, /* other type: from `from` (and its scales) */
    FLOW_SCALE   /* written along with its weight */
};

struct flow_item {
    enum flow_action action;
    int64_t from, from_scale; /* tensors of the source; -1: none */
    enum codec_rule rule;     /* of the new scales */
    struct codec_error error; /* FLOW_RECODE: what the change did, after the run */
};

struct flow_stats {
    uint64_t read_bytes, written_bytes, skipped_bytes;
};

/* items: one per tensor of sink->m. */
int flow_run(const struct flow_source *source, const struct flow_sink *sink,
    struct flow_item *items, int threads, const char *verb,
    const struct glm_events *events, struct flow_stats *stats, struct glm_error *err);

/* The rectangles a tensor is cut into (pure; tests). whole_width as in the sink; narrow: jobs never
 * hold more than one member. Returns the count; out may be NULL. */
int64_t flow_cut(const struct tile_grid *g, size_t element, bool whole_width, bool narrow,
    struct rect *out);

#endif
