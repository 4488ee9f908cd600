#include "verify/diff_scan.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/base/crew.h"
#include "verify/tilehash.h"

enum { DIFF_HASH_READ = 8 << 20 };

/* What a job found; merged into its pair in job order. */
struct diff_result {
    struct diff_stats stats;
    int64_t tiles_different;
    struct diff_tile *detail;
    int64_t detail_count;
    uint64_t bytes_read;
};

struct diff_pass {
    struct diff *d;
    const struct diff_job *jobs;
    struct diff_result *results;
    uint64_t done, total;
};

struct diff_worker {
    struct diff_pass *pass;
    struct side_cursor a, b, stream;
    struct tilehash hash;
    struct diff_stats *columns;
    int64_t column_capacity;
    float *numbers[2];
    size_t number_capacity;
    int64_t *suspects; /* tiles whose digests differ */
    int64_t suspect_count, suspect_capacity;
    /* the job at hand */
    const struct diff_pair *pair;
    const unsigned char *recorded; /* digests of the side that has them */
    struct diff_result *result;
};

static void *diff_worker_new(void *ctx, struct glm_error *err)
{
    (void)err;
    struct diff_worker *w = calloc(1, sizeof *w);
    if (w != NULL) {
        w->pass = ctx;
        tilehash_init(&w->hash);
    }
    return w;
}

static void diff_worker_free(void *state)
{
    struct diff_worker *w = state;
    side_cursor_clear(&w->a);
    side_cursor_clear(&w->b);
    side_cursor_clear(&w->stream);
    tilehash_clear(&w->hash);
    free(w->columns);
    free(w->numbers[0]);
    free(w->numbers[1]);
    free(w->suspects);
    free(w);
}

static const struct side_row *diff_row(const struct diff *d, const struct diff_pair *p)
{
    return p->a >= 0 ? &d->a.rows[p->a] : &d->b.rows[p->b];
}

/* ---- elements ---------------------------------------------------------------------------------- */

static int diff_room(
    struct diff_worker *w, int64_t columns, int64_t numbers, struct glm_error *err)
{
    if (columns > w->column_capacity) {
        free(w->columns);
        w->columns = calloc((size_t)columns, sizeof *w->columns);
        w->column_capacity = w->columns != NULL ? columns : 0;
    }
    if ((size_t)numbers > w->number_capacity) {
        for (int i = 0; i < 2; i++) {
            free(w->numbers[i]);
            w->numbers[i] = malloc((size_t)numbers * sizeof(float));
        }
        const bool good = w->numbers[0] != NULL && w->numbers[1] != NULL;
        w->number_capacity = good ? (size_t)numbers : 0;
    }
    if (columns > w->column_capacity || (size_t)numbers > w->number_capacity)
        return glm_fail(
            err, GLM_ENOMEM, "out of memory for %lld elements", (long long)numbers);
    return GLM_OK;
}

/* Both sides' elements of a rectangle, as they are or as numbers. */
static int diff_fetch(struct diff_worker *w, const struct rect *at, bool by_value,
    const void **a, const void **b, struct glm_error *err)
{
    const struct diff *d = w->pass->d;
    const struct diff_pair *p = w->pair;
    w->result->bytes_read += (uint64_t)rect_count(at)
        * (glm_dtype_size(p->dtype_a) + glm_dtype_size(p->dtype_b));
    if (by_value) {
        if (diff_room(w, 0, rect_count(at), err) != GLM_OK
            || side_numbers(&d->a, &w->a, p->a, at, w->numbers[0], err) != GLM_OK
            || side_numbers(&d->b, &w->b, p->b, at, w->numbers[1], err) != GLM_OK)
            return err->code;
        *a = w->numbers[0];
        *b = w->numbers[1];
        return GLM_OK;
    }
    const unsigned char *pa, *pb;
    if (side_read(&d->a, &w->a, p->a, at, &pa, err) != GLM_OK
        || side_read(&d->b, &w->b, p->b, at, &pb, err) != GLM_OK)
        return err->code;
    *a = pa;
    *b = pb;
    return GLM_OK;
}

/* The type whose ULP count: the type itself, or the smaller of two. */
static enum glm_dtype diff_ulp_dtype(const struct diff_pair *p, bool by_value)
{
    if (!by_value)
        return p->dtype_a;
    if (p->dtype_a == GLM_F32 && p->dtype_b == GLM_F32)
        return GLM_F32;
    if ((p->dtype_a == GLM_F16 || p->dtype_b == GLM_F16) && p->dtype_a != GLM_BF16
        && p->dtype_b != GLM_BF16)
        return GLM_F16;
    return GLM_BF16;
}

static int diff_tell_tile(struct diff_worker *w, const struct tile_grid *g,
    const struct rect *at, const struct diff_stats *s, struct glm_error *err)
{
    struct diff_result *r = w->result;
    compare_merge(&r->stats, s);
    if (s->different == 0)
        return GLM_OK;
    r->tiles_different++;
    if (r->detail_count == DIFF_TILES)
        return GLM_OK;
    if (r->detail == NULL && (r->detail = calloc(DIFF_TILES, sizeof *r->detail)) == NULL)
        return glm_fail(err, GLM_ENOMEM, "out of memory");
    const int64_t tile =
        tile_index(g, at->lo[0], at->lo[1] / g->tile[1], at->lo[2] / g->tile[2]);
    r->detail[r->detail_count++] = (struct diff_tile){tile, tile_rect(g, tile), *s};
    return GLM_OK;
}

/* Compares a rectangle of whole tiles of one tile row. Read some rows at a time; each tile column
 * has its own statistics. */
static int diff_elements(
    struct diff_worker *w, const struct rect *at, struct glm_error *err)
{
    const struct diff *d = w->pass->d;
    const struct tile_grid *g = &diff_row(d, w->pair)->grid;
    const bool by_value = diff_by_value(d, w->pair);
    const struct compare c = {
        .o = d->o, .dtype = diff_ulp_dtype(w->pair, by_value), .numbers = by_value};
    const size_t element = by_value ? sizeof(float) : glm_dtype_size(w->pair->dtype_a);
    const int64_t width = g->tile[2], pitch = rect_len(at, 2);
    const int64_t columns = (pitch + width - 1) / width;
    const int64_t step = diff_rows(at, element, by_value ? 128 : 1);
    if (diff_room(w, columns, 0, err) != GLM_OK)
        return err->code;
    for (int64_t i = 0; i < columns; i++)
        compare_init(&w->columns[i]);
    for (int64_t top = at->lo[1]; top < at->hi[1]; top += step) {
        struct rect part = *at;
        part.lo[1] = top;
        part.hi[1] = top + step < at->hi[1] ? top + step : at->hi[1];
        const void *pa = NULL, *pb = NULL;
        if (diff_fetch(w, &part, by_value, &pa, &pb, err) != GLM_OK)
            return err->code;
        for (int64_t row = top; row < part.hi[1]; row++)
            for (int64_t i = 0; i < columns; i++) {
                const int64_t left = i * width,
                              n = left + width < pitch ? width : pitch - left;
                const size_t skip = (size_t)((row - top) * pitch + left) * element;
                const int64_t linear =
                    (at->lo[0] * g->dims[1] + row) * g->dims[2] + at->lo[2] + left;
                compare_run(&c, (const char *)pa + skip, (const char *)pb + skip, n,
                    linear, &w->columns[i]);
            }
    }
    for (int64_t i = 0; i < columns; i++) {
        struct rect tile = *at;
        tile.lo[2] = at->lo[2] + i * width;
        if (diff_tell_tile(w, g, &tile, &w->columns[i], err) != GLM_OK)
            return err->code;
    }
    return GLM_OK;
}

/* ---- digests ----------------------------------------------------------------------------------- */

static int diff_suspect(struct diff_worker *w, int64_t tile, struct glm_error *err)
{
    if (w->suspect_count == w->suspect_capacity) {
        const int64_t n = w->suspect_capacity == 0 ? 64 : 2 * w->suspect_capacity;
        int64_t *p = realloc(w->suspects, (size_t)n * sizeof *p);
        if (p == NULL)
            return glm_fail(
                err, GLM_ENOMEM, "out of memory for %lld tiles", (long long)n);
        w->suspects = p;
        w->suspect_capacity = n;
    }
    w->suspects[w->suspect_count++] = tile;
    return GLM_OK;
}

static int diff_hashed(
    void *ctx, int64_t tile, const unsigned char sha256[32], struct glm_error *err)
{
    struct diff_worker *w = ctx;
    if (memcmp(sha256, w->recorded + 32 * (size_t)tile, 32) == 0)
        return GLM_OK;
    return diff_suspect(w, tile, err);
}

/* Hashes the Hugging Face side of a job's bands as they lie in the file. */
static int diff_hash(
    struct diff_worker *w, const struct diff_job *j, struct glm_error *err)
{
    const struct diff *d = w->pass->d;
    const struct side *s = d->a.hf ? &d->a : &d->b;
    const int64_t row = d->a.hf ? w->pair->a : w->pair->b;
    const struct side_row *r = &s->rows[row];
    struct rect at = diff_band(&r->grid, j->e, j->lo);
    at.hi[1] = diff_band(&r->grid, j->e, j->hi - 1).hi[1];
    w->recorded = d->a.hf ? d->b.rows[w->pair->b].tiles : d->a.rows[w->pair->a].tiles;
    const size_t element = glm_dtype_size(r->dtype);
    if (tilehash_begin(&w->hash, &r->grid, &at, element, err) != GLM_OK)
        return err->code;
    const uint64_t line = (uint64_t)rect_len(&at, 2) * element;
    int64_t step = line > 0 ? (int64_t)(DIFF_HASH_READ / line) : 1;
    step = step > 0 ? step : 1;
    for (int64_t top = at.lo[1]; top < at.hi[1]; top += step) {
        struct rect part = at;
        part.lo[1] = top;
        part.hi[1] = top + step < at.hi[1] ? top + step : at.hi[1];
        const unsigned char *data;
        if (side_read(s, &w->stream, row, &part, &data, err) != GLM_OK)
            return err->code;
        const size_t size = (size_t)rect_count(&part) * element;
        w->result->bytes_read += size;
        if (tilehash_feed(&w->hash, data, size, diff_hashed, w, err) != GLM_OK)
            return err->code;
    }
    return GLM_OK;
}

/* Recorded digests against recorded digests: nothing is read for equal tiles. */
static int diff_lookup(
    struct diff_worker *w, const struct diff_job *j, struct glm_error *err)
{
    const struct diff *d = w->pass->d;
    const struct side_row *ra = &d->a.rows[w->pair->a], *rb = &d->b.rows[w->pair->b];
    const struct tile_grid *g = &ra->grid;
    for (int64_t band = j->lo; band < j->hi; band++)
        for (int64_t gc = 0; gc < g->count[2]; gc++) {
            const int64_t tile = tile_index(g, j->e, band, gc);
            if (memcmp(ra->tiles + 32 * (size_t)tile, rb->tiles + 32 * (size_t)tile, 32)
                    != 0
                && diff_suspect(w, tile, err) != GLM_OK)
                return err->code;
        }
    return GLM_OK;
}

static int diff_tile_order(const void *pa, const void *pb)
{
    const int64_t a = *(const int64_t *)pa, b = *(const int64_t *)pb;
    return a < b ? -1 : a > b;
}

static int diff_suspects(struct diff_worker *w, struct glm_error *err)
{
    const struct tile_grid *g = &diff_row(w->pass->d, w->pair)->grid;
    if (w->suspect_count > 1)
        qsort(
            w->suspects, (size_t)w->suspect_count, sizeof *w->suspects, diff_tile_order);
    for (int64_t i = 0; i < w->suspect_count && err->code == GLM_OK; i++) {
        const struct rect at = tile_rect(g, w->suspects[i]);
        diff_elements(w, &at, err);
    }
    return err->code;
}

/* ---- jobs -------------------------------------------------------------------------------------- */

static int diff_work(void *ctx, void *state, int64_t job, struct glm_error *err)
{
    struct diff_pass *pass = ctx;
    struct diff_worker *w = state;
    const struct diff_job *j = &pass->jobs[job];
    const struct diff *d = pass->d;
    w->pair = &d->report->pairs[j->pair];
    w->result = &pass->results[job];
    w->suspect_count = 0;
    compare_init(&w->result->stats);
    if (w->pair->method == DIFF_BY_ELEMENT) {
        for (int64_t band = j->lo; band < j->hi && err->code == GLM_OK; band++) {
            const struct rect at = diff_band(&diff_row(d, w->pair)->grid, j->e, band);
            diff_elements(w, &at, err);
        }
        return err->code;
    }
    if (d->a.hf || d->b.hf)
        diff_hash(w, j, err);
    else
        diff_lookup(w, j, err);
    if (err->code != GLM_OK)
        return err->code;
    return diff_suspects(w, err);
}

/* Called in job order: first tiles first, whatever finished first. */
static void diff_done(void *ctx, int64_t job)
{
    struct diff_pass *pass = ctx;
    struct diff_result *r = &pass->results[job];
    struct diff_pair *p = &pass->d->report->pairs[pass->jobs[job].pair];
    compare_merge(&p->stats, &r->stats);
    p->tiles_different += r->tiles_different;
    if (r->detail_count > 0 && p->detail == NULL) {
        p->detail = r->detail;
        p->detail_count = r->detail_count;
        r->detail = NULL;
    } else {
        for (int64_t i = 0; i < r->detail_count && p->detail_count < DIFF_TILES; i++)
            p->detail[p->detail_count++] = r->detail[i];
    }
    free(r->detail);
    r->detail = NULL;
    pass->d->report->bytes_read += r->bytes_read;
    pass->done += pass->jobs[job].bytes;
    glm_events_progress(pass->d->o->events, "compare", pass->done, pass->total);
}

static bool diff_open_question(const struct diff *d, const struct diff_pair *p)
{
    (void)d;
    return p->a >= 0 && p->b >= 0
        && (p->verdict == DIFF_UNCOMPARED || p->verdict == DIFF_DIFFERENT);
}

static void diff_settle(struct diff *d)
{
    for (int64_t i = 0; i < d->report->pair_count; i++) {
        struct diff_pair *p = &d->report->pairs[i];
        if (!diff_open_question(d, p))
            continue;
        if (p->stats.different == 0)
            p->verdict = DIFF_EQUAL;
        else
            p->verdict = p->stats.beyond == 0 ? DIFF_WITHIN : DIFF_DIFFERENT;
    }
}

int diff_scan(struct diff *d, struct glm_error *err)
{
    struct diff_job *jobs = NULL;
    struct diff_pass pass = {.d = d};
    int64_t count = 0;
    for (int64_t i = 0; i < d->report->pair_count;
         i++) { /* told again with their elements */
        struct diff_pair *p = &d->report->pairs[i];
        free(p->detail);
        p->detail = NULL;
        p->detail_count = p->tiles_different = 0;
    }
    if (diff_jobs(d, diff_open_question, &jobs, &count, err) != GLM_OK)
        return err->code;
    pass.jobs = jobs;
    for (int64_t i = 0; i < count; i++)
        pass.total += jobs[i].bytes;
    pass.results = calloc((size_t)count + 1, sizeof *pass.results);
    if (pass.results == NULL) {
        glm_fail(err, GLM_ENOMEM, "out of memory for %lld jobs", (long long)count);
        goto out;
    }
    const struct crew crew = {
        .threads = d->o->threads,
        .count = count,
        .ctx = &pass,
        .events = d->o->events,
        .start = diff_worker_new,
        .stop = diff_worker_free,
        .work = diff_work,
        .done = diff_done,
    };
    if (crew_run(&crew, err) == GLM_OK)
        diff_settle(d);
out:
    for (int64_t i = 0; pass.results != NULL && i < count; i++)
        free(pass.results[i].detail);
    free(pass.results);
    free(jobs);
    return err->code;
}
