#include "kernels/cpu/pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

/* Operations follow each other closely, so a waiting thread looks SPINS times, then looks and gives
 * way to others YIELDS times (a third of a millisecond, if there is none), then sleeps. Giving way
 * matters when two threads of a pool are on one processor: each is ready to run while the other
 * does, so the kernel moves one to a processor that has come free. If the one that waits sleeps at
 * once, the kernel sees a single runnable thread there and leaves both where they are. */
enum { SPINS = 2000, YIELDS = 1000, MAX_THREADS = 1024 };

struct worker {
    glm_stream pool;
    pthread_t thread;
    int id;
    bool used;
};

struct block {
    struct block *next;
    void *memory;
    size_t size;
    bool busy;
};

struct glm_stream_ {
    int threads;           /* the caller is thread 0 */
    struct worker *worker; /* [threads]; worker[0].thread is not used */

    pthread_mutex_t lock;
    pthread_cond_t wake, done;
    atomic_uint round;  /* a new number: there is work */
    atomic_int running; /* threads besides the caller that are not done with this round */
    bool stop;

    /* The work of this round. */
    pool_fn *fn;
    const void *ctx;
    int64_t n, grain, ranges;
    /* ranges 0..threads-1 belong to their thread, the rest to who comes */
    atomic_llong next;

    struct block *blocks; /* scratch; under scratch_lock */
    pthread_mutex_t scratch_lock;
};

/* The look of number i was in vain. */
static void pause_briefly(int i)
{
    if (i >= SPINS)
        sched_yield();
#if defined(__x86_64__)
    else
        __builtin_ia32_pause();
#endif
}

static void run_range(struct worker *w, int64_t range)
{
    const glm_stream p = w->pool;
    const int64_t begin = range * p->grain;
    const int64_t left = p->n - begin;

    w->used = true;
    p->fn(p->ctx, begin, begin + (left < p->grain ? left : p->grain));
}

static void run_round(struct worker *w)
{
    const glm_stream p = w->pool;

    if (w->id >= p->ranges)
        return;
    run_range(w, w->id);
    for (;;) {
        const int64_t range =
            atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed);
        if (range >= p->ranges)
            return;
        run_range(w, range);
    }
}

static unsigned wait_for_round(glm_stream p, unsigned seen)
{
    unsigned now;

    for (int i = 0; i < SPINS + YIELDS; i++) {
        if ((now = atomic_load(&p->round)) != seen)
            return now;
        pause_briefly(i);
    }
    pthread_mutex_lock(&p->lock);
    while ((now = atomic_load(&p->round)) == seen)
        pthread_cond_wait(&p->wake, &p->lock);
    pthread_mutex_unlock(&p->lock);
    return now;
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    const glm_stream p = w->pool;
    unsigned seen = 0;

    for (;;) {
        seen = wait_for_round(p, seen);
        if (p->stop)
            return NULL;
        run_round(w);
        if (atomic_fetch_sub(&p->running, 1) == 1) {
            pthread_mutex_lock(&p->lock);
            pthread_cond_signal(&p->done);
            pthread_mutex_unlock(&p->lock);
        }
    }
}

static void start_round(glm_stream p)
{
    atomic_store(&p->running, p->threads - 1);
    pthread_mutex_lock(&p->lock);
    atomic_fetch_add(&p->round, 1);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
}

static void wait_until_done(glm_stream p)
{
    for (int i = 0; i < SPINS + YIELDS; i++) {
        if (atomic_load(&p->running) == 0)
            return;
        pause_briefly(i);
    }
    pthread_mutex_lock(&p->lock);
    while (atomic_load(&p->running) != 0)
        pthread_cond_wait(&p->done, &p->lock);
    pthread_mutex_unlock(&p->lock);
}

glm_stream pool_new(int threads, struct glm_error *err)
{
    glm_stream p = NULL;
    int code = 0;

    if (threads < 1 || threads > MAX_THREADS) {
        glm_fail(err, GLM_EUSAGE, "threads: %d, expected 1 to %d", threads, MAX_THREADS);
        return NULL;
    }
    p = calloc(1, sizeof *p);
    struct worker *workers = calloc((size_t)threads, sizeof *workers);
    if (p == NULL || workers == NULL) {
        free(p);
        free(workers);
        glm_fail(err, GLM_ENOMEM, "no memory for a pool of %d threads", threads);
        return NULL;
    }
    p->worker = workers;
    pthread_mutex_init(&p->lock, NULL);
    pthread_mutex_init(&p->scratch_lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    pthread_cond_init(&p->done, NULL);
    p->worker[0] = (struct worker){.pool = p};
    for (p->threads = 1; p->threads < threads; p->threads++) {
        struct worker *w = &p->worker[p->threads];
        *w = (struct worker){.pool = p, .id = p->threads};
        if ((code = pthread_create(&w->thread, NULL, worker_main, w)) != 0) {
            glm_fail(err, GLM_ENOMEM, "thread %d of %d cannot be started (error %d)",
                p->threads + 1, threads, code);
            pool_free(p);
            return NULL;
        }
    }
    return p;
}

void pool_free(glm_stream p)
{
    if (p == NULL)
        return;
    p->stop = true;
    start_round(p);
    for (int i = 1; i < p->threads; i++)
        pthread_join(p->worker[i].thread, NULL);
    while (p->blocks != NULL) {
        struct block *b = p->blocks;
        p->blocks = b->next;
        free(b->memory);
        free(b);
    }
    pthread_mutex_destroy(&p->lock);
    pthread_mutex_destroy(&p->scratch_lock);
    pthread_cond_destroy(&p->wake);
    pthread_cond_destroy(&p->done);
    free(p->worker);
    free(p);
}

int pool_threads(glm_stream p)
{
    return p == NULL ? 1 : p->threads;
}

int pool_used(glm_stream p)
{
    int used = 0;

    for (int i = 0; p != NULL && i < p->threads; i++)
        used += p->worker[i].used;
    return used;
}

void pool_for(glm_stream p, int64_t n, int64_t grain, pool_fn *fn, const void *ctx)
{
    if (n <= 0)
        return;
    if (grain < 1)
        grain = 1;
    const int64_t ranges = (n - 1) / grain + 1;
    if (p == NULL || p->threads == 1 || ranges == 1) {
        for (int64_t begin = 0; begin < n; begin += grain)
            fn(ctx, begin, n - begin < grain ? n : begin + grain);
        if (p != NULL)
            p->worker[0].used = true;
        return;
    }
    p->fn = fn;
    p->ctx = ctx;
    p->n = n;
    p->grain = grain;
    p->ranges = ranges;
    atomic_store(&p->next, p->threads);
    start_round(p);
    run_round(&p->worker[0]);
    wait_until_done(p);
}

void pool_each(glm_stream p, int64_t n, int64_t grain, pool_fn *fn, const void *ctx)
{
    enum { PIECES = 4 }; /* a thread that is held up costs the others little */
    const int64_t even = pool_threads(p) == 1 ? n : n / (PIECES * pool_threads(p));

    pool_for(p, n, even > grain ? even : grain, fn, ctx);
}

/* The smallest free block that is large enough, or NULL. */
static struct block *free_block(glm_stream p, size_t bytes)
{
    struct block *best = NULL;

    for (struct block *b = p->blocks; b != NULL; b = b->next) {
        if (!b->busy && b->size >= bytes && (best == NULL || b->size < best->size))
            best = b;
    }
    return best;
}

static void *new_memory(size_t bytes, struct glm_error *err)
{
    enum { ALIGN = 64 };
    void *memory = bytes > SIZE_MAX - ALIGN
        ? NULL
        : aligned_alloc(ALIGN, (bytes + ALIGN) / ALIGN * ALIGN);

    if (memory == NULL)
        glm_fail(err, GLM_ENOMEM, "no memory: %zu bytes of scratch", bytes);
    return memory;
}

void *pool_scratch(glm_stream p, size_t bytes, struct glm_error *err)
{
    if (p == NULL)
        return new_memory(bytes, err);
    pthread_mutex_lock(&p->scratch_lock);
    struct block *b = free_block(p, bytes);
    if (b == NULL && (b = calloc(1, sizeof *b)) != NULL) {
        b->size = bytes;
        b->next = p->blocks;
        p->blocks = b;
    }
    if (b != NULL && b->memory == NULL)
        b->memory = new_memory(b->size, err);
    void *memory = b == NULL ? NULL : b->memory;
    if (b != NULL && memory == NULL)
        b->size = 0;
    else if (b != NULL)
        b->busy = true;
    pthread_mutex_unlock(&p->scratch_lock);
    if (b == NULL)
        glm_fail(err, GLM_ENOMEM, "no memory: %zu bytes of scratch", bytes);
    return memory;
}

void pool_scratch_free(glm_stream p, void *memory)
{
    if (p == NULL) {
        free(memory);
        return;
    }
    pthread_mutex_lock(&p->scratch_lock);
    for (struct block *b = p->blocks; b != NULL && memory != NULL; b = b->next) {
        if (b->memory == memory)
            b->busy = false;
    }
    pthread_mutex_unlock(&p->scratch_lock);
}
