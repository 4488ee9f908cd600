/* AdamW: an element depends on its own weight, moments and gradient alone. */
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/pool.h"

#if !defined(MODE_BF16) /* weights, moments and gradients are F32 or F64 */

enum { GRAIN = 8192 };

LANES_BODY real root(real x)
{
#if defined(MODE_F64)
    return sqrt(x);
#else
    return sqrtf(x);
#endif
}

struct job {
    struct adamw p;
    double rest1, rest2;
};

static void copy_range(const struct adamw *p, int64_t begin, int64_t end)
{
    for (int64_t i = begin; i < end; i++)
        ((uint16_t *)p->copy)[i] = bf16_from_f32((float)((const real *)p->w)[i]);
}

LANES_CLONES static void adamw_range(const void *ctx, int64_t begin, int64_t end)
{
    const struct job *const job = ctx;
    const struct adamw *const p = &job->p;
    real *restrict w = p->w, *restrict m = p->m, *restrict v = p->v;
    const real *restrict g = p->g;
    const real scale = (real)p->grad_scale, lr = (real)p->lr, eps = (real)p->eps;
    const real beta1 = (real)p->beta1, rest1 = (real)(1 - p->beta1);
    const real beta2 = (real)p->beta2, rest2 = (real)(1 - p->beta2);
    const real bias1 = (real)job->rest1, bias2 = (real)job->rest2;
    const real decay = (real)p->decay;

    for (int64_t i = begin; i < end; i++) {
        const real gi = g[i] * scale;
        m[i] = beta1 * m[i] + rest1 * gi;
        v[i] = beta2 * v[i] + rest2 * (gi * gi);
        w[i] -= lr * (m[i] / bias1 / (root(v[i] / bias2) + eps) + decay * w[i]);
    }
    if (p->copy != NULL)
        copy_range(p, begin, end);
}

OP_FN(adamw)
{
    const struct step_rates *const r = p->rates;
    struct job job = {.p = *p};

    if (p->n < 0 || (r == NULL && p->step < 1) || !(p->beta1 >= 0 && p->beta1 < 1)
        || !(p->beta2 >= 0 && p->beta2 < 1))
        return glm_fail(err, GLM_EFORMAT,
            "adamw: %lld elements, step %lld, beta %g and %g, expected a step from 1 and "
            "betas in "
            "[0,1)",
            (long long)p->n, (long long)p->step, p->beta1, p->beta2);
    if (r != NULL && r->stop != 0)
        return 0;
    if (r != NULL) {
        job.p.lr = r->lr;
        job.p.decay = r->decay;
        job.p.grad_scale = r->grad_scale;
    }
    job.rest1 = r != NULL ? r->rest1 : 1 - pow(p->beta1, (double)p->step);
    job.rest2 = r != NULL ? r->rest2 : 1 - pow(p->beta2, (double)p->step);
    pool_each(stream, p->n, GRAIN, adamw_range, &job);
    return 0;
}

#endif
