/* What a step decides by itself, with the CPU's bits: nothing is read by the host between the first
 * micro-batch and the last update. Few numbers; each operation is one small block, the norm's trees
 * one a tensor: pairs of neighbours at each level, one that is left over as it is. */
#include <float.h>

#include "kernels/cuda/launch.cuh"

enum { THREADS = 256 };
typedef unsigned long long wide;

/* ---- sums of losses --------------------------------------------------------------------------- */

static __global__ void k_total(double *out, const float *x, int64_t n)
{
    __shared__ double lane[THREADS];
    double sum = 0;

#pragma unroll 8
    for (int64_t i = threadIdx.x; i < n; i += THREADS)
        sum += (double)x[i];
    lane[threadIdx.x] = sum;
    __syncthreads();
    for (int half = THREADS / 2; half > 0; half /= 2) {
        if ((int)threadIdx.x < half)
            lane[threadIdx.x] += lane[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0)
        *out = lane[0];
}

CUDA_OP(total)
{
    if (p->n < 0 || p->dtype != GLM_F32)
        return glm_fail(err, GLM_EFORMAT,
            "total: %lld elements of %s: on the GPU they are F32", (long long)p->n,
            glm_dtype_name(p->dtype));
    cuda_begin(stream);
    return LAUNCH(
        k_total, 1, THREADS, 0, stream, err, p->out, (const float *)p->x, p->n);
}

/* ---- loads of experts ------------------------------------------------------------------------- */

static __device__ inline void add_load(int64_t *load, int64_t by)
{
    atomicAdd((wide *)load, (wide)by);
}

static __global__ void k_load(struct expert_load p)
{
    for (int64_t e = threadIdx.x; e < p.E; e += THREADS)
        add_load(&p.load[e], p.offset[e + 1] - p.offset[e]);
    for (int64_t i = threadIdx.x; p.padded && i < p.S * p.K; i += THREADS) {
        const int64_t row = p.cu_seqlens[i / p.K + 1] - 1;
        add_load(&p.load[p.expert[row * p.K + i % p.K]], -1);
    }
}

CUDA_OP(expert_load)
{
    if (p->T < 0 || p->S < 0 || p->E < 1 || p->K < 1)
        return glm_fail(err, GLM_EFORMAT,
            "expert_load: %lld rows in %lld sequences, %lld of %lld experts",
            (long long)p->T, (long long)p->S, (long long)p->K, (long long)p->E);
    cuda_begin(stream);
    return LAUNCH(k_load, 1, THREADS, 0, stream, err, *p);
}

static __global__ void k_bias(struct router_bias p)
{
    __shared__ wide sum;
    __shared__ float sum32;

    if (p.rates != NULL && p.rates->stop != 0)
        return;
    if (threadIdx.x == 0) {
        sum = 0;
        sum32 = 0;
        for (int64_t e = 0; p.f32_mean && e < p.E; e++)
            sum32 += (float)p.load[e];
    }
    __syncthreads();
    for (int64_t e = threadIdx.x; e < p.E; e += THREADS)
        atomicAdd(&sum, (wide)p.load[e]);
    __syncthreads();
    const float mean = sum32 / (float)p.E;
    const int64_t all = (int64_t)sum;
    for (int64_t e = threadIdx.x; e < p.E; e += THREADS) {
        const float n = (float)p.load[e];
        const int64_t other = p.E * p.load[e];
        const int exact = (all > other) - (all < other);
        const int sign = p.f32_mean ? (mean > n) - (mean < n) : exact;
        p.bias[e] += (float)p.rate * (float)sign;
    }
}

CUDA_OP(router_bias)
{
    if (p->E < 1)
        return glm_fail(
            err, GLM_EFORMAT, "router_bias: %lld experts", (long long)p->E);
    cuda_begin(stream);
    return LAUNCH(k_bias, 1, THREADS, 0, stream, err, *p);
}

/* ---- norm ------------------------------------------------------------------------------------- */

/* sum[i] = the tree over tensor i's leaves, in `room` of as many as there are leaves. */
static __global__ void k_fold(struct clip p, double *room, double *sum)
{
    const int64_t first = p.first[blockIdx.x], n = p.first[blockIdx.x + 1] - first;
    double *const node = room + first;

    if (p.group[blockIdx.x] < 0)
        return;
    for (int64_t k = threadIdx.x; k < n; k += THREADS)
        node[k] = p.leaf[first + k];
    __syncthreads();
    for (int64_t s = 1; s < n; s *= 2) {
        for (int64_t k = 2 * s * (int64_t)threadIdx.x; k + s < n; k += 2 * s * THREADS)
            node[k] += node[k + s];
        __syncthreads();
    }
    if (threadIdx.x == 0)
        sum[blockIdx.x] = n > 0 ? node[0] : 0;
}

static __device__ inline bool is_number(double x)
{
    return fabs(x) <= DBL_MAX; /* false for NaN */
}

/* One block. Products and sums are rounded apart, as the CPU does. */
static __global__ void k_clip(struct clip p, const double *sum)
{
    __shared__ double one[THREADS];
    __shared__ double clip[2];
    __shared__ int group[THREADS];
    __shared__ int stop;
    const double scale = p.n > 0 ? p.rates[0].grad_scale : 0;
    double all[2] = {0, 0};
    int bad = 0;

    for (int64_t i = threadIdx.x; i < p.watch; i += THREADS)
        bad |= !is_number(p.watched[i]);
    bad = __syncthreads_or(bad);
    for (int64_t at = 0; at < p.n; at += THREADS) {
        const int64_t i = at + threadIdx.x;
        group[threadIdx.x] = i < p.n ? p.group[i] : -1;
        one[threadIdx.x] = group[threadIdx.x] >= 0 ? sum[i] : 0;
        __syncthreads();
        for (int k = 0; threadIdx.x == 0 && k < THREADS; k++)
            if (group[k] >= 0)
                all[group[k]] += one[k];
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        for (int g = 0; g < 2; g++) {
            const double norm = __dmul_rn(sqrt(all[g]), scale);
            const double by = p.limit / __dadd_rn(norm, 1e-6);
            clip[g] = p.limit > 0 ? fmin(1.0, by) : 1;
            p.report[2 * g] = norm;
            p.report[2 * g + 1] = clip[g];
            bad |= !is_number(norm);
        }
        p.report[4] = stop = bad != 0;
    }
    __syncthreads();
    for (int64_t i = threadIdx.x; i < p.n; i += THREADS) {
        p.rates[i].grad_scale = __dmul_rn(scale, clip[p.group[i] == 1]);
        p.rates[i].stop = stop;
    }
}

CUDA_OP(clip)
{
    if (p->n < 0 || p->watch < 0 || p->leaves < 0)
        return glm_fail(err, GLM_EFORMAT, "clip: %lld tensors, %lld leaves",
            (long long)p->n, (long long)p->leaves);
    cuda_begin(stream);
    double *const room =
        (double *)cuda_scratch(stream, (size_t)(p->leaves + 1) * sizeof(double), err);
    double *const sum =
        (double *)cuda_scratch(stream, (size_t)(p->n + 1) * sizeof(double), err);
    if (err->code != GLM_OK
        || LAUNCH(k_fold, (unsigned)p->n, THREADS, 0, stream, err, *p, room, sum) != 0)
        return err->code;
    return LAUNCH(k_clip, 1, THREADS, 0, stream, err, *p, (const double *)sum);
}
