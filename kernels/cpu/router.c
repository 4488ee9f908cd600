/* The router: which experts a token goes to, with which weights. */
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/mutate.h"
#include "kernels/cpu/pool.h"

#include <inttypes.h>
#include <string.h>

enum { GRAIN = 16 };

struct route {
    const struct router_fwd *p;
    /* Per range; flags of experts, of groups: */
    real *choice; /* [E] score + bias, then [groups] group scores */
    uint8_t *out; /* [E] not to be chosen (any more), then [groups] */
};

/* NaN lies below every number. The first of equals is kept by asking in ascending order. */
static bool better(real a, real b)
{
    return a > b || (a == a && b != b);
}

/* The best of x[0..n) that is not out, or -1. */
static int64_t best_of(const real *x, const uint8_t *out, int64_t n)
{
    int64_t best = -1;

    for (int64_t i = 0; i < n; i++) {
        if (!out[i] && (best < 0 || better(x[i], x[best])))
            best = i;
    }
    return best;
}

/* The sum of a group's two largest (of one, if it has but one). */
static real group_score(const real *x, int64_t n)
{
    int64_t first = 0, second = -1;

    for (int64_t i = 1; i < n; i++) {
        if (better(x[i], x[first])) {
            second = first;
            first = i;
        } else if (second < 0 || better(x[i], x[second])) {
            second = i;
        }
    }
    return second < 0 ? x[first] : x[first] + x[second];
}

static void drop_groups(const struct router_fwd *p, real *choice, uint8_t *out)
{
    const int64_t size = p->E / p->groups;
    real *score = choice + p->E;
    uint8_t *kept = out + p->E;

    for (int64_t g = 0; g < p->groups; g++)
        score[g] = group_score(choice + g * size, size);
    memset(kept, 0, (size_t)p->groups);
    for (int64_t i = 0; i < p->topk_groups; i++)
        kept[best_of(score, kept, p->groups)] = 1;
    for (int64_t g = 0; g < p->groups; g++) {
        for (int64_t e = g * size; !kept[g] && e < (g + 1) * size; e++) {
#ifdef MUTATE_GROUP_ZERO
            choice[e] = 0;
#else
            out[e] = 1;
#endif
        }
    }
}

/* The K experts of a token, ascending. */
static void choose(const struct router_fwd *p, const real *score, int32_t *expert,
    real *choice, uint8_t *out)
{
    for (int64_t e = 0; e < p->E; e++)
        choice[e] = score[e] + (real)p->bias[e];
    memset(out, 0, (size_t)p->E);
    if (p->topk_groups < p->groups)
        drop_groups(p, choice, out);
    for (int64_t k = 0; k < p->K; k++) {
        const int64_t e = best_of(choice, out, p->E);
        int64_t at = k;
        out[e] = 1;
        for (; at > 0 && expert[at - 1] > e; at--)
            expert[at] = expert[at - 1];
        expert[at] = (int32_t)e;
    }
}

static void weigh(
    const struct router_fwd *p, const real *score, const int32_t *expert, real *weight)
{
    real sum = 0;

    for (int64_t k = 0; k < p->K; k++) {
        weight[k] = score[expert[k]];
#ifdef MUTATE_BIAS_IN_WEIGHTS
        weight[k] += (real)p->bias[expert[k]];
#endif
        sum += weight[k];
    }
    for (int64_t k = 0; k < p->K; k++)
        weight[k] =
            (p->norm ? weight[k] / (sum + (real)1e-20) : weight[k]) * (real)p->factor;
}

LANES_CLONES static void sigmoid_row(real *restrict score, const real *logit, int64_t E)
{
    for (int64_t e = 0; e < E; e++)
        score[e] = 1 / (1 + real_exp(-logit[e]));
}

static void fwd_range(const void *ctx, int64_t begin, int64_t end)
{
    const struct route *r = ctx;
    const struct router_fwd *p = r->p;
    const int64_t at = begin / GRAIN * (p->E + p->groups);

    for (int64_t t = begin; t < end; t++) {
        real *score = (real *)p->score + t * p->E;
        sigmoid_row(score, (const real *)p->logit + t * p->E, p->E);
        if (!p->given)
            choose(p, score, p->expert + t * p->K, r->choice + at, r->out + at);
        weigh(p, score, p->expert + t * p->K, (real *)p->weight + t * p->K);
    }
}

static int check_experts(const char *op, const int32_t *expert, int64_t T, int64_t E,
    int64_t K, struct glm_error *err)
{
    for (int64_t i = 0; i < T * K; i++) {
        const int32_t least = i % K == 0 ? 0 : expert[i - 1] + 1;
        if (expert[i] < least || expert[i] >= E)
            return glm_fail(err, GLM_EFORMAT,
                "%s: expert %" PRId64 " of row %" PRId64 " is %" PRId32
                ", expected %" PRId32 " to %" PRId64 ", ascending",
                op, i % K, i / K, expert[i], least, E - 1);
    }
    return 0;
}

static int check(const struct router_fwd *p, struct glm_error *err)
{
    if (p->E < 1 || p->K < 1 || p->groups < 1 || p->E % p->groups != 0
        || p->topk_groups < 1 || p->topk_groups > p->groups
        || p->K > p->topk_groups * (p->E / p->groups))
        return glm_fail(err, GLM_EFORMAT,
            "router_fwd: %" PRId64 " of %" PRId64 " experts, in the best %" PRId64
            " of %" PRId64 " groups of equal size",
            p->K, p->E, p->topk_groups, p->groups);
    return p->given ? check_experts("router_fwd", p->expert, p->T, p->E, p->K, err) : 0;
}

OP_FN(router_fwd)
{
    struct route r = {.p = p};
    int code = check(p, err);
    const size_t n = (size_t)((p->T + GRAIN - 1) / GRAIN * (p->E + p->groups));

    if (code != 0 || p->T <= 0)
        return code;
    r.choice = pool_scratch(stream, n * sizeof *r.choice, err);
    r.out = pool_scratch(stream, n, err);
    if (r.choice == NULL || r.out == NULL)
        code = GLM_ENOMEM;
    else
        pool_for(stream, p->T, GRAIN, fwd_range, &r);
    pool_scratch_free(stream, r.out);
    pool_scratch_free(stream, r.choice);
    return code;
}

/* With g = dweight, S = sum of the chosen scores + 1e-20: ds = (factor*g - sum_i g_i weight_i) / S,
 * or factor*g without norm; dlogit = ds * s * (1 - s). */
static void bwd_range(const void *ctx, int64_t begin, int64_t end)
{
    const struct router_bwd *p = ctx;

    for (int64_t t = begin; t < end; t++) {
        const real *score = (const real *)p->score + t * p->E;
        const real *g = (const real *)p->dweight + t * p->K;
        const real *weight = (const real *)p->weight + t * p->K;
        const int32_t *expert = p->expert + t * p->K;
        real *dlogit = (real *)p->dlogit + t * p->E;
        real sum = 0, mean = 0;
        for (int64_t k = 0; k < p->K; k++) {
            sum += score[expert[k]];
            mean += g[k] * weight[k];
        }
        memset(dlogit, 0, (size_t)p->E * sizeof *dlogit);
        for (int64_t k = 0; k < p->K; k++) {
            const real s = score[expert[k]], up = (real)p->factor * g[k];
            const real ds = p->norm ? (up - mean) / (sum + (real)1e-20) : up;
            dlogit[expert[k]] = ds * s * (1 - s);
        }
    }
}

OP_FN(router_bwd)
{
    if (p->E < 1 || p->K < 1 || p->K > p->E)
        return glm_fail(err, GLM_EFORMAT,
            "router_bwd: %" PRId64 " of %" PRId64 " experts", p->K, p->E);
    const int code = check_experts("router_bwd", p->expert, p->T, p->E, p->K, err);
    if (code == 0)
        pool_for(stream, p->T, GRAIN, bwd_range, p);
    return code;
}
