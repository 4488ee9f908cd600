/* Jobs in order, threads, a budget; copying, frame copying, recoding.
 *
 * Order matters twice. Packed shards are filled in manifest order, so a thread may wait in put for
 * an earlier job; as jobs start in order and none is held back, the earliest never waits. And a
 * recoded tensor's scales are written by the thread that finishes the last of its member's jobs. */
#include "convert/flow_inside.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static void trim(struct dio_buffer *b)
{
    if (b->size > FLOW_KEEP) {
        dio_free(b->data, b->size);
        *b = (struct dio_buffer){0};
    }
}

/* ---- one job ---------------------------------------------------------------------------------- */

static int reserve_digests(struct flow_thread *t, int64_t tiles, struct glm_error *err)
{
    const size_t need = (size_t)tiles * DIGEST_SIZE;

    if (t->digest_room >= need)
        return GLM_OK;
    free(t->digests);
    t->digests = malloc(need);
    t->digest_room = t->digests == NULL ? 0 : need;
    return t->digests == NULL ? glm_fail(err, GLM_ENOMEM, "no memory for tile digests")
                              : GLM_OK;
}

/* The recorded digests of the tiles under a rectangle, row-major. */
static void recorded_digests(const struct flow_source *s, int64_t tensor,
    const struct rect *at, unsigned char *out)
{
    const struct ckpt_tensor *t = &s->m->tensors[tensor];
    const struct rect tiles = tile_cover(&t->grid, at);

    for (int64_t e = tiles.lo[0]; e < tiles.hi[0]; e++)
        for (int64_t gr = tiles.lo[1]; gr < tiles.hi[1]; gr++) {
            const int64_t row = t->first_tile + tile_index(&t->grid, e, gr, tiles.lo[2]);
            const size_t size = (size_t)rect_len(&tiles, 2) * DIGEST_SIZE;
            memcpy(out, s->tiles + (size_t)row * DIGEST_SIZE, size);
            out += size;
        }
}

/* Whether every tile of the job is a frame of one chunk shape on both sides. */
static bool frames_pass(const struct flow *f, const struct job *j)
{
    const struct flow_source *s = f->source;
    const int64_t from = f->items[j->tensor].from;
    const struct tile_grid *g = &f->sink->m->tensors[j->tensor].grid;

    if (s->chunk_dims == NULL || f->sink->put_frames == NULL)
        return false;
    const struct rect tiles = tile_cover(g, &j->at);
    for (int64_t e = tiles.lo[0]; e < tiles.hi[0]; e++)
        for (int64_t gr = tiles.lo[1]; gr < tiles.hi[1]; gr++)
            for (int64_t gc = tiles.lo[2]; gc < tiles.hi[2]; gc++) {
                const struct rect tile = tile_rect(g, tile_index(g, e, gr, gc));
                int64_t a[RECT_AXES], b[RECT_AXES];
                if (!s->chunk_dims(s->ctx, from, &tile, a)
                    || !f->sink->chunk_dims(f->sink->ctx, j->tensor, &tile, b)
                    || memcmp(a, b, sizeof a) != 0)
                    return false;
            }
    return true;
}

static int copy_frames(
    struct flow *f, const struct job *j, struct flow_thread *t, struct glm_error *err)
{
    const struct flow_source *s = f->source;
    const int64_t from = f->items[j->tensor].from;
    const struct tile_grid *g = &f->sink->m->tensors[j->tensor].grid;
    const struct rect tiles = tile_cover(g, &j->at);
    const int64_t count = rect_count(&tiles);
    const size_t one =
        packer_bound((size_t)(g->tile[1] * g->tile[2]) * flow_element_of(s->m, from));
    struct writer_frame *frames = calloc((size_t)count, sizeof *frames);
    size_t used = 0;
    int64_t n = 0;

    if (frames == NULL)
        return glm_fail(err, GLM_ENOMEM, "no memory for %" PRId64 " frames", count);
    if (dio_reserve(&t->in, one * (size_t)count, err) != GLM_OK
        || reserve_digests(t, count, err) != GLM_OK)
        goto out;
    recorded_digests(s, from, &j->at, t->digests);
    for (int64_t e = tiles.lo[0]; e < tiles.hi[0]; e++)
        for (int64_t gr = tiles.lo[1]; gr < tiles.hi[1]; gr++)
            for (int64_t gc = tiles.lo[2]; gc < tiles.hi[2]; gc++, n++) {
                const struct rect tile = tile_rect(g, tile_index(g, e, gr, gc));
                frames[n].data = t->in.data + used;
                if (s->frame(s->ctx, from, &tile, t->in.data + used, one, &frames[n].size,
                        &frames[n].mask, err)
                    != GLM_OK)
                    goto out;
                used += frames[n].size;
            }
    f->sink->put_frames(f->sink->ctx, j->tensor, &j->at, frames, t->digests, err);
out:
    free(frames);
    return (int)err->code;
}

static int copy(
    struct flow *f, const struct job *j, struct flow_thread *t, struct glm_error *err)
{
    const struct flow_source *s = f->source;
    const struct ckpt_tensor *to = &f->sink->m->tensors[j->tensor];
    const int64_t from = f->items[j->tensor].from;
    const struct rect tiles = tile_cover(&to->grid, &j->at);
    unsigned char *data;
    bool known = false;

    if (reserve_digests(t, rect_count(&tiles), err) != GLM_OK)
        return (int)err->code;
    if (to->derived && f->sink->note != NULL && s->tiles != NULL) {
        recorded_digests(s, from, &j->at, t->digests);
        return f->sink->note(f->sink->ctx, j->tensor, &j->at, t->digests, err);
    }
    if (frames_pass(f, j))
        return copy_frames(f, j, t, err);
    const size_t size = (size_t)flow_bytes_of(s->m, from, &j->at);
    if (dio_reserve(&t->in, size + 2 * DIO_ALIGN, err) != GLM_OK
        || s->read(s->ctx, from, &j->at, &t->in, &data, t->digests, &known, t, err)
            != GLM_OK)
        return (int)err->code;
    /* What was read without a look at its digests keeps them: damage stays to be found. */
    if (!known && s->tiles != NULL) {
        recorded_digests(s, from, &j->at, t->digests);
        known = true;
    }
    if (to->derived && f->sink->note != NULL) {
        if (!known
            && !reader_hash_tiles(
                &to->grid, &j->at, flow_element_of(s->m, from), data, t->digests))
            return glm_fail(err, GLM_ENOMEM, "no memory to hash tiles");
        return f->sink->note(f->sink->ctx, j->tensor, &j->at, t->digests, err);
    }
    return f->sink->put(
        f->sink->ctx, j->tensor, &j->at, data, known ? t->digests : NULL, t, err);
}

/* Whether the job's tiles, and the scales it has a part in, are durable already. */
static bool job_done(const struct flow *f, const struct job *j)
{
    const struct manifest *m = f->sink->m;
    const int64_t scale =
        f->items[j->tensor].action == FLOW_RECODE ? m->tensors[j->tensor].scale : -1;

    if (!f->sink->has(f->sink->ctx, j->tensor, &j->at))
        return false;
    if (scale < 0)
        return true;
    struct rect whole = rect_whole(m->tensors[scale].grid.dims);
    whole.lo[0] = j->at.lo[0];
    whole.hi[0] = j->at.hi[0];
    return f->sink->has(f->sink->ctx, scale, &whole);
}

static int run_job(
    struct flow *f, struct job *j, struct flow_thread *t, struct glm_error *err)
{
    t->job = j - f->jobs;
    if (f->items[j->tensor].action == FLOW_COPY)
        copy(f, j, t, err);
    else
        recode_job(f->source, f->sink, &f->items[j->tensor], j->tensor, &j->at,
            recode_member_at(f->members[j->tensor], j->at.lo[0]), &j->error, t, err);
    trim(&t->in);
    trim(&t->out);
    trim(&t->aux);
    return (int)err->code;
}

/* ---- threads ---------------------------------------------------------------------------------- */

static size_t job_cost(const struct flow *f, const struct job *j)
{
    const struct flow_item *item = &f->items[j->tensor];
    const size_t in = (size_t)flow_bytes_of(f->source->m, item->from, &j->at);
    const size_t out = (size_t)flow_bytes_of(f->sink->m, j->tensor, &j->at);
    return item->action == FLOW_RECODE ? in + out : f->sink->whole_width ? 2 * out : out;
}

/* A job that the source hands out, when the budget has room for it. */
static struct job *take_fed(struct flow *f)
{
    struct glm_error err = {0};
    const int64_t number = f->source->feed->take(f->source->ctx, &err);

    pthread_mutex_lock(&f->lock);
    if (number < 0) {
        if (err.code != GLM_OK && f->failed_job < 0) {
            f->failed_job = f->job_count; /* any job's own failure tells more */
            f->error = err;
        }
        pthread_cond_broadcast(&f->room);
        pthread_mutex_unlock(&f->lock);
        return NULL;
    }
    struct job *j = &f->jobs[number];
    while (f->failed_job < 0 && f->in_flight > 0
        && f->in_flight + job_cost(f, j) > FLOW_BUDGET)
        pthread_cond_wait(&f->room, &f->lock);
    const bool failed = f->failed_job >= 0;
    if (!failed)
        f->in_flight += job_cost(f, j);
    pthread_mutex_unlock(&f->lock);
    if (failed)
        f->source->feed->done(f->source->ctx, number, false);
    return failed ? NULL : j;
}

/* The next job, when the budget has room for it; NULL when there is none or the run ends. */
static struct job *take_job(struct flow *f)
{
    struct job *j = NULL;

    if (f->source->feed != NULL && f->source->feed->take != NULL)
        return take_fed(f);
    pthread_mutex_lock(&f->lock);
    while (f->failed_job < 0 && f->next < f->job_count) {
        const int signal = glm_events_stop(f->events);
        if (signal != 0) {
            f->failed_job = f->next;
            glm_fail(&f->error, GLM_ESTOPPED,
                "stopped by signal %d; what is done is kept, the same command goes on",
                signal);
            f->error.sys_errno = signal;
            break;
        }
        struct job *candidate = &f->jobs[f->next];
        if (f->in_flight == 0 || f->in_flight + job_cost(f, candidate) <= FLOW_BUDGET) {
            j = candidate;
            f->next++;
            f->in_flight += job_cost(f, j);
            break;
        }
        pthread_cond_wait(&f->room, &f->lock);
    }
    pthread_mutex_unlock(&f->lock);
    return j;
}

/* Whether a job's failure is the one to tell of: the smallest job's, but a job that ended only
 * because another had failed (GLM_ESTOPPED) has nothing to tell. */
static bool tells_more(const struct flow *f, int64_t number, const struct glm_error *err)
{
    const bool idle = err->code == GLM_ESTOPPED, had_idle = f->error.code == GLM_ESTOPPED;

    if (f->failed_job < 0)
        return true;
    return idle == had_idle ? number < f->failed_job : had_idle;
}

static void job_ended(
    struct flow *f, const struct job *j, bool skipped, const struct glm_error *err)
{
    const uint64_t bytes = flow_job_writes(f, j);
    const bool noted = f->sink->m->tensors[j->tensor].derived && f->sink->note != NULL;
    const int64_t number = j - f->jobs;
    bool wake = false;

    pthread_mutex_lock(&f->lock);
    f->in_flight -= job_cost(f, j);
    if (err->code != GLM_OK) {
        if (tells_more(f, number, err)) {
            f->failed_job = number;
            f->error = *err;
        }
        wake = true;
    } else {
        f->done += bytes;
        if (skipped) {
            f->stats.skipped_bytes += bytes;
        } else if (!noted) { /* of a derived tensor only digests pass */
            f->stats.read_bytes += flow_job_reads(f, j);
            f->stats.written_bytes += bytes;
        }
        glm_events_progress(f->events, f->verb, f->done, f->total);
    }
    pthread_cond_broadcast(&f->room);
    pthread_mutex_unlock(&f->lock);
    if (wake && f->sink->fail != NULL)
        f->sink->fail(f->sink->ctx);
}

static void thread_clear(struct flow_thread *t)
{
    struct dio_buffer *all[] = {&t->in, &t->out, &t->aux, &t->wide, &t->back};

    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        dio_free(all[i]->data, all[i]->size);
    free(t->digests);
    reader_scratch_free(t->reader);
    writer_scratch_free(t->writer);
}

static void *work(void *arg)
{
    struct flow *f = arg;
    struct flow_thread t = {
        .reader = reader_scratch_new(), .writer = writer_scratch_new()};

    for (struct job *j; (j = take_job(f)) != NULL;) {
        struct glm_error err = {0};
        const bool skipped = job_done(f, j);
        if (t.reader == NULL || t.writer == NULL)
            glm_fail(&err, GLM_ENOMEM, "no memory for a thread's buffers");
        else if (!skipped)
            run_job(f, j, &t, &err);
        job_ended(f, j, skipped, &err);
        if (f->source->feed != NULL)
            f->source->feed->done(f->source->ctx, j - f->jobs, err.code == GLM_OK);
    }
    thread_clear(&t);
    return NULL;
}

static void run_threads(struct flow *f, int threads)
{
    pthread_t ids[1024];
    int n = 0;

    threads = threads < 1 ? 1 : threads > 1024 ? 1024 : threads;
    while (n < threads - 1 && pthread_create(&ids[n], NULL, work, f) == 0)
        n++;
    work(f);
    while (n > 0)
        pthread_join(ids[--n], NULL);
}

/* Members that are recoded need to know how many of their jobs will run. */
static int prepare_members(struct flow *f, struct glm_error *err)
{
    f->members = calloc((size_t)f->sink->m->tensor_count + 1, sizeof *f->members);
    if (f->members == NULL)
        return glm_fail(err, GLM_ENOMEM, "no memory for the plan");
    for (int64_t i = 0; i < f->job_count; i++) {
        const struct job *j = &f->jobs[i];
        if (f->items[j->tensor].action != FLOW_RECODE)
            continue;
        if (f->members[j->tensor] == NULL
            && recode_members_new(&f->members[j->tensor],
                   f->sink->m->tensors[j->tensor].grid.dims[0], err)
                != GLM_OK)
            return (int)err->code;
        if (!job_done(f, j))
            recode_member_expect(recode_member_at(f->members[j->tensor], j->at.lo[0]));
    }
    return GLM_OK;
}

/* ---- sources that hand out the jobs ----------------------------------------------------------- */

static bool job_written(void *flow, int64_t job)
{
    const struct flow *f = flow;
    return job_done(f, &f->jobs[job]);
}

static bool job_durable(void *flow, int64_t job)
{
    const struct flow *f = flow;
    const struct job *j = &f->jobs[job];
    return job_done(f, j) && f->sink->durable(f->sink->ctx, j->tensor, &j->at);
}

static int make_asks(struct flow *f, struct glm_error *err)
{
    if (f->asks == NULL)
        f->asks = calloc((size_t)f->job_count + 1, sizeof *f->asks);
    if (f->asks == NULL)
        return glm_fail(err, GLM_ENOMEM, "no memory for %" PRId64 " jobs", f->job_count);
    for (int64_t i = 0; i < f->job_count; i++) {
        struct job *j = &f->jobs[i];
        const struct flow_item *item = &f->items[j->tensor];
        f->asks[i] = (struct flow_ask){.tensor = item->from,
            .scale = item->action == FLOW_RECODE ? item->from_scale : -1,
            .at = j->at,
            .copied = item->action == FLOW_COPY,
            .done = job_done(f, j)};
    }
    return GLM_OK;
}

/* What is there already is counted here; the source hands out the rest. Without take all come by
 * in order, and are skipped then. */
static void count_done(struct flow *f)
{
    static const struct glm_error fine = {0};

    for (int64_t i = 0; f->source->feed->take != NULL && i < f->job_count; i++)
        if (f->asks[i].done) {
            f->in_flight += job_cost(f, &f->jobs[i]); /* taken away again at once */
            job_ended(f, &f->jobs[i], true, &fine);
        }
}

/* The tiles of jobs that were read wrong, and the scales they made, count as never written. */
static int forget_wrong(struct flow *f, int64_t *wrong, struct glm_error *err)
{
    struct glm_error *first = err;
    struct glm_error own = {0};

    *wrong = 0;
    for (int64_t i = 0; i < f->job_count && own.code == GLM_OK; i++) {
        const struct job *j = &f->jobs[i];
        if (!f->asks[i].again)
            continue;
        const int64_t scale = f->items[j->tensor].action == FLOW_RECODE
            ? f->sink->m->tensors[j->tensor].scale
            : -1;
        ++*wrong;
        f->sink->forget(f->sink->ctx, j->tensor, &j->at, &own);
        if (scale >= 0) {
            struct rect whole = rect_whole(f->sink->m->tensors[scale].grid.dims);
            whole.lo[0] = j->at.lo[0];
            whole.hi[0] = j->at.hi[0];
            f->sink->forget(f->sink->ctx, scale, &whole, &own);
        }
    }
    if (first->code == GLM_OK && own.code != GLM_OK)
        *first = own;
    return (int)first->code;
}

static void clear_members(struct flow *f)
{
    for (int64_t i = 0; f->members != NULL && i < f->sink->m->tensor_count; i++)
        recode_members_free(f->members[i], f->sink->m->tensors[i].grid.dims[0]);
    free(f->members);
    f->members = NULL;
}

static void uncount_wrong(struct flow *f)
{
    for (int64_t i = 0; i < f->job_count; i++)
        if (f->asks[i].again)
            f->done -= flow_job_writes(f, &f->jobs[i]);
}

/* The asks, after all that the source does not believe of an earlier run was forgotten. */
static int recall_asks(struct flow *f, struct glm_error *err)
{
    const struct flow_feed *feed = f->source->feed;
    int64_t wrong = 0;

    if (make_asks(f, err) != GLM_OK)
        return (int)err->code;
    const struct flow_jobs jobs = {
        f->asks, f->job_count, f->sink, job_written, job_durable, f};
    if (feed->recall != NULL
        && (feed->recall(f->source->ctx, &jobs, err) != GLM_OK
            || forget_wrong(f, &wrong, err) != GLM_OK))
        return (int)err->code;
    if (wrong > 0) {
        clear_members(f);
        if (prepare_members(f, err) == GLM_OK)
            make_asks(f, err);
    }
    if (err->code == GLM_OK)
        count_done(f);
    return (int)err->code;
}

/* Rounds, until no job has to be done anew. */
static int run_fed(struct flow *f, int threads, struct glm_error *err)
{
    const struct flow_feed *feed = f->source->feed;
    int64_t wrong = 0;

    if (recall_asks(f, err) != GLM_OK)
        return (int)err->code;
    for (bool first = true; first || wrong > 0; first = false) {
        if (!first) {
            clear_members(f);
            if (prepare_members(f, err) != GLM_OK || make_asks(f, err) != GLM_OK)
                return (int)err->code;
        }
        const struct flow_jobs jobs = {
            f->asks, f->job_count, f->sink, job_written, job_durable, f};
        if (feed->begin(f->source->ctx, &jobs, err) == GLM_OK)
            run_threads(f, threads);
        if (f->failed_job >= 0 && err->code == GLM_OK)
            *err = f->error;
        feed->end(f->source->ctx, err->code == GLM_OK, err);
        uncount_wrong(f);
        if (forget_wrong(f, &wrong, err) != GLM_OK)
            return (int)err->code;
    }
    return GLM_OK;
}

int flow_run(const struct flow_source *source, const struct flow_sink *sink,
    struct flow_item *items, int threads, const char *verb,
    const struct glm_events *events, struct flow_stats *stats, struct glm_error *err)
{
    struct flow f = {.source = source,
        .sink = sink,
        .items = items,
        .verb = verb,
        .events = events,
        .failed_job = -1};

    pthread_mutex_init(&f.lock, NULL);
    pthread_cond_init(&f.room, NULL);
    if (flow_make_jobs(&f, err) != GLM_OK || prepare_members(&f, err) != GLM_OK)
        goto out;
    if (source->feed != NULL)
        run_fed(&f, threads, err);
    else
        run_threads(&f, threads);
    if (f.failed_job >= 0 && err->code == GLM_OK)
        *err = f.error;
    else if (err->code == GLM_OK && source->unchanged != NULL)
        source->unchanged(source->ctx, err);
    for (int64_t i = 0; i < f.job_count;
         i++) /* job order: sums do not depend on threads */
        if (items[f.jobs[i].tensor].action == FLOW_RECODE)
            codec_error_add(&items[f.jobs[i].tensor].error, &f.jobs[i].error);
    *stats = f.stats;
out:
    clear_members(&f);
    free(f.asks);
    free(f.jobs);
    pthread_mutex_destroy(&f.lock);
    pthread_cond_destroy(&f.room);
    return (int)err->code;
}
