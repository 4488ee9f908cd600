/* NAME.partial: one owner, a journal of what is durable, one rename.
 *
 *     NAME.partial/lease     host TAB pid TAB start time of the process TAB boot id
 *                  journal   plan <hex> TAB check / <fields> TAB check / ...
 *                  ...       whatever the caller writes
 *
 * The lease appears with its content in one step (link), so nobody ever reads half of one. A
 * journal line counts only with its check, so a torn last line is dropped. Order of the commit:
 * everything is fsynced by the caller; journal, lease and extras go; the folder is fsynced, so the
 * name can never show a folder whose entries are not durable; then the rename, and an fsync of the
 * parent, so that success is not reported before it would survive a power loss.
 *
 * Between the journal's removal and the rename nothing in the folder says that it is whole. Who asks
 * for it (seal) has the file NAME.sealed, with the plan, beside the folder for that time: a run that
 * finds it renames, instead of doing days of work again. */
#include "ckpt/work_inside.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "ckpt/digest.h"
#include "ckpt/dio.h"

enum { CHECK_DIGITS = 16, JOURNAL_LIMIT = 1 << 30 };

char *work_joined(const char *folder, const char *name)
{
    char *path = NULL;
    return asprintf(&path, "%s/%s", folder, name) < 0 ? NULL : path;
}

/* ---- the folder ------------------------------------------------------------------------------- */

/* Removes what lies in a folder, one level of sub-folders included, but for `keep`. */
static int clear_folder(const char *path, const char *keep, struct glm_error *err)
{
    DIR *d = opendir(path);

    if (d == NULL)
        return glm_fail_errno(err, "%s: open the folder", path);
    for (struct dirent *e; err->code == GLM_OK && (e = readdir(d)) != NULL;) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0
            || (keep != NULL && strcmp(e->d_name, keep) == 0))
            continue;
        char *name = work_joined(path, e->d_name);
        if (name == NULL) {
            glm_fail(err, GLM_ENOMEM, "%s: no memory", path);
            break;
        }
        if (unlink(name) != 0 && errno == EISDIR) {
            if (clear_folder(name, NULL, err) == GLM_OK && rmdir(name) != 0)
                glm_fail_errno(err, "%s: remove", name);
        } else if (access(name, F_OK) == 0) {
            glm_fail_errno(err, "%s: remove", name);
        }
        free(name);
    }
    closedir(d);
    return (int)err->code;
}

static int remove_tree(const char *path, struct glm_error *err)
{
    if (clear_folder(path, NULL, err) == GLM_OK && rmdir(path) != 0)
        glm_fail_errno(err, "%s: remove", path);
    return (int)err->code;
}

/* ---- the journal ------------------------------------------------------------------------------ */

static void line_check(const char *line, size_t size, char out[CHECK_DIGITS + 1])
{
    unsigned char digest[DIGEST_SIZE];
    char hex[DIGEST_HEX];

    digest_of(line, size, digest);
    digest_hex(digest, hex);
    memcpy(out, hex, CHECK_DIGITS);
    out[CHECK_DIGITS] = '\0';
}

int work_journal(struct work *w, const char *text, struct glm_error *err)
{
    char *out = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&out, &size);

    if (f == NULL)
        return glm_fail(err, GLM_ENOMEM, "%s: no memory for the journal", w->partial);
    for (const char *p = text; *p != '\0';) {
        const size_t n = strcspn(p, "\n");
        char check[CHECK_DIGITS + 1];
        line_check(p, n, check);
        fprintf(f, "%.*s\t%s\n", (int)n, p, check);
        p += n + (p[n] == '\n');
    }
    if (fclose(f) != 0)
        glm_fail(err, GLM_ENOMEM, "%s: no memory for the journal", w->partial);
    else if (!work_write_all(w->journal, out, size) || fdatasync(w->journal) != 0)
        glm_fail_errno(err, "%s/journal: write", w->partial);
    free(out);
    return (int)err->code;
}

/* Cuts the check off a line in place; false if the line is not as it was written. */
static bool line_intact(char *line, size_t size)
{
    char check[CHECK_DIGITS + 1];

    if (size < CHECK_DIGITS + 2 || line[size - CHECK_DIGITS - 1] != '\t'
        || memchr(line, '\0', size) != NULL)
        return false;
    line_check(line, size - CHECK_DIGITS - 1, check);
    if (memcmp(check, line + size - CHECK_DIGITS, CHECK_DIGITS) != 0)
        return false;
    line[size - CHECK_DIGITS - 1] = '\0';
    return true;
}

/* Calls fn for each intact line after the first; *good is the length of the intact part. *plan says
 * whether the first line names this plan: 1 yes, 0 another, -1 there is no intact first line. */
static int read_journal(const struct work *w, int *plan, size_t *good,
    int (*fn)(void *, char *, struct glm_error *), void *ctx, struct glm_error *err)
{
    char *path = work_joined(w->partial, "journal"), *text = NULL;
    void *data = NULL;
    size_t size = 0;

    *plan = -1;
    *good = 0;
    if (path == NULL)
        return glm_fail(err, GLM_ENOMEM, "%s: no memory", w->partial);
    if (access(path, F_OK) != 0
        || dio_slurp(path, JOURNAL_LIMIT, &data, &size, err) != GLM_OK)
        goto out;
    text = data;
    for (size_t at = 0; at < size;) {
        char *end = memchr(text + at, '\n', size - at);
        if (end == NULL || !line_intact(text + at, (size_t)(end - (text + at))))
            break;
        if (at == 0)
            *plan = strncmp(text, "plan ", 5) == 0 && strcmp(text + 5, w->plan_hex) == 0;
        else if (fn != NULL && fn(ctx, text + at, err) != GLM_OK)
            break;
        at = (size_t)(end - text) + 1;
        *good = at;
    }
out:
    free(data);
    free(path);
    return (int)err->code;
}

int work_replay(struct work *w, int (*fn)(void *ctx, char *line, struct glm_error *err),
    void *ctx, struct glm_error *err)
{
    int plan;
    size_t good;
    return read_journal(w, &plan, &good, fn, ctx, err);
}

static int open_journal(struct work *w, size_t good, struct glm_error *err)
{
    char *path = work_joined(w->partial, "journal");

    if (path == NULL)
        return glm_fail(err, GLM_ENOMEM, "%s: no memory", w->partial);
    w->journal = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (w->journal < 0 || ftruncate(w->journal, (off_t)good) != 0)
        glm_fail_errno(err, "%s: open", path);
    free(path);
    return (int)err->code;
}

/* ---- open and commit -------------------------------------------------------------------------- */

static int check_space(const struct work *w, uint64_t need, struct glm_error *err)
{
    struct statvfs v;

    if (need == 0)
        return GLM_OK;
    if (statvfs(w->partial, &v) != 0)
        return glm_fail_errno(err, "%s: free space", w->partial);
    const uint64_t available = (uint64_t)v.f_bavail * v.f_frsize;
    if (available < need)
        return glm_fail(err, GLM_EIO,
            "%s: needs %llu bytes, %llu are free on this file system; nothing was "
            "written",
            w->target, (unsigned long long)need, (unsigned long long)available);
    return GLM_OK;
}

static int begin_fresh(struct work *w, struct glm_error *err)
{
    char line[DIGEST_HEX + 8];

    if (work_void_seal(w, err) != GLM_OK
        || clear_folder(w->partial, "lease", err) != GLM_OK
        || open_journal(w, 0, err) != GLM_OK)
        return (int)err->code;
    snprintf(line, sizeof line, "plan %s\n", w->plan_hex);
    return work_journal(w, line, err);
}

static int name_paths(struct work *w, const char *target, struct glm_error *err)
{
    size_t n = strlen(target);

    if (n == 0)
        return glm_fail(err, GLM_EUSAGE, "the name of the output is empty");
    while (n > 1 && target[n - 1] == '/')
        n--;
    w->target = strndup(target, n);
    if (w->target == NULL || asprintf(&w->partial, "%s.partial", w->target) < 0) {
        w->partial = NULL;
        return glm_fail(err, GLM_ENOMEM, "%s: no memory", target);
    }
    const char *slash = strrchr(w->target, '/');
    w->parent = slash == NULL ? strdup(".")
        : slash == w->target  ? strdup("/")
                              : strndup(w->target, (size_t)(slash - w->target));
    if (w->parent == NULL)
        return glm_fail(err, GLM_ENOMEM, "%s: no memory", target);
    return GLM_OK;
}

/* ---- what may be removed ---------------------------------------------------------------------- */

/* A mistyped name must not cost somebody a folder of other things. */

static bool ends_in(const char *name, const char *end)
{
    const size_t n = strlen(name), m = strlen(end);
    return n > m && strcmp(name + n - m, end) == 0;
}

struct names {
    bool any, config, weights, index,
        work; /* work: of a partial, whatever becomes of it */
};

static int look(const char *path, struct names *out, struct glm_error *err)
{
    DIR *d = opendir(path);

    *out = (struct names){0};
    if (d == NULL)
        return glm_fail_errno(err, "%s: open the folder", path);
    for (const struct dirent *e; (e = readdir(d)) != NULL;) {
        const char *n = e->d_name;
        if (strcmp(n, ".") == 0 || strcmp(n, "..") == 0)
            continue;
        out->any = true;
        out->index = out->index || strcmp(n, "index.h5") == 0;
        out->config = out->config || strcmp(n, "config.json") == 0;
        out->weights = out->weights || ends_in(n, ".safetensors");
        out->work = out->work || strcmp(n, "journal") == 0 || strncmp(n, "lease", 5) == 0
            || ends_in(n, ".part") || (strncmp(n, "shard-", 6) == 0 && ends_in(n, ".h5"));
    }
    closedir(d);
    return GLM_OK;
}

/* Whether an index.h5 begins as ours do: others use the name, too. */
static bool is_index(const char *folder)
{
    static const char mark[] = "GLMCKPT ";
    char begin[sizeof mark - 1] = "", *path = work_joined(folder, "index.h5");
    const int fd = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    const bool is = fd >= 0 && read(fd, begin, sizeof begin) == (ssize_t)sizeof begin
        && memcmp(begin, mark, sizeof begin) == 0;

    if (fd >= 0)
        close(fd);
    free(path);
    return is;
}

static int check_ours(const char *path, struct glm_error *err)
{
    struct names has;

    if (look(path, &has, err) != GLM_OK || !has.any || (has.config && has.weights)
        || (has.index && is_index(path)))
        return (int)err->code;
    return glm_fail(err, GLM_EUSAGE,
        "%s: --replace takes the place of a checkpoint, a model folder or an empty "
        "folder; "
        "this one has neither an index.h5 of ours nor config.json and safetensors files",
        path);
}

/* A partial that was there: what a killed command may have left, or nothing at all. */
static int check_partial(const struct work *w, struct glm_error *err)
{
    struct names has;

    if (look(w->partial, &has, err) != GLM_OK || !has.any || has.work || has.index
        || has.config || has.weights)
        return (int)err->code;
    return glm_fail(err, GLM_EUSAGE,
        "%s: the output is made in this folder, and what lies there is no unfinished "
        "work; move it, or give the output another name",
        w->partial);
}

static int check_target(const struct work *w, struct glm_error *err)
{
    struct stat st, parent;

    if (ends_in(w->target, "/.") || ends_in(w->target, "/..")
        || strcmp(w->target, ".") == 0 || strcmp(w->target, "..") == 0)
        return glm_fail(err, GLM_EUSAGE,
            "%s: is no name for an output: it is made under another one and renamed",
            w->target);
    if (lstat(w->target, &st) != 0)
        return errno == ENOENT ? GLM_OK : glm_fail_errno(err, "%s", w->target);
    if (S_ISLNK(st.st_mode))
        return glm_fail(err, GLM_EUSAGE,
            "%s: is a symbolic link; outputs are never written through one", w->target);
    if (!w->replace)
        return glm_fail(err, GLM_EUSAGE,
            "%s: exists; give another name, or --replace to exchange it at the end",
            w->target);
    if (!S_ISDIR(st.st_mode))
        return glm_fail(
            err, GLM_EUSAGE, "%s: is not a folder; remove it first", w->target);
    if (stat(w->parent, &parent) == 0 && parent.st_dev != st.st_dev)
        return glm_fail(err, GLM_EUSAGE,
            "%s: another file system is mounted there, and nothing is exchanged for "
            "that; "
            "give a name inside it",
            w->target);
    return check_ours(w->target, err);
}

int work_open(
    struct work **out, const struct work_options *o, bool *resumed, struct glm_error *err)
{
    struct work *w = calloc(1, sizeof *w);
    size_t good = 0;
    int plan = -1;

    *out = NULL;
    *resumed = false;
    if (w == NULL)
        return glm_fail(err, GLM_ENOMEM, "%s: no memory", o->target);
    w->journal = w->folder = -1;
    w->replace = o->replace;
    w->seal = o->seal && !o->replace;
    digest_hex(o->plan, w->plan_hex);
    if (name_paths(w, o->target, err) != GLM_OK || check_target(w, err) != GLM_OK)
        goto out;
    if (access(w->partial, F_OK) != 0 && work_void_seal(w, err) != GLM_OK)
        goto out;
    const bool made = mkdir(w->partial, 0777) == 0;
    if (!made && errno != EEXIST) {
        glm_fail_errno(err, "%s: create", w->partial);
        goto out;
    }
    /* Before anything in it is called durable, the folder itself must be. */
    if (dio_sync_folder(w->parent, err) != GLM_OK)
        goto out;
    if (work_lock_folder(w, err) != GLM_OK || (!made && check_partial(w, err) != GLM_OK)
        || work_take_lease(w, o->take_lease, err) != GLM_OK)
        goto out;
    work_sweep_leases(w);
    if (read_journal(w, &plan, &good, NULL, NULL, err) != GLM_OK)
        goto out;
    if (plan == 0 && !o->restart) {
        glm_fail(err, GLM_EUSAGE,
            "%s: holds unfinished work of another plan (other source, topology or "
            "options); "
            "finish that, or give --restart to discard it",
            w->partial);
        goto out;
    }
    *resumed = plan == 1 && !o->restart;
    if (!*resumed && check_space(w, o->need_bytes, err) != GLM_OK) {
        if (made) {
            work_drop_lease(w);
            rmdir(w->partial);
        }
        goto out;
    }
    if (*resumed ? open_journal(w, good, err) != GLM_OK : begin_fresh(w, err) != GLM_OK)
        goto out;
    *out = w;
    w = NULL;
out:
    if (w != NULL)
        work_close(w);
    return (int)err->code;
}

const char *work_path(const struct work *w)
{
    return w->partial;
}

void work_close(struct work *w)
{
    if (w == NULL)
        return;
    work_drop_lease(w);
    if (w->journal >= 0)
        close(w->journal);
    if (w->folder >= 0)
        close(w->folder);
    free(w->target);
    free(w->partial);
    free(w->parent);
    free(w);
}

/* ---- a commit that can be completed ----------------------------------------------------------- */

int work_finish(const struct work_options *o, const char *const *extras, bool *finished,
    struct glm_error *err)
{
    struct work *w = calloc(1, sizeof *w);

    *finished = false;
    if (o->replace) { /* after the exchange the partial is the old one: it has no seal */
        free(w);
        return GLM_OK;
    }
    if (w == NULL)
        return glm_fail(err, GLM_ENOMEM, "%s: no memory", o->target);
    w->journal = w->folder = -1;
    w->replace = o->replace;
    w->seal = true;
    digest_hex(o->plan, w->plan_hex);
    if (name_paths(w, o->target, err) == GLM_OK && !o->restart && work_is_sealed(w)
        && check_target(w, err) == GLM_OK && work_lock_folder(w, err) == GLM_OK
        && work_take_lease(w, o->take_lease, err) == GLM_OK) {
        work_sweep_leases(w);
        if (work_commit(w, extras, err) == GLM_OK) {
            *finished = true;
            w = NULL;
        }
    }
    work_close(w);
    return (int)err->code;
}

/* ---- the commit ------------------------------------------------------------------------------- */

static int remove_ours(struct work *w, const char *name, struct glm_error *err)
{
    char *path = work_joined(w->partial, name);

    if (path == NULL)
        glm_fail(err, GLM_ENOMEM, "%s: no memory", w->partial);
    else if (unlink(path) != 0 && errno != ENOENT)
        glm_fail_errno(err, "%s: remove", path);
    free(path);
    return (int)err->code;
}

int work_commit(struct work *w, const char *const *extras, struct glm_error *err)
{
    /* The seal says that the folder is whole, so all its names have to be durable before. */
    if (w->seal
        && (dio_sync_folder(w->partial, err) != GLM_OK
            || work_write_seal(w, err) != GLM_OK))
        return (int)err->code;
    /* The journal first, and durably: what it says is done rests on the extras. */
    if (remove_ours(w, "journal", err) != GLM_OK
        || dio_sync_folder(w->partial, err) != GLM_OK)
        return (int)err->code;
    for (int i = 0; extras != NULL && extras[i] != NULL; i++)
        if (remove_ours(w, extras[i], err) != GLM_OK)
            return (int)err->code;
    if (remove_ours(w, "lease", err) != GLM_OK
        || dio_sync_folder(w->partial, err) != GLM_OK)
        return (int)err->code;
    w->owner = false;
    bool exchanged = false;
    int moved = renameat2(AT_FDCWD, w->partial, AT_FDCWD, w->target, RENAME_NOREPLACE);
    if (moved != 0 && errno == EINVAL && access(w->target, F_OK) != 0)
        moved = rename(w->partial, w->target); /* a file system without the flag */
    if (moved != 0) {
        if (errno != EEXIST || !w->replace)
            return errno == EEXIST
                ? glm_fail(err, GLM_EUSAGE,
                    "%s: has appeared meanwhile; the result waits in %s", w->target,
                    w->partial)
                : glm_fail_errno(err, "%s: rename from %s", w->target, w->partial);
        if (renameat2(AT_FDCWD, w->partial, AT_FDCWD, w->target, RENAME_EXCHANGE) != 0)
            return glm_fail_errno(err,
                "%s: exchange with %s, which is whole: move it to its place (the same "
                "command would begin anew)",
                w->target, w->partial);
        exchanged = true;
    }
    if (dio_sync_folder(w->parent, err) != GLM_OK)
        return (int)err->code;
    if (w->seal)
        work_remove_seal(w);
    if (exchanged && remove_tree(w->partial, err) != GLM_OK)
        return glm_within(
            err, "the new one is in place, the old one could not be removed");
    work_close(w);
    return GLM_OK;
}
