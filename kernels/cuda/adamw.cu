/* AdamW: an element depends on its own weight, moments and gradient alone. Bound by memory, 28 bytes an
 * element, 30 with the copy: four neighbours a thread, so that a warp's store fills whole sectors (of
 * eight, in two stores, each would fill half of them). */
#include <math.h>

#include "kernels/cuda/eight.cuh"
#include "kernels/cuda/vec.cuh"

enum { THREADS = 256, FOUR = vec_wide<float> };

struct rates {
    float scale, lr, eps, decay, beta1, rest1, beta2, rest2, bias1, bias2;
};

template <int V> static __global__ void k_adamw(struct adamw p, struct rates c)
{
    const int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * V;
    vec<bf16, V> copy;

    if (i >= p.n)
        return;
    if (p.rates != NULL) {
        if (p.rates->stop != 0)
            return;
        c.scale = (float)p.rates->grad_scale, c.lr = (float)p.rates->lr;
        c.decay = (float)p.rates->decay;
        c.bias1 = (float)p.rates->rest1, c.bias2 = (float)p.rates->rest2;
    }
    vec<float, V> w = vec_load<V>((const float *)p.w + i);
    vec<float, V> m = vec_load<V>((const float *)p.m + i);
    vec<float, V> v = vec_load<V>((const float *)p.v + i);
    const vec<float, V> g = vec_load<V>((const float *)p.g + i);
#pragma unroll
    for (int k = 0; k < V; k++) {
        const float gk = g.at[k] * c.scale;
        m.at[k] = c.beta1 * m.at[k] + c.rest1 * gk;
        v.at[k] = c.beta2 * v.at[k] + c.rest2 * (gk * gk);
        w.at[k] -= c.lr
            * (m.at[k] / c.bias1 / (sqrtf(v.at[k] / c.bias2) + c.eps)
                + c.decay * w.at[k]);
        copy.at[k] = narrow(w.at[k]);
    }
    vec_store((float *)p.w + i, w);
    if (p.copy != NULL)
        vec_store((bf16 *)p.copy + i, copy);
    vec_store((float *)p.m + i, m);
    vec_store((float *)p.v + i, v);
}

CUDA_OP(adamw)
{
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
    const void *const all[] = {p->w, p->m, p->v, p->g};
    bool wide = (uintptr_t)p->copy % (FOUR * sizeof(bf16)) == 0;
    for (const void *x : all)
        wide = wide && vec_fits(x, p->n, sizeof(float));
    cuda_begin(stream);
    return wide
        ? LAUNCH(k_adamw<FOUR>, blocks_of(p->n, (int64_t)THREADS * FOUR), THREADS, 0,
            stream, err, *p, c)
        : LAUNCH(k_adamw<1>, blocks_of(p->n, THREADS), THREADS, 0, stream, err, *p, c);
}
