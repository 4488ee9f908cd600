/* gpu_time: how long operations take on the device, beside what bounds them.
 *
 *     gpu_time [--op NAME] [--kernel K2] [--case WORDS] [--tokens N]... [--repeats N] [--json FILE]
 *              [--backend cuda|cpu] [--list]
 *
 * Begins with the two ceilings of this very machine, P (BF16 product 8192^3) and B (copy of 2 GiB, read
 * and written). Then each line of timeline.c: N runs on random data, over several sets of arrays, so
 * that none meets its own in the second-level cache; the median of the times between events around
 * each run. The floor is max(FLOPs / P, bytes / B); what is printed last is floor / time. */
#include <dlfcn.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/gpu/timeline.h"

static const char usage[] =
    "usage: gpu_time [--op NAME] [--kernel K2] [--case WORDS] [--tokens N]... "
    "[--repeats N] [--json FILE] "
    "[--backend cuda|cpu] [--list]\n";

enum { SETS = 6, MOST_REPEATS = 200, WARM_UP = 2, TOKENS = 8 };
static const double cache = 160e6; /* bytes of sets that surely leave the cache */

struct bench {
    const char *only_op, *only_kernel, *words, *json_path, *backend;
    int64_t tokens[TOKENS];
    int token_counts, repeats;
    bool list;
    const struct kernels *k;
    glm_stream stream;
    struct timesupport gpu;
    double flops_most, bytes_most; /* ceilings, per second */
    FILE *json;
    int written;
};

/* ---- time ------------------------------------------------------------------------------------- */

static double now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Runs once between two events or, without, waits on the host's clock. */
typedef int once_fn(struct bench *b, void *ctx, int turn, struct glm_error *err);

static int measure(struct bench *b, once_fn *once, void *ctx, double ms[MOST_REPEATS],
    struct glm_error *err)
{
    for (int i = 0; i < WARM_UP; i++)
        if (once(b, ctx, i, err) != 0)
            return (int)err->code;
    if (b->k->stream_wait(b->stream, err) != 0)
        return (int)err->code;
    for (int i = 0; i < b->repeats; i++) {
        const double begin = now_ms();
        if (b->gpu.event != NULL)
            b->gpu.event(2 * i, b->stream);
        if (once(b, ctx, i, err) != 0)
            return (int)err->code;
        if (b->gpu.event != NULL)
            b->gpu.event(2 * i + 1, b->stream);
        else if (b->k->stream_wait(b->stream, err) != 0)
            return (int)err->code;
        ms[i] = now_ms() - begin;
    }
    if (b->k->stream_wait(b->stream, err) != 0)
        return (int)err->code;
    for (int i = 0; b->gpu.event != NULL && i < b->repeats; i++)
        ms[i] = (double)b->gpu.elapsed(2 * i, 2 * i + 1);
    return 0;
}

static double median(const double *ms, int n)
{
    double sorted[MOST_REPEATS];

    memcpy(sorted, ms, (size_t)n * sizeof *ms);
    qsort(sorted, (size_t)n, sizeof *sorted, by_size);
    return n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

/* ---- lines ------------------------------------------------------------------------------------ */

struct job {
    const struct timeline *line;
    struct timearrays set[SETS];
    int sets;
    void *scratch;
};

static int run_once(struct bench *b, void *ctx, int turn, struct glm_error *err)
{
    struct job *j = ctx;
    return op_run(j->line->op, b->k, j->set[turn % j->sets].p, b->stream, err);
}

/* Scratch memory as a training step would have it: taken before, from one dry run. */
static int reserve(struct bench *b, struct job *j, struct glm_error *err)
{
    if (b->k->dry == NULL)
        return 0;
    b->k->dry(b->stream, true);
    run_once(b, j, 0, err);
    const size_t bytes = b->k->scratch_peak(b->stream);
    b->k->dry(b->stream, false);
    if (err->code != GLM_OK || (j->scratch = b->k->alloc(bytes, err)) == NULL)
        return (int)err->code;
    b->k->lend(b->stream, j->scratch, 0, bytes);
    return 0;
}

static int time_line(struct bench *b, const struct timeline *l, double ms[MOST_REPEATS],
    struct glm_error *err)
{
    struct job j = {.line = l};
    const double size = timeline_size(l), want = cache / (size > 1 ? size : 1) + 1;

    j.sets = want > SETS ? SETS : want < 1 ? 1 : (int)want;
    for (int i = 0; i < j.sets && err->code == GLM_OK; i++)
        timearrays_open(&j.set[i], l, b->k, b->stream, &b->gpu, (uint64_t)(i + 1), err);
    if (err->code == GLM_OK && reserve(b, &j, err) == 0)
        measure(b, run_once, &j, ms, err);
    if (j.scratch != NULL) {
        struct glm_error unused = {0};
        b->k->stream_wait(b->stream, &unused);
        b->k->lend(b->stream, NULL, 0, 0);
        b->k->release(j.scratch);
    }
    for (int i = 0; i < j.sets; i++)
        if (j.set[i].k != NULL)
            timearrays_close(&j.set[i]);
    return (int)err->code;
}

static void json_line(struct bench *b, const struct timeline *l, const double *ms,
    double mid, double bytes, double floor_ms)
{
    if (b->json == NULL)
        return;
    fprintf(b->json,
        "%s  {\"kernel\": \"%s\", \"op\": \"%s\", \"case\": \"%s\", \"median_ms\": %.6f, "
        "\"flops\": %.0f, \"bytes\": %.0f, \"floor_ms\": %.6f, \"of_floor\": %.4f, "
        "\"ms\": [",
        b->written++ > 0 ? ",\n" : "", l->kernel, op_name(l->op), l->name, mid, l->flops,
        bytes, floor_ms, floor_ms / mid);
    for (int i = 0; i < b->repeats; i++)
        fprintf(b->json, "%s%.6f", i > 0 ? ", " : "", ms[i]);
    fprintf(b->json, "]}");
    fflush(b->json);
}

static void one_line(struct bench *b, const struct timeline *l)
{
    struct glm_error err = {0};
    double ms[MOST_REPEATS];

    if ((b->words != NULL && strstr(l->name, b->words) == NULL)
        || (b->only_op != NULL && strcmp(b->only_op, op_name(l->op)) != 0)
        || (b->only_kernel != NULL && strcmp(b->only_kernel, l->kernel) != 0))
        return;
    printf("%-4s %-16s %-44s", l->kernel, op_name(l->op), l->name);
    if (b->list || !op_there(l->op, b->k)) {
        printf("%s\n", b->list ? "" : " not there");
        return;
    }
    if (time_line(b, l, ms, &err) != 0) {
        printf(" FAILED: %s\n", err.text);
        return;
    }
    const double mid = median(ms, b->repeats), bytes = timeline_bytes(l);
    const double by_flops = l->flops / b->flops_most * 1e3;
    const double by_bytes = bytes / b->bytes_most * 1e3;
    const double floor_ms = by_flops > by_bytes ? by_flops : by_bytes;
    printf(" %9.4f ms %7.1f TFLOP/s %7.1f GB/s  %5.2f of floor\n", mid,
        l->flops / mid * 1e-9, bytes / mid * 1e-6, floor_ms / mid);
    fflush(stdout);
    json_line(b, l, ms, mid, bytes, floor_ms);
}

/* ---- ceilings --------------------------------------------------------------------------------- */

struct copies {
    void *from, *to;
    int64_t bytes;
};

static int copy_once(struct bench *b, void *ctx, int turn, struct glm_error *err)
{
    struct copies *c = ctx;

    (void)turn;
    if (b->gpu.copy == NULL)
        memcpy(c->to, c->from, (size_t)c->bytes);
    else if (b->gpu.copy(c->to, c->from, c->bytes, b->stream) != 0)
        return glm_fail(err, GLM_EDEVICE, "copying %lld bytes", (long long)c->bytes);
    return 0;
}

static int ceilings(struct bench *b, struct glm_error *err)
{
    const bool host = b->k->host;
    const int64_t n = host ? 256 : 8192, bytes = host ? 1 << 20 : (int64_t)2 << 30;
    struct timeline product = {.kernel = "P", .op = OP_gemm};
    struct copies c = {
        b->k->alloc((size_t)bytes, err), b->k->alloc((size_t)bytes, err), bytes};
    const struct gemm p = {.M = n,
        .N = n,
        .K = n,
        .lda = n,
        .ldb = n,
        .ldc = n,
        .trans_b = true,
        .a_type = GLM_BF16,
        .b_type = GLM_BF16,
        .c_type = GLM_BF16};
    double ms[MOST_REPEATS];

    memcpy(product.p, &p, sizeof p);
    if (err->code == GLM_OK && b->gpu.fill != NULL)
        b->gpu.fill(c.from, bytes / 4, 0, 1, 1e-5f, 0);
    else if (err->code == GLM_OK)
        memset(c.from, 1, (size_t)bytes);
    if (err->code == GLM_OK && measure(b, copy_once, &c, ms, err) == 0)
        b->bytes_most = 2e3 * (double)bytes / median(ms, b->repeats);
    b->k->release(c.from);
    b->k->release(c.to);
    if (err->code == GLM_OK && time_line(b, &product, ms, err) == 0)
        b->flops_most = 2e3 * (double)n * (double)n * (double)n / median(ms, b->repeats);
    if (err->code == GLM_OK)
        printf("%s: P %.1f TFLOP/s (BF16 %lld^3), B %.1f GB/s (copy, read and written)\n",
            b->k->device_name(b->stream), b->flops_most * 1e-12, (long long)n,
            b->bytes_most * 1e-9);
    return (int)err->code;
}

/* ---- beginning -------------------------------------------------------------------------------- */

static int parse(int argc, char **argv, struct bench *b)
{
    static const struct option options[] = {{"op", required_argument, NULL, 'o'},
        {"kernel", required_argument, NULL, 'k'},
        {"tokens", required_argument, NULL, 't'},
        {"repeats", required_argument, NULL, 'r'}, {"json", required_argument, NULL, 'j'},
        {"backend", required_argument, NULL, 'b'}, {"case", required_argument, NULL, 'c'},
        {"list", no_argument, NULL, 'l'}, {NULL, 0, NULL, 0}};

    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (c) {
        case 'o':
            b->only_op = optarg;
            break;
        case 'c':
            b->words = optarg;
            break;
        case 'k':
            b->only_kernel = optarg;
            break;
        case 't':
            if (b->token_counts == TOKENS
                || (b->tokens[b->token_counts++] = atoll(optarg)) < 1)
                return GLM_EUSAGE;
            break;
        case 'r':
            b->repeats = atoi(optarg);
            break;
        case 'j':
            b->json_path = optarg;
            break;
        case 'b':
            b->backend = optarg;
            break;
        case 'l':
            b->list = true;
            break;
        default:
            return GLM_EUSAGE;
        }
    }
    if (b->token_counts == 0)
        b->tokens[b->token_counts++] = 4096;
    return optind == argc && b->repeats > 0 && b->repeats <= MOST_REPEATS ? 0
                                                                          : GLM_EUSAGE;
}

/* tools/gpu_time -> lib/libglm-cuda-test.so */
static int find_support(struct timesupport *gpu, struct glm_error *err)
{
    char path[4300];
    const ssize_t n = readlink("/proc/self/exe", path, 4096);

    if (n <= 0)
        return glm_fail_errno(err, "/proc/self/exe");
    path[n] = '\0';
    *strrchr(path, '/') = '\0';
    strcat(path, "/../lib/libglm-cuda-test.so");
    void *so = dlopen(path, RTLD_NOW);
    if (so == NULL)
        return glm_fail(err, GLM_EDEVICE, "%s", dlerror());
    *(void **)&gpu->fill = dlsym(so, "cudatest_fill");
    *(void **)&gpu->event = dlsym(so, "cudatest_event");
    *(void **)&gpu->elapsed = dlsym(so, "cudatest_elapsed");
    *(void **)&gpu->copy = dlsym(so, "cudatest_copy");
    if (!gpu->fill || !gpu->event || !gpu->elapsed || !gpu->copy)
        return glm_fail(err, GLM_EDEVICE, "%s lacks a function", path);
    return 0;
}

static int begin(struct bench *b, struct glm_error *err)
{
    b->k = kernels_open(b->backend, err);
    if (b->k == NULL || (b->stream = b->k->stream_new(2, err)) == NULL)
        return (int)err->code;
    if (!b->k->host && find_support(&b->gpu, err) != 0)
        return (int)err->code;
    if (b->json_path != NULL && (b->json = fopen(b->json_path, "w")) == NULL)
        return glm_fail_errno(err, "%s", b->json_path);
    if (ceilings(b, err) != 0)
        return (int)err->code;
    if (b->json != NULL)
        fprintf(b->json,
            "{\"device\": \"%s\", \"gemm_flops_per_s\": %.0f, \"copy_bytes_per_s\": "
            "%.0f, "
            "\"lines\": [\n",
            b->k->device_name(b->stream), b->flops_most, b->bytes_most);
    return 0;
}

int main(int argc, char **argv)
{
    static struct timelines lines;
    struct bench b = {.backend = "cuda", .repeats = 21};
    struct glm_error err = {0};

    if (parse(argc, argv, &b) != 0) {
        fputs(usage, stderr);
        return 2;
    }
    if (!b.list && begin(&b, &err) != 0) {
        fprintf(stderr, "gpu_time: %s\n", err.text);
        return glm_exit_status(&err);
    }
    for (int t = 0; t < b.token_counts; t++) {
        timeline_list(&lines, b.tokens[t]);
        for (int i = 0; i < lines.count; i++)
            one_line(&b, &lines.line[i]);
    }
    if (b.json != NULL) {
        fprintf(b.json, "\n]}\n");
        fclose(b.json);
    }
    if (b.stream != NULL)
        b.k->stream_free(b.stream);
    return 0;
}
