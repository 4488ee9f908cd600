#include "verify/integrity_scan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "convert/convert.h"
#include "verify/tilehash.h"

/* One thread's buffers: a window of the file, and what a tile needs. */
struct integrity_worker {
    struct integrity *g;
    struct dio file;
    int64_t shard; /* that file belongs to; -1: none is open */
    unsigned char *buf;
    size_t capacity;
    unsigned char *window;  /* bytes [lo, hi) of the file, inside buf */
    uint64_t lo, hi, limit; /* limit: the job does not need bytes past it */
    struct tilehash hash, rounded;
    struct digest *digest;
    struct packer *packer;
    unsigned char *chunk, *cast;
    size_t chunk_capacity, cast_capacity;
    int64_t tiles, chunks;
    uint64_t bytes;
    /* what the tile callbacks need to know of the run being hashed */
    const struct ckpt_piece *piece;
    const struct ckpt_tensor *tensor;
};

void *integrity_worker_new(void *ctx, struct glm_error *err)
{
    struct integrity_worker *w = calloc(1, sizeof *w);
    if (w == NULL)
        return NULL;
    w->g = ctx;
    w->shard = -1;
    w->file = (struct dio){.fd = -1, .direct = -1};
    tilehash_init(&w->hash);
    tilehash_init(&w->rounded);
    w->capacity = SCAN_READ_BYTES + 2 * DIO_ALIGN;
    w->buf = dio_alloc(w->capacity);
    w->digest = digest_new();
    w->packer = packer_new();
    if (w->buf == NULL || w->digest == NULL || w->packer == NULL) {
        glm_fail(err, GLM_ENOMEM, "out of memory for the buffers of a thread");
        integrity_worker_free(w);
        return NULL;
    }
    return w;
}

void integrity_worker_free(void *state)
{
    struct integrity_worker *w = state;
    if (w == NULL)
        return;
    struct integrity_report *r = w->g->report;
    pthread_mutex_lock(&r->findings.lock);
    r->tiles_checked += w->tiles;
    r->chunks_checked += w->chunks;
    r->bytes_checked += w->bytes;
    pthread_mutex_unlock(&r->findings.lock);
    if (w->shard >= 0)
        dio_close(&w->file);
    if (w->buf != NULL)
        dio_free(w->buf, w->capacity);
    tilehash_clear(&w->hash);
    tilehash_clear(&w->rounded);
    digest_free(w->digest);
    packer_free(w->packer);
    free(w->chunk);
    free(w->cast);
    free(w);
}

static int integrity_reserve(
    unsigned char **p, size_t *capacity, size_t size, struct glm_error *err)
{
    if (size <= *capacity)
        return GLM_OK;
    free(*p);
    *p = malloc(size);
    *capacity = *p != NULL ? size : 0;
    return *p != NULL
        ? GLM_OK
        : glm_fail(err, GLM_ENOMEM, "out of memory for a tile of %zu bytes", size);
}

/* ---- findings ---------------------------------------------------------------------------------- */

static struct finding integrity_finding(const struct integrity_worker *w,
    enum finding_kind kind, uint64_t offset, uint64_t bytes)
{
    struct finding f = {
        .kind = kind, .shard = w->shard, .offset = offset, .bytes = bytes, .tile = -1};
    snprintf(f.file, sizeof f.file, "%s", w->g->m->shards[w->shard].file);
    return f;
}

/* "what" about some elements: shard, bytes, tensor, tile, range. */
static int integrity_tell(struct integrity_worker *w, struct finding *f,
    const struct ckpt_tensor *t, int64_t tile, const struct rect *at, const char *what,
    struct glm_error *err)
{
    char range[160], number[32] = "";
    finding_place(f, t, tile, at);
    finding_range(f->rank, f->lo, f->hi, range, sizeof range);
    if (tile >= 0)
        snprintf(number, sizeof number, " tile %lld,", (long long)tile);
    snprintf(f->text, sizeof f->text,
        "%.64s: bytes %llu to %llu: %s %.180s:%s elements %s: %s", f->file,
        (unsigned long long)f->offset, (unsigned long long)(f->offset + f->bytes),
        f->section, f->member[0] != '\0' ? f->member : f->tensor, number, range, what);
    return findings_add(&w->g->report->findings, f, err);
}

/* File offset of an element of a plain piece. */
static uint64_t integrity_offset(
    const struct ckpt_piece *p, const struct ckpt_tensor *t, const int64_t at[RECT_AXES])
{
    const int64_t rows = rect_len(&p->at, 1), cols = rect_len(&p->at, 2);
    const int64_t n =
        ((at[0] - p->at.lo[0]) * rows + at[1] - p->at.lo[1]) * cols + at[2] - p->at.lo[2];
    return p->offset + (uint64_t)n * glm_dtype_size(t->dtype);
}

static int integrity_compare(struct integrity_worker *w, const struct ckpt_tensor *t,
    int64_t tile, const unsigned char sha256[32], uint64_t offset, uint64_t bytes,
    struct glm_error *err)
{
    const unsigned char *want = w->g->ix->tiles + 32 * (size_t)(t->first_tile + tile);
    w->tiles++;
    if (memcmp(sha256, want, 32) == 0)
        return GLM_OK;
    char found[DIGEST_HEX], expected[DIGEST_HEX], what[160];
    struct finding f = integrity_finding(w, FINDING_TILE, offset, bytes);
    const struct rect at = tile_rect(&t->grid, tile);
    digest_hex(sha256, found);
    digest_hex(want, expected);
    snprintf(what, sizeof what, "%s SHA-256 is %.16s…, expected %.16s…",
        t->derived ? "rounded from its master," : "damaged:", found, expected);
    return integrity_tell(w, &f, t, tile, &at, what, err);
}

/* ---- plain pieces ------------------------------------------------------------------------------ */

static int integrity_tile(
    void *ctx, int64_t tile, const unsigned char sha256[32], struct glm_error *err)
{
    struct integrity_worker *w = ctx;
    const struct rect at = tile_rect(&w->tensor->grid, tile);
    /* From its first byte to its last in the file; a narrow tile shares that stretch with others. */
    const int64_t last[RECT_AXES] = {at.hi[0] - 1, at.hi[1] - 1, at.hi[2] - 1};
    const uint64_t begin = integrity_offset(w->piece, w->tensor, at.lo);
    const uint64_t end =
        integrity_offset(w->piece, w->tensor, last) + glm_dtype_size(w->tensor->dtype);
    return integrity_compare(w, w->tensor, tile, sha256, begin, end - begin, err);
}

static int integrity_tile_rounded(
    void *ctx, int64_t tile, const unsigned char sha256[32], struct glm_error *err)
{
    struct integrity_worker *w = ctx;
    const struct integrity *g = w->g;
    const struct ckpt_tensor *weight =
        &g->m->tensors[g->derived[w->tensor - g->m->tensors]];
    const struct rect at = tile_rect(&weight->grid, tile);
    return integrity_compare(
        w, weight, tile, sha256, integrity_offset(w->piece, w->tensor, at.lo), 0, err);
}

/* Bytes of the file from pos on that are at hand, at least one element; reads on when they end. */
static int integrity_window(struct integrity_worker *w, uint64_t pos, size_t element,
    const unsigned char **p, size_t *size, struct glm_error *err)
{
    if (pos < w->lo || pos + element > w->hi) {
        uint64_t end =
            pos + SCAN_READ_BYTES < w->limit ? pos + SCAN_READ_BYTES : w->limit;
        if (end > w->g->length[w->shard])
            end = w->g->length[w->shard];
        w->lo = w->hi = 0;
        if (dio_read(&w->file, pos, (size_t)(end - pos), w->buf, &w->window, err)
            != GLM_OK)
            return err->code;
        w->lo = pos;
        w->hi = end;
    }
    *p = w->window + (pos - w->lo);
    *size = (size_t)(w->hi - pos);
    return GLM_OK;
}

/* Hashes one run of bands (whole tiles of one expert) that lies at [begin, end) of the file. */
static int integrity_hash_run(struct integrity_worker *w, const struct rect *at,
    uint64_t begin, uint64_t end, struct glm_error *err)
{
    const size_t element = glm_dtype_size(w->tensor->dtype);
    const int64_t d = w->g->derived[w->tensor - w->g->m->tensors];
    const struct ckpt_tensor *weight = d >= 0 ? &w->g->m->tensors[d] : NULL;
    if (tilehash_begin(&w->hash, &w->tensor->grid, at, element, err) != GLM_OK)
        return err->code;
    if (weight != NULL
        && tilehash_begin(
               &w->rounded, &weight->grid, at, glm_dtype_size(weight->dtype), err)
            != GLM_OK)
        return err->code;
    for (uint64_t pos = begin; pos < end;) {
        const unsigned char *p = NULL;
        size_t size = 0;
        if (integrity_window(w, pos, element, &p, &size, err) != GLM_OK)
            return err->code;
        size = size < end - pos ? size : (size_t)(end - pos);
        size -= size % element;
        if (tilehash_feed(&w->hash, p, size, integrity_tile, w, err) != GLM_OK)
            return err->code;
        pos += size;
        if (weight == NULL)
            continue;
        const size_t n = size / element, bytes = n * glm_dtype_size(weight->dtype);
        if (integrity_reserve(&w->cast, &w->cast_capacity, bytes, err) != GLM_OK)
            return err->code;
        codec_cast(p, w->tensor->dtype, w->cast, weight->dtype, (int64_t)n);
        if (tilehash_feed(&w->rounded, w->cast, bytes, integrity_tile_rounded, w, err)
            != GLM_OK)
            return err->code;
    }
    w->bytes += end - begin;
    return GLM_OK;
}

/* A read that failed becomes a finding and the check goes on; out of memory does not. */
static int integrity_forgive(struct integrity_worker *w, const struct rect *at,
    uint64_t begin, uint64_t end, struct glm_error *e, struct glm_error *err)
{
    if (e->code != GLM_EIO && e->code != GLM_EFORMAT) {
        *err = *e;
        return err->code;
    }
    char what[200];
    struct finding f = integrity_finding(
        w, e->code == GLM_EIO ? FINDING_UNREADABLE : FINDING_LENGTH, begin, end - begin);
    snprintf(what, sizeof what, "%.190s", e->text);
    return integrity_tell(w, &f, w->tensor, -1, at, what, err);
}

static int integrity_plain(
    struct integrity_worker *w, const struct scan_span *span, struct glm_error *err)
{
    const struct manifest *m = w->g->m;
    const uint64_t row =
        (uint64_t)rect_len(&w->piece->at, 2) * glm_dtype_size(w->tensor->dtype);
    const bool cut = span->end > w->g->length[w->shard];
    uint64_t begin = span->begin;
    for (int64_t b = span->lo; b < span->hi && err->code == GLM_OK;) {
        struct rect at = scan_band(m, w->piece, b++);
        /* Bands below each other in one expert are one rectangle; in a cut file each is its own, so
         * that what is still there is checked. */
        for (; b < span->hi && !cut; b++) {
            const struct rect next = scan_band(m, w->piece, b);
            if (next.lo[0] != at.lo[0])
                break;
            at.hi[1] = next.hi[1];
        }
        const uint64_t end = begin + (uint64_t)rect_len(&at, 1) * row;
        if (end > w->g->length[w->shard]) {
            struct finding f = integrity_finding(w, FINDING_LENGTH, begin, end - begin);
            integrity_tell(w, &f, w->tensor, -1, &at, "past the end of the file", err);
        } else {
            struct glm_error e = {0};
            if (integrity_hash_run(w, &at, begin, end, &e) != GLM_OK)
                integrity_forgive(w, &at, begin, end, &e, err);
        }
        begin = end;
    }
    return err->code;
}

/* ---- compressed chunks ------------------------------------------------------------------------- */

/* SHA-256 of the rows x cols elements of a tile whose rows lie `pitch` bytes apart. */
static void integrity_hash_tile(struct integrity_worker *w, const unsigned char *p,
    int64_t rows, size_t row, size_t pitch, unsigned char sha256[32])
{
    digest_begin(w->digest);
    if (row == pitch)
        digest_update(w->digest, p, (size_t)rows * row);
    else
        for (int64_t r = 0; r < rows; r++)
            digest_update(w->digest, p + (size_t)r * pitch, row);
    digest_end(w->digest, sha256);
}

static int integrity_rounded_tile(struct integrity_worker *w, int64_t tile,
    const struct rect *at, size_t pitch, uint64_t offset, struct glm_error *err)
{
    const struct integrity *g = w->g;
    const struct ckpt_tensor *weight =
        &g->m->tensors[g->derived[w->tensor - g->m->tensors]];
    const size_t row = (size_t)rect_len(at, 2) * glm_dtype_size(weight->dtype);
    const size_t rows = (size_t)rect_len(at, 1);
    if (integrity_reserve(&w->cast, &w->cast_capacity, rows * row, err) != GLM_OK)
        return err->code;
    for (size_t r = 0; r < rows; r++)
        codec_cast(w->chunk + r * pitch, w->tensor->dtype, w->cast + r * row,
            weight->dtype, rect_len(at, 2));
    unsigned char sha256[32];
    integrity_hash_tile(w, w->cast, (int64_t)rows, row, row, sha256);
    return integrity_compare(w, weight, tile, sha256, offset, 0, err);
}

/* The canonical number of chunk i of a piece. */
static int64_t integrity_chunk_tile(
    const struct manifest *m, const struct ckpt_piece *p, int64_t i)
{
    struct rect t;
    shard_piece_tiles(m, p, &t);
    const int64_t cols = rect_len(&t, 2), rows = rect_len(&t, 1);
    return tile_index(&m->tensors[p->tensor].grid, t.lo[0] + i / cols / rows,
        t.lo[1] + i / cols % rows, t.lo[2] + i % cols);
}

static int integrity_chunk(struct integrity_worker *w, int64_t i,
    const unsigned char *stored, struct glm_error *err)
{
    const struct integrity *g = w->g;
    const struct ckpt_chunk *c = &g->ix->chunks[w->piece->first_chunk + i];
    const int64_t tile = integrity_chunk_tile(g->m, w->piece, i);
    const struct rect at = tile_rect(&w->tensor->grid, tile);
    struct finding f = integrity_finding(w, FINDING_CHUNK, c->offset, c->bytes);
    unsigned char sha256[32];
    if (stored == NULL)
        return integrity_tell(
            w, &f, w->tensor, tile, &at, "past the end of the file", err);
    w->chunks++;
    w->bytes += c->bytes;
    digest_of(stored, c->bytes, sha256);
    if (memcmp(sha256, c->sha256, 32) != 0)
        return integrity_tell(w, &f, w->tensor, tile, &at,
            "damaged: the stored bytes are not those "
            "that were written",
            err);
    int64_t dims[RECT_AXES];
    shard_chunk_dims(g->m, w->piece, dims);
    const size_t element = glm_dtype_size(w->tensor->dtype);
    const size_t pitch = (size_t)dims[2] * element;
    const size_t size = (size_t)dims[0] * (size_t)dims[1] * pitch;
    if (integrity_reserve(&w->chunk, &w->chunk_capacity, size, err) != GLM_OK)
        return err->code;
    struct glm_error e = {0};
    if (packer_unpack(w->packer, stored, c->bytes, c->mask, w->chunk, size, element, &e)
        != GLM_OK) {
        char what[200];
        snprintf(what, sizeof what, "%.190s", e.text);
        return integrity_tell(w, &f, w->tensor, tile, &at, what, err);
    }
    integrity_hash_tile(
        w, w->chunk, rect_len(&at, 1), (size_t)rect_len(&at, 2) * element, pitch, sha256);
    if (integrity_compare(w, w->tensor, tile, sha256, c->offset, c->bytes, err) != GLM_OK)
        return err->code;
    if (g->derived[w->tensor - g->m->tensors] >= 0)
        return integrity_rounded_tile(w, tile, &at, pitch, c->offset, err);
    return GLM_OK;
}

static int integrity_grow(struct integrity_worker *w, size_t size, struct glm_error *err)
{
    if (size + 2 * DIO_ALIGN <= w->capacity)
        return GLM_OK;
    dio_free(w->buf, w->capacity);
    w->capacity = size + 2 * DIO_ALIGN;
    w->lo = w->hi = 0;
    if ((w->buf = dio_alloc(w->capacity)) == NULL)
        return glm_fail(err, GLM_ENOMEM, "out of memory for a chunk of %zu bytes", size);
    return GLM_OK;
}

static int integrity_packed(
    struct integrity_worker *w, const struct scan_span *span, struct glm_error *err)
{
    const struct ckpt_chunk *chunks = w->g->ix->chunks + w->piece->first_chunk;
    const uint64_t length = w->g->length[w->shard];
    const uint64_t end = span->end < length ? span->end : length;
    unsigned char *p = NULL;
    w->lo = w->hi = 0; /* the window's buffer is used here */
    if (end > span->begin) {
        const size_t size = (size_t)(end - span->begin);
        struct glm_error e = {0};
        if (integrity_grow(w, size, err) != GLM_OK)
            return err->code;
        if (dio_read(&w->file, span->begin, size, w->buf, &p, &e) != GLM_OK) {
            const struct rect at = w->piece->at;
            return integrity_forgive(w, &at, span->begin, span->end, &e, err);
        }
    }
    for (int64_t i = span->lo; i < span->hi && err->code == GLM_OK; i++) {
        const bool there = chunks[i].offset + chunks[i].bytes <= length;
        integrity_chunk(w, i, there ? p + (chunks[i].offset - span->begin) : NULL, err);
    }
    return err->code;
}

/* ---- jobs -------------------------------------------------------------------------------------- */

static int integrity_structure(struct integrity_worker *w, struct glm_error *err)
{
    const struct integrity *g = w->g;
    const struct ckpt_shard *s = &g->m->shards[w->shard];
    if (g->length[w->shard] != s->bytes)
        return GLM_OK; /* its length was told already */
    struct finding f = integrity_finding(w, FINDING_STRUCTURE, 0, 0);
    struct glm_error e = {0};
    unsigned char sha256[32];
    if (shard_skeleton(g->m, g->ix->chunks, w->shard, w->file.path, sha256, &e)
        != GLM_OK) {
        if (e.code != GLM_EIO && e.code != GLM_EFORMAT) {
            *err = e;
            return err->code;
        }
        f.kind = e.code == GLM_EIO ? FINDING_UNREADABLE : FINDING_STRUCTURE;
        snprintf(f.text, sizeof f.text, "%.511s", e.text);
        return findings_add(&g->report->findings, &f, err);
    }
    if (memcmp(sha256, s->skeleton, 32) == 0)
        return GLM_OK;
    char found[DIGEST_HEX], expected[DIGEST_HEX];
    digest_hex(sha256, found);
    digest_hex(s->skeleton, expected);
    snprintf(f.text, sizeof f.text,
        "%s: shard structure (HDF5 headers, chunk indexes, padding: all "
        "that is not data) is damaged: SHA-256 is %.16s…, expected %.16s…",
        s->file, found, expected);
    return findings_add(&g->report->findings, &f, err);
}

static int integrity_switch(
    struct integrity_worker *w, int64_t shard, struct glm_error *err)
{
    if (w->shard == shard)
        return GLM_OK;
    if (w->shard >= 0)
        dio_close(&w->file);
    w->shard = -1;
    w->lo = w->hi = 0;
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", w->g->dir, w->g->m->shards[shard].file);
    if (dio_open_read(&w->file, path, err) != GLM_OK)
        return err->code;
    w->shard = shard;
    return GLM_OK;
}

int integrity_job(void *ctx, void *state, int64_t job, struct glm_error *err)
{
    struct integrity *g = ctx;
    struct integrity_worker *w = state;
    const struct scan_job *j = &g->scan.jobs[job];
    struct glm_error e = {0};
    if (integrity_switch(w, j->shard, &e) != GLM_OK) {
        /* Told once per shard, by the job that every shard has once. */
        if (!j->structure)
            return GLM_OK;
        struct finding f = {.kind = FINDING_UNREADABLE, .shard = j->shard, .tile = -1};
        snprintf(f.file, sizeof f.file, "%s", g->m->shards[j->shard].file);
        snprintf(f.text, sizeof f.text, "%.511s", e.text);
        return findings_add(&g->report->findings, &f, err);
    }
    if (j->structure)
        return integrity_structure(w, err);
    w->limit = g->scan.spans[j->first_span + j->spans - 1].end;
    for (int64_t i = 0; i < j->spans && err->code == GLM_OK; i++) {
        const struct scan_span *span = &g->scan.spans[j->first_span + i];
        w->piece = &g->m->pieces[span->piece];
        w->tensor = &g->m->tensors[w->piece->tensor];
        if (w->piece->encoding == ENC_PLAIN)
            integrity_plain(w, span, err);
        else
            integrity_packed(w, span, err);
    }
    return err->code;
}

uint64_t integrity_job_bytes(const struct integrity *g, int64_t job)
{
    const struct scan_job *j = &g->scan.jobs[job];
    uint64_t n = 0;
    for (int64_t i = 0; i < j->spans; i++)
        n +=
            g->scan.spans[j->first_span + i].end - g->scan.spans[j->first_span + i].begin;
    return n;
}

void integrity_job_done(void *ctx, int64_t job)
{
    struct integrity *g = ctx;
    g->done += integrity_job_bytes(g, job);
    glm_events_progress(g->events, "verify", g->done, g->total);
}
