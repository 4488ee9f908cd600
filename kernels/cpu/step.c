/* What a step decides by itself: sums of losses, experts' loads, router biases, the norm and what is
 * clipped. Few numbers; one thread. */
#include <math.h>

#include "kernels/ops.h"

enum { TOTAL_LANES = 256 };

int cpu_total(const struct total *p, glm_stream stream, struct glm_error *err)
{
    double lane[TOTAL_LANES] = {0};

    (void)stream;
    if (p->n < 0 || (p->dtype != GLM_F32 && p->dtype != GLM_F64))
        return glm_fail(err, GLM_EFORMAT,
            "total: %lld elements of %s, expected F32 or F64", (long long)p->n,
            glm_dtype_name(p->dtype));
    for (int64_t i = 0; i < p->n; i++)
        lane[i % TOTAL_LANES] += p->dtype == GLM_F32 ? (double)((const float *)p->x)[i]
                                                     : ((const double *)p->x)[i];
    for (int half = TOTAL_LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            lane[i] += lane[i + half];
    *p->out = lane[0];
    return 0;
}

int cpu_expert_load(const struct expert_load *p, glm_stream stream, struct glm_error *err)
{
    (void)stream;
    if (p->T < 0 || p->S < 0 || p->E < 1 || p->K < 1)
        return glm_fail(err, GLM_EFORMAT,
            "expert_load: %lld rows in %lld sequences, %lld of %lld experts",
            (long long)p->T, (long long)p->S, (long long)p->K, (long long)p->E);
    for (int64_t e = 0; e < p->E; e++)
        p->load[e] += p->offset[e + 1] - p->offset[e];
    for (int64_t s = 1; p->padded && s <= p->S; s++)
        for (int64_t k = 0; k < p->K; k++)
            p->load[p->expert[(p->cu_seqlens[s] - 1) * p->K + k]]--;
    return 0;
}

int cpu_router_bias(const struct router_bias *p, glm_stream stream, struct glm_error *err)
{
    int64_t sum = 0;
    float sum32 = 0;

    (void)stream;
    if (p->E < 1)
        return glm_fail(err, GLM_EFORMAT, "router_bias: %lld experts", (long long)p->E);
    if (p->rates != NULL && p->rates->stop != 0)
        return 0;
    for (int64_t e = 0; e < p->E; e++) {
        sum += p->load[e];
        sum32 += (float)p->load[e];
    }
    const float mean = sum32 / (float)p->E;
    for (int64_t e = 0; e < p->E; e++) {
        const float n = (float)p->load[e];
        /* mean > n, as integers: sum > E * n */
        const int64_t other = p->E * p->load[e];
        const int exact = (sum > other) - (sum < other);
        const int sign = p->f32_mean ? (mean > n) - (mean < n) : exact;
        p->bias[e] += (float)p->rate * (float)sign;
    }
    return 0;
}

/* The first 2^k < n of the leaves as a tree, plus the rest as one. */
static double tree(const double *leaf, int64_t n)
{
    int64_t first = 1;

    if (n <= 1)
        return n < 1 ? 0 : leaf[0];
    while (2 * first < n)
        first *= 2;
    return tree(leaf, first) + tree(leaf + first, n - first);
}

int cpu_clip(const struct clip *p, glm_stream stream, struct glm_error *err)
{
    const double scale = p->n > 0 ? p->rates[0].grad_scale : 0;
    double sum[2] = {0, 0}, clip[2];
    bool stop = false;

    (void)stream;
    if (p->n < 0 || p->watch < 0 || p->leaves < 0)
        return glm_fail(err, GLM_EFORMAT, "clip: %lld tensors, %lld leaves",
            (long long)p->n, (long long)p->leaves);
    for (int64_t i = 0; i < p->n; i++)
        if (p->group[i] >= 0)
            sum[p->group[i]] +=
                tree(p->leaf + p->first[i], p->first[i + 1] - p->first[i]);
    for (int64_t i = 0; i < p->watch; i++)
        stop = stop || !isfinite(p->watched[i]);
    for (int g = 0; g < 2; g++) {
        const double norm = sqrt(sum[g]) * scale;
        clip[g] = p->limit > 0 ? fmin(1, p->limit / (norm + 1e-6)) : 1;
        p->report[2 * g] = norm;
        p->report[2 * g + 1] = clip[g];
        stop = stop || !isfinite(norm);
    }
    p->report[4] = stop;
    for (int64_t i = 0; i < p->n; i++) {
        p->rates[i].grad_scale = scale * clip[p->group[i] == 1];
        p->rates[i].stop = stop;
    }
    return 0;
}
