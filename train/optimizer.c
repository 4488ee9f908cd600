#include "train/optimizer.h"

#include <fnmatch.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "train/gradnorm.h"
#include "train/optimizer_inside.h"

enum { ALIGN = 64 };

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
    o->leaves = calloc((size_t)o->first_leaf[p->count] + 1, sizeof *o->leaves);
    const size_t leaves = ((size_t)o->first_leaf[p->count] + 1) * sizeof *o->leaves;
    if (o->leaves == NULL) {
        glm_fail(err, GLM_ENOMEM, "no memory for the norm's leaves");
        goto out;
    }
    if ((o->arena = p->home.k->alloc(moments + ALIGN + leaves, err)) == NULL
        || p->home.k->zero(o->arena, moments, p->home.stream, err) != 0) {
        glm_within(err, "the optimizer's state (AdamW %zu bytes, Muon %zu)", bytes.adamw,
            bytes.muon);
        goto out;
    }
    o->device_leaves = home_is_host(&p->home)
        ? o->leaves
        : (double *)(void *)((char *)o->arena + aligned(moments));
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
    free(o->leaves);
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

static int norms(struct optimizer *o, const struct optimizer_step *step,
    const struct kernels *k, glm_stream stream, struct optimizer_report *r,
    struct glm_error *err)
{
    for (int64_t i = 0; i < o->p->count; i++)
        if (optimizer_leaves(o, i, k, stream, err) != 0)
            return err->code;
    if (k->stream_wait(stream, err) != 0 || fetch_leaves(o, err) != 0
        || optimizer_check_leaves(o, err) != 0)
        return err->code;
    *r = (struct optimizer_report){.mtp_clip = 1};
    r->norm = gradnorm_fold(o->leaves, o->first_leaf, o->group, 0, o->p->count)
        * step->grad_scale;
    r->clip = gradnorm_clip(r->norm, o->options.clip);
    if (o->options.mtp_apart) {
        r->mtp_norm = gradnorm_fold(o->leaves, o->first_leaf, o->group, 1, o->p->count)
            * step->grad_scale;
        r->mtp_clip = gradnorm_clip(r->mtp_norm, o->options.clip);
    }
    if (!isfinite(r->norm) || !isfinite(r->mtp_norm))
        return glm_fail(err, GLM_EFORMAT,
            "the gradient norm is %g although every gradient is a "
            "number: it overflows",
            isfinite(r->norm) ? r->mtp_norm : r->norm);
    return 0;
}

/* ---- update ----------------------------------------------------------------------------------- */

struct rates {
    double lr, decay, grad_scale;
};

static int muon_update(const struct optimizer *o, int64_t i, const struct rates *r,
    const struct kernels *k, glm_stream stream, struct glm_error *err)
{
    const struct optimizer_options *opt = &o->options;
    const struct param *p = &o->p->p[i];
    const int64_t C = p->entry->grid.dims[2];

    for (int n = 0; n < o->plan[i].count; n++) {
        const struct muon_call *c = &o->plan[i].call[n];
        const size_t at = (size_t)(c->first * C) * glm_dtype_size(o->p->acc);
        const struct muon op = {.w = (char *)p->master + at,
            .m = (char *)o->moments[i].m + at,
            .g = (const char *)p->grad + at,
            .B = c->B,
            .R = c->R,
            .C = C,
            .batch_stride = c->batch * C,
            .row_stride = C,
            .run = c->run,
            .run_stride = c->leap * C,
            .lr = r->lr,
            .decay = r->decay,
            .momentum = opt->muon_momentum,
            .grad_scale = r->grad_scale,
            .factor = opt->muon_extra_scale * c->rho,
            .coeff = o->coeff,
            .steps = o->coeff_steps,
            .nesterov = opt->muon_nesterov,
            .low_precision = opt->muon_low_precision,
            .dtype = o->p->acc};
        if (k->muon(&op, stream, err) != 0)
            return err->code;
    }
    return 0;
}

static int adamw_update(const struct optimizer *o, int64_t i, const struct rates *r,
    const struct kernels *k, glm_stream stream, struct glm_error *err)
{
    const struct optimizer_options *opt = &o->options;
    const struct param *p = &o->p->p[i];

    return k->adamw(&(struct adamw){.w = p->master,
                        .m = o->moments[i].m,
                        .v = o->moments[i].v,
                        .g = p->grad,
                        .n = p->count,
                        .step = o->steps[i] + 1,
                        .lr = r->lr,
                        .beta1 = opt->adam_beta1,
                        .beta2 = opt->adam_beta2,
                        .eps = opt->adam_eps,
                        .decay = r->decay,
                        .grad_scale = r->grad_scale,
                        .dtype = o->p->acc},
        stream, err);
}

static int update(struct optimizer *o, int64_t i, const struct rates *r,
    const struct kernels *k, glm_stream stream, struct glm_error *err)
{
    const struct param *p = &o->p->p[i];

    if ((o->plan[i].muon ? muon_update : adamw_update)(o, i, r, k, stream, err) != 0)
        return glm_within(err, "update of %s", p->entry->name);
    o->steps[i]++;
    if (p->master == p->w)
        return 0;
    return k->convert(
        &(struct convert){
            .y = p->w, .x = p->master, .n = p->count, .from = o->p->acc, .to = p->dtype},
        stream, err);
}

int optimizer_update(struct optimizer *o, const struct optimizer_step *step,
    const struct kernels *k, glm_stream stream, struct optimizer_report *report,
    struct glm_error *err)
{
    if (norms(o, step, k, stream, report, err) != 0)
        return err->code;
    for (int64_t i = 0; i < o->p->count; i++) {
        if (o->p->p[i].routed != NULL
            && optimizer_move_bias(o->p, &o->p->p[i], o->options.bias_rate,
                   o->options.bias_fp32_count, err)
                != 0)
            return (int)err->code;
        if (o->group[i] < 0)
            continue;
        const double clip = o->group[i] == 1 ? report->mtp_clip : report->clip;
        const struct rates r = {.lr = step->lr,
            .decay = o->decay[i] ? step->decay : 0,
            .grad_scale = step->grad_scale * clip};
        if (update(o, i, &r, k, stream, err) != 0)
            return err->code;
    }
    return k->stream_wait(stream, err);
}

int optimizer_scratch(struct optimizer *o, const struct kernels *k, glm_stream stream,
    size_t *bytes, struct glm_error *err)
{
    const struct rates none = {0};

    *bytes = 0;
    if (k->dry == NULL)
        return 0;
    k->dry(stream, true);
    for (int64_t i = 0; i < o->p->count && err->code == GLM_OK; i++)
        if (o->group[i] >= 0 && optimizer_leaves(o, i, k, stream, err) == 0)
            (o->plan[i].muon ? muon_update : adamw_update)(o, i, &none, k, stream, err);
    *bytes = k->scratch_peak(stream);
    k->dry(stream, false);
    return (int)err->code;
}
