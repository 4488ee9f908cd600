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
#include "ckpt/writer_inside.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/digest.h"
#include "ckpt/index.h"

/* ---- shards ----------------------------------------------------------------------------------- */

void writer_shard_path(const struct writer *w, int64_t no, char out[4096])
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
int writer_ensure_shard(struct writer *w, int64_t no, struct glm_error *err)
{
    struct shard_state *s = &w->shards[no];
    char path[4096];

    if (s->phase != SHARD_ABSENT)
        return GLM_OK;
    writer_shard_path(w, no, path);
    if (s->is_packed) {
        if (shard_create_packed(&s->packed, w->m, no, path, err) != GLM_OK)
            return (int)err->code;
    } else if (shard_create_plain(w->m, no, path, err) != GLM_OK
        || shard_skeleton(w->m, NULL, no, path, w->m->shards[no].skeleton, err)
            != GLM_OK) {
        return (int)err->code;
    }
    if (dio_open_write(&s->file, path, false, err) != GLM_OK)
        return (int)err->code;
    /* Space is asked for at once: a full disk shows here, and files do not interleave. */
    if (!s->is_packed && fallocate(s->file.fd, 0, 0, (off_t)w->m->shards[no].bytes) != 0
        && errno != EOPNOTSUPP && errno != ENOSYS)
        return glm_fail_errno(
            err, "%s: reserve %" PRIu64 " bytes", path, w->m->shards[no].bytes);
    note_new_file(w);
    s->phase = SHARD_OPEN;
    return GLM_OK;
}

int writer_open_shard(struct writer *w, int64_t no, struct glm_error *err)
{
    struct shard_state *s = &w->shards[no];
    char path[4096];

    pthread_mutex_lock(&s->lock);
    if (writer_ensure_shard(w, no, err) == GLM_OK && s->file.path == NULL) {
        writer_shard_path(
            w, no, path); /* closed after a sync, or left by an earlier run */
        dio_open_write(&s->file, path, false, err);
    }
    pthread_mutex_unlock(&s->lock);
    return (int)err->code;
}

/* ---- making things durable -------------------------------------------------------------------- */

static int save_rows(
    struct writer *w, int64_t first, int64_t count, struct glm_error *err)
{
    return dio_write(&w->tiles_part, (uint64_t)first * DIGEST_SIZE,
        w->tiles + (size_t)first * DIGEST_SIZE, (size_t)count * DIGEST_SIZE, NULL, 0,
        err);
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
int writer_sync_runs(
    void *ctx, const struct ledger_run *runs, int64_t count, struct glm_error *err)
{
    struct writer *w = ctx;

    for (int64_t i = 0; i < count; i++) {
        struct shard_state *s = &w->shards[runs[i].group];
        if (save_rows(w, runs[i].first, runs[i].count, err) != GLM_OK)
            return (int)err->code;
        if (i > 0 && runs[i].group == runs[i - 1].group)
            continue;
        if (writer_open_shard(w, runs[i].group, err) != GLM_OK
            || dio_sync(&s->file, err) != GLM_OK)
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

/* Calls fn for each run of rows of /tiles that a piece holds. */
int writer_piece_rows(struct writer *w, const struct ckpt_piece *p,
    int (*fn)(struct writer *, int64_t first, int64_t count, struct glm_error *),
    struct glm_error *err)
{
    const struct ckpt_tensor *t = &w->m->tensors[p->tensor];
    const struct rect tiles = tile_cover(&t->grid, &p->at);

    for (int64_t e = tiles.lo[0]; e < tiles.hi[0]; e++)
        for (int64_t gr = tiles.lo[1]; gr < tiles.hi[1]; gr++)
            if (fn(w, t->first_tile + tile_index(&t->grid, e, gr, tiles.lo[2]),
                    rect_len(&tiles, 2), err)
                != GLM_OK)
                return (int)err->code;
    return GLM_OK;
}

static int save_chunk_rows(
    struct writer *w, const struct ckpt_piece *p, struct glm_error *err)
{
    for (int64_t i = 0; i < p->chunks; i++) {
        unsigned char row[CHUNK_ROW];
        pack_chunk_row(&w->chunks[p->first_chunk + i], row);
        if (dio_write(&w->chunks_part, (uint64_t)(p->first_chunk + i) * CHUNK_ROW, row,
                CHUNK_ROW, NULL, 0, err)
            != GLM_OK)
            return (int)err->code;
    }
    return GLM_OK;
}

/* All tiles of a packed shard are stored: close it, make it durable, journal it. */
int writer_finish_packed(struct writer *w, int64_t no, struct glm_error *err)
{
    struct shard_state *s = &w->shards[no];
    struct packed_shard *packed = s->packed;
    char path[4096], hex[DIGEST_HEX], line[256];

    writer_shard_path(w, no, path);
    s->packed = NULL;
    if (shard_close_packed(packed, w->chunks, err) != GLM_OK
        || shard_skeleton(w->m, w->chunks, no, path, w->m->shards[no].skeleton, err)
            != GLM_OK)
        return (int)err->code;
    pthread_mutex_lock(&w->ledger.sync_lock);
    if (dio_sync(&s->file, err) != GLM_OK || sync_new_files(w, err) != GLM_OK)
        goto out;
    for (int64_t i = 0; i < w->m->piece_count; i++)
        if (w->m->pieces[i].shard == no
            && (save_chunk_rows(w, &w->m->pieces[i], err) != GLM_OK
                || writer_piece_rows(w, &w->m->pieces[i], save_rows, err) != GLM_OK))
            goto out;
    if (dio_sync(&w->chunks_part, err) != GLM_OK
        || dio_sync(&w->tiles_part, err) != GLM_OK)
        goto out;
    digest_hex(w->m->shards[no].skeleton, hex);
    snprintf(line, sizeof line, "packed %" PRId64 " %" PRIu64 " %s\n", no,
        w->m->shards[no].bytes, hex);
    work_journal(w->work, line, err);
    dio_close(&s->file);
    s->phase = SHARD_WHOLE;
out:
    pthread_mutex_unlock(&w->ledger.sync_lock);
    return (int)err->code;
}

/* ---- open ------------------------------------------------------------------------------------- */

/* Per shard the tiles to come, per packed piece the chunks before it. */
static int count_work(struct writer *w, struct glm_error *err)
{
    const struct manifest *m = w->m;
    int64_t *chunks = calloc((size_t)m->shard_count + 1, sizeof *chunks);

    if (chunks == NULL)
        return glm_fail(
            err, GLM_ENOMEM, "no memory for %" PRId64 " shards", m->shard_count);
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
    if (w->tiles == NULL || w->chunks == NULL || w->shards == NULL
        || w->chunk_base == NULL)
        return glm_fail(
            err, GLM_ENOMEM, "no memory for %" PRId64 " tiles", m->tile_count);
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
    return w->m->chunk_count == 0 ? GLM_OK
                                  : dio_open_write(&w->chunks_part, path, true, err);
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
    if (allocate(w, err) != GLM_OK || count_work(w, err) != GLM_OK
        || work_open(&w->work, o, resumed, err) != GLM_OK || open_parts(w, err) != GLM_OK)
        goto out;
    if (*resumed && work_replay(w->work, writer_replay_line, w, err) != GLM_OK)
        goto out;
    *out = w;
    w = NULL;
out:
    writer_close(w);
    return (int)err->code;
}

const struct manifest *writer_manifest(const struct writer *w)
{
    return w->m;
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
        " of '%s'",
        missing, w->m->tile_count, row - t->first_tile, t->name);
}

void writer_report_to(struct writer *w, unsigned char *fingerprint, unsigned char *id)
{
    w->fingerprint = fingerprint;
    w->id = id;
}

static const char *const extras[] = {"tiles.part", "chunks.part", NULL};

int writer_finish(const struct work_options *o, unsigned char *fingerprint,
    unsigned char *id, bool *finished, struct glm_error *err)
{
    struct index *ix = NULL;

    if (work_finish(o, extras, finished, err) != GLM_OK || !*finished)
        return (int)err->code;
    if (index_open(&ix, o->target, err) == GLM_OK) {
        memcpy(fingerprint, ix->manifest->fingerprint, DIGEST_SIZE);
        memcpy(id, ix->manifest->id, DIGEST_SIZE);
    }
    index_close(ix);
    return (int)err->code;
}

int writer_commit(struct writer *w, struct glm_error *err)
{
    char path[4096];

    if (refuse_gaps(w, err) != GLM_OK
        || ledger_sync(&w->ledger, w->work, writer_sync_runs, w, err) != GLM_OK
        || manifest_seal(w->m, w->tiles, err) != GLM_OK)
        return (int)err->code;
    snprintf(path, sizeof path, "%s/index.h5", work_path(w->work));
    if (unlink(path) != 0 && errno != ENOENT)
        return glm_fail_errno(err, "%s: remove what an earlier run left", path);
    if (index_write(w->m, w->tiles, w->chunks, path, err) != GLM_OK
        || work_commit(w->work, extras, err) != GLM_OK)
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
        ledger_sync(&w->ledger, w->work, writer_sync_runs, w, &ignored);
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
