/* The indexer. A head's rope dims come first here, last in the main heads. */
#include "train/indexer.h"

#include "train/mutate.h"

/* x [T,N,DI] of elem, or acc. */
static int rotate(struct run *r, void *x, int64_t N, enum glm_dtype type, bool inverse)
{
    const int64_t D = r->c->index_head_dim, Dr = r->c->qk_rope_head_dim;
#ifdef MUTATE_INDEXER_ROPE_LAST
    const int64_t at = D - Dr;
#else
    const int64_t at = 0;
#endif
    return RUN(r, rope, .x = x, .cos = r->cos, .sin = r->sin, .T = r->T, .N = N,
        .row_stride = N * D, .head_stride = D, .at = at, .D = Dr, .inverse = inverse,
        .dtype = type);
}

static int key_norm(struct indexer *x, struct run *r)
{
    const int64_t D = r->c->index_head_dim;
    x->k_mean = keep_acc(r, r->T);
    x->k_rstd = keep_acc(r, r->T);
#ifdef MUTATE_KNORM_RMS
    return RUN(r, rmsnorm_fwd, .y = x->k, .rstd = x->k_rstd, .x = x->k_raw,
        .w = x->k_gain.w, .T = r->T, .D = D, .eps = 1e-6f, .dtype = r->dtype);
#else
    return RUN(r, layernorm_fwd, .y = x->k, .mean = x->k_mean, .rstd = x->k_rstd,
        .x = x->k_raw, .w = x->k_gain.w, .b = x->k_bias.w, .T = r->T, .D = D,
        .eps = 1e-6f, .dtype = r->dtype);
#endif
}

int indexer_fwd(struct indexer *x, struct run *r, const void *a, const void *c_q)
{
    const int64_t N = r->c->index_n_heads, D = r->c->index_head_dim;
    /* An indexer that does not learn is not asked again. */
    const bool passing = run_lean(r) && r->o->indexer_loss == MODEL_INDEXER_OFF;
    void *(*const place)(struct run *, int64_t) = passing ? temp_elem : keep_elem;
    x->q = place(r, r->T * N * D);
    x->k_raw = place(r, r->T * D);
    x->k = place(r, r->T * D);
    x->w = place(r, r->T * N);
    x->kl = keep_acc(r, r->T);
    if (linear_fwd(r, &x->wq_b, c_q, x->q) != 0
        || rotate(r, x->q, N, r->dtype, false) != 0
        || linear_fwd(r, &x->wk, a, x->k_raw) != 0 || key_norm(x, r) != 0
        || rotate(r, x->k, 1, r->dtype, false) != 0)
        return r->err->code;
    return linear_fwd(r, &x->weights, a, x->w);
}

int indexer_choose(struct indexer *x, struct run *r, int32_t *index)
{
    return RUN(r, indexer_topk, .index = index, .q = x->q, .k = x->k, .w = x->w,
        .cu_seqlens = r->cu_seqlens, .T = r->T, .S = r->S, .N = r->c->index_n_heads,
        .D = r->c->index_head_dim, .K = r->K, .hf_scales = r->o->hf_scales,
        .dtype = r->dtype);
}

static int loss(struct indexer *x, struct run *r, const struct mla *m,
    const int32_t *index, void *dq, void *dk, void *dw)
{
    return RUN(r, indexer_loss, .kl = x->kl, .dq = dq, .dk = dk, .dw = dw, .q = x->q,
        .k = x->k, .w = x->w, .mq = m->aq, .mk = m->k, .lse = m->lse, .index = index,
        .cu_seqlens = r->cu_seqlens, .T = r->T, .S = r->S, .N = r->c->index_n_heads,
        .D = r->c->index_head_dim, .K = r->K, .MN = r->c->num_heads, .MNk = m->Nk,
        .MDq = m->Dq, .mk_stride = m->k_stride, .fill = x->fill, .main_scale = m->scale,
        .coeff = r->indexer_scale * r->o->indexer_coeff, .hf_scales = r->o->hf_scales,
        .dtype = r->dtype);
}

int indexer_kl(
    struct indexer *x, struct run *r, const struct mla *m, const int32_t *index)
{
    return loss(x, r, m, index, NULL, NULL, NULL);
}

int indexer_bwd(struct indexer *x, struct run *r, const struct mla *m,
    const int32_t *index, const void *a, const void *c_q)
{
    const int64_t N = r->c->index_n_heads, D = r->c->index_head_dim;
    const size_t mark = r->temp.at;
    void *dq = temp_acc(r, r->T * N * D), *dk = temp_acc(r, r->T * D);
    void *dw = temp_acc(r, r->T * N);
    void *dk_low = temp_elem(r, r->T * D), *dk_raw = temp_elem(r, r->T * D);
    if (loss(x, r, m, index, dq, dk, dw) != 0
        || linear_dw(r, &x->weights, dw, r->acc, a) != 0
        || rotate(r, dq, N, r->acc, true) != 0
        || linear_dw(r, &x->wq_b, dq, r->acc, c_q) != 0
        || rotate(r, dk, 1, r->acc, true) != 0
        || RUN(r, convert, .y = dk_low, .x = dk, .n = r->T * D, .from = r->acc,
               .to = r->dtype)
            != 0
        || RUN(r, layernorm_bwd, .dx = dk_raw, .dw = x->k_gain.dw, .db = x->k_bias.dw,
               .dy = dk_low, .x = x->k_raw, .w = x->k_gain.w, .mean = x->k_mean,
               .rstd = x->k_rstd, .T = r->T, .D = D, .dtype = r->dtype)
            != 0)
        goto out;
    linear_dw(r, &x->wk, dk_raw, r->dtype, a);
out:
    r->temp.at = mark;
    return r->err->code;
}
