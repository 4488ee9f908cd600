/* What a power loss takes away: a log of every change under a folder, undone backwards.
 *
 * A change of a file's bytes or length is safe once that file was fsynced; a change of names once
 * every folder it touches was fsynced. Everything else is undone: the strictest disk that POSIX
 * allows. Not thread safe: the caller holds one lock around a change and its record. */
#ifndef TESTS_FAULT_UNDO_H
#define TESTS_FAULT_UNDO_H

#include <stdbool.h>
#include <sys/types.h>

enum undo_what {
    UNDO_ALL,
    UNDO_DATA /* names survive */,
    UNDO_NAMES /* bytes survive */
};

/* stash: a folder on the same file system, outside the watched one, for unlinked files. */
void undo_start(const char *stash);

/* Before the change. A record whose change then fails is dropped with undo_forget. */
struct undo_record;
struct undo_record *undo_bytes(
    int fd, off_t at, size_t size);                    /* write of [at, at+size) */
struct undo_record *undo_length(int fd, off_t length); /* truncate to length */
struct undo_record *undo_create(
    int dir, const char *name); /* file, link or folder appears */
struct undo_record *undo_remove(int dir, const char *name, bool folder);
struct undo_record *undo_rename(
    int dir, const char *name, int dir2, const char *name2, bool swap);
void undo_forget(struct undo_record *r);

void undo_synced(int fd); /* a file or a folder */
void undo_synced_all(void);
void undo_lose(enum undo_what what);

#endif
