#include <stdlib.h>

#include "verify/diff_scan.h"

static int64_t diff_band_count(const struct tile_grid *g)
{
    return g->count[1];
}

struct rect diff_band(const struct tile_grid *g, int64_t e, int64_t band)
{
    const int64_t top = band * g->tile[1], bottom = top + g->tile[1];
    return (struct rect){
        .lo = {e, top, 0},
        .hi = {e + 1, bottom < g->dims[1] ? bottom : g->dims[1], g->dims[2]},
    };
}

int64_t diff_rows(const struct rect *at, size_t element, int64_t step)
{
    const int64_t all = rect_len(at, 1);
    const uint64_t row = (uint64_t)rect_len(at, 2) * element;
    int64_t rows = row > 0 ? (int64_t)(DIFF_READ_BYTES / row) : all;
    if (rows >= all)
        return all;
    rows -= rows % step;
    return rows > 0 ? rows : step;
}

struct diff_job_list {
    struct diff_job *jobs;
    int64_t count, capacity;
};

static int diff_job_push(
    struct diff_job_list *l, const struct diff_job *j, struct glm_error *err)
{
    if (l->count == l->capacity) {
        const int64_t n = l->capacity == 0 ? 256 : 2 * l->capacity;
        struct diff_job *p = realloc(l->jobs, (size_t)n * sizeof *p);
        if (p == NULL)
            return glm_fail(err, GLM_ENOMEM, "out of memory for %lld jobs", (long long)n);
        l->jobs = p;
        l->capacity = n;
    }
    l->jobs[l->count++] = *j;
    return GLM_OK;
}

/* The cut depends on the tensor alone, so sums over jobs do not depend on the thread count. */
static int diff_job_cut(
    struct diff_job_list *l, const struct diff *d, int64_t pair, struct glm_error *err)
{
    const struct diff_pair *p = &d->report->pairs[pair];
    const struct tile_grid *g = p->a >= 0 ? &d->a.rows[p->a].grid : &d->b.rows[p->b].grid;
    const size_t element = glm_dtype_size(p->dtype_a);
    for (int64_t e = 0; e < g->dims[0]; e++) {
        struct diff_job j = {.pair = pair, .e = e};
        for (int64_t band = 0; band < diff_band_count(g); band++) {
            const struct rect r = diff_band(g, e, band);
            j.bytes += (uint64_t)rect_count(&r) * element;
            j.hi = band + 1;
            if (j.bytes < DIFF_JOB_BYTES && j.hi < diff_band_count(g))
                continue;
            if (diff_job_push(l, &j, err) != GLM_OK)
                return err->code;
            j = (struct diff_job){.pair = pair, .e = e, .lo = j.hi};
        }
    }
    return GLM_OK;
}

int diff_jobs(const struct diff *d,
    bool (*want)(const struct diff *d, const struct diff_pair *p), struct diff_job **out,
    int64_t *count, struct glm_error *err)
{
    struct diff_job_list l = {0};
    for (int64_t i = 0; i < d->report->pair_count && err->code == GLM_OK; i++)
        if (want(d, &d->report->pairs[i]))
            diff_job_cut(&l, d, i, err);
    if (err->code != GLM_OK) {
        free(l.jobs);
        l = (struct diff_job_list){0};
    }
    *out = l.jobs;
    *count = l.count;
    return err->code;
}
