#include "train/tokens_write.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/ckpt.h"
#include "ckpt/h5error.h"
#include "train/tokens_block.h"

enum { SPOOL_BUFFER = 1 << 20 };

/* Bytes on their way: hashed as they pass. */
struct spool {
    int fd;
    unsigned char *buffer;
    size_t used;
    uint64_t bytes;
    struct digest *sum;
};

struct tokens_writer {
    char *path, *partial;
    int lock; /* a descriptor of partial, held locked */
    bool replace, created, masked;
    enum glm_dtype dtype;
    int64_t count, documents;
    int32_t largest;
    struct spool spool[TOKENS_PARTS];
};

/* ---- spools --------------------------------------------------------------------------------- */

static int spool_open(struct spool *s, const char *partial, struct glm_error *err)
{
    char *name = NULL;
    s->buffer = malloc(SPOOL_BUFFER);
    s->sum = digest_new();
    if (s->buffer == NULL || s->sum == NULL || asprintf(&name, "%s-XXXXXX", partial) < 0)
        return glm_fail(err, GLM_ENOMEM, "%s: no memory to write it", partial);
    s->fd = mkostemp(name, O_CLOEXEC);
    if (s->fd < 0)
        glm_fail_errno(err, "%s: cannot make a file beside it", partial);
    else
        unlink(name);
    free(name);
    digest_begin(s->sum);
    return err->code;
}

static void spool_close(struct spool *s)
{
    if (s->fd >= 0)
        close(s->fd);
    free(s->buffer);
    digest_free(s->sum);
    *s = (struct spool){.fd = -1};
}

static int spool_flush(struct spool *s, const char *partial, struct glm_error *err)
{
    for (size_t done = 0; done < s->used;) {
        const ssize_t n = write(s->fd, s->buffer + done, s->used - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return glm_fail_errno(err, "%s: write of a spool file", partial);
        done += (size_t)n;
    }
    digest_update(s->sum, s->buffer, s->used);
    s->bytes += s->used;
    s->used = 0;
    return GLM_OK;
}

static int spool_put(struct spool *s, const char *partial, const void *data, size_t size,
    struct glm_error *err)
{
    for (const unsigned char *at = data; size > 0;) {
        const size_t room = SPOOL_BUFFER - s->used, n = size < room ? size : room;
        memcpy(s->buffer + s->used, at, n);
        s->used += n;
        at += n;
        size -= n;
        if (s->used == SPOOL_BUFFER && spool_flush(s, partial, err) != GLM_OK)
            return err->code;
    }
    return GLM_OK;
}

/* ---- what comes in -------------------------------------------------------------------------- */

static int writer_start_number(struct tokens_writer *w, struct glm_error *err)
{
    return spool_put(
        &w->spool[TOKENS_DOCUMENTS], w->partial, &w->count, sizeof w->count, err);
}

/* Creates OUT.partial, or takes over one that nobody holds. */
static int writer_claim(struct tokens_writer *w, struct glm_error *err)
{
    struct stat held, there;
    w->lock = open(w->partial, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (w->lock < 0)
        return glm_fail_errno(err, "%s: create", w->partial);
    /* A file system without locks answers something else than EWOULDBLOCK: then there are none. */
    const bool taken = flock(w->lock, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    if (taken || fstat(w->lock, &held) != 0 || stat(w->partial, &there) != 0
        || held.st_ino != there.st_ino)
        return glm_fail(err, GLM_EUSAGE, "%s: another run is writing it", w->partial);
    w->created = true;
    return GLM_OK;
}

int tokens_writer_open(struct tokens_writer **out, const char *path, enum glm_dtype dtype,
    bool replace, struct glm_error *err)
{
    *out = NULL;
    if (!replace && access(path, F_OK) == 0)
        return glm_fail(err, GLM_EUSAGE, "%s: exists; --replace overwrites it", path);
    struct tokens_writer *const w = calloc(1, sizeof *w);
    if (w == NULL)
        return glm_fail(err, GLM_ENOMEM, "%s: no memory to write it", path);
    w->dtype = dtype;
    w->replace = replace;
    w->lock = -1;
    for (int i = 0; i < TOKENS_PARTS; i++)
        w->spool[i].fd = -1;
    w->path = strdup(path);
    if (w->path == NULL || asprintf(&w->partial, "%s.partial", path) < 0) {
        w->partial = NULL;
        glm_fail(err, GLM_ENOMEM, "%s: no memory to write it", path);
        goto out;
    }
    if (writer_claim(w, err) != GLM_OK)
        goto out;
    for (int i = 0; i < TOKENS_PARTS; i++)
        if (spool_open(&w->spool[i], w->partial, err) != GLM_OK)
            goto out;
    writer_start_number(w, err);
out:
    if (err->code != GLM_OK)
        tokens_writer_close(w);
    else
        *out = w;
    return err->code;
}

static int writer_mask(
    struct tokens_writer *w, const uint8_t *mask, int64_t n, struct glm_error *err)
{
    uint8_t ones[4096];
    struct spool *const s = &w->spool[TOKENS_MASK];
    memset(ones, 1, sizeof ones);
    /* The tokens before the first mask, or these when they have none. */
    int64_t left = !w->masked ? w->count : 0;
    w->masked = true;
    if (mask == NULL)
        left += n;
    for (; left > 0; left -= left < 4096 ? left : 4096)
        if (spool_put(s, w->partial, ones, left < 4096 ? (size_t)left : 4096, err)
            != GLM_OK)
            return err->code;
    return mask == NULL ? GLM_OK : spool_put(s, w->partial, mask, (size_t)n, err);
}

int tokens_writer_add(struct tokens_writer *w, const int32_t *ids, const uint8_t *mask,
    int64_t n, struct glm_error *err)
{
    struct spool *const s = &w->spool[TOKENS_IDS];
    if ((mask != NULL || w->masked) && writer_mask(w, mask, n, err) != GLM_OK)
        return err->code;
    for (int64_t i = 0; i < n; i++) {
        const uint16_t half = (uint16_t)ids[i];
        const void *const from = w->dtype == GLM_U16 ? (const void *)&half : &ids[i];
        w->largest = ids[i] > w->largest ? ids[i] : w->largest;
        if (spool_put(s, w->partial, from, glm_dtype_size(w->dtype), err) != GLM_OK)
            return err->code;
    }
    w->count += n;
    return GLM_OK;
}

int tokens_writer_end(struct tokens_writer *w, struct glm_error *err)
{
    w->documents++;
    return writer_start_number(w, err);
}

/* ---- the container -------------------------------------------------------------------------- */

static hid_t container_type(const struct tokens_writer *w, int part)
{
    if (part == TOKENS_DOCUMENTS)
        return H5T_STD_I64LE;
    if (part == TOKENS_MASK)
        return H5T_STD_U8LE;
    return w->dtype == GLM_U16 ? H5T_STD_U16LE : H5T_STD_I32LE;
}

static hsize_t container_elements(const struct tokens_block *b, int part)
{
    return b->part[part].count + (part == TOKENS_DOCUMENTS);
}

/* One contiguous dataset without data; its place in the file. */
static int container_dataset(const struct tokens_writer *w, hid_t file,
    struct tokens_block *b, int part, struct glm_error *err)
{
    const hsize_t dims[1] = {container_elements(b, part)};
    char name[32];
    snprintf(name, sizeof name, "/%s", tokens_part_name[part]);
    const hid_t space = H5Screate_simple(1, dims, NULL);
    const hid_t list = H5Pcreate(H5P_DATASET_CREATE);
    hid_t set = -1;
    haddr_t at = HADDR_UNDEF;
    if (space >= 0 && list >= 0 && H5Pset_obj_track_times(list, false) >= 0
        && H5Pset_alloc_time(list, H5D_ALLOC_TIME_EARLY) >= 0
        && H5Pset_fill_time(list, H5D_FILL_TIME_NEVER) >= 0)
        set = H5Dcreate2(
            file, name, container_type(w, part), space, H5P_DEFAULT, list, H5P_DEFAULT);
    if (set >= 0)
        at = H5Dget_offset(set);
    if (at == HADDR_UNDEF)
        h5_fail(err, "%s: cannot create %s", w->partial, name);
    b->part[part].offset = at;
    h5_close_dataset(set);
    h5_close_list(list);
    h5_close_space(space);
    return err->code;
}

static int container_create(
    const struct tokens_writer *w, struct tokens_block *b, struct glm_error *err)
{
    const hid_t create = h5_creation_list(TOKENS_BLOCK), access_list = h5_access_list();
    hid_t file = -1;
    if (create >= 0 && access_list >= 0)
        file = H5Fcreate(w->partial, H5F_ACC_TRUNC, create, access_list);
    if (file < 0)
        h5_fail(err, "%s: create", w->partial);
    for (int i = 0; i < TOKENS_PARTS && err->code == GLM_OK; i++)
        if (b->part[i].count > 0)
            container_dataset(w, file, b, i, err);
    if (err->code == GLM_OK && H5Fflush(file, H5F_SCOPE_GLOBAL) < 0)
        h5_fail(err, "%s: write", w->partial);
    if (file >= 0 && H5Fclose(file) < 0)
        h5_fail(err, "%s: close", w->partial);
    h5_close_list(create);
    h5_close_list(access_list);
    return err->code;
}

/* Whether libhdf5 finds the last element of each part where it was put: an offset that was
 * misunderstood must not survive. */
static int container_last(const struct tokens_writer *w, hid_t file,
    const struct tokens_block *b, int part, int64_t *out, struct glm_error *err)
{
    const hsize_t last[1] = {container_elements(b, part) - 1}, one[1] = {1};
    char name[32];
    snprintf(name, sizeof name, "/%s", tokens_part_name[part]);
    const hid_t set = H5Dopen2(file, name, H5P_DEFAULT);
    const hid_t from = set >= 0 ? H5Dget_space(set) : -1,
                to = H5Screate_simple(1, one, NULL);
    if (from < 0 || to < 0
        || H5Sselect_hyperslab(from, H5S_SELECT_SET, last, NULL, one, NULL) < 0
        || H5Dread(set, H5T_NATIVE_INT64, to, from, H5P_DEFAULT, out) < 0)
        h5_fail(err, "%s: cannot read %s back", w->partial, name);
    h5_close_space(to);
    h5_close_space(from);
    h5_close_dataset(set);
    return err->code;
}

static int container_verify(
    const struct tokens_writer *w, const struct tokens_block *b, struct glm_error *err)
{
    const hid_t list = h5_access_list();
    const hid_t file = list >= 0 ? H5Fopen(w->partial, H5F_ACC_RDONLY, list) : -1;
    if (file < 0)
        h5_fail(err, "%s: cannot open it again", w->partial);
    for (int i = 0; i < TOKENS_PARTS && err->code == GLM_OK; i++) {
        unsigned char raw[8] = {0};
        int64_t seen, wanted = 0;
        if (b->part[i].count == 0)
            continue;
        const uint64_t bytes = w->spool[i].bytes;
        const size_t size = (size_t)(bytes / container_elements(b, i));
        if (pread(w->spool[i].fd, raw, size, (off_t)(bytes - size)) != (ssize_t)size)
            glm_fail_errno(err, "%s: read of a spool file", w->partial);
        else if (container_last(w, file, b, i, &seen, err) == GLM_OK) {
            memcpy(
                &wanted, raw, sizeof raw); /* ids are not negative: zeros extend them */
            if (seen != wanted)
                glm_fail(err, GLM_EIO,
                    "%s: HDF5 reads %lld at the end of /%s, %lld was written", w->partial,
                    (long long)seen, tokens_part_name[i], (long long)wanted);
        }
    }
    h5_close_file(file);
    h5_close_list(list);
    return err->code;
}

/* ---- the end -------------------------------------------------------------------------------- */

static int finish_copy(const struct tokens_writer *w, const struct dio *to,
    const struct tokens_block *b, int part, struct glm_error *err)
{
    const struct spool *const s = &w->spool[part];
    const struct dio from = {
        .fd = s->fd, .direct = -1, .path = w->partial, .size = s->bytes};
    for (uint64_t at = 0; at < s->bytes; at += SPOOL_BUFFER) {
        const uint64_t left = s->bytes - at;
        const size_t n = left < SPOOL_BUFFER ? (size_t)left : SPOOL_BUFFER;
        if (dio_pread(&from, at, n, s->buffer, err) != GLM_OK
            || dio_write(to, b->part[part].offset + at, s->buffer, n, NULL, 0, err)
                != GLM_OK)
            return err->code;
    }
    return GLM_OK;
}

/* The digest of what is HDF5's own: everything behind the user block and outside the parts. */
static int finish_rest(struct tokens_writer *w, const struct dio *f,
    struct tokens_block *b, struct glm_error *err)
{
    struct digest *const sum = w->spool[TOKENS_IDS].sum;
    unsigned char *const buffer = w->spool[TOKENS_IDS].buffer;
    digest_begin(sum);
    for (uint64_t at = TOKENS_BLOCK; at < b->size;) {
        uint64_t end = b->size, skip = end;
        for (int i = 0; i < TOKENS_PARTS; i++)
            if (b->part[i].count > 0 && b->part[i].offset >= at
                && b->part[i].offset < end) {
                end = b->part[i].offset;
                skip = end + tokens_part_bytes(b, (enum tokens_part)i);
            }
        for (size_t n; at < end; at += n) {
            n = end - at < SPOOL_BUFFER ? (size_t)(end - at) : SPOOL_BUFFER;
            if (dio_pread(f, at, n, buffer, err) != GLM_OK)
                return err->code;
            digest_update(sum, buffer, n);
        }
        at = skip;
    }
    digest_end(sum, b->rest);
    return GLM_OK;
}

static int finish_fill(
    struct tokens_writer *w, struct tokens_block *b, struct glm_error *err)
{
    unsigned char raw[TOKENS_BLOCK];
    struct dio f;
    struct stat st;
    if (dio_open_write(&f, w->partial, false, err) != GLM_OK)
        return err->code;
    for (int i = 0; i < TOKENS_PARTS; i++)
        if (b->part[i].count > 0 && finish_copy(w, &f, b, i, err) != GLM_OK)
            goto out;
    if (fstat(f.fd, &st) != 0) {
        glm_fail_errno(err, "%s", w->partial);
        goto out;
    }
    b->size = (uint64_t)st.st_size;
    if (finish_rest(w, &f, b, err) != GLM_OK)
        goto out;
    tokens_block_print(b, raw);
    if (dio_write(&f, 0, raw, sizeof raw, NULL, 0, err) == GLM_OK && fsync(f.fd) != 0)
        glm_fail_errno(err, "%s: fsync", w->partial);
out:
    dio_close(&f);
    return err->code;
}

/* Gives the file its name, and makes the name durable. */
static int finish_name(struct tokens_writer *w, struct glm_error *err)
{
    const unsigned flags = w->replace ? 0 : RENAME_NOREPLACE;
    int code = renameat2(AT_FDCWD, w->partial, AT_FDCWD, w->path, flags);
    if (code != 0 && errno == EINVAL && access(w->path, F_OK) != 0)
        code = rename(w->partial, w->path); /* a file system without the flag */
    if (code != 0)
        return glm_fail_errno(err, "%s: rename from %s", w->path, w->partial);
    w->created = false;
    char *const folder = strdup(w->path);
    if (folder == NULL)
        return glm_fail(err, GLM_ENOMEM, "%s: no memory to finish it", w->path);
    dio_sync_folder(dirname(folder), err);
    free(folder);
    return err->code;
}

int tokens_writer_finish(struct tokens_writer *w, struct glm_error *err)
{
    struct tokens_block b = {.dtype = w->dtype, .largest = (uint64_t)w->largest};
    if (w->count == 0)
        return glm_fail(err, GLM_EFORMAT, "%s: there is not one token to write", w->path);
    b.part[TOKENS_IDS].count = (uint64_t)w->count;
    b.part[TOKENS_DOCUMENTS].count = (uint64_t)w->documents;
    b.part[TOKENS_MASK].count = w->masked ? (uint64_t)w->count : 0;
    for (int i = 0; i < TOKENS_PARTS; i++) {
        if (spool_flush(&w->spool[i], w->partial, err) != GLM_OK)
            return err->code;
        digest_end(w->spool[i].sum, b.part[i].sha256);
    }
    h5_lock();
    container_create(w, &b, err);
    h5_unlock();
    if (err->code != GLM_OK || finish_fill(w, &b, err) != GLM_OK)
        return err->code;
    h5_lock();
    container_verify(w, &b, err);
    h5_unlock();
    return err->code != GLM_OK ? (int)err->code : finish_name(w, err);
}

void tokens_writer_close(struct tokens_writer *w)
{
    if (w == NULL)
        return;
    if (w->created)
        unlink(w->partial);
    if (w->lock >= 0)
        close(w->lock);
    for (int i = 0; i < TOKENS_PARTS; i++)
        spool_close(&w->spool[i]);
    free(w->path);
    free(w->partial);
    free(w);
}
