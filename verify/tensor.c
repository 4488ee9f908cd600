/* One tensor: what it is, where it lies, some of its values. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "verify/element.h"
#include "verify/findings.h"
#include "verify/inspect_private.h"

void inspect_tensor_clear(struct inspect_tensor *t)
{
    free(t->pieces);
    t->pieces = NULL;
}

/* Edit distance, in two rows; good enough to find what was meant. */
static int tensor_distance(const char *a, const char *b)
{
    int row[193];
    const int n = (int)strnlen(b, 192);
    for (int j = 0; j <= n; j++)
        row[j] = j;
    for (int i = 1; a[i - 1] != '\0' && i < 192; i++) {
        int corner = row[0];
        row[0] = i;
        for (int j = 1; j <= n; j++) {
            const int up = row[j], change = corner + (a[i - 1] != b[j - 1]);
            int best = up < row[j - 1] ? up + 1 : row[j - 1] + 1;
            best = change < best ? change : best;
            corner = up;
            row[j] = best;
        }
    }
    return row[n];
}

static int tensor_unknown(const struct inspect *in, enum ckpt_section section,
    const char *name, struct glm_error *err)
{
    const struct side *s = &in->side;
    int best = 1 << 20;
    const char *nearest = NULL;
    for (int64_t i = 0; i < s->count; i++) {
        const struct side_row *r = &s->rows[i];
        const int d = r->section == section ? tensor_distance(name, r->name) : best;
        if (d < best) {
            best = d;
            nearest = r->name;
        }
    }
    if (nearest == NULL)
        return glm_fail(err, GLM_EUSAGE, "%s: there is no section '%s'", s->path,
            section_name(section));
    return glm_fail(err, GLM_EUSAGE,
        "%s: no tensor '%s' in section '%s'; the nearest name is '%s'", s->path, name,
        section_name(section), nearest);
}

/* Digest of what the name means: the row's fingerprint, or the member's, which equals that of its
 * Hugging Face tensor (spec/format.md C). */
static void tensor_fingerprint(const struct side_row *r, struct inspect_tensor *t)
{
    if (r->fingerprint == NULL)
        return;
    t->has_fingerprint = true;
    memcpy(t->fingerprint, r->fingerprint, 32);
    if (t->member < 0)
        return;
    struct digest *d = digest_new();
    t->has_fingerprint = d != NULL;
    if (d == NULL)
        return;
    char head[256];
    int n = snprintf(head, sizeof head, "glm.tensor.1\n%s\n", glm_dtype_name(r->dtype));
    for (int i = 1; i < r->rank; i++)
        n += snprintf(head + n, sizeof head - (size_t)n, "%s%lld", i > 1 ? " " : "",
            (long long)r->shape[i]);
    n += snprintf(head + n, sizeof head - (size_t)n, "\n");
    const int64_t per = r->grid.count[1] * r->grid.count[2];
    digest_begin(d);
    digest_update(d, head, (size_t)n);
    digest_update(d, r->tiles + 32 * (size_t)(t->member * per), 32 * (size_t)per);
    digest_end(d, t->fingerprint);
    digest_free(d);
}

static void tensor_piece(const struct side *s, const struct inspect_tensor *t,
    const struct ckpt_piece *p, struct inspect_piece *out)
{
    const struct side_row *r = &s->rows[t->row];
    *out = (struct inspect_piece){.file = s->m->shards[p->shard].file,
        .encoding = p->encoding,
        .offset = p->offset,
        .bytes = p->bytes,
        .chunks = p->chunks};
    struct rect at = p->at;
    uint64_t skip = 0;
    if (t->member >= 0) { /* its part of the piece */
        const int64_t experts = rect_len(&p->at, 0), nth = t->member - p->at.lo[0];
        at.lo[0] = t->member;
        at.hi[0] = t->member + 1;
        out->chunks = p->chunks / experts;
        skip = (uint64_t)nth * (p->bytes / (uint64_t)experts);
        out->bytes = p->bytes / (uint64_t)experts;
    }
    if (p->encoding == ENC_ZSTD) {
        const struct ckpt_chunk *c = &s->index->chunks[p->first_chunk];
        const int64_t first =
            t->member >= 0 ? (t->member - p->at.lo[0]) * out->chunks : 0;
        out->offset = out->chunks > 0 ? c[first].offset : 0;
        out->bytes = 0;
        for (int64_t i = 0; i < out->chunks; i++)
            out->bytes += c[first + i].bytes;
    } else {
        out->offset += skip;
    }
    finding_axes(r->rank, r->stack, &at, &out->rank, out->lo, out->hi);
    if (t->member >= 0) { /* a member is a matrix by itself */
        out->rank = 2;
        memmove(out->lo, out->lo + 1, 2 * sizeof *out->lo);
        memmove(out->hi, out->hi + 1, 2 * sizeof *out->hi);
    }
}

static void tensor_hf_piece(const struct side *s, const struct inspect_tensor *t,
    const struct side_row *r, int64_t member, struct inspect_piece *out)
{
    const struct hf_place *p = side_place(s, r, member);
    *out = (struct inspect_piece){.rank = t->rank};
    if (p == NULL || p->file < 0)
        return;
    out->file = s->source->files[p->file].name;
    out->offset = p->offset;
    out->bytes = (uint64_t)(r->grid.dims[1] * r->grid.dims[2]) * glm_dtype_size(r->dtype);
    for (int i = 0; i < t->rank; i++)
        out->hi[i] = t->shape[i];
    if (t->stack) {
        out->lo[0] = member;
        out->hi[0] = member + 1;
    }
}

static int tensor_pieces(const struct side *s, const struct side_row *r,
    struct inspect_tensor *t, struct glm_error *err)
{
    const struct ckpt_tensor *f = s->hf ? NULL : &s->m->tensors[r->tensor];
    const int64_t most = s->hf ? inspect_members(r) : f->pieces;
    t->pieces = calloc((size_t)most + 1, sizeof *t->pieces);
    if (t->pieces == NULL)
        return glm_fail(
            err, GLM_ENOMEM, "out of memory for %lld pieces", (long long)most);
    for (int64_t i = 0; i < most; i++) {
        if (s->hf) {
            if (t->member < 0 || t->member == i)
                tensor_hf_piece(s, t, r, i, &t->pieces[t->piece_count++]);
            continue;
        }
        const struct ckpt_piece *p = &s->m->pieces[f->first_piece + i];
        if (t->member < 0 || (t->member >= p->at.lo[0] && t->member < p->at.hi[0]))
            tensor_piece(s, t, p, &t->pieces[t->piece_count++]);
    }
    return GLM_OK;
}

int inspect_find(const struct inspect *in, const char *section, const char *name,
    struct inspect_tensor *out, struct glm_error *err)
{
    const struct side *s = &in->side;
    enum ckpt_section sec = SECTION_WEIGHT;
    *out = (struct inspect_tensor){.row = -1, .member = -1};
    if (section != NULL && !section_find(section, strlen(section), &sec))
        return glm_fail(err, GLM_EUSAGE, "no section is called '%s'", section);
    out->row = side_lookup(s, sec, name, &out->member);
    if (out->row < 0)
        return tensor_unknown(in, sec, name, err);
    const struct side_row *r = &s->rows[out->row];
    if (!r->stack)
        out->member = -1;
    const int skip = out->member >= 0 ? 1 : 0;
    out->section = sec;
    out->dtype = r->dtype;
    out->stack = r->stack && out->member < 0;
    out->rank = r->rank - skip;
    memcpy(out->shape, r->shape + skip, (size_t)out->rank * sizeof *out->shape);
    out->elements = r->grid.dims[1] * r->grid.dims[2] * (skip ? 1 : r->grid.dims[0]);
    out->tiles = skip ? r->grid.count[1] * r->grid.count[2] : tile_count(&r->grid);
    if (out->member >= 0)
        side_member_name(r, out->member, out->name, sizeof out->name);
    else
        snprintf(out->name, sizeof out->name, "%s", r->name);
    if (r->scale >= 0) {
        out->quantised = r->dtype == GLM_F8_E4M3;
        side_member_name(&s->rows[r->scale], out->member < 0 ? 0 : out->member,
            out->scale_name, sizeof out->scale_name);
        if (out->member < 0)
            snprintf(
                out->scale_name, sizeof out->scale_name, "%s", s->rows[r->scale].name);
    }
    if (!s->hf) {
        out->derived = s->m->tensors[r->tensor].derived;
        snprintf(out->scale_rule, sizeof out->scale_rule, "%s",
            s->m->tensors[r->tensor].scale_rule);
    }
    tensor_fingerprint(r, out);
    return tensor_pieces(s, r, out, err);
}

/* ---- slice ------------------------------------------------------------------------------------- */

void inspect_slice_clear(struct inspect_slice *s)
{
    free(s->values);
    s->values = NULL;
}

/* One bound; an absent one keeps `fallback`. Negative counts from the end. */
static bool slice_bound(
    const char *p, const char *end, int64_t size, int64_t fallback, int64_t *out)
{
    char *stop;
    *out = fallback;
    if (p == end)
        return true;
    errno = 0;
    const long long v = strtoll(p, &stop, 10);
    *out = v < 0 ? v + size : v;
    return stop == end && errno == 0 && *out >= 0 && *out <= size;
}

static int slice_axis(const char *spec, const char *p, const char *end, int axis,
    int64_t size, int64_t *lo, int64_t *hi, struct glm_error *err)
{
    const char *colon = memchr(p, ':', (size_t)(end - p));
    bool good;
    if (colon == NULL && p != end) { /* one index */
        good = slice_bound(p, end, size, 0, lo) && *lo < size;
        *hi = *lo + 1;
    } else {
        const char *mid = colon != NULL ? colon : end;
        good = slice_bound(p, mid, size, 0, lo)
            && slice_bound(colon != NULL ? colon + 1 : end, end, size, size, hi)
            && *lo <= *hi;
    }
    if (!good)
        return glm_fail(err, GLM_EUSAGE,
            "--slice %s: axis %d is 0:%lld, '%.*s' is not in it", spec, axis,
            (long long)size, (int)(end - p), p);
    return GLM_OK;
}

static int slice_parse(const struct inspect_tensor *t, const char *spec,
    struct inspect_slice *out, struct glm_error *err)
{
    out->rank = t->rank;
    for (int i = 0; i < t->rank; i++)
        out->hi[i] = t->shape[i];
    const char *p = spec;
    for (int axis = 0; *p != '\0' || axis == 0; axis++) {
        const char *end = p + strcspn(p, ",");
        if (axis >= t->rank)
            return glm_fail(
                err, GLM_EUSAGE, "--slice %s: '%s' has %d axes", spec, t->name, t->rank);
        if (slice_axis(
                spec, p, end, axis, t->shape[axis], &out->lo[axis], &out->hi[axis], err)
            != GLM_OK)
            return err->code;
        if (*end == '\0')
            break;
        p = end + 1;
    }
    out->count = 1;
    for (int i = 0; i < t->rank; i++)
        out->count *= out->hi[i] - out->lo[i] <= INSPECT_SLICE_MAX
            ? out->hi[i] - out->lo[i]
            : INSPECT_SLICE_MAX + 1;
    if (out->count > INSPECT_SLICE_MAX)
        return glm_fail(err, GLM_EUSAGE, "--slice %s: more than %d elements", spec,
            INSPECT_SLICE_MAX);
    return GLM_OK;
}

/* Reads one expert's part of the slice. Quantised: whole block rows are read, then cut. */
static int slice_read(struct inspect *in, const struct inspect_tensor *t,
    struct side_cursor *c, const struct rect *at, double *out, struct glm_error *err)
{
    const struct side *s = &in->side;
    const struct side_row *r = &s->rows[t->row];
    if (!t->quantised) {
        const unsigned char *data;
        if (side_read(s, c, t->row, at, &data, err) == GLM_OK)
            element_values(r->dtype, data, rect_count(at), out);
        return err->code;
    }
    struct rect wide = *at;
    for (int i = 1; i < RECT_AXES; i++) {
        const int64_t block = r->block[i - 1];
        wide.lo[i] = at->lo[i] / block * block;
        wide.hi[i] = (at->hi[i] + block - 1) / block * block;
        wide.hi[i] = wide.hi[i] < r->grid.dims[i] ? wide.hi[i] : r->grid.dims[i];
    }
    float *numbers = malloc((size_t)rect_count(&wide) * sizeof *numbers);
    if (numbers == NULL)
        return glm_fail(err, GLM_ENOMEM, "out of memory for the slice");
    if (side_numbers(s, c, t->row, &wide, numbers, err) == GLM_OK)
        for (int64_t i = at->lo[1]; i < at->hi[1]; i++)
            for (int64_t j = at->lo[2]; j < at->hi[2]; j++)
                *out++ = numbers[(i - wide.lo[1]) * rect_len(&wide, 2) + j - wide.lo[2]];
    free(numbers);
    return err->code;
}

int inspect_slice(struct inspect *in, const struct inspect_tensor *t, const char *spec,
    struct inspect_slice *out, struct glm_error *err)
{
    *out = (struct inspect_slice){0};
    if (!element_known(t->dtype))
        return glm_fail(err, GLM_EUSAGE, "'%s' is %s: its elements are not real numbers",
            t->name, glm_dtype_name(t->dtype));
    if (slice_parse(t, spec, out, err) != GLM_OK)
        return err->code;
    out->values = malloc(((size_t)out->count + 1) * sizeof *out->values);
    if (out->values == NULL)
        return glm_fail(err, GLM_ENOMEM, "out of memory for the slice");
    const struct tile_grid *g = &in->side.rows[t->row].grid;
    /* The slice in matrix form: the own axes are the last ones; a member fixes the expert. */
    struct rect all = rect_whole(g->dims);
    const int shown = t->rank < RECT_AXES ? t->rank : RECT_AXES;
    for (int i = 0; i < shown; i++) {
        all.lo[RECT_AXES - shown + i] = out->lo[i];
        all.hi[RECT_AXES - shown + i] = out->hi[i];
    }
    if (t->member >= 0) {
        all.lo[0] = t->member;
        all.hi[0] = t->member + 1;
    }
    struct side_cursor c = {0};
    double *at = out->values;
    for (int64_t e = all.lo[0]; e < all.hi[0] && err->code == GLM_OK; e++) {
        struct rect part = all;
        part.lo[0] = e;
        part.hi[0] = e + 1;
        if (rect_empty(&part))
            continue;
        slice_read(in, t, &c, &part, at, err);
        at += rect_count(&part);
    }
    side_cursor_clear(&c);
    if (err->code != GLM_OK)
        inspect_slice_clear(out);
    return err->code;
}
