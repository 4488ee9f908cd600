/* Embedding: rows of a table by id, and the sum of gradients per id.
 *
 * Backward. Positions are sorted by (first position of their id, position): a stable counting sort
 * without atomics. For each t, `place` compares its id with all others (integers, T^2/2 of them are
 * cheap up to the longest packs: 0.6 ms at 65,536) and finds
 *
 *     first[t]  the lowest position of the same id        rank[t]   how many of them lie before t
 *     count[t]  how many there are, if first[t] = t, else 0
 *
 * an exclusive scan of count gives each id its part of `order`, and t goes to place rank[t] of it.
 * Then a block serves one id and a slice of columns: it walks the id's positions in ascending order,
 * so each element of dtable has one writer and the CPU's order of sums.
 *
 * Ids outside of the table, which the host cannot see, read zeros and give no gradient. */
#include "kernels/cuda/eight.cuh"

enum { THREADS = 256, SCAN = 1024, TILE = 1024, AHEAD = 4 };

template <class E> static __global__ void k_rows(struct embedding_fwd p, bool wide)
{
    const int64_t t = blockIdx.x, id = p.ids[t];
    const bool there = id >= 0 && id < p.V;
    const E *const from = (const E *)p.table + (there ? id : 0) * p.H;
    E *const y = (E *)p.y + t * p.H;

    for (int64_t d = threadIdx.x * EIGHT; d < p.H; d += THREADS * EIGHT) {
        float v[EIGHT] = {0};
        const int n = eight_part(d, p.H);
        if (there)
            eight_get(v, from + d, n, wide);
        eight_put(y + d, v, n, wide);
    }
}

CUDA_OP(embedding_fwd)
{
    if (cuda_type("embedding_fwd", p->dtype, err) != 0)
        return err->code;
    if (p->T < 0 || p->V <= 0 || p->H <= 0)
        return glm_fail(err, GLM_EFORMAT,
            "embedding_fwd: impossible shape: T %lld, V %lld, H %lld", (long long)p->T,
            (long long)p->V, (long long)p->H);
    const void *const all[] = {p->y, p->table};
    const int64_t strides[] = {p->H};
    const bool wide = EIGHT_WIDE(all, strides);
    cuda_begin(stream);
    return BY_TYPE(p->dtype, E,
        LAUNCH(k_rows<E>, (unsigned)p->T, THREADS, 0, stream, err, *p, wide));
}

/* ---- positions by id -------------------------------------------------------------------------- */

struct places { /* [T] each */
    int32_t *first, *rank, *count, *begin, *order;
};

static __global__ void k_place(struct embedding_bwd p, struct places q)
{
    __shared__ int32_t other[TILE];
    const int64_t t = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    const int32_t mine = t < p.T ? p.ids[t] : -1;
    int32_t first = INT32_MAX, before = 0, count = 0;

    for (int64_t at = 0; at < p.T; at += TILE) {
        const int n = (int)(p.T - at < TILE ? p.T - at : TILE);
        __syncthreads();
        for (int i = threadIdx.x; i < n; i += THREADS)
            other[i] = p.ids[at + i];
        __syncthreads();
        for (int i = 0; i < n; i++) {
            if (other[i] != mine)
                continue;
            const int32_t s = (int32_t)at + i;
            first = s < first ? s : first;
            before += s < t;
            count++;
        }
    }
    if (t >= p.T)
        return;
    const bool counts = mine >= 0 && mine < p.V && mine != p.skip_id;
    q.first[t] = counts ? first : -1;
    q.rank[t] = before;
    q.count[t] = counts && first == t ? count : 0;
}

/* One block: begin = exclusive sums of count. */
static __global__ void k_scan(int64_t T, struct places q)
{
    __shared__ int32_t sum[2][SCAN];
    int32_t carry = 0;

    for (int64_t at = 0; at < T; at += SCAN) {
        const int64_t t = at + threadIdx.x;
        const int32_t mine = t < T ? q.count[t] : 0;
        int from = 0;
        sum[0][threadIdx.x] = mine;
        __syncthreads();
        for (int k = 1; k < SCAN; k *= 2, from = !from) {
            const int32_t left = (int)threadIdx.x >= k ? sum[from][threadIdx.x - k] : 0;
            sum[!from][threadIdx.x] = sum[from][threadIdx.x] + left;
            __syncthreads();
        }
        if (t < T)
            q.begin[t] = carry + sum[from][threadIdx.x] - mine;
        carry += sum[from][SCAN - 1];
        __syncthreads();
    }
}

static __global__ void k_order(int64_t T, struct places q)
{
    const int64_t t = (int64_t)blockIdx.x * THREADS + threadIdx.x;

    if (t < T && q.first[t] >= 0)
        q.order[q.begin[q.first[t]] + q.rank[t]] = (int32_t)t;
}

/* ---- the sums --------------------------------------------------------------------------------- */

/* Block (t, slice) if t is the first of its id. Loads of AHEAD rows are under way at a time. */
template <class E>
static __global__ void k_gather(struct embedding_bwd p, struct places q, bool wide)
{
    const int64_t t = blockIdx.x,
                  d = ((int64_t)blockIdx.y * THREADS + threadIdx.x) * EIGHT;
    const int32_t count = q.count[t];
    const int n = eight_part(d, p.H);

    if (count == 0 || n == 0)
        return;
    const int32_t *const order = q.order + q.begin[t];
    const E *const dy = (const E *)p.dy + d;
    float *const to = (float *)p.dtable + p.ids[t] * p.H + d;
    float sum[EIGHT], v[AHEAD][EIGHT];
    int32_t i = 0;
    eight_get(sum, to, n, wide);
    for (; i + AHEAD <= count; i += AHEAD) {
#pragma unroll
        for (int a = 0; a < AHEAD; a++)
            eight_get(v[a], dy + order[i + a] * p.H, n, wide);
#pragma unroll
        for (int a = 0; a < AHEAD; a++)
#pragma unroll
            for (int k = 0; k < EIGHT; k++)
                sum[k] += v[a][k];
    }
    for (; i < count; i++) {
        eight_get(v[0], dy + order[i] * p.H, n, wide);
#pragma unroll
        for (int k = 0; k < EIGHT; k++)
            sum[k] += v[0][k];
    }
    eight_put(to, sum, n, wide);
}

CUDA_OP(embedding_bwd)
{
    if (cuda_type("embedding_bwd", p->dtype, err) != 0)
        return err->code;
    if (p->T < 0 || p->T > INT32_MAX || p->V <= 0 || p->H <= 0)
        return glm_fail(err, GLM_EFORMAT,
            "embedding_bwd: impossible shape: T %lld, V %lld, H %lld", (long long)p->T,
            (long long)p->V, (long long)p->H);
    cuda_begin(stream);
    if (p->T == 0)
        return 0;
    int32_t *const room =
        (int32_t *)cuda_scratch(stream, (size_t)p->T * 5 * sizeof *room, err);
    if (room == NULL)
        return err->code;
    const struct places q = {
        room, room + p->T, room + 2 * p->T, room + 3 * p->T, room + 4 * p->T};
    const void *const all[] = {p->dtable, p->dy};
    const int64_t strides[] = {p->H};
    const bool wide = EIGHT_WIDE(all, strides);
    const unsigned grid = blocks_of(p->T, THREADS);
    const dim3 rows((unsigned)p->T, blocks_of(p->H, (int64_t)THREADS * EIGHT));
    if (LAUNCH(k_place, grid, THREADS, 0, stream, err, *p, q) != 0
        || LAUNCH(k_scan, 1, SCAN, 0, stream, err, p->T, q) != 0
        || LAUNCH(k_order, grid, THREADS, 0, stream, err, p->T, q) != 0)
        return err->code;
    return BY_TYPE(
        p->dtype, E, LAUNCH(k_gather<E>, rows, THREADS, 0, stream, err, *p, q, wide));
}
