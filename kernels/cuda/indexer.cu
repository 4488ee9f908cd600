/* Scores of the indexer: chunks of rows, and a plain kernel for every type and shape.
 *
 * Plain: a thread a pair, the heads in order, each product of rows in order of its elements. Bounded
 * by loads of k; the tensor cores have their own (indexer_mma.cu). One writer per score. */
#include "kernels/cuda/indexer.cuh"

enum { THREADS = 256, KEYS = 32, ROWS = 8, CHUNK_BYTES = 512 << 20 };

struct indexer_rows indexer_rows_of(const void *q, const void *k, const void *w,
    const int32_t *first, int64_t T, int64_t N, int64_t D, bool hf, enum glm_dtype dtype)
{
    struct indexer_rows r = {};

    r.q = q;
    r.k = k;
    r.w = w;
    r.first = first;
    r.T = T;
    r.N = N;
    r.D = D;
    r.dtype = dtype;
    r.on_w = (float)(1 / sqrt(hf ? (double)N : (double)N * (double)D));
    r.on_z = hf ? (float)(1 / sqrt((double)D)) : 1;
    return r;
}

int64_t indexer_width(int64_t t1)
{
    return (t1 + 127) / 128 * 128;
}

/* A multiple of 64, so that tiles of rows are whole but for the last. */
int64_t indexer_chunk(int64_t T, int arrays)
{
    const int64_t rows = CHUNK_BYTES / (arrays * indexer_width(T) * (int64_t)sizeof(float));

    if (rows >= T)
        return T;
    return rows < 64 ? 64 : rows / 64 * 64;
}

/* The last sequence that begins at or before t. */
static __global__ void k_first(int32_t *first, const int32_t *cu, int64_t T, int64_t S)
{
    const int64_t t = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    int64_t low = 0, high = S;

    if (t >= T)
        return;
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        if (cu[middle] <= t)
            low = middle;
        else
            high = middle;
    }
    first[t] = cu[low];
}

int indexer_first(int32_t *first, const int32_t *cu_seqlens, int64_t T, int64_t S,
    glm_stream s, struct glm_error *err)
{
    return LAUNCH(k_first, blocks_of(T, THREADS), THREADS, 0, s, err, first, cu_seqlens, T, S);
}

template <class E> static __global__ void k_score(float *score, struct indexer_rows r)
{
    const int64_t s = (int64_t)blockIdx.x * KEYS + threadIdx.x % KEYS;
    const int64_t t = r.t0 + (int64_t)blockIdx.y * ROWS + threadIdx.x / KEYS;

    if (t >= r.t1 || s > t || s < r.first[t] || t + 1 - r.first[t] <= r.least)
        return;
    const E *q = (const E *)r.q + t * r.N * r.D, *k = (const E *)r.k + s * r.D;
    float sum = 0;
    for (int64_t n = 0; n < r.N; n++) {
        float z = 0;
        for (int64_t d = 0; d < r.D; d++)
            z += get(q[n * r.D + d]) * get(k[d]);
        sum += get(((const E *)r.w)[t * r.N + n]) * r.on_w * indexer_relu(z * r.on_z);
    }
    score[(t - r.t0) * r.width + s] = sum;
}

int indexer_score(
    float *score, const struct indexer_rows *r, glm_stream s, struct glm_error *err)
{
    const dim3 grid(blocks_of(r->t1, KEYS), blocks_of(r->t1 - r->t0, ROWS));

    if (indexer_wgmma_fits(r, s))
        return indexer_score_wgmma(score, r, s, err);
    if (indexer_score_fits(r))
        return indexer_score_mma(score, r, s, err);
    return BY_TYPE(r->dtype, E, LAUNCH(k_score<E>, grid, THREADS, 0, s, err, score, *r));
}
