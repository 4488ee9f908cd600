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
 * parent, so that success is not reported before it would survive a power loss. */
#include "ckpt/work.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "ckpt/digest.h"
#include "ckpt/dio.h"

enum { CHECK_DIGITS = 16, JOURNAL_LIMIT = 1 << 30, OWNER_SIZE = 512 };

struct work {
    char *target, *partial, *parent;
    char plan_hex[DIGEST_HEX];
    int journal; /* append descriptor */
    int folder;  /* NAME.partial, locked from before the lease until after the rename */
    bool replace, owner;
};

static char *joined(const char *folder, const char *name)
{
    char *path = NULL;
    return asprintf(&path, "%s/%s", folder, name) < 0 ? NULL : path;
}

/* ---- the lease -------------------------------------------------------------------------------- */

/* Start time of a process in clock ticks since boot, 0 if there is no such process. */
static unsigned long long process_start(long pid)
{
    char path[64], text[1024];
    unsigned long long start = 0;

    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    FILE *f = fopen(path, "r");
    if (f == NULL)
        return 0;
    const size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = '\0';
    char *p = strrchr(text, ')'); /* the command's name may hold spaces; field 22 is the start */
    for (int field = 2; p != NULL && field < 22; field++)
        p = strchr(p + 1, ' ');
    if (p != NULL)
        start = strtoull(p + 1, NULL, 10);
    return start;
}

static void boot_id(char out[64])
{
    out[0] = '\0';
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "r");
    if (f == NULL)
        return;
    if (fgets(out, 64, f) == NULL)
        out[0] = '\0';
    fclose(f);
    out[strcspn(out, "\n")] = '\0';
}

static void describe_self(char out[OWNER_SIZE])
{
    char host[HOST_NAME_MAX + 1] = "", boot[64];

    gethostname(host, sizeof host - 1);
    boot_id(boot);
    snprintf(out, OWNER_SIZE, "%s\t%ld\t%llu\t%s\n", host, (long)getpid(),
        process_start((long)getpid()), boot);
}

enum owner { OWNER_NONE, OWNER_DEAD, OWNER_ALIVE, OWNER_FOREIGN };

/* Who wrote a lease. An empty one was lost by a power cut before its content was durable. */
static enum owner judge(const char *text, char host[HOST_NAME_MAX + 1], long *pid)
{
    char self[HOST_NAME_MAX + 1] = "", boot[64] = "", now[64];
    unsigned long long start = 0;

    host[0] = '\0';
    *pid = 0;
    if (sscanf(text, "%64[^\t]\t%ld\t%llu\t%63[^\n]", host, pid, &start, boot) < 3)
        return OWNER_DEAD;
    gethostname(self, sizeof self - 1);
    boot_id(now);
    if (strcmp(self, host) != 0)
        return OWNER_FOREIGN;
    if (strcmp(boot, now) != 0 || process_start(*pid) != start || start == 0)
        return OWNER_DEAD;
    return OWNER_ALIVE;
}

/* The kernel may take a part only: at the end of a disk, or at a signal. */
static bool write_all(int fd, const char *data, size_t size)
{
    while (size > 0) {
        const ssize_t n = write(fd, data, size);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        data += n;
        size -= (size_t)n;
    }
    return true;
}

static int write_small(const char *path, const char *text, struct glm_error *err)
{
    const size_t size = strlen(text);
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);

    if (fd < 0 || !write_all(fd, text, size))
        glm_fail_errno(err, "%s: write", path);
    if (fd >= 0)
        close(fd);
    return (int)err->code;
}

/* Moves a dead owner's lease aside. Two that try at once: the loser may have moved the winner's
 * new lease; it sees that from the content and gives it back. */
static int bury(const char *lease, const char *grave, const char *dead, struct glm_error *err)
{
    void *text = NULL;
    size_t size;

    if (rename(lease, grave) != 0)
        return errno == ENOENT ? GLM_OK : glm_fail_errno(err, "%s: take over", lease);
    if (dio_slurp(grave, OWNER_SIZE, &text, &size, err) != GLM_OK)
        return (int)err->code;
    if (strcmp(text, dead) != 0) {
        if (link(grave, lease) != 0 && errno != EEXIST)
            glm_fail_errno(err, "%s: give back", lease);
        else
            glm_fail(err, GLM_EUSAGE, "%s: another process has just taken it over", lease);
    }
    free(text);
    unlink(grave);
    return (int)err->code;
}

/* Some network file systems answer EAGAIN to every lock. A file that nobody else can know tells. */
static bool locks_work(const struct work *w)
{
    char name[64];

    snprintf(name, sizeof name, "lease.%ld.lock", (long)getpid());
    const int fd = openat(w->folder, name, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    const bool works = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0;
    if (fd >= 0)
        close(fd);
    unlinkat(w->folder, name, 0);
    return works;
}

static int refuse_busy(const struct work *w, struct glm_error *err)
{
    char host[HOST_NAME_MAX + 1], *lease = joined(w->partial, "lease");
    struct glm_error ignored = {0};
    void *text = NULL;
    size_t size;
    long pid = 0;

    if (lease != NULL && dio_slurp(lease, OWNER_SIZE, &text, &size, &ignored) == GLM_OK)
        judge(text, host, &pid);
    free(lease);
    free(text);
    if (pid > 0)
        return glm_fail(err, GLM_EUSAGE, "%s: process %ld works here now; wait for it or end it",
            w->partial, pid);
    return glm_fail(err, GLM_EUSAGE, "%s: another process works here now; wait for it or end it",
        w->partial);
}

/* The lease goes shortly before the rename, and whoever came in between would take the finished
 * folder for an abandoned one. A lock on the folder closes that gap among the processes of a host.
 * Where locks do not work (some network file systems) the lease alone has to do. */
static int lock_folder(struct work *w, struct glm_error *err)
{
    struct stat mine, now;

    w->folder = open(w->partial, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (w->folder < 0 && (errno == ELOOP || errno == ENOTDIR))
        return glm_fail(err, GLM_EUSAGE,
            "%s: is a symbolic link or a file; remove it, work needs a folder there", w->partial);
    if (w->folder < 0 || fstat(w->folder, &mine) != 0)
        return glm_fail_errno(err, "%s: open the folder", w->partial);
    if (flock(w->folder, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK && locks_work(w))
        return refuse_busy(w, err);
    if (lstat(w->partial, &now) != 0 || now.st_ino != mine.st_ino || now.st_dev != mine.st_dev)
        return glm_fail(err, GLM_EUSAGE, "%s: another process has just finished it", w->partial);
    return GLM_OK;
}

static int take_lease(struct work *w, bool take_foreign, struct glm_error *err)
{
    char self[OWNER_SIZE], mine_name[64], host[HOST_NAME_MAX + 1];
    char *lease = joined(w->partial, "lease"), *mine = NULL, *grave = NULL;
    void *text = NULL;
    size_t size;
    long pid;

    describe_self(self);
    snprintf(mine_name, sizeof mine_name, "lease.%ld", (long)getpid());
    mine = joined(w->partial, mine_name);
    grave = mine == NULL ? NULL : joined(mine, "dead");
    if (lease == NULL || mine == NULL || grave == NULL) {
        glm_fail(err, GLM_ENOMEM, "%s: no memory", w->partial);
        goto out;
    }
    grave[strlen(mine)] = '.'; /* "lease.<pid>.dead" */
    if (write_small(mine, self, err) != GLM_OK)
        goto out;
    for (int attempt = 0; attempt < 8; attempt++) {
        if (link(mine, lease) == 0) {
            w->owner = true;
            goto out;
        }
        if (errno != EEXIST) {
            glm_fail_errno(err, "%s: create", lease);
            goto out;
        }
        free(text);
        text = NULL;
        if (dio_slurp(lease, OWNER_SIZE, &text, &size, err) != GLM_OK) {
            if (err->sys_errno != ENOENT)
                goto out;
            glm_error_clear(err); /* its owner has just finished */
            continue;
        }
        const enum owner who = judge(text, host, &pid);
        if (who == OWNER_ALIVE) {
            glm_fail(err, GLM_EUSAGE, "%s: process %ld works here now; wait for it or end it",
                w->partial, pid);
            goto out;
        }
        if (who == OWNER_FOREIGN && !take_foreign) {
            glm_fail(err, GLM_EUSAGE,
                "%s: leased by process %ld on host '%s'; if that is gone, give --take-lease",
                w->partial, pid, host);
            goto out;
        }
        if (bury(lease, grave, text, err) != GLM_OK)
            goto out;
    }
    glm_fail(err, GLM_EIO, "%s: could not be taken in 8 attempts", lease);
out:
    if (mine != NULL)
        unlink(mine);
    free(text);
    free(lease);
    free(mine);
    free(grave);
    return (int)err->code;
}

static void drop_lease(struct work *w)
{
    char *lease = w->owner ? joined(w->partial, "lease") : NULL;
    if (lease != NULL)
        unlink(lease);
    free(lease);
    w->owner = false;
}

/* ---- the folder ------------------------------------------------------------------------------- */

/* Removes what lies in a folder, one level of sub-folders included, but for `keep`. */
static int clear_folder(const char *path, const char *keep, struct glm_error *err)
{
    DIR *d = opendir(path);

    if (d == NULL)
        return glm_fail_errno(err, "%s: open the folder", path);
    for (struct dirent *e; err->code == GLM_OK && (e = readdir(d)) != NULL;) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0 ||
            (keep != NULL && strcmp(e->d_name, keep) == 0))
            continue;
        char *name = joined(path, e->d_name);
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

/* Leases that a killed process left half made. */
static void sweep_leases(const struct work *w)
{
    DIR *d = opendir(w->partial);

    if (d == NULL)
        return;
    for (struct dirent *e; (e = readdir(d)) != NULL;)
        if (strncmp(e->d_name, "lease.", 6) == 0)
            unlinkat(dirfd(d), e->d_name, 0);
    closedir(d);
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
    else if (!write_all(w->journal, out, size) || fdatasync(w->journal) != 0)
        glm_fail_errno(err, "%s/journal: write", w->partial);
    free(out);
    return (int)err->code;
}

/* Cuts the check off a line in place; false if the line is not as it was written. */
static bool line_intact(char *line, size_t size)
{
    char check[CHECK_DIGITS + 1];

    if (size < CHECK_DIGITS + 2 || line[size - CHECK_DIGITS - 1] != '\t' ||
        memchr(line, '\0', size) != NULL)
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
    char *path = joined(w->partial, "journal"), *text = NULL;
    void *data = NULL;
    size_t size = 0;

    *plan = -1;
    *good = 0;
    if (path == NULL)
        return glm_fail(err, GLM_ENOMEM, "%s: no memory", w->partial);
    if (access(path, F_OK) != 0 || dio_slurp(path, JOURNAL_LIMIT, &data, &size, err) != GLM_OK)
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

int work_replay(struct work *w, int (*fn)(void *ctx, char *line, struct glm_error *err), void *ctx,
    struct glm_error *err)
{
    int plan;
    size_t good;
    return read_journal(w, &plan, &good, fn, ctx, err);
}

static int open_journal(struct work *w, size_t good, struct glm_error *err)
{
    char *path = joined(w->partial, "journal");

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
            "%s: needs %llu bytes, %llu are free on this file system; nothing was written",
            w->target, (unsigned long long)need, (unsigned long long)available);
    return GLM_OK;
}

static int begin_fresh(struct work *w, struct glm_error *err)
{
    char line[DIGEST_HEX + 8];

    if (clear_folder(w->partial, "lease", err) != GLM_OK || open_journal(w, 0, err) != GLM_OK)
        return (int)err->code;
    snprintf(line, sizeof line, "plan %s\n", w->plan_hex);
    return work_journal(w, line, err);
}

static int name_paths(struct work *w, const char *target, struct glm_error *err)
{
    size_t n = strlen(target);

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

static int check_target(const struct work *w, struct glm_error *err)
{
    struct stat st;

    if (lstat(w->target, &st) != 0)
        return errno == ENOENT ? GLM_OK : glm_fail_errno(err, "%s", w->target);
    if (S_ISLNK(st.st_mode))
        return glm_fail(err, GLM_EUSAGE,
            "%s: is a symbolic link; outputs are never written through one", w->target);
    if (!w->replace)
        return glm_fail(err, GLM_EUSAGE,
            "%s: exists; give another name, or --replace to exchange it at the end", w->target);
    if (!S_ISDIR(st.st_mode))
        return glm_fail(err, GLM_EUSAGE, "%s: is not a folder; remove it first", w->target);
    return GLM_OK;
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
    digest_hex(o->plan, w->plan_hex);
    if (name_paths(w, o->target, err) != GLM_OK || check_target(w, err) != GLM_OK)
        goto out;
    const bool made = mkdir(w->partial, 0777) == 0;
    if (!made && errno != EEXIST) {
        glm_fail_errno(err, "%s: create", w->partial);
        goto out;
    }
    /* Before anything in it is called durable, the folder itself must be. */
    if (dio_sync_folder(w->parent, err) != GLM_OK)
        goto out;
    if (lock_folder(w, err) != GLM_OK || take_lease(w, o->take_lease, err) != GLM_OK)
        goto out;
    sweep_leases(w);
    if (read_journal(w, &plan, &good, NULL, NULL, err) != GLM_OK)
        goto out;
    if (plan == 0 && !o->restart) {
        glm_fail(err, GLM_EUSAGE,
            "%s: holds unfinished work of another plan (other source, topology or options); "
            "finish that, or give --restart to discard it", w->partial);
        goto out;
    }
    *resumed = plan == 1 && !o->restart;
    if (!*resumed && check_space(w, o->need_bytes, err) != GLM_OK) {
        if (made) {
            drop_lease(w);
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

const char *work_path(const struct work *w) { return w->partial; }

void work_close(struct work *w)
{
    if (w == NULL)
        return;
    drop_lease(w);
    if (w->journal >= 0)
        close(w->journal);
    if (w->folder >= 0)
        close(w->folder);
    free(w->target);
    free(w->partial);
    free(w->parent);
    free(w);
}

static int remove_ours(struct work *w, const char *name, struct glm_error *err)
{
    char *path = joined(w->partial, name);

    if (path == NULL)
        glm_fail(err, GLM_ENOMEM, "%s: no memory", w->partial);
    else if (unlink(path) != 0 && errno != ENOENT)
        glm_fail_errno(err, "%s: remove", path);
    free(path);
    return (int)err->code;
}

int work_commit(struct work *w, const char *const *extras, struct glm_error *err)
{
    /* The journal first, and durably: what it says is done rests on the extras. */
    if (remove_ours(w, "journal", err) != GLM_OK || dio_sync_folder(w->partial, err) != GLM_OK)
        return (int)err->code;
    for (int i = 0; extras != NULL && extras[i] != NULL; i++)
        if (remove_ours(w, extras[i], err) != GLM_OK)
            return (int)err->code;
    if (remove_ours(w, "lease", err) != GLM_OK ||
        dio_sync_folder(w->partial, err) != GLM_OK)
        return (int)err->code;
    w->owner = false;
    bool exchanged = false;
    int moved = renameat2(AT_FDCWD, w->partial, AT_FDCWD, w->target, RENAME_NOREPLACE);
    if (moved != 0 && errno == EINVAL && access(w->target, F_OK) != 0)
        moved = rename(w->partial, w->target); /* a file system without the flag */
    if (moved != 0) {
        if (errno != EEXIST || !w->replace)
            return errno == EEXIST
                ? glm_fail(err, GLM_EUSAGE, "%s: has appeared meanwhile; the result waits in %s",
                      w->target, w->partial)
                : glm_fail_errno(err, "%s: rename from %s", w->target, w->partial);
        if (renameat2(AT_FDCWD, w->partial, AT_FDCWD, w->target, RENAME_EXCHANGE) != 0)
            return glm_fail_errno(err, "%s: exchange with %s", w->target, w->partial);
        exchanged = true;
    }
    if (dio_sync_folder(w->parent, err) != GLM_OK)
        return (int)err->code;
    if (exchanged && remove_tree(w->partial, err) != GLM_OK)
        return glm_within(err, "the new one is in place, the old one could not be removed");
    work_close(w);
    return GLM_OK;
}
