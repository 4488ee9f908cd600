#include "train/snapshot.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGN = 256 };

static size_t bytes_of(const struct train_tensor *t)
{
    return (size_t)tensors_elements(t) * glm_dtype_size(t->dtype);
}

static size_t room(size_t bytes)
{
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

/* What the machine could give without swapping; 0: not known. */
static uint64_t available(void)
{
    FILE *const f = fopen("/proc/meminfo", "r");
    char line[128];
    uint64_t kib = 0;

    while (f != NULL && fgets(line, sizeof line, f) != NULL)
        if (sscanf(line, "MemAvailable: %" SCNu64, &kib) == 1)
            break;
    if (f != NULL)
        fclose(f);
    return kib * 1024;
}

static int fits(size_t bytes, struct glm_error *err)
{
    const uint64_t there = available();

    if (there == 0 || bytes < there - there / 10)
        return 0;
    return glm_fail(err, GLM_ENOMEM,
        "a copy of the state takes %.1f GiB of the host's memory, %.1f GiB are free",
        (double)bytes / (1 << 30), (double)there / (1 << 30));
}

int snapshot_new(struct snapshot **out, const struct state *like, const struct home *home,
    struct glm_error *err)
{
    struct snapshot *s = NULL;
    size_t bytes = 0;

    *out = NULL;
    for (int64_t i = 0; i < like->tensors.count; i++)
        bytes += room(bytes_of(&like->tensors.list[i]));
    if (fits(bytes, err) != 0)
        return (int)err->code;
    if ((s = calloc(1, sizeof *s)) == NULL)
        return glm_fail(err, GLM_ENOMEM, "no memory for a copy of the state");
    s->home = *home;
    s->bytes = bytes;
    s->state = *like;
    s->state.tensors = (struct train_tensors){0};
    if ((s->memory = home->k->host_alloc(bytes, err)) == NULL)
        goto out;
    char *at = s->memory;
    for (int64_t i = 0; i < like->tensors.count; i++) {
        struct train_tensor t = like->tensors.list[i];
        t.data = at;
        t.home = NULL;
        at += room(bytes_of(&t));
        if (tensors_add(&s->state.tensors, &t, err) != 0)
            goto out;
    }
    *out = s;
    return 0;
out:
    snapshot_free(s);
    return (int)err->code;
}

void snapshot_free(struct snapshot *s)
{
    if (s == NULL)
        return;
    if (s->memory != NULL)
        s->home.k->host_release(s->memory);
    tensors_clear(&s->state.tensors);
    free(s);
}

int snapshot_take(struct snapshot *s, const struct state *from, struct glm_error *err)
{
    s->state.step = from->step;
    s->state.samples = from->samples;
    s->state.tokens = from->tokens;
    s->state.position = from->position;
    for (int64_t i = 0; i < from->tensors.count; i++) {
        const struct train_tensor *const t = &from->tensors.list[i];
        void *const to = s->state.tensors.list[i].data;
        const void *const got = home_get(t->home, t->data, bytes_of(t), to, err);
        if (got == NULL)
            return (int)err->code;
        if (got != to)
            memcpy(to, got, bytes_of(t));
    }
    return 0;
}
