#include "train/tensors.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/base/bf16.h"

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
int tensors_read(
    const struct train_tensor *t, struct reader *r, bool cast, struct glm_error *err)
{
    const struct manifest *m = reader_manifest(r);
    const int64_t at = manifest_find(m, t->section, t->name);
    struct reader_scratch *scratch = NULL;
    void *buf = NULL, *cast_buf = NULL;
    size_t room = 0;

    if (at < 0)
        return glm_fail(err, GLM_EFORMAT, "%s/%s: not in the checkpoint",
            section_name(t->section), t->name);
    const struct ckpt_tensor *c = &m->tensors[at];
    if (check(t, c, cast, err) != 0)
        return err->code;
    const struct tile_grid *g = &c->grid;
    const size_t size = glm_dtype_size(c->dtype);
    room = (size_t)(g->tile[1] * g->dims[2]) * size + 2 * (size_t)DIO_ALIGN;
    scratch = reader_scratch_new();
    buf = dio_alloc(room);
    if (!home_is_host(t->home))
        cast_buf =
            malloc((size_t)(g->tile[1] * g->dims[2]) * glm_dtype_size(t->dtype) + 1);
    if (scratch == NULL || buf == NULL || (!home_is_host(t->home) && cast_buf == NULL)) {
        glm_fail(err, GLM_ENOMEM, "%s: no memory to read it", t->name);
        goto out;
    }
    for (int64_t band = 0; band < g->count[0] * g->count[1]; band++) {
        const int64_t e = band / g->count[1], row = band % g->count[1] * g->tile[1];
        const int64_t end = row + g->tile[1] < g->dims[1] ? row + g->tile[1] : g->dims[1];
        const struct rect part = {.lo = {e, row, 0}, .hi = {e + 1, end, g->dims[2]}};
        const int64_t first = (e * g->dims[1] + row) * g->dims[2];
        unsigned char *data;
        if (reader_read(r, at, &part, true, buf, room, &data, NULL, scratch, err) != 0)
            goto out;
        char *const to = (char *)t->data + (size_t)first * glm_dtype_size(t->dtype);
        tensors_cast(cast_buf != NULL ? cast_buf : to, t->dtype, data, c->dtype,
            rect_count(&part));
        if (cast_buf != NULL
            && home_put(t->home, to, cast_buf,
                   (size_t)rect_count(&part) * glm_dtype_size(t->dtype), err)
                != 0)
            goto out;
    }
out:
    reader_scratch_free(scratch);
    free(cast_buf);
    if (buf != NULL)
        dio_free(buf, room);
    return err->code;
}
