/* gpu_graph CONFIG f32|bf16 STEPS [--backend cuda|emulated] [--small] [--lr X]: whole steps of a tiny
 * model (train/wholestep.h), launched operation by operation and replayed from a recording, side by side
 * from the same weights on the same batches, with another learning rate at each step.
 *
 * Every loss, norm and coefficient of every step and a hash of all weights and moments must be equal,
 * bit for bit; one step in the middle has another shape, which is launched and loses no recording; all
 * but that one and the first must have been replays. At last a weight becomes NaN: both sides must
 * refuse the step with all else as it was. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/gpu/statehash.h"
#include "tests/support/tinymodel.h"
#include "tests/support/tmpdir.h"
#include "train/modelparams.h"
#include "train/wholestep.h"

enum { PARTS = 3 };

struct side {
    const struct kernels *k;
    glm_stream stream;
    struct params *params;
    struct model_param *link;
    struct optimizer *optimizer;
    struct model *model;
    int64_t **load;
    struct wholestep whole;
};

static void must(const struct glm_error *err)
{
    if (err->code == GLM_OK)
        return;
    fprintf(stderr, "gpu_graph: %s\n", err->text);
    exit(glm_exit_status(err));
}

static struct side side_new(const struct table *t, enum glm_dtype dtype, int64_t tokens,
    int64_t sequences, bool record)
{
    struct glm_error err = {0};
    struct side s = {.k = kernels_open("cuda", &err)};
    const struct optimizer_options oo = optimizer_defaults();
    struct model_options mo = {.dtype = dtype,
        .max_tokens = tokens,
        .max_sequences = sequences,
        .indexer_loss = MODEL_INDEXER_SPARSE,
        .indexer_coeff = 0.01,
        .mtp = t->config.num_mtp_layers > 0,
        .mtp_coeff = 0.1,
        .lean = true,
        .parts = PARTS,
        .ahead = true};

    must(&err);
    s.stream = s.k->stream_new(1, &err);
    must(&err);
    const struct params_options po = {
        .dtype = dtype, .trained = PARAMS_ALL, .home = {.k = s.k, .stream = s.stream}};
    params_new(&s.params, t, &po, &err);
    must(&err);
    params_init(s.params, 3, &err);
    optimizer_new(&s.optimizer, s.params, &oo, &err);
    must(&err);
    optimizer_scratch(s.optimizer, s.k, s.stream, &mo.least_bytes, &err);
    s.link = calloc((size_t)t->count, sizeof *s.link);
    modelparams_link(s.params, s.link);
    model_new(&s.model, t, s.link, &mo, s.k, s.stream, &err);
    must(&err);
    const int64_t layers = t->config.num_hidden_layers + t->config.num_mtp_layers;
    s.load = calloc((size_t)layers, sizeof *s.load);
    for (int64_t i = 0; i < s.params->count; i++)
        if (s.params->p[i].routed != NULL)
            s.load[s.params->p[i].entry->layer] = s.params->p[i].routed;
    s.whole = (struct wholestep){.model = s.model,
        .params = s.params,
        .optimizer = s.optimizer,
        .k = s.k,
        .stream = s.stream,
        .load = s.load,
        .ahead = true,
        .record = record};
    return s;
}

static void side_free(struct side *s)
{
    wholestep_clear(&s->whole);
    model_free(s->model);
    optimizer_free(s->optimizer);
    params_free(s->params);
    free(s->link);
    free(s->load);
    s->k->stream_free(s->stream);
}

/* ---- a step ----------------------------------------------------------------------------------- */

enum { LAYERS = 64 };
struct outcome { /* no gaps: compared as bytes */
    double lm[PARTS], mtp[PARTS], kl[PARTS][LAYERS];
    double norm, clip;
    int64_t refused;
};

static struct outcome step(
    struct side *s, const struct tinybatch *b, const struct optimizer_step *rates)
{
    struct glm_error err = {0};
    struct model_batch part[PARTS];
    struct optimizer_report report = {0};
    struct outcome o;

    memset(&o, 0, sizeof o);
    for (int i = 0; i < PARTS; i++)
        part[i] = b[i].batch;
    wholestep_run(
        &s->whole, part, PARTS, &(struct model_scale){1, 1, 1}, rates, NULL, &err);
    must(&err);
    for (int i = 0; i < PARTS; i++) {
        const struct model_losses *const l = model_losses_of(s->model, i);
        o.lm[i] = l->lm_sum;
        o.mtp[i] = l->mtp_sum;
        for (int64_t k = 0; k < l->layers && k < LAYERS; k++)
            o.kl[i][k] = l->indexer_sum[k];
    }
    optimizer_end(s->optimizer, s->k, s->stream, &report, &err);
    o.refused = err.code;
    if (err.code != GLM_EFORMAT)
        must(&err);
    o.norm = report.norm;
    o.clip = report.clip;
    return o;
}

static uint64_t state_of(struct side *s)
{
    struct glm_error err = {0};
    const uint64_t h = statehash(s->params, s->optimizer, &err);

    must(&err);
    return h;
}

/* One weight that all rows meet, in the master and its rounded copy. */
static void spoil(struct side *s)
{
    struct glm_error err = {0};
    const struct home h = {.k = s->k, .stream = s->stream};
    const float nan = NAN;

    for (int64_t i = 0; i < s->params->count; i++)
        if (strcmp(s->params->p[i].entry->name, "model.norm.weight") == 0
            && home_put(&h, s->params->p[i].master, &nan, sizeof nan, &err) == 0)
            params_round(s->params, i, &err);
    must(&err);
}

/* ---- both sides ------------------------------------------------------------------------------- */

static int compare(struct side *launched, struct side *replayed, int steps, double top,
    const struct tinybatch *b, int batches, const struct tinybatch *other)
{
    int bad = 0;

    for (int i = 0; i < steps && bad < 5; i++) {
        const struct optimizer_step rates = {.lr = top * (1 + cos(0.3 * i)) / 2,
            .decay = 0.1 + 0.001 * i,
            .grad_scale = 1.0 / (100 + i)};
        const struct tinybatch *const in =
            i == steps / 2 ? other : b + i * PARTS % (batches - PARTS);
        const struct outcome x = step(launched, in, &rates),
                             y = step(replayed, in, &rates);
        if (memcmp(&x, &y, sizeof x) != 0) {
            printf(
                "FAIL step %d: loss %.17g launched, %.17g replayed; norm %.17g, %.17g\n",
                i + 1, x.lm[0], y.lm[0], x.norm, y.norm);
            bad++;
        }
        bad += !isfinite(x.lm[0]) || x.refused != 0;
        if (i < 2 || i + 1 == steps)
            printf("step %d: loss %.9g, norm %.9g\n", i + 1, x.lm[0], x.norm);
    }
    return bad;
}

static int refuses(struct side *s, const struct tinybatch *b, const char *which)
{
    int bad = 0;

    spoil(s);
    const uint64_t before = state_of(s);
    const struct outcome x = step(
        s, b, &(struct optimizer_step){.lr = 1e-3, .decay = 0.1, .grad_scale = 0.01});
    if (isfinite(x.lm[0]) || x.refused != GLM_EFORMAT || state_of(s) != before) {
        printf("FAIL %s: a weight is NaN, the loss %g, status %" PRId64
               ", the state has %schanged\n",
            which, x.lm[0], x.refused, state_of(s) == before ? "not " : "");
        bad++;
    }
    return bad;
}

static void emulate(void)
{
    char path[4096];
    const ssize_t n = readlink("/proc/self/exe", path, sizeof path - 64);

    if (n < 0)
        exit(4);
    path[n] = '\0';
    for (int up = 0; up < 3; up++)
        *strrchr(path, '/') = '\0';
    strcat(path, "/emulated/libglm-cuda.so");
    setenv("GLM_CUDA_LIB", path, 0);
}

int main(int argc, char **argv)
{
    struct glm_error err = {0};
    struct model_config config = {0};
    struct table *t = NULL;
    static const int normal[] = {29, 1, 12, 6, 0}, little[] = {5, 1, 3, 0};
    static const int other_lengths[] = {7, 2, 0};
    enum { BATCHES = 4 * PARTS };
    struct tinybatch b[BATCHES], other[PARTS];
    bool emulated = false, small = false;
    double lr = 1e-3;
    size_t size;

    for (int i = 4; i < argc; i++) {
        if (strcmp(argv[i], "--backend") == 0 && i + 1 < argc)
            emulated = strcmp(argv[i + 1], "emulated") == 0;
        small = small || strcmp(argv[i], "--small") == 0;
        if (strcmp(argv[i], "--lr") == 0 && i + 1 < argc)
            lr = atof(argv[i + 1]);
    }
    if (argc < 4) {
        fprintf(stderr,
            "usage: gpu_graph CONFIG f32|bf16 STEPS [--backend cuda|emulated] "
            "[--small] [--lr X]\n");
        return 2;
    }
    if (emulated)
        emulate();
    const enum glm_dtype dtype = argv[2][0] == 'b' ? GLM_BF16 : GLM_F32;
    const int steps = atoi(argv[3]) < 5 ? 5 : atoi(argv[3]);
    char *text = tmpdir_read(argv[1], &size);
    config_parse(&config, argv[1], text, size, &err);
    must(&err);
    table_build(&t, &config, false, &err);
    must(&err);
    for (uint32_t i = 0; i < BATCHES; i++)
        b[i] = tinybatch_new(small ? little : normal, t->config.vocab_size, i + 1);
    for (uint32_t i = 0; i < PARTS; i++)
        other[i] = tinybatch_new(other_lengths, t->config.vocab_size, i + 91);
    const int64_t T = b[0].batch.tokens, S = b[0].batch.sequences;
    struct side launched = side_new(t, dtype, T, S, false),
                replayed = side_new(t, dtype, T, S, true);
    int bad = compare(&launched, &replayed, steps, lr, b, BATCHES, other);
    if (state_of(&launched) != state_of(&replayed)) {
        printf("FAIL the states differ\n");
        bad++;
    }
    if (replayed.whole.replays != steps - 2 || launched.whole.replays != 0) {
        printf("FAIL %" PRId64 " replays, expected %d: %s\n", replayed.whole.replays,
            steps - 2, replayed.whole.why);
        bad++;
    }
    bad += refuses(&launched, b, "launched") + refuses(&replayed, b, "replayed");
    printf("%s gpu_graph %s %s: %d steps, %" PRId64 " of them replayed, state %016" PRIx64
           "\n",
        bad > 0 ? "FAIL" : "ok", argv[1], argv[2], steps, replayed.whole.replays,
        state_of(&launched));
    side_free(&launched);
    side_free(&replayed);
    for (int i = 0; i < BATCHES; i++)
        tinybatch_free(&b[i]);
    for (int i = 0; i < PARTS; i++)
        tinybatch_free(&other[i]);
    table_free(t);
    free(text);
    return bad > 0;
}
