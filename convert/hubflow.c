/* From the network into the sink without a second copy on disk, and resumable to the block.
 *
 * Three kinds of threads share the work: the one that moves bytes (hubnet.c) fills pieces; the
 * flow's own take full ones, put them through the file's digest in order and hand them to the sink;
 * a settler makes what the sink holds durable and writes down how far that is.
 *
 * What is durable when. The bytes themselves lie only in the checkpoint's shards, so a file's
 * progress is two facts that must agree: which tiles are in the shards, and the state of the file's
 * digest after just those bytes. Both stand in the journal of the unfinished checkpoint:
 *
 *     done <shard> <first row> <count>      tiles, after fdatasync of their shard   (ledger.h)
 *     hub <file> <state of the digest>      all bytes before state.at are in tiles of lines above
 *     hub <file> verified                   the digest was that of the list of files
 *     undo <shard> <first row> <count>      the digest was wrong: those tiles are void
 *     hub <file> reset                      and the file begins anew
 *
 * A state is written only after the sync that its bytes need, so a process killed between the two
 * lines fetches bytes again that the shards have already, never the other way round. The digest
 * stands at an end of a job, so no tile is half in it. At most a window of bytes of a connection is
 * received and not yet covered by a state; that is what a kill costs. Tiles that are done and covered by
 * no state are undone by the next run: their bytes come again, and only those that come then are in
 * the digest. A checkpoint is committed only when every file that was read whole is verified.
 *
 * Jobs ask for their own bytes alone. A model whose scales must be read beside its weights comes by
 * way of files (hubkeep.h), so that each byte is verified before it is used. */
#include "convert/hubflow.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "convert/hubflow_inside.h"
#include "convert/hubhash.h"

/* ---- buffers ---------------------------------------------------------------------------------- */

static size_t size_of(const struct hubpiece *p)
{
    return (size_t)(p->end - p->begin);
}

/* Lock held. */
void hubflow_give(struct hubflow *f, struct hubpiece *p)
{
    free(p->digests);
    p->digests = NULL;
    if (p->data != NULL)
        hubpool_give(&f->pool, p->data, p->room);
    p->data = NULL;
}

/* ---- the moving thread ------------------------------------------------------------------------ */

/* Lock held. What streams that have ended received and nothing has made durable yet. */
static uint64_t tails(const struct hubflow *f)
{
    uint64_t sum = 0;

    for (int i = 0; i < f->stream_count; i++) {
        const struct hubstream *s = &f->streams[i];
        if (s->received && s->examined < s->full)
            sum += s->pieces[s->full - 1].end - s->settled_at;
    }
    return sum;
}

/* Lock held. Whether the next piece of a stream may be begun: there is memory, and what a kill
 * would cost stays bounded, for a connection's stream and the one that it had before together. A job
 * whose result waits for a later one (scales of a matrix) cannot be settled alone; then there is
 * nothing to wait for. */
static bool has_room(struct hubstream *s)
{
    struct hubflow *f = s->flow;
    const struct hubpiece *p = &s->pieces[s->full];
    const uint64_t before = tails(f);
    const bool inside = p->end - s->settled_at + before <= f->window
        || (s->examined == s->full && before == 0);
    if (!inside && !s->waits) {
        s->waits = true;
        pthread_cond_signal(&f->due);
    }
    return inside && hubpool_has_room(&f->pool, size_of(p));
}

static bool stream_ready(void *ctx)
{
    struct hubstream *s = ctx;
    pthread_mutex_lock(&s->flow->lock);
    const bool room = s->flow->failed || s->filling != NULL || s->full == s->count
        || s->pieces[s->full].job == PIECE_SKIP || has_room(s);
    pthread_mutex_unlock(&s->flow->lock);
    return room;
}

/* Begins the next piece; false: no room now, or no memory (then *err). */
static bool begin_piece(struct hubstream *s, struct glm_error *err)
{
    struct hubflow *f = s->flow;
    pthread_mutex_lock(&f->lock);
    const bool room = has_room(s);
    if (room) {
        s->waits = false;
        s->filling =
            hubpool_take(&f->pool, size_of(&s->pieces[s->full]), &s->filling_room);
        if (s->filling == NULL)
            glm_fail(
                err, GLM_ENOMEM, "no memory for a buffer of %zu bytes", s->filling_room);
    }
    pthread_mutex_unlock(&f->lock);
    return room && s->filling != NULL;
}

static void end_piece(struct hubstream *s)
{
    struct hubflow *f = s->flow;
    pthread_mutex_lock(&f->lock);
    s->pieces[s->full].data = s->filling;
    s->pieces[s->full].room = s->filling_room;
    s->filling = NULL;
    s->full++;
    pthread_cond_signal(&f->arrived);
    pthread_mutex_unlock(&f->lock);
}

static size_t stream_data(
    void *ctx, uint64_t offset, const void *bytes, size_t n, struct glm_error *err)
{
    struct hubstream *s = ctx;
    size_t used = 0;
    (void)offset; /* bytes come in order, from where the transfer was asked to begin */
    while (used < n) {
        const struct hubpiece *p = &s->pieces[s->full];
        if (s->filling == NULL && p->job != PIECE_SKIP && !begin_piece(s, err))
            return err->code != GLM_OK ? HUBNET_ABORT : used;
        const uint64_t left = p->end - s->got;
        const size_t k = n - used < left ? n - used : (size_t)left;
        if (s->filling != NULL)
            memcpy(s->filling + (s->got - p->begin), (const char *)bytes + used, k);
        s->got += k;
        used += k;
        if (s->got == p->end)
            end_piece(s);
    }
    return used;
}

static void stream_done(void *ctx, const struct glm_error *err);

/* Lock held: fetches the pieces of a stream that lie end to end from its next one on. */
static void start_run(struct hubstream *s)
{
    int64_t last = s->full;
    while (last + 1 < s->count && s->pieces[last + 1].begin == s->pieces[last].end)
        last++;
    s->got = s->pieces[s->full].begin;
    const struct hubnet_get get = {.what = s->file->what,
        .url = s->file->url,
        .from = s->got,
        .to = s->pieces[last].end,
        .size = s->file->listed->size,
        .digest = s->file->listed->digest,
        .link = &s->file->link,
        .ctx = s,
        .data = stream_data,
        .ready = stream_ready,
        .done = stream_done};
    hubnet_start(hub_net(s->flow->o.hub), &get);
}

/* Lock held: starts streams while connections are free. */
static void start_streams(struct hubflow *f)
{
    while (
        !f->failed && f->active < f->o.connections && f->next_stream < f->stream_count) {
        struct hubstream *s = &f->streams[f->next_stream++];
        if (s->count == 0) { /* only the comparison of its digest is left */
            s->received = true;
            continue;
        }
        s->active = true;
        f->active++;
        start_run(s);
    }
}

static void stream_done(void *ctx, const struct glm_error *err)
{
    struct hubstream *s = ctx;
    struct hubflow *f = s->flow;
    pthread_mutex_lock(&f->lock);
    if (err->code != GLM_OK)
        hubflow_fail(f, err);
    if (err->code == GLM_OK && s->full < s->count && !f->failed) {
        start_run(s);
    } else {
        s->active = false;
        s->received = s->full == s->count;
        f->active--;
        start_streams(f);
    }
    pthread_cond_broadcast(&f->arrived);
    pthread_cond_signal(&f->due);
    pthread_mutex_unlock(&f->lock);
}

/* ---- the flow's threads ----------------------------------------------------------------------- */

/* Lock held. The first failure is told; one that only follows from a stop tells nothing. */
void hubflow_fail(struct hubflow *f, const struct glm_error *err)
{
    if (f->error.code == GLM_OK
        || (f->error.code == GLM_ESTOPPED && f->error.sys_errno == 0))
        f->error = *err;
    f->failed = true;
    pthread_cond_broadcast(&f->arrived);
    pthread_cond_signal(&f->due);
}

/* Lock held: after pieces[taken - 1] went into the digest. */
static void mark(struct hubstream *s)
{
    const uint64_t last =
        s->mark_count > 0 ? s->marks[s->mark_count - 1].sum.at : s->settled_at;
    if (s->taken < s->count && s->sum.at - last < HUBFLOW_MARK)
        return;
    if (s->mark_count == HUBFLOW_MARKS)
        s->mark_count--;
    s->marks[s->mark_count++] = (struct hubmark){s->taken, s->sum};
}

/* A piece into the file's digest, and with it its tiles' where those will be asked for. */
static void hash_piece(struct hubstream *s, struct hubpiece *p)
{
    struct hubflow *f = s->flow;
    const struct flow_ask *ask = p->job >= 0 ? &f->asks[p->job] : NULL;
    int32_t file;
    uint64_t begin, end;

    if (ask != NULL && ask->copied
        && hf_reader_extent(f->o.r, ask->tensor, &ask->at, &file, &begin, &end)) {
        const struct ckpt_tensor *t = &f->reads.m->tensors[ask->tensor];
        const struct rect tiles = tile_cover(&t->grid, &ask->at);
        p->digests = malloc((size_t)rect_count(&tiles) * DIGEST_SIZE);
        if (p->digests != NULL
            && hubhash(&s->sum, &t->grid, &ask->at, glm_dtype_size(t->dtype), p->data,
                p->digests))
            return;
        free(p->digests);
        p->digests = NULL;
    }
    hubsum_update(&s->sum, p->data, (size_t)(p->end - p->begin));
}

/* Lock held, and given back for the digest. The next full piece of a stream, -1 if it was filler. */
static int64_t take_piece(struct hubstream *s)
{
    struct hubflow *f = s->flow;
    struct hubpiece *p = &s->pieces[s->taken];
    if (s->whole) {
        s->hashing = true;
        pthread_mutex_unlock(&f->lock);
        hash_piece(s, p);
        pthread_mutex_lock(&f->lock);
        s->hashing = false;
    }
    s->taken++;
    if (s->whole)
        mark(s);
    pthread_cond_signal(&f->arrived); /* the next piece of this stream can be taken */
    if (p->job >= 0)
        return p->job;
    hubflow_give(f, p);
    p->processed = true;
    return -1;
}

/* Lock held. A stream with a piece that can be taken; NULL, and whether one may come. */
static struct hubstream *find_stream(struct hubflow *f, bool *more)
{
    *more = f->next_stream < f->stream_count || f->active > 0;
    for (int i = 0; i < f->stream_count; i++) {
        struct hubstream *s = &f->streams[(f->turn + i) % f->stream_count];
        if (s->taken == s->full)
            continue;
        if (!s->hashing) {
            f->turn = (f->turn + i + 1) % f->stream_count;
            return s;
        }
        *more = true;
    }
    return NULL;
}

static void wait_a_while(pthread_cond_t *cond, pthread_mutex_t *lock)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    t.tv_nsec += 100000000;
    t.tv_sec += t.tv_nsec / 1000000000;
    t.tv_nsec %= 1000000000;
    pthread_cond_timedwait(cond, lock, &t);
}

static int stopped(const struct hubflow *f, struct glm_error *err)
{
    const int signal = glm_events_stop(f->o.events);
    if (signal == 0)
        return GLM_OK;
    glm_fail(err, GLM_ESTOPPED,
        "stopped by signal %d; what is done is kept, the same command goes on", signal);
    err->sys_errno = signal;
    return (int)err->code;
}

static int64_t feed_take(void *ctx, struct glm_error *err)
{
    struct hubflow *f = ctx;
    int64_t job = -1;
    bool more = true;

    pthread_mutex_lock(&f->lock);
    while (job < 0 && more) {
        struct glm_error halt = {0};
        if (!f->failed && stopped(f, &halt) != GLM_OK)
            hubflow_fail(f, &halt);
        if (f->failed) {
            if (f->error.code != GLM_OK)
                *err = f->error;
            break;
        }
        struct hubstream *s = find_stream(f, &more);
        if (s != NULL) {
            job = take_piece(s);
            more = true;
            hubnet_wake(hub_net(f->o.hub));
        } else if (f->local_next < f->local_count) {
            job = f->local[f->local_next++];
        } else if (more) {
            wait_a_while(&f->arrived, &f->lock);
        }
    }
    pthread_mutex_unlock(&f->lock);
    return job;
}

static void feed_done(void *ctx, int64_t job, bool good)
{
    struct hubflow *f = ctx;
    const struct hubplace *at = &f->places[job];

    pthread_mutex_lock(&f->lock);
    if (!good)
        f->failed = true; /* the flow has the reason */
    if (at->stream >= 0) {
        struct hubpiece *p = &f->streams[at->stream].pieces[at->piece];
        hubflow_give(f, p);
        p->processed = good;
        if (hubflow_settle_due(f))
            pthread_cond_signal(&f->due);
    }
    pthread_cond_broadcast(&f->arrived);
    pthread_mutex_unlock(&f->lock);
    hubnet_wake(hub_net(f->o.hub));
}

/* The job's own bytes are at hand, and jobs ask for no others (hubkeep.h is for those that do). */
static int feed_read(void *ctx, int64_t tensor, const struct rect *at,
    struct dio_buffer *buf, unsigned char **data, unsigned char *digests, bool *known,
    struct flow_thread *t, struct glm_error *err)
{
    struct hubflow *f = ctx;
    int32_t file;
    uint64_t begin, end;

    assert(f->asks[t->job].tensor == tensor && rect_equal(&f->asks[t->job].at, at));
    *known = false;
    const bool all = hf_reader_extent(f->o.r, tensor, at, &file, &begin, &end);
    if (hub_find(f->o.hub, f->s->files[file].name)->local != NULL)
        return f->reads.read(f->reads.ctx, tensor, at, buf, data, digests, known, t, err);
    *data = buf->data;
    const struct hubplace *place = &f->places[t->job];
    const struct hubpiece *p = &f->streams[place->stream].pieces[place->piece];
    if (p->digests != NULL) {
        const struct rect tiles = tile_cover(&f->reads.m->tensors[tensor].grid, at);
        memcpy(digests, p->digests, (size_t)rect_count(&tiles) * DIGEST_SIZE);
        *known = true;
    }
    if (all)
        *data = p->data;
    else
        hf_reader_pick(f->o.r, tensor, at, p->data, buf->data);
    return GLM_OK;
}

/* ---- a round ---------------------------------------------------------------------------------- */

static void tell_partial(struct hubflow *f)
{
    char note[256];
    int n = 0;
    for (int i = 0; i < f->stream_count; i++)
        n += !f->streams[i].whole;
    if (n == 0)
        return;
    snprintf(note, sizeof note,
        "%d of %" PRId64
        " files are read in part only, or the hub lists no digest of them, so "
        "what came cannot be compared",
        n, f->s->file_count);
    glm_events_note(f->o.events, note);
}

static int feed_recall(void *ctx, const struct flow_jobs *jobs, struct glm_error *err)
{
    struct hubflow *f = ctx;

    f->asks = jobs->asks;
    f->ask_count = jobs->count;
    f->sink = jobs->sink;
    if (hub_sign(f->o.hub, f->sink, err) != GLM_OK)
        return (int)err->code;
    return hubflow_recall(f, err);
}

static int feed_begin(void *ctx, const struct flow_jobs *jobs, struct glm_error *err)
{
    struct hubflow *f = ctx;
    const bool first = f->written == NULL;

    f->asks = jobs->asks;
    f->ask_count = jobs->count;
    f->sink = jobs->sink;
    f->written = jobs->written;
    f->written_ctx = jobs->flow;
    f->next_stream = f->active = f->turn = 0;
    f->failed = f->ending = false;
    glm_error_clear(&f->error);
    if (hubflow_plan(f, err) != GLM_OK)
        return (int)err->code;
    if (first)
        tell_partial(f);
    if (pthread_create(&f->settler, NULL, hubflow_settler, f) != 0)
        return glm_fail(err, GLM_ENOMEM, "%s: no thread to settle", f->s->dir);
    f->settling = true;
    pthread_mutex_lock(&f->lock);
    start_streams(f);
    pthread_mutex_unlock(&f->lock);
    return GLM_OK;
}

/* A file whose digest is not the listed one: its jobs are done anew, once. */
static int judge_wrong(struct hubflow *f, struct hubstream *s, struct glm_error *err)
{
    struct hubstate *state = &f->states[s->no];
    char line[64], hex[HUBSUM_HEX], note[1024];

    for (int64_t i = 0; i < f->ask_count; i++) {
        int32_t file;
        uint64_t begin, end;
        hf_reader_extent(f->o.r, f->asks[i].tensor, &f->asks[i].at, &file, &begin, &end);
        f->asks[i].again = f->asks[i].again || file == s->no;
    }
    snprintf(line, sizeof line, "hub %d reset\n", (int)s->no);
    f->sink->journal(f->sink->ctx, line, err);
    hubsum_hex(&s->sum, hex);
    *state = (struct hubstate){.wrong = state->wrong + 1};
    if (state->wrong > 1)
        return glm_fail(err, GLM_EIO,
            "%s: twice its bytes have the digest %s, the hub lists %s: what comes is not "
            "what was published. Nothing of it is kept",
            s->file->what, hex, s->file->listed->digest);
    snprintf(note, sizeof note,
        "%s: its bytes have the digest %s, the hub lists %s; it is fetched once more",
        s->file->what, hex, s->file->listed->digest);
    glm_events_note(f->o.events, note);
    return (int)err->code;
}

static int feed_end(void *ctx, bool good, struct glm_error *err)
{
    struct hubflow *f = ctx;
    struct glm_error late = {0};

    pthread_mutex_lock(&f->lock);
    if (!good) {
        f->failed = true;
        hubnet_stop(hub_net(f->o.hub));
    }
    while (f->active > 0)
        wait_a_while(&f->arrived, &f->lock);
    f->ending = true;
    pthread_cond_signal(&f->due);
    pthread_mutex_unlock(&f->lock);
    if (f->settling)
        pthread_join(f->settler, NULL);
    f->settling = false;
    /* Also after a failure: what came before it need not come again. */
    if (f->streams != NULL && f->places != NULL)
        hubflow_settle(f, &late);
    if (err->code == GLM_OK && f->error.code != GLM_OK)
        *err = f->error;
    if (err->code == GLM_OK && late.code != GLM_OK)
        *err = late;
    for (int i = 0; i < f->stream_count; i++) {
        struct hubstream *s = &f->streams[i];
        if (s->wrong)
            judge_wrong(f, s, err);
        else if (err->code == GLM_OK && s->whole && !s->verified)
            glm_fail(err, GLM_EIO, "%s: ended at byte %" PRIu64 " and was not verified",
                s->file->what, s->sum.at);
    }
    hubflow_plan_clear(f);
    return (int)err->code;
}

/* ---- the door --------------------------------------------------------------------------------- */

int hubflow_open(
    struct hubflow **out, const struct hubflow_options *o, struct glm_error *err)
{
    struct hubflow *f = calloc(1, sizeof *f);

    *out = NULL;
    if (f != NULL) {
        f->o = *o;
        f->pool.most = HUBFLOW_POOL;
        f->window = hubnet_window(hub_net(o->hub));
        f->s = hf_reader_model(o->r);
        f->reads = hf_reader_source(o->r);
        f->states = calloc((size_t)f->s->file_count + 1, sizeof *f->states);
        pthread_mutexattr_t
            again; /* a request that cannot be made fails under the lock */
        pthread_mutexattr_init(&again);
        pthread_mutexattr_settype(&again, PTHREAD_MUTEX_RECURSIVE);
        pthread_mutex_init(&f->lock, &again);
        pthread_mutexattr_destroy(&again);
        pthread_cond_init(&f->arrived, NULL);
        pthread_cond_init(&f->due, NULL);
    }
    if (f == NULL || f->states == NULL) {
        hubflow_close(f);
        return glm_fail(err, GLM_ENOMEM, "no memory for a download");
    }
    *out = f;
    return GLM_OK;
}

struct flow_source hubflow_source(struct hubflow *f)
{
    static const struct flow_feed feed = {
        feed_recall, feed_begin, feed_take, feed_done, feed_end};
    return (struct flow_source){
        .m = f->reads.m, .ctx = f, .read = feed_read, .place = NULL, .feed = &feed};
}

void hubflow_close(struct hubflow *f)
{
    if (f == NULL)
        return;
    hubflow_plan_clear(f);
    hubpool_clear(&f->pool);
    free(f->states);
    pthread_mutex_destroy(&f->lock);
    pthread_cond_destroy(&f->arrived);
    pthread_cond_destroy(&f->due);
    free(f);
}
