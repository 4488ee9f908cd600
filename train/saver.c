#include "train/saver.h"

#include <stdlib.h>

#include "train/clock.h"

int saver_beside(struct saver *s, const struct home *home, struct glm_error *err)
{
    return snapshot_new(&s->copy, s->state, home, err);
}

/* From a state that nobody changes to the end of its bytes on disk. */
static void write_state(struct saver *s, struct state *state)
{
    if (state_check(state, &s->err) != GLM_OK)
        glm_within(&s->err, "step %lld, nothing was saved", (long long)s->step);
    else if (state_save(state, &s->how, &s->err) != GLM_OK)
        glm_within(&s->err, "checkpoint of step %lld", (long long)s->step);
    s->seconds = clock_seconds() - s->start;
}

static void *write_copy(void *ctx)
{
    struct saver *const s = ctx;

    write_state(s, &s->copy->state);
    __atomic_store_n(&s->done, true, __ATOMIC_RELEASE);
    return NULL;
}

bool saver_done(const struct saver *s)
{
    return s->under_way && __atomic_load_n(&s->done, __ATOMIC_ACQUIRE);
}

static int begin(struct saver *s, struct glm_error *err)
{
    s->step = s->state->step;
    s->start = clock_seconds();
    s->err = (struct glm_error){0};
    s->done = false;
    if ((s->path = rundir_name(s->dir, s->step, err)) == NULL)
        return (int)err->code;
    s->how.path = s->path;
    s->under_way = true;
    return GLM_OK;
}

int saver_wait(struct saver *s, struct glm_error *err)
{
    if (!s->under_way)
        return GLM_OK;
    if (!s->joined)
        pthread_join(s->thread, NULL);
    s->under_way = s->joined = false;
    if (s->err.code != GLM_OK) {
        rundir_discard(s->dir, s->step);
        *err = s->err;
    } else if (rundir_committed(s->dir, s->step, s->keep_last, err) == GLM_OK
        && s->saved != NULL) {
        s->saved(s->ctx, s->path, s->seconds, s->waited);
    }
    free(s->path);
    s->path = NULL;
    return (int)err->code;
}

int saver_save(struct saver *s, struct glm_error *err)
{
    if (rundir_has(s->dir, s->state->step))
        return GLM_OK;
    if (begin(s, err) != GLM_OK)
        return (int)err->code;
    if (s->copy != NULL) {
        if (snapshot_take(s->copy, s->state, &s->err) == GLM_OK
            && pthread_create(&s->thread, NULL, write_copy, s) == 0) {
            s->waited = clock_seconds() - s->start;
            return GLM_OK;
        }
        s->joined = true; /* there is no thread */
        if (s->err.code != GLM_OK)
            return saver_wait(s, err);
    }
    write_state(s, s->state);
    s->joined = true;
    s->waited = s->seconds;
    return saver_wait(s, err);
}

void saver_close(struct saver *s)
{
    struct glm_error ignored = {0};

    saver_wait(s, &ignored);
    snapshot_free(s->copy);
    s->copy = NULL;
}
