/* Who works in NAME.partial: the lease, and a lock beside it.
 *
 *     lease     host TAB pid TAB start time of the process TAB boot id
 *
 * The lease appears with its content in one step (link), so nobody ever reads half of one. */
#include "ckpt/work_inside.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/dio.h"

enum { OWNER_SIZE = 512 };

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
    char *p = strrchr(
        text, ')'); /* the command's name may hold spaces; field 22 is the start */
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

bool work_write_all(int fd, const char *data, size_t size)
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

    if (fd < 0 || !work_write_all(fd, text, size))
        glm_fail_errno(err, "%s: write", path);
    if (fd >= 0)
        close(fd);
    return (int)err->code;
}

/* Moves a dead owner's lease aside. Two that try at once: the loser may have moved the winner's
 * new lease; it sees that from the content and gives it back. */
static int bury(
    const char *lease, const char *grave, const char *dead, struct glm_error *err)
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
            glm_fail(
                err, GLM_EUSAGE, "%s: another process has just taken it over", lease);
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
    char host[HOST_NAME_MAX + 1], *lease = work_joined(w->partial, "lease");
    struct glm_error ignored = {0};
    void *text = NULL;
    size_t size;
    long pid = 0;

    if (lease != NULL && dio_slurp(lease, OWNER_SIZE, &text, &size, &ignored) == GLM_OK)
        judge(text, host, &pid);
    free(lease);
    free(text);
    if (pid > 0)
        return glm_fail(err, GLM_EUSAGE,
            "%s: process %ld works here now; wait for it or end it", w->partial, pid);
    return glm_fail(err, GLM_EUSAGE,
        "%s: another process works here now; wait for it or end it", w->partial);
}

/* The lease goes shortly before the rename, and whoever came in between would take the finished
 * folder for an abandoned one. A lock on the folder closes that gap among the processes of a host.
 * Where locks do not work (some network file systems) the lease alone has to do. */
int work_lock_folder(struct work *w, struct glm_error *err)
{
    struct stat mine, now;

    w->folder = open(w->partial, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (w->folder < 0 && (errno == ELOOP || errno == ENOTDIR))
        return glm_fail(err, GLM_EUSAGE,
            "%s: is a symbolic link or a file; remove it, work needs a folder there",
            w->partial);
    if (w->folder < 0 || fstat(w->folder, &mine) != 0)
        return glm_fail_errno(err, "%s: open the folder", w->partial);
    if (flock(w->folder, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK && locks_work(w))
        return refuse_busy(w, err);
    if (lstat(w->partial, &now) != 0 || now.st_ino != mine.st_ino
        || now.st_dev != mine.st_dev)
        return glm_fail(
            err, GLM_EUSAGE, "%s: another process has just finished it", w->partial);
    return GLM_OK;
}

int work_take_lease(struct work *w, bool take_foreign, struct glm_error *err)
{
    char self[OWNER_SIZE], mine_name[64], host[HOST_NAME_MAX + 1];
    char *lease = work_joined(w->partial, "lease"), *mine = NULL, *grave = NULL;
    void *text = NULL;
    size_t size;
    long pid;

    describe_self(self);
    snprintf(mine_name, sizeof mine_name, "lease.%ld", (long)getpid());
    mine = work_joined(w->partial, mine_name);
    grave = mine == NULL ? NULL : work_joined(mine, "dead");
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
            glm_fail(err, GLM_EUSAGE,
                "%s: process %ld works here now; wait for it or end it", w->partial, pid);
            goto out;
        }
        if (who == OWNER_FOREIGN && !take_foreign) {
            glm_fail(err, GLM_EUSAGE,
                "%s: leased by process %ld on host '%s'; if that is gone, give "
                "--take-lease",
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

void work_drop_lease(struct work *w)
{
    char *lease = w->owner ? work_joined(w->partial, "lease") : NULL;
    if (lease != NULL)
        unlink(lease);
    free(lease);
    w->owner = false;
}

void work_sweep_leases(const struct work *w)
{
    DIR *d = opendir(w->partial);

    if (d == NULL)
        return;
    for (struct dirent *e; (e = readdir(d)) != NULL;)
        if (strncmp(e->d_name, "lease.", 6) == 0)
            unlinkat(dirfd(d), e->d_name, 0);
    closedir(d);
}
