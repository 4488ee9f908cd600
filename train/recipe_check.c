/* What follows from the values: batches, schedule in samples, stage, data; and contradictions. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/checked.h"
#include "train/recipe_inside.h"

static int both(
    const struct recipe *r, const char *a, const char *b, struct glm_error *err)
{
    return recipe_refuse(r, a, err, "%s is there, too; give one of them", b);
}

/* ---- batches ------------------------------------------------------------------------------------ */

static int resolve_batch(struct recipe *r, struct glm_error *err)
{
    struct recipe_batch *const b = &r->batch;
    if (b->micro < 0)
        return recipe_refuse(r, "micro_batch_size", err, "missing");
    if (b->seq_length < 0)
        return recipe_refuse(r, "seq_length", err, "missing");
    if (b->global < 0 && recipe_derive_int(r, "global_batch_size", b->micro, err) != 0)
        return err->code;
    if (b->global % b->micro != 0)
        return recipe_refuse(r, "global_batch_size", err,
            "%lld is no multiple of micro_batch_size = "
            "%lld",
            (long long)b->global, (long long)b->micro);
    if (b->train_iters >= 0 && b->train_samples >= 0)
        return both(r, "train_iters", "train_samples", err);
    if (b->train_iters < 0 && b->train_samples < 0)
        return recipe_refuse(r, "train_iters", err, "missing, and so is train_samples");
    if (b->seq_length > r->config.max_position_embeddings)
        return recipe_refuse(r, "seq_length", err,
            "%lld exceeds max_position_embeddings = %lld", (long long)b->seq_length,
            (long long)r->config.max_position_embeddings);
    b->micro_batches = b->global / b->micro;
    b->steps = b->train_iters >= 0 ? b->train_iters : b->train_samples / b->global;
    if (b->steps < 1)
        return recipe_refuse(r, "train_samples", err,
            "%lld is less than one global_batch_size = "
            "%lld",
            (long long)b->train_samples, (long long)b->global);
    if (b->steps > INT64_C(9007199254740992) / b->global)
        return recipe_refuse(r, "train_iters", err,
            "%lld steps of %lld samples are too many", (long long)b->steps,
            (long long)b->global);
    b->samples = b->steps * b->global;
    return 0;
}

/* ---- learning rate and weight decay ------------------------------------------------------------- */

/* Steps to samples; a recipe counts in one of them. */
static int in_samples(const struct recipe *r, const char *iters_key, int64_t iters,
    const char *samples_key, int64_t samples, int64_t *out, struct glm_error *err)
{
    const bool by_iters = r->batch.train_iters >= 0;
    if (by_iters && samples > 0)
        return recipe_refuse(
            r, samples_key, err, "the recipe counts in train_iters; give %s", iters_key);
    if (!by_iters && iters > 0)
        return recipe_refuse(r, iters_key, err,
            "the recipe counts in train_samples; give %s", samples_key);
    if (by_iters && iters > INT64_C(9007199254740992) / r->batch.global)
        return recipe_refuse(r, iters_key, err, "too many samples");
    if (by_iters && iters >= 0)
        *out = iters * r->batch.global;
    if (!by_iters && samples >= 0)
        *out = samples;
    return 0;
}

static int resolve_schedule(struct recipe *r, struct glm_error *err)
{
    struct recipe_schedule *const s = &r->schedule;
    struct recipe_optimizer *const o = &r->optimizer;
    if (isnan(s->lr))
        return recipe_refuse(r, "lr", err, "missing");
    if (s->min_lr > s->lr)
        return recipe_refuse(r, "min_lr", err, "%g exceeds lr = %g", s->min_lr, s->lr);
    if (s->lr_warmup_init > s->lr)
        return recipe_refuse(
            r, "lr_warmup_init", err, "%g exceeds lr = %g", s->lr_warmup_init, s->lr);
    s->decay_samples = r->batch.samples;
    s->warmup_samples = s->wsd_samples = 0;
    if (in_samples(r, "lr_decay_iters", s->lr_decay_iters, "lr_decay_samples",
            s->lr_decay_samples, &s->decay_samples, err)
            != 0
        || in_samples(r, "lr_warmup_iters", s->lr_warmup_iters, "lr_warmup_samples",
               s->lr_warmup_samples, &s->warmup_samples, err)
            != 0
        || in_samples(r, "lr_wsd_decay_iters", s->lr_wsd_decay_iters,
               "lr_wsd_decay_samples", s->lr_wsd_decay_samples, &s->wsd_samples, err)
            != 0)
        return err->code;
    if (!isnan(s->lr_warmup_fraction)) {
        if (s->warmup_samples > 0)
            return both(r, "lr_warmup_fraction",
                s->lr_warmup_iters > 0 ? "lr_warmup_iters" : "lr_warmup_samples", err);
        s->warmup_samples = (int64_t)(s->lr_warmup_fraction * (double)s->decay_samples);
    }
    if (strcmp(s->style, "constant") != 0 && s->warmup_samples >= s->decay_samples)
        return recipe_refuse(r,
            s->lr_warmup_samples > 0 ? "lr_warmup_samples" : "lr_warmup_iters", err,
            "a warm-up of %lld samples is not shorter than the decay's %lld",
            (long long)s->warmup_samples, (long long)s->decay_samples);
    const bool wsd = strcmp(s->style, "WSD") == 0;
    if (wsd && s->wsd_samples < 1)
        return recipe_refuse(
            r, "lr_wsd_decay_iters", err, "missing; lr_decay_style is WSD");
    if (wsd && s->wsd_samples > s->decay_samples - s->warmup_samples)
        return recipe_refuse(r, "lr_wsd_decay_iters", err,
            "WSD's last part of %lld samples does not "
            "fit behind the warm-up of %lld into %lld",
            (long long)s->wsd_samples, (long long)s->warmup_samples,
            (long long)s->decay_samples);
    const bool moving = strcmp(o->weight_decay_incr_style, "constant") != 0;
    if (moving && (isnan(o->start_weight_decay) || isnan(o->end_weight_decay)))
        return recipe_refuse(r, "weight_decay_incr_style", err,
            "wants start_weight_decay and end_weight_decay");
    if (!moving && (!isnan(o->start_weight_decay) || !isnan(o->end_weight_decay))) {
        const char *const key =
            isnan(o->start_weight_decay) ? "end_weight_decay" : "start_weight_decay";
        return recipe_refuse(
            r, key, err, "weight_decay_incr_style is constant; give weight_decay");
    }
    if (!moving) {
        recipe_derive_real(r, "start_weight_decay", o->weight_decay, err);
        recipe_derive_real(r, "end_weight_decay", o->weight_decay, err);
    }
    return err->code;
}

/* ---- what is trained ---------------------------------------------------------------------------- */

static int resolve_train(struct recipe *r, struct glm_error *err)
{
    static const char *const names[] = {
        "dense", "indexer_warmup", "sparse_joint", "rl_safe"};
    struct recipe_train *const t = &r->train;
    for (int i = 0; i < 4; i++)
        if (strcmp(t->stage_name, names[i]) == 0)
            t->stage = (enum recipe_stage)i;
    if (t->bf16 && t->fp16)
        return both(r, "bf16", "fp16", err);
    if (t->stage == RECIPE_RL_SAFE && !recipe_given(r, "GLM.indexer_trainable"))
        recipe_derive_text(r, "GLM.indexer_trainable", "false", err);
    if (t->stage == RECIPE_INDEXER_WARMUP && !t->indexer_trainable)
        return recipe_refuse(r, "GLM.indexer_trainable", err,
            "false, but stage indexer_warmup trains nothing else");
    const bool on = t->indexer_coeff > 0;
    t->indexer_loss = !on || !t->indexer_trainable ? RECIPE_LOSS_OFF
        : t->stage == RECIPE_INDEXER_WARMUP        ? RECIPE_LOSS_DENSE
                                                   : RECIPE_LOSS_SPARSE;
    if (t->stage == RECIPE_DENSE && on)
        return recipe_refuse(r, "dsa_indexer_loss_coeff", err,
            "%g, but stage dense has no indexer", t->indexer_coeff);
    if (t->stage == RECIPE_INDEXER_WARMUP && !on)
        return recipe_refuse(r, "dsa_indexer_loss_coeff", err,
            "0, but stage indexer_warmup trains by nothing else");
    if (t->stage == RECIPE_INDEXER_WARMUP && t->sparse_indexer_loss)
        return recipe_refuse(r, "dsa_indexer_use_sparse_loss", err,
            "true, but in stage indexer_warmup attention is dense, and so is the loss");
    if (t->indexer_loss == RECIPE_LOSS_SPARSE && !t->sparse_indexer_loss)
        return recipe_refuse(r, "dsa_indexer_use_sparse_loss", err,
            "false with sparse attention is "
            "not built: a loss over all keys wants GLM.stages: indexer_warmup, one over "
            "the chosen "
            "keys dsa_indexer_use_sparse_loss: true");
    return err->code;
}

/* ---- data ---------------------------------------------------------------------------------------- */

static bool is_number(const char *s)
{
    char *end;
    const double x = strtod(s, &end);
    return *s && !*end && isfinite(x) && strspn(s, "+.0123456789eE") == strlen(s);
}

/* Weights stand in front of datasets if any word there is a number. */
static bool is_weighted(const struct recipe_list *l)
{
    for (int i = 0; i < l->count && l->count > 1; i += 2)
        if (is_number(l->item[i]))
            return true;
    return false;
}

static int resolve_sources(struct recipe *r, struct glm_error *err)
{
    struct recipe_data *const d = &r->data;
    const bool ours = d->data.count > 0;
    const char *const key = ours ? "GLM.data" : "data_path";
    if (ours && d->data_path.count > 0)
        return both(r, "GLM.data", "ARGS.data_path", err);
    if (d->mock && (ours || d->data_path.count > 0))
        return both(r, "mock_data", key, err);
    const struct recipe_list *const l = ours ? &d->data : &d->data_path;
    const bool weighted = is_weighted(l);
    if (weighted && l->count % 2 != 0)
        return recipe_refuse(r, key, err,
            "%d words; expected a weight in front of each dataset, or of none", l->count);
    d->sources = weighted ? l->count / 2 : l->count;
    if (!d->sources)
        return 0;
    if (!(d->source = recipe_alloc(r, (size_t)d->sources * sizeof *d->source, err)))
        return err->code;
    for (int i = 0; i < d->sources; i++) {
        const char *const weight = weighted ? l->item[2 * i] : NULL;
        d->source[i].weight = weight;
        d->source[i].path = l->item[weighted ? 2 * i + 1 : i];
        if (weight && (!is_number(weight) || !(strtod(weight, NULL) > 0)))
            return recipe_refuse(r, key, err,
                "expected a weight above 0 in front of '%.100s', found '%.60s'",
                d->source[i].path, weight);
    }
    return 0;
}

/* Which token ends a document, if the loss behind it is to be masked. */
static int resolve_end(struct recipe *r, struct glm_error *err)
{
    r->data.documents = strcmp(r->data.packing, "documents") == 0;
    if (r->data.end_id < 0 && r->data.eod_mask_loss) {
        json_t *const o = json_loadb(r->config_text, r->config_size, 0, NULL);
        const json_t *id = json_object_get(o, "eos_token_id");
        id = json_is_array(id) ? json_array_get(id, 0) : id;
        if (json_is_integer(id) && json_integer_value(id) >= 0)
            recipe_derive_int(r, "GLM.end_token", json_integer_value(id), err);
        json_decref(o);
    }
    if (err->code == GLM_OK && r->data.eod_mask_loss && r->data.end_id < 0)
        return recipe_refuse(r, "eod_mask_loss", err,
            "which token ends a document? The configuration "
            "has no eos_token_id; give GLM.end_token");
    if (err->code == GLM_OK && r->data.end_id >= r->config.vocab_size)
        return recipe_refuse(r, "GLM.end_token", err, "%lld, but vocab_size is %lld",
            (long long)r->data.end_id, (long long)r->config.vocab_size);
    return err->code;
}

static int resolve_split(struct recipe *r, struct glm_error *err)
{
    struct recipe_data *const d = &r->data;
    const char *at = d->split_text;
    double total = 0;
    int n = 0;
    at += *at == '[';
    for (; n < 3; n++) {
        char *end;
        d->split[n] = strtod(at, &end);
        if (end == at || !(d->split[n] >= 0) || d->split[n] > 1e9)
            break;
        total += d->split[n];
        at = end + strspn(end, " ");
        if (*at != ',') {
            n++;
            break;
        }
        at++;
    }
    at += *at == ']';
    if (n < 1 || *at || !(total > 0) || !(d->split[0] > 0))
        return recipe_refuse(r, "split", err,
            "expected up to three parts like \"969,30,1\", the "
            "first above 0, found '%.60s'",
            d->split_text);
    return 0;
}

/* ---- where things go ------------------------------------------------------------------------------ */

static int resolve_run(struct recipe *r, struct glm_error *err)
{
    struct recipe_policy_save *const p = &r->run;
    if (!p->run_dir) {
        const char *const slash = strrchr(r->path, '/'),
                          *const name = slash ? slash + 1 : r->path;
        const char *const dot = strrchr(name, '.');
        const int length = (int)(dot && dot > name ? (size_t)(dot - name) : strlen(name));
        char *const made = p->save ? recipe_keep(r, p->save, err)
                                   : recipe_format(r, err, "%.*s.run", length, name);
        if (!made || recipe_derive_text(r, "GLM.run_dir", made, err) != 0)
            return err->code;
    }
    if (!p->save && recipe_derive_text(r, "save", p->run_dir, err) != 0)
        return err->code;
    if (p->eval_interval > 0 && p->eval_iters > 0 && !r->data.eval && !r->data.mock
        && !(r->data.split[1] > 0))
        return recipe_refuse(r, "eval_interval", err,
            "%lld, but split leaves nothing for validation "
            "and there is no GLM.eval",
            (long long)p->eval_interval);
    return 0;
}

static int resolve_topology(struct recipe *r, struct glm_error *err)
{
    if (r->etp < 0
        && recipe_derive_int(r, "expert_tensor_parallel_size", r->tp, err) != 0)
        return err->code;
    const struct {
        const char *key;
        int64_t x;
        int *out;
    } axes[] = {
        {"tensor_model_parallel_size", r->tp, &r->topology.tp},
        {"pipeline_model_parallel_size", r->pp, &r->topology.pp},
        {"num_virtual_stages_per_pipeline_rank", r->vpp, &r->topology.vpp},
        {"expert_model_parallel_size", r->ep, &r->topology.ep},
        {"expert_tensor_parallel_size", r->etp, &r->topology.etp},
    };
    for (size_t i = 0; i < sizeof axes / sizeof axes[0]; i++) {
        if (axes[i].x > 65536)
            return recipe_refuse(
                r, axes[i].key, err, "%lld; at most 65536", (long long)axes[i].x);
        *axes[i].out = (int)axes[i].x;
    }
    if (r->layout) {
        if (strlen(r->layout) >= sizeof r->topology.layout)
            return recipe_refuse(r, "pipeline_model_parallel_layout", err,
                "longer than %zu letters", sizeof r->topology.layout - 1);
        strcpy(r->topology.layout, r->layout);
    }
    return 0;
}

int recipe_resolve(struct recipe *r, struct glm_error *err)
{
    if (resolve_batch(r, err) != 0 || resolve_schedule(r, err) != 0
        || resolve_train(r, err) != 0 || resolve_sources(r, err) != 0
        || resolve_split(r, err) != 0 || resolve_end(r, err) != 0
        || resolve_run(r, err) != 0)
        return err->code;
    return resolve_topology(r, err);
}
