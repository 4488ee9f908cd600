/* What top-k and loss of the indexer share: rows in chunks, scores of a chunk.
 *
 * Scores of all pairs of rows and keys do not fit for long packs (65,536 rows: 16 GiB), so rows go
 * through in chunks of some hundred MiB of scores. Score (t, s) of a chunk that begins at row t0 lies
 * at (t - t0) * width + s: the columns are rows of the pack, those outside [first[t], t] undefined. */
#ifndef KERNELS_CUDA_INDEXER_CUH
#define KERNELS_CUDA_INDEXER_CUH

#include "kernels/cuda/launch.cuh"

/* The indexer's inputs, and the rows [t0, t1) that are at work. */
struct indexer_rows {
    const void *q, *k, *w; /* [T,N,D], [T,D], [T,N] */
    const int32_t *first;  /* [T]: where a row's sequence begins */
    int64_t T, N, D, t0, t1, width;
    float on_w, on_z;
    int64_t least; /* rows that see at most so many keys need no scores */
    enum glm_dtype dtype;
};

/* I[t,s] = sum_n (w[t,n]*on_w) * relu((q[t,n].k[s])*on_z). on_w: (N*D)^-1/2, or N^-1/2 and on_z
 * D^-1/2 (hf). */
struct indexer_rows indexer_rows_of(const void *q, const void *k, const void *w,
    const int32_t *first, int64_t T, int64_t N, int64_t D, bool hf, enum glm_dtype dtype);
/* Rows of a chunk so that `arrays` arrays of scores stay within bounds. */
int64_t indexer_chunk(int64_t T, int arrays);
/* Columns of the chunk [.., t1). */
int64_t indexer_width(int64_t t1);

/* first[t] of cu_seqlens [S+1]. */
int indexer_first(int32_t *first, const int32_t *cu_seqlens, int64_t T, int64_t S,
    glm_stream s, struct glm_error *err);
/* score of the chunk's pairs that are seen. */
int indexer_score(
    float *score, const struct indexer_rows *r, glm_stream s, struct glm_error *err);
/* Whether indexer_score has a kernel for tensor cores (indexer_mma.cu), and that kernel. */
bool indexer_score_fits(const struct indexer_rows *r);
int indexer_score_mma(
    float *score, const struct indexer_rows *r, glm_stream s, struct glm_error *err);

/* The same by wgmma (indexer_wgmma.cu), for Hopper and shapes that also fit the one above. */
bool indexer_wgmma_fits(const struct indexer_rows *r, glm_stream s);
int indexer_score_wgmma(
    float *score, const struct indexer_rows *r, glm_stream s, struct glm_error *err);

/* Whether no row of [begin, end) needs a score of keys [s0, s0 + keys). */
static __device__ inline bool indexer_idle(
    const struct indexer_rows *r, int64_t begin, int64_t end, int64_t s0, int keys)
{
    if (r->first[begin] >= s0 + keys)
        return true;
    return r->first[begin] == r->first[end - 1] && end - r->first[begin] <= r->least;
}

static __device__ inline float indexer_relu(float z) { return z < 0 ? 0 : z; } /* NaN stays */

#endif
