#include "train/trainer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/version.h"

/* ---- recipe to options ------------------------------------------------------------------------ */

static struct model_options model_options(const struct trainer *t)
{
    const struct recipe_train *const w = &t->recipe->train;
    const struct recipe_batch *const b = &t->recipe->batch;
    const bool learns = w->indexer_loss != RECIPE_LOSS_OFF;
    const int64_t rows = b->micro * b->seq_length;
    /* Where the two forms of attention cost the same (7.7 K keys with sets of 2,048): a constant, so
     * that a run's bits do not depend on how fast anything was. */
    const int64_t expanded_most = 8192;
    const int64_t parts = (b->global + b->micro - 1) / b->micro;
    /* Inputs of a whole step, six numbers a row at most, where the GPU has them all at once. */
    const int64_t ahead_most = INT64_C(256) << 20;

    return (struct model_options){.dtype = w->bf16 ? GLM_BF16 : GLM_F32,
        .max_tokens = rows,
        .max_sequences = t->recipe->data.documents ? rows : b->micro,
        .stage = w->stage == RECIPE_INDEXER_WARMUP ? MODEL_TRAIN_INDEXER
            : learns                               ? MODEL_TRAIN_ALL
                                                   : MODEL_FREEZE_INDEXER,
        .indexer_loss = w->indexer_loss == RECIPE_LOSS_SPARSE ? MODEL_INDEXER_SPARSE
            : w->indexer_loss == RECIPE_LOSS_DENSE            ? MODEL_INDEXER_DENSE
                                                              : MODEL_INDEXER_OFF,
        .indexer_coeff = w->indexer_coeff,
        .mtp = t->table->config.num_mtp_layers > 0 && w->mtp_depth > 0,
        .mtp_coeff = w->mtp_coeff,
        .dense_attention = w->stage == RECIPE_DENSE || w->stage == RECIPE_INDEXER_WARMUP,
        .zero_padding_row_grad = w->zero_padding_row_grad,
        .absorbed = !t->k->host && b->seq_length > expanded_most,
        .lean = !t->k->host,
        .parts = parts,
        .ahead =
            w->cuda_graph && t->k->record != NULL && rows <= ahead_most / 24 / parts};
}

static struct params_options params_options(const struct recipe *r)
{
    return (struct params_options){.dtype = r->train.bf16 ? GLM_BF16 : GLM_F32,
        .trained = r->train.stage == RECIPE_INDEXER_WARMUP ? PARAMS_INDEXER
            : r->train.indexer_loss != RECIPE_LOSS_OFF     ? PARAMS_ALL
                                                           : PARAMS_NO_INDEXER};
}

static int layouts(struct trainer *t, struct optimizer_options *o, struct glm_error *err)
{
    const struct recipe_optimizer *const from = &t->recipe->optimizer;
    const bool adam = strcmp(from->name, "adam") == 0;
    const int n = adam ? 1 : from->layouts;

    if ((t->layout = calloc((size_t)n + 1, sizeof *t->layout)) == NULL)
        return glm_fail(err, GLM_ENOMEM, "no memory for the optimizer's layouts");
    if (adam)
        t->layout[0] = (struct muon_layout){.pattern = "*", .policy = {MUON_ADAMW}};
    for (int i = 0; !adam && i < n; i++) {
        const struct recipe_layout *const l = &from->layout[i];
        struct muon_layout *const to = &t->layout[i];
        to->pattern = l->tensor;
        to->parts = l->parts;
        for (int k = 0; k < l->parts; k++) {
            to->rows[k] = l->rows[k];
            to->policy[k] = l->policy[k] == RECIPE_GATHERED ? MUON_GATHERED : MUON_EACH;
        }
        if (l->policy[0] == RECIPE_ADAMW) {
            to->parts = 0;
            to->policy[0] = MUON_ADAMW;
        }
    }
    o->layout = t->layout;
    o->layouts = n;
    return GLM_OK;
}

static int optimizer_options(
    struct trainer *t, struct optimizer_options *o, struct glm_error *err)
{
    const struct recipe_optimizer *const from = &t->recipe->optimizer;

    *o = optimizer_defaults();
    o->muon_momentum = from->muon_momentum;
    o->muon_nesterov = from->muon_nesterov;
    o->muon_steps = (int)from->muon_num_ns_steps;
    o->muon_extra_scale = from->muon_extra_scale_factor;
    o->muon_low_precision = strcmp(from->muon_fp32_matmul_prec, "medium") == 0;
    o->adam_beta1 = from->adam_beta1;
    o->adam_beta2 = from->adam_beta2;
    o->adam_eps = from->adam_eps;
    o->clip = from->clip_grad;
    o->mtp_apart = t->recipe->train.mtp_detach_heads;
    o->bias_rate = from->bias_rate;
    const char *const scale = strcmp(from->muon_scale_mode, "unit_rms_norm") == 0
        ? "unit_rms"
        : from->muon_scale_mode;
    if (muon_coefficients_find(from->muon_coefficient_type, &o->muon_coefficients, err)
            != 0
        || muon_scale_find(scale, &o->muon_scale, err) != 0)
        return (int)err->code;
    return layouts(t, o, err);
}

static int make_schedule(struct trainer *t, struct glm_error *err)
{
    const struct recipe *const r = t->recipe;
    struct schedule *const s = &t->schedule;

    *s = (struct schedule){.lr_max = r->schedule.lr,
        .lr_min = r->schedule.min_lr,
        .lr_init = r->schedule.lr_warmup_init,
        .warmup = r->schedule.warmup_samples,
        .decay = r->schedule.decay_samples,
        .wsd = r->schedule.wsd_samples,
        .wd_start = r->optimizer.start_weight_decay,
        .wd_end = r->optimizer.end_weight_decay,
        .wd_samples = r->batch.samples};
    if (schedule_style_find(r->schedule.style, &s->style, err) != 0
        || schedule_wsd_find(r->schedule.wsd_style, &s->wsd_style, err) != 0
        || schedule_style_find(r->optimizer.weight_decay_incr_style, &s->wd_style, err)
            != 0
        || schedule_check(s, err) != 0)
        glm_within(err, "%s", r->path);
    return (int)err->code;
}

/* ---- texts of the state ----------------------------------------------------------------------- */

static char *features_text(const struct trainer *t)
{
    static const char *const stages[] = {
        "dense", "indexer_warmup", "sparse_joint", "rl_safe"};
    static const char *const losses[] = {"off", "sparse", "dense"};
    const struct recipe *const r = t->recipe;
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);

    if (f == NULL)
        return NULL;
    fprintf(
        f, "optimizer %s\n", strcmp(r->optimizer.name, "adam") == 0 ? "adam" : "muon");
    fprintf(f, "dtype %s\nstage %s\nindexer_loss %s\n", r->train.bf16 ? "BF16" : "F32",
        stages[r->train.stage], losses[r->train.indexer_loss]);
    fprintf(f, "dsa_indexer_loss_coeff %.17g\nmtp_num_layers %" PRId64 "\n",
        r->train.indexer_coeff, t->without_mtp ? 0 : r->train.mtp_depth);
    fprintf(f, "mtp_loss_scaling_factor %.17g\nmtp_detach_heads %d\n", r->train.mtp_coeff,
        r->train.mtp_detach_heads);
    fprintf(f, "zero_padding_row_grad %d\nnorm_scope %s\nseq_length %" PRId64 "\n",
        r->train.zero_padding_row_grad, r->train.norm_scope, r->batch.seq_length);
    fprintf(f, "global_batch_size %" PRId64 "\n", r->batch.global);
    return fclose(f) == 0 ? text : NULL;
}

/* vendor, family and model: what a library chooses its kernels by */
static void processor(char out[256])
{
    static const char *const keys[] = {"vendor_id", "cpu family", "model"};
    char line[512], value[3][32] = {"", "", ""};
    FILE *f = fopen("/proc/cpuinfo", "r");

    while (f != NULL && fgets(line, sizeof line, f) != NULL && line[0] != '\n')
        for (int i = 0; i < 3; i++) {
            const size_t n = strlen(keys[i]);
            const char *colon = strchr(line, ':');
            if (strncmp(line, keys[i], n) == 0 && (line[n] == '\t' || line[n] == ' ')
                && colon != NULL && strncmp(line + n, " name", 5) != 0)
                snprintf(value[i], sizeof value[i], "%.*s", (int)strcspn(colon + 2, "\n"),
                    colon + 2);
        }
    if (f != NULL)
        fclose(f);
    snprintf(out, 256, "%s %s %s", value[0], value[1], value[2]);
}

static char *build_text(const struct trainer *t)
{
    char cpu[256], *text = NULL;

    if (t->k->host)
        processor(cpu);
    else
        snprintf(cpu, sizeof cpu, "%s", t->k->device_name(t->stream));
    if (asprintf(&text,
            "version %s\nkernels %s\nprocessor %s\ncompiler %s\nmicro_batch_size %" PRId64
            "\n",
            GLM_VERSION, t->k->name, cpu, __VERSION__, t->recipe->batch.micro)
        < 0)
        return NULL;
    return text;
}

static int make_state(struct trainer *t, struct glm_error *err)
{
    struct state *const s = &t->state;

    s->params = t->params;
    s->optimizer = t->optimizer;
    s->seed = (uint64_t)t->recipe->train.seed;
    s->plan = t->schedule;
    feed_fingerprint(t->feed, s->data);
    s->features = features_text(t);
    s->build = build_text(t);
    if (s->features == NULL || s->build == NULL)
        return glm_fail(err, GLM_ENOMEM, "no memory for the state's texts");
    return state_init(s, err);
}

/* ---- opening ---------------------------------------------------------------------------------- */

static int make_table(struct trainer *t, struct glm_error *err)
{
    const struct recipe *const r = t->recipe;
    struct model_config config = {0};
    struct placement *p = NULL;

    if (config_parse(&config, "config.json", r->config_text, r->config_size, err)
        != GLM_OK) {
        config_clear(&config);
        return (int)err->code;
    }
    t->without_mtp = r->train.mtp_depth == 0 && config.num_mtp_layers > 0;
    if (table_build(&t->table, &config, t->without_mtp, err) == GLM_OK
        && placement_init(&p, t->table, &r->topology, err) == GLM_OK)
        placement_free(p);
    return (int)err->code;
}

static int make_model(struct trainer *t, size_t scratch, struct glm_error *err)
{
    struct model_options o = model_options(t);
    const struct recipe_train *const w = &t->recipe->train;

    o.least_bytes = scratch;
    t->layers = t->table->config.num_hidden_layers + t->table->config.num_mtp_layers;
    t->model_params = calloc((size_t)t->table->count + 1, sizeof *t->model_params);
    t->bias_row = calloc((size_t)t->layers + 1, sizeof *t->bias_row);
    t->load = calloc((size_t)t->layers + 1, sizeof *t->load);
    t->routed = calloc((size_t)t->table->config.n_routed_experts + 1, sizeof *t->routed);
    if (t->model_params == NULL || t->bias_row == NULL || t->load == NULL
        || t->routed == NULL)
        return glm_fail(err, GLM_ENOMEM, "no memory for the model");
    for (int64_t l = 0; l < t->layers; l++)
        t->bias_row[l] = -1;
    for (int64_t i = 0; i < t->table->count; i++) {
        const struct table_entry *const e = &t->table->entries[i];
        t->model_params[i] =
            (struct model_param){t->params->p[i].w, t->params->p[i].grad};
        if (e->optimizer == OPT_ROUTER_BIAS && t->params->p[i].routed != NULL)
            t->bias_row[e->layer] = i;
        if (e->optimizer == OPT_ROUTER_BIAS)
            t->load[e->layer] = t->params->p[i].routed;
    }
    t->flops = (struct flops_options){.mtp_depth = o.mtp ? 1 : 0,
        .dense_attention = o.dense_attention,
        .indexer = w->indexer_loss == RECIPE_LOSS_SPARSE ? FLOPS_INDEXER_SPARSE
            : w->indexer_loss == RECIPE_LOSS_DENSE       ? FLOPS_INDEXER_DENSE
            : o.dense_attention                          ? FLOPS_INDEXER_OFF
                                                         : FLOPS_INDEXER_ONLY_FORWARD};
    if (model_new(&t->model, t->table, t->model_params, &o, t->k, t->stream, err) != 0)
        return (int)err->code;
    t->whole = (struct wholestep){.model = t->model,
        .params = t->params,
        .optimizer = t->optimizer,
        .k = t->k,
        .stream = t->stream,
        .load = t->load,
        .ahead = o.ahead,
        .record = o.ahead};
    return GLM_OK;
}

static int make_data(struct trainer *t, bool train, struct glm_error *err)
{
    const struct recipe *const r = t->recipe;
    const bool evaluates = r->run.eval_interval > 0 && r->run.eval_iters > 0;

    if (train && feed_open(&t->feed, r, PART_TRAIN, err) != GLM_OK)
        return (int)err->code;
    if ((evaluates || !train) && feed_open(&t->valid, r, PART_VALID, err) != GLM_OK)
        return glm_within(err, "validation");
    return feed_batch_init(
        &t->batch, r->batch.global, r->batch.micro, r->batch.seq_length, err);
}

/* auto: the GPU if this build and this machine have one. With a driver and without a GPU that can be
 * used it says why: whoever meant to train on a card should not find out by the clock. A GPU without
 * memory, or asked for what it has not, is one that can be used, and its failure the run's. */
static int open_device(
    struct trainer *t, const struct trainer_options *o, struct glm_error *err)
{
    const char *const device = t->recipe->train.device;
    const bool choose = strcmp(device, "auto") == 0;
    struct glm_error why = {0};

    if (choose && kernels_driver()) {
        if ((t->k = kernels_open("cuda", &why)) != NULL
            && (t->stream = t->k->stream_new(o->threads, &why)) != NULL)
            return GLM_OK;
        if (t->k != NULL && (why.code == GLM_ENOMEM || why.code == GLM_EUSAGE))
            return glm_fail(err, why.code, "%s", why.text);
        glm_within(&why, "device auto takes the CPU");
        glm_events_note(o->events, why.text);
    }
    if ((t->k = kernels_open(choose ? "cpu" : device, err)) == NULL)
        return (int)err->code;
    t->stream = t->k->stream_new(o->threads > 0 ? o->threads : 1, err);
    return (int)err->code;
}

int trainer_open(struct trainer *t, const struct recipe *r,
    const struct trainer_options *o, struct glm_error *err)
{
    struct params_options params = params_options(r);
    struct optimizer_options optimizer;
    size_t scratch = 0;

    *t = (struct trainer){.recipe = r};
    if (make_data(t, o->train, err) != GLM_OK || make_table(t, err) != GLM_OK
        || open_device(t, o, err) != GLM_OK)
        goto out;
    params.home = (struct home){.k = t->k, .stream = t->stream};
    params.threads = o->threads;
    if (params_new(&t->params, t->table, &params, err) != 0)
        goto out;
    if (o->train
        && (make_schedule(t, err) != GLM_OK
            || optimizer_options(t, &optimizer, err) != GLM_OK
            || optimizer_new(&t->optimizer, t->params, &optimizer, err) != 0
            || optimizer_scratch(t->optimizer, t->k, t->stream, &scratch, err) != 0))
        goto out;
    if (make_model(t, scratch, err) == GLM_OK && o->train)
        make_state(t, err);
out:
    if (err->code == GLM_ENOMEM && t->k != NULL && !t->k->host)
        glm_within(err,
            "device cuda: too little memory (smaller micro_batch_size or seq_length: "
            "smaller buffers of a step; mtp_num_layers: 0 or a smaller model: less for "
            "weights, gradients and optimizer)");
    if (err->code != GLM_OK)
        trainer_close(t);
    return (int)err->code;
}

void trainer_close(struct trainer *t)
{
    state_clear(&t->state);
    origin_clear(&t->origin);
    wholestep_clear(&t->whole);
    model_free(t->model);
    free(t->model_params);
    free(t->bias_row);
    free(t->load);
    free(t->routed);
    optimizer_free(t->optimizer);
    free(t->layout);
    params_free(t->params);
    if (t->stream != NULL)
        t->k->stream_free(t->stream);
    table_free(t->table);
    feed_close(t->feed);
    feed_close(t->valid);
    feed_batch_clear(&t->batch);
    *t = (struct trainer){0};
}

/* ---- weights ---------------------------------------------------------------------------------- */

/* A checkpoint of the model without its MTP layers serves a run that does not train them. */
static int check_model(
    const struct trainer *t, const struct reader *r, struct glm_error *err)
{
    const struct manifest *m = reader_manifest(r);

    if (memcmp(m->table->config.sha256, t->table->config.sha256, DIGEST_SIZE) != 0)
        return glm_fail(err, GLM_EUSAGE,
            "%s: is a checkpoint of another model: its config.json is not the recipe's",
            reader_index(r)->path);
    if (m->without_mtp && !t->without_mtp && t->table->config.num_mtp_layers > 0)
        return glm_fail(err, GLM_EUSAGE,
            "%s: holds no MTP layers, but the recipe trains them; "
            "mtp_num_layers: 0 does without",
            reader_index(r)->path);
    return GLM_OK;
}

/* Verified as it is read, unless the recipe says verify_load: false. */
static int open_checkpoint(
    const struct trainer *t, const char *ckpt, struct reader **r, struct glm_error *err)
{
    if (reader_open(r, ckpt, err) == GLM_OK && !t->recipe->run.verify_load)
        reader_trust(*r);
    return (int)err->code;
}

int trainer_weights(struct trainer *t, const char *ckpt, struct glm_error *err)
{
    struct reader *r = NULL;

    if (open_checkpoint(t, ckpt, &r, err) == GLM_OK && check_model(t, r, err) == GLM_OK)
        params_load(t->params, r, err);
    reader_close(r);
    return (int)err->code;
}

static int origin_of_run(struct trainer *t, struct glm_error *err)
{
    char hex[DIGEST_HEX];

    digest_hex(t->state.data, hex);
    if (origin_prov(&t->origin, "data-fingerprint", hex, err) != GLM_OK)
        return (int)err->code;
    return origin_recipe(&t->origin, t->recipe, err);
}

int trainer_start(struct trainer *t, struct glm_error *err)
{
    const char *const load = t->recipe->load;
    struct reader *r = NULL;

    if (load == NULL) {
        if (params_init(t->params, (uint32_t)t->recipe->train.seed, err) == 0)
            origin_random(&t->origin, t->recipe, err);
    } else if (open_checkpoint(t, load, &r, err) == GLM_OK
        && check_model(t, r, err) == GLM_OK && params_load(t->params, r, err) == 0) {
        origin_from(&t->origin, r, false, err);
    }
    if (err->code == GLM_OK)
        origin_of_run(t, err);
    reader_close(r);
    return (int)err->code;
}

int trainer_resume(struct trainer *t, const char *ckpt, const struct glm_events *events,
    struct glm_error *err)
{
    struct reader *r = NULL;

    if (open_checkpoint(t, ckpt, &r, err) == GLM_OK
        && state_load(&t->state, r, events, err) == GLM_OK
        && origin_from(&t->origin, r, true, err) == GLM_OK)
        origin_of_run(t, err);
    reader_close(r);
    return (int)err->code;
}
