/* What the tests of attention share: shapes and one call's data. */
#ifndef TESTS_KERNELS_ATTENTION_DATA_H
#define TESTS_KERNELS_ATTENTION_DATA_H

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/pool.h"
#include "kernels/kernels.h"
#include "tests/support/opdata.h"
#include "tests/support/rng.h"

/* F32: sums of up to 1024 terms. BF16: three roundings of 2^-9 on the way (p, o, and o in ds). */
static const double tolerance[] = {
    [GLM_F32] = 1e-5, [GLM_F64] = 1e-13, [GLM_BF16] = 1.5e-2};

struct shape {
    int lengths[6];
    int N, Nk, Dq, Dv, K; /* K 0: dense */
    bool latent;          /* v lies in k */
};

static const struct shape shapes[] = {
    {{1}, 1, 1, 1, 1, 0, false},
    {{24}, 4, 4, 40, 32, 0, false},
    {{5, 1, 17, 9}, 3, 3, 7, 5, 0, false},
    {{5, 1, 17, 9}, 2, 2, 16, 16, 8, false}, /* K inside the lengths */
    {{5, 1, 17, 9}, 4, 1, 80, 64, 64, true}, /* K > T */
    {{3, 40}, 4, 1, 80, 64, 1, true},        /* one key each */
    {{30, 33, 7}, 2, 1, 576, 512, 16, true},
    {{70}, 5, 1, 33, 20, 0, true},
    {{600, 3}, 16, 16, 2, 3, 0, false}, /* several blocks of rows in backward */
    {{640}, 16, 1, 3, 2, 639, false},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

/* The two large shapes run in F32 alone, for time. */
static inline bool skipped(size_t shape, enum glm_dtype dtype)
{
    return shape >= SHAPES - 2 && dtype != GLM_F32;
}

/* One call's data. In the latent form a row of k has Dq elements, the first Dv of them v, in rows
 * of Dq + 3. */
struct data {
    enum glm_dtype dtype, acc;
    int64_t T, S, N, Nk, Dq, Dv, K, k_stride, v_stride;
    int32_t *cu, *index;
    void *q, *k, *v, *do_;
    void *o, *lse, *dq, *dk, *dv;
    bool latent;
    double scale;
};

static inline struct data data_new(
    const struct shape *s, enum glm_dtype dtype, uint64_t seed)
{
    struct data d = {.dtype = dtype,
        .acc = op_acc(dtype),
        .N = s->N,
        .Nk = s->Nk,
        .Dq = s->Dq,
        .Dv = s->Dv,
        .K = s->K,
        .latent = s->latent,
        .scale = 1 / sqrt(s->Dq)};

    d.cu = op_pack(s->lengths, &d.S, &d.T);
    d.index = s->K > 0 ? op_sets(d.cu, d.S, s->K, seed) : NULL;
    d.k_stride = s->latent ? s->Dq + 3 : s->Nk * s->Dq;
    d.v_stride = s->latent ? d.k_stride : s->Nk * s->Dv;
    d.q = op_normals(dtype, d.T * d.N * d.Dq, seed + 1);
    d.k = op_normals(dtype, d.T * d.k_stride, seed + 2);
    d.v = s->latent ? d.k : op_normals(dtype, d.T * d.v_stride, seed + 3);
    d.do_ = op_normals(dtype, d.T * d.N * d.Dv, seed + 4);
    d.o = op_normals(dtype, d.T * d.N * d.Dv, 0);
    d.lse = op_normals(d.acc, d.T * d.N, 0);
    d.dq = op_normals(dtype, d.T * d.N * d.Dq, 0);
    d.dk = op_normals(d.acc, d.T * d.Nk * d.Dq, 0);
    d.dv = op_normals(d.acc, d.T * d.Nk * d.Dv, 0);
    return d;
}

static inline void data_free(struct data *d)
{
    free(d->cu), free(d->index), free(d->q), free(d->k), free(d->do_);
    free(d->o), free(d->lse), free(d->dq), free(d->dk), free(d->dv);
    if (!d->latent)
        free(d->v);
}

static inline int forward(const struct data *d, glm_stream stream, struct glm_error *err)
{
    return cpu_attention_fwd(&(struct attention_fwd){.o = d->o,
                                 .lse = d->lse,
                                 .q = d->q,
                                 .k = d->k,
                                 .v = d->v,
                                 .index = d->index,
                                 .cu_seqlens = d->cu,
                                 .T = d->T,
                                 .S = d->S,
                                 .N = d->N,
                                 .Nk = d->Nk,
                                 .Dq = d->Dq,
                                 .Dv = d->Dv,
                                 .K = d->K,
                                 .k_stride = d->k_stride,
                                 .v_stride = d->v_stride,
                                 .scale = d->scale,
                                 .dtype = d->dtype},
        stream, err);
}

static inline int backward(const struct data *d, glm_stream stream, struct glm_error *err)
{
    return cpu_attention_bwd(&(struct attention_bwd){.dq = d->dq,
                                 .dk = d->dk,
                                 .dv = d->dv,
                                 .q = d->q,
                                 .k = d->k,
                                 .v = d->v,
                                 .o = d->o,
                                 .lse = d->lse,
                                 .do_ = d->do_,
                                 .index = d->index,
                                 .cu_seqlens = d->cu,
                                 .T = d->T,
                                 .S = d->S,
                                 .N = d->N,
                                 .Nk = d->Nk,
                                 .Dq = d->Dq,
                                 .Dv = d->Dv,
                                 .K = d->K,
                                 .k_stride = d->k_stride,
                                 .v_stride = d->v_stride,
                                 .scale = d->scale,
                                 .dtype = d->dtype},
        stream, err);
}

static inline void run(const struct data *d, glm_stream stream)
{
    struct glm_error err = {0};

    cr_assert_eq(forward(d, stream, &err), 0, "%s", err.text);
    cr_assert_eq(backward(d, stream, &err), 0, "%s", err.text);
}

#endif
