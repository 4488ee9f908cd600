/* Writing index.h5.
 *
 * Side files go first, because the manifest records where their bytes lie; then the virtual views,
 * the manifest and the tables. libhdf5 closes the file; the bytes after the user block are hashed;
 * the user block, which authenticates all of them, is written last. Every offset that is recorded
 * is read back and compared, so that a wrong idea of the container's base address cannot survive. */
#include "ckpt/index.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/digest.h"
#include "ckpt/h5error.h"
#include "ckpt/h5types.h"
#include "ckpt/index_block.h"
#include "ckpt/shard.h"

enum { WRITE_BLOCK = 1 << 20, WRITE_NAME = 4200 };

struct index_writer {
    struct manifest *m;
    const char *path;
    hid_t file;
    struct index_block block;
    struct glm_error *err;
};

/* ---- datasets of bytes and rows ------------------------------------------------------------- */

static hid_t write_plain_list(void)
{
    const hid_t list = H5Pcreate(H5P_DATASET_CREATE);
    if (list >= 0
        && (H5Pset_obj_track_times(list, false) < 0
            || H5Pset_alloc_time(list, H5D_ALLOC_TIME_EARLY) < 0
            || H5Pset_fill_time(list, H5D_FILL_TIME_NEVER) < 0)) {
        H5Pclose(list);
        return -1;
    }
    return list;
}

/* A contiguous dataset with its data. *offset: where the data lies in the file; 0 if empty. */
static int write_data(struct index_writer *w, const char *name, hid_t type, int rank,
    const hsize_t *dims, const void *data, uint64_t *offset)
{
    hid_t space = -1, list = -1, set = -1;
    *offset = 0;
    if (h5_groups(w->file, name, w->err) != 0)
        return w->err->code;
    space = H5Screate_simple(rank, dims, NULL);
    list = write_plain_list();
    if (space >= 0 && list >= 0)
        set = H5Dcreate2(w->file, name, type, space, H5P_DEFAULT, list, H5P_DEFAULT);
    if (set < 0)
        h5_fail(w->err, "cannot create '%s'", name);
    else if (dims[0] > 0) {
        const haddr_t at = H5Dget_offset(set);
        if (H5Dwrite(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) < 0
            || at == HADDR_UNDEF)
            h5_fail(w->err, "cannot write '%s'", name);
        else
            *offset = at;
    }
    h5_close_dataset(set);
    h5_close_list(list);
    h5_close_space(space);
    return w->err->code;
}

static int write_bytes(struct index_writer *w, const char *name, const void *data,
    uint64_t bytes, uint64_t *offset)
{
    const hsize_t dims[1] = {bytes};
    return write_data(w, name, H5T_STD_U8LE, 1, dims, data, offset);
}

static int write_files(struct index_writer *w)
{
    char name[WRITE_NAME];
    for (int64_t i = 0; i < w->m->file_count; i++) {
        struct ckpt_file *const f = &w->m->files[i];
        if (!manifest_path_ok(f->path, strlen(f->path)))
            return glm_fail(w->err, GLM_EFORMAT,
                "side file '%s': a path must stay inside its"
                " folder (relative, no '..', no ':', no backslash)",
                f->path);
        snprintf(name, sizeof name, "/%s/%s", f->header ? "source" : "files", f->path);
        if (write_bytes(w, name, f->data, f->bytes, &f->offset) != 0)
            return w->err->code;
        digest_of(f->data, f->bytes, f->sha256);
    }
    return 0;
}

/* ---- virtual views -------------------------------------------------------------------------- */

/* Maps one piece: a block of the view onto the whole of its dataset in the shard. */
static int write_mapping(struct index_writer *w, hid_t list, const struct ckpt_tensor *t,
    const struct ckpt_piece *p, int rank, const hsize_t *shape, const char *name)
{
    int64_t lo[3], n[3];
    hsize_t start[4] = {0}, count[4] = {0}, dims[3] = {0};
    const int axes = shard_axes(t, &p->at, lo, n);
    for (int i = 0; i < rank; i++)
        count[i] = shape[i];
    for (int i = 0; i < axes; i++) {
        dims[i] = (hsize_t)n[i];
        if (axes == rank || i == 0) {
            start[i] = (hsize_t)lo[i];
            count[i] = (hsize_t)n[i];
        }
    }
    /* A tensor of rank 3 and more that is no stack lies in shards as [d0, d1*d2*...]; its view has
     * the true shape, which only cuts along d0 can be mapped to. */
    if (axes != rank && rect_len(&p->at, 2) != t->grid.dims[2])
        return glm_fail(w->err, GLM_EFORMAT,
            "tensor '%s': rank %d and cut along its columns", t->name, t->rank);
    const hid_t view = H5Screate_simple(rank, shape, NULL);
    const hid_t source = H5Screate_simple(axes, dims, NULL);
    if (view < 0 || source < 0
        || H5Sselect_hyperslab(view, H5S_SELECT_SET, start, NULL, count, NULL) < 0
        || H5Pset_virtual(list, view, w->m->shards[p->shard].file, name, source) < 0)
        h5_fail(w->err, "cannot map a piece of '%s'", t->name);
    h5_close_space(view);
    h5_close_space(source);
    return w->err->code;
}

/* The creation list of a view: no times, a fill value that shows as missing, one mapping a piece. */
static hid_t write_view_list(struct index_writer *w, const struct ckpt_tensor *t,
    hid_t type, int rank, const hsize_t *shape, const char *name)
{
    unsigned char fill[8];
    const hid_t list = H5Pcreate(H5P_DATASET_CREATE);
    h5type_fill(t->dtype, fill);
    if (list < 0 || H5Pset_obj_track_times(list, false) < 0
        || H5Pset_fill_value(list, type, fill) < 0) {
        h5_fail(w->err, "cannot prepare the view '%s'", name);
        return list;
    }
    for (int64_t i = 0; i < t->pieces; i++)
        if (write_mapping(
                w, list, t, &w->m->pieces[t->first_piece + i], rank, shape, name)
            != 0)
            break;
    return list;
}

static int write_view(struct index_writer *w, const struct ckpt_tensor *t)
{
    char name[WRITE_NAME];
    hsize_t shape[4] = {1, 1, 1, 1};
    const int rank = t->rank > 0 ? t->rank : 1;
    hid_t type = -1, space = -1, list = -1, set = -1;
    snprintf(name, sizeof name, "/%s/%s", section_name(t->section), t->name);
    for (int i = 0; i < t->rank; i++)
        shape[i] = (hsize_t)t->shape[i];
    if (h5_groups(w->file, name, w->err) != 0
        || (type = h5type_new(t->dtype, w->err)) < 0)
        goto out;
    list = write_view_list(w, t, type, rank, shape, name);
    if (w->err->code != GLM_OK)
        goto out;
    space = H5Screate_simple(rank, shape, NULL);
    if (space >= 0)
        set = H5Dcreate2(w->file, name, type, space, H5P_DEFAULT, list, H5P_DEFAULT);
    if (set < 0)
        h5_fail(w->err, "cannot create the view '%s'", name);
    else if (h5attr_text(set, "dtype", glm_dtype_name(t->dtype), w->err) == 0
        && t->scale_rule[0])
        h5attr_text(set, "scale_rule", t->scale_rule, w->err);
out:
    h5_close_dataset(set);
    h5_close_list(list);
    h5_close_space(space);
    h5_close_type(type);
    return w->err->code;
}

/* A derived weight has no view: one of type BF16 over the F32 master would show unrounded values. */
static int write_views(struct index_writer *w)
{
    for (int64_t i = 0; i < w->m->tensor_count; i++)
        if (w->m->tensors[i].pieces > 0 && write_view(w, &w->m->tensors[i]) != 0)
            return w->err->code;
    return 0;
}

/* ---- tables --------------------------------------------------------------------------------- */

static int write_extent(struct index_writer *w, enum index_part part, const void *data,
    uint64_t bytes, uint64_t offset)
{
    struct index_extent *const e = &w->block.part[part];
    e->offset = offset;
    e->bytes = bytes;
    digest_of(data, bytes, e->sha256);
    return w->err->code;
}

static int write_manifest(struct index_writer *w)
{
    char *text = NULL;
    size_t size = 0;
    uint64_t at = 0;
    if (manifest_print(w->m, &text, &size, w->err) == 0
        && write_bytes(w, "/manifest", text, size, &at) == 0) {
        write_extent(w, INDEX_MANIFEST, text, size, at);
        memcpy(w->m->id, w->block.part[INDEX_MANIFEST].sha256, DIGEST_SIZE);
    }
    free(text);
    return w->err->code;
}

static int write_tiles(struct index_writer *w, const unsigned char *tiles)
{
    const hsize_t dims[2] = {(hsize_t)w->m->tile_count, DIGEST_SIZE};
    uint64_t at = 0;
    if (write_data(w, "/tiles", H5T_STD_U8LE, 2, dims, tiles, &at) == 0)
        write_extent(w, INDEX_TILES, tiles, dims[0] * DIGEST_SIZE, at);
    return w->err->code;
}

static hid_t write_chunk_type(void)
{
    const hsize_t n[1] = {DIGEST_SIZE};
    const hid_t row = H5Tcreate(H5T_COMPOUND, INDEX_CHUNK_ROW);
    const hid_t digest = H5Tarray_create2(H5T_STD_U8LE, 1, n);
    const bool fine = row >= 0 && digest >= 0
        && H5Tinsert(row, "offset", 0, H5T_STD_U64LE) >= 0
        && H5Tinsert(row, "bytes", 8, H5T_STD_U32LE) >= 0
        && H5Tinsert(row, "mask", 12, H5T_STD_U32LE) >= 0
        && H5Tinsert(row, "sha256", 16, digest) >= 0;
    h5_close_type(digest);
    if (!fine) {
        h5_close_type(row);
        return -1;
    }
    return row;
}

_Static_assert(
    sizeof(struct ckpt_chunk) == INDEX_CHUNK_ROW, "a row of /chunks is the struct");

static int write_chunks(struct index_writer *w, const struct ckpt_chunk *chunks)
{
    const hsize_t dims[1] = {(hsize_t)w->m->chunk_count};
    uint64_t at = 0;
    const hid_t type = write_chunk_type();
    if (type < 0)
        return h5_fail(w->err, "cannot make the type of /chunks");
    if (write_data(w, "/chunks", type, 1, dims, chunks, &at) == 0)
        write_extent(w, INDEX_CHUNKS, chunks, dims[0] * INDEX_CHUNK_ROW, at);
    h5_close_type(type);
    return w->err->code;
}

/* ---- the file ------------------------------------------------------------------------------- */

static int write_container(
    struct index_writer *w, const unsigned char *tiles, const struct ckpt_chunk *chunks)
{
    const hid_t create = h5_creation_list(INDEX_BLOCK), access = h5_access_list();
    if (create >= 0 && access >= 0)
        w->file = H5Fcreate(w->path, H5F_ACC_EXCL, create, access);
    h5_close_list(create);
    h5_close_list(access);
    if (w->file < 0)
        return h5_fail(w->err, "create");
    if (write_files(w) == 0 && write_views(w) == 0 && write_manifest(w) == 0
        && write_tiles(w, tiles) == 0)
        write_chunks(w, chunks);
    const herr_t closed = H5Fclose(w->file);
    w->file = -1;
    if (closed < 0)
        h5_fail(w->err, "close");
    return w->err->code;
}

static int write_check(struct index_writer *w, int fd, const void *data, uint64_t bytes,
    uint64_t offset, const char *what, unsigned char *block)
{
    for (uint64_t at = 0; at < bytes;) {
        const uint64_t left = bytes - at;
        const size_t want = left < WRITE_BLOCK ? (size_t)left : WRITE_BLOCK;
        if (pread(fd, block, want, (off_t)(offset + at)) != (ssize_t)want
            || memcmp(block, (const unsigned char *)data + at, want) != 0)
            return glm_fail(w->err, GLM_EIO,
                "%s does not read back as written at offset %" PRIu64, what, offset + at);
        at += want;
    }
    return 0;
}

/* The recorded offsets hold the recorded bytes. The manifest's are covered by its digest, which
 * index_open computes; the tables and side files are compared here. */
static int write_read_back(struct index_writer *w, int fd, const unsigned char *tiles,
    const struct ckpt_chunk *chunks, unsigned char *block)
{
    const struct index_extent *const part = w->block.part;
    for (int64_t i = 0; i < w->m->file_count; i++) {
        const struct ckpt_file *const f = &w->m->files[i];
        if (write_check(w, fd, f->data, f->bytes, f->offset, f->path, block) != 0)
            return w->err->code;
    }
    if (write_check(w, fd, tiles, part[INDEX_TILES].bytes, part[INDEX_TILES].offset,
            "tile table", block)
        != 0)
        return w->err->code;
    return write_check(w, fd, chunks, part[INDEX_CHUNKS].bytes, part[INDEX_CHUNKS].offset,
        "chunk table", block);
}

static int write_hash_rest(struct index_writer *w, int fd, unsigned char *block)
{
    struct digest *const d = digest_new();
    struct stat st;
    if (!d)
        return glm_fail(w->err, GLM_ENOMEM, "out of memory");
    digest_begin(d);
    if (fstat(fd, &st) != 0)
        glm_fail_errno(w->err, "stat");
    w->block.size = (uint64_t)st.st_size;
    for (uint64_t at = INDEX_BLOCK; w->err->code == GLM_OK && at < w->block.size;) {
        const ssize_t got = pread(fd, block, WRITE_BLOCK, (off_t)at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) {
            glm_fail_errno(w->err, "read back at %" PRIu64, at);
            break;
        }
        digest_update(d, block, (size_t)got);
        at += (uint64_t)got;
    }
    digest_end(d, w->block.sha256);
    digest_free(d);
    return w->err->code;
}

static int write_finish(
    struct index_writer *w, const unsigned char *tiles, const struct ckpt_chunk *chunks)
{
    unsigned char first[INDEX_BLOCK];
    unsigned char *const block = malloc(WRITE_BLOCK);
    const int fd = open(w->path, O_RDWR | O_CLOEXEC);
    if (!block) {
        glm_fail(w->err, GLM_ENOMEM, "out of memory");
        goto out;
    }
    if (fd < 0) {
        glm_fail_errno(w->err, "open");
        goto out;
    }
    if (write_read_back(w, fd, tiles, chunks, block) != 0
        || write_hash_rest(w, fd, block) != 0)
        goto out;
    index_block_print(&w->block, first);
    for (size_t at = 0; at < sizeof first;) {
        const ssize_t n = pwrite(fd, first + at, sizeof first - at, (off_t)at);
        if (n <= 0) {
            glm_fail_errno(w->err, "write the user block");
            goto out;
        }
        at += (size_t)n;
    }
    if (fsync(fd) != 0)
        glm_fail_errno(w->err, "fsync");
out:
    if (fd >= 0)
        close(fd);
    free(block);
    return w->err->code;
}

int index_write(struct manifest *m, const unsigned char *tiles,
    const struct ckpt_chunk *chunks, const char *path, struct glm_error *err)
{
    struct index_writer w = {.m = m, .path = path, .file = -1, .err = err};
    h5_lock();
    write_container(&w, tiles, chunks);
    h5_unlock();
    if (err->code == GLM_OK)
        write_finish(&w, tiles, chunks);
    return err->code == GLM_OK ? 0 : glm_within(err, "%s", path);
}
