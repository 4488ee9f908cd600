#include "verify/scan.h"

#include <stdlib.h>

void scan_clear(struct scan *s)
{
    free(s->spans);
    free(s->jobs);
    *s = (struct scan){0};
}

static int64_t scan_band_rows(const struct manifest *m, const struct ckpt_piece *p)
{
    const int64_t height = m->tensors[p->tensor].grid.tile[1];
    return (rect_len(&p->at, 1) + height - 1) / height;
}

int64_t scan_bands(const struct manifest *m, const struct ckpt_piece *p)
{
    return rect_empty(&p->at) ? 0 : rect_len(&p->at, 0) * scan_band_rows(m, p);
}

struct rect scan_band(const struct manifest *m, const struct ckpt_piece *p, int64_t band)
{
    const int64_t height = m->tensors[p->tensor].grid.tile[1],
                  rows = scan_band_rows(m, p);
    struct rect r = p->at;
    r.lo[0] = p->at.lo[0] + band / rows;
    r.hi[0] = r.lo[0] + 1;
    r.lo[1] = p->at.lo[1] + band % rows * height;
    r.hi[1] = r.lo[1] + height < p->at.hi[1] ? r.lo[1] + height : p->at.hi[1];
    return r;
}

static int scan_push_span(
    struct scan *s, const struct scan_span *span, struct glm_error *err)
{
    if (s->span_count == s->span_capacity) {
        const int64_t n = s->span_capacity == 0 ? 256 : 2 * s->span_capacity;
        struct scan_span *p = realloc(s->spans, (size_t)n * sizeof *p);
        if (p == NULL)
            return glm_fail(err, GLM_ENOMEM, "out of memory for the reading order");
        s->spans = p;
        s->span_capacity = n;
    }
    s->spans[s->span_count++] = *span;
    return GLM_OK;
}

static int scan_push_job(
    struct scan *s, int64_t shard, bool structure, struct glm_error *err)
{
    if (s->job_count == s->job_capacity) {
        const int64_t n = s->job_capacity == 0 ? 64 : 2 * s->job_capacity;
        struct scan_job *p = realloc(s->jobs, (size_t)n * sizeof *p);
        if (p == NULL)
            return glm_fail(err, GLM_ENOMEM, "out of memory for the reading order");
        s->jobs = p;
        s->job_capacity = n;
    }
    s->jobs[s->job_count++] = (struct scan_job){
        .shard = shard, .first_span = s->span_count, .structure = structure};
    return GLM_OK;
}

/* Adds a span to the shard's current job, or to a new one once that is full. */
static int scan_place(
    struct scan *s, int64_t shard, const struct scan_span *span, struct glm_error *err)
{
    struct scan_job *j = s->job_count > 0 ? &s->jobs[s->job_count - 1] : NULL;
    const bool fits = j != NULL && j->shard == shard && !j->structure && j->spans > 0
        && span->end - s->spans[j->first_span].begin <= SCAN_JOB_BYTES;
    if (!fits && scan_push_job(s, shard, false, err) != GLM_OK)
        return err->code;
    s->jobs[s->job_count - 1].spans++;
    return scan_push_span(s, span, err);
}

static int scan_plain(
    struct scan *s, const struct manifest *m, int64_t piece, struct glm_error *err)
{
    const struct ckpt_piece *p = &m->pieces[piece];
    const uint64_t row =
        (uint64_t)rect_len(&p->at, 2) * glm_dtype_size(m->tensors[p->tensor].dtype);
    const int64_t bands = scan_bands(m, p);
    struct scan_span span = {.piece = piece, .begin = p->offset, .end = p->offset};
    for (int64_t b = 0; b < bands; b++) {
        const struct rect r = scan_band(m, p, b);
        span.end += (uint64_t)rect_len(&r, 1) * row;
        span.hi = b + 1;
        if (span.end - span.begin < SCAN_JOB_BYTES / 2 && b + 1 < bands)
            continue;
        if (scan_place(s, p->shard, &span, err) != GLM_OK)
            return err->code;
        span.lo = b + 1;
        span.begin = span.end;
    }
    return GLM_OK;
}

static int scan_packed(struct scan *s, const struct manifest *m,
    const struct ckpt_chunk *chunks, int64_t piece, struct glm_error *err)
{
    const struct ckpt_piece *p = &m->pieces[piece];
    const struct ckpt_chunk *c = &chunks[p->first_chunk];
    for (int64_t i = 0; i < p->chunks;) {
        struct scan_span span = {.piece = piece, .lo = i, .begin = c[i].offset};
        for (span.end = span.begin; i < p->chunks && c[i].offset >= span.end; i++) {
            const uint64_t end = c[i].offset + c[i].bytes;
            if (i > span.lo && end - span.begin > SCAN_READ_BYTES)
                break;
            span.end = end;
        }
        span.hi = i;
        if (scan_place(s, p->shard, &span, err) != GLM_OK)
            return err->code;
    }
    return GLM_OK;
}

struct scan_item {
    int64_t shard, piece;
    uint64_t offset;
};

static int scan_compare(const void *pa, const void *pb)
{
    const struct scan_item *a = pa, *b = pb;
    if (a->shard != b->shard)
        return a->shard < b->shard ? -1 : 1;
    if (a->offset != b->offset)
        return a->offset < b->offset ? -1 : 1;
    return a->piece < b->piece ? -1 : a->piece > b->piece;
}

int scan_plan(struct scan *out, const struct manifest *m, const struct ckpt_chunk *chunks,
    const bool *skip, struct glm_error *err)
{
    *out = (struct scan){0};
    struct scan_item *items = calloc((size_t)m->piece_count + 1, sizeof *items);
    if (items == NULL)
        return glm_fail(err, GLM_ENOMEM, "out of memory for the reading order");
    for (int64_t i = 0; i < m->piece_count; i++) {
        const struct ckpt_piece *p = &m->pieces[i];
        items[i] = (struct scan_item){.shard = p->shard, .piece = i, .offset = p->offset};
        if (p->encoding == ENC_ZSTD)
            items[i].offset = p->chunks > 0 ? chunks[p->first_chunk].offset : 0;
    }
    qsort(items, (size_t)m->piece_count, sizeof *items, scan_compare);
    int64_t at = 0;
    for (int64_t shard = 0; shard < m->shard_count && err->code == GLM_OK; shard++) {
        for (; at < m->piece_count && items[at].shard == shard && err->code == GLM_OK;
             at++) {
            const int64_t piece = items[at].piece;
            if (skip[shard])
                continue;
            if (m->pieces[piece].encoding == ENC_PLAIN)
                scan_plain(out, m, piece, err);
            else
                scan_packed(out, m, chunks, piece, err);
        }
        if (!skip[shard] && err->code == GLM_OK)
            scan_push_job(out, shard, true, err);
    }
    free(items);
    if (err->code != GLM_OK)
        scan_clear(out);
    return err->code;
}
