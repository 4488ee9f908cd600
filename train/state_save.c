/* A state into a checkpoint, by several threads: each takes the next band of tiles, hashes it and
 * writes it. What is written depends on the state alone. */
#include "train/state.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "kernels/base/crew.h"

static struct manifest *plan(
    const struct state *s, const struct state_save *o, struct glm_error *err)
{
    const struct volumes_options v = {.shard_size = o->shard_size};
    struct manifest *m = manifest_new(s->params->table);
    struct placement *p;

    if (m == NULL) {
        glm_fail(err, GLM_ENOMEM, "no memory for the plan");
        return NULL;
    }
    m->without_mtp = o->without_mtp;
    for (int64_t i = 0; i < s->tensors.count; i++) {
        const struct train_tensor *t = &s->tensors.list[i];
        struct ckpt_tensor *c = manifest_add_tensor(
            m, t->name, t->section, t->dtype, t->shape, t->rank, t->stack, t->entry);
        if (c == NULL) {
            glm_fail(err, GLM_ENOMEM, "no memory for the plan");
            goto out;
        }
        c->derived = t->derived;
    }
    if (origin_apply(o->origin, m, err) == GLM_OK && manifest_index(m, err) == GLM_OK
        && placement_init(&p, s->params->table, o->topology, err) == GLM_OK)
        volumes_plan(m, p, &v, err);
out:
    if (err->code == GLM_OK)
        return m;
    manifest_free(m);
    return NULL;
}

/* ---- the bands, over the threads -------------------------------------------------------------- */

struct saving {
    const struct state *s;
    struct writer *w;
    int64_t *first;         /* [tensors + 1]: the job of a tensor's first band */
    pthread_mutex_t device; /* one thread at a time copies from it */
};

struct saver { /* a thread's own */
    struct writer_scratch *scratch;
    void *buf;
};

static void stop(void *state)
{
    struct saver *const t = state;

    writer_scratch_free(t->scratch);
    free(t->buf);
    free(t);
}

static void *start(void *ctx, struct glm_error *err)
{
    const struct saving *const v = ctx;
    struct saver *const t = calloc(1, sizeof *t);

    if (t == NULL)
        return NULL;
    t->scratch = writer_scratch_new();
    if (state_band_buf(&v->s->tensors, &t->buf, err) == GLM_OK && t->scratch != NULL)
        return t;
    stop(t);
    return NULL;
}

static int64_t tensor_of(const struct saving *v, int64_t job)
{
    int64_t low = 0, high = v->s->tensors.count;

    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        if (v->first[middle] <= job)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* A derived weight is not stored: its digests are. */
static int note(const struct saving *v, int64_t tensor, const struct tile_grid *g,
    const struct rect *at, const unsigned char *data, struct glm_error *err)
{
    const struct train_tensor *const t = &v->s->tensors.list[tensor];
    unsigned char *const digests = malloc((size_t)g->count[2] * DIGEST_SIZE);

    if (digests == NULL)
        return glm_fail(err, GLM_ENOMEM, "%s: no memory for digests", t->name);
    reader_hash_tiles(g, at, glm_dtype_size(t->dtype), data, digests);
    writer_note(v->w, tensor, at, digests, err);
    free(digests);
    return (int)err->code;
}

static int put(void *ctx, void *state, int64_t job, struct glm_error *err)
{
    struct saving *const v = ctx;
    const struct saver *const own = state;
    const int64_t tensor = tensor_of(v, job);
    const struct train_tensor *const t = &v->s->tensors.list[tensor];
    const struct tile_grid g = state_grid(t);
    const struct rect at = state_band(&g, job - v->first[tensor]);

    pthread_mutex_lock(&v->device);
    const unsigned char *const data = state_band_data(t, &g, &at, own->buf, err);
    pthread_mutex_unlock(&v->device);
    if (data == NULL)
        return (int)err->code;
    if (t->derived)
        return note(v, tensor, &g, &at, data, err);
    return writer_put(v->w, tensor, &at, data, NULL, own->scratch, err);
}

static int put_all(
    const struct state *s, struct writer *w, int threads, struct glm_error *err)
{
    const int64_t n = s->tensors.count;
    struct saving v = {.s = s, .w = w, .first = calloc((size_t)n + 1, sizeof *v.first)};

    if (v.first == NULL)
        return glm_fail(err, GLM_ENOMEM, "no memory to save %lld tensors", (long long)n);
    pthread_mutex_init(&v.device, NULL);
    for (int64_t i = 0; i < n; i++) {
        const struct tile_grid g = state_grid(&s->tensors.list[i]);
        v.first[i + 1] = v.first[i] + state_bands(&g);
    }
    const struct crew c = {.threads = threads,
        .count = v.first[n],
        .ctx = &v,
        .start = start,
        .stop = stop,
        .work = put};
    crew_run(&c, err);
    pthread_mutex_destroy(&v.device);
    free(v.first);
    return (int)err->code;
}

/* ---- the save --------------------------------------------------------------------------------- */

static uint64_t need(const struct manifest *m)
{
    uint64_t n = (uint64_t)m->tile_count * DIGEST_SIZE + (1 << 20);

    for (int64_t i = 0; i < m->piece_count; i++)
        n += (uint64_t)rect_count(&m->pieces[i].at)
            * glm_dtype_size(m->tensors[m->pieces[i].tensor].dtype);
    for (int64_t i = 0; i < m->file_count; i++)
        n += m->files[i].bytes;
    return n;
}

/* Nothing goes on from the partial of another save: its plan is this call's alone. */
static void only_once(unsigned char out[DIGEST_SIZE])
{
    struct timespec now;
    char text[128];

    clock_gettime(CLOCK_REALTIME, &now);
    const int n = snprintf(text, sizeof text, "save %ld %lld %ld", (long)getpid(),
        (long long)now.tv_sec, now.tv_nsec);
    digest_of(text, (size_t)n, out);
}

int state_save(struct state *s, const struct state_save *o, struct glm_error *err)
{
    unsigned char once[DIGEST_SIZE];
    struct writer *w = NULL;
    struct manifest *m = plan(s, o, err);
    bool resumed;

    if (m == NULL)
        return (int)err->code;
    only_once(once);
    const struct work_options work = {
        .target = o->path, .plan = once, .restart = true, .need_bytes = need(m)};
    if (writer_open(&w, m, &work, &resumed, err) == GLM_OK
        && put_all(s, w, o->threads, err) == GLM_OK && writer_commit(w, err) == GLM_OK)
        w = NULL;
    writer_close(w);
    return (int)err->code;
}
