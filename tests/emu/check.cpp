/* emu_check: the emulator finds what it says it finds (README.md), and its instructions compute what
 * the PTX ISA says. Then what of the backend's host code no operation's case reaches. A line "ok" or
 * "FAIL" a check. */
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/cuda/arch.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ptx.cuh"

static int failed;

static void check(const char *what, bool good)
{
    printf("%s emulator: %s\n", good ? "ok" : "FAIL", what);
    failed += !good;
}

/* A launch without a stream; its messages are of no interest here. */
template <class F> static cudaError_t launch(int grid, int block, size_t shared, F go)
{
    const int err = dup(2);
    freopen("/dev/null", "w", stderr);
    const cudaError_t e = emu_run(
        "check", dim3(grid), dim3(block), shared, [](void *ctx) { (*(F *)ctx)(); }, &go);
    fflush(stderr);
    dup2(err, 2);
    close(err);
    cudaGetLastError();
    return e;
}

static void halts(void)
{
    check("a barrier that half of the threads miss halts", launch(1, 64, 0, [] {
        if (threadIdx.x < 32)
            emu_barrier(1, 64, 0);
        else
            __syncthreads();
    }) == cudaErrorLaunchFailure);
    check("a shuffle that half of the lanes miss halts", launch(1, 32, 0, [] {
        if (threadIdx.x < 16)
            __shfl_xor_sync(0xFFFFFFFFu, 1, 1);
        else
            __syncthreads();
    }) == cudaErrorLaunchFailure);
    check("a loop that waits for nobody halts", launch(1, 32, 0, [] {
        EMU_STATIC(flag, volatile int);
        if (threadIdx.x == 0)
            flag = 0;
        while (flag == 0)
            emu_spin();
    }) == cudaErrorLaunchFailure);
    check("threads that have returned are not waited for", launch(1, 64, 0, [] {
        if (threadIdx.x >= 40)
            return;
        __syncthreads();
        __syncwarp();
    }) == cudaSuccess);
    check("too many threads are refused",
        launch(1, 1025, 0, [] {}) == cudaErrorInvalidConfiguration);
}

/* Whether a process that does it does not live. */
template <class F> static bool ends_badly(F what)
{
    int status = 0;
    const pid_t child = fork();

    if (child == 0) {
        freopen("/dev/null", "w", stderr);
        what();
        _exit(0);
    }
    waitpid(child, &status, 0);
    return child > 0 && status != 0;
}

static void memory(void)
{
    float *p = NULL;
    bool nan = true, shared_nan = true;

    cudaMalloc((void **)&p, 40);
    for (int i = 0; i < 10; i++)
        nan = nan && p[i] != p[i];
    check("new device memory is NaN", nan);
    launch(2, 32, 256, [&] {
        EMU_STATIC(a, float[32]);
        EMU_DYNAMIC(b, float);
        shared_nan = shared_nan && a[threadIdx.x] != a[threadIdx.x]
            && b[threadIdx.x] != b[threadIdx.x];
        __syncthreads();
        a[threadIdx.x] = b[threadIdx.x] = 1;
    });
    check("shared memory is NaN at the beginning of every block", shared_nan);
    check("a write behind device memory is found", ends_badly([&] {
        ((volatile char *)p)[40] = 0;
        cudaFree(p);
    }));
#ifdef __SANITIZE_ADDRESS__
    check("a read behind shared memory is found", ends_badly([] {
        launch(1, 32, 0, [] {
            EMU_STATIC(a, volatile float[32]);
            (void)a[threadIdx.x + 1];
        });
    }));
#endif
    cudaFree(p);
}

static void copies(void)
{
    alignas(16) float from[4] = {1, 2, 3, 4};
    float before = 0, after = 0, zero = 1;

    launch(1, 1, 0, [&] {
        EMU_STATIC(to, float[4]);
        ptx_copy(ptx_shared(to), from, 8);
        ptx_copy_commit();
        before = to[1];
        ptx_copy_wait<0>();
        after = to[1];
        zero = to[2];
    });
    check("cp.async has not copied before it is waited for",
        before != before && after == 2);
    check("cp.async fills up with zeros", zero == 0);
}

/* Whole numbers: sums are exact in any order. */
static float a_of(int i, int k)
{
    return (float)((i * 7 + k * 3) % 11 - 5);
}
static float b_of(int k, int j)
{
    return (float)((k * 5 + j * 2) % 7 - 3);
}

static void products(void)
{
    bool good = true;

    launch(1, 32, 0, [&] {
        EMU_STATIC(a, bf16[16][24]);
        EMU_STATIC(b, bf16[16][8]);
        const int lane = threadIdx.x;
        for (int e = lane; e < 256; e += 32)
            a[e / 16][e % 16] = put<bf16>(a_of(e / 16, e % 16));
        for (int e = lane; e < 128; e += 32)
            b[e / 8][e % 8] = put<bf16>(b_of(e / 8, e % 8));
        __syncwarp();
        uint32_t x[4], y[4];
        float c[4] = {100, 0, 0, 0};
        ptx_ldmatrix(x, ptx_shared(&a[lane % 16][lane / 16 * 8]));
        ptx_ldmatrix_t(y, ptx_shared(b[lane % 16]));
        ptx_mma(c, x, y);
        for (int e = 0; e < 4; e++) {
            const int i = lane / 4 + e / 2 * 8, j = lane % 4 * 2 + e % 2;
            float sum = e == 0 ? 100 : 0;
            for (int k = 0; k < 16; k++)
                sum += a_of(i, k) * b_of(k, j);
            good = good && c[e] == sum;
        }
    });
    check("ldmatrix and mma.sync multiply", good);
}

static void meetings(void)
{
    bool good = true;
    int count = 0;

    launch(3, 96, 0, [&] {
        EMU_STATIC(room, float[WARP]);
        const int lane = threadIdx.x % 32;
        good = good && block_sum((float)threadIdx.x, room) == 95 * 96 / 2;
        good = good && block_max((float)threadIdx.x, room) == 95;
        good = good && __ballot_sync(0xFFFFFFFFu, lane % 3 == 0) == 0x49249249u;
        good = good && __match_any_sync(0xFFFFFFFFu, lane / 8) == 0xFFu << lane / 8 * 8;
        good =
            good && __shfl_up_sync(0xFFFFFFFFu, lane, 3) == (lane < 3 ? lane : lane - 3);
        good = good
            && __shfl_down_sync(0xFFFFFFFFu, lane, 3, 8)
                == (lane % 8 > 4 ? lane : lane + 3);
        if (lane < 8)
            good = good && __shfl_xor_sync(0xFFu, lane, 5) == (lane ^ 5);
        good = good && __syncthreads_count(threadIdx.x < 5) == 5;
        atomicAdd(&count, 1);
    });
    check("shuffles, votes, barriers and atomics agree with their definitions",
        good && count == 3 * 96);
}

/* ---- the backend on it ------------------------------------------------------------------------ */

/* c = a b of one number with one, in rows of M. */
static int product_of(
    const struct kernels *k, glm_stream s, float *c, float *ab, int64_t M)
{
    struct glm_error err = {};
    struct gemm p = {};

    p.a = ab, p.b = ab, p.c = c;
    p.M = M, p.N = p.K = p.lda = p.ldb = p.ldc = 1;
    p.a_type = p.b_type = p.c_type = GLM_F32;
    return k->gemm(&p, s, &err);
}

static void many_shapes(const struct kernels *k, glm_stream s)
{
    enum { SHAPES = 3000 };
    struct glm_error err = {};
    float *const ab = (float *)k->alloc(SHAPES * sizeof *ab, &err);
    float *const c = (float *)k->alloc(SHAPES * sizeof *c, &err);
    bool good = true;

    for (int i = 0; i < SHAPES; i++)
        ab[i] = (float)(i + 2);
    for (int64_t M = 1; M <= SHAPES && good; M++) {
        c[M - 1] = 0;
        good = product_of(k, s, c, ab, M) == 0 && c[M - 1] == ab[M - 1] * 2;
        if (M % 7 == 0) /* one that comes again and again */
            good = good && product_of(k, s, c, ab, 3) == 0;
    }
    check("products of ever new shapes go on", good);
    k->release(ab);
    k->release(c);
}

static void memory_refused(const struct kernels *k, glm_stream s)
{
#ifndef __SANITIZE_ADDRESS__
    const size_t much = (size_t)1 << 60;
    struct glm_error err = {}, none = {};
    float *const x = (float *)k->alloc(sizeof *x, &none);

    check("page-locked memory that is not there is said with how much it was",
        k->host_alloc(much, &err) == NULL && err.code == GLM_ENOMEM
            && strstr(err.text, "1073741824.00 GiB") != NULL);
    struct convert c = {};
    c.y = x, c.x = x, c.n = 1, c.from = c.to = GLM_F32;
    *x = 1;
    check("and the next kernel does not end by it",
        k->convert(&c, s, &none) == 0 && k->stream_wait(s, &none) == 0);
    err = none = {};
    check("the same for the GPU's memory",
        k->alloc(much, &err) == NULL && err.code == GLM_ENOMEM
            && k->convert(&c, s, &none) == 0 && k->stream_wait(s, &none) == 0);
    k->release(x);
#endif
}

static void architectures()
{
    check("a build's kernels are for the devices that its architectures name",
        cuda_built_for("90a 100a", 9, 0) && cuda_built_for("90a 100a", 10, 0)
            && !cuda_built_for("90a 100a", 10, 3) && !cuda_built_for("90a 100a", 12, 0)
            && cuda_built_for("100f", 10, 3) && !cuda_built_for("100f", 12, 0)
            && cuda_built_for("90", 9, 0) && !cuda_built_for("103a", 10, 0)
            && !cuda_built_for("", 9, 0) && !cuda_built_for("all", 9, 0));
}

static void backend()
{
    const struct kernels *const k = glm_backend();
    struct glm_error err = {};
    glm_stream const s = k->stream_new(1, &err);

    check("a stream opens", s != NULL);
    if (s == NULL)
        return;
    many_shapes(k, s);
    memory_refused(k, s);
    architectures();
    k->stream_free(s);
}

int main()
{
    halts();
    memory();
    copies();
    products();
    meetings();
    backend();
    return failed > 0;
}
