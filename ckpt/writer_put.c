/* Rectangles into pieces: plain ones by direct writes, packed ones as frames when their turn comes. */
#include "ckpt/writer_inside.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/digest.h"
#include "ckpt/packed.h"
#include "ckpt/reader.h"
#include "ckpt/region.h"

enum { BOUNCE = 8 << 20 };

struct writer_scratch {
    struct packer *packer;
    unsigned char *bounce;   /* BOUNCE bytes */
    struct dio_buffer part;  /* a gathered part of a rectangle */
    struct dio_buffer chunk; /* one padded chunk */
    struct dio_buffer frames;
};

/* ---- scratch ----------------------------------------------------------------------------------- */

struct writer_scratch *writer_scratch_new(void)
{
    struct writer_scratch *s = calloc(1, sizeof *s);

    if (s == NULL)
        return NULL;
    s->packer = packer_new();
    s->bounce = dio_alloc(BOUNCE);
    if (s->packer == NULL || s->bounce == NULL) {
        writer_scratch_free(s);
        return NULL;
    }
    return s;
}

void writer_scratch_free(struct writer_scratch *s)
{
    if (s == NULL)
        return;
    packer_free(s->packer);
    dio_free(s->bounce, BOUNCE);
    dio_free(s->part.data, s->part.size);
    dio_free(s->chunk.data, s->chunk.size);
    dio_free(s->frames.data, s->frames.size);
    free(s);
}

/* ---- putting ----------------------------------------------------------------------------------- */

/* Calls fn for each run of rows of /tiles under a tile-aligned rectangle of a tensor; digests
 * advance with it. Returns false as soon as fn does. */
static bool each_row_run(const struct ckpt_tensor *t, const struct rect *at,
    bool (*fn)(void *ctx, int64_t first, int64_t count), void *ctx)
{
    const struct rect tiles = tile_cover(&t->grid, at);

    for (int64_t e = tiles.lo[0]; e < tiles.hi[0]; e++)
        for (int64_t gr = tiles.lo[1]; gr < tiles.hi[1]; gr++)
            if (!fn(ctx, t->first_tile + tile_index(&t->grid, e, gr, tiles.lo[2]),
                    rect_len(&tiles, 2)))
                return false;
    return true;
}

static bool run_is_done(void *ctx, int64_t first, int64_t count)
{
    return ledger_has(ctx, first, count);
}

bool writer_has(const struct writer *w, int64_t tensor, const struct rect *at)
{
    return each_row_run(
        &w->m->tensors[tensor], at, run_is_done, (struct ledger *)(uintptr_t)&w->ledger);
}

struct note {
    struct writer *w;
    const unsigned char *digests;
};

static bool note_run(void *ctx, int64_t first, int64_t count)
{
    struct note *n = ctx;
    memcpy(n->w->tiles + (size_t)first * DIGEST_SIZE, n->digests,
        (size_t)count * DIGEST_SIZE);
    n->digests += (size_t)count * DIGEST_SIZE;
    return true;
}

struct add {
    struct writer *w;
    int64_t group;
    uint64_t bytes; /* of the whole part; counted once */
    bool due;
    struct glm_error *err;
};

static bool add_run(void *ctx, int64_t first, int64_t count)
{
    struct add *a = ctx;
    bool due = false;
    ledger_add(&a->w->ledger, a->group, first, count, a->bytes, &due, a->err);
    a->bytes = 0;
    a->due = a->due || due;
    return a->err->code == GLM_OK;
}

int writer_note(struct writer *w, int64_t tensor, const struct rect *at,
    const unsigned char *digests, struct glm_error *err)
{
    struct note n = {w, digests};
    struct add a = {.w = w, .group = -1, .err = err};

    each_row_run(&w->m->tensors[tensor], at, note_run, &n);
    each_row_run(&w->m->tensors[tensor], at, add_run, &a);
    return (int)err->code;
}

/* A part of a plain piece: one write per run of bytes in the file. */
static int write_plain(struct writer *w, const struct ckpt_piece *p,
    const struct rect *part, const struct rect *at, const void *data, size_t element,
    struct writer_scratch *s, struct glm_error *err)
{
    const struct dio *f = &w->shards[p->shard].file;
    struct rect one = *part;

    for (int64_t e = part->lo[0]; e < part->hi[0]; e++) {
        one.lo[0] = e;
        one.hi[0] = e + 1;
        const unsigned char *from = (const unsigned char *)data
            + region_at(at, e, part->lo[1], part->lo[2], element);
        const uint64_t to =
            p->offset + region_at(&p->at, e, part->lo[1], part->lo[2], element);
        const size_t size = (size_t)rect_count(&one) * element;
        if (region_contiguous(&p->at, &one)) {
            if (!region_contiguous(at, &one)) {
                if (dio_reserve(&s->part, size, err) != GLM_OK)
                    return (int)err->code;
                region_copy(s->part.data, &one, data, at, &one, element);
                from = s->part.data;
            }
            if (dio_write(f, to, from, size, s->bounce, BOUNCE, err) != GLM_OK)
                return (int)err->code;
            continue;
        }
        const size_t row = (size_t)rect_len(part, 2) * element;
        for (int64_t r = part->lo[1]; r < part->hi[1]; r++)
            if (dio_write(f, p->offset + region_at(&p->at, e, r, part->lo[2], element),
                    (const unsigned char *)data
                        + region_at(at, e, r, part->lo[2], element),
                    row, s->bounce, BOUNCE, err)
                != GLM_OK)
                return (int)err->code;
    }
    return GLM_OK;
}

struct frame_list {
    const struct writer_frame *frames; /* of the part's tiles, row-major */
    int64_t count;
};

/* Stores frames of consecutive tiles of a packed piece when their turn has come. */
static int put_in_turn(struct writer *w, int64_t piece, int64_t first,
    const struct frame_list *list, struct glm_error *err)
{
    const struct ckpt_piece *p = &w->m->pieces[piece];
    struct shard_state *s = &w->shards[p->shard];
    const int64_t position = w->chunk_base[piece] + first;

    pthread_mutex_lock(&s->lock);
    while (s->cursor != position && !w->failed)
        pthread_cond_wait(&s->turn, &s->lock);
    if (w->failed)
        glm_fail(err, GLM_ESTOPPED, "stopped: another part failed");
    else
        writer_ensure_shard(w, p->shard, err);
    for (int64_t i = 0; err->code == GLM_OK && i < list->count; i++) {
        const struct writer_frame *f = &list->frames[i];
        struct ckpt_chunk *c = &w->chunks[p->first_chunk + first + i];
        c->bytes = (uint32_t)f->size;
        c->mask = f->mask;
        if (shard_put_chunk(s->packed, piece, first + i, f->data, f->size, f->mask, err)
            == GLM_OK)
            s->cursor++;
    }
    pthread_cond_broadcast(&s->turn);
    pthread_mutex_unlock(&s->lock);
    return (int)err->code;
}

/* Packs the tiles of a part; *frames (malloc'd) point into s->frames. */
static int pack_part(struct writer *w, int64_t piece, const struct rect *part,
    const struct rect *at, const void *data, size_t element, struct writer_scratch *s,
    struct writer_frame **frames, int64_t *count, struct glm_error *err)
{
    const struct ckpt_piece *p = &w->m->pieces[piece];
    const struct tile_grid *g = &w->m->tensors[p->tensor].grid;
    const struct rect tiles = tile_cover(g, part);
    int64_t dims[RECT_AXES];
    size_t used = 0;

    shard_chunk_dims(w->m, p, dims);
    const size_t raw = (size_t)(dims[0] * dims[1] * dims[2]) * element;
    const size_t bound = packer_bound(raw);
    *count = 0;
    *frames = calloc((size_t)rect_count(&tiles), sizeof **frames);
    if (*frames == NULL)
        return glm_fail(
            err, GLM_ENOMEM, "no memory for %" PRId64 " frames", rect_count(&tiles));
    if (dio_reserve(&s->chunk, raw, err) != GLM_OK
        || dio_reserve(&s->frames, bound * (size_t)rect_count(&tiles), err) != GLM_OK)
        return (int)err->code;
    for (int64_t e = tiles.lo[0]; e < tiles.hi[0]; e++)
        for (int64_t gr = tiles.lo[1]; gr < tiles.hi[1]; gr++)
            for (int64_t gc = tiles.lo[2]; gc < tiles.hi[2]; gc++) {
                const struct rect tile = tile_rect(g, tile_index(g, e, gr, gc));
                struct rect over = tile;
                for (int a = 0; a < RECT_AXES; a++)
                    over.hi[a] = over.lo[a] + dims[a];
                if (!rect_equal(&over, &tile))
                    memset(s->chunk.data, 0, raw);
                region_copy(s->chunk.data, &over, data, at, &tile, element);
                struct writer_frame *f = &(*frames)[(*count)++];
                f->data = s->frames.data + used;
                if (packer_pack(s->packer, s->chunk.data, raw, element,
                        s->frames.data + used, &f->size, &f->mask, err)
                    != GLM_OK)
                    return (int)err->code;
                used += f->size;
            }
    return GLM_OK;
}

/* Number in the piece of the part's first tile; the part's tiles follow one another. */
static int64_t first_in_piece(
    const struct manifest *m, const struct ckpt_piece *p, const struct rect *part)
{
    const struct tile_grid *g = &m->tensors[p->tensor].grid;
    const struct rect all = tile_cover(g, &p->at), some = tile_cover(g, part);

    return ((some.lo[0] - all.lo[0]) * rect_len(&all, 1) + some.lo[1] - all.lo[1])
        * rect_len(&all, 2)
        + some.lo[2] - all.lo[2];
}

/* After a part is stored: marks its tiles, finishes or syncs what is due. */
static int part_stored(struct writer *w, int64_t piece, const struct rect *part,
    size_t element, struct glm_error *err)
{
    const struct ckpt_piece *p = &w->m->pieces[piece];
    struct shard_state *s = &w->shards[p->shard];
    struct rect tiles = tile_cover(&w->m->tensors[p->tensor].grid, part);
    struct add a = {.w = w,
        .group = s->is_packed ? -1 : p->shard,
        .bytes = s->is_packed ? 0 : (uint64_t)rect_count(part) * element,
        .err = err};

    each_row_run(&w->m->tensors[p->tensor], part, add_run, &a);
    pthread_mutex_lock(&s->lock);
    s->left -= rect_count(&tiles);
    const bool whole = s->left == 0;
    pthread_mutex_unlock(&s->lock);
    if (err->code == GLM_OK && whole && s->is_packed)
        writer_finish_packed(w, p->shard, err);
    if (err->code == GLM_OK && a.due)
        ledger_sync(&w->ledger, w->work, writer_sync_runs, w, err);
    return (int)err->code;
}

static int put_packed(struct writer *w, int64_t piece, const struct rect *part,
    const struct rect *at, const void *data, const struct writer_frame *given,
    size_t element, struct writer_scratch *s, struct glm_error *err)
{
    const struct ckpt_piece *p = &w->m->pieces[piece];
    const struct tile_grid *g = &w->m->tensors[p->tensor].grid;
    const struct rect part_tiles = tile_cover(g, part), at_tiles = tile_cover(g, at);
    struct writer_frame *frames = NULL;
    int64_t count = 0;

    if (given != NULL) { /* pick the part's frames out of the rectangle's */
        frames = calloc((size_t)rect_count(&part_tiles), sizeof *frames);
        if (frames == NULL)
            return glm_fail(err, GLM_ENOMEM, "no memory for frames");
        region_copy(frames, &part_tiles, given, &at_tiles, &part_tiles, sizeof *frames);
        count = rect_count(&part_tiles);
    } else if (pack_part(w, piece, part, at, data, element, s, &frames, &count, err)
        != GLM_OK) {
        goto out;
    }
    const int64_t first = first_in_piece(w->m, p, part);
    for (int64_t i = 0; i < count; i++)
        digest_of(
            frames[i].data, frames[i].size, w->chunks[p->first_chunk + first + i].sha256);
    put_in_turn(w, piece, first, &(struct frame_list){frames, count}, err);
out:
    free(frames);
    return (int)err->code;
}

static int put_parts(struct writer *w, int64_t tensor, const struct rect *at,
    const void *data, const struct writer_frame *frames, struct writer_scratch *s,
    struct glm_error *err)
{
    const struct ckpt_tensor *t = &w->m->tensors[tensor];
    const size_t element = glm_dtype_size(t->dtype);
    struct rect part;

    for (int64_t i = t->first_piece; i < t->first_piece + t->pieces; i++) {
        const struct ckpt_piece *p = &w->m->pieces[i];
        if (!rect_intersect(&p->at, at, &part) || w->shards[p->shard].phase == SHARD_WHOLE
            || each_row_run(t, &part, run_is_done, &w->ledger))
            continue;
        if (p->encoding == ENC_ZSTD)
            put_packed(w, i, &part, at, data, frames, element, s, err);
        else if (writer_open_shard(w, p->shard, err) == GLM_OK)
            write_plain(w, p, &part, at, data, element, s, err);
        if (err->code != GLM_OK || part_stored(w, i, &part, element, err) != GLM_OK) {
            writer_fail(w);
            return glm_within(err, "tensor '%s'", t->name);
        }
    }
    return GLM_OK;
}

int writer_put(struct writer *w, int64_t tensor, const struct rect *at, const void *data,
    const unsigned char *digests, struct writer_scratch *s, struct glm_error *err)
{
    const struct ckpt_tensor *t = &w->m->tensors[tensor];
    const struct rect tiles = tile_cover(&t->grid, at);
    unsigned char *own = NULL;

    if (digests == NULL) {
        own = malloc((size_t)rect_count(&tiles) * DIGEST_SIZE);
        if (own == NULL
            || !reader_hash_tiles(&t->grid, at, glm_dtype_size(t->dtype), data, own)) {
            free(own);
            return glm_fail(err, GLM_ENOMEM, "no memory for tile digests");
        }
        digests = own;
    }
    each_row_run(t, at, note_run, &(struct note){w, digests});
    free(own);
    return put_parts(w, tensor, at, data, NULL, s, err);
}

int writer_put_frames(struct writer *w, int64_t tensor, const struct rect *at,
    const struct writer_frame *frames, const unsigned char *digests,
    struct glm_error *err)
{
    each_row_run(&w->m->tensors[tensor], at, note_run, &(struct note){w, digests});
    return put_parts(w, tensor, at, NULL, frames, NULL, err);
}

bool writer_chunk_dims(const struct writer *w, int64_t tensor, const struct rect *tile,
    int64_t dims[RECT_AXES])
{
    const struct ckpt_tensor *t = &w->m->tensors[tensor];

    for (int64_t i = t->first_piece; i < t->first_piece + t->pieces; i++)
        if (rect_contains(&w->m->pieces[i].at, tile)) {
            shard_chunk_dims(w->m, &w->m->pieces[i], dims);
            return w->m->pieces[i].encoding == ENC_ZSTD;
        }
    return false;
}

void writer_fail(struct writer *w)
{
    w->failed = true;
    for (int64_t i = 0; i < w->m->shard_count; i++) {
        pthread_mutex_lock(&w->shards[i].lock);
        pthread_cond_broadcast(&w->shards[i].turn);
        pthread_mutex_unlock(&w->shards[i].lock);
    }
}
