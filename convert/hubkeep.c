/* Whole files from a hub, each checked before anything is read from it.
 *
 * With --keep the files stay, in the folder that it names. Without it this is for compressed
 * output, whose frames must be written in the order of the checkpoint and not of the source: files
 * lie in the unfinished checkpoint only until all that was made of them is safe, so a few of them
 * are there at a time and never a second copy of the model.
 *
 *     FOLDER/NAME                              whole and verified
 *     FOLDER/.glm-import.partial/NAME.part     what came so far
 *                                lease, journal   one owner; and of each file
 *         part <file> <state of the digest>       so many bytes are durable and in the digest
 *
 * A block is fdatasynced before its line is written, so a state never speaks of bytes that are not
 * there. A file gets its name only when its digest is the listed one; a wrong one is fetched once
 * more. Links are not followed. */
#include "convert/hubkeep.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "ckpt/ckpt.h"
#include "convert/hubsum.h"

enum {
    BUFFER = 4 << 20,
    SYNC = 32
        << 20, /* bytes between two states: with the buffers below what a kill may cost */
    THREADS_MAX = 64,
    AHEAD = 2 /* files beyond one for each connection that may wait to be read */
};

enum phase { PHASE_NONE, PHASE_WANTED, PHASE_ACTIVE, PHASE_READY, PHASE_GONE };

struct keptfile {
    struct hub_file *file;
    enum phase phase;
    bool demanded; /* a thread waits for it */
    int64_t order; /* the first job that needs it */
    int64_t left;  /* jobs that still will */
    struct hubsum sum;
    char *path; /* of the whole file, when it is ready */
};

struct hubkeep {
    struct hubkeep_options o;
    const struct hf_source *s;
    struct flow_source reads;
    struct flow_jobs jobs;
    char *folder;
    struct work *work;
    struct keptfile *files;
    pthread_mutex_t lock;
    pthread_cond_t moved;
    bool failed, ending;
    struct glm_error error;
    pthread_t threads[THREADS_MAX];
    int thread_count;
};

/* ---- one file --------------------------------------------------------------------------------- */

struct
    pull { /* a file on its way: the moving thread fills one buffer while the other is written */
    pthread_mutex_t lock;
    pthread_cond_t moved;
    unsigned char *buffer[2];
    size_t used[2];
    bool full[2];
    int in; /* the buffer that is filled */
    bool ended;
    struct glm_error err;
};

static bool pull_ready(void *ctx)
{
    struct pull *p = ctx;
    pthread_mutex_lock(&p->lock);
    const bool room = !p->full[p->in];
    pthread_mutex_unlock(&p->lock);
    return room;
}

static size_t pull_data(
    void *ctx, uint64_t offset, const void *bytes, size_t n, struct glm_error *err)
{
    struct pull *p = ctx;
    size_t used = 0;
    (void)offset;
    (void)err;
    pthread_mutex_lock(&p->lock);
    while (used < n && !p->full[p->in]) {
        const int i = p->in;
        const size_t room = BUFFER - p->used[i], k = n - used < room ? n - used : room;
        memcpy(p->buffer[i] + p->used[i], (const char *)bytes + used, k);
        p->used[i] += k;
        used += k;
        if (p->used[i] == BUFFER) {
            p->full[i] = true;
            p->in = 1 - i;
            pthread_cond_signal(&p->moved);
        }
    }
    pthread_mutex_unlock(&p->lock);
    return used;
}

static void pull_done(void *ctx, const struct glm_error *err)
{
    struct pull *p = ctx;
    pthread_mutex_lock(&p->lock);
    p->ended = true;
    p->err = *err;
    pthread_cond_signal(&p->moved);
    pthread_mutex_unlock(&p->lock);
}

static int write_state(struct hubkeep *k, const struct keptfile *f, int fd,
    const char *part, struct glm_error *err)
{
    char line[HUBSUM_TEXT + 40], state[HUBSUM_TEXT];
    if (fdatasync(fd) != 0)
        return glm_fail_errno(err, "%s: fdatasync", part);
    hubsum_save(&f->sum, state);
    snprintf(line, sizeof line, "part %d %s\n", (int)(f - k->files), state);
    pthread_mutex_lock(&k->lock);
    work_journal(k->work, line, err);
    pthread_mutex_unlock(&k->lock);
    return (int)err->code;
}

static int write_all(int fd, const char *part, const unsigned char *data, size_t n,
    uint64_t at, struct glm_error *err)
{
    while (n > 0) {
        const ssize_t put = pwrite(fd, data, n, (off_t)at);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return glm_fail_errno(err, "%s: write at byte %" PRIu64, part, at);
        data += put;
        n -= (size_t)put;
        at += (uint64_t)put;
    }
    return GLM_OK;
}

/* Takes buffers as they fill until the transfer ends; the last one may be part full. */
static int drain(struct hubkeep *k, struct keptfile *f, struct pull *p, int fd,
    const char *part, struct glm_error *err)
{
    uint64_t safe = f->sum.at;
    for (int out = 0;; out = 1 - out) {
        pthread_mutex_lock(&p->lock);
        while (!p->full[out] && !p->ended)
            pthread_cond_wait(&p->moved, &p->lock);
        const bool last = !p->full[out];
        pthread_mutex_unlock(&p->lock);
        const size_t n = p->used[out];
        if (err->code == GLM_OK
            && write_all(fd, part, p->buffer[out], n, f->sum.at, err) == GLM_OK) {
            hubsum_update(&f->sum, p->buffer[out], n);
            if (f->sum.at - safe >= SYNC || (last && n > 0)) {
                write_state(k, f, fd, part, err);
                safe = f->sum.at;
            }
        }
        if (last)
            break;
        pthread_mutex_lock(&p->lock);
        p->used[out] = 0;
        p->full[out] = false;
        pthread_mutex_unlock(&p->lock);
        hubnet_wake(hub_net(k->o.hub));
    }
    if (err->code == GLM_OK && p->err.code != GLM_OK)
        *err = p->err;
    return (int)err->code;
}

/* Fetches what is missing of a part. */
static int pull(struct hubkeep *k, struct keptfile *f, int fd, const char *part,
    struct glm_error *err)
{
    struct pull p = {.buffer = {malloc(BUFFER), malloc(BUFFER)}};
    const struct hubtree_file *listed = f->file->listed;
    const struct hubnet_get get = {.what = f->file->what,
        .url = f->file->url,
        .from = f->sum.at,
        .to = listed->size,
        .size = listed->size,
        .digest = listed->digest,
        .link = &f->file->link,
        .ctx = &p,
        .data = pull_data,
        .ready = pull_ready,
        .done = pull_done};

    pthread_mutex_init(&p.lock, NULL);
    pthread_cond_init(&p.moved, NULL);
    if (p.buffer[0] == NULL || p.buffer[1] == NULL) {
        glm_fail(err, GLM_ENOMEM, "%s: no memory for a buffer", f->file->what);
    } else if (get.from < get.to) {
        hubnet_start(hub_net(k->o.hub), &get);
        drain(k, f, &p, fd, part, err);
    }
    pthread_mutex_destroy(&p.lock);
    pthread_cond_destroy(&p.moved);
    free(p.buffer[0]);
    free(p.buffer[1]);
    return (int)err->code;
}

static int open_part(struct keptfile *f, const char *part, struct glm_error *err)
{
    struct stat st;
    const int fd = open(part, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (fd < 0 || fstat(fd, &st) != 0) {
        glm_fail_errno(err, "%s: open", part);
    } else {
        if ((uint64_t)st.st_size < f->sum.at || f->sum.kind == HUBSUM_NONE)
            hubsum_begin(
                &f->sum, hubsum_kind_of(f->file->listed->digest), f->file->listed->size);
        /* A full disk shows at once. File systems that cannot reserve find out as they write. */
        if (fallocate(fd, 0, 0, (off_t)f->file->listed->size) != 0 && errno == ENOSPC)
            glm_fail_errno(
                err, "%s: reserve %" PRIu64 " bytes", part, f->file->listed->size);
    }
    if (err->code != GLM_OK && fd >= 0)
        close(fd);
    return err->code != GLM_OK ? -1 : fd;
}

static bool matches(const struct keptfile *f, char hex[HUBSUM_HEX])
{
    hubsum_hex(&f->sum, hex);
    return f->sum.at == f->file->listed->size
        && (f->sum.kind == HUBSUM_NONE || strcmp(hex, f->file->listed->digest) == 0);
}

/* Fetches, compares, and once more if the digest is another. */
static int fill_part(struct hubkeep *k, struct keptfile *f, int fd, const char *part,
    struct glm_error *err)
{
    char hex[HUBSUM_HEX], note[1024];
    for (int attempt = 0;; attempt++) {
        if (pull(k, f, fd, part, err) != GLM_OK)
            return (int)err->code;
        if (matches(f, hex))
            return GLM_OK;
        hubsum_begin(
            &f->sum, hubsum_kind_of(f->file->listed->digest), f->file->listed->size);
        if (write_state(k, f, fd, part, err) != GLM_OK)
            return (int)err->code;
        if (attempt > 0)
            return glm_fail(err, GLM_EIO,
                "%s: twice its bytes have the digest %s, the hub lists %s: what comes is "
                "not what was published. Nothing of it is kept",
                f->file->what, hex, f->file->listed->digest);
        snprintf(note, sizeof note,
            "%s: its bytes have the digest %s, the hub lists %s; it is fetched once more",
            f->file->what, hex, f->file->listed->digest);
        glm_events_note(k->o.events, note);
    }
}

/* A file that is there already, from an earlier run or by other hands: taken if it is the one. */
static bool is_there(struct hubkeep *k, struct keptfile *f, struct glm_error *err)
{
    unsigned char *buffer = malloc(BUFFER);
    char hex[HUBSUM_HEX];
    struct stat st;
    bool good = false;
    const int fd = open(f->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);

    (void)k;
    if (fd < 0 && errno == ENOENT)
        goto out;
    if (fd < 0 || fstat(fd, &st) != 0) {
        glm_fail_errno(err, "%s: open", f->path);
        goto out;
    }
    hubsum_begin(&f->sum, hubsum_kind_of(f->file->listed->digest), f->file->listed->size);
    while (buffer != NULL && S_ISREG(st.st_mode)
        && (uint64_t)st.st_size == f->file->listed->size) {
        const ssize_t n = read(fd, buffer, BUFFER);
        if (n <= 0)
            break;
        hubsum_update(&f->sum, buffer, (size_t)n);
    }
    good = matches(f, hex);
    if (!good)
        glm_fail(err, GLM_EUSAGE,
            "%s: is there and is not the file that the hub lists; remove it, or keep in "
            "another folder",
            f->path);
out:
    if (fd >= 0)
        close(fd);
    free(buffer);
    return good;
}

static int obtain(struct hubkeep *k, struct keptfile *f, struct glm_error *err)
{
    char *part = NULL;
    int fd = -1;

    if (is_there(k, f, err) || err->code != GLM_OK)
        return (int)err->code;
    if (asprintf(&part, "%s/%s.part", work_path(k->work), f->file->listed->path) < 0)
        return glm_fail(err, GLM_ENOMEM, "%s: no memory", f->file->what);
    fd = open_part(f, part, err);
    if (fd < 0 || fill_part(k, f, fd, part, err) != GLM_OK)
        goto out;
    if (ftruncate(fd, (off_t)f->file->listed->size) != 0 || fsync(fd) != 0)
        glm_fail_errno(err, "%s: fsync", part);
    else if (renameat2(AT_FDCWD, part, AT_FDCWD, f->path, RENAME_NOREPLACE) != 0
        && (errno != EINVAL || rename(part, f->path) != 0))
        glm_fail_errno(err, "%s: rename from %s", f->path, part);
    else
        dio_sync_folder(k->folder, err);
out:
    if (fd >= 0)
        close(fd);
    free(part);
    return (int)err->code;
}

/* ---- which file is next ----------------------------------------------------------------------- */

/* Lock held. A file that nobody will read any more, and whose results are safe, goes. */
static void drop_safe(struct hubkeep *k)
{
    for (int64_t i = 0; k->o.folder == NULL && i < k->s->file_count; i++) {
        struct keptfile *f = &k->files[i];
        bool safe = f->phase == PHASE_READY && f->left == 0;
        for (int64_t j = 0; safe && j < k->jobs.count; j++) {
            int32_t file;
            uint64_t begin, end;
            hf_reader_extent(
                k->o.r, k->jobs.asks[j].tensor, &k->jobs.asks[j].at, &file, &begin, &end);
            safe = file != i || k->jobs.durable(k->jobs.flow, j);
        }
        if (!safe)
            continue;
        hf_reader_drop(k->o.r, i);
        unlink(f->path);
        f->phase = PHASE_GONE;
    }
}

/* Lock held. */
static struct keptfile *choose(struct hubkeep *k)
{
    struct keptfile *best = NULL;
    int64_t lying = 0;
    for (int64_t i = 0; i < k->s->file_count; i++) {
        struct keptfile *f = &k->files[i];
        lying += f->phase == PHASE_ACTIVE || (f->phase == PHASE_READY && f->left > 0);
        if (f->phase != PHASE_WANTED)
            continue;
        if (best == NULL || (f->demanded && !best->demanded)
            || (f->demanded == best->demanded && f->order < best->order))
            best = f;
    }
    const bool room = k->o.folder != NULL || lying < k->o.connections + AHEAD;
    return best != NULL && (room || best->demanded) ? best : NULL;
}

static void *pull_files(void *ctx)
{
    struct hubkeep *k = ctx;
    pthread_mutex_lock(&k->lock);
    while (!k->failed && !k->ending) {
        struct keptfile *f = choose(k);
        struct glm_error err = {0};
        if (f == NULL) {
            pthread_cond_wait(&k->moved, &k->lock);
            continue;
        }
        f->phase = PHASE_ACTIVE;
        pthread_mutex_unlock(&k->lock);
        obtain(k, f, &err);
        pthread_mutex_lock(&k->lock);
        if (err.code != GLM_OK) {
            if (!k->failed)
                k->error = err;
            k->failed = true;
        } else {
            free(f->file->local);
            f->file->local = strdup(f->path);
            f->phase = PHASE_READY;
        }
        pthread_cond_broadcast(&k->moved);
    }
    pthread_mutex_unlock(&k->lock);
    return NULL;
}

/* ---- the flow --------------------------------------------------------------------------------- */

static int wait_for(struct hubkeep *k, int32_t file, struct glm_error *err)
{
    struct keptfile *f = &k->files[file];
    pthread_mutex_lock(&k->lock);
    f->demanded = true;
    pthread_cond_broadcast(&k->moved);
    while (f->phase != PHASE_READY && !k->failed && err->code == GLM_OK) {
        const int signal = glm_events_stop(k->o.events);
        struct timespec t;
        if (signal != 0) {
            glm_fail(err, GLM_ESTOPPED,
                "stopped by signal %d; what is done is kept, the same command goes on",
                signal);
            err->sys_errno = signal;
        }
        clock_gettime(CLOCK_REALTIME, &t);
        t.tv_sec++;
        pthread_cond_timedwait(&k->moved, &k->lock, &t);
    }
    if (err->code == GLM_OK && f->phase != PHASE_READY) {
        if (k->error.code != GLM_OK)
            *err = k->error;
        else
            glm_fail(err, GLM_ESTOPPED, "stopped: another part failed");
    }
    pthread_mutex_unlock(&k->lock);
    return (int)err->code;
}

static int32_t file_of(const struct hubkeep *k, int64_t tensor, const struct rect *at)
{
    int32_t file;
    uint64_t begin, end;
    hf_reader_extent(k->o.r, tensor, at, &file, &begin, &end);
    return file;
}

static int keep_read(void *ctx, int64_t tensor, const struct rect *at,
    struct dio_buffer *buf, unsigned char **data, unsigned char *digests, bool *known,
    struct flow_thread *t, struct glm_error *err)
{
    struct hubkeep *k = ctx;
    const int32_t file = file_of(k, tensor, at);
    if (k->files[file].file != NULL && wait_for(k, file, err) != GLM_OK)
        return (int)err->code;
    return k->reads.read(k->reads.ctx, tensor, at, buf, data, digests, known, t, err);
}

static uint64_t keep_place(void *ctx, int64_t tensor, const struct rect *at)
{
    const struct hubkeep *k = ctx;
    return k->reads.place(k->reads.ctx, tensor, at);
}

/* The files that a job reads: its own, and that of its scales (the same, or -1). */
static void files_of(const struct hubkeep *k, const struct flow_ask *a, int32_t out[2])
{
    struct rect member = a->at;
    out[0] = file_of(k, a->tensor, &a->at);
    out[1] = -1;
    if (a->scale < 0)
        return;
    member.lo[1] = member.lo[2] = 0;
    member.hi[1] = member.hi[2] = 1;
    out[1] = file_of(k, a->scale, &member);
    if (out[1] == out[0])
        out[1] = -1;
}

static void feed_done(void *ctx, int64_t job, bool good)
{
    struct hubkeep *k = ctx;
    int32_t files[2];
    files_of(k, &k->jobs.asks[job], files);
    pthread_mutex_lock(&k->lock);
    for (int i = 0; good && i < 2; i++)
        if (files[i] >= 0 && !k->jobs.asks[job].done && --k->files[files[i]].left == 0)
            drop_safe(k);
    if (!good)
        k->failed = true; /* the flow has the reason */
    pthread_cond_broadcast(&k->moved);
    pthread_mutex_unlock(&k->lock);
}

static int recall_line(void *ctx, char *line, struct glm_error *err)
{
    struct hubkeep *k = ctx;
    int file, at = 0;
    (void)err;
    if (sscanf(line, "part %d %n", &file, &at) < 1 || at == 0 || file < 0
        || file >= k->s->file_count)
        return GLM_OK;
    if (!hubsum_load(&k->files[file].sum, line + at))
        k->files[file].sum = (struct hubsum){0};
    return GLM_OK;
}

/* Side files go along into the folder that keeps. */
static int keep_side(struct hubkeep *k, const char *name, struct glm_error *err)
{
    struct keptfile f = {.file = hub_find(k->o.hub, name)};
    void *data = NULL;
    size_t size;
    char *part = NULL;
    int fd = -1;

    if (f.file == NULL)
        return GLM_OK;
    if (asprintf(&f.path, "%s/%s", k->folder, name) < 0)
        return glm_fail(err, GLM_ENOMEM, "%s: no memory", name);
    if (is_there(k, &f, err) || err->code != GLM_OK)
        goto out;
    if (asprintf(&part, "%s/%s.part", work_path(k->work), name) < 0) {
        part = NULL;
        glm_fail(err, GLM_ENOMEM, "%s: no memory", name);
        goto out;
    }
    if (k->s->store->slurp(
            k->s->store->ctx, name, (size_t)f.file->listed->size, &data, &size, err)
        != GLM_OK)
        goto out;
    fd = open(part, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (fd < 0)
        glm_fail_errno(err, "%s: open", part);
    else if (write_all(fd, part, data, size, 0, err) == GLM_OK
        && (fsync(fd) != 0 || rename(part, f.path) != 0))
        glm_fail_errno(err, "%s: write", f.path);
out:
    if (fd >= 0)
        close(fd);
    free(part);
    free(data);
    free(f.path);
    return (int)err->code;
}

static int check_space(struct hubkeep *k, struct glm_error *err)
{
    uint64_t need = 0;
    struct statvfs v;
    struct stat st;
    for (int64_t i = 0; i < k->s->file_count; i++)
        if (k->files[i].phase == PHASE_WANTED && stat(k->files[i].path, &st) != 0)
            need += k->files[i].file->listed->size - k->files[i].sum.at;
    if (k->o.folder == NULL || statvfs(k->folder, &v) != 0)
        return GLM_OK;
    const uint64_t there = (uint64_t)v.f_bavail * v.f_frsize;
    return there >= need ? GLM_OK
                         : glm_fail(err, GLM_EIO,
                             "%s: --keep needs %" PRIu64 " bytes, %" PRIu64
                             " are free on this file system; nothing was fetched",
                             k->folder, need, there);
}

static int open_folder(struct hubkeep *k, struct glm_error *err)
{
    unsigned char plan[DIGEST_SIZE];
    char *target = NULL;
    struct stat st;
    bool resumed;
    const char *commit = hub_commit(k->o.hub);

    if (k->o.folder != NULL)
        k->folder = strdup(k->o.folder);
    else if (asprintf(&k->folder, "%s/files", k->jobs.sink->folder(k->jobs.sink->ctx))
        < 0)
        k->folder = NULL;
    if (k->folder == NULL || asprintf(&target, "%s/.glm-import", k->folder) < 0)
        return glm_fail(err, GLM_ENOMEM, "no memory");
    digest_of(commit, strlen(commit), plan);
    const struct work_options o = {.target = target, .plan = plan, .restart = false};
    const struct work_options fresh = {.target = target, .plan = plan, .restart = true};
    /* A link may lead into the client's cache, whose names are links to what is shared. */
    if (lstat(k->folder, &st) == 0 && S_ISLNK(st.st_mode))
        glm_fail(err, GLM_EUSAGE,
            "%s: is a symbolic link; files are never kept through one", k->folder);
    else if (mkdir(k->folder, 0777) != 0 && errno != EEXIST)
        glm_fail_errno(err, "%s: create", k->folder);
    else if (work_open(&k->work, &o, &resumed, err) != GLM_OK && err->code == GLM_EUSAGE
        && strstr(err->text, "another plan") != NULL) {
        glm_error_clear(err); /* parts of another commit are of no use */
        work_open(&k->work, &fresh, &resumed, err);
    }
    if (err->code == GLM_OK)
        work_replay(k->work, recall_line, k, err);
    free(target);
    return (int)err->code;
}

static int plan_files(struct hubkeep *k, struct glm_error *err)
{
    for (int64_t i = 0; i < k->s->file_count; i++) {
        struct hub_file *file = hub_find(k->o.hub, k->s->files[i].name);
        if (file->local != NULL)
            continue; /* in the client's cache: read there */
        k->files[i].file = file;
        k->files[i].order = INT64_MAX;
        if (asprintf(&k->files[i].path, "%s/%s", k->folder, k->s->files[i].name) < 0) {
            k->files[i].path = NULL;
            return glm_fail(err, GLM_ENOMEM, "no memory");
        }
    }
    for (int64_t j = 0; j < k->jobs.count; j++) {
        const struct flow_ask *a = &k->jobs.asks[j];
        int32_t files[2];
        files_of(k, a, files);
        for (int i = 0; i < 2; i++) {
            struct keptfile *f = files[i] < 0 ? NULL : &k->files[files[i]];
            if (f == NULL || f->file == NULL || (a->done && k->o.folder == NULL))
                continue;
            f->left += !a->done;
            f->order = j < f->order ? j : f->order;
            f->phase = PHASE_WANTED;
        }
    }
    return check_space(k, err);
}

static int feed_begin(void *ctx, const struct flow_jobs *jobs, struct glm_error *err)
{
    struct hubkeep *k = ctx;

    k->jobs = *jobs;
    if (open_folder(k, err) != GLM_OK || plan_files(k, err) != GLM_OK)
        return (int)err->code;
    for (int64_t i = 0; k->o.folder != NULL && i < k->s->side_count; i++)
        if (keep_side(k, k->s->sides[i].path, err) != GLM_OK)
            return (int)err->code;
    while (k->thread_count < k->o.connections
        && pthread_create(&k->threads[k->thread_count], NULL, pull_files, k) == 0)
        k->thread_count++;
    return k->thread_count > 0 ? GLM_OK
                               : glm_fail(err, GLM_ENOMEM, "no thread to fetch files");
}

/* With --keep all files are wanted, also those of which every job was done by an earlier run. */
static int wait_for_all(struct hubkeep *k, struct glm_error *err)
{
    for (int64_t i = 0; k->o.folder != NULL && i < k->s->file_count; i++)
        if (k->files[i].phase != PHASE_NONE && wait_for(k, (int32_t)i, err) != GLM_OK)
            break;
    return (int)err->code;
}

/* What was only on its way goes: parts of nothing, and without --keep the files too. */
static void clean(struct hubkeep *k)
{
    char *path = NULL;
    static const char *const extras[] = {"journal", "lease", NULL};
    for (int64_t i = 0; k->o.folder == NULL && i < k->s->file_count; i++)
        if (k->files[i].path != NULL) {
            hf_reader_drop(k->o.r, i);
            unlink(k->files[i].path);
        }
    char *partial = strdup(work_path(k->work));
    work_close(k->work);
    k->work = NULL;
    for (int i = 0; partial != NULL && extras[i] != NULL; i++)
        if (asprintf(&path, "%s/%s", partial, extras[i]) >= 0) {
            unlink(path);
            free(path);
        }
    if (partial != NULL)
        rmdir(partial);
    free(partial);
    if (k->o.folder == NULL)
        rmdir(k->folder);
    else
        dio_sync_folder(k->folder, &(struct glm_error){0});
}

static int feed_end(void *ctx, bool good, struct glm_error *err)
{
    struct hubkeep *k = ctx;

    if (good)
        wait_for_all(k, err);
    pthread_mutex_lock(&k->lock);
    k->ending = true;
    if (err->code != GLM_OK)
        hubnet_stop(hub_net(k->o.hub));
    pthread_cond_broadcast(&k->moved);
    pthread_mutex_unlock(&k->lock);
    while (k->thread_count > 0)
        pthread_join(k->threads[--k->thread_count], NULL);
    if (err->code == GLM_OK && k->error.code != GLM_OK)
        *err = k->error;
    if (err->code == GLM_OK)
        clean(k);
    return (int)err->code;
}

/* ---- the door --------------------------------------------------------------------------------- */

int hubkeep_open(
    struct hubkeep **out, const struct hubkeep_options *o, struct glm_error *err)
{
    struct hubkeep *k = calloc(1, sizeof *k);

    *out = NULL;
    if (k != NULL) {
        k->o = *o;
        k->o.connections = o->connections > THREADS_MAX ? THREADS_MAX : o->connections;
        k->s = hf_reader_model(o->r);
        k->reads = hf_reader_source(o->r);
        k->files = calloc((size_t)k->s->file_count + 1, sizeof *k->files);
        pthread_mutex_init(&k->lock, NULL);
        pthread_cond_init(&k->moved, NULL);
    }
    if (k == NULL || k->files == NULL) {
        hubkeep_close(k);
        return glm_fail(err, GLM_ENOMEM, "no memory for a download");
    }
    *out = k;
    return GLM_OK;
}

struct flow_source hubkeep_source(struct hubkeep *k)
{
    static const struct flow_feed feed = {feed_begin, NULL, feed_done, feed_end};
    struct flow_source s = k->reads;
    s.ctx = k;
    s.read = keep_read;
    s.place = keep_place;
    s.unchanged = NULL;
    s.feed = &feed;
    return s;
}

void hubkeep_close(struct hubkeep *k)
{
    if (k == NULL)
        return;
    for (int64_t i = 0; k->files != NULL && i < k->s->file_count; i++)
        free(k->files[i].path);
    work_close(k->work);
    free(k->files);
    free(k->folder);
    pthread_mutex_destroy(&k->lock);
    pthread_cond_destroy(&k->moved);
    free(k);
}
