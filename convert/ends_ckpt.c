/* Checkpoints at either end of a flow: the reader as a source, the writer as a sink. */
#include "convert/ends.h"

static int read_tiles(void *ctx, int64_t tensor, const struct rect *at,
    struct dio_buffer *buf, unsigned char **data, unsigned char *digests, bool *known,
    struct flow_thread *t, struct glm_error *err)
{
    const struct ckpt_source *c = ctx;

    *known = c->verify;
    return reader_read(c->reader, tensor, at, c->verify, buf->data, buf->size, data,
        c->verify ? digests : NULL, t->reader, err);
}

/* The packed piece that holds a tile, -1 if it is plain or not stored. */
static int64_t packed_piece(
    const struct manifest *m, int64_t tensor, const struct rect *tile)
{
    const struct ckpt_tensor *t = &m->tensors[tensor];

    for (int64_t i = t->first_piece; i < t->first_piece + t->pieces; i++)
        if (rect_contains(&m->pieces[i].at, tile))
            return m->pieces[i].encoding == ENC_ZSTD ? i : -1;
    return -1;
}

static bool source_chunk(
    void *ctx, int64_t tensor, const struct rect *tile, int64_t dims[3])
{
    const struct manifest *m = reader_manifest(((const struct ckpt_source *)ctx)->reader);
    const int64_t piece = packed_piece(m, tensor, tile);

    if (piece >= 0)
        shard_chunk_dims(m, &m->pieces[piece], dims);
    return piece >= 0;
}

static int source_frame(void *ctx, int64_t tensor, const struct rect *tile, void *buf,
    size_t room, size_t *size, uint32_t *mask, struct glm_error *err)
{
    const struct ckpt_source *c = ctx;
    const struct manifest *m = reader_manifest(c->reader);
    const struct tile_grid *g = &m->tensors[tensor].grid;
    const int64_t piece = packed_piece(m, tensor, tile);
    const struct rect all = tile_cover(g, &m->pieces[piece].at),
                      one = tile_cover(g, tile);
    const int64_t number =
        ((one.lo[0] - all.lo[0]) * rect_len(&all, 1) + one.lo[1] - all.lo[1])
            * rect_len(&all, 2)
        + one.lo[2] - all.lo[2];

    return reader_frame(c->reader, piece, number, buf, room, size, mask, err);
}

struct flow_source ckpt_flow_source(struct ckpt_source *c)
{
    const struct index *ix = reader_index(c->reader);
    return (struct flow_source){.m = ix->manifest,
        .ctx = c,
        .read = read_tiles,
        .chunk_dims = source_chunk,
        .frame = source_frame,
        .tiles = ix->tiles};
}

/* One pipeline cell after the other, so that only its files are open; then section and tensor. */
static uint64_t sink_key(void *ctx, int64_t tensor, int64_t member)
{
    const struct manifest *m = writer_manifest(ctx);
    const struct ckpt_tensor *t = &m->tensors[tensor];

    (void)member;
    return t->entry == NULL ? 0 : (uint64_t)placement_pp(m->placement, t->entry);
}

static bool sink_has(void *ctx, int64_t tensor, const struct rect *at)
{
    return writer_has(ctx, tensor, at);
}

static int sink_put(void *ctx, int64_t tensor, const struct rect *at, const void *data,
    const unsigned char *digests, struct flow_thread *t, struct glm_error *err)
{
    return writer_put(ctx, tensor, at, data, digests, t->writer, err);
}

static bool sink_chunk(
    void *ctx, int64_t tensor, const struct rect *tile, int64_t dims[3])
{
    return writer_chunk_dims(ctx, tensor, tile, dims);
}

static int sink_frames(void *ctx, int64_t tensor, const struct rect *at,
    const struct writer_frame *frames, const unsigned char *digests,
    struct glm_error *err)
{
    return writer_put_frames(ctx, tensor, at, frames, digests, err);
}

static int sink_note(void *ctx, int64_t tensor, const struct rect *at,
    const unsigned char *digests, struct glm_error *err)
{
    return writer_note(ctx, tensor, at, digests, err);
}

static void sink_fail(void *ctx)
{
    writer_fail(ctx);
}

static const char *sink_folder(void *ctx)
{
    return writer_folder(ctx);
}

static int sink_journal(void *ctx, const char *line, struct glm_error *err)
{
    return writer_journal(ctx, line, err);
}

static int sink_recall(void *ctx,
    int (*fn)(void *fn_ctx, char *line, struct glm_error *err), void *fn_ctx,
    struct glm_error *err)
{
    return writer_recall(ctx, fn, fn_ctx, err);
}

static int sink_settle(void *ctx, struct glm_error *err)
{
    return writer_settle(ctx, err);
}

static int sink_forget(
    void *ctx, int64_t tensor, const struct rect *at, struct glm_error *err)
{
    return writer_forget(ctx, tensor, at, err);
}

static bool sink_durable(void *ctx, int64_t tensor, const struct rect *at)
{
    return writer_durable(ctx, tensor, at);
}

struct flow_sink ckpt_flow_sink(struct writer *w)
{
    const struct manifest *m = writer_manifest(w);
    bool packed = false;

    for (int64_t i = 0; i < m->piece_count && !packed; i++)
        packed = m->pieces[i].encoding == ENC_ZSTD;
    return (struct flow_sink){.m = m,
        .ctx = w,
        .whole_width = packed,
        .any_order = !packed,
        .key = sink_key,
        .has = sink_has,
        .put = sink_put,
        .chunk_dims = sink_chunk,
        .put_frames = sink_frames,
        .note = sink_note,
        .fail = sink_fail,
        .folder = sink_folder,
        .journal = sink_journal,
        .recall = sink_recall,
        .settle = sink_settle,
        .forget = sink_forget,
        .durable = sink_durable};
}
