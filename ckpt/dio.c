/* Direct reads and writes, and the few file helpers that the checkpoint needs.
 *
 * Large transfers use O_DIRECT: at device speed the page cache only costs CPU and evicts what the
 * machine's user wants to keep. The kernel demands aligned offsets, lengths and memory; the edges
 * that do not fit go through the page cache, on pages that the direct part never touches, so the
 * two never meet on one page. */
#include "ckpt/dio.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    DIRECT_FROM =
        64 * 1024, /* smaller transfers: one system call through the cache is cheaper */
    MEMORY_ALIGN = 512, /* what block devices ask of memory; DIO_ALIGN holds everywhere */
    HUGE_FROM = 4 << 20,
    PIECE = 1 << 30, /* Linux moves at most 2^31-4096 bytes a call */
};

static size_t size_min(size_t a, size_t b)
{
    return a < b ? a : b;
}

static int open_both(struct dio *f, const char *path, int flags, struct glm_error *err)
{
    struct stat st;

    *f = (struct dio){.fd = -1, .direct = -1};
    f->path = strdup(path);
    if (f->path == NULL)
        return glm_fail(err, GLM_ENOMEM, "%s: no memory for its name", path);
    /* A pipe would hold up a blocking open; on files the flag has no effect. */
    f->fd = open(path, flags | O_CLOEXEC | O_NONBLOCK, 0666);
    if (f->fd < 0 || fstat(f->fd, &st) != 0) {
        glm_fail_errno(err, "%s: open", path);
        goto out;
    }
    if (!S_ISREG(st.st_mode)) {
        glm_fail(err, GLM_EFORMAT, "%s: not a regular file", path);
        goto out;
    }
    f->size = (uint64_t)st.st_size;
    f->direct = open(path, (flags & ~O_CREAT) | O_DIRECT | O_CLOEXEC | O_NONBLOCK);
out:
    if (err->code != GLM_OK)
        dio_close(f);
    return (int)err->code;
}

void dio_raise_limit(void)
{
    struct rlimit l;

    if (getrlimit(RLIMIT_NOFILE, &l) == 0 && l.rlim_cur < l.rlim_max) {
        l.rlim_cur = l.rlim_max;
        setrlimit(RLIMIT_NOFILE, &l);
    }
}

enum { OTHERS = 32 }; /* descriptors: standard streams, index, journal, lease, digests */

int dio_need_descriptors(int64_t count, struct glm_error *err)
{
    struct rlimit l;
    const rlim_t need = (rlim_t)count + OTHERS;

    dio_raise_limit();
    if (getrlimit(RLIMIT_NOFILE, &l) != 0 || l.rlim_cur == RLIM_INFINITY
        || l.rlim_cur >= need)
        return GLM_OK;
    return glm_fail(err, GLM_EIO,
        "this may hold %llu files open at once and the limit is %llu: raise the hard "
        "limit (ulimit -Hn), or ask for fewer cells or larger files",
        (unsigned long long)need, (unsigned long long)l.rlim_cur);
}

int dio_open_read(struct dio *f, const char *path, struct glm_error *err)
{
    return open_both(f, path, O_RDONLY, err);
}

int dio_open_write(struct dio *f, const char *path, bool create, struct glm_error *err)
{
    return open_both(f, path, O_RDWR | (create ? O_CREAT : 0), err);
}

void dio_close(struct dio *f)
{
    if (f->path == NULL)
        return;
    if (f->fd >= 0)
        close(f->fd);
    if (f->direct >= 0)
        close(f->direct);
    free(f->path);
    *f = (struct dio){.fd = -1, .direct = -1};
}

void *dio_alloc(size_t size)
{
    void *p =
        mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    if (size >= HUGE_FROM)
        madvise(p, size, MADV_HUGEPAGE); /* fewer pages to pin for each direct transfer */
    return p;
}

void dio_free(void *p, size_t size)
{
    if (p != NULL)
        munmap(p, size);
}

int dio_reserve(struct dio_buffer *b, size_t need, struct glm_error *err)
{
    if (b->size >= need)
        return GLM_OK;
    dio_free(b->data, b->size);
    b->size = 0;
    b->data = dio_alloc(need);
    if (b->data == NULL)
        return glm_fail(err, GLM_ENOMEM, "no memory for a buffer of %zu bytes", need);
    b->size = need;
    return GLM_OK;
}

/* Reads until size bytes or the end of the file; *got says how many. Returns an errno, 0 if fine. */
static int read_some(
    int fd, uint64_t offset, unsigned char *out, size_t size, size_t *got)
{
    *got = 0;
    while (*got < size) {
        const ssize_t n =
            pread(fd, out + *got, size_min(size - *got, PIECE), (off_t)(offset + *got));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno;
        if (n == 0)
            break;
        *got += (size_t)n;
    }
    return 0;
}

static int short_file(
    const struct dio *f, uint64_t offset, size_t size, size_t got, struct glm_error *err)
{
    return glm_fail(err, GLM_EFORMAT,
        "%s: ends at byte %llu, %zu bytes at offset %llu were expected", f->path,
        (unsigned long long)(offset + got), size, (unsigned long long)offset);
}

int dio_pread(
    const struct dio *f, uint64_t offset, size_t size, void *out, struct glm_error *err)
{
    size_t got;
    const int e = read_some(f->fd, offset, out, size, &got);

    if (e != 0) {
        errno = e;
        return glm_fail_errno(err, "%s: read of %zu bytes at offset %llu", f->path, size,
            (unsigned long long)offset);
    }
    return got == size ? GLM_OK : short_file(f, offset, size, got, err);
}

int dio_read(const struct dio *f, uint64_t offset, size_t size, void *buf,
    unsigned char **at, struct glm_error *err)
{
    const size_t skew = (size_t)(offset % DIO_ALIGN);
    const size_t span = (skew + size + DIO_ALIGN - 1) / DIO_ALIGN * DIO_ALIGN;
    size_t got;

    *at = (unsigned char *)buf + skew;
    if (f->direct >= 0 && size >= DIRECT_FROM) {
        const int e = read_some(f->direct, offset - skew, buf, span, &got);
        /* A file whose last block is not whole may refuse the tail: the cache then has it. */
        if (e == 0 && got >= skew + size)
            return GLM_OK;
        if (e == 0)
            return short_file(f, offset, size, got < skew ? 0 : got - skew, err);
        if (e != EINVAL) {
            errno = e;
            return glm_fail_errno(err, "%s: read of %zu bytes at offset %llu", f->path,
                size, (unsigned long long)offset);
        }
    }
    return dio_pread(f, offset, size, *at, err);
}

static int write_all(const struct dio *f, int fd, uint64_t offset,
    const unsigned char *data, size_t size, struct glm_error *err)
{
    while (size > 0) {
        const ssize_t n = pwrite(fd, data, size_min(size, PIECE), (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EINVAL && fd == f->direct) {
            fd =
                f->fd; /* this file system's O_DIRECT wants more than we know: use the cache */
            continue;
        }
        if (n <= 0) {
            if (n == 0)
                errno = EIO;
            return glm_fail_errno(err, "%s: write of %zu bytes at offset %llu", f->path,
                size, (unsigned long long)offset);
        }
        data += n;
        offset += (uint64_t)n;
        size -= (size_t)n;
        if (fd == f->direct && n % DIO_ALIGN != 0)
            fd = f->fd; /* a short direct write: what is left is not aligned any more */
    }
    return GLM_OK;
}

int dio_write(const struct dio *f, uint64_t offset, const void *data, size_t size,
    void *bounce, size_t bounce_size, struct glm_error *err)
{
    const unsigned char *from = data;
    const uint64_t end = offset + size;
    const uint64_t a = (offset + DIO_ALIGN - 1) / DIO_ALIGN * DIO_ALIGN;
    const uint64_t b = end / DIO_ALIGN * DIO_ALIGN;

    if (f->direct < 0 || size < DIRECT_FROM || b <= a)
        return write_all(f, f->fd, offset, from, size, err);

    const unsigned char *inner = from + (a - offset);
    const bool fits = (uintptr_t)inner % MEMORY_ALIGN == 0;

    if (!fits && bounce == NULL)
        return write_all(f, f->fd, offset, from, size, err);
    if (write_all(f, f->fd, offset, from, (size_t)(a - offset), err) != GLM_OK)
        return (int)err->code;
    for (uint64_t at = a; at < b;) {
        size_t n = (size_t)(b - at);
        const unsigned char *src = from + (at - offset);
        if (!fits) {
            n = size_min(n, bounce_size / DIO_ALIGN * DIO_ALIGN);
            memcpy(bounce, src, n);
            src = bounce;
        }
        if (write_all(f, f->direct, at, src, n, err) != GLM_OK)
            return (int)err->code;
        at += n;
    }
    return write_all(f, f->fd, b, from + (b - offset), (size_t)(end - b), err);
}

int dio_sync(const struct dio *f, struct glm_error *err)
{
    if (fdatasync(f->fd) != 0)
        return glm_fail_errno(err, "%s: fdatasync", f->path);
    return GLM_OK;
}

int dio_sync_folder(const char *path, struct glm_error *err)
{
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0 || fsync(fd) != 0)
        glm_fail_errno(err, "%s: fsync of the folder", path);
    if (fd >= 0)
        close(fd);
    return (int)err->code;
}

int dio_slurp(
    const char *path, size_t limit, void **data, size_t *size, struct glm_error *err)
{
    struct dio f;
    unsigned char *text = NULL;

    *data = NULL;
    *size = 0;
    if (dio_open_read(&f, path, err) != GLM_OK)
        return (int)err->code;
    if (f.size > limit) {
        glm_fail(err, GLM_EFORMAT, "%s: %llu bytes, at most %zu are accepted here", path,
            (unsigned long long)f.size, limit);
        goto out;
    }
    text = malloc((size_t)f.size + 1);
    if (text == NULL) {
        glm_fail(err, GLM_ENOMEM, "%s: no memory for %llu bytes", path,
            (unsigned long long)f.size);
        goto out;
    }
    if (dio_pread(&f, 0, (size_t)f.size, text, err) != GLM_OK)
        goto out;
    text[f.size] = '\0';
    *size = (size_t)f.size;
    *data = text;
    text = NULL;
out:
    free(text);
    dio_close(&f);
    return (int)err->code;
}
