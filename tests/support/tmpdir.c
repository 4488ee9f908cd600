/* Folders and whole files for tests. Failure here is a broken machine, not a finding: abort. */
#include "tests/support/tmpdir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void die(const char *what, const char *path)
{
    fprintf(stderr, "test support: %s %s: %s\n", what, path, strerror(errno));
    abort();
}

char *tmpdir_new(void)
{
    const char *base = getenv("TMPDIR");
    char *path = NULL;
    if (asprintf(&path, "%s/glm-test-XXXXXX", base && *base ? base : "/tmp") < 0)
        abort();
    if (!mkdtemp(path))
        die("mkdtemp", path);
    return path;
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    (void)st;
    (void)kind;
    (void)ftw;
    return remove(path);
}

void tmpdir_remove(char *path)
{
    if (path)
        nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    free(path);
}

const char *tmpdir_path(const char *dir, const char *fmt, ...)
{
    enum { BUFFERS = 8, SIZE = 1024 };
    static _Thread_local char buffers[BUFFERS][SIZE];
    static _Thread_local int next;
    char *out = buffers[next++ % BUFFERS];
    int n = snprintf(out, SIZE, "%s/", dir);
    va_list args;
    va_start(args, fmt);
    vsnprintf(out + n, (size_t)(SIZE - n), fmt, args);
    va_end(args);
    return out;
}

void tmpdir_write(const char *path, const void *data, size_t size)
{
    FILE *f = fopen(path, "wb");
    if (!f || (size && fwrite(data, 1, size, f) != size) || fclose(f) != 0)
        die("write", path);
}

void *tmpdir_read(const char *path, size_t *size)
{
    struct stat st;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) != 0)
        die("open", path);
    const size_t want = (size_t)st.st_size;
    char *data = malloc(want + 1);
    if (!data)
        abort();
    size_t have = 0;
    while (have < want) {
        const ssize_t n = read(fd, data + have, want - have);
        if (n <= 0)
            die("read", path);
        have += (size_t)n;
    }
    close(fd);
    data[want] = 0;
    if (size)
        *size = want;
    return data;
}

static int count_names(const char *dir)
{
    int n = 0;
    DIR *d = opendir(dir);
    if (!d)
        die("opendir", dir);
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

static int files_differ(const char *a, const char *b)
{
    size_t na, nb;
    void *da = tmpdir_read(a, &na), *db = tmpdir_read(b, &nb);
    const int differ = na != nb || memcmp(da, db, na) != 0;
    if (differ)
        fprintf(stderr, "%s (%zu bytes) and %s (%zu bytes) differ\n", a, na, b, nb);
    free(da);
    free(db);
    return differ;
}

int tmpdir_differ(const char *a, const char *b)
{
    if (count_names(a) != count_names(b)) {
        fprintf(stderr, "%s and %s hold different numbers of names\n", a, b);
        return 1;
    }
    int differ = 0;
    DIR *d = opendir(a);
    for (const struct dirent *e; !differ && d && (e = readdir(d));) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        char pa[1024], pb[1024];
        struct stat sa, sb;
        snprintf(pa, sizeof pa, "%s/%s", a, e->d_name);
        snprintf(pb, sizeof pb, "%s/%s", b, e->d_name);
        if (stat(pa, &sa) != 0 || stat(pb, &sb) != 0
            || S_ISDIR(sa.st_mode) != S_ISDIR(sb.st_mode)) {
            fprintf(stderr, "%s is in one folder only\n", pa);
            differ = 1;
        } else
            differ = S_ISDIR(sa.st_mode) ? tmpdir_differ(pa, pb) : files_differ(pa, pb);
    }
    if (d)
        closedir(d);
    return differ;
}
