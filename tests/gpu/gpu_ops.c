/* gpu_ops: the operations of a GPU backend against the CPU's, over shapes that meet every branch.
 *
 *     gpu_ops [--backend cuda|emulated|cpu] [--op NAME] [--case WORDS] [--small] [--repeats N]
 *             [--noise] [--lock FILE] [--threads N] [--json FILE] [--plain-products]
 *     gpu_ops --list
 *
 * --case: those whose names have these words. A line "ok OP CASE", "FAIL OP CASE: what" or "SKIP OP
 * CASE: reason" per case, then the counts. Each case runs N times (cuda: 20, emulated: 2) and must
 * give the same bits each time; with --noise beside a kernel on another stream that keeps a part of
 * the GPU and its memory busy, and that is shown to have run meanwhile. With --lock several of these
 * programs side by side use the GPU in turns, case by case. --plain-products: a kernel of ours stands in
 * for cuBLASLt's, for racecheck (plainlt.cu). --small leaves out what a
 * sanitizer or the emulator is too slow for, and places arrays without room around them, where a
 * sanitizer sees a step too far. --backend cpu compares the CPU with itself: are the cases sound? */
#include <dlfcn.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/gpu/opcase.h"

static const char usage[] = "usage: gpu_ops [--backend cuda|emulated|cpu] [--op NAME] "
                            "[--case WORDS] [--small] [--repeats N] "
                            "[--noise] [--lock FILE] [--threads N] [--json FILE] "
                            "[--plain-products] [--list]\n";

struct options {
    const char *backend, *json, *lock;
    int threads; /* of the CPU's backend */
    bool plain;  /* products */
};

/* build/release/tools/gpu_ops -> build/emulated/libglm-cuda.so, unless GLM_CUDA_LIB says else. */
static void use_emulator(void)
{
    char path[4200];
    const ssize_t n = readlink("/proc/self/exe", path, 4096);

    if (n <= 0)
        return;
    path[n] = '\0';
    for (int up = 0; up < 3 && strrchr(path, '/') != NULL; up++)
        *strrchr(path, '/') = '\0';
    strcat(path, "/emulated/libglm-cuda.so");
    setenv("GLM_CUDA_LIB", path, 0);
}

/* A library of build/release/lib, from build/release/tools/gpu_ops. NULL: dlerror says why. */
static void *open_beside(const char *name, int how)
{
    char path[4200];
    const ssize_t n = readlink("/proc/self/exe", path, 4096);

    if (n <= 0)
        return NULL;
    path[n] = '\0';
    *strrchr(path, '/') = '\0';
    strcat(path, "/../lib/");
    strcat(path, name);
    return dlopen(path, how);
}

static int find_noise(struct suite *s, struct glm_error *err)
{
    union {
        void *p;
        int (*f)(void);
    } start = {NULL}, stop = {NULL};
    void *const so = open_beside("libglm-cuda-test.so", RTLD_NOW | RTLD_LOCAL);

    if (so != NULL) {
        start.p = dlsym(so, "cudatest_noise_start");
        stop.p = dlsym(so, "cudatest_noise_stop");
    }
    if (start.p == NULL || stop.p == NULL)
        return glm_fail(err, GLM_EUSAGE, "--noise: %s",
            so == NULL ? dlerror() : "libglm-cuda-test.so is another one");
    s->noise_start = start.f;
    s->noise_stop = stop.f;
    return 0;
}

static int parse(int argc, char **argv, struct suite *s, struct options *o)
{
    static const struct option options[] = {{"backend", required_argument, NULL, 'b'},
        {"op", required_argument, NULL, 'o'}, {"case", required_argument, NULL, 'c'},
        {"small", no_argument, NULL, 's'}, {"repeats", required_argument, NULL, 'r'},
        {"threads", required_argument, NULL, 't'}, {"noise", no_argument, NULL, 'n'},
        {"lock", required_argument, NULL, 'k'}, {"json", required_argument, NULL, 'j'},
        {"plain-products", no_argument, NULL, 'p'}, {"list", no_argument, NULL, 'l'},
        {NULL, 0, NULL, 0}};

    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (c) {
        case 'b':
            o->backend = optarg;
            break;
        case 'o':
            s->only = optarg;
            break;
        case 'c':
            s->words = optarg;
            break;
        case 's':
            s->small = true;
            break;
        case 'r':
            s->repeats = atoi(optarg);
            break;
        case 't':
            o->threads = atoi(optarg);
            break;
        case 'n':
            s->noise = true;
            break;
        case 'p':
            o->plain = true;
            break;
        case 'k':
            o->lock = optarg;
            break;
        case 'j':
            o->json = optarg;
            break;
        case 'l':
            s->list = true;
            break;
        default:
            return GLM_EUSAGE;
        }
    }
    const bool emulated = strcmp(o->backend, "emulated") == 0;
    if (s->repeats == 0)
        s->repeats = emulated ? 2 : 20;
    const bool known =
        emulated || strcmp(o->backend, "cuda") == 0 || strcmp(o->backend, "cpu") == 0;
    return optind == argc && s->repeats > 0 && known ? 0 : GLM_EUSAGE;
}

static int open_backends(struct suite *s, const struct options *o, struct glm_error *err)
{
    const long processors = o->threads > 0 ? o->threads : sysconf(_SC_NPROCESSORS_ONLN);

    if (strcmp(o->backend, "emulated") == 0)
        use_emulator();
    if (o->plain && open_beside("libglm-cuda-plain.so", RTLD_NOW | RTLD_GLOBAL) == NULL)
        return glm_fail(err, GLM_EUSAGE, "--plain-products: %s", dlerror());
    s->cpu = kernels_open("cpu", err);
    s->other = kernels_open(strcmp(o->backend, "cpu") == 0 ? "cpu" : "cuda", err);
    if (s->other == NULL || s->cpu == NULL)
        return (int)err->code;
    s->cpu_stream = s->cpu->stream_new(processors > 16 ? 16 : (int)processors, err);
    s->stream = s->other->stream_new(1, err);
    if (s->cpu_stream == NULL || s->stream == NULL)
        return (int)err->code;
    if (s->noise && find_noise(s, err) != 0)
        return (int)err->code;
    if (o->lock != NULL
        && (s->lock = open(o->lock, O_RDWR | O_CREAT | O_CLOEXEC, 0666)) < 0)
        return glm_fail_errno(err, "%s", o->lock);
    if (o->json != NULL && (s->json = fopen(o->json, "w")) == NULL)
        return glm_fail_errno(err, "%s", o->json);
    return 0;
}

static void run_all(struct suite *s)
{
    static void (*const groups[])(struct suite *, enum glm_dtype) = {cases_elementwise,
        cases_norms, cases_gemm, cases_attention, cases_indexer, cases_moe, cases_head,
        cases_optimizer};
    static const enum glm_dtype types[] = {GLM_BF16, GLM_F32};

    for (size_t g = 0; g < sizeof groups / sizeof *groups; g++)
        for (int t = 0; t < 2; t++)
            groups[g](s, types[t]);
}

int main(int argc, char **argv)
{
    struct suite s = {.lock = -1};
    struct options o = {.backend = "cuda"};
    struct glm_error err = {0};

    if (parse(argc, argv, &s, &o) != 0) {
        fputs(usage, stderr);
        return 2;
    }
    if (!s.list && open_backends(&s, &o, &err) != 0) {
        fprintf(stderr, "gpu_ops: %s\n", err.text);
        return glm_exit_status(&err);
    }
    if (s.json != NULL)
        fprintf(s.json,
            "{\"device\": \"%s\", \"repeats\": %d, \"noise\": %s, \"cases\": [\n",
            s.other->device_name(s.stream), s.repeats, s.noise ? "true" : "false");
    run_all(&s);
    if (s.list)
        return 0;
    suite_close(&s);
    if (s.json != NULL) {
        fprintf(s.json, "\n], \"passed\": %d, \"failed\": %d, \"skipped\": %d}\n",
            s.passed, s.failed, s.skipped);
        fclose(s.json);
    }
    printf("%d passed, %d failed, %d skipped (%s, %d runs each%s; reference %.1f s, it "
           "%.1f s, "
           "turn awaited %.1f s)\n",
        s.passed, s.failed, s.skipped, s.other->device_name(s.stream), s.repeats,
        s.noise ? ", beside noise" : "", s.on_cpu, s.on_other, s.waited);
    s.other->stream_free(s.stream);
    s.cpu->stream_free(s.cpu_stream);
    return s.failed > 0 || s.passed == 0;
}
