/* What the tests of the indexer share: shapes, one call's data, scores by the formula. */
#ifndef TESTS_KERNELS_INDEXER_DATA_H
#define TESTS_KERNELS_INDEXER_DATA_H

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/pool.h"
#include "kernels/kernels.h"
#include "tests/support/opdata.h"
#include "tests/support/rng.h"

/* Nothing is rounded to BF16 on the way: its inputs are, before both see them. */
static const double tolerance[] = {
    [GLM_F32] = 2e-5, [GLM_F64] = 1e-13, [GLM_BF16] = 2e-5};

struct shape {
    int lengths[6];
    int N, D, K, MN, MNk, MD;
    bool hf;
};

static const struct shape shapes[] = {
    {{1}, 1, 1, 1, 1, 1, 1, false}, {{24}, 16, 32, 8, 4, 4, 40, true},
    {{5, 1, 17, 9}, 4, 16, 6, 3, 1, 33, false},
    {{5, 1, 17, 9}, 5, 7, 64, 2, 2, 16, true}, /* K > T */
    {{3, 40, 2}, 4, 16, 1, 4, 1, 80, true}, {{70}, 32, 128, 17, 2, 1, 576, false},
    {{600, 3}, 40, 2, 500, 1, 1, 2, false}, /* several blocks of rows in the loss */
};
enum { SHAPES = sizeof shapes / sizeof *shapes, LARGE = SHAPES - 1 };

struct data {
    enum glm_dtype dtype, acc;
    int64_t T, S, N, D, K, MN, MNk, MD, fill;
    int32_t *cu, *index;
    void *q, *k, *w, *mq, *mk, *lse, *score, *kl, *dq, *dk, *dw;
    double main_scale, coeff;
    bool hf;
};

static inline struct data data_new(
    const struct shape *s, enum glm_dtype dtype, uint64_t seed)
{
    struct data d = {.dtype = dtype,
        .acc = op_acc(dtype),
        .N = s->N,
        .D = s->D,
        .K = s->K,
        .MN = s->MN,
        .MNk = s->MNk,
        .MD = s->MD,
        .hf = s->hf,
        .main_scale = 1 / sqrt(s->MD),
        .coeff = 0.7};

    d.cu = op_pack(s->lengths, &d.S, &d.T);
    d.index = calloc((size_t)(d.T * d.K), sizeof *d.index);
    d.q = op_normals(dtype, d.T * d.N * d.D, seed + 1);
    d.k = op_normals(dtype, d.T * d.D, seed + 2);
    d.w = op_normals(dtype, d.T * d.N, seed + 3);
    d.mq = op_normals(dtype, d.T * d.MN * d.MD, seed + 4);
    d.mk = op_normals(dtype, d.T * d.MNk * d.MD, seed + 5);
    d.lse = op_zeros(d.acc, d.T * d.MN);
    d.score = op_normals(d.acc, d.T * d.K, 0);
    d.kl = op_normals(d.acc, d.T, 0);
    d.dq = op_normals(d.acc, d.T * d.N * d.D, 0);
    d.dk = op_normals(d.acc, d.T * d.D, 0);
    d.dw = op_normals(d.acc, d.T * d.N, 0);
    return d;
}

static inline void data_free(struct data *d)
{
    free(d->cu), free(d->index), free(d->q), free(d->k), free(d->w), free(d->mq),
        free(d->mk);
    free(d->lse), free(d->score), free(d->kl), free(d->dq), free(d->dk), free(d->dw);
}

static inline int topk(const struct data *d, glm_stream stream, struct glm_error *err)
{
    return cpu_indexer_topk(&(struct indexer_topk){.index = d->index,
                                .score = d->score,
                                .q = d->q,
                                .k = d->k,
                                .w = d->w,
                                .cu_seqlens = d->cu,
                                .T = d->T,
                                .S = d->S,
                                .N = d->N,
                                .D = d->D,
                                .K = d->K,
                                .hf_scales = d->hf,
                                .dtype = d->dtype},
        stream, err);
}

static inline int loss(const struct data *d, bool sparse, bool gradients,
    glm_stream stream, struct glm_error *err)
{
    return cpu_indexer_loss(&(struct indexer_loss){.kl = d->kl,
                                .dq = gradients ? d->dq : NULL,
                                .dk = gradients ? d->dk : NULL,
                                .dw = gradients ? d->dw : NULL,
                                .q = d->q,
                                .k = d->k,
                                .w = d->w,
                                .mq = d->mq,
                                .mk = d->mk,
                                .lse = d->lse,
                                .index = sparse ? d->index : NULL,
                                .cu_seqlens = d->cu,
                                .T = d->T,
                                .S = d->S,
                                .N = d->N,
                                .D = d->D,
                                .K = d->K,
                                .MN = d->MN,
                                .MNk = d->MNk,
                                .MDq = d->MD,
                                .fill = d->fill,
                                .main_scale = d->main_scale,
                                .coeff = d->coeff,
                                .hf_scales = d->hf,
                                .dtype = d->dtype},
        stream, err);
}

static inline void run_topk(const struct data *d, glm_stream stream)
{
    struct glm_error err = {0};

    cr_assert_eq(topk(d, stream, &err), 0, "%s", err.text);
}

static inline void run_loss(const struct data *d, bool sparse, glm_stream stream)
{
    struct glm_error err = {0};

    cr_assert_eq(loss(d, sparse, true, stream, &err), 0, "%s", err.text);
}

/* ---- the formulas, plainly -------------------------------------------------------------------- */

static inline int64_t first_of(const struct data *d, int64_t t)
{
    int64_t i = 0;

    while (d->cu[i + 1] <= t)
        i++;
    return d->cu[i];
}

static inline bool is_fill(const struct data *d, int64_t t)
{
    int64_t i = 0;

    while (d->cu[i + 1] <= t)
        i++;
    return t >= d->cu[i + 1] - d->fill;
}

static inline bool sees(const struct data *d, bool sparse, int64_t t, int64_t s)
{
    if (s < first_of(d, t) || s > t)
        return false;
    for (int64_t j = 0; sparse && j < d->K; j++) {
        if (d->index[t * d->K + j] == s)
            return true;
    }
    return !sparse;
}

static inline double dot(
    enum glm_dtype ty, const void *a, int64_t i, const void *b, int64_t j, int64_t n)
{
    double sum = 0;

    for (int64_t e = 0; e < n; e++)
        sum += op_at(ty, a, i + e) * op_at(ty, b, j + e);
    return sum;
}

static inline double z_of(const struct data *d, int64_t t, int64_t n, int64_t s)
{
    return dot(d->dtype, d->q, (t * d->N + n) * d->D, d->k, s * d->D, d->D);
}

static inline double score_of(const struct data *d, int64_t t, int64_t s)
{
    double sum = 0;

    for (int64_t n = 0; n < d->N; n++) {
        const double z = z_of(d, t, n, s);
        sum += op_at(d->dtype, d->w, t * d->N + n) * (z < 0 ? 0 : z);
    }
    return sum / sqrt((double)(d->N * d->D));
}

#endif
