/* A folder of its own for a test, removed with all it holds. */
#ifndef TESTS_SUPPORT_TMPDIR_H
#define TESTS_SUPPORT_TMPDIR_H

#include <stddef.h>

/* Makes a new folder under $TMPDIR (or /tmp) and returns its path; aborts the test if it cannot.
 * Free it with tmpdir_remove. */
char *tmpdir_new(void);
/* Removes the folder and everything in it (links are not followed), frees path. NULL: nothing. */
void tmpdir_remove(char *path);

/* Joins into one of a few rotating buffers of this thread: good for the length of a statement. */
const char *tmpdir_path(const char *dir, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Whole files, aborting on failure. */
void tmpdir_write(const char *path, const void *data, size_t size);
void *tmpdir_read(
    const char *path, size_t *size); /* malloc'd, with a zero byte after the end */
/* 0 if the two folders hold the same names with the same bytes; else 1 and a line on stderr. */
int tmpdir_differ(const char *a, const char *b);

#endif
