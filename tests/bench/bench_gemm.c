/* bench_gemm THREADS ROUNDS [LIBRARY]: our gemm and that of OpenBLAS, in turn, in one process.
 *
 * Prints one JSON object a shape and round: GFLOP/s of wall clock time, each the mean of as many
 * calls as take about a twentieth of a second, after as long a time of calls that are not counted:
 * OpenBLAS's threads look for work for 2^26 ticks (26 ms here) after a call and hold a processor
 * as long. Each library's thread i is bound to processor i, because of three threads on two
 * processors the kernel now and then leaves two of one library on one. OpenBLAS is loaded apart
 * (RTLD_LOCAL, RTLD_DEEPBIND): it has the names of our library. Without it "peer" is null. Both
 * results are compared, so that both did the work. */
#include <dirent.h>
#include <dlfcn.h>
#include <limits.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "kernels/kernels.h"

/* M tokens; linear layers forward (x W^T), backward (dy W) and of weights (dy^T x). */
static const struct shape {
    const char *name;
    int M, N, K;
    bool trans_a, trans_b, accumulate;
} shapes[] = {
    {"square 1024", 1024, 1024, 1024, false, false, false},
    {"GLM-5.2 q_a forward", 256, 2048, 6144, false, true, false},
    {"GLM-5.2 q_a backward", 256, 6144, 2048, false, false, false},
    {"GLM-5.2 q_a weights", 2048, 6144, 256, true, false, true},
    {"GLM-5.2 kv_a forward", 256, 576, 6144, false, true, false},
    {"GLM-5.2 kv_b forward", 256, 28672, 512, false, true, false},
    {"GLM-5.2 expert forward", 64, 2048, 6144, false, true, false},
    {"GLM-5.2 expert weights", 2048, 6144, 64, true, false, true},
    {"GLM-5.2 router forward", 256, 256, 6144, false, true, false},
    {"tiny-a head forward", 512, 320, 160, false, true, false},
    {"tiny-a dense forward", 512, 288, 160, false, true, false},
    {"tiny-a dense backward", 512, 160, 288, false, false, false},
    {"tiny-a dense weights", 288, 160, 512, true, false, true},
    {"tiny-a q_a forward", 512, 96, 160, false, true, false},
};

typedef void sgemm_fn(int order, int trans_a, int trans_b, int m, int n, int k,
    float alpha, const float *a, int lda, const float *b, int ldb, float beta, float *c,
    int ldc);

struct bench {
    const struct kernels *k;
    glm_stream stream;
    sgemm_fn *peer;
};

struct data {
    float *a, *b, *ours, *peer;
};

static double now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static _Noreturn void stop(const char *what)
{
    fprintf(stderr, "bench_gemm: %s\n", what);
    exit(4);
}

static float *numbers(size_t n, unsigned seed)
{
    float *x = malloc(n * sizeof *x);

    if (x == NULL)
        stop("no memory");
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(seed >> 8) * 0x1p-23f - 1;
    }
    return x;
}

static void run_ours(const struct bench *b, const struct shape *s, const struct data *d)
{
    struct glm_error err = {0};

    if (b->k->gemm(&(struct gemm){.c = d->ours,
                       .a = d->a,
                       .b = d->b,
                       .M = s->M,
                       .N = s->N,
                       .K = s->K,
                       .lda = s->trans_a ? s->M : s->K,
                       .ldb = s->trans_b ? s->K : s->N,
                       .ldc = s->N,
                       .trans_a = s->trans_a,
                       .trans_b = s->trans_b,
                       .accumulate = s->accumulate,
                       .a_type = GLM_F32,
                       .b_type = GLM_F32,
                       .c_type = GLM_F32},
            b->stream, &err)
        != 0)
        stop(err.text);
}

static void run_peer(const struct bench *b, const struct shape *s, const struct data *d)
{
    enum { ROW_MAJOR = 101, PLAIN = 111, TRANSPOSED = 112 };

    b->peer(ROW_MAJOR, s->trans_a ? TRANSPOSED : PLAIN, s->trans_b ? TRANSPOSED : PLAIN,
        s->M, s->N, s->K, 1, d->a, s->trans_a ? s->M : s->K, d->b,
        s->trans_b ? s->K : s->N, s->accumulate ? 1 : 0, d->peer, s->N);
}

static double gflops(
    void (*run)(const struct bench *, const struct shape *, const struct data *),
    const struct bench *b, const struct shape *s, const struct data *d)
{
    const double flop = 2.0 * s->M * s->N * s->K;
    const int calls = (int)(5e9 / flop) + 1;

    for (const double until = now_s() + 0.06; now_s() < until;)
        run(b, s, d);
    const double start = now_s();
    for (int i = 0; i < calls; i++)
        run(b, s, d);
    return flop * calls / (now_s() - start) * 1e-9;
}

static void compare(const struct shape *s, const struct data *d)
{
    double worst = 0, largest = 0;

    for (size_t i = 0; i < (size_t)s->M * (size_t)s->N; i++) {
        worst = fmax(worst, fabs((double)(d->ours[i] - d->peer[i])));
        largest = fmax(largest, fabs((double)d->peer[i]));
    }
    if (!(worst <= 1e-4 * largest))
        stop("the two libraries' results differ");
}

static void bench_shape(const struct bench *b, const struct shape *s, int rounds)
{
    const size_t M = (size_t)s->M, N = (size_t)s->N, K = (size_t)s->K;
    struct data d = {
        numbers(M * K, 1), numbers(N * K, 2), numbers(M * N, 3), numbers(M * N, 3)};

    run_ours(b, s, &d);
    if (b->peer != NULL) {
        run_peer(b, s, &d);
        compare(s, &d);
    }
    for (int i = 0; i <= rounds; i++) {
        const double ours = gflops(run_ours, b, s, &d);
        const double peer = b->peer == NULL ? 0 : gflops(run_peer, b, s, &d);
        if (i == 0)
            continue;
        printf(
            "{\"shape\": \"%s\", \"size\": \"%d x %d x %d\", \"ours\": %.3f, \"peer\": ",
            s->name, s->M, s->N, s->K, ours);
        printf(b->peer == NULL ? "null}\n" : "%.3f}\n", peer);
    }
    free(d.a);
    free(d.b);
    free(d.ours);
    free(d.peer);
}

/* Binds threads begin..end-1 of this process, in the order of their making, one each to the
 * processors it may use, from the first-th on. Returns how many threads there are. */
static int bind_threads(int begin, int end, int first)
{
    cpu_set_t all;
    size_t cpus[CPU_SETSIZE];
    int n = 0, threads = 0;
    DIR *tasks = opendir("/proc/self/task");

    if (tasks == NULL || sched_getaffinity(0, sizeof all, &all) != 0)
        stop("the threads of this process cannot be listed");
    for (size_t i = 0; i < CPU_SETSIZE; i++) {
        if (CPU_ISSET(i, &all))
            cpus[n++] = i;
    }
    for (struct dirent *d; (d = readdir(tasks)) != NULL;) {
        const int id = atoi(d->d_name);
        if (id == 0)
            continue;
        if (threads >= begin && threads < end) {
            cpu_set_t one;
            CPU_ZERO(&one);
            CPU_SET(cpus[(first + threads - begin) % n], &one);
            if (sched_setaffinity(id, sizeof one, &one) != 0)
                stop("a thread cannot be bound to a processor");
        }
        threads++;
    }
    closedir(tasks);
    return threads;
}

static sgemm_fn *open_peer(const char *library, int threads)
{
    void *lib = dlopen(library, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    void (*set_threads)(int);
    sgemm_fn *sgemm;

    if (lib == NULL)
        return NULL;
    /* POSIX's way to a function pointer. */
    *(void **)&set_threads = dlsym(lib, "openblas_set_num_threads");
    *(void **)&sgemm = dlsym(lib, "cblas_sgemm");
    if (set_threads == NULL || sgemm == NULL)
        stop("the peer is not OpenBLAS");
    set_threads(threads);
    return sgemm;
}

int main(int argc, char **argv)
{
    struct glm_error err = {0};

    if (argc < 3)
        stop("usage: bench_gemm THREADS ROUNDS [LIBRARY]");
    const int threads = atoi(argv[1]), rounds = atoi(argv[2]);
    struct bench b = {.k = kernels_find("cpu")};
    b.peer = open_peer(argc > 3 ? argv[3] : "libopenblas.so.0", threads);
    const int of_peer = bind_threads(1, INT_MAX, 1);
    b.stream = b.k->stream_new(threads, &err);
    if (b.stream == NULL)
        stop(err.text);
    bind_threads(of_peer, INT_MAX, 1);
    bind_threads(0, 1, 0);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        bench_shape(&b, &shapes[i], rounds);
    b.k->stream_free(b.stream);
    return 0;
}
