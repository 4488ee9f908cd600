/* gpu_slice CONFIG TOKENS [--rounds N] [--indexer-loss] [--dump FILE] [--profile] [--steps N [--snapshot]] [--graph N]: forward and backward
 * of a model with BF16 weights by formula (tests/gpu/support.h) on the GPU, one sequence.
 *
 * Prints a JSON line: seconds of each round, loss, FLOPs (train/flops.h), bytes of weights, gradients
 * and all else. --steps: N times 8 micro-batches and the optimizer's update (Muon with BF16 products,
 * AdamW) with masters and moments; prints seconds of both and a hash of losses and norms. --graph: the
 * same steps N times launched and N times from a recording, a line each, and of both the share of a
 * step in which no kernel ran. --dump
 * writes the loss and, for every parameter gradient, its norm and some elements, which
 * tests/gpu/peer_slice.py compares with transformers'. --profile times every operation of one more
 * round with events, which costs the overlap of launches, and prints a table to standard error. */
#include <dlfcn.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/gpu/opprofile.h"
#include "tests/gpu/support.h"
#include "train/flops.h"
#include "train/modelparams.h"
#include "train/optimizer.h"
#include "train/snapshot.h"
#include "train/wholestep.h"

enum { PICKS = 65536, MAX_ROUNDS = 64 };

static struct {
    int (*fill)(void *, int64_t, int, uint64_t, float, float);
    int (*sample)(const void *, int64_t, int64_t, float *, double *);
    int (*event)(int, void *);
    float (*elapsed)(int, int);
    int64_t (*used)(void);
    int (*busy_start)(void);
    double (*busy_stop)(int64_t *kernels);
} gpu;

static void die(const char *what)
{
    fprintf(stderr, "gpu_slice: %s\n", what);
    exit(4);
}

static void open_support(void)
{
    char path[4096], self[4096] = "";
    if (readlink("/proc/self/exe", self, sizeof self - 1) < 0)
        die("who am I");
    *strrchr(self, '/') = '\0';
    snprintf(path, sizeof path, "%.4000s/../lib/libglm-cuda-test.so", self);
    void *so = dlopen(path, RTLD_NOW);
    if (so == NULL)
        die(dlerror());
    *(void **)&gpu.fill = dlsym(so, "cudatest_fill");
    *(void **)&gpu.sample = dlsym(so, "cudatest_sample");
    *(void **)&gpu.event = dlsym(so, "cudatest_event");
    *(void **)&gpu.elapsed = dlsym(so, "cudatest_elapsed");
    *(void **)&gpu.used = dlsym(so, "cudatest_used");
    *(void **)&gpu.busy_start = dlsym(so, "cudatest_busy_start");
    *(void **)&gpu.busy_stop = dlsym(so, "cudatest_busy_stop");
}

/* ---- the model -------------------------------------------------------------------------------- */

struct slice {
    struct table *table;
    struct model_param *params;
    const struct kernels *k;
    glm_stream stream;
    int64_t weights, gradients;
};

static uint64_t seed_of(const char *name)
{
    uint64_t h = 1469598103934665603u;
    for (; *name; name++)
        h = (h ^ (unsigned char)*name) * 1099511628211u;
    return h;
}

static int64_t count_of(const struct table_entry *e)
{
    int64_t n = 1;
    for (int i = 0; i < e->rank; i++)
        n *= e->shape[i];
    return n;
}

static void make_params(struct slice *s, struct glm_error *err)
{
    s->params = calloc((size_t)s->table->count, sizeof *s->params);
    for (int64_t i = 0; i < s->table->count && err->code == GLM_OK; i++) {
        const struct table_entry *e = &s->table->entries[i];
        const int64_t n = count_of(e), in = e->shape[e->rank - 1];
        const bool bias = e->optimizer == OPT_ROUTER_BIAS;
        const size_t size = bias ? 4 : 2;
        const bool zero = bias || strstr(e->name, ".bias") != NULL;
        const float scale = e->rank < 2 ? 0 : (float)(1 / (37837.2 * sqrt((double)in)));
        void *w = s->k->alloc((size_t)n * size, err);
        void *dw = bias ? NULL : s->k->alloc((size_t)n * 4, err);
        if (err->code != GLM_OK)
            return;
        s->weights += n * (int64_t)size;
        s->gradients += bias ? 0 : 4 * n;
        if (gpu.fill(w, n, !bias, seed_of(e->name), scale, e->rank < 2 && !zero ? 1 : 0)
            != 0)
            die("cannot fill weights");
        s->params[i] = (struct model_param){w, dw};
    }
}

/* ---- whole steps ------------------------------------------------------------------------------ */

static double now(void);

static void fill_masters(struct params *p, struct glm_error *err)
{
    for (int64_t i = 0; i < p->count && err->code == GLM_OK; i++) {
        const struct table_entry *e = p->p[i].entry;
        const bool bias = e->optimizer == OPT_ROUTER_BIAS;
        const bool zero = bias || strstr(e->name, ".bias") != NULL;
        const int64_t in = e->shape[e->rank - 1];
        const float scale = e->rank < 2 ? 0 : (float)(1 / (37837.2 * sqrt((double)in)));
        const float mean = e->rank < 2 && !zero ? 1 : 0;
        void *const to = p->p[i].master != NULL ? p->p[i].master : p->p[i].w;
        const bool wide = bias || (p->p[i].master != NULL && p->p[i].master != p->p[i].w);
        if (gpu.fill(to, p->p[i].count, !wide, seed_of(e->name), scale, mean) != 0)
            die("cannot fill weights");
        params_round(p, i, err);
    }
}

/* How long training would wait for a copy of its state on the host (async_save). */
static int time_snapshot(
    struct slice *s, struct params *p, struct optimizer *o, struct glm_error *err)
{
    const struct home home = {.k = s->k, .stream = s->stream};
    struct state state = {.params = p, .optimizer = o};
    struct snapshot *copy = NULL;

    if (params_state(p, &state.tensors, err) == 0
        && optimizer_state(o, &state.tensors, err) == 0) {
        const double begin = now();
        snapshot_new(&copy, &state, &home, err);
        const double made = now();
        for (int i = 0; i < 2 && err->code == GLM_OK; i++) {
            const double from = now();
            snapshot_take(copy, &state, err);
            const double took = now() - from;
            printf("{\"snapshot_bytes\": %zu, \"alloc\": %.3f, \"seconds\": %.6f, "
                   "\"gbs\": %.2f}\n",
                copy->bytes, made - begin, took, (double)copy->bytes / took / 1e9);
        }
        if (err->code != GLM_OK) {
            printf("{\"snapshot_error\": \"%s\"}\n", err->text);
            glm_error_clear(err);
        }
    }
    snapshot_free(copy);
    tensors_clear(&state.tensors);
    return (int)err->code;
}

/* 8 micro-batches, then the update; hash: of every loss and norm, so that two runs can be compared. */
static int whole_steps(struct slice *s, struct model_options o,
    const struct model_batch *b, int steps, bool snapshot, bool profile,
    struct glm_error *err)
{
    enum { MICRO = 8 };
    const struct params_options po = {.dtype = GLM_BF16,
        .trained = PARAMS_NO_INDEXER,
        .home = {.k = s->k, .stream = s->stream}};
    struct optimizer_options oo = optimizer_defaults();
    struct optimizer *optimizer = NULL;
    struct params *p = NULL;
    struct model *m = NULL;
    struct model_param *link = calloc((size_t)s->table->count, sizeof *link);
    uint64_t hash = 1469598103934665603u;

    oo.muon_low_precision = true;
    if (params_new(&p, s->table, &po, err) != 0)
        goto out;
    fill_masters(p, err);
    for (int64_t i = 0; i < p->count; i++)
        link[i] = (struct model_param){p->p[i].w, p->p[i].grad};
    if (optimizer_new(&optimizer, p, &oo, err) != 0
        || optimizer_scratch(optimizer, s->k, s->stream, &o.least_bytes, err) != 0
        || model_new(&m, s->table, link, &o, s->k, s->stream, err) != 0)
        goto out;
    for (int step = 0; step < steps; step++) {
        struct optimizer_report report = {0};
        double loss = 0;
        params_zero_grads(p, err);
        s->k->stream_wait(s->stream, err);
        const double begin = now();
        for (int i = 0; i < MICRO && err->code == GLM_OK; i++) {
            if (model_forward(m, b, NULL, err) == 0)
                model_backward(m, &(struct model_scale){1, 1, 1}, err);
            loss += model_losses(m)->lm_sum;
        }
        const double middle = now();
        const double tokens = (double)(MICRO * model_losses(m)->lm_count);
        optimizer_update(optimizer,
            &(struct optimizer_step){.lr = 1e-4, .decay = 0.1, .grad_scale = 1 / tokens},
            s->k, s->stream, &report, err);
        s->k->stream_wait(s->stream, err);
        const double end = now();
        if (err->code != GLM_OK)
            goto out;
        unsigned char bits[2 * sizeof(double)];
        memcpy(bits, &loss, sizeof loss);
        memcpy(bits + sizeof loss, &report.norm, sizeof report.norm);
        for (size_t k = 0; k < sizeof bits; k++)
            hash = (hash ^ bits[k]) * 1099511628211u;
        printf("{\"step\": %d, \"loss\": %.9g, \"norm\": %.9g, \"micro_batches\": %.6f, "
               "\"update\": %.6f, \"hash\": \"%016" PRIx64 "\"}\n",
            step + 1, loss / tokens, report.norm, middle - begin, end - middle, hash);
        fflush(stdout);
    }
    if (profile) {
        const struct kernels measured = opprofile_of(s->k, gpu.event, gpu.elapsed);
        struct optimizer_report report;
        optimizer_update(optimizer, &(struct optimizer_step){.lr = 1e-4, .grad_scale = 1},
            &measured, s->stream, &report, err);
        opprofile_print();
    }
    model_free(m);
    m = NULL;
    if (snapshot)
        time_snapshot(s, p, optimizer, err);
out:
    model_free(m);
    optimizer_free(optimizer);
    params_free(p);
    free(link);
    return (int)err->code;
}

/* ---- launched and replayed -------------------------------------------------------------------- */

enum { PARTS = 8 };

/* A whole step; returns its seconds. */
static double one_whole(struct wholestep *w, const struct model_batch *b, uint64_t *hash,
    struct glm_error *err)
{
    struct model_batch part[PARTS];
    struct optimizer_report report = {0};
    double bits[PARTS + 1] = {0};
    int64_t targets = 0;

    for (int64_t t = 0; t < b->tokens; t++)
        targets += b->targets[t] >= 0;
    for (int i = 0; i < PARTS; i++)
        part[i] = *b;
    const struct optimizer_step rates = {
        .lr = 1e-4, .decay = 0.1, .grad_scale = 1.0 / (double)(PARTS * targets)};
    const double begin = now();
    if (wholestep_run(w, part, PARTS, &(struct model_scale){1, 1, 1}, &rates, NULL, err)
            == 0
        && optimizer_end(w->optimizer, w->k, w->stream, &report, err) == 0)
        for (int i = 0; i < PARTS; i++)
            bits[i] = model_losses_of(w->model, i)->lm_sum;
    const double took = now() - begin;
    bits[PARTS] = report.norm;
    for (size_t k = 0; k < sizeof bits; k++)
        *hash = (*hash ^ ((const unsigned char *)bits)[k]) * 1099511628211u;
    return took;
}

/* `steps` steps from the same beginning, then one more with CUPTI, which tells how long kernels ran. */
static int one_way(struct slice *s, struct params *p, struct model *m,
    const struct optimizer_options *oo, const struct model_batch *b, int steps,
    bool record, struct glm_error *err)
{
    struct wholestep w = {.model = m,
        .params = p,
        .k = s->k,
        .stream = s->stream,
        .ahead = true,
        .record = record};
    const char *const way = record ? "graph" : "launched";
    uint64_t hash = 1469598103934665603u, unused = 0;
    double least = INFINITY, busy = 0;
    int64_t kernels = 0;

    fill_masters(p, err);
    if (optimizer_new(&w.optimizer, p, oo, err) != 0)
        return (int)err->code;
    for (int i = 0; i < steps && err->code == GLM_OK; i++) {
        const double took = one_whole(&w, b, &hash, err);
        if (i > 1 && took < least)
            least = took;
        printf("{\"way\": \"%s\", \"step\": %d, \"seconds\": %.6f, \"replays\": %" PRId64
               ", \"hash\": \"%016" PRIx64 "\"}\n",
            way, i + 1, took, w.replays, hash);
        fflush(stdout);
    }
    if (err->code == GLM_OK && gpu.busy_start() == 0) {
        struct wholestep again = w; /* recorded under CUPTI, too */
        again.recording = NULL;
        again.recorded = (struct wholestep_shape){0};
        again.last = (struct wholestep_shape){0};
        for (int i = 0; i < 2; i++) /* the second one is the recorded one */
            if (i == 0 || gpu.busy_start() == 0) {
                one_whole(&again, b, &unused, err);
                busy = gpu.busy_stop(&kernels);
            }
        again.optimizer = NULL;
        wholestep_clear(&again);
    }
    printf("{\"gaps\": \"%s\", \"tokens\": %" PRId64 ", \"wall\": %.6f, \"busy\": %.6f, "
           "\"kernels\": %" PRId64 ", \"idle\": %.5f, \"why\": \"%s\"}\n",
        way, b->tokens, least, busy, kernels, busy > 0 ? 1 - busy / least : 0, w.why);
    fflush(stdout);
    struct optimizer *const o = w.optimizer;
    wholestep_clear(&w);
    optimizer_free(o);
    return (int)err->code;
}

/* The same steps launched operation by operation and as replays of a recording. */
static int graph_steps(struct slice *s, struct model_options o,
    const struct model_batch *b, int steps, struct glm_error *err)
{
    const struct params_options po = {.dtype = GLM_BF16,
        .trained = PARAMS_NO_INDEXER,
        .home = {.k = s->k, .stream = s->stream}};
    struct optimizer_options oo = optimizer_defaults();
    struct optimizer *optimizer = NULL;
    struct params *p = NULL;
    struct model *m = NULL;
    struct model_param *link = calloc((size_t)s->table->count, sizeof *link);

    oo.muon_low_precision = true;
    o.parts = PARTS;
    o.ahead = true;
    if (params_new(&p, s->table, &po, err) != 0)
        goto out;
    modelparams_link(p, link);
    if (optimizer_new(&optimizer, p, &oo, err) != 0
        || optimizer_scratch(optimizer, s->k, s->stream, &o.least_bytes, err) != 0)
        goto out;
    optimizer_free(optimizer);
    optimizer = NULL;
    if (model_new(&m, s->table, link, &o, s->k, s->stream, err) != 0
        || one_way(s, p, m, &oo, b, steps, false, err) != 0)
        goto out;
    one_way(s, p, m, &oo, b, steps, true, err);
out:
    model_free(m);
    optimizer_free(optimizer);
    params_free(p);
    free(link);
    return (int)err->code;
}

static void zero_grads(struct slice *s, struct glm_error *err)
{
    for (int64_t i = 0; i < s->table->count; i++)
        if (s->params[i].dw != NULL)
            s->k->zero(s->params[i].dw, (size_t)count_of(&s->table->entries[i]) * 4,
                s->stream, err);
}

static struct model_batch batch_of(int64_t T, int64_t vocab)
{
    int32_t *ids = calloc((size_t)(3 * T + 2), sizeof *ids), *positions = ids + T;
    int32_t *targets = positions + T, *cu = targets + T;
    uint64_t x = 12345;
    for (int64_t t = 0; t < T; t++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        ids[t] = (int32_t)((x >> 33) % (uint64_t)vocab);
        positions[t] = (int32_t)t;
    }
    for (int64_t t = 0; t < T; t++)
        targets[t] = t + 1 < T ? ids[t + 1] : -100;
    cu[1] = (int32_t)T;
    return (struct model_batch){.tokens = T,
        .sequences = 1,
        .ids = ids,
        .positions = positions,
        .targets = targets,
        .cu_seqlens = cu,
        .late = true};
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double step(struct slice *s, struct model *m, const struct model_batch *b,
    double *loss, struct glm_error *err)
{
    zero_grads(s, err);
    s->k->stream_wait(s->stream, err);
    const double began = now();
    if (model_forward(m, b, NULL, err) != 0)
        return 0;
    const struct model_losses *l = model_losses(m);
    const double scale = 1.0 / (double)l->lm_count;
    model_backward(m, &(struct model_scale){.lm = scale, .indexer = scale}, err);
    s->k->stream_wait(s->stream, err);
    *loss = l->lm_sum * scale;
    return now() - began;
}

static void dump(const struct slice *s, const char *path, double loss)
{
    FILE *f = fopen(path, "wb");
    float *picks = malloc(PICKS * sizeof *picks);
    if (f == NULL || picks == NULL)
        die("cannot write the dump");
    fprintf(f, "loss %.9g\n", loss);
    for (int64_t i = 0; i < s->table->count; i++) {
        const int64_t n = count_of(&s->table->entries[i]), count = n < PICKS ? n : PICKS;
        double squares;
        if (s->params[i].dw == NULL)
            continue;
        if (gpu.sample(s->params[i].dw, n, count, picks, &squares) != 0)
            die("cannot read gradients");
        fprintf(f, "%s %" PRId64 " %" PRId64 " %.9g\n", s->table->entries[i].name, n,
            count, sqrt(squares));
        fwrite(picks, sizeof *picks, (size_t)count, f);
        fprintf(f, "\n");
    }
    free(picks);
    if (fclose(f) != 0)
        die("cannot write the dump");
}

static void write_set(const struct slice *s, FILE *f, const int32_t *device, int64_t n)
{
    struct glm_error err = {0};
    int32_t *host = malloc((size_t)n * sizeof *host);
    if (host == NULL
        || s->k->to_host(host, device, (size_t)n * sizeof *host, s->stream, &err) != 0)
        die("cannot read the sets");
    fwrite(host, sizeof *host, (size_t)n, f);
    free(host);
}

/* Which keys and experts each layer chose: a line "layer index|expert rows columns", then the numbers. */
static void dump_sets(
    const struct slice *s, const struct model *m, const char *path, int64_t T)
{
    char name[4096];
    snprintf(name, sizeof name, "%.4000s.sets", path);
    FILE *f = fopen(name, "wb");
    if (f == NULL)
        die("cannot write the sets");
    for (int64_t l = 0; l < s->table->config.num_hidden_layers; l++) {
        const int64_t K = model_keys(m), k = s->table->config.num_experts_per_tok;
        fprintf(f, "%lld index %lld %lld\n", (long long)l, (long long)T, (long long)K);
        write_set(s, f, model_index(m, l), T * K);
        if (model_expert(m, l) == NULL)
            continue;
        fprintf(f, "%lld expert %lld %lld\n", (long long)l, (long long)T, (long long)k);
        write_set(s, f, model_expert(m, l), T * k);
    }
    if (fclose(f) != 0)
        die("cannot write the sets");
}

static char *read_file(const char *path, size_t *size)
{
    FILE *f = fopen(path, "rb");
    char *text = malloc(1 << 20);
    if (f == NULL || text == NULL)
        die("cannot read the configuration");
    *size = fread(text, 1, (1 << 20) - 1, f);
    text[*size] = '\0';
    fclose(f);
    return text;
}

int main(int argc, char **argv)
{
    struct glm_error err = {0};
    struct slice s = {0};
    struct model_config config = {0};
    struct model *m = NULL;
    const char *dump_path = NULL;
    double seconds[MAX_ROUNDS], loss = 0;
    bool with_profile = false, with_loss = false, with_snapshot = false;
    int rounds = 5, steps = 0, graph = 0;
    size_t size;

    if (argc < 3)
        die("usage: gpu_slice CONFIG TOKENS [--rounds N] [--indexer-loss] [--dump FILE] "
            "[--profile] [--steps N [--snapshot]] [--graph N]");
    for (int i = 3; i < argc; i++)
        if (strcmp(argv[i], "--rounds") == 0 && i + 1 < argc)
            rounds = atoi(argv[++i]);
        else if (strcmp(argv[i], "--dump") == 0 && i + 1 < argc)
            dump_path = argv[++i];
        else if (strcmp(argv[i], "--indexer-loss") == 0)
            with_loss = true;
        else if (strcmp(argv[i], "--profile") == 0)
            with_profile = true;
        else if (strcmp(argv[i], "--snapshot") == 0)
            with_snapshot = true;
        else if (strcmp(argv[i], "--steps") == 0 && i + 1 < argc)
            steps = atoi(argv[++i]);
        else if (strcmp(argv[i], "--graph") == 0 && i + 1 < argc)
            graph = atoi(argv[++i]);
        else
            die(argv[i]);
    rounds = rounds < 1 ? 1 : rounds > MAX_ROUNDS ? MAX_ROUNDS : rounds;
    open_support();
    const int64_t T = atoll(argv[2]);
    char *text = read_file(argv[1], &size);
    if (config_parse(&config, argv[1], text, size, &err) != 0
        || table_build(&s.table, &config, false, &err) != 0
        || (s.k = kernels_open("cuda", &err)) == NULL)
        goto out;
    const struct kernels measured = opprofile_of(s.k, gpu.event, gpu.elapsed);
    if ((s.stream = s.k->stream_new(1, &err)) == NULL)
        goto out;
    const int64_t before = gpu.used();
    if (steps == 0 && graph == 0)
        make_params(&s, &err);
    for (int64_t i = 0;
         s.params != NULL && err.code == GLM_OK && !with_loss && i < s.table->count; i++)
        if (s.table->entries[i].kind == KIND_INDEXER) {
            s.k->release(s.params[i].dw);
            s.gradients -= 4 * count_of(&s.table->entries[i]);
            s.params[i].dw = NULL;
        }
    const int64_t filled = gpu.used();
    const struct model_batch b = batch_of(T, s.table->config.vocab_size);
    const struct model_options o = {.dtype = GLM_BF16,
        .max_tokens = T,
        .max_sequences = 1,
        .stage = with_loss ? MODEL_TRAIN_ALL : MODEL_FREEZE_INDEXER,
        .indexer_loss = with_loss ? MODEL_INDEXER_SPARSE : MODEL_INDEXER_OFF,
        .indexer_coeff = 0.01,
        .zero_padding_row_grad = true,
        .absorbed = T > 8192, /* as glm-train chooses */
        .lean = true};
    if (graph > 0) {
        graph_steps(&s, o, &b, graph, &err);
        goto out;
    }
    if (steps > 0) {
        whole_steps(&s, o, &b, steps, with_snapshot, with_profile, &err);
        goto out;
    }
    struct flops_rows rows = {0};
    struct flops flops = {0};
    const struct flops_options fo = {
        .indexer = with_loss ? FLOPS_INDEXER_SPARSE : FLOPS_INDEXER_ONLY_FORWARD};
    flops_add(&rows, T, 1, s.table->config.index_topk, &err);
    flops_count(&flops, &s.table->config, &fo, &rows, &err);
    if (err.code != GLM_OK
        || model_new(&m, s.table, s.params, &o, s.k, s.stream, &err) != 0)
        goto out;
    const int64_t buffers = (int64_t)model_bytes(m);
    for (int i = 0; i < rounds && err.code == GLM_OK; i++)
        seconds[i] = step(&s, m, &b, &loss, &err);
    if (err.code != GLM_OK)
        goto out;
    printf("{\"tokens\": %" PRId64 ", \"loss\": %.9g, \"weights\": %" PRId64
           ", \"gradients\": %" PRId64 ", \"buffers\": %" PRId64 ", \"beyond\": %" PRId64
           ", \"context\": %" PRId64 ", \"flops\": %" PRIu64 ", \"seconds\": [",
        T, loss, s.weights, s.gradients, buffers, gpu.used() - filled, before,
        flops.total);
    for (int i = 0; i < rounds; i++)
        printf("%s%.6f", i ? ", " : "", seconds[i]);
    printf("]}\n");
    fflush(stdout);
    if (dump_path != NULL) {
        dump(&s, dump_path, loss);
        dump_sets(&s, m, dump_path, T);
    }
    if (with_profile) {
        model_free(m);
        m = NULL;
        if (model_new(&m, s.table, s.params, &o, &measured, s.stream, &err) != 0)
            goto out;
        opprofile_reset();
        step(&s, m, &b, &loss, &err);
        opprofile_print();
    }
out:
    model_free(m);
    if (s.k != NULL)
        s.k->stream_free(s.stream);
    if (err.code != GLM_OK)
        fprintf(stderr, "gpu_slice: %s\n", err.text);
    free(text);
    return glm_exit_status(&err);
}
