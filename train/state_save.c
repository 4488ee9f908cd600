/* A state into a checkpoint, by several threads: each takes the next band of tiles, hashes it and
 * writes it. What is written depends on the state alone. */
#include "train/state.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "train/bands.h"

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

static void *start(void *ctx)
{
    (void)ctx;
    return writer_scratch_new();
}

static void stop(void *own)
{
    writer_scratch_free(own);
}

/* A derived weight is not stored: its digests are. */
static int note(struct writer *w, const struct band *b, struct glm_error *err)
{
    unsigned char *const digests = malloc((size_t)b->grid.count[2] * DIGEST_SIZE);

    if (digests == NULL)
        return glm_fail(err, GLM_ENOMEM, "%s: no memory for digests", b->t->name);
    if (reader_hash_tiles(
            &b->grid, &b->at, glm_dtype_size(b->t->dtype), b->data, digests))
        writer_note(w, b->tensor, &b->at, digests, err);
    else
        glm_fail(err, GLM_ENOMEM, "%s: no memory to hash its tiles", b->t->name);
    free(digests);
    return (int)err->code;
}

static int put(void *ctx, void *own, const struct band *b, struct glm_error *err)
{
    struct writer *const w = ctx;

    if (b->t->derived)
        return note(w, b, err);
    return writer_put(w, b->tensor, &b->at, b->data, NULL, own, err);
}

static int put_all(
    const struct state *s, struct writer *w, int threads, struct glm_error *err)
{
    const struct bands run = {.all = &s->tensors,
        .threads = threads,
        .ctx = w,
        .start = start,
        .stop = stop,
        .work = put};

    return bands_run(&run, err);
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
