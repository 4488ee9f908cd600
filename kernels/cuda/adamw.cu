/* AdamW: an element depends on its own weight, moments and gradient alone. Eight neighbours a thread;
 * bound by memory, 28 bytes an element, 30 with the copy. */
#include <math.h>

#include "kernels/cuda/eight.cuh"

enum { THREADS = 256 };

struct rates {
    float scale, lr, eps, decay, beta1, rest1, beta2, rest2, bias1, bias2;
};

static __global__ void k_adamw(struct adamw p, struct rates c, bool wide)
{
    const int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * EIGHT;
    const int n = eight_part(i, p.n);
    float w[EIGHT], m[EIGHT], v[EIGHT], g[EIGHT];

    if (p.rates != NULL) {
        if (p.rates->stop != 0)
            return;
        c.scale = (float)p.rates->grad_scale, c.lr = (float)p.rates->lr;
        c.decay = (float)p.rates->decay;
        c.bias1 = (float)p.rates->rest1, c.bias2 = (float)p.rates->rest2;
    }
    eight_get(w, (const float *)p.w + i, n, wide);
    eight_get(m, (const float *)p.m + i, n, wide);
    eight_get(v, (const float *)p.v + i, n, wide);
    eight_get(g, (const float *)p.g + i, n, wide);
#pragma unroll
    for (int k = 0; k < EIGHT; k++) {
        const float gk = g[k] * c.scale;
        m[k] = c.beta1 * m[k] + c.rest1 * gk;
        v[k] = c.beta2 * v[k] + c.rest2 * (gk * gk);
        w[k] -=
            c.lr * (m[k] / c.bias1 / (sqrtf(v[k] / c.bias2) + c.eps) + c.decay * w[k]);
    }
    eight_put((float *)p.w + i, w, n, wide);
    if (p.copy != NULL)
        eight_narrow((bf16 *)p.copy + i, w, n, wide);
    eight_put((float *)p.m + i, m, n, wide);
    eight_put((float *)p.v + i, v, n, wide);
}

CUDA_OP(adamw)
{
    static const int64_t flat[] = {0};
    if (p->dtype != GLM_F32)
        return glm_fail(err, GLM_EFORMAT,
            "adamw: elements of %s: on the GPU they are F32", glm_dtype_name(p->dtype));
    if (p->n < 0 || (p->rates == NULL && p->step < 1) || !(p->beta1 >= 0 && p->beta1 < 1)
        || !(p->beta2 >= 0 && p->beta2 < 1))
        return glm_fail(err, GLM_EFORMAT,
            "adamw: %lld elements, step %lld, beta %g and %g, expected a step from 1 and "
            "betas in [0,1)",
            (long long)p->n, (long long)p->step, p->beta1, p->beta2);
    struct rates c;
    c.scale = (float)p->grad_scale, c.lr = (float)p->lr, c.eps = (float)p->eps;
    c.decay = (float)p->decay;
    c.beta1 = (float)p->beta1, c.rest1 = (float)(1 - p->beta1);
    c.beta2 = (float)p->beta2, c.rest2 = (float)(1 - p->beta2);
    c.bias1 = (float)(1 - pow(p->beta1, (double)p->step));
    c.bias2 = (float)(1 - pow(p->beta2, (double)p->step));
    const void *const all[] = {p->w, p->m, p->v, p->g, p->copy};
    const bool wide = EIGHT_WIDE(all, flat);
    cuda_begin(stream);
    return LAUNCH(k_adamw, blocks_of(p->n, (int64_t)THREADS * EIGHT), THREADS, 0, stream,
        err, *p, c, wide);
}
