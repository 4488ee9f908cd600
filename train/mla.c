/* Multi-head latent attention, in two forms that are equal to rounding.
 *
 * Expanded: every head's keys and values are made from the latent. Absorbed: the key matrix goes
 * into the query and the value matrix behind the sum, and all heads share latent keys; the keys of
 * a row are then KR + Dr numbers whatever the number of heads.
 *
 *     q [t]:  head 0 (Dn | Dr), head 1, ...        z [t]: latent (KR) | rope key (Dr)
 *     kv[t]:  head 0 (Dn | Dv), head 1, ...        absorbed k [t]: c_kv (KR) | rope key (Dr) */
#include "train/mla.h"

#include <math.h>

struct dims {
    int64_t N, Dn, Dr, Dqk, Dv, KR, Dkv, QR;
};

static struct dims dims_of(const struct run *r)
{
    const struct model_config *c = r->c;
    return (struct dims){.N = c->num_heads,
        .Dn = c->qk_nope_head_dim,
        .Dr = c->qk_rope_head_dim,
        .Dqk = c->qk_nope_head_dim + c->qk_rope_head_dim,
        .Dv = c->v_head_dim,
        .KR = c->kv_lora_rank,
        .Dkv = c->qk_nope_head_dim + c->v_head_dim,
        .QR = c->q_lora_rank};
}

static int rotate(struct run *r, void *x, int64_t N, int64_t row, int64_t head,
    int64_t at, bool inverse)
{
    return RUN(r, rope, .x = x, .cos = r->cos, .sin = r->sin, .T = r->T, .N = N,
        .row_stride = row, .head_stride = head, .at = at, .D = r->c->qk_rope_head_dim,
        .inverse = inverse, .dtype = r->dtype);
}

/* ---- forward ---------------------------------------------------------------------------------- */

int mla_latent_fwd(struct mla *m, struct run *r, const void *a)
{
    const struct dims d = dims_of(r);
    m->q_lat = keep_elem(r, r->T * d.QR);
    m->c_q = keep_elem(r, r->T * d.QR);
    if (linear_fwd(r, &m->q_a, a, m->q_lat) != 0)
        return r->err->code;
    return norm_fwd(r, &m->q_norm, m->q_lat, 0, m->c_q);
}

static int queries(struct mla *m, struct run *r, const struct dims *d)
{
    const int64_t n = r->T * d->N * d->Dqk;
    m->q = lean_elem(r, n);
    if (linear_fwd(r, &m->q_b, m->c_q, m->q) != 0)
        return r->err->code;
    return rotate(r, m->q, d->N, d->N * d->Dqk, d->Dqk, d->Dn, false);
}

static int project(struct mla *m, struct run *r, const struct dims *d, const void *a)
{
    m->z = keep_elem(r, r->T * (d->KR + d->Dr));
    m->c_kv = keep_elem(r, r->T * d->KR);
    if (queries(m, r, d) != 0 || linear_fwd(r, &m->kv_a, a, m->z) != 0
        || norm_fwd(r, &m->kv_norm, m->z, d->KR + d->Dr, m->c_kv) != 0)
        return r->err->code;
    return rotate(r, m->z, 1, d->KR + d->Dr, 0, d->KR, false);
}

/* k = [k_n ; k_r], the rope key the same in every head. */
static int expand(struct mla *m, struct run *r, const struct dims *d)
{
    m->k = lean_elem(r, r->T * d->N * d->Dqk);
    m->v = lean_elem(r, r->T * d->N * d->Dv);
    const size_t mark = r->temp.at;
    void *kv = temp_elem(r, r->T * d->N * d->Dkv);
    m->aq = m->q;
    m->Nk = d->N;
    m->Dq = d->Dqk;
    m->Dv = d->Dv;
    m->k_stride = d->N * d->Dqk;
    m->v_stride = d->N * d->Dv;
    if (linear_fwd(r, &m->kv_b, m->c_kv, kv) == 0
        && RUN(r, blocks, .y = m->k, .x = kv, .T = r->T, .N = d->N, .D = d->Dn,
               .y_row = m->k_stride, .y_head = d->Dqk, .x_row = d->N * d->Dkv,
               .x_head = d->Dkv, .dtype = r->dtype)
            == 0
        && RUN(r, blocks, .y = elem_at(r, m->k, d->Dn), .x = elem_at(r, m->z, d->KR),
               .T = r->T, .N = d->N, .D = d->Dr, .y_row = m->k_stride, .y_head = d->Dqk,
               .x_row = d->KR + d->Dr, .dtype = r->dtype)
            == 0)
        (void)RUN(r, blocks, .y = m->v, .x = elem_at(r, kv, d->Dn), .T = r->T, .N = d->N,
            .D = d->Dv, .y_row = m->v_stride, .y_head = d->Dv, .x_row = d->N * d->Dkv,
            .x_head = d->Dkv, .dtype = r->dtype);
    r->temp.at = mark;
    return r->err->code;
}

/* C[T,N] (+)= A[T,K] op(B): one head of a packed matrix. Strides in elements. */
static int head_gemm(struct run *r, void *c, int64_t ldc, const void *a, int64_t lda,
    const void *w, int64_t N, int64_t K, bool trans_b, int64_t ldb)
{
    return RUN(r, gemm, .c = c, .a = a, .b = w, .M = r->T, .N = N, .K = K, .lda = lda,
        .ldb = ldb, .ldc = ldc, .trans_b = trans_b, .a_type = r->dtype,
        .b_type = r->dtype, .c_type = r->dtype);
}

static int absorb(struct mla *m, struct run *r, const struct dims *d)
{
    const int64_t L = d->KR + d->Dr;
    m->aq = lean_elem(r, r->T * d->N * L);
    m->k = lean_elem(r, r->T * L);
    m->v = m->k;
    m->Nk = 1;
    m->Dq = L;
    m->Dv = d->KR;
    m->k_stride = m->v_stride = L;
    for (int64_t h = 0; h < d->N; h++)
        if (head_gemm(r, elem_at(r, m->aq, h * L), d->N * L, elem_at(r, m->q, h * d->Dqk),
                d->N * d->Dqk, elem_at(r, m->kv_b.p.w, h * d->Dkv * d->KR), d->KR, d->Dn,
                false, d->KR)
            != 0)
            return r->err->code;
    if (RUN(r, blocks, .y = elem_at(r, m->aq, d->KR), .x = elem_at(r, m->q, d->Dn),
            .T = r->T, .N = d->N, .D = d->Dr, .y_row = d->N * L, .y_head = L,
            .x_row = d->N * d->Dqk, .x_head = d->Dqk, .dtype = r->dtype)
            != 0
        || RUN(r, blocks, .y = m->k, .x = m->c_kv, .T = r->T, .N = 1, .D = d->KR,
               .y_row = L, .x_row = d->KR, .dtype = r->dtype)
            != 0)
        return r->err->code;
    return RUN(r, blocks, .y = elem_at(r, m->k, d->KR), .x = elem_at(r, m->z, d->KR),
        .T = r->T, .N = 1, .D = d->Dr, .y_row = L, .x_row = L, .dtype = r->dtype);
}

/* o = W_UV u, per head. */
static int values_of(struct mla *m, struct run *r, const struct dims *d)
{
    m->heads = lean_elem(r, r->T * d->N * d->Dv);
    for (int64_t h = 0; h < d->N; h++)
        if (head_gemm(r, elem_at(r, m->heads, h * d->Dv), d->N * d->Dv,
                elem_at(r, m->ao, h * d->KR), d->N * d->KR,
                elem_at(r, m->kv_b.p.w, (h * d->Dkv + d->Dn) * d->KR), d->Dv, d->KR, true,
                d->KR)
            != 0)
            return r->err->code;
    return 0;
}

int mla_again(struct mla *m, struct run *r)
{
    const struct dims d = dims_of(r);
    if (!run_lean(r))
        return 0;
    if (queries(m, r, &d) != 0)
        return r->err->code;
    if (!r->o->absorbed)
        return expand(m, r, &d);
    return absorb(m, r, &d) != 0 ? (int)r->err->code : values_of(m, r, &d);
}

int mla_fwd(struct mla *m, struct run *r, const void *a, const int32_t *index, void *y)
{
    const struct dims d = dims_of(r);
    m->scale = 1.0 / sqrt((double)d.Dqk);
    if (project(m, r, &d, a) != 0 || (r->o->absorbed ? absorb : expand)(m, r, &d) != 0)
        return r->err->code;
    m->ao = keep_elem(r, r->T * d.N * m->Dv);
    m->lse = keep_acc(r, r->T * d.N);
    if (RUN(r, attention_fwd, .o = m->ao, .lse = m->lse, .q = m->aq, .k = m->k, .v = m->v,
            .index = index, .cu_seqlens = r->cu_seqlens, .T = r->T, .S = r->S, .N = d.N,
            .Nk = m->Nk, .Dq = m->Dq, .Dv = m->Dv, .K = r->K, .k_stride = m->k_stride,
            .v_stride = m->v_stride, .scale = m->scale, .dtype = r->dtype)
        != 0)
        return r->err->code;
    m->heads = m->ao;
    if (r->o->absorbed && values_of(m, r, &d) != 0)
        return r->err->code;
    return linear_fwd(r, &m->o, m->heads, y);
}

/* ---- backward --------------------------------------------------------------------------------- */

struct grads {
    void *dheads;  /* [T,N,Dv] elem */
    void *daq;     /* [T,N,Dq] elem */
    void *dk, *dv; /* acc, as attention saw them; absorbed: dk has dv's part */
    void *dq;      /* [T,N,Dqk] elem */
    void *dc_kv;   /* [T,KR] elem */
    void *dz;      /* [T,KR+Dr] elem */
};

static int attend_bwd(struct mla *m, struct run *r, const struct dims *d,
    const struct grads *g, const void *dao, const int32_t *index)
{
    return RUN(r, attention_bwd, .dq = g->daq, .dk = g->dk, .dv = g->dv, .q = m->aq,
        .k = m->k, .v = m->v, .o = m->ao, .lse = m->lse, .do_ = dao, .index = index,
        .cu_seqlens = r->cu_seqlens, .T = r->T, .S = r->S, .N = d->N, .Nk = m->Nk,
        .Dq = m->Dq, .Dv = m->Dv, .K = r->K, .k_stride = m->k_stride,
        .v_stride = m->v_stride, .scale = m->scale, .dtype = r->dtype);
}

static int expand_bwd(struct mla *m, struct run *r, const struct dims *d, struct grads *g)
{
    const int64_t row = d->N * d->Dkv, k_row = d->N * d->Dqk;
    void *dkv = temp_elem(r, r->T * row);
    g->dq = g->daq;
    if (RUN(r, blocks, .y = dkv, .x = g->dk, .T = r->T, .N = d->N, .D = d->Dn,
            .y_row = row, .y_head = d->Dkv, .x_row = k_row, .x_head = d->Dqk,
            .acc_in = true, .dtype = r->dtype)
            != 0
        || RUN(r, blocks, .y = elem_at(r, dkv, d->Dn), .x = g->dv, .T = r->T, .N = d->N,
               .D = d->Dv, .y_row = row, .y_head = d->Dkv, .x_row = d->N * d->Dv,
               .x_head = d->Dv, .acc_in = true, .dtype = r->dtype)
            != 0
        || RUN(r, blocks, .y = elem_at(r, g->dz, d->KR), .x = acc_at(r, g->dk, d->Dn),
               .T = r->T, .N = d->N, .D = d->Dr, .y_row = d->KR + d->Dr, .x_row = k_row,
               .x_head = d->Dqk, .acc_in = true, .sum = true, .dtype = r->dtype)
            != 0)
        return r->err->code;
    if (linear_dw(r, &m->kv_b, dkv, r->dtype, m->c_kv) != 0)
        return r->err->code;
    return linear_dx(r, &m->kv_b, dkv, r->dtype, g->dc_kv, false);
}

/* dW[N,K] += A[T,N]^T B[T,K]: rows of kv_b that belong to one head. */
static int head_dw(struct run *r, const struct mla *m, int64_t at, const void *a,
    int64_t lda, const void *b, int64_t ldb, int64_t N)
{
    const int64_t KR = m->kv_b.in;
    if (!m->kv_b.p.dw)
        return 0;
    return RUN(r, gemm, .c = acc_at(r, m->kv_b.p.dw, at * KR), .a = a, .b = b, .M = N,
        .N = KR, .K = r->T, .lda = lda, .ldb = ldb, .ldc = KR, .trans_a = true,
        .accumulate = true, .a_type = r->dtype, .b_type = r->dtype, .c_type = r->acc);
}

static int absorb_bwd(struct mla *m, struct run *r, const struct dims *d, struct grads *g)
{
    const int64_t L = d->KR + d->Dr;
    g->dq = temp_elem(r, r->T * d->N * d->Dqk);
    for (int64_t h = 0; h < d->N; h++) {
        void *daq = elem_at(r, g->daq, h * L);
        if (head_dw(r, m, h * d->Dkv, elem_at(r, m->q, h * d->Dqk), d->N * d->Dqk, daq,
                d->N * L, d->Dn)
                != 0
            || head_gemm(r, elem_at(r, g->dq, h * d->Dqk), d->N * d->Dqk, daq, d->N * L,
                   elem_at(r, m->kv_b.p.w, h * d->Dkv * d->KR), d->Dn, d->KR, true, d->KR)
                != 0)
            return r->err->code;
    }
    if (RUN(r, blocks, .y = elem_at(r, g->dq, d->Dn), .x = elem_at(r, g->daq, d->KR),
            .T = r->T, .N = d->N, .D = d->Dr, .y_row = d->N * d->Dqk, .y_head = d->Dqk,
            .x_row = d->N * L, .x_head = L, .dtype = r->dtype)
            != 0
        || RUN(r, blocks, .y = g->dc_kv, .x = g->dk, .T = r->T, .N = 1, .D = d->KR,
               .y_row = d->KR, .x_row = L, .acc_in = true, .dtype = r->dtype)
            != 0)
        return r->err->code;
    return RUN(r, blocks, .y = elem_at(r, g->dz, d->KR), .x = acc_at(r, g->dk, d->KR),
        .T = r->T, .N = 1, .D = d->Dr, .y_row = L, .x_row = L, .acc_in = true,
        .dtype = r->dtype);
}

/* du = W_UV^T do; dW_UV += do u^T, per head. */
static int values_bwd(
    struct mla *m, struct run *r, const struct dims *d, const void *dheads, void *dao)
{
    for (int64_t h = 0; h < d->N; h++) {
        const void *dh = elem_at(r, dheads, h * d->Dv);
        const int64_t at = h * d->Dkv + d->Dn;
        if (head_gemm(r, elem_at(r, dao, h * d->KR), d->N * d->KR, dh, d->N * d->Dv,
                elem_at(r, m->kv_b.p.w, at * d->KR), d->KR, d->Dv, false, d->KR)
                != 0
            || head_dw(r, m, at, dh, d->N * d->Dv, elem_at(r, m->ao, h * d->KR),
                   d->N * d->KR, d->Dv)
                != 0)
            return r->err->code;
    }
    return 0;
}

/* From dq and dz, both still rotated, to da. */
static int project_bwd(struct mla *m, struct run *r, const struct dims *d,
    const struct grads *g, const void *a, void *da)
{
    const int64_t L = d->KR + d->Dr;
    void *dc_q = temp_elem(r, r->T * d->QR), *dq_lat = temp_elem(r, r->T * d->QR);
    if (rotate(r, g->dq, d->N, d->N * d->Dqk, d->Dqk, d->Dn, true) != 0
        || linear_dw(r, &m->q_b, g->dq, r->dtype, m->c_q) != 0
        || linear_dx(r, &m->q_b, g->dq, r->dtype, dc_q, false) != 0
        || norm_bwd(r, &m->q_norm, dc_q, m->q_lat, 0, NULL, dq_lat, 0) != 0
        || linear_dw(r, &m->q_a, dq_lat, r->dtype, a) != 0
        || linear_dx(r, &m->q_a, dq_lat, r->dtype, da, false) != 0)
        return r->err->code;
    if (rotate(r, g->dz, 1, L, 0, d->KR, true) != 0
        || norm_bwd(r, &m->kv_norm, g->dc_kv, m->z, L, NULL, g->dz, L) != 0
        || linear_dw(r, &m->kv_a, g->dz, r->dtype, a) != 0)
        return r->err->code;
    return linear_dx(r, &m->kv_a, g->dz, r->dtype, da, true);
}

int mla_bwd(struct mla *m, struct run *r, const void *a, const int32_t *index,
    const void *dy, void *da)
{
    const struct dims d = dims_of(r);
    const size_t mark = r->temp.at;
    struct grads g = {.dheads = temp_elem(r, r->T * d.N * d.Dv),
        .daq = temp_elem(r, r->T * d.N * m->Dq),
        .dk = temp_acc(r, r->T * m->Nk * m->Dq),
        .dv = r->o->absorbed ? NULL : temp_acc(r, r->T * m->Nk * m->Dv),
        .dc_kv = temp_elem(r, r->T * d.KR),
        .dz = temp_elem(r, r->T * (d.KR + d.Dr))};
    void *dao = g.dheads;
    if (linear_dw(r, &m->o, dy, r->dtype, m->heads) != 0
        || linear_dx(r, &m->o, dy, r->dtype, g.dheads, false) != 0)
        goto out;
    if (r->o->absorbed) {
        dao = temp_elem(r, r->T * d.N * d.KR);
        if (values_bwd(m, r, &d, g.dheads, dao) != 0)
            goto out;
    }
    if (attend_bwd(m, r, &d, &g, dao, index) != 0
        || (r->o->absorbed ? absorb_bwd : expand_bwd)(m, r, &d, &g) != 0)
        goto out;
    project_bwd(m, r, &d, &g, a, da);
out:
    r->temp.at = mark;
    return r->err->code;
}
