/* Reads logical tensors out of safetensors files, wherever hfdir says they lie. */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "convert/ends.h"

struct hf_reader {
    const struct hf_source *s;
    struct manifest *m;
    struct dio *files; /* opened at first use */
    struct stat *seen; /* of each file, before anything was read */
    pthread_mutex_t lock;
};

static bool is_scale(const struct ckpt_tensor *t)
{
    return t->block[0] * t->block[1] > 1;
}

/* The one type that all members of a row have in the source. */
static int row_dtype(const struct hf_source *s, const struct table_entry *e, bool scale,
    enum glm_dtype *out, struct glm_error *err)
{
    for (int64_t i = 0; i < table_members(e); i++) {
        const enum glm_dtype d = hfdir_place(s, e, i, scale)->dtype;
        if (i > 0 && d != *out)
            return glm_fail(err, GLM_EFORMAT,
                "%s: '%s': expert 0 is %s, expert %" PRId64
                " is %s; one type per stack is "
                "expected",
                s->dir, e->name, glm_dtype_name(*out), i, glm_dtype_name(d));
        *out = d;
    }
    return GLM_OK;
}

/* A source does not say how its scales were chosen: the usual rule of its form. */
static const char *source_rule(const struct ckpt_tensor *scale)
{
    if (scale->dtype != GLM_F8_E8M0 && scale->dtype != GLM_U8)
        return "amax";
    return scale->block[0] == 1 ? "te_round_up" : "pow2";
}

static int add_row(
    struct hf_reader *r, const struct table_entry *e, struct glm_error *err)
{
    const struct hf_source *s = r->s;
    enum glm_dtype dtype = e->dtype;
    char name[512];

    if (row_dtype(s, e, false, &dtype, err) != GLM_OK)
        return (int)err->code;
    if (manifest_add_tensor(
            r->m, e->name, SECTION_WEIGHT, dtype, e->shape, e->rank, e->stack, e)
        == NULL)
        return glm_fail(err, GLM_ENOMEM, "no memory for the plan");
    if (hfdir_place(s, e, 0, true)->file < 0)
        return GLM_OK;
    if (row_dtype(s, e, true, &dtype, err) != GLM_OK)
        return (int)err->code;
    int64_t shape[3];
    memcpy(shape, e->shape, sizeof shape);
    for (int i = 0; i < 2; i++) {
        int64_t *n = &shape[e->rank - 2 + i];
        *n = (*n + s->scale_block[i] - 1) / s->scale_block[i];
    }
    table_scale_name(e->name, s->scale_suffix, name, sizeof name);
    struct ckpt_tensor *t = manifest_add_tensor(
        r->m, name, SECTION_WEIGHT, dtype, shape, e->rank, e->stack, e);
    if (t == NULL)
        return glm_fail(err, GLM_ENOMEM, "no memory for the plan");
    t->block[0] = s->scale_block[0];
    t->block[1] = s->scale_block[1];
    r->m->tensors[r->m->tensor_count - 2].scale = r->m->tensor_count - 1;
    snprintf(r->m->tensors[r->m->tensor_count - 2].scale_rule, sizeof t->scale_rule, "%s",
        source_rule(t));
    return GLM_OK;
}

static int stat_file(
    const struct hf_reader *r, int64_t file, struct stat *st, struct glm_error *err)
{
    char path[4096];

    snprintf(path, sizeof path, "%s/%s", r->s->dir, r->s->files[file].name);
    return stat(path, st) == 0 ? GLM_OK : glm_fail_errno(err, "%s", path);
}

/* A model that is written to while it is read would arrive as neither the old nor the new one. */
static int hf_unchanged(void *ctx, struct glm_error *err)
{
    const struct hf_reader *r = ctx;
    struct stat st;

    for (int64_t i = 0;
         i < r->s->file_count && r->s->store == NULL && err->code == GLM_OK; i++) {
        const struct stat *was = &r->seen[i];
        if (stat_file(r, i, &st, err) == GLM_OK
            && (st.st_size != was->st_size || st.st_mtim.tv_sec != was->st_mtim.tv_sec
                || st.st_mtim.tv_nsec != was->st_mtim.tv_nsec))
            glm_fail(err, GLM_EFORMAT,
                "%s/%s: has changed while it was read; nothing was finished. "
                "Run the command again, with --restart, when nothing writes there any "
                "more",
                r->s->dir, r->s->files[i].name);
    }
    return (int)err->code;
}

int hf_reader_open(
    struct hf_reader **out, const struct hf_source *s, struct glm_error *err)
{
    struct hf_reader *r = calloc(1, sizeof *r);

    *out = NULL;
    if (r == NULL)
        return glm_fail(err, GLM_ENOMEM, "%s: no memory", s->dir);
    pthread_mutex_init(&r->lock, NULL);
    r->s = s;
    r->m = manifest_new(s->table);
    r->files = calloc((size_t)s->file_count + 1, sizeof *r->files);
    r->seen = calloc((size_t)s->file_count + 1, sizeof *r->seen);
    if (r->m == NULL || r->files == NULL || r->seen == NULL)
        glm_fail(err, GLM_ENOMEM, "%s: no memory", s->dir);
    for (int64_t i = 0; err->code == GLM_OK && s->store == NULL && i < s->file_count; i++)
        stat_file(r, i, &r->seen[i], err);
    for (int64_t i = 0; err->code == GLM_OK && i < s->table->count; i++)
        add_row(r, &s->table->entries[i], err);
    if (err->code == GLM_OK && manifest_index(r->m, err) == GLM_OK) {
        dio_raise_limit();
        *out = r;
        r = NULL;
    }
    hf_reader_close(r);
    return (int)err->code;
}

void hf_reader_close(struct hf_reader *r)
{
    if (r == NULL)
        return;
    for (int64_t i = 0; r->files != NULL && i < r->s->file_count; i++)
        dio_close(&r->files[i]);
    free(r->files);
    free(r->seen);
    if (r->m != NULL)
        manifest_free(r->m);
    pthread_mutex_destroy(&r->lock);
    free(r);
}

static int file_of(struct hf_reader *r, const struct hf_place *p, const struct dio **out,
    struct glm_error *err)
{
    struct dio *f = &r->files[p->file];

    pthread_mutex_lock(&r->lock);
    if (f->path == NULL) {
        char path[4096];
        const struct hf_store *store = r->s->store;
        const char *name = r->s->files[p->file].name;
        if (store != NULL)
            snprintf(path, sizeof path, "%s", store->local(store->ctx, name));
        else
            snprintf(path, sizeof path, "%s/%s", r->s->dir, name);
        if (dio_open_read(f, path, err) == GLM_OK
            && f->size != r->s->files[p->file].header.file_size)
            glm_fail(err, GLM_EFORMAT,
                "%s: has %" PRIu64 " bytes now, %" PRIu64 " when its header was read",
                path, f->size, r->s->files[p->file].header.file_size);
    }
    pthread_mutex_unlock(&r->lock);
    *out = f;
    return (int)err->code;
}

/* Of a cut router's rectangle: the axis that counts rows, and the bytes of one. */
static size_t cut_row(const struct ckpt_tensor *t, int *axis)
{
    *axis = t->rank == 1 ? 2 : 1;
    return glm_dtype_size(t->dtype) * (t->rank == 1 ? 1 : (size_t)t->grid.dims[2]);
}

/* Rows of the router that --experts keeps lie apart in the source: one read each. A vector's
 * elements are its rows. */
static int read_kept_rows(const struct hf_reader *r, const struct ckpt_tensor *t,
    const struct hf_place *p, const struct dio *f, const struct rect *at,
    unsigned char *out, struct glm_error *err)
{
    int axis;
    const size_t row = cut_row(t, &axis);

    for (int64_t i = at->lo[axis]; i < at->hi[axis]; i++, out += row)
        if (dio_pread(f, p->offset + (uint64_t)r->s->experts[i] * row, row, out, err)
            != GLM_OK)
            return (int)err->code;
    return GLM_OK;
}

/* One member's part of a rectangle into out (packed rows as wide as the rectangle). */
static int read_member(const struct ckpt_tensor *t, const struct hf_place *p,
    const struct dio *f, const struct rect *at, unsigned char *out, struct glm_error *err)
{
    const size_t element = glm_dtype_size(t->dtype);
    const size_t row = (size_t)rect_len(at, 2) * element;
    const struct rect member = {
        {at->lo[0], 0, 0}, {at->lo[0] + 1, t->grid.dims[1], t->grid.dims[2]}};

    if (region_contiguous(&member, at))
        return dio_pread(f,
            p->offset + region_at(&member, at->lo[0], at->lo[1], at->lo[2], element),
            row * (size_t)rect_len(at, 1), out, err);
    for (int64_t r = at->lo[1]; r < at->hi[1]; r++, out += row)
        if (dio_pread(f, p->offset + region_at(&member, at->lo[0], r, at->lo[2], element),
                row, out, err)
            != GLM_OK)
            return (int)err->code;
    return GLM_OK;
}

static int hf_read(void *ctx, int64_t tensor, const struct rect *at,
    struct dio_buffer *buf, unsigned char **data, unsigned char *digests, bool *known,
    struct flow_thread *thread, struct glm_error *err)
{
    struct hf_reader *r = ctx;
    const struct ckpt_tensor *t = &r->m->tensors[tensor];
    const size_t element = glm_dtype_size(t->dtype);
    const struct dio *f;
    struct rect one = *at;

    (void)digests;
    (void)thread;
    *known = false;
    *data = buf->data;
    for (int64_t e = at->lo[0]; e < at->hi[0]; e++) {
        const struct hf_place *p = hfdir_place(r->s, t->entry, e, is_scale(t));
        unsigned char *out = buf->data + region_at(at, e, at->lo[1], at->lo[2], element);
        if (file_of(r, p, &f, err) != GLM_OK)
            break;
        one.lo[0] = e;
        one.hi[0] = e + 1;
        if (!is_scale(t) && hfdir_cut_rows(r->s, t->entry)) {
            read_kept_rows(r, t, p, f, at, out, err);
        } else if (rect_len(at, 0) == 1 && rect_len(at, 2) == t->grid.dims[2]) {
            const size_t row = (size_t)t->grid.dims[2] * element;
            dio_read(f, p->offset + (uint64_t)at->lo[1] * row,
                row * (size_t)rect_len(at, 1), buf->data, data, err);
        } else {
            read_member(t, p, f, &one, out, err);
        }
        if (err->code != GLM_OK)
            break;
    }
    return err->code == GLM_OK ? GLM_OK : glm_within(err, "tensor '%s'", t->name);
}

/* File by file, each from its start to its end: network file systems read ahead of that alone. */
static uint64_t hf_order(void *ctx, int64_t tensor, const struct rect *at)
{
    const struct hf_reader *r = ctx;
    const struct ckpt_tensor *t = &r->m->tensors[tensor];
    const struct hf_place *p = hfdir_place(r->s, t->entry, at->lo[0], is_scale(t));
    const uint64_t row = (uint64_t)t->grid.dims[2] * glm_dtype_size(t->dtype);

    return ((uint64_t)p->file << 48) + p->offset + (uint64_t)at->lo[1] * row;
}

void hf_reader_drop(struct hf_reader *r, int64_t file)
{
    pthread_mutex_lock(&r->lock);
    dio_close(&r->files[file]);
    pthread_mutex_unlock(&r->lock);
}

const struct hf_source *hf_reader_model(const struct hf_reader *r)
{
    return r->s;
}

bool hf_reader_extent(const struct hf_reader *r, int64_t tensor, const struct rect *at,
    int32_t *file, uint64_t *begin, uint64_t *end)
{
    const struct ckpt_tensor *t = &r->m->tensors[tensor];
    const struct hf_place *p = hfdir_place(r->s, t->entry, at->lo[0], is_scale(t));
    const bool cut = !is_scale(t) && hfdir_cut_rows(r->s, t->entry);

    *file = p->file;
    if (cut) {
        int axis;
        const uint64_t row = cut_row(t, &axis);
        *begin = p->offset + (uint64_t)r->s->experts[at->lo[axis]] * row;
        *end = p->offset + (uint64_t)(r->s->experts[at->hi[axis] - 1] + 1) * row;
    } else {
        const uint64_t row = (uint64_t)t->grid.dims[2] * glm_dtype_size(t->dtype);
        *begin = p->offset + (uint64_t)at->lo[1] * row;
        *end = p->offset + (uint64_t)at->hi[1] * row;
    }
    return !cut;
}

void hf_reader_pick(const struct hf_reader *r, int64_t tensor, const struct rect *at,
    const unsigned char *span, unsigned char *out)
{
    int axis;
    const size_t row = cut_row(&r->m->tensors[tensor], &axis);
    const int first = r->s->experts[at->lo[axis]];

    for (int64_t i = at->lo[axis]; i < at->hi[axis]; i++, out += row)
        memcpy(out, span + (size_t)(r->s->experts[i] - first) * row, row);
}

struct flow_source hf_reader_source(struct hf_reader *r)
{
    return (struct flow_source){.m = r->m,
        .ctx = r,
        .read = hf_read,
        .place = hf_order,
        .unchanged = hf_unchanged};
}
