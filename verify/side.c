#include "verify/side.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "verify/element.h"

static bool side_has(const char *dir, const char *name)
{
    char path[4096];
    struct stat st;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return stat(path, &st) == 0;
}

/* ---- rows of a checkpoint ---------------------------------------------------------------------- */

static int side_rows_ckpt(struct side *s, struct glm_error *err)
{
    const struct manifest *m = s->m;
    s->rows = calloc((size_t)m->tensor_count + 1, sizeof *s->rows);
    if (s->rows == NULL)
        return glm_fail(
            err, GLM_ENOMEM, "out of memory for %lld rows", (long long)m->tensor_count);
    s->count = m->tensor_count;
    for (int64_t i = 0; i < s->count; i++) {
        const struct ckpt_tensor *t = &m->tensors[i];
        struct side_row *r = &s->rows[i];
        snprintf(r->name, sizeof r->name, "%s", t->name);
        r->section = t->section;
        r->dtype = t->dtype;
        r->rank = t->rank;
        memcpy(r->shape, t->shape, sizeof r->shape);
        r->stack = t->stack;
        r->entry = t->entry;
        r->scale = t->scale;
        r->grid = t->grid;
        r->tensor = i;
        r->tiles = s->index->tiles + 32 * (size_t)t->first_tile;
        r->fingerprint = t->fingerprint;
        r->is_scale = t->entry != NULL && strcmp(t->entry->name, t->name) != 0;
        r->block[0] = r->block[1] = 1;
        if (t->scale >= 0)
            memcpy(r->block, m->tensors[t->scale].block, sizeof r->block);
    }
    return GLM_OK;
}

/* ---- rows of a Hugging Face directory ---------------------------------------------------------- */

static void side_row_hf(
    struct side_row *r, const struct table_entry *e, enum glm_dtype dtype)
{
    *r = (struct side_row){.section = SECTION_WEIGHT,
        .dtype = dtype,
        .rank = e->rank,
        .stack = e->stack,
        .entry = e,
        .scale = -1,
        .block = {1, 1},
        .tensor = -1};
    snprintf(r->name, sizeof r->name, "%s", e->name);
    for (int i = 0; i < e->rank; i++)
        r->shape[i] = e->shape[i];
    r->grid = e->grid;
}

/* Name and type as in the source: an import keeps both. */
static void side_row_hf_scale(struct side_row *r, const struct side *s,
    const struct side_row *w, enum glm_dtype dtype)
{
    const struct hf_source *h = s->source;
    side_row_hf(r, w->entry, dtype);
    table_scale_name(w->name, h->scale_suffix, r->name, sizeof r->name);
    r->is_scale = true;
    int64_t *const matrix = r->shape + r->rank - 2;
    for (int i = 0; i < 2; i++)
        matrix[i] = (matrix[i] + h->scale_block[i] - 1) / h->scale_block[i];
    tile_grid_init(&r->grid, r->shape, r->rank, r->stack, w->entry->cut == CUT_COLS);
}

static int side_rows_hf(struct side *s, struct glm_error *err)
{
    s->rows = calloc(2 * (size_t)s->table->count + 1, sizeof *s->rows);
    if (s->rows == NULL)
        return glm_fail(
            err, GLM_ENOMEM, "out of memory for %lld rows", (long long)s->table->count);
    for (int64_t i = 0; i < s->table->count; i++) {
        const struct table_entry *e = &s->table->entries[i];
        const struct hf_place *p = hfdir_place(s->source, e, 0, false);
        if (p == NULL || p->file < 0)
            continue;
        struct side_row *r = &s->rows[s->count++];
        side_row_hf(r, e, p->dtype);
        const struct hf_place *q = hfdir_place(s->source, e, 0, true);
        if (q == NULL || q->file < 0 || e->rank < 2)
            continue;
        side_row_hf_scale(&s->rows[s->count], s, r, q->dtype);
        r->scale = s->count++;
        memcpy(r->block, s->source->scale_block, sizeof r->block);
    }
    return GLM_OK;
}

/* ---- open, find -------------------------------------------------------------------------------- */

static int side_name_compare(const void *pa, const void *pb, void *rows)
{
    const struct side_row *a = (const struct side_row *)rows + *(const int64_t *)pa;
    const struct side_row *b = (const struct side_row *)rows + *(const int64_t *)pb;
    if (a->section != b->section)
        return a->section < b->section ? -1 : 1;
    return strcmp(a->name, b->name);
}

static int side_open_hf(struct side *s, int threads, struct glm_error *err)
{
    const struct hf_options o = {.threads = threads, .mtp_may_lack = true};
    if (hfdir_open(&s->source, s->path, &o, err) != GLM_OK)
        return err->code;
    s->hf = true;
    s->table = s->source->table;
    return side_rows_hf(s, err);
}

static int side_open_ckpt(struct side *s, bool metadata_only, struct glm_error *err)
{
    if (metadata_only) {
        if (index_open(&s->own_index, s->path, err) != GLM_OK)
            return err->code;
        s->index = s->own_index;
    } else {
        if (reader_open(&s->reader, s->path, err) != GLM_OK)
            return err->code;
        s->index = reader_index(s->reader);
    }
    s->m = s->index->manifest;
    s->table = s->index->table;
    return side_rows_ckpt(s, err);
}

int side_open(struct side *s, const char *path, bool metadata_only, int threads,
    struct glm_error *err)
{
    *s = (struct side){.path = strdup(path)};
    if (s->path == NULL)
        return glm_fail(err, GLM_ENOMEM, "out of memory");
    if (!side_has(path, "index.h5") && side_has(path, "config.json"))
        side_open_hf(s, threads, err);
    else
        side_open_ckpt(s, metadata_only, err);
    if (err->code != GLM_OK)
        goto out;
    s->by_name = calloc((size_t)s->count + 1, sizeof *s->by_name);
    if (s->by_name == NULL) {
        glm_fail(err, GLM_ENOMEM, "out of memory");
        goto out;
    }
    for (int64_t i = 0; i < s->count; i++)
        s->by_name[i] = i;
    qsort_r(s->by_name, (size_t)s->count, sizeof *s->by_name, side_name_compare, s->rows);
out:
    if (err->code != GLM_OK)
        side_close(s);
    return err->code;
}

void side_close(struct side *s)
{
    free(s->by_name);
    free(s->rows);
    if (s->reader != NULL)
        reader_close(s->reader);
    index_close(s->own_index);
    if (s->source != NULL)
        hfdir_close(s->source);
    free(s->path);
    *s = (struct side){0};
}

int64_t side_find(const struct side *s, enum ckpt_section section, const char *name)
{
    int64_t lo = 0, hi = s->count;
    while (lo < hi) {
        const int64_t mid = lo + (hi - lo) / 2;
        const struct side_row *r = &s->rows[s->by_name[mid]];
        const int c = r->section != section ? (r->section < section ? -1 : 1)
                                            : strcmp(r->name, name);
        if (c == 0)
            return s->by_name[mid];
        if (c < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return -1;
}

void side_member_name(const struct side_row *r, int64_t member, char *buf, size_t size)
{
    char weight[192];
    if (!r->stack || r->entry == NULL) {
        snprintf(buf, size, "%s", r->name);
        return;
    }
    table_member_name(r->entry, member, weight, sizeof weight);
    if (r->is_scale)
        table_scale_name(weight, strrchr(r->name, '.'), buf, size);
    else
        snprintf(buf, size, "%s", weight);
}

int64_t side_lookup(
    const struct side *s, enum ckpt_section section, const char *name, int64_t *member)
{
    static const char *const suffixes[] = {
        ".weight_scale_inv", ".weight_scale", ".scale"};
    const int64_t whole = side_find(s, section, name);
    *member = -1;
    if (whole >= 0)
        return whole;
    const struct table_entry *e = table_find(s->table, name, strlen(name), member);
    if (e != NULL)
        return side_find(s, section, e->name);
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++) {
        char weight[192], scale[192];
        if (!table_scale_of(name, strlen(name), suffixes[i], weight, sizeof weight)
            || (e = table_find(s->table, weight, strlen(weight), member)) == NULL)
            continue;
        table_scale_name(e->name, suffixes[i], scale, sizeof scale);
        return side_find(s, section, scale);
    }
    return -1;
}

/* ---- read -------------------------------------------------------------------------------------- */

void side_cursor_clear(struct side_cursor *c)
{
    if (c->open_file != 0)
        dio_close(&c->file);
    if (c->scratch != NULL)
        reader_scratch_free(c->scratch);
    if (c->buf != NULL)
        dio_free(c->buf, c->capacity);
    free(c->codes.p);
    free(c->scales.p);
    *c = (struct side_cursor){0};
}

static int side_reserve(struct side_cursor *c, size_t size, struct glm_error *err)
{
    size += 2 * DIO_ALIGN;
    if (c->scratch == NULL && (c->scratch = reader_scratch_new()) == NULL)
        return glm_fail(err, GLM_ENOMEM, "out of memory");
    if (size <= c->capacity)
        return GLM_OK;
    if (c->buf != NULL)
        dio_free(c->buf, c->capacity);
    c->capacity = 0;
    if ((c->buf = dio_alloc(size)) == NULL)
        return glm_fail(err, GLM_ENOMEM, "out of memory for %zu bytes of a tensor", size);
    c->capacity = size;
    return GLM_OK;
}

const struct hf_place *side_place(
    const struct side *s, const struct side_row *r, int64_t member)
{
    return hfdir_place(s->source, r->entry, member, r->is_scale);
}

static int side_switch(
    const struct side *s, struct side_cursor *c, int32_t file, struct glm_error *err)
{
    if (c->open_file == file + 1)
        return GLM_OK;
    if (c->open_file != 0)
        dio_close(&c->file);
    c->open_file = 0;
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", s->path, s->source->files[file].name);
    if (dio_open_read(&c->file, path, err) == GLM_OK)
        c->open_file = file + 1;
    return err->code;
}

static int side_read_hf(const struct side *s, struct side_cursor *c,
    const struct side_row *r, const struct rect *at, size_t size,
    const unsigned char **data, struct glm_error *err)
{
    const struct hf_place *p = side_place(s, r, at->lo[0]);
    const size_t element = glm_dtype_size(r->dtype);
    if (p == NULL || p->file < 0)
        return glm_fail(err, GLM_EFORMAT, "%s: '%s' is not there", s->path, r->name);
    if (p->dtype != r->dtype) {
        char name[192];
        side_member_name(r, at->lo[0], name, sizeof name);
        return glm_fail(err, GLM_EFORMAT, "%s: '%s' is %s, expected %s", s->path, name,
            glm_dtype_name(p->dtype), glm_dtype_name(r->dtype));
    }
    if (side_switch(s, c, p->file, err) != GLM_OK)
        return err->code;
    const uint64_t pitch = (uint64_t)r->grid.dims[2] * element;
    const uint64_t offset =
        p->offset + (uint64_t)at->lo[1] * pitch + (uint64_t)at->lo[2] * element;
    const size_t width = (size_t)rect_len(at, 2) * element;
    if (width == pitch) {
        unsigned char *where = NULL;
        dio_read(&c->file, offset, size, c->buf, &where, err);
        *data = where;
        return err->code;
    }
    for (int64_t i = 0; i < rect_len(at, 1); i++)
        if (dio_pread(&c->file, offset + (uint64_t)i * pitch, width,
                c->buf + (size_t)i * width, err)
            != GLM_OK)
            return err->code;
    *data = c->buf;
    return GLM_OK;
}

int side_read(const struct side *s, struct side_cursor *c, int64_t row,
    const struct rect *at, const unsigned char **data, struct glm_error *err)
{
    const struct side_row *r = &s->rows[row];
    const size_t size = (size_t)rect_count(at) * glm_dtype_size(r->dtype);
    assert(rect_len(at, 0) == 1);
    *data = NULL;
    if (side_reserve(c, size, err) != GLM_OK)
        return err->code;
    if (s->hf)
        return side_read_hf(s, c, r, at, size, data, err);
    unsigned char *where = NULL;
    reader_read(s->reader, r->tensor, at, tile_aligned(&r->grid, at), c->buf, c->capacity,
        &where, NULL, c->scratch, err);
    *data = where;
    return err->code;
}

/* ---- numbers ----------------------------------------------------------------------------------- */

static int side_room(struct side_codes *k, size_t size, struct glm_error *err)
{
    if (size <= k->capacity)
        return GLM_OK;
    free(k->p);
    k->p = malloc(size);
    k->capacity = k->p != NULL ? size : 0;
    return k->p != NULL ? GLM_OK
                        : glm_fail(err, GLM_ENOMEM, "out of memory for %zu bytes", size);
}

static int64_t side_ceil(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* Codes times scales. Edges of the rectangle lie on block edges, or the matrix ends there. */
static int side_dequantise(const struct side *s, struct side_cursor *c, int64_t row,
    const struct rect *at, float *out, struct glm_error *err)
{
    const struct side_row *r = &s->rows[row], *q = &s->rows[r->scale];
    const unsigned char *data;
    const size_t n = (size_t)rect_count(at);
    if (at->lo[1] % r->block[0] != 0 || at->lo[2] % r->block[1] != 0)
        return glm_fail(err, GLM_EUSAGE,
            "%s: '%s' has scale blocks of %lld x %lld, which do not fit "
            "into its tiles: its values cannot be compared, only its codes",
            s->path, r->name, (long long)r->block[0], (long long)r->block[1]);
    if (!codec_is_scale(q->dtype))
        return glm_fail(err, GLM_EFORMAT,
            "%s: '%s' is %s, which no scale can be: the values of '%s' are unknown",
            s->path, q->name, glm_dtype_name(q->dtype), r->name);
    if (side_read(s, c, row, at, &data, err) != GLM_OK
        || side_room(&c->codes, n, err) != GLM_OK)
        return err->code;
    memcpy(c->codes.p, data, n);
    struct rect where = *at;
    for (int i = 1; i < RECT_AXES; i++) {
        where.lo[i] = at->lo[i] / r->block[i - 1];
        where.hi[i] = side_ceil(at->hi[i], r->block[i - 1]);
    }
    if (side_read(s, c, r->scale, &where, &data, err) != GLM_OK)
        return err->code;
    if (codec_is_mx(q->dtype, r->block)) {
        codec_mxfp8_decode(
            c->codes.p, data, rect_len(at, 1), rect_len(at, 2), out, GLM_F32);
        return GLM_OK;
    }
    const int64_t blocks = rect_count(&where);
    if (side_room(&c->scales, (size_t)blocks * sizeof(float), err) != GLM_OK)
        return err->code;
    float *const scales = (float *)(void *)c->scales.p;
    codec_scale_widen(data, q->dtype, scales, blocks);
    codec_fp8_decode(
        c->codes.p, scales, rect_len(at, 1), rect_len(at, 2), r->block, out, GLM_F32);
    return GLM_OK;
}

int side_numbers(const struct side *s, struct side_cursor *c, int64_t row,
    const struct rect *at, float *out, struct glm_error *err)
{
    const struct side_row *r = &s->rows[row];
    const unsigned char *data;
    if (r->scale >= 0 && r->dtype == GLM_F8_E4M3)
        return side_dequantise(s, c, row, at, out, err);
    if (side_read(s, c, row, at, &data, err) != GLM_OK)
        return err->code;
    const int64_t n = rect_count(at);
    if (r->dtype == GLM_BF16 || r->dtype == GLM_F16 || r->dtype == GLM_F32) {
        codec_cast(data, r->dtype, out, GLM_F32, n);
        return GLM_OK;
    }
    for (int64_t i = 0; i < n; i++)
        out[i] = (float)element_value(r->dtype, data, i);
    return GLM_OK;
}
