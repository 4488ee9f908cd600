/* One file from a hub onto the disk: two buffers, so that the network fills one while the other is
 * written and hashed; a state in the journal every `sync` bytes, after they are safe. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/ckpt.h"
#include "convert/hubkeep_inside.h"

enum {
    BUFFER = 4 << 20,    /* at most; two for each connection */
    BUFFERS = 128 << 20, /* all of them together */
};

struct pull {
    pthread_mutex_t lock;
    pthread_cond_t moved;
    unsigned char *buffer[2];
    size_t size, used[2];
    bool full[2];
    int in;             /* the buffer that is filled */
    bool ended, broken; /* broken: nobody wants the rest */
    struct glm_error err;
};

struct part { /* the file that is written */
    struct hubkeep *k;
    struct keptfile *f;
    int fd;
    char *path;
    uint64_t at, safe;
    uint64_t sync; /* bytes between two states: with the buffers what a kill may cost */
};

/* ---- the moving thread ------------------------------------------------------------------------ */

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
    pthread_mutex_lock(&p->lock);
    if (p->broken) {
        pthread_mutex_unlock(&p->lock);
        glm_fail(err, GLM_ESTOPPED, "stopped: what came could not be written");
        return HUBNET_ABORT;
    }
    while (used < n && !p->full[p->in]) {
        const int i = p->in;
        const size_t room = p->size - p->used[i], k = n - used < room ? n - used : room;
        memcpy(p->buffer[i] + p->used[i], (const char *)bytes + used, k);
        p->used[i] += k;
        used += k;
        if (p->used[i] == p->size) {
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

/* ---- writing ---------------------------------------------------------------------------------- */

static int write_state(struct part *t, struct glm_error *err)
{
    char line[HUBSUM_TEXT + 40], state[HUBSUM_TEXT];
    const int no = (int)(t->f - t->k->files);
    if (fdatasync(t->fd) != 0)
        return glm_fail_errno(err, "%s: fdatasync", t->path);
    hubsum_save(&t->f->sum, state);
    if (t->f->ranges != NULL)
        snprintf(line, sizeof line, "part %d upto %" PRIu64 "\n", no, t->at);
    else
        snprintf(line, sizeof line, "part %d %s\n", no, state);
    pthread_mutex_lock(&t->k->journal_lock);
    work_journal(t->k->work, line, err);
    pthread_mutex_unlock(&t->k->journal_lock);
    t->safe = t->at;
    return (int)err->code;
}

int hubkeep_write(int fd, const char *part, const unsigned char *data, size_t n,
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

static int take_buffer(
    struct part *t, const unsigned char *data, size_t n, bool last, struct glm_error *err)
{
    if (err->code != GLM_OK
        || hubkeep_write(t->fd, t->path, data, n, t->at, err) != GLM_OK)
        return (int)err->code;
    if (t->f->ranges == NULL)
        hubsum_update(&t->f->sum, data, n);
    t->at += n;
    return t->at - t->safe >= t->sync || (last && t->at > t->safe) ? write_state(t, err)
                                                                   : GLM_OK;
}

/* Takes buffers as they fill until the transfer ends; the last one may be part full. */
static int drain(struct part *t, struct pull *p, struct glm_error *err)
{
    for (int out = 0;; out = 1 - out) {
        pthread_mutex_lock(&p->lock);
        while (!p->full[out] && !p->ended)
            pthread_cond_wait(&p->moved, &p->lock);
        const bool last = !p->full[out];
        pthread_mutex_unlock(&p->lock);
        take_buffer(t, p->buffer[out], p->used[out], last, err);
        if (last)
            break;
        pthread_mutex_lock(&p->lock);
        p->used[out] = 0;
        p->full[out] = false;
        p->broken = err->code != GLM_OK;
        pthread_mutex_unlock(&p->lock);
        hubnet_wake(hub_net(t->k->o.hub));
    }
    if (err->code == GLM_OK && p->err.code != GLM_OK)
        *err = p->err;
    return (int)err->code;
}

/* Fetches [t->at, to). */
static int pull(struct part *t, uint64_t to, struct glm_error *err)
{
    const size_t share = BUFFERS / 2 / (size_t)t->k->o.connections;
    const size_t size = share < BUFFER ? share : BUFFER;
    struct pull p = {.size = size, .buffer = {malloc(size), malloc(size)}};
    struct hub_file *file = t->f->file;
    const struct hubnet_get get = {.what = file->what,
        .url = file->url,
        .from = t->at,
        .to = to,
        .size = file->listed->size,
        .digest = file->listed->digest,
        .link = &file->link,
        .ctx = &p,
        .data = pull_data,
        .ready = pull_ready,
        .done = pull_done};

    pthread_mutex_init(&p.lock, NULL);
    pthread_cond_init(&p.moved, NULL);
    if (p.buffer[0] == NULL || p.buffer[1] == NULL) {
        glm_fail(err, GLM_ENOMEM, "%s: no memory for a buffer", file->what);
    } else if (get.from < get.to) {
        hubnet_start(hub_net(t->k->o.hub), &get);
        drain(t, &p, err);
    }
    pthread_mutex_destroy(&p.lock);
    pthread_cond_destroy(&p.moved);
    free(p.buffer[0]);
    free(p.buffer[1]);
    return (int)err->code;
}

/* ---- whole files ------------------------------------------------------------------------------ */

static bool matches(const struct keptfile *f, char hex[HUBSUM_HEX])
{
    hubsum_hex(&f->sum, hex);
    return f->sum.at == f->file->listed->size
        && (f->sum.kind == HUBSUM_NONE || strcmp(hex, f->file->listed->digest) == 0);
}

static void begin_sum(struct keptfile *f)
{
    hubsum_begin(&f->sum, hubsum_kind_of(f->file->listed->digest), f->file->listed->size);
}

/* Fetches, compares, and once more if the digest is another. */
static int fill_whole(struct part *t, struct glm_error *err)
{
    struct keptfile *f = t->f;
    char hex[HUBSUM_HEX], note[1024];
    for (int attempt = 0;; attempt++) {
        t->at = t->safe = f->sum.at;
        if (pull(t, f->file->listed->size, err) != GLM_OK)
            return (int)err->code;
        if (matches(f, hex))
            return GLM_OK;
        begin_sum(f);
        if (write_state(t, err) != GLM_OK)
            return (int)err->code;
        if (attempt > 0)
            return glm_fail(err, GLM_EIO,
                "%s: twice its bytes have the digest %s, the hub lists %s: what comes is "
                "not what was published. Nothing of it is kept",
                f->file->what, hex, f->file->listed->digest);
        snprintf(note, sizeof note,
            "%s: its bytes have the digest %s, the hub lists %s; it is fetched once more",
            f->file->what, hex, f->file->listed->digest);
        glm_events_note(t->k->o.events, note);
    }
}

/* ---- ranges ----------------------------------------------------------------------------------- */

static int fill_ranges(struct part *t, struct glm_error *err)
{
    struct keptfile *f = t->f;
    for (int64_t i = 0; i < f->range_count; i++) {
        const struct keptrange *r = &f->ranges[i];
        if (r->end <= f->upto)
            continue;
        t->at = t->safe = r->begin > f->upto ? r->begin : f->upto;
        if (pull(t, r->end, err) != GLM_OK)
            return (int)err->code;
    }
    return GLM_OK;
}

/* ---- a file ----------------------------------------------------------------------------------- */

static int open_part(struct part *t, struct glm_error *err)
{
    struct keptfile *f = t->f;
    const uint64_t size = f->file->listed->size;
    struct stat st;
    t->fd = open(t->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (t->fd < 0 || fstat(t->fd, &st) != 0)
        return glm_fail_errno(err, "%s: open", t->path);
    if ((uint64_t)st.st_size < f->sum.at || f->sum.kind == HUBSUM_NONE)
        begin_sum(f);
    if ((uint64_t)st.st_size < f->upto)
        f->upto = 0;
    /* A full disk shows at once. File systems that cannot reserve find out as they write. */
    if (f->ranges == NULL && fallocate(t->fd, 0, 0, (off_t)size) != 0 && errno == ENOSPC)
        return glm_fail_errno(err, "%s: reserve %" PRIu64 " bytes", t->path, size);
    return GLM_OK;
}

bool hubkeep_is_there(struct keptfile *f, struct glm_error *err)
{
    unsigned char *buffer = malloc(BUFFER);
    char hex[HUBSUM_HEX];
    struct stat st;
    bool good = false;
    const int fd = open(f->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);

    if (fd < 0 && errno == ENOENT)
        goto out;
    if (fd < 0 && errno == ELOOP) {
        glm_fail(err, GLM_EUSAGE,
            "%s: is a symbolic link; files are never kept through one", f->path);
        goto out;
    }
    if (fd < 0 || fstat(fd, &st) != 0) {
        glm_fail_errno(err, "%s: open", f->path);
        goto out;
    }
    const bool size_fits =
        S_ISREG(st.st_mode) && (uint64_t)st.st_size == f->file->listed->size;
    if (f->ranges != NULL
        && size_fits) { /* in our own folder, and named when it was safe */
        good = true;
        goto out;
    }
    const struct hubsum before = f->sum; /* of a part, should this be another file */
    begin_sum(f);
    for (ssize_t n = 1; buffer != NULL && size_fits && n > 0;)
        if ((n = read(fd, buffer, BUFFER)) > 0)
            hubsum_update(&f->sum, buffer, (size_t)n);
    good = matches(f, hex);
    if (!good) {
        f->sum = before;
        glm_fail(err, GLM_EUSAGE,
            "%s: is there and is not the file that the hub lists; remove it, or keep in "
            "another folder",
            f->path);
    }
out:
    if (fd >= 0)
        close(fd);
    free(buffer);
    return good;
}

/* Gives the part its name. */
static int finish(struct part *t, struct glm_error *err)
{
    const struct keptfile *f = t->f;
    if (ftruncate(t->fd, (off_t)f->file->listed->size) != 0 || fsync(t->fd) != 0)
        return glm_fail_errno(err, "%s: fsync", t->path);
    if (renameat2(AT_FDCWD, t->path, AT_FDCWD, f->path, RENAME_NOREPLACE) != 0
        && (errno != EINVAL || rename(t->path, f->path) != 0))
        return glm_fail_errno(err, "%s: rename from %s", f->path, t->path);
    return dio_sync_folder(t->k->folder, err);
}

int hubkeep_obtain(struct hubkeep *k, struct keptfile *f, struct glm_error *err)
{
    /* The last buffer may pass that number, and two fill meanwhile. */
    const uint64_t sync = hubnet_window(hub_net(k->o.hub)) - 3 * BUFFER;
    struct part t = {.k = k, .f = f, .fd = -1, .sync = sync};

    if (hubkeep_is_there(f, err) || err->code != GLM_OK)
        return (int)err->code;
    if (asprintf(&t.path, "%s/%s.part", work_path(k->work), f->file->listed->path) < 0)
        return glm_fail(err, GLM_ENOMEM, "%s: no memory", f->file->what);
    if (open_part(&t, err) == GLM_OK
        && (f->ranges != NULL ? fill_ranges : fill_whole)(&t, err) == GLM_OK)
        finish(&t, err);
    if (t.fd >= 0)
        close(t.fd);
    free(t.path);
    return (int)err->code;
}
