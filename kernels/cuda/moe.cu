/* Movement between tokens and the rows of experts.
 *
 * Each output row has one block, each column one thread, which walks the token's slots in their
 * order: no sum crosses threads but dweight's, which goes lane, warp, warps in order. Accesses are 16
 * bytes wide where rows are aligned, and the loads of the slots do not wait for each other.
 *
 * Bytes per token at H = 6144, K = 8 in BF16: 12 KB times 16 (gather), 9 (combine, gather backward),
 * 17 (combine backward); at 4 TB/s and T = 8192: 0.4, 0.22, 0.42 ms. */
#include "kernels/cuda/vec.cuh"

enum { THREADS = 256, WARPS = THREADS / WARP, SLOTS = 8, ROWS_EACH = 4 };

static int check_rows(const char *op, int64_t T, int64_t K, int64_t H, struct glm_error *err)
{
    if (H < 1 || T < 0 || K < 1 || T * K > INT32_MAX)
        return glm_fail(err, GLM_EFORMAT, "%s: %lld rows of %lld elements, for %lld", op,
            (long long)K, (long long)H, (long long)T);
    return 0;
}

/* Blocks of one row: each thread has V elements. */
static unsigned strips(int64_t H, int V)
{
    return blocks_of(H, (int64_t)THREADS * V);
}

/* ---- to the experts --------------------------------------------------------------------------- */

/* A block has several rows, so that loads of all of them are under way. Neighbouring rows are of
 * neighbouring tokens of one expert; what is written streams past the cache, where x may stay for the
 * next expert. */
template <class E, int V> static __global__ void k_gather(struct moe_gather p)
{
    const int64_t first = (int64_t)blockIdx.x * ROWS_EACH;
    const E *x[ROWS_EACH];

#pragma unroll
    for (int i = 0; i < ROWS_EACH; i++)
        x[i] = (const E *)p.x + p.token[first + i < p.rows ? first + i : first] * p.H;
    for (int64_t h = threadIdx.x * V; h < p.H; h += THREADS * V) {
        vec<E, V> v[ROWS_EACH];
#pragma unroll
        for (int i = 0; i < ROWS_EACH; i++)
            v[i] = vec_load<V>(x[i] + h);
#pragma unroll
        for (int i = 0; i < ROWS_EACH; i++)
            if (first + i < p.rows)
                vec_stream((E *)p.y + (first + i) * p.H + h, v[i]);
    }
}

CUDA_OP(moe_gather)
{
    if (cuda_type("moe_gather", p->dtype, err) != 0)
        return err->code;
    if (p->H < 1 || p->T < 0 || p->rows < 0 || p->rows > INT32_MAX)
        return glm_fail(err, GLM_EFORMAT, "moe_gather: %lld rows of %lld elements, for %lld",
            (long long)p->rows, (long long)p->H, (long long)p->T);
    cuda_begin(stream);
    const size_t size = glm_dtype_size(p->dtype);
    const unsigned rows = blocks_of(p->rows, ROWS_EACH);
    if (vec_fits(p->x, p->H, size) && vec_fits(p->y, p->H, size))
        return BY_TYPE(p->dtype, E,
            LAUNCH((k_gather<E, vec_wide<E>>), rows, THREADS, 0, stream, err, *p));
    return BY_TYPE(
        p->dtype, E, LAUNCH((k_gather<E, 1>), rows, THREADS, 0, stream, err, *p));
}

template <int V, class E> static __device__ inline void add_vec(float sum[V], const E *x)
{
    const vec<E, V> a = vec_load<V>(x);
#pragma unroll
    for (int i = 0; i < V; i++)
        sum[i] += get(a.at[i]);
}

template <int V, class E> static __device__ inline void round_vec(E *y, const float sum[V])
{
    vec<E, V> a;
#pragma unroll
    for (int i = 0; i < V; i++)
        a.at[i] = put<E>(sum[i]);
    vec_store(y, a);
}

template <class E, int V> static __global__ void k_gather_bwd(struct moe_gather_bwd p)
{
    const int64_t t = blockIdx.x, h = ((int64_t)blockIdx.y * THREADS + threadIdx.x) * V;
    float sum[V] = {};

    if (h >= p.H)
        return;
#pragma unroll 4
    for (int64_t k = 0; k < p.K; k++)
        add_vec<V>(sum, (const E *)p.dy + p.row[t * p.K + k] * p.H + h);
    if (p.add1 != NULL)
        add_vec<V>(sum, (const E *)p.add1 + t * p.H + h);
    if (p.add2 != NULL)
        add_vec<V>(sum, (const E *)p.add2 + t * p.H + h);
    round_vec<V>((E *)p.dx + t * p.H + h, sum);
}

CUDA_OP(moe_gather_bwd)
{
    if (cuda_type("moe_gather_bwd", p->dtype, err) != 0
        || check_rows("moe_gather_bwd", p->T, p->K, p->H, err) != 0)
        return err->code;
    cuda_begin(stream);
    const size_t size = glm_dtype_size(p->dtype);
    const unsigned T = (unsigned)p->T;
    if (vec_fits(p->dx, p->H, size) && vec_fits(p->dy, p->H, size)
        && vec_fits(p->add1, p->H, size) && vec_fits(p->add2, p->H, size))
        return BY_TYPE(p->dtype, E,
            LAUNCH((k_gather_bwd<E, vec_wide<E>>), dim3(T, strips(p->H, vec_wide<E>)),
                THREADS, 0, stream, err, *p));
    return BY_TYPE(p->dtype, E,
        LAUNCH((k_gather_bwd<E, 1>), dim3(T, strips(p->H, 1)), THREADS, 0, stream, err, *p));
}

/* ---- back to the tokens ----------------------------------------------------------------------- */

template <class E, int V> static __global__ void k_combine(struct moe_combine_fwd p)
{
    const int64_t t = blockIdx.x, h = ((int64_t)blockIdx.y * THREADS + threadIdx.x) * V;
    const int32_t *row = p.row + t * p.K;
    const float *weight = (const float *)p.weight + t * p.K;
    float sum[V] = {};

    if (h >= p.H)
        return;
#pragma unroll 4
    for (int64_t k = 0; k < p.K; k++) {
        const vec<E, V> f = vec_load<V>((const E *)p.f + row[k] * p.H + h);
        const float w = weight[k];
#pragma unroll
        for (int i = 0; i < V; i++)
            sum[i] = p.hf_rounding ? low<E>(sum[i] + low<E>(w * get(f.at[i])))
                                   : sum[i] + w * get(f.at[i]);
    }
    if (p.shared != NULL)
        add_vec<V>(sum, (const E *)p.shared + t * p.H + h);
    round_vec<V>((E *)p.y + t * p.H + h, sum);
}

CUDA_OP(moe_combine_fwd)
{
    if (cuda_type("moe_combine_fwd", p->dtype, err) != 0
        || check_rows("moe_combine_fwd", p->T, p->K, p->H, err) != 0)
        return err->code;
    cuda_begin(stream);
    const size_t size = glm_dtype_size(p->dtype);
    const unsigned T = (unsigned)p->T;
    if (vec_fits(p->y, p->H, size) && vec_fits(p->f, p->H, size)
        && vec_fits(p->shared, p->H, size))
        return BY_TYPE(p->dtype, E,
            LAUNCH((k_combine<E, vec_wide<E>>), dim3(T, strips(p->H, vec_wide<E>)), THREADS,
                0, stream, err, *p));
    return BY_TYPE(p->dtype, E,
        LAUNCH((k_combine<E, 1>), dim3(T, strips(p->H, 1)), THREADS, 0, stream, err, *p));
}

/* A block a token: dy stays in the first-level cache while the slots pass. */
template <class E, int V> static __global__ void k_combine_bwd(struct moe_combine_bwd p)
{
    __shared__ float part[SLOTS][WARPS];
    const int64_t t = blockIdx.x;
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const E *dy = (const E *)p.dy + t * p.H;

    for (int64_t k0 = 0; k0 < p.K; k0 += SLOTS) {
        const int n = p.K - k0 < SLOTS ? (int)(p.K - k0) : SLOTS;
        __syncthreads();
        for (int k = 0; k < n; k++) {
            const int64_t at = (int64_t)p.row[t * p.K + k0 + k] * p.H;
            const float w = ((const float *)p.weight)[t * p.K + k0 + k];
            float dot = 0;
#pragma unroll 2
            for (int64_t h = threadIdx.x * V; h < p.H; h += THREADS * V) {
                const vec<E, V> d = vec_load<V>(dy + h);
                const vec<E, V> f = vec_load<V>((const E *)p.f + at + h);
                float out[V];
#pragma unroll
                for (int i = 0; i < V; i++) {
                    dot += get(d.at[i]) * get(f.at[i]);
                    out[i] = w * get(d.at[i]);
                }
                round_vec<V>((E *)p.df + at + h, out);
            }
            dot = warp_sum(dot);
            if (lane == 0)
                part[k][warp] = dot;
        }
        __syncthreads();
        if ((int)threadIdx.x < n) {
            float sum = 0;
            for (int w = 0; w < WARPS; w++)
                sum += part[threadIdx.x][w];
            ((float *)p.dweight)[t * p.K + k0 + threadIdx.x] = sum;
        }
    }
}

CUDA_OP(moe_combine_bwd)
{
    if (cuda_type("moe_combine_bwd", p->dtype, err) != 0
        || check_rows("moe_combine_bwd", p->T, p->K, p->H, err) != 0)
        return err->code;
    cuda_begin(stream);
    const size_t size = glm_dtype_size(p->dtype);
    const unsigned T = (unsigned)p->T;
    if (vec_fits(p->df, p->H, size) && vec_fits(p->dy, p->H, size)
        && vec_fits(p->f, p->H, size))
        return BY_TYPE(p->dtype, E,
            LAUNCH((k_combine_bwd<E, vec_wide<E>>), T, THREADS, 0, stream, err, *p));
    return BY_TYPE(
        p->dtype, E, LAUNCH((k_combine_bwd<E, 1>), T, THREADS, 0, stream, err, *p));
}
