/* Softmax attention: shapes checked, a path chosen.
 *
 * The choice is a function of shapes, of the device's kind and of the stream's setting alone. Sets
 * and boundaries lie on the device and are not looked at here: that they are ascending, within their
 * sequence and not empty is the caller's promise. */
#include "kernels/cuda/attention_cudnn.h"
#include "kernels/cuda/attention_fast.cuh"
#include "kernels/cuda/attention_latent.cuh"

template <class P> static int check(const P *p, const char *op, struct glm_error *err)
{
    if (cuda_type(op, p->dtype, err) != 0)
        return (int)err->code;
    if (p->N < 1 || (p->Nk != 1 && p->Nk != p->N) || p->Dq < 1 || p->Dv < 1)
        return glm_fail(err, GLM_EFORMAT,
            "%s: %lld heads, %lld key heads (expected 1 or as many), of %lld and %lld "
            "dimensions",
            op, (long long)p->N, (long long)p->Nk, (long long)p->Dq, (long long)p->Dv);
    if (p->T < 0 || p->T > INT32_MAX / p->N || p->S < 0 || (p->T > 0 && p->S == 0))
        return glm_fail(err, GLM_EFORMAT, "%s: %lld rows of %lld heads in %lld sequences",
            op, (long long)p->T, (long long)p->N, (long long)p->S);
    if (p->index != NULL && p->K < 1)
        return glm_fail(
            err, GLM_EFORMAT, "%s: key sets of %lld entries", op, (long long)p->K);
    return GLM_OK;
}

template <class P> static P resolved(const P *p)
{
    P r = *p;
    r.k_stride = p->k_stride != 0 ? p->k_stride : p->Nk * p->Dq;
    r.v_stride = p->v_stride != 0 ? p->v_stride : p->Nk * p->Dv;
    return r;
}

/* One sequence, each row of which sees all in front of it: the host knows its length. Long enough that
 * the seconds for a plan are worth it, and no odd one. */
static bool whole(const struct attention_fwd *p)
{
    return p->S == 1 && p->index == NULL && p->T >= 1024 && p->T % 128 == 0;
}

CUDA_OP(attention_fwd)
{
    if (check(p, "attention_fwd", err) != 0 || p->T == 0)
        return (int)err->code;
    const struct attention_fwd r = resolved(p);
    cuda_begin(stream);
    if (stream->attention == CUDA_ATTENTION_CUDNN && whole(&r) && fast_serves(&r)
        && attention_cudnn_fwd(&r, stream, err))
        return (int)err->code;
    if (stream->attention != CUDA_ATTENTION_PLAIN && fast_serves(&r))
        return stream->attention >= CUDA_ATTENTION_LEAN
            ? attention_tma_fwd(&r, stream, err)
            : attention_mma_fwd(&r, stream, err);
    if (stream->attention >= CUDA_ATTENTION_LEAN && latent_serves(&r))
        return attention_latent_fwd(&r, stream, err);
    return attention_plain_fwd(&r, stream, err);
}

CUDA_OP(attention_bwd)
{
    if (check(p, "attention_bwd", err) != 0 || p->T == 0)
        return (int)err->code;
    if (p->dv == NULL && (p->Nk != 1 || p->v != p->k || p->Dv > p->Dq))
        return glm_fail(err, GLM_EFORMAT,
            "attention_bwd: no dv, though the values do not lie in the keys");
    const struct attention_bwd r = resolved(p);
    cuda_begin(stream);
    if (stream->attention != CUDA_ATTENTION_PLAIN && fast_serves(&r))
        return stream->attention >= CUDA_ATTENTION_LEAN
            ? attention_wgmma_bwd(&r, stream, err)
            : attention_mma_bwd(&r, stream, err);
    if (stream->attention >= CUDA_ATTENTION_LEAN && latent_serves(&r))
        return attention_latent_bwd(&r, stream, err);
    return attention_plain_bwd(&r, stream, err);
}
