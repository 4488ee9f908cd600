/* The log is one list in order of time; a record is covered or not. Files and folders are held by
 * descriptors of our own, so that renames above them do not matter and inode numbers are not used
 * twice. System calls are made directly: the C library's names are the shim's. */
#include "tests/fault/undo.h"

#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/fault/tree.h"

enum kind { BYTES, CREATE, REMOVE, REMOVE_FOLDER, RENAME, SWAP };

struct node {
    dev_t device;
    ino_t inode;
    int fd;
    struct node *next;
};

struct undo_record {
    enum kind kind;
    bool bare[2]; /* node, node2 still wait for an fsync */
    struct node *node, *node2;
    char name[NAME_MAX + 1], name2[NAME_MAX + 1];
    char stash[32];   /* what was unlinked or renamed over; "" nothing */
    off_t at, length; /* BYTES: where; the file's length before */
    size_t size;
    void *old;
    struct undo_record *prev;
};

static struct node *nodes;
static struct undo_record *last;
static int stash_fd = -1;
static int stash_count;

void undo_start(const char *stash)
{
    stash_fd =
        (int)syscall(SYS_openat, AT_FDCWD, stash, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

static void die(const char *what)
{
    dprintf(2, "fault: cannot %s for the undo log\n", what);
    abort();
}

static struct node *node_of(int fd)
{
    struct stat st;
    char path[64];
    if (fstat(fd, &st) != 0)
        die("stat a file");
    for (struct node *n = nodes; n; n = n->next)
        if (n->device == st.st_dev && n->inode == st.st_ino)
            return n;
    struct node *n = calloc(1, sizeof *n);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    const int flags = S_ISDIR(st.st_mode) ? O_RDONLY | O_DIRECTORY : O_RDWR;
    if (!n || (n->fd = (int)syscall(SYS_openat, AT_FDCWD, path, flags | O_CLOEXEC)) < 0)
        die("open a file");
    n->device = st.st_dev;
    n->inode = st.st_ino;
    n->next = nodes;
    nodes = n;
    return n;
}

static struct undo_record *record(enum kind kind, int fd)
{
    struct undo_record *r = calloc(1, sizeof *r);
    if (!r)
        die("find memory");
    r->kind = kind;
    r->node = node_of(fd);
    r->bare[0] = true;
    r->prev = last;
    return last = r;
}

void undo_forget(struct undo_record *r)
{
    if (r)
        r->bare[0] = r->bare[1] = false;
}

/* ---- before a change ---- */

static struct undo_record *keep(int fd, off_t at, size_t size)
{
    struct undo_record *r = record(BYTES, fd);
    struct stat st;
    if (fstat(fd, &st) != 0)
        die("stat a file");
    r->at = at;
    r->length = st.st_size;
    r->size = at >= st.st_size             ? 0
        : size < (size_t)(st.st_size - at) ? size
                                           : (size_t)(st.st_size - at);
    if (r->size == 0)
        return r;
    r->old = malloc(r->size);
    if (!r->old
        || syscall(SYS_pread64, r->node->fd, r->old, r->size, at) != (long)r->size)
        die("read the old bytes");
    return r;
}

struct undo_record *undo_bytes(int fd, off_t at, size_t size)
{
    return keep(fd, at, size);
}

struct undo_record *undo_length(int fd, off_t length)
{
    return keep(fd, length, SIZE_MAX / 2);
}

struct undo_record *undo_create(int dir, const char *name)
{
    struct undo_record *r = record(CREATE, dir);
    snprintf(r->name, sizeof r->name, "%s", name);
    return r;
}

static void stash(struct undo_record *r, int dir, const char *name)
{
    struct stat st;
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) != 0 || S_ISDIR(st.st_mode))
        return;
    snprintf(r->stash, sizeof r->stash, "%d", stash_count++);
    if (syscall(SYS_linkat, dir, name, stash_fd, r->stash, 0) != 0)
        die("keep a link");
}

struct undo_record *undo_remove(int dir, const char *name, bool folder)
{
    struct undo_record *r = record(folder ? REMOVE_FOLDER : REMOVE, dir);
    snprintf(r->name, sizeof r->name, "%s", name);
    if (!folder)
        stash(r, dir, name);
    return r;
}

struct undo_record *undo_rename(
    int dir, const char *name, int dir2, const char *name2, bool swap)
{
    struct undo_record *r = record(swap ? SWAP : RENAME, dir);
    snprintf(r->name, sizeof r->name, "%s", name);
    snprintf(r->name2, sizeof r->name2, "%s", name2);
    r->node2 = node_of(dir2);
    r->bare[1] = true;
    if (!swap)
        stash(r, dir2, name2);
    return r;
}

/* ---- what makes a change safe ---- */

void undo_synced(int fd)
{
    const struct node *n = node_of(fd);
    for (struct undo_record *r = last; r; r = r->prev) {
        if (r->node == n)
            r->bare[0] = false;
        if (r->node2 == n)
            r->bare[1] = false;
        if (!r->bare[0] && r->old) {
            free(r->old);
            r->old = NULL;
        }
    }
}

void undo_synced_all(void)
{
    for (struct undo_record *r = last; r; r = r->prev)
        r->bare[0] = r->bare[1] = false;
}

/* ---- the loss ---- */

static void undo_one(struct undo_record *r)
{
    const int d = r->node->fd, d2 = r->node2 ? r->node2->fd : -1;
    switch (r->kind) {
    case BYTES:
        if (r->size && syscall(SYS_pwrite64, d, r->old, r->size, r->at) != (long)r->size)
            die("write the old bytes");
        if (syscall(SYS_ftruncate, d, r->length) != 0)
            die("cut a file");
        break;
    case CREATE:
        tree_remove(d, r->name);
        break;
    case REMOVE:
        if (r->stash[0])
            syscall(SYS_renameat, stash_fd, r->stash, d, r->name);
        break;
    case REMOVE_FOLDER:
        syscall(SYS_mkdirat, d, r->name, 0777);
        break;
    case RENAME:
        syscall(SYS_renameat, d2, r->name2, d, r->name);
        if (r->stash[0])
            syscall(SYS_renameat, stash_fd, r->stash, d2, r->name2);
        break;
    case SWAP:
        syscall(SYS_renameat2, d, r->name, d2, r->name2, 2 /* RENAME_EXCHANGE */);
        break;
    }
}

void undo_lose(enum undo_what what)
{
    for (struct undo_record *r = last; r; r = r->prev) {
        const bool data = r->kind == BYTES;
        if ((r->bare[0] || r->bare[1]) && !(what == UNDO_DATA && !data)
            && !(what == UNDO_NAMES && data))
            undo_one(r);
    }
}
