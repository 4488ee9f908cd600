/* A kernel that stays on a part of the GPU: it reads and writes memory in bursts, sleeps between them,
 * and says in memory of the host that it lives. Blocks of the kernels beside it start at other times
 * and in another order than alone. It takes a block on a quarter of the multiprocessors, so that what
 * needs a whole one finds it. */
#include "tests/gpu/support.h"

#include <cuda_runtime.h>
#include <time.h>

enum { THREADS = 128, SECONDS = 20 };
static const size_t MEMORY = (size_t)64 << 20; /* beyond the second-level cache */

struct signs {
    unsigned here, ended; /* blocks */
    unsigned beats;
    int stop;
};

static __device__ unsigned long long nanoseconds(void)
{
    unsigned long long t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}

static __global__ void k_noise(volatile struct signs *s, uint4 *memory, size_t n)
{
    const unsigned long long begin = nanoseconds();
    size_t at = ((size_t)blockIdx.x * THREADS + threadIdx.x) * 977 % n;
    unsigned burst = blockIdx.x;

    if (threadIdx.x == 0)
        atomicAdd_system((unsigned *)&s->here, 1u);
    while (s->stop == 0 && nanoseconds() - begin < SECONDS * 1000000000ull) {
        for (unsigned i = 0; i < 8 + burst % 64; i++) {
            memory[at].x += burst;
            at = (at + 12289u * 33u) % n;
        }
        burst = burst * 1664525u + 1013904223u;
        __nanosleep(burst >> 18); /* up to 16 us */
        if (threadIdx.x == 0 && blockIdx.x == 0)
            s->beats = s->beats + 1;
    }
    if (threadIdx.x == 0)
        atomicAdd_system((unsigned *)&s->ended, 1u);
}

static cudaStream_t stream;
static struct signs *signs;
static uint4 *memory;
static unsigned blocks, beats;

static cudaError_t prepare(void)
{
    int device, processors;
    cudaError_t e;

    if (memory != NULL)
        return cudaSuccess;
    if ((e = cudaGetDevice(&device)) != cudaSuccess
        || (e = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device))
            != cudaSuccess
        || (e = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)) != cudaSuccess
        || (e = cudaHostAlloc((void **)&signs, sizeof *signs, cudaHostAllocMapped))
            != cudaSuccess
        || (e = cudaMalloc((void **)&memory, MEMORY)) != cudaSuccess)
        return e;
    blocks = (unsigned)(processors + 3) / 4;
    return cudaMemset(memory, 0, MEMORY);
}

static bool within(double seconds, bool (*seen)(void))
{
    struct timespec t0, t;

    clock_gettime(CLOCK_MONOTONIC, &t0);
    do {
        if (seen())
            return true;
        clock_gettime(CLOCK_MONOTONIC, &t);
    } while ((double)(t.tv_sec - t0.tv_sec) + 1e-9 * (double)(t.tv_nsec - t0.tv_nsec)
        < seconds);
    return false;
}

static bool all_here(void)
{
    return ((volatile struct signs *)signs)->here == blocks;
}

static bool beats_on(void)
{
    return ((volatile struct signs *)signs)->beats != beats;
}

int cudatest_noise_start(void)
{
    cudaError_t e = prepare();

    if (e != cudaSuccess)
        return (int)e;
    *signs = (struct signs){0, 0, 0, 0};
    k_noise<<<blocks, THREADS, 0, stream>>>(signs, memory, MEMORY / sizeof *memory);
    if ((e = cudaGetLastError()) != cudaSuccess)
        return (int)e;
    if (within(5, all_here))
        return 0;
    cudatest_noise_stop();
    return -1;
}

int cudatest_noise_stop(void)
{
    volatile struct signs *const s = signs;

    beats = s->beats;
    const bool lives = s->here == blocks && s->ended == 0 && within(1, beats_on);
    s->stop = 1;
    const cudaError_t e = cudaStreamSynchronize(stream);
    return e != cudaSuccess ? (int)e : lives ? 0 : -1;
}
