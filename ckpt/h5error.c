/* libhdf5's settings and errors. Everything the library is told for the whole process is here. */
#include "ckpt/h5error.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <zstd.h>

static pthread_mutex_t h5_mutex = PTHREAD_MUTEX_INITIALIZER;
static bool h5_ready;

/* ---- filter 32015 --------------------------------------------------------------------------- */

/* One frame in, its content out. The chunk size is known to the caller of the filter pipeline, so a
 * frame must say its size; 0 tells HDF5 that the filter failed. */
static size_t h5_zstd_decode(size_t size, size_t *buf_size, void **buf)
{
    const unsigned long long want = ZSTD_getFrameContentSize(*buf, size);
    if (want == ZSTD_CONTENTSIZE_UNKNOWN || want == ZSTD_CONTENTSIZE_ERROR
        || want > UINT32_MAX)
        return 0;
    const size_t room = want > 0 ? (size_t)want : 1;
    void *const out = H5allocate_memory(room, false);
    if (!out)
        return 0;
    const size_t got = ZSTD_decompress(out, room, *buf, size);
    if (ZSTD_isError(got) || got != want) {
        H5free_memory(out);
        return 0;
    }
    H5free_memory(*buf);
    *buf = out;
    *buf_size = room;
    return got;
}

static size_t h5_zstd_encode(int level, size_t size, size_t *buf_size, void **buf)
{
    const size_t room = ZSTD_compressBound(size);
    void *const out = H5allocate_memory(room, false);
    if (!out)
        return 0;
    const size_t got = ZSTD_compress(out, room, *buf, size, level);
    if (ZSTD_isError(got)) {
        H5free_memory(out);
        return 0;
    }
    H5free_memory(*buf);
    *buf = out;
    *buf_size = room;
    return got;
}

static size_t h5_zstd_filter(unsigned flags, size_t cd_count, const unsigned cd[],
    size_t size, size_t *buf_size, void **buf)
{
    if (flags & H5Z_FLAG_REVERSE)
        return h5_zstd_decode(size, buf_size, buf);
    return h5_zstd_encode(cd_count > 0 ? (int)cd[0] : 1, size, buf_size, buf);
}

static const H5Z_class2_t h5_zstd_class = {
    .version = H5Z_CLASS_T_VERS,
    .id = H5_FILTER_ZSTD,
    .encoder_present = 1,
    .decoder_present = 1,
    .name = "zstd",
    .filter = h5_zstd_filter,
};

/* ---- lock and settings ---------------------------------------------------------------------- */

void h5_lock(void)
{
    pthread_mutex_lock(&h5_mutex);
    if (!h5_ready) {
        H5dont_atexit(); /* after a failed write the library's own clean-up at exit crashes */
        H5open();
        H5PLset_loading_state(0);
        H5Zregister(&h5_zstd_class);
        h5_ready = true;
    }
    /* Per thread in thread-safe builds, hence each time. */
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
}

void h5_unlock(void)
{
    pthread_mutex_unlock(&h5_mutex);
}

hid_t h5_access_list(void)
{
    const hid_t list = H5Pcreate(H5P_FILE_ACCESS);
    if (list >= 0
        && (H5Pset_libver_bounds(list, H5F_LIBVER_V110, H5F_LIBVER_V110) < 0
            || H5Pset_file_locking(list, false, true) < 0
            || H5Pset_fclose_degree(list, H5F_CLOSE_STRONG) < 0
            || H5Pset_sieve_buf_size(list, 0) < 0 || H5Pset_meta_block_size(list, 0) < 0
            || H5Pset_small_data_block_size(list, 0) < 0)) {
        H5Pclose(list);
        return -1;
    }
    return list;
}

/* No file space strategy is chosen here: one that differs from the default is recorded in an object
 * that always carries the time of day. The block sizes of 0 in the access list do as well. */
hid_t h5_creation_list(hsize_t user_block)
{
    const hid_t list = H5Pcreate(H5P_FILE_CREATE);
    if (list >= 0
        && (H5Pset_obj_track_times(list, false) < 0
            || H5Pset_userblock(list, user_block) < 0)) {
        H5Pclose(list);
        return -1;
    }
    return list;
}

int h5_groups(hid_t file, const char *path, struct glm_error *err)
{
    char prefix[4096];
    hid_t group = -1, list = -1;
    int code = 0;
    if (strlen(path) >= sizeof prefix)
        return glm_fail(err, GLM_EFORMAT, "'%s': a name of more than %zu bytes", path,
            sizeof prefix - 1);
    list = H5Pcreate(H5P_GROUP_CREATE);
    if (list < 0 || H5Pset_obj_track_times(list, false) < 0) {
        code = h5_fail(err, "group creation list");
        goto out;
    }
    for (const char *s = strchr(path + 1, '/'); s; s = strchr(s + 1, '/')) {
        memcpy(prefix, path, (size_t)(s - path));
        prefix[s - path] = '\0';
        const htri_t there = H5Lexists(file, prefix, H5P_DEFAULT);
        if (there > 0)
            continue;
        group = H5Gcreate2(file, prefix, H5P_DEFAULT, list, H5P_DEFAULT);
        if (there < 0 || group < 0 || H5Gclose(group) < 0) {
            code = h5_fail(err, "cannot create group '%s'", prefix);
            goto out;
        }
    }
out:
    h5_close_list(list);
    return code;
}

/* ---- errors --------------------------------------------------------------------------------- */

struct h5_cause {
    char text[512];
    int sys_errno;
};

static herr_t h5_first_cause(unsigned n, const H5E_error2_t *e, void *data)
{
    struct h5_cause *const cause = data;
    const char *const desc = e->desc ? e->desc : "";
    if (n == 0)
        snprintf(cause->text, sizeof cause->text, "%s (%s)", desc,
            e->func_name ? e->func_name : "?");
    const char *const number = strstr(desc, "errno = ");
    if (number && cause->sys_errno == 0)
        cause->sys_errno = atoi(number + strlen("errno = "));
    return 0;
}

int h5_fail(struct glm_error *err, const char *fmt, ...)
{
    struct h5_cause cause = {.text = "no further message"};
    char sentence[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(sentence, sizeof sentence, fmt, args);
    va_end(args);
    H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, h5_first_cause, &cause);
    H5Eclear2(H5E_DEFAULT);
    if (err->code != GLM_OK)
        return err->code;
    if (cause.sys_errno != 0) {
        errno = cause.sys_errno;
        return glm_fail_errno(err, "%s", sentence);
    }
    return glm_fail(err, GLM_EIO, "%s: HDF5: %s", sentence, cause.text);
}

/* ---- closing -------------------------------------------------------------------------------- */

void h5_close_file(hid_t id)
{
    if (id >= 0)
        H5Fclose(id);
}

void h5_close_dataset(hid_t id)
{
    if (id >= 0)
        H5Dclose(id);
}

void h5_close_space(hid_t id)
{
    if (id >= 0)
        H5Sclose(id);
}

void h5_close_type(hid_t id)
{
    if (id >= 0)
        H5Tclose(id);
}

void h5_close_list(hid_t id)
{
    if (id >= 0)
        H5Pclose(id);
}
