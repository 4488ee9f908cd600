/* Depth 1 of multi-token prediction. */
#include "train/mtp.h"

#include "train/mutate.h"

void mtp_shift(int32_t *out, const int32_t *in, const int32_t *cu_seqlens,
    int64_t sequences, int32_t fill)
{
    for (int64_t s = 0; s < sequences; s++)
        for (int32_t t = cu_seqlens[s]; t < cu_seqlens[s + 1]; t++)
            out[t] = t + 1 < cu_seqlens[s + 1] ? in[t + 1] : fill;
}

int mtp_embedding_bwd(struct run *r, const struct model_param *embedding,
    const int32_t *ids, const void *dx)
{
    return RUN(r, embedding_bwd, .dtable = embedding->dw, .dy = dx, .ids = ids, .T = r->T,
        .V = r->c->vocab_size, .H = r->c->hidden_size,
        .skip_id = r->o->zero_padding_row_grad ? r->c->pad_token_id : -1,
        .dtype = r->dtype);
}

/* Column of eh_proj's input at which the embedding and the hidden state begin. */
static void order(const struct run *r, int64_t *embedding, int64_t *hidden)
{
#ifdef MUTATE_MTP_ORDER
    *embedding = r->c->hidden_size;
    *hidden = 0;
#else
    *embedding = 0;
    *hidden = r->c->hidden_size;
#endif
}

static int normed_half(
    struct run *r, struct norm *n, const void *x, void *cat, int64_t at)
{
    const int64_t H = r->c->hidden_size;
    const size_t mark = r->temp.at;
    void *y = temp_elem(r, r->T * H);
    if (norm_fwd(r, n, x, 0, y) == 0)
        (void)RUN(r, blocks, .y = elem_at(r, cat, at), .x = y, .T = r->T, .N = 1, .D = H,
            .y_row = 2 * H, .x_row = H, .dtype = r->dtype);
    r->temp.at = mark;
    return r->err->code;
}

int mtp_fwd(struct mtp *m, struct run *r, const struct model_param *embedding,
    const void *hidden, const int32_t *ids, const int32_t *target,
    const int32_t *given_index, const int32_t *given_expert)
{
    const int64_t H = r->c->hidden_size, n = r->T * H;
    int64_t e_at, h_at;
    order(r, &e_at, &h_at);
    m->hidden = hidden;
    m->ids = ids;
    m->e = keep_elem(r, n);
    m->cat = keep_elem(r, 2 * n);
    m->u = keep_elem(r, n);
    m->y = keep_elem(r, n);
    m->out = keep_elem(r, n);
    if (RUN(r, embedding_fwd, .y = m->e, .table = embedding->w, .ids = ids, .T = r->T,
            .V = r->c->vocab_size, .H = H, .dtype = r->dtype)
            != 0
        || normed_half(r, &m->enorm, m->e, m->cat, e_at) != 0
        || normed_half(r, &m->hnorm, hidden, m->cat, h_at) != 0
        || linear_fwd(r, &m->eh_proj, m->cat, m->u) != 0
        || layer_fwd(&m->layer, r, m->u, NULL, given_index, given_expert, m->y) != 0
        || norm_fwd(r, &m->norm, m->y, 0, m->out) != 0)
        return r->err->code;
    return r->o->stage == MODEL_TRAIN_INDEXER ? 0 : head_fwd(&m->head, r, m->out, target);
}

/* dx [T,H] = du times one half of eh_proj's columns. */
static int half_dx(
    struct run *r, const struct mtp *m, const void *du, int64_t at, void *dx)
{
    const int64_t H = r->c->hidden_size;
    return RUN(r, gemm, .c = dx, .a = du, .b = elem_at(r, m->eh_proj.p.w, at), .M = r->T,
        .N = H, .K = H, .lda = H, .ldb = 2 * H, .ldc = H, .a_type = r->dtype,
        .b_type = r->dtype, .c_type = r->dtype);
}

int mtp_bwd(struct mtp *m, struct run *r, const struct model_param *embedding,
    double scale, void *dhidden)
{
    const int64_t n = r->T * r->c->hidden_size;
    const size_t mark = r->temp.at;
    void *d1 = temp_elem(r, n), *d2 = temp_elem(r, n);
    int64_t e_at, h_at;
    order(r, &e_at, &h_at);
    if (head_bwd(&m->head, r, m->out, scale, d1) == 0
        && norm_bwd(r, &m->norm, d1, m->y, 0, NULL, d2, 0) == 0
        && layer_bwd(&m->layer, r, d2, d1) == 0
        && linear_dw(r, &m->eh_proj, d1, r->dtype, m->cat) == 0
        && half_dx(r, m, d1, h_at, d2) == 0
        && norm_bwd(r, &m->hnorm, d2, m->hidden, 0, NULL, dhidden, 0) == 0
        && half_dx(r, m, d1, e_at, d2) == 0
        && norm_bwd(r, &m->enorm, d2, m->e, 0, NULL, d1, 0) == 0)
        mtp_embedding_bwd(r, embedding, m->ids, d1);
    r->temp.at = mark;
    return r->err->code;
}
