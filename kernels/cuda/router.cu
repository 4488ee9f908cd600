/* The router: a warp a token.
 *
 * Forward: scores and choices of the token lie in shared memory, so that any number of experts is
 * served. The largest is found K times: every lane asks its own experts (lane, lane + 32, ...), then
 * five exchanges; the order (value, then lowest expert, NaN last) is total, so the result does not
 * depend on who asks first. The chosen are written ascending by counting flags.
 * Sums over the chosen run in ascending expert in every lane alike.
 *
 * Bytes: E logits read, E scores written per token; floor 8 T E / B: 2 us at T = 8192, E = 256. */
#include "kernels/cuda/launch.cuh"

enum { WARPS = 4, MOST_EXPERTS = 16384 };

/* NaN lies below every number. */
static __device__ inline bool better(float a, float b)
{
    return a > b || (a == a && b != b);
}

/* Whether (a, i) comes before (b, j); an index of -1 means none. */
static __device__ inline bool before(float a, int i, float b, int j)
{
    if (i < 0 || j < 0)
        return i >= 0;
    return better(a, b) || (!better(b, a) && i < j);
}

/* The best of x[0..n) whose flag is 0, in every lane. */
static __device__ int best_of(const float *x, const uint8_t *out, int n, int lane)
{
    float most = 0;
    int best = -1;

    for (int i = lane; i < n; i += WARP) {
        if (!out[i] && before(x[i], i, most, best)) {
            most = x[i];
            best = i;
        }
    }
    for (int k = 16; k > 0; k /= 2) {
        const float x2 = __shfl_xor_sync(0xFFFFFFFFu, most, k);
        const int i2 = __shfl_xor_sync(0xFFFFFFFFu, best, k);
        if (before(x2, i2, most, best)) {
            most = x2;
            best = i2;
        }
    }
    return best;
}

/* The sum of a group's two largest (of one, if it has but one). */
static __device__ float group_score(const float *x, int n)
{
    int first = 0, second = -1;

    for (int i = 1; i < n; i++) {
        if (better(x[i], x[first])) {
            second = first;
            first = i;
        } else if (second < 0 || better(x[i], x[second])) {
            second = i;
        }
    }
    return second < 0 ? x[first] : x[first] + x[second];
}

enum { FREE, DROPPED, CHOSEN };

static __device__ void drop_groups(const struct router_fwd *p, const float *choice,
    uint8_t *out, float *score, uint8_t *kept, int lane)
{
    const int size = (int)(p->E / p->groups);

    for (int g = lane; g < p->groups; g += WARP) {
        score[g] = group_score(choice + g * size, size);
        kept[g] = 0;
    }
    __syncwarp();
    for (int i = 0; i < p->topk_groups; i++) {
        const int g = best_of(score, kept, (int)p->groups, lane);
        __syncwarp();
        if (lane == 0)
            kept[g] = 1;
        __syncwarp();
    }
    for (int e = lane; e < p->E; e += WARP)
        out[e] = kept[e / size] ? FREE : DROPPED;
    __syncwarp();
}

/* The K experts of a token, ascending. */
static __device__ void choose(const struct router_fwd *p, const float *choice, uint8_t *out,
    float *group, uint8_t *kept, int32_t *expert, int lane)
{
    if (p->topk_groups < p->groups)
        drop_groups(p, choice, out, group, kept, lane);
    for (int k = 0; k < p->K; k++) {
        const int e = best_of(choice, out, (int)p->E, lane);
        __syncwarp();
        if (lane == 0)
            out[e] = CHOSEN;
        __syncwarp();
    }
    int before_us = 0;
    for (int e = 0; e < p->E; e += WARP) {
        const bool mine = e + lane < p->E && out[e + lane] == CHOSEN;
        const unsigned all = __ballot_sync(0xFFFFFFFFu, mine);
        if (mine)
            expert[before_us + __popc(all & ((1u << lane) - 1))] = e + lane;
        before_us += __popc(all);
    }
    __syncwarp();
}

/* Shared memory of one warp: score and choice [E] each, group [groups] floats; out [E], kept
 * [groups] bytes. */
static __host__ __device__ inline size_t room_of(int64_t E, int64_t groups)
{
    return ((size_t)(2 * E + groups) * sizeof(float) + (size_t)(E + groups) + 15) / 16 * 16;
}

static __global__ void k_fwd(struct router_fwd p)
{
    extern __shared__ char room[];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int64_t t = (int64_t)blockIdx.x * (blockDim.x / WARP) + warp;
    float *const score = (float *)(room + warp * room_of(p.E, p.groups));
    float *const choice = score + p.E, *const group = choice + p.E;
    uint8_t *const out = (uint8_t *)(group + p.groups), *const kept = out + p.E;

    if (t >= p.T)
        return;
    int32_t *const expert = p.expert + t * p.K;
    for (int64_t e = lane; e < p.E; e += WARP) {
        score[e] = 1 / (1 + expf(-((const float *)p.logit)[t * p.E + e]));
        ((float *)p.score)[t * p.E + e] = score[e];
        choice[e] = score[e] + p.bias[e];
        out[e] = FREE;
    }
    __syncwarp();
    if (!p.given)
        choose(&p, choice, out, group, kept, expert, lane);
    float sum = 0;
    for (int k = 0; k < p.K; k++)
        sum += score[expert[k]];
    for (int k = lane; k < p.K; k += WARP) {
        const float s = score[expert[k]];
        ((float *)p.weight)[t * p.K + k] =
            (p.norm ? s / (sum + 1e-20f) : s) * (float)p.factor;
    }
}

CUDA_OP(router_fwd)
{
    if (cuda_type("router_fwd", p->dtype, err) != 0)
        return err->code;
    if (p->T < 0 || p->E < 1 || p->K < 1 || p->groups < 1 || p->E % p->groups != 0
        || p->topk_groups < 1 || p->topk_groups > p->groups
        || p->K > p->topk_groups * (p->E / p->groups))
        return glm_fail(err, GLM_EFORMAT,
            "router_fwd: %lld of %lld experts, in the best %lld of %lld groups of equal size",
            (long long)p->K, (long long)p->E, (long long)p->topk_groups,
            (long long)p->groups);
    const size_t room = room_of(p->E, p->groups);
    if (p->E > MOST_EXPERTS || room > (size_t)stream->shared_bytes)
        return glm_fail(err, GLM_EUSAGE, "router_fwd: %lld experts: on the GPU at most %d",
            (long long)p->E, MOST_EXPERTS);
    cuda_begin(stream);
    const int warps = room * WARPS <= 48 * 1024 ? WARPS : 1;
    return LAUNCH(k_fwd, blocks_of(p->T, warps), warps * WARP, room * (size_t)warps, stream,
        err, *p);
}

/* With g = dweight, S = sum of the chosen scores + 1e-20: ds = (factor*g - sum_i g_i weight_i) / S,
 * or factor*g without norm; dlogit = ds * s * (1 - s). */
static __global__ void k_bwd(struct router_bwd p)
{
    const int lane = threadIdx.x % WARP;
    const int64_t t = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP;

    if (t >= p.T)
        return;
    const float *score = (const float *)p.score + t * p.E;
    const float *g = (const float *)p.dweight + t * p.K;
    const float *weight = (const float *)p.weight + t * p.K;
    const int32_t *expert = p.expert + t * p.K;
    float *dlogit = (float *)p.dlogit + t * p.E;
    float sum = 0, mean = 0;

    for (int64_t e = lane; e < p.E; e += WARP)
        dlogit[e] = 0;
    for (int64_t k = 0; k < p.K; k++) {
        sum += score[expert[k]];
        mean += g[k] * weight[k];
    }
    __syncwarp();
    for (int64_t k = lane; k < p.K; k += WARP) {
        const float s = score[expert[k]], up = (float)p.factor * g[k];
        const float ds = p.norm ? (up - mean) / (sum + 1e-20f) : up;
        dlogit[expert[k]] = ds * s * (1 - s);
    }
}

CUDA_OP(router_bwd)
{
    if (cuda_type("router_bwd", p->dtype, err) != 0)
        return err->code;
    if (p->T < 0 || p->E < 1 || p->K < 1 || p->K > p->E)
        return glm_fail(err, GLM_EFORMAT, "router_bwd: %lld of %lld experts",
            (long long)p->K, (long long)p->E);
    cuda_begin(stream);
    return LAUNCH(k_bwd, blocks_of(p->T, WARPS), WARPS * WARP, 0, stream, err, *p);
}
