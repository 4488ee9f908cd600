#include "train/optimizer.h"

#include <fnmatch.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "train/optimizer_inside.h"

enum { ALIGN = 64, REPORT = 5 };

struct optimizer_options optimizer_defaults(void)
{
    return (struct optimizer_options){.muon_momentum = 0.95,
        .muon_steps = 5,
        .muon_extra_scale = 0.2,
        .adam_beta1 = 0.9,
        .adam_beta2 = 0.95,
        .adam_eps = 1e-8,
        .clip = 1,
        .bias_rate = 1e-3};
}

static int find(
    const char *key, const char *name, const char *const names[3], struct glm_error *err)
{
    for (int i = 0; i < 3; i++)
        if (strcmp(name, names[i]) == 0)
            return i;
    glm_fail(err, GLM_EUSAGE, "%s: '%s', expected %s, %s or %s", key, name, names[0],
        names[1], names[2]);
    return -1;
}

int muon_coefficients_find(
    const char *name, enum muon_coefficients *out, struct glm_error *err)
{
    const int i = find("muon_coefficient_type", name,
        (const char *const[]){"quintic", "simple", "deepseekv4"}, err);

    if (i >= 0)
        *out = (enum muon_coefficients)i;
    return err->code;
}

int muon_scale_find(const char *name, enum muon_scale *out, struct glm_error *err)
{
    const int i = find("muon_scale_mode", name,
        (const char *const[]){"spectral", "shape_scaling", "unit_rms"}, err);

    if (i >= 0)
        *out = (enum muon_scale)i;
    return err->code;
}

/* ---- checks ----------------------------------------------------------------------------------- */

static int in_range(
    const char *name, double x, double from, double below, struct glm_error *err)
{
    if (x >= from && x < below)
        return 0;
    return glm_fail(err, GLM_EUSAGE, "%s: %g, expected %g or more and less than %g", name,
        x, from, below);
}

static int check_numbers(const struct optimizer_options *o, struct glm_error *err)
{
    in_range("muon_momentum", o->muon_momentum, 0, 1, err);
    in_range("muon_num_ns_steps", o->muon_steps, 0, MUON_STEPS + 1, err);
    in_range("muon_extra_scale_factor", o->muon_extra_scale, 0, 1e30, err);
    in_range("adam_beta1", o->adam_beta1, 0, 1, err);
    in_range("adam_beta2", o->adam_beta2, 0, 1, err);
    /* A gradient that is 0 from the start, as of a token that never comes, would be 0/0. */
    if (!((float)o->adam_eps > 0 && o->adam_eps < 1e30))
        glm_fail(err, GLM_EUSAGE, "adam_eps: %g, expected more than 0 and less than 1e30",
            o->adam_eps);
    in_range("clip_grad", o->clip, 0, 1e300, err);
    in_range("moe_router_bias_update_rate", o->bias_rate, 0, 1e30, err);
    return err->code;
}

static int check_pattern(
    const char *key, const char *pattern, const struct table *t, struct glm_error *err)
{
    for (int64_t i = 0; i < t->count; i++)
        if (fnmatch(pattern, t->entries[i].name, 0) == 0)
            return 0;
    return glm_fail(
        err, GLM_EUSAGE, "%s: '%s' matches no tensor of the model", key, pattern);
}

static int check_options(
    const struct optimizer_options *o, const struct table *t, struct glm_error *err)
{
    if (check_numbers(o, err) != 0)
        return err->code;
    for (int i = 0; i < o->layouts; i++)
        if (check_pattern("muon_layout", o->layout[i].pattern, t, err) != 0)
            return err->code;
    for (int i = 0; i < o->no_decays; i++)
        if (check_pattern("no_decay", o->no_decay[i], t, err) != 0)
            return err->code;
    return 0;
}

/* ---- memory ----------------------------------------------------------------------------------- */

static size_t aligned(size_t bytes)
{
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

static bool learns(const struct params_options *p, const struct table_entry *e)
{
    return e->optimizer != OPT_ROUTER_BIAS && params_trains(p, e);
}

int optimizer_plan(struct optimizer_bytes *out, const struct table *t,
    const struct params_options *p, const struct optimizer_options *o,
    struct glm_error *err)
{
    const size_t acc = p->dtype == GLM_F64 ? 8 : 4;

    *out = (struct optimizer_bytes){0};
    if (check_options(o, t, err) != 0)
        return err->code;
    out->total = (size_t)t->count * sizeof(int64_t);
    for (int64_t i = 0; i < t->count; i++) {
        const struct table_entry *e = &t->entries[i];
        const int64_t *d = e->grid.dims;
        const size_t bytes = aligned((size_t)(d[0] * d[1] * d[2]) * acc);
        struct muon_plan plan;
        if (muon_plan(&plan, e, o, err) != 0)
            return err->code;
        if (!learns(p, e))
            continue;
        out->total += (size_t)tile_count(&e->grid) * sizeof(double);
        if (!plan.muon) {
            out->adamw += 2 * bytes;
            continue;
        }
        out->muon += bytes;
        for (int k = 0; k < plan.count; k++) {
            const int64_t R = plan.call[k].R, n = R < d[2] ? R : d[2];
            const size_t space = (size_t)(2 * R * d[2] + 2 * n * n) * acc;
            out->scratch = space > out->scratch ? space : out->scratch;
        }
    }
    out->total += out->adamw + out->muon;
    return 0;
}

static bool excluded(const struct optimizer_options *o, const char *name)
{
    for (int i = 0; i < o->no_decays; i++)
        if (fnmatch(o->no_decay[i], name, 0) == 0)
            return true;
    return false;
}

static int settle(struct optimizer *o, int64_t i, struct glm_error *err)
{
    const struct table_entry *e = o->p->p[i].entry;
    const bool learning = learns(&o->p->options, e);

    if (muon_plan(&o->plan[i], e, &o->options, err) != 0)
        return err->code;
    o->decay[i] =
        (e->decay || o->options.decay_vectors) && !excluded(&o->options, e->name);
    o->group[i] = !learning ? -1 : o->options.mtp_apart && e->where == WHERE_MTP ? 1 : 0;
    o->first_leaf[i + 1] = o->first_leaf[i] + (learning ? tile_count(&e->grid) : 0);
    return 0;
}

/* The arena: moments in table order, m before v. */
static void place(struct optimizer *o)
{
    char *at = o->arena;

    for (int64_t i = 0; i < o->p->count; i++) {
        const size_t bytes =
            aligned((size_t)o->p->p[i].count * glm_dtype_size(o->p->acc));
        if (o->group[i] < 0)
            continue;
        o->moments[i].m = at;
        at += bytes;
        if (!o->plan[i].muon) {
            o->moments[i].v = at;
            at += bytes;
        }
    }
}

static int allocate(struct optimizer *o, struct glm_error *err)
{
    const size_t n = (size_t)o->p->count;

    o->plan = calloc(n + 1, sizeof *o->plan);
    o->moments = calloc(n + 1, sizeof *o->moments);
    o->decay = calloc(n + 1, sizeof *o->decay);
    o->group = calloc(n + 1, sizeof *o->group);
    o->steps = calloc(n + 1, sizeof *o->steps);
    o->first_leaf = calloc(n + 1, sizeof *o->first_leaf);
    o->text = optimizer_text(&o->options, &o->text_size);
    if (o->plan == NULL || o->moments == NULL || o->decay == NULL || o->group == NULL
        || o->steps == NULL || o->first_leaf == NULL || o->text == NULL)
        return glm_fail(err, GLM_ENOMEM, "no memory for the optimizer of %zu tensors", n);
    return 0;
}

/* What a step reads and leaves besides tensors, where operations find it. */
static int make_block(struct optimizer *o, struct glm_error *err)
{
    const struct home *const home = &o->p->home;
    const size_t n = (size_t)o->p->count, leaves = (size_t)o->first_leaf[n];
    const size_t at_rates = aligned((leaves + 1) * sizeof *o->leaves),
                 at_report = at_rates + aligned((n + 1) * sizeof *o->rates),
                 at_first = at_report + aligned(REPORT * sizeof(double)),
                 at_group = at_first + aligned((n + 1) * sizeof(int64_t)),
                 all = at_group + aligned((n + 1) * sizeof(int32_t));
    int32_t *const group = calloc(n + 1, sizeof *group);

    if (group == NULL || (o->host_rates = calloc(n + 1, sizeof *o->host_rates)) == NULL
        || (!home_is_host(home)
            && (o->leaves = calloc(leaves + 1, sizeof *o->leaves)) == NULL)) {
        glm_fail(err, GLM_ENOMEM, "no memory for the norm's leaves");
        goto out;
    }
    if ((o->block = home->k->alloc(all, err)) == NULL)
        goto out;
    char *const block = o->block;
    o->device_leaves = (double *)(void *)block;
    o->rates = (struct step_rates *)(void *)(block + at_rates);
    o->report = (double *)(void *)(block + at_report);
    o->device_first = (int64_t *)(void *)(block + at_first);
    o->device_group = (int32_t *)(void *)(block + at_group);
    if (home_is_host(home))
        o->leaves = o->device_leaves;
    for (size_t i = 0; i < n; i++)
        group[i] = o->group[i];
    if (home_zero(home, block, at_first, err) == 0
        && home_put(
               home, o->device_first, o->first_leaf, (n + 1) * sizeof *o->first_leaf, err)
            == 0)
        home_put(home, o->device_group, group, n * sizeof *group, err);
out:
    free(group);
    return (int)err->code;
}

int optimizer_new(struct optimizer **out, struct params *p,
    const struct optimizer_options *options, struct glm_error *err)
{
    struct optimizer_bytes bytes;
    struct optimizer *o = NULL;

    *out = NULL;
    if (optimizer_plan(&bytes, p->table, &p->options, options, err) != 0)
        return err->code;
    if ((o = calloc(1, sizeof *o)) == NULL)
        return glm_fail(err, GLM_ENOMEM, "no memory for the optimizer");
    o->p = p;
    o->options = *options;
    o->coeff_steps = muon_coefficient_list(options, o->coeff);
    if (allocate(o, err) != 0)
        goto out;
    for (int64_t i = 0; i < p->count; i++)
        if (settle(o, i, err) != 0)
            goto out;
    const size_t moments = bytes.adamw + bytes.muon;
    if ((o->arena = p->home.k->alloc(moments + 1, err)) == NULL
        || p->home.k->zero(o->arena, moments, p->home.stream, err) != 0) {
        glm_within(err, "the optimizer's state (AdamW %zu bytes, Muon %zu)", bytes.adamw,
            bytes.muon);
        goto out;
    }
    if (make_block(o, err) != 0)
        goto out;
    place(o);
    *out = o;
    return 0;
out:
    optimizer_free(o);
    return err->code;
}

void optimizer_free(struct optimizer *o)
{
    if (o == NULL)
        return;
    free(o->plan);
    free(o->moments);
    free(o->decay);
    free(o->group);
    free(o->steps);
    free(o->first_leaf);
    free(o->host_rates);
    if (o->leaves != o->device_leaves)
        free(o->leaves);
    if (o->block != NULL)
        o->p->home.k->release(o->block);
    if (o->arena != NULL)
        o->p->home.k->release(o->arena);
    free(o->text);
    free(o);
}

/* ---- norm ------------------------------------------------------------------------------------- */

const int64_t *optimizer_leaf_index(const struct optimizer *o)
{
    return o->first_leaf;
}

double *optimizer_leaf_array(struct optimizer *o)
{
    return o->leaves;
}

int optimizer_leaves(struct optimizer *o, int64_t i, const struct kernels *k,
    glm_stream stream, struct glm_error *err)
{
    const struct tile_grid *g = &o->p->p[i].entry->grid;
    const int64_t *d = g->dims;

    if (o->group[i] < 0)
        return 0;
    return k->sum_squares(
        &(struct sum_squares){.out = o->device_leaves + o->first_leaf[i],
            .x = o->p->p[i].grad,
            .B = d[0],
            .R = d[1],
            .C = d[2],
            .batch_stride = d[1] * d[2],
            .row_stride = d[2],
            .tile_rows = g->tile[1],
            .tile_cols = g->tile[2],
            .dtype = o->p->acc},
        stream, err);
}

static int fetch_leaves(struct optimizer *o, struct glm_error *err)
{
    const size_t n = (size_t)o->first_leaf[o->p->count];
    return home_get(&o->p->home, o->device_leaves, n * sizeof *o->leaves, o->leaves, err)
            != NULL
        ? 0
        : (int)err->code;
}

/* ---- update ----------------------------------------------------------------------------------- */

/* The model's BF16 copy of a master, from the element on; NULL where the master is the model's own. */
static void *copy_of(const struct param *p, size_t from)
{
    return p->master == p->w ? NULL : (char *)p->w + from * glm_dtype_size(p->dtype);
}

static int muon_update(const struct optimizer *o, int64_t i, const struct kernels *k,
    glm_stream stream, struct glm_error *err)
{
    const struct optimizer_options *opt = &o->options;
    const struct param *p = &o->p->p[i];
    const int64_t C = p->entry->grid.dims[2];

    for (int n = 0; n < o->plan[i].count; n++) {
        const struct muon_call *c = &o->plan[i].call[n];
        const size_t at = (size_t)(c->first * C) * glm_dtype_size(o->p->acc);
        const struct muon op = {.w = (char *)p->master + at,
            .m = (char *)o->moments[i].m + at,
            .copy = copy_of(p, (size_t)(c->first * C)),
            .g = (const char *)p->grad + at,
            .B = c->B,
            .R = c->R,
            .C = C,
            .batch_stride = c->batch * C,
            .row_stride = C,
            .run = c->run,
            .run_stride = c->leap * C,
            .momentum = opt->muon_momentum,
            .factor = opt->muon_extra_scale * c->rho,
            .coeff = o->coeff,
            .steps = o->coeff_steps,
            .nesterov = opt->muon_nesterov,
            .low_precision = opt->muon_low_precision,
            .rates = &o->rates[i],
            .dtype = o->p->acc};
        if (k->muon(&op, stream, err) != 0)
            return err->code;
    }
    return 0;
}

static int adamw_update(const struct optimizer *o, int64_t i, const struct kernels *k,
    glm_stream stream, struct glm_error *err)
{
    const struct optimizer_options *opt = &o->options;
    const struct param *p = &o->p->p[i];

    return k->adamw(&(struct adamw){.w = p->master,
                        .m = o->moments[i].m,
                        .v = o->moments[i].v,
                        .copy = copy_of(p, 0),
                        .g = p->grad,
                        .n = p->count,
                        .beta1 = opt->adam_beta1,
                        .beta2 = opt->adam_beta2,
                        .eps = opt->adam_eps,
                        .rates = &o->rates[i],
                        .dtype = o->p->acc},
        stream, err);
}

static int update(const struct optimizer *o, int64_t i, const struct kernels *k,
    glm_stream stream, struct glm_error *err)
{
    if ((o->plan[i].muon ? muon_update : adamw_update)(o, i, k, stream, err) != 0)
        return glm_within(err, "update of %s", o->p->p[i].entry->name);
    return 0;
}

static int move_bias(const struct optimizer *o, int64_t i, const struct kernels *k,
    glm_stream stream, struct glm_error *err)
{
    const struct param *p = &o->p->p[i];

    return k->router_bias(&(struct router_bias){.bias = p->w,
                              .load = p->routed,
                              .E = p->count,
                              .rate = o->options.bias_rate,
                              .f32_mean = o->options.bias_fp32_count,
                              .rates = &o->rates[i]},
        stream, err);
}

int optimizer_begin(
    struct optimizer *o, const struct optimizer_step *step, struct glm_error *err)
{
    const size_t n = (size_t)o->p->count;

    for (size_t i = 0; i < n; i++) {
        const double now = (double)(o->steps[i] + 1);
        o->host_rates[i] = (struct step_rates){.lr = step->lr,
            .decay = o->decay[i] ? step->decay : 0,
            .grad_scale = step->grad_scale,
            .rest1 = 1 - pow(o->options.adam_beta1, now),
            .rest2 = 1 - pow(o->options.adam_beta2, now)};
    }
    return home_put(&o->p->home, o->rates, o->host_rates, n * sizeof *o->host_rates, err);
}

int optimizer_queue(struct optimizer *o, const double *watched, int64_t watch,
    const struct kernels *k, glm_stream stream, struct glm_error *err)
{
    const struct clip clip = {.rates = o->rates,
        .report = o->report,
        .leaf = o->device_leaves,
        .first = o->device_first,
        .group = o->device_group,
        .watched = watched,
        .n = o->p->count,
        .leaves = o->first_leaf[o->p->count],
        .watch = watch,
        .limit = o->options.clip};

    for (int64_t i = 0; i < o->p->count; i++)
        if (optimizer_leaves(o, i, k, stream, err) != 0)
            return err->code;
    if (k->clip(&clip, stream, err) != 0)
        return err->code;
    for (int64_t i = 0; i < o->p->count; i++) {
        if (o->p->p[i].routed != NULL && move_bias(o, i, k, stream, err) != 0)
            return (int)err->code;
        if (o->group[i] >= 0 && update(o, i, k, stream, err) != 0)
            return (int)err->code;
    }
    return 0;
}

/* Why the device stopped. */
static int stopped(
    struct optimizer *o, const struct optimizer_report *r, struct glm_error *err)
{
    if (fetch_leaves(o, err) != 0 || optimizer_check_leaves(o, err) != 0)
        return (int)err->code;
    if (!isfinite(r->norm) || !isfinite(r->mtp_norm))
        return glm_fail(err, GLM_EFORMAT,
            "the gradient norm is %g although every gradient is a "
            "number: it overflows",
            isfinite(r->norm) ? r->mtp_norm : r->norm);
    return glm_fail(err, GLM_EFORMAT, "a loss is not a number; nothing was updated");
}

int optimizer_end(struct optimizer *o, const struct kernels *k, glm_stream stream,
    struct optimizer_report *r, struct glm_error *err)
{
    double room[REPORT];
    const double *said;

    if (k->stream_wait(stream, err) != 0
        || (said = home_get(&o->p->home, o->report, sizeof room, room, err)) == NULL)
        return (int)err->code;
    *r = (struct optimizer_report){.norm = said[0], .clip = said[1], .mtp_clip = 1};
    if (o->options.mtp_apart) {
        r->mtp_norm = said[2];
        r->mtp_clip = said[3];
    }
    if (said[4] != 0)
        return stopped(o, r, err);
    for (int64_t i = 0; i < o->p->count; i++)
        o->steps[i] += o->group[i] >= 0;
    return 0;
}

int optimizer_update(struct optimizer *o, const struct optimizer_step *step,
    const struct kernels *k, glm_stream stream, struct optimizer_report *report,
    struct glm_error *err)
{
    if (optimizer_begin(o, step, err) != 0
        || optimizer_queue(o, NULL, 0, k, stream, err) != 0)
        return (int)err->code;
    return optimizer_end(o, k, stream, report, err);
}

int optimizer_scratch(struct optimizer *o, const struct kernels *k, glm_stream stream,
    size_t *bytes, struct glm_error *err)
{
    *bytes = 0;
    if (k->dry == NULL)
        return 0;
    k->dry(stream, true);
    optimizer_queue(o, NULL, 0, k, stream, err);
    *bytes = k->scratch_peak(stream);
    k->dry(stream, false);
    return (int)err->code;
}
