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
 *         part <file> upto <byte>                 of a file that is read in part: the same
 *
 * A block is fdatasynced before its line is written, so a state never speaks of bytes that are not
 * there. A file gets its name only when its digest is the listed one; a wrong one is fetched once
 * more. Links are not followed. Of a smaller model, without --keep, only the needed ranges of a file
 * are fetched, into a file with holes; those cannot be compared. */
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
#include "convert/hubkeep_inside.h"

enum {
    AHEAD = 2,     /* files beyond one for each connection that may wait to be read */
    GAP = 64 << 10 /* unwanted bytes that are cheaper to read than a new request */
};

/* ---- what a job reads -------------------------------------------------------------------------- */

static int32_t file_of(const struct hubkeep *k, int64_t tensor, const struct rect *at)
{
    int32_t file;
    uint64_t begin, end;
    hf_reader_extent(k->o.r, tensor, at, &file, &begin, &end);
    return file;
}

static void scale_member(
    const struct hubkeep *k, const struct flow_ask *a, struct rect *out)
{
    *out = rect_whole(k->reads.m->tensors[a->scale].grid.dims);
    out->lo[0] = a->at.lo[0];
    out->hi[0] = a->at.hi[0];
}

/* The files that a job reads: its own, and that of its scales (the same, or -1). */
static void files_of(const struct hubkeep *k, const struct flow_ask *a, int32_t out[2])
{
    struct rect member;
    out[0] = file_of(k, a->tensor, &a->at);
    out[1] = -1;
    if (a->scale < 0)
        return;
    scale_member(k, a, &member);
    out[1] = file_of(k, a->scale, &member);
    if (out[1] == out[0])
        out[1] = -1;
}

/* ---- which file is next ----------------------------------------------------------------------- */

/* Lock held. Whether nobody will read a file any more, and what was made of it is whole. */
static bool is_used_up(const struct hubkeep *k, int64_t i)
{
    bool used = k->files[i].phase == PHASE_READY && k->files[i].left == 0;
    for (int64_t j = 0; used && j < k->jobs.count; j++) {
        int32_t files[2];
        files_of(k, &k->jobs.asks[j], files);
        used = (files[0] != i && files[1] != i) || k->jobs.durable(k->jobs.flow, j);
    }
    return used;
}

/* Lock held. Files that are used up go, after what was made of them is on the disk and in the
 * journal: else a kill would cost the whole file. A failure shows when the checkpoint is committed. */
static void drop_safe(struct hubkeep *k)
{
    struct glm_error err = {0};
    bool settled = false;
    for (int64_t i = 0; k->o.folder == NULL && i < k->s->file_count; i++) {
        struct keptfile *f = &k->files[i];
        if (!is_used_up(k, i))
            continue;
        if (!settled && k->jobs.sink->settle(k->jobs.sink->ctx, &err) != GLM_OK)
            return;
        settled = true;
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
        hubkeep_obtain(k, f, &err);
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
    if (sscanf(line + at, "upto %" SCNu64, &k->files[file].upto) != 1
        && !hubsum_load(&k->files[file].sum, line + at))
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
    if (hubkeep_is_there(&f, err) || err->code != GLM_OK)
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
    else if (hubkeep_write(fd, part, data, size, 0, err) == GLM_OK
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
    else if (stat(k->folder, &st) == 0 && !S_ISDIR(st.st_mode))
        glm_fail(
            err, GLM_EUSAGE, "%s: is not a folder; files are kept in one", k->folder);
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

static int by_begin(const void *a, const void *b)
{
    const struct keptrange *x = a, *y = b;
    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

/* Sorted, and joined where the gap is small. */
static int64_t join(struct keptrange *r, int64_t count)
{
    int64_t n = 0;
    qsort(r, (size_t)count, sizeof *r, by_begin);
    for (int64_t i = 0; i < count; i++)
        if (n > 0 && r[i].begin <= r[n - 1].end + GAP)
            r[n - 1].end = r[i].end > r[n - 1].end ? r[i].end : r[n - 1].end;
        else
            r[n++] = r[i];
    return n;
}

/* The ranges of the files that jobs read in part. All asks count, done or not: the ranges must be
 * the same in every run, or "upto" would mean another thing. */
static int plan_ranges(struct hubkeep *k, struct glm_error *err)
{
    for (int64_t i = 0; i < k->s->file_count; i++) {
        struct keptfile *f = &k->files[i];
        int64_t n = 0;
        if (f->phase != PHASE_WANTED)
            continue;
        f->ranges = malloc((size_t)(2 * k->jobs.count + 1) * sizeof *f->ranges);
        if (f->ranges == NULL)
            return glm_fail(err, GLM_ENOMEM, "%s: no memory for its plan", f->file->what);
        for (int64_t j = 0; j < k->jobs.count; j++) {
            const struct flow_ask *a = &k->jobs.asks[j];
            struct rect member;
            int32_t file;
            struct keptrange r;
            hf_reader_extent(k->o.r, a->tensor, &a->at, &file, &r.begin, &r.end);
            if (file == i)
                f->ranges[n++] = r;
            if (a->scale < 0)
                continue;
            scale_member(k, a, &member);
            hf_reader_extent(k->o.r, a->scale, &member, &file, &r.begin, &r.end);
            if (file == i)
                f->ranges[n++] = r;
        }
        f->range_count = join(f->ranges, n);
        const struct st_header *h = &k->s->files[i].header;
        if (f->range_count == 1 && f->ranges[0].begin <= h->data_start + GAP
            && f->ranges[0].end + GAP >= h->file_size) {
            free(f->ranges); /* nearly all of it: then all, and it can be compared */
            f->ranges = NULL;
        } else {
            struct keptrange *exact =
                realloc(f->ranges, (size_t)(f->range_count + 1) * sizeof *exact);
            f->ranges = exact != NULL ? exact : f->ranges;
        }
    }
    return GLM_OK;
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
    if (k->o.folder == NULL && plan_ranges(k, err) != GLM_OK)
        return (int)err->code;
    return check_space(k, err);
}

static int feed_begin(void *ctx, const struct flow_jobs *jobs, struct glm_error *err)
{
    struct hubkeep *k = ctx;

    k->jobs = *jobs;
    if (hub_sign(k->o.hub, jobs->sink, err) != GLM_OK || open_folder(k, err) != GLM_OK
        || plan_files(k, err) != GLM_OK)
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
        k->o.connections =
            o->connections > HUBKEEP_THREADS ? HUBKEEP_THREADS : o->connections;
        k->s = hf_reader_model(o->r);
        k->reads = hf_reader_source(o->r);
        k->files = calloc((size_t)k->s->file_count + 1, sizeof *k->files);
        pthread_mutex_init(&k->lock, NULL);
        pthread_mutex_init(&k->journal_lock, NULL);
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
    static const struct flow_feed feed = {NULL, feed_begin, NULL, feed_done, feed_end};
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
    for (int64_t i = 0; k->files != NULL && i < k->s->file_count; i++) {
        free(k->files[i].path);
        free(k->files[i].ranges);
    }
    work_close(k->work);
    free(k->files);
    free(k->folder);
    pthread_mutex_destroy(&k->lock);
    pthread_mutex_destroy(&k->journal_lock);
    pthread_cond_destroy(&k->moved);
    free(k);
}
