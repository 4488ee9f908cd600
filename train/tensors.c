#include "train/tensors.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/bf16.h"
#include "kernels/base/crew.h"

/* ---- the list --------------------------------------------------------------------------------- */

int tensors_add(
    struct train_tensors *t, const struct train_tensor *one, struct glm_error *err)
{
    if (t->count == t->room) {
        const int64_t room = t->room > 0 ? 2 * t->room : 64;
        struct train_tensor *list = realloc(t->list, (size_t)room * sizeof *list);
        if (list == NULL)
            return glm_fail(
                err, GLM_ENOMEM, "no memory for a list of %lld tensors", (long long)room);
        t->list = list;
        t->room = room;
    }
    t->list[t->count++] = *one;
    return 0;
}

int tensors_add_entry(struct train_tensors *t, enum ckpt_section section,
    const struct table_entry *entry, enum glm_dtype dtype, void *data,
    const struct home *home, bool derived, struct glm_error *err)
{
    struct train_tensor one = {.section = section,
        .name = entry->name,
        .dtype = dtype,
        .rank = entry->rank,
        .stack = entry->stack,
        .entry = entry,
        .derived = derived,
        .data = data,
        .home = home};

    memcpy(one.shape, entry->shape, sizeof one.shape);
    return tensors_add(t, &one, err);
}

void tensors_clear(struct train_tensors *t)
{
    free(t->list);
    *t = (struct train_tensors){0};
}

int64_t tensors_elements(const struct train_tensor *t)
{
    int64_t n = 1;

    for (int i = 0; i < t->rank; i++)
        n *= t->shape[i];
    return n;
}

/* ---- casting ---------------------------------------------------------------------------------- */

static bool castable(enum glm_dtype t)
{
    return t == GLM_BF16 || t == GLM_F16 || t == GLM_F32 || t == GLM_F64;
}

static double element(const void *p, enum glm_dtype type, int64_t i)
{
    switch (type) {
    case GLM_BF16:
        return (double)bf16_to_f32(((const uint16_t *)p)[i]);
    case GLM_F16:
        return (double)f16_to_f32(((const uint16_t *)p)[i]);
    case GLM_F32:
        return (double)((const float *)p)[i];
    default:
        return ((const double *)p)[i];
    }
}

void tensors_cast(void *to, enum glm_dtype to_type, const void *from,
    enum glm_dtype from_type, int64_t n)
{
    if (to_type == from_type) {
        memcpy(to, from, (size_t)n * glm_dtype_size(to_type));
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        const double x = element(from, from_type, i);
        switch (to_type) {
        case GLM_BF16:
            ((uint16_t *)to)[i] = bf16_from_f32((float)x);
            break;
        case GLM_F16:
            ((uint16_t *)to)[i] = f16_from_f32((float)x);
            break;
        case GLM_F32:
            ((float *)to)[i] = (float)x;
            break;
        default:
            ((double *)to)[i] = x;
        }
    }
}

/* ---- from a checkpoint ------------------------------------------------------------------------ */

bool tensors_there(const struct reader *r, enum ckpt_section section, const char *name)
{
    return manifest_find(reader_manifest(r), section, name) >= 0;
}

static int check(const struct train_tensor *t, const struct ckpt_tensor *c, bool cast,
    struct glm_error *err)
{
    const char *section = section_name(t->section);

    if (c->rank != t->rank)
        return glm_fail(err, GLM_EFORMAT,
            "%s/%s: %d dimensions in the checkpoint, expected %d", section, t->name,
            c->rank, t->rank);
    for (int i = 0; i < t->rank; i++)
        if (c->shape[i] != t->shape[i])
            return glm_fail(err, GLM_EFORMAT,
                "%s/%s: dimension %d is %lld in the checkpoint, expected %lld", section,
                t->name, i, (long long)c->shape[i], (long long)t->shape[i]);
    if (c->scale >= 0 || (c->dtype != t->dtype && !(cast && castable(c->dtype))))
        return glm_fail(err, GLM_EFORMAT, "%s/%s: %s%s in the checkpoint, expected %s%s",
            section, t->name, glm_dtype_name(c->dtype),
            c->scale >= 0 ? " with scales" : "", glm_dtype_name(t->dtype),
            cast ? " or another type without scales (glm-convert --dtype bf16 makes one)"
                 : "");
    return 0;
}

/* Bands of whole tiles, as wide as the tensor: in memory one behind the other. */
struct reading {
    const struct train_tensors *t;
    struct reader *r;
    int64_t *at,
        *first; /* [count + 1]: a tensor's number there, the job of its first band */
    size_t room, cast_room; /* a band as it is stored; on a device: as it goes there */
    const struct kernels *device; /* NULL: all lies in the host's memory */
    pthread_mutex_t copying;
};

struct reading_room { /* a thread's own */
    const struct reading *in;
    struct reader_scratch *scratch;
    void *buf, *cast;
};

static void room_free(void *state)
{
    struct reading_room *const o = state;

    reader_scratch_free(o->scratch);
    if (o->cast != NULL)
        o->in->device->host_release(o->cast);
    if (o->buf != NULL)
        dio_free(o->buf, o->in->room);
    free(o);
}

static void *room_new(void *ctx, struct glm_error *err)
{
    const struct reading *const in = ctx;
    struct reading_room *const o = calloc(1, sizeof *o);

    if (o == NULL)
        return NULL;
    o->in = in;
    o->scratch = reader_scratch_new();
    o->buf = dio_alloc(in->room);
    if (in->device != NULL)
        o->cast = in->device->host_alloc(in->cast_room, err);
    if (o->scratch != NULL && o->buf != NULL && (in->device == NULL || o->cast != NULL))
        return o;
    room_free(o);
    return NULL;
}

static int read_band(void *ctx, void *state, int64_t job, struct glm_error *err)
{
    struct reading *const in = ctx;
    struct reading_room *const o = state;
    int64_t i = 0;
    unsigned char *data;

    while (in->first[i + 1] <= job)
        i++;
    const struct train_tensor *const t = &in->t->list[i];
    const struct ckpt_tensor *const c = &reader_manifest(in->r)->tensors[in->at[i]];
    const struct tile_grid *const g = &c->grid;
    const int64_t band = job - in->first[i];
    const int64_t e = band / g->count[1], row = band % g->count[1] * g->tile[1];
    const int64_t end = row + g->tile[1] < g->dims[1] ? row + g->tile[1] : g->dims[1];
    const struct rect part = {.lo = {e, row, 0}, .hi = {e + 1, end, g->dims[2]}};
    const int64_t first = (e * g->dims[1] + row) * g->dims[2];
    char *const to = (char *)t->data + (size_t)first * glm_dtype_size(t->dtype);
    const bool there = !home_is_host(t->home);

    if (reader_read(
            in->r, in->at[i], &part, true, o->buf, in->room, &data, NULL, o->scratch, err)
        != 0)
        return err->code;
    tensors_cast(there ? o->cast : to, t->dtype, data, c->dtype, rect_count(&part));
    if (!there)
        return 0;
    pthread_mutex_lock(&in->copying);
    home_put(
        t->home, to, o->cast, (size_t)rect_count(&part) * glm_dtype_size(t->dtype), err);
    pthread_mutex_unlock(&in->copying);
    return err->code;
}

/* Whether all is there as it should be, and what reading it takes. */
static int plan(struct reading *in, bool cast, struct glm_error *err)
{
    const struct manifest *const m = reader_manifest(in->r);

    for (int64_t i = 0; i < in->t->count; i++) {
        const struct train_tensor *const t = &in->t->list[i];
        if ((in->at[i] = manifest_find(m, t->section, t->name)) < 0)
            return glm_fail(err, GLM_EFORMAT, "%s/%s: not in the checkpoint",
                section_name(t->section), t->name);
        const struct ckpt_tensor *const c = &m->tensors[in->at[i]];
        if (check(t, c, cast, err) != 0)
            return err->code;
        const size_t n = (size_t)(c->grid.tile[1] * c->grid.dims[2]);
        const size_t room = n * glm_dtype_size(c->dtype) + 2 * (size_t)DIO_ALIGN;
        const size_t cast_room = n * glm_dtype_size(t->dtype) + 1;
        in->room = room > in->room ? room : in->room;
        in->first[i + 1] = in->first[i] + c->grid.count[0] * c->grid.count[1];
        if (home_is_host(t->home))
            continue;
        in->device = t->home->k;
        in->cast_room = cast_room > in->cast_room ? cast_room : in->cast_room;
    }
    return 0;
}

int tensors_read_all(const struct train_tensors *t, struct reader *r, bool cast,
    int threads, struct glm_error *err)
{
    struct reading in = {.t = t, .r = r};

    in.at = calloc((size_t)t->count + 1, sizeof *in.at);
    in.first = calloc((size_t)t->count + 1, sizeof *in.first);
    if (in.at == NULL || in.first == NULL) {
        glm_fail(err, GLM_ENOMEM, "no memory to read %lld tensors", (long long)t->count);
        goto out;
    }
    if (plan(&in, cast, err) != 0)
        goto out;
    const struct crew c = {.threads = threads,
        .count = in.first[t->count],
        .ctx = &in,
        .start = room_new,
        .stop = room_free,
        .work = read_band};
    pthread_mutex_init(&in.copying, NULL);
    crew_run(&c, err);
    pthread_mutex_destroy(&in.copying);
out:
    free(in.at);
    free(in.first);
    return err->code;
}

int tensors_read(
    const struct train_tensor *t, struct reader *r, bool cast, struct glm_error *err)
{
    const struct train_tensors alone = {
        .list = (struct train_tensor *)(uintptr_t)t, .count = 1};

    return tensors_read_all(&alone, r, cast, 1, err);
}
