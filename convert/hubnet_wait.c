/* A transfer that the caller waits for. */
#include <pthread.h>

#include "convert/hubnet.h"

struct wait {
    const struct hubnet_get *get;
    pthread_mutex_t lock;
    pthread_cond_t ended;
    bool done;
    struct glm_error err;
};

static size_t wait_data(
    void *ctx, uint64_t offset, const void *bytes, size_t n, struct glm_error *err)
{
    const struct wait *w = ctx;
    return w->get->data(w->get->ctx, offset, bytes, n, err);
}

static void wait_done(void *ctx, const struct glm_error *err)
{
    struct wait *w = ctx;
    pthread_mutex_lock(&w->lock);
    w->done = true;
    w->err = *err;
    pthread_cond_signal(&w->ended);
    pthread_mutex_unlock(&w->lock);
}

int hubnet_fetch(struct hubnet *net, const struct hubnet_get *get, struct glm_error *err)
{
    struct wait w = {.get = get};
    struct hubnet_get inner = *get;

    pthread_mutex_init(&w.lock, NULL);
    pthread_cond_init(&w.ended, NULL);
    inner.ctx = &w;
    inner.data = wait_data;
    inner.ready = NULL;
    inner.done = wait_done;
    hubnet_start(net, &inner);
    pthread_mutex_lock(&w.lock);
    while (!w.done)
        pthread_cond_wait(&w.ended, &w.lock);
    pthread_mutex_unlock(&w.lock);
    if (w.err.code != GLM_OK && err->code == GLM_OK)
        *err = w.err;
    pthread_cond_destroy(&w.ended);
    pthread_mutex_destroy(&w.lock);
    return (int)err->code;
}
