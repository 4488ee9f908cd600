/* Weights by formula, samples, events. */
#include "tests/gpu/support.h"

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdlib.h>
#include <vector>

enum { THREADS = 256, BLOCKS = 2048 };

static __device__ uint64_t mix(uint64_t x)
{
    x += 0x9E3779B97F4A7C15ull;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ x >> 27) * 0x94D049BB133111EBull;
    return x ^ x >> 31;
}

static __global__ void k_fill(
    void *to, int64_t n, int bf16, uint64_t seed, float scale, float mean)
{
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n;
         i += (int64_t)BLOCKS * THREADS) {
        const uint64_t h = mix(seed + (uint64_t)i);
        const int sum = (int)(h & 0xFFFF) + (int)(h >> 16 & 0xFFFF) + (int)(h >> 32 & 0xFFFF)
            + (int)(h >> 48);
        const float x = __fadd_rn(mean, __fmul_rn(scale, (float)(sum - 131070)));
        if (bf16)
            ((__nv_bfloat16 *)to)[i] = __float2bfloat16_rn(x);
        else
            ((float *)to)[i] = x;
    }
}

int cudatest_fill(void *to, int64_t n, int bf16, uint64_t seed, float scale, float mean)
{
    k_fill<<<BLOCKS, THREADS>>>(to, n, bf16, seed, scale, mean);
    return (int)cudaDeviceSynchronize();
}

static __global__ void k_sample(
    const float *x, int64_t n, int64_t count, float *picks, double *squares)
{
    double sum = 0;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n;
         i += (int64_t)BLOCKS * THREADS)
        sum += (double)x[i] * (double)x[i];
    squares[blockIdx.x * THREADS + threadIdx.x] = sum;
    for (int64_t k = (int64_t)blockIdx.x * THREADS + threadIdx.x; k < count;
         k += (int64_t)BLOCKS * THREADS)
        picks[k] = x[k * n / count];
}

int cudatest_sample(const void *x, int64_t n, int64_t count, float *picks, double *squares)
{
    const int64_t parts = (int64_t)BLOCKS * THREADS;
    std::vector<double> host((size_t)parts);
    float *d_picks = NULL;
    double *d_parts = NULL;

    if (cudaMalloc((void **)&d_picks, (size_t)count * sizeof *d_picks) == cudaSuccess
        && cudaMalloc((void **)&d_parts, (size_t)parts * sizeof *d_parts) == cudaSuccess) {
        k_sample<<<BLOCKS, THREADS>>>((const float *)x, n, count, d_picks, d_parts);
        cudaMemcpy(picks, d_picks, (size_t)count * sizeof *picks, cudaMemcpyDeviceToHost);
        cudaMemcpy(host.data(), d_parts, (size_t)parts * sizeof(double), cudaMemcpyDeviceToHost);
    }
    *squares = 0;
    for (double s : host)
        *squares += s;
    cudaFree(d_picks);
    cudaFree(d_parts);
    return (int)cudaGetLastError();
}

enum { EVENTS = 16384 };
static cudaEvent_t events[EVENTS];

int cudatest_event(int which, void *stream)
{
    if (which < 0 || which >= EVENTS)
        return -1;
    if (events[which] == NULL && cudaEventCreate(&events[which]) != cudaSuccess)
        return -1;
    return (int)cudaEventRecord(events[which], *(cudaStream_t *)stream);
}

float cudatest_elapsed(int from, int to)
{
    float ms = -1;
    cudaEventSynchronize(events[to]);
    cudaEventElapsedTime(&ms, events[from], events[to]);
    return ms;
}

int cudatest_copy(void *to, const void *from, int64_t bytes, void *stream)
{
    return (int)cudaMemcpyAsync(
        to, from, (size_t)bytes, cudaMemcpyDeviceToDevice, *(cudaStream_t *)stream);
}

int64_t cudatest_used(void)
{
    size_t there = 0, all = 0;
    cudaMemGetInfo(&there, &all);
    return (int64_t)(all - there);
}
