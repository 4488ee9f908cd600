/* Tiles into shards: plain pieces by direct writes at offsets that the skeleton gave, packed ones
 * through libhdf5 in manifest order.
 *
 *     CKPT.partial/shard-*.h5   skeletons, then data
 *                  tiles.part   digests of tiles, row i at byte 32 i; rows count when journaled
 *                  chunks.part  the same for chunk rows (48 bytes) of packed shards that are whole
 *                  journal      done <shard> <first row> <count>    plain data, durable
 *                               packed <shard> <bytes> <skeleton>   a packed shard, whole and durable
 *
 * A packed shard that was not whole when the process died is written anew: the place of a frame in
 * the file depends on all frames before it. Everything else goes on where it was. */
#include "ckpt/writer.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/digest.h"
#include "ckpt/dio.h"
#include "ckpt/index.h"
#include "ckpt/ledger.h"
#include "ckpt/packed.h"
#include "ckpt/reader.h"
#include "ckpt/region.h"
#include "ckpt/shard.h"

enum { BOUNCE = 8 << 20, CHUNK_ROW = 48 };

enum shard_phase { SHARD_ABSENT, SHARD_OPEN, SHARD_WHOLE };

struct shard_state {
    pthread_mutex_t lock;
    pthread_cond_t turn;         /* packed: the cursor moved */
    enum shard_phase phase;
    struct dio file;
    struct packed_shard *packed; /* NULL for a plain shard */
    bool is_packed;
    int64_t left;                /* tiles still to come */
    int64_t cursor;              /* packed: chunks stored so far */
};

struct writer {
    struct manifest *m;
    struct work *work;
    struct ledger ledger;
    unsigned char *tiles;        /* [tile_count][32] */
    struct ckpt_chunk *chunks;   /* [chunk_count] */
    struct shard_state *shards;  /* [shard_count] */
    int64_t *chunk_base;         /* [piece_count]: chunks before a packed piece in its shard */
    struct dio tiles_part, chunks_part;
    pthread_mutex_t lock;
    bool new_files;              /* created since the folder was last synced; under lock */
    volatile bool failed;
    unsigned char *fingerprint, *id; /* the caller's, filled by the commit; may be NULL */
};

struct writer_scratch {
    struct packer *packer;
    unsigned char *bounce;                    /* BOUNCE bytes */
    unsigned char *part;   size_t part_size;  /* a gathered part of a rectangle */
    unsigned char *chunk;  size_t chunk_size; /* one padded chunk */
    unsigned char *frames; size_t frames_size;
};

/* ---- scratch ---------------------------------------------------------------------------------- */

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
    dio_free(s->part, s->part_size);
    dio_free(s->chunk, s->chunk_size);
    dio_free(s->frames, s->frames_size);
    free(s);
}

static int reserve(unsigned char **p, size_t *size, size_t need, struct glm_error *err)
{
    if (*size >= need)
        return GLM_OK;
    dio_free(*p, *size);
    *size = 0;
    *p = dio_alloc(need);
    if (*p == NULL)
        return glm_fail(err, GLM_ENOMEM, "no memory for a buffer of %zu bytes", need);
    *size = need;
    return GLM_OK;
}

/* ---- shards ----------------------------------------------------------------------------------- */

static void shard_path(const struct writer *w, int64_t no, char out[4096])
{
    snprintf(out, 4096, "%s/%s", work_path(w->work), w->m->shards[no].file);
}

static void note_new_file(struct writer *w)
{
    pthread_mutex_lock(&w->lock);
    w->new_files = true;
    pthread_mutex_unlock(&w->lock);
}

/* Makes the shard's file unless it is there. Called under the shard's lock. */
static int ensure_shard(struct writer *w, int64_t no, struct glm_error *err)
{
    struct shard_state *s = &w->shards[no];
    char path[4096];

    if (s->phase != SHARD_ABSENT)
        return GLM_OK;
    shard_path(w, no, path);
    if (s->is_packed) {
        if (shard_create_packed(&s->packed, w->m, no, path, err) != GLM_OK)
            return (int)err->code;
    } else if (shard_create_plain(w->m, no, path, err) != GLM_OK ||
        shard_skeleton(w->m, NULL, no, path, w->m->shards[no].skeleton, err) != GLM_OK) {
        return (int)err->code;
    }
    if (dio_open_write(&s->file, path, false, err) != GLM_OK)
        return (int)err->code;
    /* Space is asked for at once: a full disk shows here, and files do not interleave. */
    if (!s->is_packed && fallocate(s->file.fd, 0, 0, (off_t)w->m->shards[no].bytes) != 0 &&
        errno != EOPNOTSUPP && errno != ENOSYS)
        return glm_fail_errno(
            err, "%s: reserve %" PRIu64 " bytes", path, w->m->shards[no].bytes);
    note_new_file(w);
    s->phase = SHARD_OPEN;
    return GLM_OK;
}

static int open_shard(struct writer *w, int64_t no, struct glm_error *err)
{
    struct shard_state *s = &w->shards[no];
    char path[4096];

    pthread_mutex_lock(&s->lock);
    if (ensure_shard(w, no, err) == GLM_OK && s->file.path == NULL) {
        shard_path(w, no, path); /* closed after a sync, or left by an earlier run */
        dio_open_write(&s->file, path, false, err);
    }
    pthread_mutex_unlock(&s->lock);
    return (int)err->code;
}

/* ---- making things durable -------------------------------------------------------------------- */

static int save_rows(struct writer *w, int64_t first, int64_t count, struct glm_error *err)
{
    return dio_write(&w->tiles_part, (uint64_t)first * DIGEST_SIZE,
        w->tiles + (size_t)first * DIGEST_SIZE, (size_t)count * DIGEST_SIZE, NULL, 0, err);
}

static int sync_new_files(struct writer *w, struct glm_error *err)
{
    pthread_mutex_lock(&w->lock);
    const bool due = w->new_files;
    w->new_files = false;
    pthread_mutex_unlock(&w->lock);
    return due ? dio_sync_folder(work_path(w->work), err) : GLM_OK;
}

/* Data, then the folder, then digests; the ledger journals after that. */
static int sync_runs(
    void *ctx, const struct ledger_run *runs, int64_t count, struct glm_error *err)
{
    struct writer *w = ctx;

    for (int64_t i = 0; i < count; i++) {
        struct shard_state *s = &w->shards[runs[i].group];
        if (save_rows(w, runs[i].first, runs[i].count, err) != GLM_OK)
            return (int)err->code;
        if (i > 0 && runs[i].group == runs[i - 1].group)
            continue;
        if (open_shard(w, runs[i].group, err) != GLM_OK || dio_sync(&s->file, err) != GLM_OK)
            return (int)err->code;
        pthread_mutex_lock(&s->lock);
        if (s->left == 0)
            dio_close(&s->file);
        pthread_mutex_unlock(&s->lock);
    }
    if (sync_new_files(w, err) != GLM_OK)
        return (int)err->code;
    return dio_sync(&w->tiles_part, err);
}

static int64_t chunk_tiles(const struct manifest *m, const struct ckpt_piece *p)
{
    struct rect tiles;
    return shard_piece_tiles(m, p, &tiles);
}

static void pack_chunk_row(const struct ckpt_chunk *c, unsigned char out[CHUNK_ROW])
{
    memcpy(out, &c->offset, 8);
    memcpy(out + 8, &c->bytes, 4);
    memcpy(out + 12, &c->mask, 4);
    memcpy(out + 16, c->sha256, DIGEST_SIZE);
}

static void unpack_chunk_row(struct ckpt_chunk *c, const unsigned char in[CHUNK_ROW])
{
    memcpy(&c->offset, in, 8);
    memcpy(&c->bytes, in + 8, 4);
    memcpy(&c->mask, in + 12, 4);
    memcpy(c->sha256, in + 16, DIGEST_SIZE);
}

/* Calls fn for each run of rows of /tiles that a piece holds. */
static int piece_rows(struct writer *w, const struct ckpt_piece *p,
    int (*fn)(struct writer *, int64_t first, int64_t count, struct glm_error *),
    struct glm_error *err)
{
    const struct ckpt_tensor *t = &w->m->tensors[p->tensor];
    const struct rect tiles = tile_cover(&t->grid, &p->at);

    for (int64_t e = tiles.lo[0]; e < tiles.hi[0]; e++)
        for (int64_t gr = tiles.lo[1]; gr < tiles.hi[1]; gr++)
            if (fn(w, t->first_tile + tile_index(&t->grid, e, gr, tiles.lo[2]),
                    rect_len(&tiles, 2), err) != GLM_OK)
                return (int)err->code;
    return GLM_OK;
}

static int save_chunk_rows(struct writer *w, const struct ckpt_piece *p, struct glm_error *err)
{
    for (int64_t i = 0; i < p->chunks; i++) {
        unsigned char row[CHUNK_ROW];
        pack_chunk_row(&w->chunks[p->first_chunk + i], row);
        if (dio_write(&w->chunks_part, (uint64_t)(p->first_chunk + i) * CHUNK_ROW, row, CHUNK_ROW,
                NULL, 0, err) != GLM_OK)
            return (int)err->code;
    }
    return GLM_OK;
}

/* All tiles of a packed shard are stored: close it, make it durable, journal it. */
static int finish_packed(struct writer *w, int64_t no, struct glm_error *err)
{
    struct shard_state *s = &w->shards[no];
    struct packed_shard *packed = s->packed;
    char path[4096], hex[DIGEST_HEX], line[256];

    shard_path(w, no, path);
    s->packed = NULL;
    if (shard_close_packed(packed, w->chunks, err) != GLM_OK ||
        shard_skeleton(w->m, w->chunks, no, path, w->m->shards[no].skeleton, err) != GLM_OK)
        return (int)err->code;
    pthread_mutex_lock(&w->ledger.sync_lock);
    if (dio_sync(&s->file, err) != GLM_OK || sync_new_files(w, err) != GLM_OK)
        goto out;
    for (int64_t i = 0; i < w->m->piece_count; i++)
        if (w->m->pieces[i].shard == no &&
            (save_chunk_rows(w, &w->m->pieces[i], err) != GLM_OK ||
                piece_rows(w, &w->m->pieces[i], save_rows, err) != GLM_OK))
            goto out;
    if (dio_sync(&w->chunks_part, err) != GLM_OK || dio_sync(&w->tiles_part, err) != GLM_OK)
        goto out;
    digest_hex(w->m->shards[no].skeleton, hex);
    snprintf(line, sizeof line, "packed %" PRId64 " %" PRIu64 " %s\n", no, w->m->shards[no].bytes,
        hex);
    work_journal(w->work, line, err);
    dio_close(&s->file);
    s->phase = SHARD_WHOLE;
out:
    pthread_mutex_unlock(&w->ledger.sync_lock);
    return (int)err->code;
}

/* ---- continuing ------------------------------------------------------------------------------- */

/* Offsets of a shard's pieces follow from the manifest alone: made again in a file beside. */
static int recompute_offsets(struct writer *w, int64_t no, struct glm_error *err)
{
    char path[4096];

    snprintf(path, sizeof path, "%s/again.tmp", work_path(w->work));
    if (w->shards[no].is_packed) {
        struct packed_shard *p;
        if (shard_create_packed(&p, w->m, no, path, err) == GLM_OK)
            shard_abandon_packed(p);
    } else if (shard_create_plain(w->m, no, path, err) == GLM_OK) {
        shard_skeleton(w->m, NULL, no, path, w->m->shards[no].skeleton, err);
    }
    unlink(path);
    return (int)err->code;
}

/* Whether the file that an earlier run left is the one the journal speaks of. */
static bool shard_is_there(struct writer *w, int64_t no)
{
    unsigned char skeleton[DIGEST_SIZE];
    struct glm_error ignored = {0};
    struct stat st;
    char path[4096];

    shard_path(w, no, path);
    return lstat(path, &st) == 0 && S_ISREG(st.st_mode) &&
        (uint64_t)st.st_size == w->m->shards[no].bytes &&
        shard_skeleton(w->m, w->chunks, no, path, skeleton, &ignored) == GLM_OK &&
        memcmp(skeleton, w->m->shards[no].skeleton, DIGEST_SIZE) == 0;
}

static int load_rows(struct writer *w, int64_t first, int64_t count, struct glm_error *err)
{
    return dio_pread(&w->tiles_part, (uint64_t)first * DIGEST_SIZE, (size_t)count * DIGEST_SIZE,
        w->tiles + (size_t)first * DIGEST_SIZE, err);
}

static int mark_rows(struct writer *w, int64_t first, int64_t count, struct glm_error *err)
{
    bool due;
    return ledger_add(&w->ledger, -1, first, count, 0, &due, err);
}

static int replay_packed(struct writer *w, const char *line, struct glm_error *err)
{
    int64_t no;
    uint64_t bytes;
    char hex[DIGEST_HEX];

    if (sscanf(line, "packed %" SCNd64 " %" SCNu64 " %64s", &no, &bytes, hex) != 3 || no < 0 ||
        no >= w->m->shard_count || !w->shards[no].is_packed)
        return GLM_OK;
    if (recompute_offsets(w, no, err) != GLM_OK)
        return (int)err->code;
    struct ckpt_shard *shard = &w->m->shards[no];
    shard->bytes = bytes;
    if (!digest_from_hex(hex, shard->skeleton))
        return GLM_OK;
    for (int64_t i = 0; i < w->m->piece_count; i++) {
        struct ckpt_piece *p = &w->m->pieces[i];
        if (p->shard != no || p->encoding != ENC_ZSTD)
            continue;
        p->bytes = 0;
        for (int64_t c = 0; c < p->chunks; c++) {
            unsigned char row[CHUNK_ROW];
            if (dio_pread(&w->chunks_part, (uint64_t)(p->first_chunk + c) * CHUNK_ROW, CHUNK_ROW,
                    row, err) != GLM_OK)
                return (int)err->code;
            unpack_chunk_row(&w->chunks[p->first_chunk + c], row);
            p->bytes += w->chunks[p->first_chunk + c].bytes;
        }
    }
    if (!shard_is_there(w, no))
        return GLM_OK;
    for (int64_t i = 0; i < w->m->piece_count; i++)
        if (w->m->pieces[i].shard == no &&
            (piece_rows(w, &w->m->pieces[i], load_rows, err) != GLM_OK ||
                piece_rows(w, &w->m->pieces[i], mark_rows, err) != GLM_OK))
            return (int)err->code;
    w->shards[no].phase = SHARD_WHOLE;
    w->shards[no].left = 0;
    return GLM_OK;
}

static int replay_line(void *ctx, char *line, struct glm_error *err)
{
    struct writer *w = ctx;
    struct ledger_run run;

    if (strncmp(line, "packed ", 7) == 0)
        return replay_packed(w, line, err);
    if (!ledger_replay(&w->ledger, line, &run))
        return GLM_OK;
    if (run.group >= w->m->shard_count || w->shards[run.group].is_packed) {
        ledger_forget(&w->ledger, run.first, run.count);
        return GLM_OK;
    }
    struct shard_state *s = &w->shards[run.group];
    if (s->phase == SHARD_ABSENT) {
        if (recompute_offsets(w, run.group, err) != GLM_OK)
            return (int)err->code;
        if (!shard_is_there(w, run.group)) {
            ledger_forget(&w->ledger, run.first, run.count);
            return GLM_OK;
        }
        s->phase = SHARD_OPEN;
    }
    s->left -= run.count;
    return load_rows(w, run.first, run.count, err);
}

/* ---- open ------------------------------------------------------------------------------------- */

/* Per shard the tiles to come, per packed piece the chunks before it. */
static int count_work(struct writer *w, struct glm_error *err)
{
    const struct manifest *m = w->m;
    int64_t *chunks = calloc((size_t)m->shard_count + 1, sizeof *chunks);

    if (chunks == NULL)
        return glm_fail(err, GLM_ENOMEM, "no memory for %" PRId64 " shards", m->shard_count);
    for (int64_t i = 0; i < m->piece_count; i++) {
        const struct ckpt_piece *p = &m->pieces[i];
        struct shard_state *s = &w->shards[p->shard];
        s->left += chunk_tiles(m, p);
        w->chunk_base[i] = chunks[p->shard];
        if (p->encoding == ENC_ZSTD) {
            s->is_packed = true;
            chunks[p->shard] += p->chunks;
        }
    }
    free(chunks);
    return GLM_OK;
}

static int allocate(struct writer *w, struct glm_error *err)
{
    const struct manifest *m = w->m;

    w->tiles = calloc((size_t)m->tile_count + 1, DIGEST_SIZE);
    w->chunks = calloc((size_t)m->chunk_count + 1, sizeof *w->chunks);
    w->shards = calloc((size_t)m->shard_count + 1, sizeof *w->shards);
    w->chunk_base = calloc((size_t)m->piece_count + 1, sizeof *w->chunk_base);
    if (w->tiles == NULL || w->chunks == NULL || w->shards == NULL || w->chunk_base == NULL)
        return glm_fail(err, GLM_ENOMEM, "no memory for %" PRId64 " tiles", m->tile_count);
    for (int64_t i = 0; i < m->shard_count; i++) {
        pthread_mutex_init(&w->shards[i].lock, NULL);
        pthread_cond_init(&w->shards[i].turn, NULL);
        w->shards[i].file = (struct dio){.fd = -1, .direct = -1};
    }
    return ledger_init(&w->ledger, m->tile_count, err);
}

static int open_parts(struct writer *w, struct glm_error *err)
{
    char path[4096];

    snprintf(path, sizeof path, "%s/tiles.part", work_path(w->work));
    if (dio_open_write(&w->tiles_part, path, true, err) != GLM_OK)
        return (int)err->code;
    snprintf(path, sizeof path, "%s/chunks.part", work_path(w->work));
    w->new_files = true;
    return w->m->chunk_count == 0 ? GLM_OK : dio_open_write(&w->chunks_part, path, true, err);
}

int writer_open(struct writer **out, struct manifest *m, const struct work_options *o,
    bool *resumed, struct glm_error *err)
{
    struct writer *w = calloc(1, sizeof *w);

    *out = NULL;
    if (w == NULL) {
        manifest_free(m);
        return glm_fail(err, GLM_ENOMEM, "%s: no memory", o->target);
    }
    w->m = m;
    w->tiles_part = w->chunks_part = (struct dio){.fd = -1, .direct = -1};
    pthread_mutex_init(&w->lock, NULL);
    dio_raise_limit();
    if (allocate(w, err) != GLM_OK || count_work(w, err) != GLM_OK ||
        work_open(&w->work, o, resumed, err) != GLM_OK || open_parts(w, err) != GLM_OK)
        goto out;
    if (*resumed && work_replay(w->work, replay_line, w, err) != GLM_OK)
        goto out;
    *out = w;
    w = NULL;
out:
    writer_close(w);
    return (int)err->code;
}

const struct manifest *writer_manifest(const struct writer *w) { return w->m; }

/* ---- putting ---------------------------------------------------------------------------------- */

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
    memcpy(n->w->tiles + (size_t)first * DIGEST_SIZE, n->digests, (size_t)count * DIGEST_SIZE);
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
static int write_plain(struct writer *w, const struct ckpt_piece *p, const struct rect *part,
    const struct rect *at, const void *data, size_t element, struct writer_scratch *s,
    struct glm_error *err)
{
    const struct dio *f = &w->shards[p->shard].file;
    struct rect one = *part;

    for (int64_t e = part->lo[0]; e < part->hi[0]; e++) {
        one.lo[0] = e;
        one.hi[0] = e + 1;
        const unsigned char *from = (const unsigned char *)data +
            region_at(at, e, part->lo[1], part->lo[2], element);
        const uint64_t to =
            p->offset + region_at(&p->at, e, part->lo[1], part->lo[2], element);
        const size_t size = (size_t)rect_count(&one) * element;
        if (region_contiguous(&p->at, &one)) {
            if (!region_contiguous(at, &one)) {
                if (reserve(&s->part, &s->part_size, size, err) != GLM_OK)
                    return (int)err->code;
                region_copy(s->part, &one, data, at, &one, element);
                from = s->part;
            }
            if (dio_write(f, to, from, size, s->bounce, BOUNCE, err) != GLM_OK)
                return (int)err->code;
            continue;
        }
        const size_t row = (size_t)rect_len(part, 2) * element;
        for (int64_t r = part->lo[1]; r < part->hi[1]; r++)
            if (dio_write(f, p->offset + region_at(&p->at, e, r, part->lo[2], element),
                    (const unsigned char *)data + region_at(at, e, r, part->lo[2], element), row,
                    s->bounce, BOUNCE, err) != GLM_OK)
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
        glm_fail(err, GLM_EIO, "stopped: another part failed");
    else
        ensure_shard(w, p->shard, err);
    for (int64_t i = 0; err->code == GLM_OK && i < list->count; i++) {
        const struct writer_frame *f = &list->frames[i];
        struct ckpt_chunk *c = &w->chunks[p->first_chunk + first + i];
        c->bytes = (uint32_t)f->size;
        c->mask = f->mask;
        if (shard_put_chunk(s->packed, piece, first + i, f->data, f->size, f->mask, err) == GLM_OK)
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
        return glm_fail(err, GLM_ENOMEM, "no memory for %" PRId64 " frames", rect_count(&tiles));
    if (reserve(&s->chunk, &s->chunk_size, raw, err) != GLM_OK ||
        reserve(&s->frames, &s->frames_size, bound * (size_t)rect_count(&tiles), err) != GLM_OK)
        return (int)err->code;
    for (int64_t e = tiles.lo[0]; e < tiles.hi[0]; e++)
        for (int64_t gr = tiles.lo[1]; gr < tiles.hi[1]; gr++)
            for (int64_t gc = tiles.lo[2]; gc < tiles.hi[2]; gc++) {
                const struct rect tile = tile_rect(g, tile_index(g, e, gr, gc));
                struct rect over = tile;
                for (int a = 0; a < RECT_AXES; a++)
                    over.hi[a] = over.lo[a] + dims[a];
                if (!rect_equal(&over, &tile))
                    memset(s->chunk, 0, raw);
                region_copy(s->chunk, &over, data, at, &tile, element);
                struct writer_frame *f = &(*frames)[(*count)++];
                f->data = s->frames + used;
                if (packer_pack(s->packer, s->chunk, raw, element, s->frames + used, &f->size,
                        &f->mask, err) != GLM_OK)
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

    return ((some.lo[0] - all.lo[0]) * rect_len(&all, 1) + some.lo[1] - all.lo[1]) *
        rect_len(&all, 2) + some.lo[2] - all.lo[2];
}

/* After a part is stored: marks its tiles, finishes or syncs what is due. */
static int part_stored(
    struct writer *w, int64_t piece, const struct rect *part, size_t element, struct glm_error *err)
{
    const struct ckpt_piece *p = &w->m->pieces[piece];
    struct shard_state *s = &w->shards[p->shard];
    struct rect tiles = tile_cover(&w->m->tensors[p->tensor].grid, part);
    struct add a = {.w = w, .group = s->is_packed ? -1 : p->shard,
        .bytes = s->is_packed ? 0 : (uint64_t)rect_count(part) * element, .err = err};

    each_row_run(&w->m->tensors[p->tensor], part, add_run, &a);
    pthread_mutex_lock(&s->lock);
    s->left -= rect_count(&tiles);
    const bool whole = s->left == 0;
    pthread_mutex_unlock(&s->lock);
    if (err->code == GLM_OK && whole && s->is_packed)
        finish_packed(w, p->shard, err);
    if (err->code == GLM_OK && a.due)
        ledger_sync(&w->ledger, w->work, sync_runs, w, err);
    return (int)err->code;
}

static int put_packed(struct writer *w, int64_t piece, const struct rect *part,
    const struct rect *at, const void *data, const struct writer_frame *given, size_t element,
    struct writer_scratch *s, struct glm_error *err)
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
    } else if (pack_part(w, piece, part, at, data, element, s, &frames, &count, err) != GLM_OK) {
        goto out;
    }
    const int64_t first = first_in_piece(w->m, p, part);
    for (int64_t i = 0; i < count; i++)
        digest_of(frames[i].data, frames[i].size, w->chunks[p->first_chunk + first + i].sha256);
    put_in_turn(w, piece, first, &(struct frame_list){frames, count}, err);
out:
    free(frames);
    return (int)err->code;
}

static int put_parts(struct writer *w, int64_t tensor, const struct rect *at, const void *data,
    const struct writer_frame *frames, struct writer_scratch *s, struct glm_error *err)
{
    const struct ckpt_tensor *t = &w->m->tensors[tensor];
    const size_t element = glm_dtype_size(t->dtype);
    struct rect part;

    for (int64_t i = t->first_piece; i < t->first_piece + t->pieces; i++) {
        const struct ckpt_piece *p = &w->m->pieces[i];
        if (!rect_intersect(&p->at, at, &part) || w->shards[p->shard].phase == SHARD_WHOLE ||
            each_row_run(t, &part, run_is_done, &w->ledger))
            continue;
        if (p->encoding == ENC_ZSTD)
            put_packed(w, i, &part, at, data, frames, element, s, err);
        else if (open_shard(w, p->shard, err) == GLM_OK)
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
        if (own == NULL)
            return glm_fail(err, GLM_ENOMEM, "no memory for tile digests");
        reader_hash_tiles(&t->grid, at, glm_dtype_size(t->dtype), data, own);
        digests = own;
    }
    each_row_run(t, at, note_run, &(struct note){w, digests});
    free(own);
    return put_parts(w, tensor, at, data, NULL, s, err);
}

int writer_put_frames(struct writer *w, int64_t tensor, const struct rect *at,
    const struct writer_frame *frames, const unsigned char *digests, struct glm_error *err)
{
    each_row_run(&w->m->tensors[tensor], at, note_run, &(struct note){w, digests});
    return put_parts(w, tensor, at, NULL, frames, NULL, err);
}

bool writer_chunk_dims(
    const struct writer *w, int64_t tensor, const struct rect *tile, int64_t dims[RECT_AXES])
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

/* ---- commit ----------------------------------------------------------------------------------- */

static int refuse_gaps(struct writer *w, struct glm_error *err)
{
    int64_t row;
    const int64_t missing = ledger_missing(&w->ledger, &row);

    if (missing == 0)
        return GLM_OK;
    const struct ckpt_tensor *t = w->m->tensors;
    while (t + 1 < w->m->tensors + w->m->tensor_count && t[1].first_tile <= row)
        t++;
    return glm_fail(err, GLM_EFORMAT,
        "%" PRId64 " of %" PRId64 " tiles were never written, the first is tile %" PRId64
        " of '%s'", missing, w->m->tile_count, row - t->first_tile, t->name);
}

void writer_report_to(struct writer *w, unsigned char *fingerprint, unsigned char *id)
{
    w->fingerprint = fingerprint;
    w->id = id;
}

int writer_commit(struct writer *w, struct glm_error *err)
{
    static const char *const extras[] = {"tiles.part", "chunks.part", NULL};
    char path[4096];

    if (refuse_gaps(w, err) != GLM_OK ||
        ledger_sync(&w->ledger, w->work, sync_runs, w, err) != GLM_OK ||
        manifest_seal(w->m, w->tiles, err) != GLM_OK)
        return (int)err->code;
    snprintf(path, sizeof path, "%s/index.h5", work_path(w->work));
    if (unlink(path) != 0 && errno != ENOENT)
        return glm_fail_errno(err, "%s: remove what an earlier run left", path);
    if (index_write(w->m, w->tiles, w->chunks, path, err) != GLM_OK ||
        work_commit(w->work, extras, err) != GLM_OK)
        return (int)err->code;
    if (w->fingerprint != NULL)
        memcpy(w->fingerprint, w->m->fingerprint, DIGEST_SIZE);
    if (w->id != NULL)
        memcpy(w->id, w->m->id, DIGEST_SIZE);
    w->work = NULL;
    writer_close(w);
    return GLM_OK;
}

void writer_close(struct writer *w)
{
    struct glm_error ignored = {0};

    if (w == NULL)
        return;
    if (w->work != NULL && w->ledger.bits != NULL)
        ledger_sync(&w->ledger, w->work, sync_runs, w, &ignored);
    for (int64_t i = 0; w->shards != NULL && i < w->m->shard_count; i++) {
        if (w->shards[i].packed != NULL)
            shard_abandon_packed(w->shards[i].packed);
        dio_close(&w->shards[i].file);
        pthread_mutex_destroy(&w->shards[i].lock);
        pthread_cond_destroy(&w->shards[i].turn);
    }
    ledger_clear(&w->ledger);
    dio_close(&w->tiles_part);
    dio_close(&w->chunks_part);
    work_close(w->work);
    manifest_free(w->m);
    free(w->tiles);
    free(w->chunks);
    free(w->shards);
    free(w->chunk_base);
    pthread_mutex_destroy(&w->lock);
    free(w);
}
