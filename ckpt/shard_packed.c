/* Packed shards.
 *
 * They take ready-made chunks. Nothing is ever freed and blocks are not aggregated, so a
 * chunk lies at the end of the file as it is just after the write; asking the library for each
 * chunk's offset would walk the chunk index from its start every time. Two such questions per dataset
 * remain: the first chunk's (the index itself is allocated after it) and, as a check of the
 * reckoning, the last one's. */
#include "ckpt/shard_inside.h"

#include <stdlib.h>
#include <string.h>

#include "ckpt/h5error.h"

struct packed_shard {
    struct manifest *m;
    int64_t no;
    hid_t file, set;     /* set: of the piece being written, or -1 */
    int64_t piece, tile; /* next expected; piece == piece_count: all written */
    struct rect tiles;   /* of the piece */
    int64_t tile_total;
    uint64_t end;      /* of the file after the chunk before */
    uint64_t *offsets; /* per chunk of the shard, in order */
    int64_t offset_count, offset_room;
    uint64_t piece_bytes;
    char *path;
};

static void shard_free_packed(struct packed_shard *s)
{
    if (!s)
        return;
    h5_close_dataset(s->set);
    h5_close_file(s->file);
    free(s->offsets);
    free(s->path);
    free(s);
}

/* Moves to the next piece of this shard at or after `from` and counts its tiles. */
static void shard_seek_piece(struct packed_shard *s, int64_t from)
{
    while (from < s->m->piece_count
        && (s->m->pieces[from].shard != s->no || s->m->pieces[from].encoding != ENC_ZSTD))
        from++;
    s->piece = from;
    s->tile = 0;
    s->tile_total = from < s->m->piece_count
        ? shard_piece_tiles(s->m, &s->m->pieces[from], &s->tiles)
        : 0;
    s->piece_bytes = 0;
}

/* Plain pieces of a packed shard get their room before the first chunk. */
static int shard_reopen_packed(struct packed_shard *s, struct glm_error *err)
{
    const herr_t closed = H5Fclose(s->file);
    s->file = -1;
    if (closed < 0)
        return h5_fail(err, "%s: close", s->path);
    if (shard_allocate_all(s->m, s->no, s->path, err) != 0)
        return err->code;
    const hid_t access = h5_access_list();
    if (access >= 0)
        s->file = H5Fopen(s->path, H5F_ACC_RDWR, access);
    h5_close_list(access);
    return s->file < 0 ? h5_fail(err, "%s: reopen", s->path) : 0;
}

static int shard_packed_locked(struct packed_shard **out, struct manifest *m, int64_t no,
    const char *path, struct glm_error *err)
{
    struct packed_shard *const s = calloc(1, sizeof *s);
    if (!s)
        return glm_fail(err, GLM_ENOMEM, "%s: out of memory", path);
    s->file = s->set = -1;
    s->m = m;
    s->no = no;
    bool plain = false;
    for (int64_t i = 0; i < m->piece_count; i++) {
        if (m->pieces[i].shard == no && m->pieces[i].encoding == ENC_ZSTD)
            s->offset_room += shard_piece_tiles(m, &m->pieces[i], NULL);
        plain = plain || (m->pieces[i].shard == no && m->pieces[i].encoding == ENC_PLAIN);
    }
    s->offsets = malloc((size_t)(s->offset_room + 1) * sizeof *s->offsets);
    s->path = strdup(path);
    if (!s->offsets || !s->path)
        glm_fail(err, GLM_ENOMEM, "%s: out of memory", path);
    else if ((s->file = shard_new_file(m, no, path, err)) >= 0
        && (!plain || shard_reopen_packed(s, err) == 0))
        shard_seek_piece(s, 0);
    if (err->code != GLM_OK) {
        shard_free_packed(s);
        return err->code;
    }
    *out = s;
    return 0;
}

int shard_create_packed(struct packed_shard **out, struct manifest *m, int64_t no,
    const char *path, struct glm_error *err)
{
    *out = NULL;
    h5_lock();
    shard_packed_locked(out, m, no, path, err);
    h5_unlock();
    return err->code;
}

/* First element of the piece's tile number `tile`, along the dataset's axes. */
static int shard_chunk_start(const struct packed_shard *s, int64_t tile, hsize_t start[3])
{
    const struct ckpt_piece *const p = &s->m->pieces[s->piece];
    const struct ckpt_tensor *const t = &s->m->tensors[p->tensor];
    const int64_t rows = rect_len(&s->tiles, 1), cols = rect_len(&s->tiles, 2);
    const int64_t at[3] = {tile / (rows * cols), tile / cols % rows, tile % cols};
    struct rect chunk;
    for (int i = 0; i < RECT_AXES; i++) {
        chunk.lo[i] = at[i] * t->grid.tile[i];
        chunk.hi[i] = chunk.lo[i] + 1;
    }
    int64_t lo[3], n[3];
    const int axes = shard_axes(t, &chunk, lo, n);
    for (int i = 0; i < axes; i++)
        start[i] = (hsize_t)lo[i];
    return axes;
}

/* Opens the dataset of s->piece if it is not open. */
static int shard_open_piece(struct packed_shard *s, struct glm_error *err)
{
    char name[SHARD_NAME];
    if (s->set >= 0)
        return 0;
    if (shard_dataset_name(&s->m->tensors[s->m->pieces[s->piece].tensor], name, err) != 0)
        return err->code;
    s->set = H5Dopen2(s->file, name, H5P_DEFAULT);
    return s->set < 0 ? h5_fail(err, "%s: open dataset '%s'", s->path, name) : 0;
}

/* The library's own word on where a chunk lies. */
static int shard_ask(struct packed_shard *s, int64_t tile, size_t expected,
    uint64_t *offset, struct glm_error *err)
{
    const char *const name = s->m->tensors[s->m->pieces[s->piece].tensor].name;
    hsize_t start[3] = {0}, size = 0;
    haddr_t at = HADDR_UNDEF;
    unsigned mask = 0;
    shard_chunk_start(s, tile, start);
    if (H5Dget_chunk_info_by_coord(s->set, start, &mask, &at, &size) < 0)
        return h5_fail(err, "%s: tensor '%s': where chunk %lld lies", s->path, name,
            (long long)tile);
    if (at == HADDR_UNDEF || size != expected)
        return glm_fail(err, GLM_EIO,
            "%s: tensor '%s', chunk %lld: HDF5 stored %llu bytes, expected"
            " %zu",
            s->path, name, (long long)tile, (unsigned long long)size, expected);
    *offset = at;
    return 0;
}

static int shard_finish_piece(
    struct packed_shard *s, size_t last_size, struct glm_error *err)
{
    struct ckpt_piece *const p = &s->m->pieces[s->piece];
    const char *const name = s->m->tensors[p->tensor].name;
    uint64_t at = 0;
    if (shard_ask(s, s->tile_total - 1, last_size, &at, err) != 0)
        return err->code;
    if (at != s->offsets[s->offset_count - 1])
        return glm_fail(err, GLM_EIO,
            "%s: tensor '%s': HDF5 put the last chunk at offset %llu,"
            " reckoned %llu",
            s->path, name, (unsigned long long)at,
            (unsigned long long)s->offsets[s->offset_count - 1]);
    const herr_t closed = H5Dclose(s->set);
    s->set = -1;
    if (closed < 0)
        return h5_fail(err, "%s: close dataset of '%s'", s->path, name);
    p->bytes = s->piece_bytes;
    p->offset = 0;
    shard_seek_piece(s, s->piece + 1);
    return 0;
}

static int shard_put_locked(struct packed_shard *s, const void *stored, size_t size,
    uint32_t mask, struct glm_error *err)
{
    hsize_t start[3] = {0}, end = 0;
    if (shard_open_piece(s, err) != 0)
        return err->code;
    shard_chunk_start(s, s->tile, start);
    if (H5Dwrite_chunk(s->set, H5P_DEFAULT, mask, start, size, stored) < 0
        || H5Fget_filesize(s->file, &end) < 0)
        return h5_fail(err, "%s: tensor '%s', chunk %lld: write", s->path,
            s->m->tensors[s->m->pieces[s->piece].tensor].name, (long long)s->tile);
    uint64_t at = end - size;
    if (s->tile == 0 && shard_ask(s, 0, size, &at, err) != 0)
        return err->code;
    if (at < s->end || at + size > end)
        return glm_fail(err, GLM_EIO,
            "%s: HDF5 reused space for a chunk; its place is not known", s->path);
    s->end = end;
    s->offsets[s->offset_count++] = at;
    s->piece_bytes += size;
    s->tile++;
    return s->tile == s->tile_total ? shard_finish_piece(s, size, err) : 0;
}

int shard_put_chunk(struct packed_shard *s, int64_t piece, int64_t tile,
    const void *stored, size_t size, uint32_t mask, struct glm_error *err)
{
    if (piece != s->piece || tile != s->tile || piece >= s->m->piece_count)
        return glm_fail(err, GLM_EIO,
            "%s: chunk %lld of piece %lld came, chunk %lld of piece %lld"
            " was due",
            s->path, (long long)tile, (long long)piece, (long long)s->tile,
            (long long)s->piece);
    if (size == 0 || size > UINT32_MAX)
        return glm_fail(err, GLM_EIO, "%s: a chunk of %zu bytes", s->path, size);
    h5_lock();
    shard_put_locked(s, stored, size, mask, err);
    h5_unlock();
    return err->code;
}

static int shard_close_locked(
    struct packed_shard *s, struct ckpt_chunk *chunks, struct glm_error *err)
{
    if (s->piece < s->m->piece_count)
        return glm_fail(err, GLM_EIO, "%s: chunk %lld of piece %lld was never written",
            s->path, (long long)s->tile, (long long)s->piece);
    const herr_t closed = H5Fclose(s->file);
    s->file = -1;
    if (closed < 0)
        return h5_fail(err, "%s: close", s->path);
    int64_t next = 0;
    for (int64_t i = 0; i < s->m->piece_count; i++) {
        const struct ckpt_piece *const p = &s->m->pieces[i];
        for (int64_t c = 0; p->shard == s->no && c < p->chunks; c++)
            chunks[p->first_chunk + c].offset = s->offsets[next++];
    }
    return shard_length(s->path, &s->m->shards[s->no].bytes, err);
}

int shard_close_packed(
    struct packed_shard *s, struct ckpt_chunk *chunks, struct glm_error *err)
{
    h5_lock();
    shard_close_locked(s, chunks, err);
    shard_free_packed(s);
    h5_unlock();
    return err->code;
}

void shard_abandon_packed(struct packed_shard *s)
{
    h5_lock();
    shard_free_packed(s);
    h5_unlock();
}
