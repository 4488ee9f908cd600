#include "train/bands.h"

#include <pthread.h>
#include <stdlib.h>

#include "kernels/base/crew.h"
#include "train/state.h"

struct run {
    const struct bands *b;
    int64_t *first;               /* [tensors + 1]: the job of a tensor's first band */
    const struct kernels *device; /* NULL: all lies in the host's memory */
    size_t room;                  /* of the largest band on it */
    pthread_mutex_t copying;
};

struct own {
    const struct run *run;
    void *buf, *theirs;
};

static void stop(void *state)
{
    struct own *const o = state;

    if (o->buf != NULL)
        o->run->device->host_release(o->buf);
    if (o->theirs != NULL)
        o->run->b->stop(o->theirs);
    free(o);
}

static void *start(void *ctx, struct glm_error *err)
{
    const struct run *const r = ctx;
    struct own *const o = calloc(1, sizeof *o);

    if (o == NULL)
        return NULL;
    o->run = r;
    if (r->device == NULL || (o->buf = r->device->host_alloc(r->room, err)) != NULL) {
        if (r->b->start == NULL || (o->theirs = r->b->start(r->b->ctx)) != NULL)
            return o;
    }
    stop(o);
    return NULL;
}

static int64_t tensor_of(const struct run *r, int64_t job)
{
    int64_t low = 0, high = r->b->all->count;

    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        if (r->first[middle] <= job)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static int work(void *ctx, void *state, int64_t job, struct glm_error *err)
{
    struct run *const r = ctx;
    struct own *const o = state;
    const int64_t tensor = tensor_of(r, job);
    struct band b = {
        .tensor = tensor, .band = job - r->first[tensor], .t = &r->b->all->list[tensor]};

    b.grid = state_grid(b.t);
    b.at = state_band(&b.grid, b.band);
    const bool copied = !home_is_host(b.t->home);
    if (copied)
        pthread_mutex_lock(&r->copying);
    b.data = state_band_data(b.t, &b.grid, &b.at, o->buf, err);
    if (copied)
        pthread_mutex_unlock(&r->copying);
    return b.data != NULL ? r->b->work(r->b->ctx, o->theirs, &b, err) : (int)err->code;
}

static void count(struct run *r)
{
    const struct train_tensors *const all = r->b->all;

    for (int64_t i = 0; i < all->count; i++) {
        const struct train_tensor *const t = &all->list[i];
        const struct tile_grid g = state_grid(t);
        const bool wanted = r->b->wanted == NULL || r->b->wanted(t);
        r->first[i + 1] = r->first[i] + (wanted ? state_bands(&g) : 0);
        if (home_is_host(t->home) || !wanted)
            continue;
        r->device = t->home->k;
        if (state_band_room(t, &g) > r->room)
            r->room = state_band_room(t, &g);
    }
}

int bands_run(const struct bands *b, struct glm_error *err)
{
    struct run r = {.b = b};

    r.first = calloc((size_t)b->all->count + 1, sizeof *r.first);
    if (r.first == NULL)
        return glm_fail(err, GLM_ENOMEM, "no memory to look at %lld tensors",
            (long long)b->all->count);
    count(&r);
    const struct crew c = {.threads = b->threads,
        .count = r.first[b->all->count],
        .ctx = &r,
        .start = start,
        .stop = stop,
        .work = work};
    pthread_mutex_init(&r.copying, NULL);
    crew_run(&c, err);
    pthread_mutex_destroy(&r.copying);
    free(r.first);
    return (int)err->code;
}
