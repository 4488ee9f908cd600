/* Statistics of one tensor in bounded memory, the same whatever the thread count.
 *
 * Types of up to 16 bits: the codes are counted (65,536 counters), and everything follows exactly
 * from the counts. Wider types and quantised values: two passes, the second fills the histogram;
 * partial sums are merged in the order of the tensor. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/crew.h"
#include "verify/diff_scan.h"
#include "verify/element.h"
#include "verify/inspect_private.h"

enum { STATS_CODES = 65536, STATS_SORTED = 65536 };

struct stats_part {
    int64_t n, zeros, nan, inf; /* n: finite elements */
    double min, max, mean, m2;
    int64_t bins[INSPECT_BINS];
};

struct stats {
    const struct side *s;
    const struct inspect_tensor *t;
    const struct side_row *r;
    bool codes, second;
    struct stats_job {
        int64_t e, lo, hi;
    } * jobs;
    int64_t job_count;
    struct stats_part *parts, sum;
    double lo, hi; /* of the histogram, second pass */
    /* [STATS_CODES], summed when a thread ends: integers, any order */
    int64_t *code_counts;
    pthread_mutex_t lock;
    uint64_t done, total;
    const struct glm_events *events;
};

struct stats_worker {
    struct stats *st;
    struct side_cursor cursor;
    int64_t *counts;
    float *numbers;
    double *values;
    size_t capacity;
};

static void stats_worker_free(void *state)
{
    struct stats_worker *w = state;
    if (w->counts != NULL) {
        pthread_mutex_lock(&w->st->lock);
        for (int i = 0; i < STATS_CODES; i++)
            w->st->code_counts[i] += w->counts[i];
        pthread_mutex_unlock(&w->st->lock);
    }
    side_cursor_clear(&w->cursor);
    free(w->counts);
    free(w->numbers);
    free(w->values);
    free(w);
}

static void *stats_worker_new(void *ctx, struct glm_error *err)
{
    struct stats_worker *w = calloc(1, sizeof *w);
    if (w == NULL)
        return NULL;
    w->st = ctx;
    if (w->st->codes && (w->counts = calloc(STATS_CODES, sizeof *w->counts)) == NULL) {
        glm_fail(err, GLM_ENOMEM, "out of memory for code counts");
        stats_worker_free(w);
        return NULL;
    }
    return w;
}

static int stats_bin(const struct stats *st, double v)
{
    const int b = (int)((v - st->lo) / (st->hi - st->lo) * INSPECT_BINS);
    return b < 0 ? 0 : b >= INSPECT_BINS ? INSPECT_BINS - 1 : b;
}

/* Chan, Golub and LeVeque's pairwise update. */
static void stats_merge(struct stats_part *a, const struct stats_part *b)
{
    a->zeros += b->zeros;
    a->nan += b->nan;
    a->inf += b->inf;
    for (int i = 0; i < INSPECT_BINS; i++)
        a->bins[i] += b->bins[i];
    if (b->n == 0)
        return;
    if (a->n == 0) {
        a->n = b->n;
        a->min = b->min;
        a->max = b->max;
        a->mean = b->mean;
        a->m2 = b->m2;
        return;
    }
    const double n = (double)(a->n + b->n), delta = b->mean - a->mean;
    a->m2 += b->m2 + delta * delta * ((double)a->n * (double)b->n / n);
    a->mean += delta * ((double)b->n / n);
    a->min = b->min < a->min ? b->min : a->min;
    a->max = b->max > a->max ? b->max : a->max;
    a->n += b->n;
}

static void stats_values(
    const struct stats *st, const double *v, int64_t n, struct stats_part *sum)
{
    struct stats_part p = {0};
    double total = 0;
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(v[i])) {
            p.nan += isnan(v[i]);
            p.inf += isinf(v[i]) != 0;
            continue;
        }
        if (st->second) {
            p.bins[stats_bin(st, v[i])]++;
            continue;
        }
        p.zeros += v[i] == 0;
        p.min = p.n == 0 || v[i] < p.min ? v[i] : p.min;
        p.max = p.n == 0 || v[i] > p.max ? v[i] : p.max;
        total += v[i];
        p.n++;
    }
    if (p.n > 0) {
        p.mean = total / (double)p.n;
        for (int64_t i = 0; i < n; i++)
            if (isfinite(v[i]))
                p.m2 += (v[i] - p.mean) * (v[i] - p.mean);
    }
    stats_merge(sum, &p);
}

static int stats_room(struct stats_worker *w, size_t n, struct glm_error *err)
{
    if (n <= w->capacity)
        return GLM_OK;
    free(w->numbers);
    free(w->values);
    w->numbers = malloc(n * sizeof *w->numbers);
    w->values = malloc(n * sizeof *w->values);
    w->capacity = w->numbers != NULL && w->values != NULL ? n : 0;
    return w->capacity > 0
        ? GLM_OK
        : glm_fail(err, GLM_ENOMEM, "out of memory for %zu numbers", n);
}

static int stats_rect(struct stats_worker *w, const struct rect *at,
    struct stats_part *part, struct glm_error *err)
{
    const struct stats *st = w->st;
    const int64_t n = rect_count(at);
    if (st->t->quantised) {
        if (stats_room(w, (size_t)n, err) != GLM_OK
            || side_numbers(st->s, &w->cursor, st->t->row, at, w->numbers, err) != GLM_OK)
            return err->code;
        element_values(GLM_F32, w->numbers, n, w->values);
        stats_values(st, w->values, n, part);
        return GLM_OK;
    }
    const unsigned char *data;
    if (side_read(st->s, &w->cursor, st->t->row, at, &data, err) != GLM_OK)
        return err->code;
    if (st->codes) {
        const bool wide = glm_dtype_size(st->r->dtype) == 2;
        for (int64_t i = 0; i < n; i++)
            w->counts[wide ? data[2 * i] | data[2 * i + 1] << 8 : data[i]]++;
        return GLM_OK;
    }
    if (stats_room(w, (size_t)n, err) != GLM_OK)
        return err->code;
    element_values(st->r->dtype, data, n, w->values);
    stats_values(st, w->values, n, part);
    return GLM_OK;
}

static int stats_work(void *ctx, void *state, int64_t job, struct glm_error *err)
{
    struct stats *st = ctx;
    const struct stats_job *j = &st->jobs[job];
    for (int64_t band = j->lo; band < j->hi; band++) {
        const struct rect at = diff_band(&st->r->grid, j->e, band);
        const int64_t step = diff_rows(&at, sizeof(float), 128);
        for (int64_t top = at.lo[1]; top < at.hi[1]; top += step) {
            struct rect part = at;
            part.lo[1] = top;
            part.hi[1] = top + step < at.hi[1] ? top + step : at.hi[1];
            if (stats_rect(state, &part, &st->parts[job], err) != GLM_OK)
                return err->code;
        }
    }
    return GLM_OK;
}

static void stats_done(void *ctx, int64_t job)
{
    struct stats *st = ctx;
    const struct stats_job *j = &st->jobs[job];
    stats_merge(&st->sum, &st->parts[job]);
    for (int64_t band = j->lo; band < j->hi; band++) {
        const struct rect at = diff_band(&st->r->grid, j->e, band);
        st->done += (uint64_t)rect_count(&at) * glm_dtype_size(st->r->dtype);
    }
    glm_events_progress(st->events, "statistics", st->done, st->total);
}

static int stats_jobs(struct stats *st, struct glm_error *err)
{
    const struct tile_grid *g = &st->r->grid;
    const int64_t first = st->t->member >= 0 ? st->t->member : 0;
    const int64_t last = st->t->member >= 0 ? first + 1 : g->dims[0];
    /* The cut depends on the shape alone, so the sums do not depend on the thread count. */
    const uint64_t band =
        (uint64_t)(g->tile[1] * g->dims[2]) * glm_dtype_size(st->r->dtype);
    int64_t per = band > 0 ? (int64_t)(DIFF_JOB_BYTES / band) : 1;
    per = per > 0 ? per : 1;
    const int64_t each = (g->count[1] + per - 1) / per;
    st->jobs = calloc((size_t)((last - first) * each) + 1, sizeof *st->jobs);
    st->parts = calloc((size_t)((last - first) * each) + 1, sizeof *st->parts);
    if (st->jobs == NULL || st->parts == NULL)
        return glm_fail(err, GLM_ENOMEM, "out of memory");
    for (int64_t e = first; e < last; e++)
        for (int64_t lo = 0; lo < g->count[1]; lo += per)
            st->jobs[st->job_count++] = (struct stats_job){
                e, lo, lo + per < g->count[1] ? lo + per : g->count[1]};
    st->total = (uint64_t)st->t->elements * glm_dtype_size(st->r->dtype);
    return GLM_OK;
}

static int stats_pass(struct stats *st, int threads, struct glm_error *err)
{
    const struct crew crew = {
        .threads = threads,
        .count = st->job_count,
        .ctx = st,
        .events = st->events,
        .start = stats_worker_new,
        .stop = stats_worker_free,
        .work = stats_work,
        .done = stats_done,
    };
    memset(&st->sum, 0, sizeof st->sum);
    memset(st->parts, 0, (size_t)st->job_count * sizeof *st->parts);
    st->done = 0;
    return crew_run(&crew, err);
}

/* A histogram of one value is one bar in the middle. */
static void stats_range(struct stats *st, double min, double max)
{
    st->lo = min;
    st->hi = max;
    if (!(max > min)) {
        const double half = min != 0 ? fabs(min) / 2 : 0.5;
        st->lo = min - half;
        st->hi = min + half;
    }
}

static void stats_from_codes(struct stats *st, struct inspect_stats *out)
{
    double total = 0, m2 = 0, min = 0, max = 0;
    int64_t n = 0;
    const int codes = glm_dtype_size(st->r->dtype) == 2 ? STATS_CODES : 256;
    out->distinct = 0;
    for (int pass = 0; pass < 2; pass++) {
        const double mean = n > 0 ? total / (double)n : 0;
        for (int i = 0; i < codes; i++) {
            const unsigned char code[2] = {(unsigned char)i, (unsigned char)(i >> 8)};
            const int64_t c = st->code_counts[i];
            const double v = element_value(st->r->dtype, code, 0);
            if (c == 0)
                continue;
            if (pass == 1 && isfinite(v)) {
                m2 += (double)c * (v - mean) * (v - mean);
                out->bins[stats_bin(st, v)] += c;
                continue;
            }
            if (pass == 1)
                continue;
            out->distinct++;
            out->nan += isnan(v) ? c : 0;
            out->inf += isinf(v) ? c : 0;
            if (!isfinite(v))
                continue;
            out->zeros += v == 0 ? c : 0;
            min = n == 0 || v < min ? v : min;
            max = n == 0 || v > max ? v : max;
            n += c;
            total += v * (double)c;
        }
        stats_range(st, min, max);
    }
    st->sum = (struct stats_part){
        .n = n, .min = min, .max = max, .mean = n > 0 ? total / (double)n : 0, .m2 = m2};
}

static int stats_sort(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Of small tensors of wide types: sorted copies. NaN and its payloads count as one. */
static int stats_distinct(
    struct stats *st, struct inspect_stats *out, struct glm_error *err)
{
    out->distinct = -1;
    if (st->t->elements > STATS_SORTED || st->t->quantised)
        return GLM_OK;
    double *all = malloc(((size_t)st->t->elements + 1) * sizeof *all);
    struct side_cursor c = {0};
    int64_t n = 0;
    if (all == NULL)
        return glm_fail(err, GLM_ENOMEM, "out of memory");
    for (int64_t j = 0; j < st->job_count && err->code == GLM_OK; j++)
        for (int64_t band = st->jobs[j].lo; band < st->jobs[j].hi; band++) {
            const struct rect at = diff_band(&st->r->grid, st->jobs[j].e, band);
            const unsigned char *data;
            if (side_read(st->s, &c, st->t->row, &at, &data, err) != GLM_OK)
                break;
            element_values(st->r->dtype, data, rect_count(&at), all + n);
            n += rect_count(&at);
        }
    if (err->code == GLM_OK) {
        int64_t numbers = 0;
        for (int64_t i = 0; i < n; i++)
            if (!isnan(all[i]))
                all[numbers++] = all[i];
        qsort(all, (size_t)numbers, sizeof *all, stats_sort);
        out->distinct = n > numbers;
        for (int64_t i = 0; i < numbers; i++)
            out->distinct += i == 0 || all[i] != all[i - 1];
    }
    side_cursor_clear(&c);
    free(all);
    return err->code;
}

int inspect_stats(struct inspect *in, const struct inspect_tensor *t, int threads,
    struct inspect_stats *out, const struct glm_events *events, struct glm_error *err)
{
    struct stats st = {
        .s = &in->side, .t = t, .r = &in->side.rows[t->row], .events = events};
    *out = (struct inspect_stats){.count = t->elements};
    if (!element_known(t->dtype))
        return glm_fail(err, GLM_EUSAGE, "'%s' is %s: its elements are not real numbers",
            t->name, glm_dtype_name(t->dtype));
    st.codes = !t->quantised && glm_dtype_size(st.r->dtype) <= 2;
    pthread_mutex_init(&st.lock, NULL);
    st.code_counts = calloc(STATS_CODES, sizeof *st.code_counts);
    if (st.code_counts == NULL) {
        glm_fail(err, GLM_ENOMEM, "out of memory");
        goto out;
    }
    if (stats_jobs(&st, err) != GLM_OK || stats_pass(&st, threads, err) != GLM_OK)
        goto out;
    if (st.codes) {
        stats_from_codes(&st, out);
    } else {
        const struct stats_part first = st.sum;
        out->zeros = first.zeros;
        out->nan = first.nan;
        out->inf = first.inf;
        stats_range(&st, first.min, first.max);
        st.second = true;
        if (stats_pass(&st, threads, err) != GLM_OK
            || stats_distinct(&st, out, err) != GLM_OK)
            goto out;
        memcpy(out->bins, st.sum.bins, sizeof out->bins);
        st.sum = first;
    }
    const bool any = st.sum.n > 0;
    out->min = any ? st.sum.min : NAN;
    out->max = any ? st.sum.max : NAN;
    out->mean = any ? st.sum.mean : NAN;
    out->std = any ? sqrt(st.sum.m2 / (double)st.sum.n) : NAN;
    out->absmax = any ? fmax(fabs(st.sum.min), fabs(st.sum.max)) : NAN;
    out->lo = st.lo;
    out->hi = st.hi;
out:
    pthread_mutex_destroy(&st.lock);
    free(st.code_counts);
    free(st.jobs);
    free(st.parts);
    return err->code;
}
