#include "train/step.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/base/bf16.h"

struct sums {
    double lm, mtp, indexer; /* indexer: KL over rows and layers */
    int64_t lm_count, mtp_count, indexer_rows;
};

static void add(struct sums *s, const struct model_losses *l)
{
    s->lm += l->lm_sum;
    s->mtp += l->mtp_sum;
    s->lm_count += l->lm_count;
    s->mtp_count += l->mtp_count;
    for (int64_t i = 0; i < l->layers; i++)
        s->indexer += l->indexer_sum[i];
    s->indexer_rows += l->indexer_rows;
}

/* Of the step so far; NaN: cannot be had. */
static double expert_load(const struct trainer *t)
{
    double worst = NAN;
    struct glm_error unread = {0};

    for (int64_t l = 0; l < t->layers; l++) {
        if (t->load[l] == NULL)
            continue;
        const struct param *const p = &t->params->p[t->bias_row[l]];
        int64_t most = 0, all = 0;
        const int64_t *const routed = home_get(&t->params->home, p->routed,
            (size_t)p->count * sizeof *routed, t->routed, &unread);
        for (int64_t e = 0; routed != NULL && e < p->count; e++) {
            most = routed[e] > most ? routed[e] : most;
            all += routed[e];
        }
        const double load = all > 0 ? (double)most * (double)p->count / (double)all : NAN;
        worst = load > worst || isnan(worst) ? load : worst;
    }
    return worst;
}

/* ---- not a number ----------------------------------------------------------------------------- */

static double weight_at(const struct param *p, const void *w, int64_t i)
{
    return p->dtype == GLM_BF16 ? (double)bf16_to_f32(((const uint16_t *)w)[i])
        : p->dtype == GLM_F32   ? (double)((const float *)w)[i]
                                : ((const double *)w)[i];
}

/* Fails if a weight of tensor i is no number. */
static int check_weight(
    struct trainer *t, int64_t i, const char *what, double value, struct glm_error *err)
{
    const struct param *const p = &t->params->p[i];
    const size_t bytes = (size_t)p->count * glm_dtype_size(p->dtype);
    void *const buf = home_is_host(&t->params->home) ? NULL : malloc(bytes + 1);
    struct glm_error unread = {0};
    const void *const w = home_is_host(&t->params->home) ? p->w
        : buf != NULL ? home_get(&t->params->home, p->w, bytes, buf, &unread)
                      : NULL;

    for (int64_t k = 0; w != NULL && k < p->count; k++)
        if (!isfinite(weight_at(p, w, k))) {
            glm_fail(err, GLM_EMISMATCH,
                "step %lld: the %s is %g; the first weight that is not a number is '%s', "
                "element %lld (%g); nothing was saved",
                (long long)t->state.step + 1, what, value, p->entry->name, (long long)k,
                weight_at(p, w, k));
            break;
        }
    free(buf);
    return (int)err->code;
}

/* The first weight, in table order, that is not a number; else the first gradient. */
static int name_culprit(
    struct trainer *t, const char *what, double value, struct glm_error *err)
{
    const struct optimizer_step nothing = {.grad_scale = 1};
    struct optimizer_report unused;
    const long long step = (long long)t->state.step + 1;

    for (int64_t i = 0; i < t->params->count; i++)
        if (check_weight(t, i, what, value, err) != GLM_OK)
            return (int)err->code;
    struct glm_error cause = {0};
    optimizer_update(t->optimizer, &nothing, t->k, t->stream, &unused, &cause);
    return glm_fail(err, GLM_EMISMATCH,
        "step %lld: the %s is %g; all weights are numbers; %s; nothing was saved", step,
        what, value, cause.code != GLM_OK ? cause.text : "and so are all gradients");
}

/* ---- the step --------------------------------------------------------------------------------- */

/* The losses of all micro-batches, each of which must be a number. */
static int add_losses(struct trainer *t, struct sums *s, struct glm_error *err)
{
    for (int64_t i = 0; i < t->batch.parts; i++) {
        if (t->batch.part[i].tokens == 0)
            continue;
        const struct model_losses *const l = model_losses_of(t->model, i);
        if (!isfinite(l->lm_sum))
            return name_culprit(t, "loss", l->lm_sum, err);
        if (!isfinite(l->mtp_sum))
            return name_culprit(t, "MTP loss", l->mtp_sum, err);
        add(s, l);
    }
    return GLM_OK;
}

static int run_whole(struct trainer *t, const struct train_step *out,
    const struct glm_events *events, struct glm_error *err)
{
    const struct feed_batch *const b = &t->batch;
    /* The update divides by the targets; the MTP loss is a mean over its own (spec/training.md 2.3). */
    const struct model_scale scale = {.lm = 1,
        .mtp = b->mtp_targets > 0 ? (double)b->targets / (double)b->mtp_targets : 0,
        .indexer = 1};
    const struct optimizer_step rates = {.lr = out->lr,
        .decay = out->weight_decay,
        .grad_scale = 1.0 / (double)(b->targets > 0 ? b->targets : 1)};
    const bool wished = t->whole.record;

    wholestep_run(&t->whole, b->part, b->parts, &scale, &rates, events, err);
    if (wished && !t->whole.record) {
        char sentence[400];
        snprintf(sentence, sizeof sentence,
            "cuda_graph: %s; steps are launched operation by operation", t->whole.why);
        glm_events_note(events, sentence);
    }
    return (int)err->code;
}

/* With gradients of zero, so that no number changes but by momentum and decay: a step without a
 * target is a step. */
static double per(double sum, int64_t count)
{
    return count > 0 ? sum / (double)count : 0;
}

static void fill_losses(
    const struct trainer *t, const struct sums *s, struct train_step *out)
{
    const struct recipe_train *const w = &t->recipe->train;

    out->mtp_on = s->mtp_count > 0;
    out->indexer_on = w->indexer_loss != RECIPE_LOSS_OFF;
    out->lm = s->lm_count > 0 ? s->lm / (double)s->lm_count : NAN;
    out->mtp = per(s->mtp, s->mtp_count);
    out->indexer = per(s->indexer, s->indexer_rows);
    out->loss = per(s->lm, s->lm_count) + w->mtp_coeff * out->mtp
        + (out->indexer_on ? w->indexer_coeff * per(s->indexer, t->batch.targets) : 0);
}

static int count_flops(const struct trainer *t, uint64_t *flops, struct glm_error *err)
{
    const struct model_config *const c = &t->table->config;
    struct flops_rows rows = {0};
    struct flops f;

    for (int64_t i = 0; i < t->batch.parts; i++) {
        const struct model_batch *const p = &t->batch.part[i];
        for (int64_t s = 0; s < p->sequences; s++)
            if (flops_add(
                    &rows, p->cu_seqlens[s + 1] - p->cu_seqlens[s], 1, c->index_topk, err)
                != GLM_OK)
                return (int)err->code;
    }
    if (flops_count(&f, c, &t->flops, &rows, err) == GLM_OK)
        *flops = f.total;
    return (int)err->code;
}

int step_run(struct trainer *t, struct train_step *out, uint64_t *flops,
    const struct glm_events *events, struct glm_error *err)
{
    struct state *const s = &t->state;
    struct optimizer_report report;
    struct sums sums = {0};

    *out = (struct train_step){.lr = schedule_lr(&t->schedule, s->samples),
        .weight_decay = schedule_weight_decay(&t->schedule, s->samples)};
    if (feed_fill(t->feed, s->position, t->recipe->batch.global, &t->batch, err)
        != GLM_OK)
        return (int)err->code;
    if (count_flops(t, flops, err) != GLM_OK || run_whole(t, out, events, err) != GLM_OK
        || add_losses(t, &sums, err) != GLM_OK)
        return (int)err->code;
    out->expert_load = expert_load(t);
    if (optimizer_end(t->optimizer, t->k, t->stream, &report, err) != 0) {
        if (err->code == GLM_EFORMAT) {
            err->code = GLM_EMISMATCH;
            glm_within(err, "step %lld, nothing was saved", (long long)s->step + 1);
        }
        return (int)err->code;
    }
    s->step++;
    s->samples += t->recipe->batch.global;
    s->position += t->recipe->batch.global;
    s->tokens += t->batch.rows;
    fill_losses(t, &sums, out);
    out->step = s->step;
    out->samples = s->samples;
    out->tokens = s->tokens;
    out->rows = t->batch.rows;
    out->targets = t->batch.targets;
    out->norm = report.norm;
    out->clip = report.clip;
    return GLM_OK;
}
