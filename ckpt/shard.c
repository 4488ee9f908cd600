/* Shard files.
 *
 * A shard holds one dataset per piece at /<section>/<name>. libhdf5 makes the file; what lies where
 * is then taken from the library once and kept in the manifest, so readers need no library.
 *
 * Plain shards are made in two sessions. The first creates groups and datasets without storage: only
 * metadata, packed tightly. The second reopens the file with an alignment of 4,096 bytes and touches
 * each dataset, which allocates its storage: only data, each piece on a page. One session could not
 * do this: HDF5 aligns by size, not by purpose, so an alignment that reaches a bias of 256 bytes
 * would also spread every object header over a page of its own. */
#include "ckpt/shard_inside.h"

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

enum { SHARD_ALIGN = 4096, SHARD_BLOCK = 1 << 20 };

/* ---- geometry ------------------------------------------------------------------------------- */

int shard_axes(
    const struct ckpt_tensor *t, const struct rect *at, int64_t lo[3], int64_t n[3])
{
    const int axes = t->stack ? 3 : t->rank <= 1 ? 1 : 2;
    for (int i = 0; i < axes; i++) {
        lo[i] = at->lo[RECT_AXES - axes + i];
        n[i] = rect_len(at, RECT_AXES - axes + i);
    }
    return axes;
}

void shard_chunk_dims(
    const struct manifest *m, const struct ckpt_piece *p, int64_t dims[3])
{
    const struct tile_grid *const g = &m->tensors[p->tensor].grid;
    for (int i = 0; i < RECT_AXES; i++)
        dims[i] = rect_len(&p->at, i) < g->tile[i] ? rect_len(&p->at, i) : g->tile[i];
}

int64_t shard_piece_tiles(
    const struct manifest *m, const struct ckpt_piece *p, struct rect *tiles)
{
    const struct rect cover = tile_cover(&m->tensors[p->tensor].grid, &p->at);
    if (tiles)
        *tiles = cover;
    return rect_count(&cover);
}

int shard_dataset_name(
    const struct ckpt_tensor *t, char name[SHARD_NAME], struct glm_error *err)
{
    const int n = snprintf(name, SHARD_NAME, "/%s/%s", section_name(t->section), t->name);
    if (n < 0 || n >= SHARD_NAME)
        return glm_fail(err, GLM_EFORMAT,
            "tensor '%.80s…': its name is longer than %d bytes", t->name, SHARD_NAME - 1);
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

static int shard_attributes(hid_t set, const struct ckpt_tensor *t,
    const struct ckpt_piece *p, struct glm_error *err)
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
hid_t shard_new_file(
    const struct manifest *m, int64_t no, const char *path, struct glm_error *err)
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
        if (m->pieces[i].shard == no
            && shard_dataset(file, m, &m->pieces[i], NULL, err) != 0)
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

int shard_length(const char *path, uint64_t *bytes, struct glm_error *err)
{
    struct stat st;
    if (stat(path, &st) != 0)
        return glm_fail_errno(err, "%s: stat", path);
    *bytes = (uint64_t)st.st_size;
    return 0;
}

/* ---- plain ---------------------------------------------------------------------------------- */

/* Writing one element allocates the dataset's storage; the rest stays a hole. */
static int shard_allocate(
    hid_t file, const struct manifest *m, struct ckpt_piece *p, struct glm_error *err)
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
        glm_fail(err, GLM_EIO,
            "dataset '%s': HDF5 gave it offset %llu and %llu bytes, expected a"
            " multiple of %d and %llu bytes",
            name, (unsigned long long)at, (unsigned long long)size, SHARD_ALIGN,
            (unsigned long long)((uint64_t)rect_count(&p->at)
                * glm_dtype_size(t->dtype)));
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
int shard_allocate_all(
    struct manifest *m, int64_t no, const char *path, struct glm_error *err)
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

static int shard_plain_locked(
    struct manifest *m, int64_t no, const char *path, struct glm_error *err)
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

int shard_create_plain(
    struct manifest *m, int64_t no, const char *path, struct glm_error *err)
{
    h5_lock();
    shard_plain_locked(m, no, path, err);
    h5_unlock();
    return err->code;
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
            return glm_fail_errno(
                err, "%s: read at %llu", h->path, (unsigned long long)h->at);
        if (got == 0)
            return glm_fail(err, GLM_EFORMAT, "%s: ends at byte %llu, expected %llu more",
                h->path, (unsigned long long)h->at, (unsigned long long)left);
        digest_update(h->digest, h->block, (size_t)got);
        h->at += (uint64_t)got;
    }
    return 0;
}

/* Hashes up to an extent and steps over it. Extents come in file order. */
static int shard_hash_skip(struct shard_hash *h, uint64_t offset, uint64_t bytes,
    uint64_t length, struct glm_error *err)
{
    uint64_t end;
    if (offset < h->at || !checked_add_u64(offset, bytes, &end) || end > length)
        return glm_fail(err, GLM_EFORMAT,
            "%s: data at offset %llu (%llu bytes) overlaps what lies"
            " before it or passes the file's end at %llu",
            h->path, (unsigned long long)offset, (unsigned long long)bytes,
            (unsigned long long)length);
    if (shard_hash_to(h, offset, err) != 0)
        return err->code;
    h->at = end;
    return 0;
}

static int shard_hash_all(struct shard_hash *h, const struct manifest *m,
    const struct ckpt_chunk *chunks, int64_t no, struct glm_error *err)
{
    const uint64_t length = m->shards[no].bytes;
    for (int64_t i = 0; i < m->piece_count;
         i++) { /* plain pieces come first in the file */
        const struct ckpt_piece *const p = &m->pieces[i];
        if (p->shard == no && p->encoding == ENC_PLAIN
            && shard_hash_skip(h, p->offset, p->bytes, length, err) != 0)
            return err->code;
    }
    for (int64_t i = 0; i < m->piece_count; i++) {
        const struct ckpt_piece *const p = &m->pieces[i];
        for (int64_t c = 0; p->shard == no && p->encoding == ENC_ZSTD && c < p->chunks;
             c++) {
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
    h.fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
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
