/* Tensors cut into jobs: rectangles of whole tiles, in the order in which threads take them. */
#include "convert/flow_inside.h"

#include <inttypes.h>
#include <stdlib.h>

static int64_t div_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}
static int64_t at_least_one(int64_t n)
{
    return n < 1 ? 1 : n;
}
static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

int64_t flow_cut(const struct tile_grid *g, size_t element, bool whole_width, bool narrow,
    struct rect *out)
{
    if (tile_count(g) == 0)
        return 0;
    const int64_t band = smaller(g->tile[1], g->dims[1]) * g->dims[2] * (int64_t)element;
    const int64_t member = g->dims[1] * g->dims[2] * (int64_t)element;
    /* Small matrices go several to a job; from FLOW_ALONE on one is worth a read of its own. */
    const int64_t members = narrow || member >= FLOW_ALONE
        ? 1
        : at_least_one(smaller(FLOW_TARGET / at_least_one(member), g->dims[0]));
    const int64_t col_cuts =
        whole_width ? 1 : smaller(g->count[2], at_least_one(div_up(band, FLOW_WIDEST)));
    const int64_t tile_cols = div_up(g->count[2], col_cuts);
    const int64_t row_jobs = members > 1
        ? 1
        : div_up(g->count[1], at_least_one(smaller(FLOW_TARGET / band, g->count[1])));
    const int64_t tile_rows = div_up(g->count[1], row_jobs);
    int64_t n = 0;

    for (int64_t e = 0; e < g->dims[0]; e += members)
        for (int64_t gr = 0; gr < g->count[1]; gr += tile_rows)
            for (int64_t gc = 0; gc < g->count[2]; gc += tile_cols, n++)
                if (out != NULL)
                    out[n] = (struct rect){{e, gr * g->tile[1], gc * g->tile[2]},
                        {smaller(e + members, g->dims[0]),
                            smaller((gr + tile_rows) * g->tile[1], g->dims[1]),
                            smaller((gc + tile_cols) * g->tile[2], g->dims[2])}};
    return n;
}

size_t flow_element_of(const struct manifest *m, int64_t tensor)
{
    return glm_dtype_size(m->tensors[tensor].dtype);
}

uint64_t flow_bytes_of(const struct manifest *m, int64_t tensor, const struct rect *at)
{
    return (uint64_t)rect_count(at) * flow_element_of(m, tensor);
}

/* The scales of the members whose first rows a job has; a recoding writes and reads them beside the
 * elements. */
static uint64_t scale_bytes_of(
    const struct manifest *m, int64_t tensor, const struct rect *at)
{
    const int64_t scale = m->tensors[tensor].scale;
    if (scale < 0 || at->lo[1] != 0 || at->lo[2] != 0)
        return 0;
    struct rect all = rect_whole(m->tensors[scale].grid.dims);
    all.lo[0] = at->lo[0];
    all.hi[0] = at->hi[0];
    return flow_bytes_of(m, scale, &all);
}

uint64_t flow_job_writes(const struct flow *f, const struct job *j)
{
    const struct manifest *m = f->sink->m;
    return flow_bytes_of(m, j->tensor, &j->at)
        + (f->items[j->tensor].action == FLOW_RECODE
                ? scale_bytes_of(m, j->tensor, &j->at)
                : 0);
}

uint64_t flow_job_reads(const struct flow *f, const struct job *j)
{
    const struct flow_item *item = &f->items[j->tensor];
    const struct manifest *m = f->source->m;
    return flow_bytes_of(m, item->from, &j->at)
        + (item->action == FLOW_RECODE ? scale_bytes_of(m, item->from, &j->at) : 0);
}

static int by_order(const void *a, const void *b)
{
    const struct job *x = a, *y = b;
    if (x->key != y->key)
        return x->key < y->key ? -1 : 1;
    if (x->place != y->place)
        return x->place < y->place ? -1 : 1;
    if (x->tensor != y->tensor)
        return x->tensor < y->tensor ? -1 : 1;
    for (int i = 0; i < RECT_AXES; i++)
        if (x->at.lo[i] != y->at.lo[i])
            return x->at.lo[i] < y->at.lo[i] ? -1 : 1;
    return 0;
}

/* Jobs of one tensor, appended; with out NULL only counted. */
static int64_t tensor_jobs(
    const struct flow *f, int64_t tensor, struct job *out, struct rect *rects)
{
    const struct manifest *m = f->sink->m;
    const struct flow_item *item = &f->items[tensor];

    if (item->action == FLOW_SCALE)
        return 0;
    const bool recode = item->action == FLOW_RECODE;
    const bool placed = f->sink->any_order && f->source->place != NULL;
    const bool fed = f->source->feed != NULL;
    /* The wider of the two types decides the size of a recoding job. */
    size_t element = flow_element_of(m, tensor);
    if (recode && flow_element_of(f->source->m, item->from) > element)
        element = flow_element_of(f->source->m, item->from);
    const int64_t n = flow_cut(&m->tensors[tensor].grid, element,
        recode || fed || f->sink->whole_width, recode || fed, rects);
    for (int64_t i = 0; out != NULL && i < n; i++)
        out[i] = (struct job){.tensor = tensor,
            .at = rects[i],
            .key = f->sink->key(f->sink->ctx, tensor, rects[i].lo[0]),
            .place =
                placed ? f->source->place(f->source->ctx, item->from, &rects[i]) : 0};
    return n;
}

int flow_make_jobs(struct flow *f, struct glm_error *err)
{
    const int64_t tensors = f->sink->m->tensor_count;
    int64_t count = 0, most = 0;

    for (int64_t i = 0; i < tensors; i++) {
        const int64_t n = tensor_jobs(f, i, NULL, NULL);
        count += n;
        most = n > most ? n : most;
    }
    struct rect *rects = calloc((size_t)most + 1, sizeof *rects);
    f->jobs = calloc((size_t)count + 1, sizeof *f->jobs);
    if (rects == NULL || f->jobs == NULL) {
        free(rects);
        return glm_fail(err, GLM_ENOMEM, "no memory for %" PRId64 " jobs", count);
    }
    for (int64_t i = 0; i < tensors; i++)
        f->job_count += tensor_jobs(f, i, f->jobs + f->job_count, rects);
    free(rects);
    qsort(f->jobs, (size_t)f->job_count, sizeof *f->jobs, by_order);
    for (int64_t i = 0; i < f->job_count; i++)
        f->total += flow_job_writes(f, &f->jobs[i]);
    return GLM_OK;
}
