/* Shard files.
 *
 * A shard holds one dataset per piece at /<section>/<name>. libhdf5 makes the file; what lies where
 * is then taken from the library once and kept in the manifest, so readers need no library.
 *
 * Plain shards are made in two sessions. The first creates groups and datasets without storage: only
 * metadata, packed tightly. The second reopens the file with an alignment of 4,096 bytes and touches
 * each dataset, which allocates its storage: only data, each piece on a page. One session could not
 * do this: HDF5 aligns by size, not by purpose, so an alignment that reaches a bias of 256 bytes
 * would also spread every object header over a page of its own.
 *
 * Packed shards take ready-made chunks. Nothing is ever freed and blocks are not aggregated, so a
 * chunk lies at the end of the file as it is just after the write; asking the library for each
 * chunk's offset would walk the chunk index from its start every time. Two such questions per dataset
 * remain: the first chunk's (the index itself is allocated after it) and, as a check of the
 * reckoning, the last one's. */
#include "ckpt/shard.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/digest.h"
#include "ckpt/h5error.h"
#include "ckpt/h5types.h"
#include "kernels/base/checked.h"

enum { SHARD_ALIGN = 4096, SHARD_NAME = 512, SHARD_BLOCK = 1 << 20 };

/* ---- geometry ------------------------------------------------------------------------------- */

int shard_axes(const struct ckpt_tensor *t, const struct rect *at, int64_t lo[3], int64_t n[3])
{
    const int axes = t->stack ? 3 : t->rank <= 1 ? 1 : 2;
    for (int i = 0; i < axes; i++) {
        lo[i] = at->lo[RECT_AXES - axes + i];
        n[i] = rect_len(at, RECT_AXES - axes + i);
    }
    return axes;
}

void shard_chunk_dims(const struct manifest *m, const struct ckpt_piece *p, int64_t dims[3])
{
    const struct tile_grid *const g = &m->tensors[p->tensor].grid;
    for (int i = 0; i < RECT_AXES; i++)
        dims[i] = rect_len(&p->at, i) < g->tile[i] ? rect_len(&p->at, i) : g->tile[i];
}

int64_t shard_piece_tiles(const struct manifest *m, const struct ckpt_piece *p, struct rect *tiles)
{
    const struct rect cover = tile_cover(&m->tensors[p->tensor].grid, &p->at);
    if (tiles)
        *tiles = cover;
    return rect_count(&cover);
}

static int shard_dataset_name(const struct ckpt_tensor *t, char name[SHARD_NAME],
    struct glm_error *err)
{
    const int n = snprintf(name, SHARD_NAME, "/%s/%s", section_name(t->section), t->name);
    if (n < 0 || n >= SHARD_NAME)
        return glm_fail(err, GLM_EFORMAT, "tensor '%.80s…': its name is longer than %d bytes",
            t->name, SHARD_NAME - 1);
    return 0;
}

/* ---- datasets ------------------------------------------------------------------------------- */

static hid_t shard_creation(const struct manifest *m, const struct ckpt_piece *p)
{
    const struct ckpt_tensor *const t = &m->tensors[p->tensor];
    const hid_t list = H5Pcreate(H5P_DATASET_CREATE);
    if (list < 0 || H5Pset_obj_track_times(list, false) < 0
        || H5Pset_fill_time(list, H5D_FILL_TIME_NEVER) < 0)
        return -1;
    if (p->encoding == ENC_PLAIN)
        return list;
    struct rect chunk = {{0, 0, 0}, {0, 0, 0}};
    int64_t lo[3], n[3];
    hsize_t dims[3] = {0};
    shard_chunk_dims(m, p, chunk.hi);
    const int axes = shard_axes(t, &chunk, lo, n);
    for (int i = 0; i < axes; i++)
        dims[i] = (hsize_t)n[i];
    const unsigned level[1] = {1};
    if (H5Pset_chunk(list, axes, dims) < 0
        || (glm_dtype_size(t->dtype) >= 2 && H5Pset_shuffle(list) < 0)
        || H5Pset_filter(list, H5_FILTER_ZSTD, H5Z_FLAG_MANDATORY, 1, level) < 0)
        return -1;
    return list;
}

static int shard_attributes(hid_t set, const struct ckpt_tensor *t, const struct ckpt_piece *p,
    struct glm_error *err)
{
    int64_t lo[3], n[3];
    const int axes = shard_axes(t, &p->at, lo, n);
    if (h5attr_numbers(set, "offset", lo, axes, err) != 0
        || h5attr_numbers(set, "shape", t->shape, t->rank, err) != 0)
        return err->code;
    return h5attr_text(set, "dtype", glm_dtype_name(t->dtype), err);
}

/* Creates a piece's dataset; *set (may be NULL) stays open. */
static int shard_dataset(hid_t file, const struct manifest *m, const struct ckpt_piece *p,
    hid_t *set, struct glm_error *err)
{
    const struct ckpt_tensor *const t = &m->tensors[p->tensor];
    char name[SHARD_NAME];
    int64_t lo[3], n[3];
    hsize_t dims[3] = {0};
    hid_t type = -1, space = -1, list = -1, id = -1;

    const int axes = shard_axes(t, &p->at, lo, n);
    for (int i = 0; i < axes; i++)
        dims[i] = (hsize_t)n[i];
    if (shard_dataset_name(t, name, err) != 0 || h5_groups(file, name, err) != 0
        || (type = h5type_new(t->dtype, err)) < 0)
        goto out;
    space = H5Screate_simple(axes, dims, NULL);
    list = shard_creation(m, p);
    if (space >= 0 && list >= 0)
        id = H5Dcreate2(file, name, type, space, H5P_DEFAULT, list, H5P_DEFAULT);
    if (id < 0) {
        h5_fail(err, "cannot create dataset '%s'", name);
        goto out;
    }
    if (shard_attributes(id, t, p, err) == 0 && set) {
        *set = id;
        id = -1;
    }
out:
    h5_close_dataset(id);
    h5_close_list(list);
    h5_close_space(space);
    h5_close_type(type);
    return err->code;
}

/* A new file with every dataset of the shard, in manifest order. Negative: err says why. */
static hid_t shard_new_file(const struct manifest *m, int64_t no, const char *path,
    struct glm_error *err)
{
    hid_t file = -1, create = h5_creation_list(0), access = h5_access_list();
    if (unlink(path) != 0 && errno != ENOENT) {
        glm_fail_errno(err, "%s: remove", path);
        goto out;
    }
    if (create >= 0 && access >= 0)
        file = H5Fcreate(path, H5F_ACC_EXCL, create, access);
    if (file < 0) {
        h5_fail(err, "%s: create", path);
        goto out;
    }
    for (int64_t i = 0; i < m->piece_count; i++)
        if (m->pieces[i].shard == no && shard_dataset(file, m, &m->pieces[i], NULL, err) != 0)
            break;
    if (err->code != GLM_OK) {
        h5_close_file(file);
        file = -1;
        glm_within(err, "%s", path);
    }
out:
    h5_close_list(create);
    h5_close_list(access);
    return file;
}

static int shard_length(const char *path, uint64_t *bytes, struct glm_error *err)
{
    struct stat st;
    if (stat(path, &st) != 0)
        return glm_fail_errno(err, "%s: stat", path);
    *bytes = (uint64_t)st.st_size;
    return 0;
}

/* ---- plain ---------------------------------------------------------------------------------- */

/* Writing one element allocates the dataset's storage; the rest stays a hole. */
static int shard_allocate(hid_t file, const struct manifest *m, struct ckpt_piece *p,
    struct glm_error *err)
{
    const struct ckpt_tensor *const t = &m->tensors[p->tensor];
    const hsize_t first[3] = {0}, one[3] = {1, 1, 1};
    const unsigned char zero[16] = {0};
    char name[SHARD_NAME];
    hid_t set = -1, type = -1, space = -1, memory = -1;

    if (shard_dataset_name(t, name, err) != 0 || (type = h5type_new(t->dtype, err)) < 0)
        return err->code;
    set = H5Dopen2(file, name, H5P_DEFAULT);
    space = set >= 0 ? H5Dget_space(set) : -1;
    memory = H5Screate_simple(1, one, NULL);
    if (space < 0 || memory < 0
        || H5Sselect_hyperslab(space, H5S_SELECT_SET, first, NULL, one, NULL) < 0
        || H5Dwrite(set, type, memory, space, H5P_DEFAULT, zero) < 0) {
        h5_fail(err, "cannot allocate dataset '%s'", name);
        goto out;
    }
    const haddr_t at = H5Dget_offset(set);
    const hsize_t size = H5Dget_storage_size(set);
    if (at == HADDR_UNDEF || at % SHARD_ALIGN != 0
        || size != (hsize_t)rect_count(&p->at) * glm_dtype_size(t->dtype)) {
        glm_fail(err, GLM_EIO, "dataset '%s': HDF5 gave it offset %llu and %llu bytes, expected a"
            " multiple of %d and %llu bytes", name, (unsigned long long)at,
            (unsigned long long)size, SHARD_ALIGN,
            (unsigned long long)((uint64_t)rect_count(&p->at) * glm_dtype_size(t->dtype)));
        goto out;
    }
    p->offset = at;
    p->bytes = size;
out:
    h5_close_dataset(set);
    h5_close_space(space);
    h5_close_space(memory);
    h5_close_type(type);
    return err->code;
}

/* Gives every plain piece of the shard its room, in manifest order. The file is closed. */
static int shard_allocate_all(struct manifest *m, int64_t no, const char *path,
    struct glm_error *err)
{
    const hid_t access = h5_access_list();
    hid_t file = -1;
    if (access >= 0 && H5Pset_alignment(access, 1, SHARD_ALIGN) >= 0)
        file = H5Fopen(path, H5F_ACC_RDWR, access);
    h5_close_list(access);
    if (file < 0)
        return h5_fail(err, "%s: reopen", path);
    for (int64_t i = 0; i < m->piece_count; i++)
        if (m->pieces[i].shard == no && m->pieces[i].encoding == ENC_PLAIN
            && shard_allocate(file, m, &m->pieces[i], err) != 0) {
            glm_within(err, "%s", path);
            h5_close_file(file);
            return err->code;
        }
    return H5Fclose(file) < 0 ? h5_fail(err, "%s: close", path) : 0;
}

static int shard_plain_locked(struct manifest *m, int64_t no, const char *path,
    struct glm_error *err)
{
    const hid_t file = shard_new_file(m, no, path, err);
    if (file < 0)
        return err->code;
    if (H5Fclose(file) < 0)
        return h5_fail(err, "%s: close", path);
    if (shard_allocate_all(m, no, path, err) != 0)
        return err->code;
    return shard_length(path, &m->shards[no].bytes, err);
}

int shard_create_plain(struct manifest *m, int64_t no, const char *path, struct glm_error *err)
{
    h5_lock();
    shard_plain_locked(m, no, path, err);
    h5_unlock();
    return err->code;
}

/* ---- packed --------------------------------------------------------------------------------- */

struct packed_shard {
    struct manifest *m;
    int64_t no;
    hid_t file, set;     /* set: of the piece being written, or -1 */
    int64_t piece, tile; /* next expected; piece == piece_count: all written */
    struct rect tiles;   /* of the piece */
    int64_t tile_total;
    uint64_t end;        /* of the file after the chunk before */
    uint64_t *offsets;   /* per chunk of the shard, in order */
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
static int shard_ask(struct packed_shard *s, int64_t tile, size_t expected, uint64_t *offset,
    struct glm_error *err)
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
        return glm_fail(err, GLM_EIO, "%s: tensor '%s', chunk %lld: HDF5 stored %llu bytes, expected"
            " %zu", s->path, name, (long long)tile, (unsigned long long)size, expected);
    *offset = at;
    return 0;
}

static int shard_finish_piece(struct packed_shard *s, size_t last_size, struct glm_error *err)
{
    struct ckpt_piece *const p = &s->m->pieces[s->piece];
    const char *const name = s->m->tensors[p->tensor].name;
    uint64_t at = 0;
    if (shard_ask(s, s->tile_total - 1, last_size, &at, err) != 0)
        return err->code;
    if (at != s->offsets[s->offset_count - 1])
        return glm_fail(err, GLM_EIO, "%s: tensor '%s': HDF5 put the last chunk at offset %llu,"
            " reckoned %llu", s->path, name, (unsigned long long)at,
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

static int shard_put_locked(struct packed_shard *s, const void *stored, size_t size, uint32_t mask,
    struct glm_error *err)
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
        return glm_fail(err, GLM_EIO, "%s: HDF5 reused space for a chunk; its place is not known",
            s->path);
    s->end = end;
    s->offsets[s->offset_count++] = at;
    s->piece_bytes += size;
    s->tile++;
    return s->tile == s->tile_total ? shard_finish_piece(s, size, err) : 0;
}

int shard_put_chunk(struct packed_shard *s, int64_t piece, int64_t tile, const void *stored,
    size_t size, uint32_t mask, struct glm_error *err)
{
    if (piece != s->piece || tile != s->tile || piece >= s->m->piece_count)
        return glm_fail(err, GLM_EIO, "%s: chunk %lld of piece %lld came, chunk %lld of piece %lld"
            " was due", s->path, (long long)tile, (long long)piece, (long long)s->tile,
            (long long)s->piece);
    if (size == 0 || size > UINT32_MAX)
        return glm_fail(err, GLM_EIO, "%s: a chunk of %zu bytes", s->path, size);
    h5_lock();
    shard_put_locked(s, stored, size, mask, err);
    h5_unlock();
    return err->code;
}

static int shard_close_locked(struct packed_shard *s, struct ckpt_chunk *chunks,
    struct glm_error *err)
{
    if (s->piece < s->m->piece_count)
        return glm_fail(err, GLM_EIO, "%s: chunk %lld of piece %lld was never written", s->path,
            (long long)s->tile, (long long)s->piece);
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

int shard_close_packed(struct packed_shard *s, struct ckpt_chunk *chunks, struct glm_error *err)
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

/* ---- skeleton ------------------------------------------------------------------------------- */

struct shard_hash {
    int fd;
    const char *path;
    struct digest *digest;
    unsigned char *block;
    uint64_t at; /* everything before is hashed or was an extent */
};

static int shard_hash_to(struct shard_hash *h, uint64_t end, struct glm_error *err)
{
    while (h->at < end) {
        const uint64_t left = end - h->at;
        const size_t want = left < SHARD_BLOCK ? (size_t)left : SHARD_BLOCK;
        const ssize_t got = pread(h->fd, h->block, want, (off_t)h->at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return glm_fail_errno(err, "%s: read at %llu", h->path, (unsigned long long)h->at);
        if (got == 0)
            return glm_fail(err, GLM_EFORMAT, "%s: ends at byte %llu, expected %llu more", h->path,
                (unsigned long long)h->at, (unsigned long long)left);
        digest_update(h->digest, h->block, (size_t)got);
        h->at += (uint64_t)got;
    }
    return 0;
}

/* Hashes up to an extent and steps over it. Extents come in file order. */
static int shard_hash_skip(struct shard_hash *h, uint64_t offset, uint64_t bytes, uint64_t length,
    struct glm_error *err)
{
    uint64_t end;
    if (offset < h->at || !checked_add_u64(offset, bytes, &end) || end > length)
        return glm_fail(err, GLM_EFORMAT, "%s: data at offset %llu (%llu bytes) overlaps what lies"
            " before it or passes the file's end at %llu", h->path, (unsigned long long)offset,
            (unsigned long long)bytes, (unsigned long long)length);
    if (shard_hash_to(h, offset, err) != 0)
        return err->code;
    h->at = end;
    return 0;
}

static int shard_hash_all(struct shard_hash *h, const struct manifest *m,
    const struct ckpt_chunk *chunks, int64_t no, struct glm_error *err)
{
    const uint64_t length = m->shards[no].bytes;
    for (int64_t i = 0; i < m->piece_count; i++) { /* plain pieces come first in the file */
        const struct ckpt_piece *const p = &m->pieces[i];
        if (p->shard == no && p->encoding == ENC_PLAIN &&
            shard_hash_skip(h, p->offset, p->bytes, length, err) != 0)
            return err->code;
    }
    for (int64_t i = 0; i < m->piece_count; i++) {
        const struct ckpt_piece *const p = &m->pieces[i];
        for (int64_t c = 0; p->shard == no && p->encoding == ENC_ZSTD && c < p->chunks; c++) {
            const struct ckpt_chunk *const k = &chunks[p->first_chunk + c];
            if (shard_hash_skip(h, k->offset, k->bytes, length, err) != 0)
                return err->code;
        }
    }
    return shard_hash_to(h, length, err);
}

int shard_skeleton(const struct manifest *m, const struct ckpt_chunk *chunks, int64_t no,
    const char *path, unsigned char out[32], struct glm_error *err)
{
    struct shard_hash h = {.fd = -1, .path = path};
    h.digest = digest_new();
    h.block = malloc(SHARD_BLOCK);
    if (!h.digest || !h.block) {
        glm_fail(err, GLM_ENOMEM, "%s: out of memory", path);
        goto out;
    }
    h.fd = open(path, O_RDONLY | O_CLOEXEC);
    if (h.fd < 0) {
        glm_fail_errno(err, "%s: open", path);
        goto out;
    }
    digest_begin(h.digest);
    if (shard_hash_all(&h, m, chunks, no, err) == 0)
        digest_end(h.digest, out);
out:
    if (h.fd >= 0)
        close(h.fd);
    free(h.block);
    digest_free(h.digest);
    return err->code;
}
