/* libfault.so: fails, kills or loses power at the k-th change under a folder.
 *
 * Preloaded (LD_PRELOAD), it stands in front of the calls that change files. Calls on paths under
 * $FAULT_ROOT are numbered from 1; all others pass. What happens is set by the environment:
 *
 *   FAULT_ROOT  the folder, absolute
 *   FAULT_AT    k; 0 or absent: nothing happens, calls are only counted
 *   FAULT_MODE  kill    SIGKILL before call k
 *               tear    half of write k is done, then SIGKILL
 *               short   write k does half and says so
 *               enospc, edquot   call k fails, and every call after it that needs space
 *               eio     call k fails, once
 *               hang    call k and every later one never return: a disk that no longer answers
 *               power   before call k (or at the end, if there is no such call) everything that no
 *                       fsync covered is undone, then exit 137
 *   FAULT_LOSE  with power: all (default), data (names survive), names (bytes survive)
 *   FAULT_SKIP_SYNC  words, each a pattern of file names whose fsync is not done: the program that
 *               forgot it. "." stands for folders below FAULT_ROOT, "parent" for FAULT_ROOT itself
 *   FAULT_LOG   a file (outside FAULT_ROOT) that gets a line "k call path" per call
 *
 * stdio flushes inside the C library, unseen: a stream opened for writing under FAULT_ROOT aborts. */
#define _LARGEFILE64_SOURCE

#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "tests/fault/tree.h"
#include "tests/fault/undo.h"

enum mode { COUNT, KILL, TEAR, SHORT, ENOSPC_MODE, EDQUOT_MODE, EIO_MODE, POWER, HANG };
enum need { NAME = 1, SPACE = 2, BYTES_ = 4, SYNC = 8 }; /* what a call does */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool started;
static char root[PATH_MAX], stash_path[PATH_MAX];
static size_t root_length;
static enum mode mode;
static enum undo_what lose;
static long at, now;
static int log_fd = -1;

/* ---- start and end ---- */

static void start(void)
{
    static const char *const names[] = {
        "count", "kill", "tear", "short", "enospc", "edquot", "eio", "power", "hang"};
    started = true;
    const char *r = getenv("FAULT_ROOT"), *m = getenv("FAULT_MODE"),
               *k = getenv("FAULT_AT");
    const char *w = getenv("FAULT_LOSE"), *l = getenv("FAULT_LOG");
    if (!r || !realpath(r, root))
        return;
    root_length = strlen(root);
    for (int i = 0; m && i < (int)(sizeof names / sizeof *names); i++)
        if (strcmp(m, names[i]) == 0)
            mode = (enum mode)i;
    at = k ? atol(k) : 0;
    lose = w && strcmp(w, "data") == 0 ? UNDO_DATA
        : w && strcmp(w, "names") == 0 ? UNDO_NAMES
                                       : UNDO_ALL;
    if (l)
        log_fd = (int)syscall(
            SYS_openat, AT_FDCWD, l, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (mode == POWER) {
        snprintf(stash_path, sizeof stash_path, "%.*s.stash-%d",
            (int)sizeof stash_path - 32, root, (int)getpid());
        syscall(SYS_mkdirat, AT_FDCWD, stash_path, 0700);
        undo_start(stash_path);
    }
}

static void power_loss(void)
{
    undo_lose(lose);
    tree_remove(AT_FDCWD, stash_path);
    _exit(137);
}

__attribute__((destructor)) static void finish(void)
{
    if (mode == POWER && at > 0)
        power_loss();
    if (mode == POWER)
        tree_remove(AT_FDCWD, stash_path);
}

/* ---- is it ours? ---- */

static bool path_of(int fd, char out[PATH_MAX])
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const long n = syscall(SYS_readlinkat, AT_FDCWD, link, out, PATH_MAX - 1);
    if (n <= 0)
        return false;
    out[n] = 0;
    return strncmp(out, root, root_length) == 0
        && (out[root_length] == '/' || !out[root_length]);
}

static void enter(void)
{
    pthread_mutex_lock(&lock);
    if (!started)
        start();
}

static long leave(long result, int error)
{
    pthread_mutex_unlock(&lock);
    errno = error;
    return result;
}

/* The folder and last name of a path; -1 if the folder is not under FAULT_ROOT. */
static int folder(
    int dirfd, const char *path, char name[NAME_MAX + 1], char full[PATH_MAX])
{
    char parent[PATH_MAX];
    if (!root_length || strlen(path) >= sizeof parent)
        return -1;
    snprintf(parent, sizeof parent, "%s", path);
    for (size_t n = strlen(parent); n > 1 && parent[n - 1] == '/';)
        parent[--n] = 0;
    char *slash = strrchr(parent, '/');
    snprintf(name, NAME_MAX + 1, "%.255s", slash ? slash + 1 : parent);
    if (slash)
        slash[slash == parent] = 0;
    const int fd = (int)syscall(
        SYS_openat, dirfd, slash ? parent : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0 && path_of(fd, full)) {
        const size_t n = strlen(full);
        snprintf(full + n, PATH_MAX - n, "/%s", name);
        return fd;
    }
    if (fd >= 0)
        syscall(SYS_close, fd);
    return -1;
}

/* ---- the k-th call ---- */

enum verdict { GO, FAIL, HALF };

static enum verdict point(const char *call, const char *path, int need)
{
    now++;
    if (log_fd >= 0)
        dprintf(log_fd, "%ld %s %s\n", now, call, path + root_length);
    if (at <= 0 || now < at)
        return GO;
    const bool space = (need & SPACE) != 0;
    switch (mode) {
    case COUNT:
        return GO;
    case KILL:
        kill(getpid(), SIGKILL);
        break;
    case TEAR:
        if (need & BYTES_)
            return HALF;
        kill(getpid(), SIGKILL);
        break;
    case SHORT:
        return now == at && need & BYTES_ ? HALF : GO;
    case ENOSPC_MODE:
    case EDQUOT_MODE:
        errno = mode == ENOSPC_MODE ? ENOSPC : EDQUOT;
        return now == at || space ? FAIL : GO;
    case EIO_MODE:
        errno = EIO;
        return now == at ? FAIL : GO;
    case POWER:
        power_loss();
        break;
    case HANG:
        pthread_mutex_unlock(&lock); /* other threads go on until they change something */
        for (;;)
            pause();
    }
    return GO;
}

/* Half of a write; direct I/O needs whole blocks. */
static size_t half(int fd, size_t size)
{
    const int flags = (int)syscall(SYS_fcntl, fd, F_GETFL);
    if (!(flags & O_DIRECT))
        return size > 1 ? size / 2 : size;
    return size > 8191 ? size / 2 / 4096 * 4096 : size;
}

static long finish_record(struct undo_record *r, long result)
{
    const int e = errno;
    if (result < 0)
        undo_forget(r);
    return leave(result, e);
}

/* ---- writes ---- */

static long do_write(
    const char *call, int fd, const void *data, size_t size, off_t where, bool here)
{
    char path[PATH_MAX];
    struct undo_record *r = NULL;
    enter();
    if (root_length && path_of(fd, path)) {
        const enum verdict v = point(call, path, SPACE | BYTES_);
        if (v == FAIL)
            return leave(-1, errno);
        if (v == HALF)
            size = half(fd, size);
        off_t from = where;
        if (here) {
            from = syscall(SYS_fcntl, fd, F_GETFL) & O_APPEND
                ? (off_t)syscall(SYS_lseek, fd, 0, SEEK_END)
                : (off_t)syscall(SYS_lseek, fd, 0, SEEK_CUR);
        }
        if (mode == POWER)
            r = undo_bytes(fd, from, size);
    }
    const long n = here ? syscall(SYS_write, fd, data, size)
                        : syscall(SYS_pwrite64, fd, data, size, where);
    const int e = errno;
    if (mode == TEAR && at > 0 && now >= at)
        kill(getpid(), SIGKILL);
    errno = e;
    return finish_record(r, n);
}

#define EXPORT __attribute__((visibility("default")))

EXPORT ssize_t write(int fd, const void *data, size_t size)
{
    return do_write("write", fd, data, size, 0, true);
}
EXPORT ssize_t pwrite(int fd, const void *data, size_t size, off_t where)
{
    return do_write("pwrite", fd, data, size, where, false);
}
EXPORT ssize_t pwrite64(int fd, const void *data, size_t size, off64_t where)
{
    return do_write("pwrite", fd, data, size, where, false);
}

/* Vectors: written piece by piece, as a short vector write may be. */
static ssize_t do_vector(int fd, const struct iovec *v, int count, off_t where, bool here)
{
    ssize_t done = 0;
    for (int i = 0; i < count; i++) {
        const ssize_t n =
            do_write("writev", fd, v[i].iov_base, v[i].iov_len, where + done, here);
        if (n < 0)
            return done ? done : n;
        done += n;
        if ((size_t)n < v[i].iov_len)
            break;
    }
    return done;
}
EXPORT ssize_t writev(int fd, const struct iovec *v, int count)
{
    return do_vector(fd, v, count, 0, true);
}
EXPORT ssize_t pwritev(int fd, const struct iovec *v, int count, off_t where)
{
    return do_vector(fd, v, count, where, false);
}
EXPORT ssize_t pwritev64(int fd, const struct iovec *v, int count, off64_t where)
{
    return do_vector(fd, v, count, where, false);
}

/* Not emulated: the caller falls back to reading and writing. */
EXPORT ssize_t copy_file_range(
    int in, off64_t *from, int out, off64_t *to, size_t size, unsigned flags)
{
    char path[PATH_MAX];
    enter();
    if (root_length && path_of(out, path))
        return leave(-1, ENOSYS);
    const long n = syscall(SYS_copy_file_range, in, from, out, to, size, flags);
    return leave(n, errno);
}

static int do_length(
    const char *call, int fd, off_t length, int fallocate_mode, off_t from, off_t size)
{
    char path[PATH_MAX];
    struct undo_record *r = NULL;
    const bool cut = fallocate_mode < 0;
    enter();
    if (root_length && path_of(fd, path)) {
        if (point(call, path, SPACE) == FAIL)
            return (int)leave(-1, errno);
        if (mode == POWER)
            r = cut ? undo_length(fd, length) : undo_bytes(fd, from, (size_t)size);
    }
    const long n = cut ? syscall(SYS_ftruncate, fd, length)
                       : syscall(SYS_fallocate, fd, fallocate_mode, from, size);
    return (int)finish_record(r, n);
}

EXPORT int ftruncate(int fd, off_t length)
{
    return do_length("ftruncate", fd, length, -1, 0, 0);
}
EXPORT int ftruncate64(int fd, off64_t length)
{
    return do_length("ftruncate", fd, length, -1, 0, 0);
}
EXPORT int fallocate(int fd, int how, off_t from, off_t size)
{
    return do_length("fallocate", fd, 0, how, from, size);
}
EXPORT int fallocate64(int fd, int how, off64_t from, off64_t size)
{
    return do_length("fallocate", fd, 0, how, from, size);
}
EXPORT int posix_fallocate(int fd, off_t from, off_t size)
{
    return do_length("fallocate", fd, 0, 0, from, size) == 0 ? 0 : errno;
}
EXPORT int posix_fallocate64(int fd, off64_t from, off64_t size)
{
    return posix_fallocate(fd, from, size);
}

/* ---- syncs ---- */

static bool skipped(int fd, const char *path)
{
    char words[256];
    struct stat st;
    const char *skip = getenv("FAULT_SKIP_SYNC");
    if (!skip || fstat(fd, &st) != 0)
        return false;
    const char *base = strrchr(path, '/') + 1;
    if (S_ISDIR(st.st_mode))
        base = path[root_length] ? "." : "parent";
    snprintf(words, sizeof words, "%s", skip);
    char *rest = NULL;
    for (const char *w = strtok_r(words, " ,", &rest); w; w = strtok_r(NULL, " ,", &rest))
        if (fnmatch(w, base, 0) == 0)
            return true;
    return false;
}

static int do_sync(const char *call, long number, int fd)
{
    char path[PATH_MAX];
    enter();
    if (!root_length || !path_of(fd, path)) {
        const long n = syscall(number, fd);
        return (int)leave(n, errno);
    }
    if (point(call, path, SYNC) == FAIL)
        return (int)leave(-1, errno);
    /* The machine does not really lose power: nothing needs to reach the disk. */
    if (mode == POWER && !skipped(fd, path))
        undo_synced(fd);
    return (int)leave(0, errno);
}

EXPORT int fsync(int fd)
{
    return do_sync("fsync", SYS_fsync, fd);
}
EXPORT int fdatasync(int fd)
{
    return do_sync("fdatasync", SYS_fdatasync, fd);
}
EXPORT void sync(void)
{
    enter();
    if (mode == POWER)
        undo_synced_all();
    leave(0, errno);
}
EXPORT int syncfs(int fd)
{
    (void)fd;
    sync();
    return 0;
}

/* ---- names ---- */

static int do_open(int dirfd, const char *path, int flags, mode_t perm)
{
    char name[NAME_MAX + 1], full[PATH_MAX];
    struct undo_record *r = NULL;
    struct stat st;
    enter();
    const int dir = flags & (O_CREAT | O_TRUNC) ? folder(dirfd, path, name, full) : -1;
    if (dir >= 0) {
        const bool there = fstatat(dir, name, &st, 0) == 0;
        if (!there && flags & O_CREAT) {
            if (point("create", full, SPACE | NAME) == FAIL)
                goto failed;
            if (mode == POWER)
                r = undo_create(dir, name);
        } else if (there && flags & O_TRUNC && st.st_size > 0) {
            if (point("truncate", full, 0) == FAIL)
                goto failed;
            const int old = (int)syscall(SYS_openat, dir, name, O_RDWR | O_CLOEXEC);
            if (mode == POWER && old >= 0)
                r = undo_length(old, 0);
            syscall(SYS_close, old);
        }
        syscall(SYS_close, dir);
    }
    return (int)finish_record(r, syscall(SYS_openat, dirfd, path, flags, perm));
failed : {
    const int e = errno;
    syscall(SYS_close, dir);
    return (int)leave(-1, e);
}
}

#define PERMISSIONS(flags, after)                                                        \
    mode_t perm = 0;                                                                     \
    if ((flags) & (O_CREAT | O_TMPFILE)) {                                               \
        va_list args;                                                                    \
        va_start(args, after);                                                           \
        perm = va_arg(args, mode_t);                                                     \
        va_end(args);                                                                    \
    }

EXPORT int open(const char *path, int flags, ...)
{
    PERMISSIONS(flags, flags)
    return do_open(AT_FDCWD, path, flags, perm);
}
EXPORT int open64(const char *path, int flags, ...)
{
    PERMISSIONS(flags, flags)
    return do_open(AT_FDCWD, path, flags, perm);
}
EXPORT int openat(int dir, const char *path, int flags, ...)
{
    PERMISSIONS(flags, flags)
    return do_open(dir, path, flags, perm);
}
EXPORT int openat64(int dir, const char *path, int flags, ...)
{
    PERMISSIONS(flags, flags)
    return do_open(dir, path, flags, perm);
}
EXPORT int creat(const char *path, mode_t perm)
{
    return do_open(AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC, perm);
}

static FILE *do_fopen(const char *path, const char *how)
{
    char name[NAME_MAX + 1], full[PATH_MAX];
    const int flags = strchr(how, '+') ? O_RDWR : strchr(how, 'r') ? O_RDONLY : O_WRONLY;
    const int more = strchr(how, 'w') ? O_CREAT | O_TRUNC
        : strchr(how, 'a')            ? O_CREAT | O_APPEND
                                      : 0;
    enter();
    const int dir = flags == O_RDONLY ? -1 : folder(AT_FDCWD, path, name, full);
    leave(0, errno);
    if (dir >= 0) {
        dprintf(
            2, "fault: %s is written through stdio, whose writes cannot be seen\n", full);
        abort();
    }
    const int fd =
        (int)syscall(SYS_openat, AT_FDCWD, path, flags | more | O_CLOEXEC, 0666);
    return fd < 0 ? NULL : fdopen(fd, how);
}
EXPORT FILE *fopen(const char *path, const char *how)
{
    return do_fopen(path, how);
}
EXPORT FILE *fopen64(const char *path, const char *how)
{
    return do_fopen(path, how);
}

static int do_make(const char *call, int dirfd, const char *path, mode_t perm,
    const char *target, int from)
{
    char name[NAME_MAX + 1], full[PATH_MAX];
    struct undo_record *r = NULL;
    enter();
    const int dir = folder(dirfd, path, name, full);
    if (dir >= 0) {
        const enum verdict v = point(call, full, SPACE | NAME);
        const int e = errno;
        if (v != FAIL && mode == POWER)
            r = undo_create(dir, name);
        syscall(SYS_close, dir);
        if (v == FAIL)
            return (int)leave(-1, e);
    }
    return (int)finish_record(r,
        call[0] == 'm'       ? syscall(SYS_mkdirat, dirfd, path, perm)
            : call[0] == 'l' ? syscall(SYS_linkat, from, target, dirfd, path, 0)
                             : syscall(SYS_symlinkat, target, dirfd, path));
}

EXPORT int mkdir(const char *path, mode_t perm)
{
    return do_make("mkdir", AT_FDCWD, path, perm, NULL, 0);
}
EXPORT int mkdirat(int dir, const char *path, mode_t perm)
{
    return do_make("mkdir", dir, path, perm, NULL, 0);
}
EXPORT int link(const char *old, const char *path)
{
    return do_make("link", AT_FDCWD, path, 0, old, AT_FDCWD);
}
EXPORT int linkat(int from, const char *old, int dir, const char *path, int flags)
{
    (void)flags;
    return do_make("link", dir, path, 0, old, from);
}
EXPORT int symlink(const char *target, const char *path)
{
    return do_make("symlink", AT_FDCWD, path, 0, target, 0);
}
EXPORT int symlinkat(const char *target, int dir, const char *path)
{
    return do_make("symlink", dir, path, 0, target, 0);
}

static int do_unlink(int dirfd, const char *path, int flags)
{
    char name[NAME_MAX + 1], full[PATH_MAX];
    struct undo_record *r = NULL;
    enter();
    const int dir = folder(dirfd, path, name, full);
    struct stat st;
    if (dir >= 0 && fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0) {
        const enum verdict v = point(flags ? "rmdir" : "unlink", full, NAME);
        const int e = errno;
        if (v != FAIL && mode == POWER)
            r = undo_remove(dir, name, flags != 0);
        if (v == FAIL) {
            syscall(SYS_close, dir);
            return (int)leave(-1, e);
        }
    }
    if (dir >= 0)
        syscall(SYS_close, dir);
    return (int)finish_record(r, syscall(SYS_unlinkat, dirfd, path, flags));
}

EXPORT int unlink(const char *path)
{
    return do_unlink(AT_FDCWD, path, 0);
}
EXPORT int unlinkat(int dir, const char *path, int flags)
{
    return do_unlink(dir, path, flags);
}
EXPORT int rmdir(const char *path)
{
    return do_unlink(AT_FDCWD, path, AT_REMOVEDIR);
}
EXPORT int remove(const char *path)
{
    const int rc = do_unlink(AT_FDCWD, path, 0);
    return rc != 0 && errno == EISDIR ? do_unlink(AT_FDCWD, path, AT_REMOVEDIR) : rc;
}

static int do_rename(int d, const char *from, int d2, const char *to, unsigned flags)
{
    char name[NAME_MAX + 1], name2[NAME_MAX + 1], full[PATH_MAX];
    struct undo_record *r = NULL;
    enter();
    const int dir = folder(d, from, name, full), dir2 = folder(d2, to, name2, full);
    if (dir >= 0 && dir2 >= 0) {
        const enum verdict v = point(flags & 2 ? "exchange" : "rename", full, NAME);
        const int e = errno;
        if (v != FAIL && mode == POWER)
            r = undo_rename(dir, name, dir2, name2, (flags & 2) != 0);
        if (v == FAIL) {
            syscall(SYS_close, dir);
            syscall(SYS_close, dir2);
            return (int)leave(-1, e);
        }
    }
    if (dir >= 0)
        syscall(SYS_close, dir);
    if (dir2 >= 0)
        syscall(SYS_close, dir2);
    return (int)finish_record(r, syscall(SYS_renameat2, d, from, d2, to, flags));
}

EXPORT int rename(const char *from, const char *to)
{
    return do_rename(AT_FDCWD, from, AT_FDCWD, to, 0);
}
EXPORT int renameat(int d, const char *from, int d2, const char *to)
{
    return do_rename(d, from, d2, to, 0);
}
EXPORT int renameat2(int d, const char *from, int d2, const char *to, unsigned flags)
{
    return do_rename(d, from, d2, to, flags);
}
