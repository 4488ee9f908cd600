/* The K best keys of each row: exact, ties to the lowest, ascending.
 *
 * A block a row. Scores become integers of the same order (-0 as +0, NaN below all). Which integer is
 * the K-th largest is found in three rounds of 11, 11 and 10 bits from the top: a histogram in shared
 * memory of what agrees with the bits known so far, then the bin where the count from above passes K;
 * it ends early where a whole bin belongs to the K. A last pass walks the row in order and writes what
 * lies above, and of the ties as many as are left, at places by prefix sums. Counts are integers, so
 * atomics do not show. Bounded by reads of the scores: one from memory, up to three from the cache. */
#include "kernels/cuda/indexer.cuh"

enum { THREADS = 512, WARPS = THREADS / WARP, BINS = 2048, RUN = 4, TILE = THREADS * RUN };

static __device__ unsigned rank_of(float score)
{
    const float x = score + 0.0f; /* -0 becomes +0 */
    const unsigned bits = __float_as_uint(x);

    if (x != x)
        return 0;
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

/* Sum over the threads in front of this one; *all: over all. room: WARPS words. */
static __device__ unsigned scan(unsigned x, unsigned *room, unsigned *all)
{
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    unsigned sum = x, before = 0, total = 0;

#pragma unroll
    for (int k = 1; k < WARP; k *= 2) {
        const unsigned up = __shfl_up_sync(0xFFFFFFFFu, sum, k);
        sum += lane >= k ? up : 0;
    }
    __syncthreads();
    if (lane == WARP - 1)
        room[warp] = sum;
    __syncthreads();
    for (int w = 0; w < WARPS; w++) {
        before += w < warp ? room[w] : 0;
        total += room[w];
    }
    *all = total;
    return before + sum - x;
}

struct cut {
    unsigned known; /* the bits of the K-th largest above `shift` */
    int shift;
    unsigned ties; /* of those that agree with it, how many are taken */
};

/* Which bin holds the k-th from above; bins are numbered from the top by the threads' order. */
static __device__ void find_bin(
    const unsigned *bin, unsigned k, unsigned *room, unsigned *found)
{
    enum { EACH = BINS / THREADS };
    const int top = BINS - 1 - (int)threadIdx.x * EACH;
    unsigned own = 0, all;

    for (int i = 0; i < EACH; i++)
        own += bin[top - i];
    unsigned above = scan(own, room, &all);
    for (int i = 0; i < EACH; i++) {
        const unsigned n = bin[top - i];
        if (above < k && above + n >= k) {
            found[0] = (unsigned)(top - i);
            found[1] = k - above;
            found[2] = n;
        }
        above += n;
    }
    __syncthreads();
}

static __device__ struct cut select(const float *x, int n, unsigned k, unsigned *bin,
    unsigned *room, unsigned *found)
{
    struct cut c = {0, 32, k};

    for (int round = 0; round < 3; round++) {
        const int bits = round < 2 ? 11 : 10, shift = c.shift - bits;
        unsigned last = 0, count = 0; /* a run of one bin is one atomic: zeros are many */
        for (int i = threadIdx.x; i < BINS; i += THREADS)
            bin[i] = 0;
        __syncthreads();
        for (int i = threadIdx.x; i < n; i += THREADS) {
            const unsigned r = rank_of(x[i]);
            if (c.shift < 32 && r >> c.shift != c.known)
                continue;
            const unsigned b = r >> shift & ((1u << bits) - 1);
            if (b != last && count > 0) {
                atomicAdd(&bin[last], count);
                count = 0;
            }
            last = b;
            count++;
        }
        if (count > 0)
            atomicAdd(&bin[last], count);
        __syncthreads();
        find_bin(bin, c.ties, room, found);
        c.known = c.known << bits | found[0];
        c.shift = shift;
        c.ties = found[1];
        if (found[1] == found[2]) /* all of the bin */
            break;
        __syncthreads();
    }
    return c;
}

/* Writes the chosen of x[0..n) to index and score (which may be NULL). */
static __device__ void emit(const float *x, int n, int K, struct cut c, int first,
    int32_t *index, float *score, unsigned *room)
{
    unsigned above = 0, equal = 0; /* so far */

    for (int base = 0; base < n && above + min(equal, c.ties) < (unsigned)K; base += TILE) {
        const int at = base + (int)threadIdx.x * RUN;
        float v[RUN];
        unsigned mine = 0, all;
        bool more[RUN], tie[RUN];
#pragma unroll
        for (int i = 0; i < RUN; i++) {
            v[i] = at + i < n ? x[at + i] : 0;
            const unsigned r = rank_of(v[i]) >> c.shift;
            more[i] = at + i < n && r > c.known;
            tie[i] = at + i < n && r == c.known;
            mine += (more[i] ? 1u : 0u) + (tie[i] ? 1u << 16 : 0u);
        }
        const unsigned before = scan(mine, room, &all);
        unsigned a = above + (before & 0xFFFFu), e = equal + (before >> 16);
#pragma unroll
        for (int i = 0; i < RUN; i++) {
            const unsigned to = a + min(e, c.ties);
            if (more[i] || (tie[i] && e < c.ties)) {
                index[to] = first + at + i;
                if (score != NULL)
                    score[to] = v[i];
            }
            a += more[i];
            e += tie[i];
        }
        above += all & 0xFFFFu;
        equal += all >> 16;
    }
}

static __global__ void __launch_bounds__(THREADS) k_topk(
    struct indexer_topk p, const float *scores, const int32_t *first, int64_t t0, int64_t width)
{
    __shared__ unsigned bin[BINS];
    __shared__ unsigned room[WARPS];
    __shared__ unsigned found[3];
    const int64_t t = t0 + blockIdx.x;
    const int begin = first[t], n = (int)(t + 1 - begin), K = (int)p.K;
    const float *x = scores + blockIdx.x * width + begin;
    int32_t *index = p.index + t * p.K;
    float *score = p.score == NULL ? NULL : (float *)p.score + t * p.K;

    if (n > K) {
        const struct cut c = select(x, n, (unsigned)K, bin, room, found);
        emit(x, n, K, c, begin, index, score, room);
        return;
    }
    for (int i = threadIdx.x; i < K; i += THREADS) {
        index[i] = i < n ? begin + i : -1;
        if (score != NULL)
            score[i] = i < n ? x[i] : 0;
    }
}

CUDA_OP(indexer_topk)
{
    if (cuda_type("indexer_topk", p->dtype, err) != 0)
        return err->code;
    if (p->T < 0 || p->S < 0 || (p->T > 0 && p->S == 0) || p->N < 1 || p->D < 1
        || p->T > INT32_MAX / p->N || p->K < 1 || p->K > INT32_MAX / 2)
        return glm_fail(err, GLM_EFORMAT,
            "indexer_topk: impossible shape: T %lld, S %lld, N %lld, D %lld, K %lld",
            (long long)p->T, (long long)p->S, (long long)p->N, (long long)p->D,
            (long long)p->K);
    cuda_begin(stream);
    if (p->T == 0)
        return 0;
    const int64_t rows = indexer_chunk(p->T, 1);
    int32_t *const first = (int32_t *)cuda_scratch(stream, (size_t)p->T * sizeof *first, err);
    float *const score = (float *)cuda_scratch(
        stream, (size_t)(rows * indexer_width(p->T)) * sizeof *score, err);
    if (first == NULL || score == NULL
        || indexer_first(first, p->cu_seqlens, p->T, p->S, stream, err) != 0)
        return err->code;
    struct indexer_rows r =
        indexer_rows_of(p->q, p->k, p->w, first, p->T, p->N, p->D, p->hf_scales, p->dtype);
    r.least = p->score == NULL ? p->K : 0;
    for (r.t0 = 0; r.t0 < p->T; r.t0 = r.t1) {
        r.t1 = r.t0 + rows < p->T ? r.t0 + rows : p->T;
        r.width = indexer_width(r.t1);
        /* Rows that see too few keys to choose from need no scores, nor does a pack of them. */
        if (r.t1 > r.least && indexer_score(score, &r, stream, err) != 0)
            return err->code;
        if (LAUNCH(k_topk, (unsigned)(r.t1 - r.t0), THREADS, 0, stream, err, *p, score, first,
                r.t0, r.width)
            != 0)
            return err->code;
    }
    return 0;
}
