/* Relative norms per layer: ||A - B|| / ||A||, in float64, summed in a fixed order. A pass of its
 * own, over the layers in question only: what is equal is read on one side. Codes count as the
 * values they stand for. */
#include <math.h>
#include <stdlib.h>

#include "kernels/base/crew.h"
#include "verify/diff_scan.h"

struct norms_pass {
    struct diff *d;
    const struct diff_job *jobs;
    struct norms_sum {
        double a, d;
    } * sums; /* by job */
    uint64_t done, total;
};

struct norms_worker {
    struct norms_pass *pass;
    struct side_cursor a, b;
    float *x, *y;
    size_t capacity;
};

static void *norms_worker_new(void *ctx, struct glm_error *err)
{
    (void)err;
    struct norms_worker *w = calloc(1, sizeof *w);
    if (w != NULL)
        w->pass = ctx;
    return w;
}

static void norms_worker_free(void *state)
{
    struct norms_worker *w = state;
    side_cursor_clear(&w->a);
    side_cursor_clear(&w->b);
    free(w->x);
    free(w->y);
    free(w);
}

static int norms_room(struct norms_worker *w, size_t n, struct glm_error *err)
{
    if (n <= w->capacity)
        return GLM_OK;
    free(w->x);
    free(w->y);
    w->x = malloc(n * sizeof *w->x);
    w->y = malloc(n * sizeof *w->y);
    w->capacity = w->x != NULL && w->y != NULL ? n : 0;
    return w->capacity > 0
        ? GLM_OK
        : glm_fail(err, GLM_ENOMEM, "out of memory for %zu numbers", n);
}

/* Only pairs that have numbers on both sides; a scale's numbers are in its weight's. */
static bool norms_counts(const struct diff_pair *p)
{
    return p->a >= 0 && p->b >= 0 && p->verdict != DIFF_SHAPE && p->entry != NULL
        && !p->is_scale;
}

static bool norms_differs(const struct diff *d, const struct diff_pair *p)
{
    if (p->verdict != DIFF_EQUAL)
        return true;
    /* Equal codes under different scales are different numbers. */
    const int64_t sa = d->a.rows[p->a].scale;
    if (sa < 0 || d->o->tolerance)
        return false;
    for (int64_t i = 0; i < d->report->pair_count; i++)
        if (d->report->pairs[i].a == sa)
            return d->report->pairs[i].verdict != DIFF_EQUAL;
    return false;
}

static int norms_slot(const struct diff *d, int layer)
{
    for (int64_t i = 0; i < d->report->layer_count; i++)
        if (d->report->layers[i].layer == layer)
            return (int)i;
    return -1;
}

static bool norms_want(const struct diff *d, const struct diff_pair *p)
{
    return norms_counts(p) && norms_slot(d, p->entry->layer) >= 0;
}

static void norms_add(const float *x, const float *y, int64_t n, struct norms_sum *sum)
{
    for (int64_t i = 0; i < n; i++) {
        const double a = x[i], e = y != NULL ? a - (double)y[i] : 0.0;
        sum->a += a * a;
        sum->d += e * e;
    }
}

static int norms_work(void *ctx, void *state, int64_t job, struct glm_error *err)
{
    struct norms_pass *pass = ctx;
    struct norms_worker *w = state;
    const struct diff *d = pass->d;
    const struct diff_job *j = &pass->jobs[job];
    const struct diff_pair *p = &d->report->pairs[j->pair];
    const struct tile_grid *g = &d->a.rows[p->a].grid;
    const bool differs = norms_differs(d, p);
    for (int64_t band = j->lo; band < j->hi; band++) {
        const struct rect at = diff_band(g, j->e, band);
        const int64_t step = diff_rows(&at, sizeof(float), 128);
        for (int64_t top = at.lo[1]; top < at.hi[1]; top += step) {
            struct rect part = at;
            part.lo[1] = top;
            part.hi[1] = top + step < at.hi[1] ? top + step : at.hi[1];
            const int64_t n = rect_count(&part);
            if (norms_room(w, (size_t)n, err) != GLM_OK
                || side_numbers(&d->a, &w->a, p->a, &part, w->x, err) != GLM_OK
                || (differs
                    && side_numbers(&d->b, &w->b, p->b, &part, w->y, err) != GLM_OK))
                return err->code;
            norms_add(w->x, differs ? w->y : NULL, n, &pass->sums[job]);
        }
    }
    return GLM_OK;
}

static void norms_done(void *ctx, int64_t job)
{
    struct norms_pass *pass = ctx;
    const struct diff_job *j = &pass->jobs[job];
    const struct diff_pair *p = &pass->d->report->pairs[j->pair];
    struct diff_layer *l = &pass->d->report->layers[norms_slot(pass->d, p->entry->layer)];
    l->norm_a += pass->sums[job].a;
    l->norm_d += pass->sums[job].d;
    pass->done += j->bytes;
    glm_events_progress(pass->d->o->events, "norms", pass->done, pass->total);
}

/* Lists the layers: those with a difference, or all of them. */
static int norms_layers(struct diff *d, struct glm_error *err)
{
    struct diff_report *r = d->report;
    r->layers = calloc((size_t)r->pair_count + 1, sizeof *r->layers);
    if (r->layers == NULL)
        return glm_fail(err, GLM_ENOMEM, "out of memory");
    for (int layer = -1, last = -1; layer <= last; layer++)
        for (int64_t i = 0; i < r->pair_count; i++) {
            const struct diff_pair *p = &r->pairs[i];
            if (p->entry != NULL && p->entry->layer > last)
                last = p->entry->layer;
            if (norms_counts(p) && p->entry->layer == layer && norms_slot(d, layer) < 0
                && (d->o->norms || norms_differs(d, p)))
                r->layers[r->layer_count++].layer = layer;
        }
    return GLM_OK;
}

int diff_norms(struct diff *d, struct glm_error *err)
{
    struct norms_pass pass = {.d = d};
    struct diff_job *jobs = NULL;
    int64_t count = 0;
    if (norms_layers(d, err) != GLM_OK || d->report->layer_count == 0
        || diff_jobs(d, norms_want, &jobs, &count, err) != GLM_OK)
        goto out;
    pass.jobs = jobs;
    for (int64_t i = 0; i < count; i++)
        pass.total += jobs[i].bytes;
    pass.sums = calloc((size_t)count + 1, sizeof *pass.sums);
    if (pass.sums == NULL) {
        glm_fail(err, GLM_ENOMEM, "out of memory for %lld jobs", (long long)count);
        goto out;
    }
    const struct crew crew = {
        .threads = d->o->threads,
        .count = count,
        .ctx = &pass,
        .events = d->o->events,
        .start = norms_worker_new,
        .stop = norms_worker_free,
        .work = norms_work,
        .done = norms_done,
    };
    crew_run(&crew, err);
    for (int64_t i = 0; i < d->report->layer_count; i++) {
        d->report->layers[i].norm_a = sqrt(d->report->layers[i].norm_a);
        d->report->layers[i].norm_d = sqrt(d->report->layers[i].norm_d);
    }
out:
    free(pass.sums);
    free(jobs);
    return err->code;
}
