#include "train/rundir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DIGITS = 9 };

static const char step_prefix[] = "step-";

static char *joined(const char *folder, const char *name, struct glm_error *err)
{
    char *path = NULL;

    if (asprintf(&path, "%s/%s", folder, name) < 0) {
        glm_fail(err, GLM_ENOMEM, "%s: no memory", folder);
        return NULL;
    }
    return path;
}

char *rundir_name(const struct rundir *d, int64_t step, struct glm_error *err)
{
    char name[64];

    snprintf(name, sizeof name, "%s%0*" PRId64, step_prefix, DIGITS, step);
    return joined(d->path, name, err);
}

/* The step of "step-000000010", followed by `end`; -1: another name. */
static int64_t step_of(const char *name, const char *end)
{
    const size_t n = sizeof step_prefix - 1;
    int64_t step = 0;
    size_t i = n;

    if (strncmp(name, step_prefix, n) != 0)
        return -1;
    for (; name[i] >= '0' && name[i] <= '9' && i < n + 18; i++)
        step = 10 * step + (name[i] - '0');
    const size_t digits = i - n;
    if (digits < DIGITS || (digits > DIGITS && name[n] == '0')
        || strcmp(name + i, end) != 0)
        return -1;
    return step;
}

/* ---- removing --------------------------------------------------------------------------------- */

/* A folder of files, as checkpoints and their partials are. */
static int remove_folder(const char *path, struct glm_error *err)
{
    DIR *d = opendir(path);

    if (d == NULL)
        return errno == ENOENT ? GLM_OK
                               : glm_fail_errno(err, "%s: open the folder", path);
    for (struct dirent *e; err->code == GLM_OK && (e = readdir(d)) != NULL;)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0
            && unlinkat(dirfd(d), e->d_name, 0) != 0)
            glm_fail_errno(err, "%s/%s: remove", path, e->d_name);
    closedir(d);
    if (err->code == GLM_OK && rmdir(path) != 0)
        glm_fail_errno(err, "%s: remove", path);
    return (int)err->code;
}

void rundir_discard(const struct rundir *d, int64_t step)
{
    struct glm_error ignored = {0};
    char *name = rundir_name(d, step, &ignored), *partial = NULL;

    if (name != NULL && asprintf(&partial, "%s.partial", name) >= 0) {
        remove_folder(partial, &ignored);
        free(partial);
    }
    free(name);
}

static int remove_step(const struct rundir *d, int64_t step, struct glm_error *err)
{
    char *name = rundir_name(d, step, err), *gone = NULL;

    if (name == NULL)
        return (int)err->code;
    if (asprintf(&gone, "%s.removed", name) < 0) {
        gone = NULL;
        glm_fail(err, GLM_ENOMEM, "%s: no memory", name);
    } else if (rename(name, gone) != 0)
        glm_fail_errno(err, "%s: rename to %s", name, gone);
    else
        remove_folder(gone, err);
    free(gone);
    free(name);
    return (int)err->code;
}

/* ---- opening ---------------------------------------------------------------------------------- */

int rundir_create(const char *path, struct glm_error *err)
{
    char *copy = strdup(path);

    if (copy == NULL)
        return glm_fail(err, GLM_ENOMEM, "%s: no memory", path);
    for (char *p = copy + 1; err->code == GLM_OK; p++) {
        const char c = *p;
        if (c != '/' && c != '\0')
            continue;
        *p = '\0';
        if (mkdir(copy, 0777) != 0 && errno != EEXIST)
            glm_fail_errno(err, "%s: create the folder", copy);
        *p = c;
        if (c == '\0')
            break;
    }
    free(copy);
    return (int)err->code;
}

static int by_step(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static int add_step(struct rundir *d, int64_t step, struct glm_error *err)
{
    int64_t *more = realloc(d->step, (size_t)(d->steps + 1) * sizeof *more);

    if (more == NULL)
        return glm_fail(err, GLM_ENOMEM, "%s: no memory", d->path);
    d->step = more;
    d->step[d->steps++] = step;
    return GLM_OK;
}

static int look_around(struct rundir *d, struct glm_error *err)
{
    DIR *dir = opendir(d->path);

    if (dir == NULL)
        return glm_fail_errno(err, "%s: open the folder", d->path);
    for (struct dirent *e; err->code == GLM_OK && (e = readdir(dir)) != NULL;) {
        const bool dead =
            step_of(e->d_name, ".partial") >= 0 || step_of(e->d_name, ".removed") >= 0;
        const int64_t step = step_of(e->d_name, "");
        if (step >= 0)
            add_step(d, step, err);
        if (dead) { /* the run's lease is ours, so nobody works on it */
            char *path = joined(d->path, e->d_name, err);
            if (path != NULL)
                remove_folder(path, err);
            free(path);
        }
    }
    closedir(dir);
    if (d->steps > 1)
        qsort(d->step, (size_t)d->steps, sizeof *d->step, by_step);
    return (int)err->code;
}

int rundir_open(
    struct rundir *d, const char *path, bool take_lease, struct glm_error *err)
{
    unsigned char plan[DIGEST_SIZE];
    char *name = NULL;
    bool resumed;

    *d = (struct rundir){0};
    digest_of("a run", 5, plan);
    if ((d->path = strdup(path)) == NULL)
        return glm_fail(err, GLM_ENOMEM, "%s: no memory", path);
    while (strlen(d->path) > 1 && d->path[strlen(d->path) - 1] == '/')
        d->path[strlen(d->path) - 1] = '\0';
    const struct work_options o = {
        .plan = plan, .take_lease = take_lease, .restart = true};
    struct work_options with_name = o;
    if (rundir_create(d->path, err) == GLM_OK
        && (name = joined(d->path, "run", err)) != NULL) {
        with_name.target = name;
        if (work_open(&d->lease, &with_name, &resumed, err) == GLM_OK)
            look_around(d, err);
        else if (err->code == GLM_EUSAGE)
            glm_within(err, "%s: one run at a time", d->path);
    }
    free(name);
    if (err->code != GLM_OK)
        rundir_close(d);
    return (int)err->code;
}

/* A run is never committed, so what is left of its lease goes; the next process to train here may
 * have taken it already, and then the folder is not empty. */
static void leave(const struct rundir *d)
{
    struct glm_error ignored = {0};
    char *folder = joined(d->path, "run.partial", &ignored);
    char *journal = folder == NULL ? NULL : joined(folder, "journal", &ignored);

    if (journal != NULL) {
        unlink(journal);
        rmdir(folder);
    }
    free(journal);
    free(folder);
}

void rundir_close(struct rundir *d)
{
    work_close(d->lease);
    if (d->lease != NULL)
        leave(d);
    free(d->path);
    free(d->step);
    *d = (struct rundir){0};
}

/* ---- checkpoints ------------------------------------------------------------------------------ */

int64_t rundir_latest(const struct rundir *d)
{
    return d->steps > 0 ? d->step[d->steps - 1] : -1;
}

bool rundir_has(const struct rundir *d, int64_t step)
{
    for (int64_t i = 0; i < d->steps; i++)
        if (d->step[i] == step)
            return true;
    return false;
}

static int point_latest(const struct rundir *d, int64_t step, struct glm_error *err)
{
    char *path = joined(d->path, "latest", err), *part = NULL, text[64];
    const int n =
        snprintf(text, sizeof text, "%s%0*" PRId64 "\n", step_prefix, DIGITS, step);
    int fd = -1;

    if (path == NULL || (part = joined(d->path, "latest.new", err)) == NULL)
        goto out;
    fd = open(part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0 || write(fd, text, (size_t)n) != n)
        glm_fail_errno(err, "%s: write", part);
    else if (rename(part, path) != 0)
        glm_fail_errno(err, "%s: rename from %s", path, part);
out:
    if (fd >= 0)
        close(fd);
    free(part);
    free(path);
    return (int)err->code;
}

int rundir_committed(struct rundir *d, int64_t step, int64_t keep, struct glm_error *err)
{
    if (!rundir_has(d, step) && add_step(d, step, err) != GLM_OK)
        return (int)err->code;
    qsort(d->step, (size_t)d->steps, sizeof *d->step, by_step);
    if (point_latest(d, step, err) != GLM_OK)
        return (int)err->code;
    while (keep > 0 && d->steps > keep && d->step[0] != step) {
        if (remove_step(d, d->step[0], err) != GLM_OK)
            return (int)err->code;
        memmove(d->step, d->step + 1, (size_t)(--d->steps) * sizeof *d->step);
    }
    return GLM_OK;
}
