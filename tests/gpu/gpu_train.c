/* gpu_train CONFIG f32|bf16 STEPS [--free] [--adam] [--lr X] [--lock FILE]: a tiny model trained on the
 * CPU and on the GPU side by side, from the same weights on the same batches. With --lock it has the
 * GPU in turns with other programs.
 *
 * The GPU is given the CPU's key sets and experts of each step (--free: chooses itself, and the first
 * step with another set is reported). Losses must agree at every step, F32 to 1e-5, BF16 to 1e-2
 * (learning rate 2e-4: a high one makes any rounding grow from step to step); with --free they need only
 * agree until a set differs. Then the GPU's run is repeated: every loss, norm, weight and moment must
 * have the same bits (rung R0). */
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>

#include "tests/gpu/statehash.h"
#include "tests/support/tinymodel.h"
#include "tests/support/tmpdir.h"
#include "train/model.h"
#include "train/optimizer.h"

struct side {
    const struct kernels *k;
    glm_stream stream;
    struct params *params;
    struct model_param *link;
    struct optimizer *optimizer;
    struct model *model;
};

static int lock = -1; /* who uses the GPU holds it */

static void turn(bool ours)
{
    if (lock >= 0)
        flock(lock, ours ? LOCK_EX : LOCK_UN);
}

static void must(const struct glm_error *err)
{
    if (err->code == GLM_OK)
        return;
    fprintf(stderr, "gpu_train: %s\n", err->text);
    exit(glm_exit_status(err));
}

static struct side side_new(const char *device, const struct table *t,
    enum glm_dtype dtype, const struct model_options *mo, bool adam)
{
    static const struct muon_layout all_adam = {.pattern = "*", .policy = {MUON_ADAMW}};
    struct glm_error err = {0};
    struct side s = {.k = kernels_open(device, &err)};
    struct optimizer_options oo = optimizer_defaults();

    must(&err);
    s.stream = s.k->stream_new(2, &err);
    must(&err);
    const struct params_options po = {
        .dtype = dtype, .trained = PARAMS_ALL, .home = {.k = s.k, .stream = s.stream}};
    if (adam) {
        oo.layout = &all_adam;
        oo.layouts = 1;
    }
    params_new(&s.params, t, &po, &err);
    must(&err);
    params_init(s.params, 3, &err);
    optimizer_new(&s.optimizer, s.params, &oo, &err);
    must(&err);
    struct model_options with = *mo;
    optimizer_scratch(s.optimizer, s.k, s.stream, &with.least_bytes, &err);
    s.link = calloc((size_t)t->count, sizeof *s.link);
    for (int64_t i = 0; i < t->count; i++)
        s.link[i] = (struct model_param){s.params->p[i].w, s.params->p[i].grad};
    model_new(&s.model, t, s.link, &with, s.k, s.stream, &err);
    must(&err);
    return s;
}

static void side_free(struct side *s)
{
    model_free(s->model);
    optimizer_free(s->optimizer);
    params_free(s->params);
    free(s->link);
    s->k->stream_free(s->stream);
}

static double forward(
    struct side *s, const struct model_batch *b, const struct model_replay *replay)
{
    struct glm_error err = {0};
    params_zero_grads(s->params, &err);
    model_forward(s->model, b, replay, &err);
    must(&err);
    const struct model_losses *l = model_losses(s->model);
    return (l->lm_sum + 0.1 * l->mtp_sum) / (double)l->lm_count;
}

static double backward_and_update(struct side *s, int64_t layers, double lr)
{
    struct glm_error err = {0};
    struct optimizer_report report = {0};
    const double scale = 1.0 / (double)model_losses(s->model)->lm_count;

    for (int64_t i = 0; i < s->params->count; i++)
        if (s->params->p[i].routed != NULL && s->params->p[i].entry->layer < layers)
            model_add_loads(
                s->model, s->params->p[i].entry->layer, s->params->p[i].routed, &err);
    model_backward(s->model, &(struct model_scale){1, 1, 1}, &err);
    must(&err);
    optimizer_update(s->optimizer,
        &(struct optimizer_step){.lr = lr, .decay = 0.1, .grad_scale = scale}, s->k,
        s->stream, &report, &err);
    must(&err);
    return report.norm;
}

static uint64_t state_of(struct side *s)
{
    struct glm_error err = {0};
    const uint64_t h = statehash(s->params, s->optimizer, &err);

    must(&err);
    return h;
}

struct sets {
    const int32_t **index, **expert;
    int32_t *mine; /* room for one of the other side's */
};

static int64_t differ(const struct side *s, const int32_t *device, const int32_t *host,
    int64_t n, int32_t *room)
{
    struct glm_error err = {0};
    const struct home h = {.k = s->k, .stream = s->stream};
    int64_t rows = 0;
    if (device == NULL || host == NULL)
        return 0;
    const int32_t *got = home_get(&h, device, (size_t)n * sizeof *got, room, &err);
    must(&err);
    for (int64_t i = 0; i < n; i++)
        rows += got[i] != host[i];
    return rows;
}

int main(int argc, char **argv)
{
    struct glm_error err = {0};
    struct model_config config = {0};
    struct table *t = NULL;
    static const int lengths[] = {61, 1, 40, 26, 0};
    size_t size;
    int bad = 0, first_step = 0;
    int64_t first_differ = 0;

    if (argc < 4) {
        fprintf(stderr,
            "usage: gpu_train CONFIG f32|bf16 STEPS [--free] [--adam] [--lr X] "
            "[--lock FILE]\n");
        return 2;
    }
    const enum glm_dtype dtype = argv[2][0] == 'b' ? GLM_BF16 : GLM_F32;
    const double limit = dtype == GLM_BF16 ? 1e-2 : 1e-5;
    const int steps = atoi(argv[3]);
    double lr = 2e-4;
    bool choose = false, adam = false;
    for (int i = 4; i < argc; i++) {
        choose = choose || strcmp(argv[i], "--free") == 0;
        adam = adam || strcmp(argv[i], "--adam") == 0;
        if (strcmp(argv[i], "--lr") == 0 && i + 1 < argc)
            lr = atof(argv[i + 1]);
        if (strcmp(argv[i], "--lock") == 0 && i + 1 < argc)
            lock = open(argv[i + 1], O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    }
    char *text = tmpdir_read(argv[1], &size);
    config_parse(&config, argv[1], text, size, &err);
    must(&err);
    table_build(&t, &config, false, &err);
    must(&err);
    const int64_t layers = t->config.num_hidden_layers + t->config.num_mtp_layers;
    struct tinybatch b[4];
    for (uint32_t i = 0; i < 4; i++)
        b[i] = tinybatch_new(lengths, t->config.vocab_size, i + 1);
    const struct model_options mo = {.dtype = dtype,
        .max_tokens = b[0].batch.tokens,
        .max_sequences = b[0].batch.sequences,
        .indexer_loss = MODEL_INDEXER_SPARSE,
        .indexer_coeff = 0.01,
        .mtp = t->config.num_mtp_layers > 0,
        .mtp_coeff = 0.1};
    struct side cpu = side_new("cpu", t, dtype, &mo, adam);
    struct side gpu = side_new("cuda", t, dtype, &mo, adam);
    struct side again = side_new("cuda", t, dtype, &mo, adam);
    const int64_t T = b[0].batch.tokens, K = model_keys(cpu.model);
    const int64_t E = t->config.num_experts_per_tok;
    struct sets s = {.index = calloc((size_t)layers, sizeof *s.index),
        .expert = calloc((size_t)layers, sizeof *s.expert),
        .mine = calloc((size_t)(T * (K + E)), sizeof *s.mine)};
    if (state_of(&cpu) != state_of(&gpu)) {
        printf("FAIL the two sides begin with other bits\n");
        bad++;
    }
    double worst = 0;
    for (int i = 0; i < steps; i++) {
        const struct model_batch *const in = &b[i % 4].batch;
        const double want = forward(&cpu, in, NULL);
        for (int64_t l = 0; l < layers; l++) {
            const bool owns =
                l >= t->config.num_hidden_layers || t->config.layer_owns_indexer[l];
            s.index[l] = owns ? model_index(cpu.model, l) : NULL;
            s.expert[l] = model_expert(cpu.model, l);
        }
        const struct model_replay replay = {.index = s.index, .expert = s.expert};
        const struct model_replay *const given = choose ? NULL : &replay;
        turn(true);
        const double got = forward(&gpu, in, given), twice = forward(&again, in, given);
        for (int64_t l = 0; l < layers && first_step == 0; l++) {
            first_differ =
                differ(&gpu, model_index(gpu.model, l), s.index[l], T * K, s.mine)
                + differ(&gpu, model_expert(gpu.model, l), s.expert[l], T * E, s.mine);
            if (first_differ > 0)
                first_step = i + 1;
        }
        turn(false);
        const double d = fabs(got - want) / fabs(want);
        worst = d > worst ? d : worst;
        const double a = backward_and_update(&cpu, layers, lr);
        turn(true);
        const double g = backward_and_update(&gpu, layers, lr),
                     g2 = backward_and_update(&again, layers, lr);
        turn(false);
        const bool held = first_step == 0 || !choose; /* to the limit */
        if (i < 3 || i + 1 == steps || (held && !(d <= limit)))
            printf("step %d: loss %.9g on the CPU, %.9g on the GPU (%.2g); norm %.6g, "
                   "%.6g\n",
                i + 1, want, got, d, a, g);
        bad += held && !(d <= limit);
        bad += !isfinite(got);
        if (memcmp(&got, &twice, sizeof got) != 0 || memcmp(&g, &g2, sizeof g) != 0) {
            printf("FAIL step %d is not repeatable: loss %.17g and %.17g, norm %.17g and "
                   "%.17g\n",
                i + 1, got, twice, g, g2);
            bad++;
        }
        if (bad > 5)
            break;
    }
    if (state_of(&gpu) != state_of(&again)) {
        printf("FAIL the state of two equal runs differs\n");
        bad++;
    }
    printf("%s gpu_train %s %s%s%s: %d steps, worst relative difference of losses %.3g",
        bad > 0 ? "FAIL" : "ok", argv[1], argv[2], choose ? " free" : " replayed",
        adam ? " adam" : "", steps, worst);
    if (choose && first_step > 0)
        printf(", the first other set at step %d (%" PRId64 " entries)", first_step,
            first_differ);
    else if (choose)
        printf(", no other set");
    printf("\n");
    side_free(&cpu);
    side_free(&gpu);
    side_free(&again);
    for (int i = 0; i < 4; i++)
        tinybatch_free(&b[i]);
    table_free(t);
    free(s.index);
    free(s.expert);
    free(s.mine);
    free(text);
    return bad > 0;
}
