#include "kernels/base/crew.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

struct crew_run {
    const struct crew *c;
    pthread_mutex_t lock;
    int64_t next;      /* the next job to take */
    int64_t merged;    /* done() was called for all below */
    bool *finished;    /* [count] */
    int64_t failed_at; /* the lowest job that failed; -1: none */
    struct glm_error err;
};

static void crew_record(struct crew_run *r, int64_t job, const struct glm_error *e)
{
    if (r->failed_at >= 0 && r->failed_at <= job)
        return;
    r->failed_at = job;
    r->err = *e;
}

static int64_t crew_take(struct crew_run *r)
{
    pthread_mutex_lock(&r->lock);
    const int signal = glm_events_stop(r->c->events);
    if (signal != 0 && r->failed_at < 0) {
        struct glm_error e = {0};
        glm_fail(&e, GLM_ESTOPPED, "stopped by signal %d", signal);
        e.sys_errno = signal;
        crew_record(r, r->next, &e);
    }
    const int64_t job = r->failed_at < 0 && r->next < r->c->count ? r->next++ : -1;
    pthread_mutex_unlock(&r->lock);
    return job;
}

static void crew_finish(struct crew_run *r, int64_t job, const struct glm_error *e)
{
    pthread_mutex_lock(&r->lock);
    if (e->code != GLM_OK) {
        crew_record(r, job, e);
    } else {
        r->finished[job] = true;
        for (; r->merged < r->c->count && r->finished[r->merged]; r->merged++)
            if (r->c->done != NULL)
                r->c->done(r->c->ctx, r->merged);
    }
    pthread_mutex_unlock(&r->lock);
}

static void *crew_thread(void *arg)
{
    struct crew_run *r = arg;
    struct glm_error e = {0};
    void *state = NULL;
    if (r->c->start != NULL) {
        state = r->c->start(r->c->ctx, &e);
        if (state == NULL) {
            glm_fail(&e, GLM_ENOMEM, "out of memory");
            pthread_mutex_lock(&r->lock);
            crew_record(r, r->next, &e);
            pthread_mutex_unlock(&r->lock);
            return NULL;
        }
    }
    for (int64_t job; (job = crew_take(r)) >= 0;) {
        glm_error_clear(&e);
        r->c->work(r->c->ctx, state, job, &e);
        crew_finish(r, job, &e);
    }
    if (r->c->stop != NULL)
        r->c->stop(state);
    return NULL;
}

int crew_run(const struct crew *c, struct glm_error *err)
{
    if (c->count == 0)
        return GLM_OK;
    struct crew_run r = {.c = c, .failed_at = -1};
    const int64_t wanted = c->threads < 1 ? 1 : c->threads;
    const size_t threads = (size_t)(wanted < c->count ? wanted : c->count);
    pthread_t *ids = calloc(threads, sizeof *ids);
    size_t started = 0;
    r.finished = calloc((size_t)c->count, sizeof *r.finished);
    pthread_mutex_init(&r.lock, NULL);
    if (ids == NULL || r.finished == NULL) {
        glm_fail(err, GLM_ENOMEM, "out of memory for %lld jobs", (long long)c->count);
        goto out;
    }
    while (started + 1 < threads
        && pthread_create(&ids[started], NULL, crew_thread, &r) == 0)
        started++;
    crew_thread(&r); /* the caller works too, so one thread more or less never fails */
    for (size_t i = 0; i < started; i++)
        pthread_join(ids[i], NULL);
    if (r.failed_at >= 0 && err->code == GLM_OK)
        *err = r.err;
out:
    pthread_mutex_destroy(&r.lock);
    free(r.finished);
    free(ids);
    return err->code;
}
