/* Tokens go to their experts as rows sorted by expert, so each projection is one grouped product. */
#include "train/moe.h"

#include "train/mutate.h"

/* ---- forward ---------------------------------------------------------------------------------- */

static int route(struct moe *m, struct run *r, const void *x, const int32_t *given)
{
    const struct model_config *c = r->c;
    const int64_t E = c->n_routed_experts, K = c->num_experts_per_tok;
    const size_t mark = r->temp.at;
    void *logit = temp_acc(r, r->T * E);
    int32_t *expert = keep_ids(r, r->T * K);
    m->score = keep_acc(r, r->T * E);
    m->weight = keep_acc(r, r->T * K);
    m->token = keep_ids(r, r->T * K);
    m->slot = keep_ids(r, r->T * K);
    m->row = keep_ids(r, r->T * K);
    m->offset = keep_ids(r, E + 1);
    m->expert = expert;
    if (given
        && r->k->to_device(
               expert, given, (size_t)(r->T * K) * sizeof *expert, r->stream, r->err)
            != 0)
        return r->err->code;
    if (linear_fwd_acc(r, &m->router, x, logit) == 0
        && RUN(r, router_fwd, .score = m->score, .weight = m->weight, .expert = expert,
               .logit = logit, .bias = m->bias, .T = r->T, .E = E, .K = K,
               .groups = c->n_group, .topk_groups = c->topk_group,
               .factor = c->routed_scaling_factor, .norm = c->norm_topk_prob,
               .given = given != NULL, .dtype = r->dtype)
            == 0)
        (void)RUN(r, moe_plan, .token = m->token, .slot = m->slot, .row = m->row,
            .offset = m->offset, .expert = m->expert, .T = r->T, .E = E, .K = K);
    r->temp.at = mark;
    return r->err->code;
}

/* out rows = in rows times each expert's matrix, transposed (NT) or not (NN). */
static int grouped(struct run *r, const struct moe *m, enum group_kind kind,
    const void *in, int64_t width, const void *w, void *out, int64_t out_width,
    bool accumulate)
{
    return RUN(r, grouped_gemm, .c = out, .a = in, .b = w, .offset = m->offset,
        .rows = r->T * r->c->num_experts_per_tok, .G = r->c->n_routed_experts,
        .N = out_width, .K = width, .accumulate = accumulate, .kind = kind,
        .a_type = r->dtype, .b_type = r->dtype, .c_type = r->dtype);
}

static int gather(const struct moe *m, struct run *r, const void *x)
{
    return RUN(r, moe_gather, .y = m->x, .x = x, .token = m->token, .T = r->T,
        .rows = r->T * r->c->num_experts_per_tok, .H = r->c->hidden_size,
        .dtype = r->dtype);
}

static int experts_fwd(struct moe *m, struct run *r, const void *x)
{
    const int64_t rows = r->T * r->c->num_experts_per_tok;
    const int64_t H = r->c->hidden_size, M = r->c->moe_intermediate_size;
    m->x = lean_elem(r, rows * H);
    m->g = keep_elem(r, rows * M);
    m->u = keep_elem(r, rows * M);
    m->h = lean_elem(r, rows * M);
    m->f = keep_elem(r, rows * H);
    if (gather(m, r, x) != 0
        || grouped(r, m, GROUP_NT, m->x, H, m->gate.w, m->g, M, false) != 0
        || grouped(r, m, GROUP_NT, m->x, H, m->up.w, m->u, M, false) != 0
        || mlp_act_fwd(r, m->g, m->u, m->h, rows * M) != 0)
        return r->err->code;
    return grouped(r, m, GROUP_NT, m->h, M, m->down.w, m->f, H, false);
}

#ifdef MUTATE_SHARED_SCALED
static void scale_shared(struct run *r, void *shared)
{
    for (int64_t i = 0; !r->dry && r->dtype == GLM_F32 && i < r->T * r->c->hidden_size;
         i++)
        ((float *)shared)[i] *= (float)r->c->routed_scaling_factor;
}
#endif

int moe_fwd(struct moe *m, struct run *r, const void *x, const int32_t *given, void *y)
{
    const int64_t K = r->c->num_experts_per_tok, H = r->c->hidden_size;
    const size_t mark = r->temp.at;
    void *shared = m->shared.gate.out > 0 ? temp_elem(r, r->T * H) : NULL;
    if (route(m, r, x, given) != 0 || experts_fwd(m, r, x) != 0
        || (shared && mlp_fwd(&m->shared, r, x, shared) != 0))
        goto out;
#ifdef MUTATE_SHARED_SCALED
    scale_shared(r, shared);
#endif
    (void)RUN(r, moe_combine_fwd, .y = y, .f = m->f, .shared = shared,
        .weight = m->weight, .row = m->row, .T = r->T, .K = K, .H = H,
        .hf_rounding = r->o->hf_rounding, .dtype = r->dtype);
out:
    r->temp.at = mark;
    return r->err->code;
}

/* ---- backward --------------------------------------------------------------------------------- */

/* dW[e] += dy_e^T x_e. */
static int grouped_dw(struct run *r, const struct moe *m, const void *dy, int64_t out,
    const void *x, int64_t in, void *dw)
{
    if (!dw)
        return 0;
    return RUN(r, grouped_gemm, .c = dw, .a = dy, .b = x, .offset = m->offset,
        .rows = r->T * r->c->num_experts_per_tok, .G = r->c->n_routed_experts, .N = out,
        .K = in, .accumulate = true, .kind = GROUP_TN, .a_type = r->dtype,
        .b_type = r->dtype, .c_type = r->acc);
}

/* df [T*K,H] -> dx [T*K,H] in its place, and the experts' gradients; x [T,H] as in forward. Between
 * the two, where the run is lean, the gathered rows lie there. */
static int experts_bwd(struct moe *m, struct run *r, const void *x, void *df)
{
    const int64_t rows = r->T * r->c->num_experts_per_tok;
    const int64_t H = r->c->hidden_size, M = r->c->moe_intermediate_size;
    const size_t mark = r->temp.at;
    void *dh = temp_elem(r, rows * M), *dg = temp_elem(r, rows * M),
         *du = temp_elem(r, rows * M);
    void *dx = df;
    if (run_lean(r)) {
        m->x = df;
        m->h = temp_elem(r, rows * M);
        if (mlp_act_fwd(r, m->g, m->u, m->h, rows * M) != 0)
            goto out;
    }
    if (grouped_dw(r, m, df, H, m->h, M, m->down.dw) == 0
        && grouped(r, m, GROUP_NN, df, H, m->down.w, dh, M, false) == 0
        && mlp_act_bwd(r, m->g, m->u, dh, dg, du, rows * M) == 0
        && (!run_lean(r) || gather(m, r, x) == 0)
        && grouped_dw(r, m, dg, M, m->x, H, m->gate.dw) == 0
        && grouped_dw(r, m, du, M, m->x, H, m->up.dw) == 0
        && grouped(r, m, GROUP_NN, dg, M, m->gate.w, dx, H, false) == 0)
        grouped(r, m, GROUP_NN, du, M, m->up.w, dx, H, true);
out:
    r->temp.at = mark;
    return r->err->code;
}

/* dweight [T,K] -> dx [T,H], and the router's gradient. */
static int route_bwd(
    struct moe *m, struct run *r, const void *x, const void *dweight, void *dx)
{
    const int64_t E = r->c->n_routed_experts, K = r->c->num_experts_per_tok;
    const size_t mark = r->temp.at;
    void *dlogit = temp_acc(r, r->T * E);
    if (RUN(r, router_bwd, .dlogit = dlogit, .dweight = dweight, .score = m->score,
            .weight = m->weight, .expert = m->expert, .T = r->T, .E = E, .K = K,
            .factor = r->c->routed_scaling_factor, .norm = r->c->norm_topk_prob,
            .dtype = r->dtype)
            == 0
        && linear_dw(r, &m->router, dlogit, r->acc, x) == 0)
        linear_dx(r, &m->router, dlogit, r->acc, dx, false);
    r->temp.at = mark;
    return r->err->code;
}

int moe_bwd(struct moe *m, struct run *r, const void *x, const void *dy, void *dx)
{
    const int64_t K = r->c->num_experts_per_tok, H = r->c->hidden_size;
    const size_t mark = r->temp.at;
    void *df = temp_elem(r, r->T * K * H), *dweight = temp_acc(r, r->T * K);
    void *drouter = temp_elem(r, r->T * H);
    void *dshared = m->shared.gate.out > 0 ? temp_elem(r, r->T * H) : NULL;
    if (RUN(r, moe_combine_bwd, .df = df, .dweight = dweight, .dy = dy, .f = m->f,
            .weight = m->weight, .row = m->row, .T = r->T, .K = K, .H = H,
            .dtype = r->dtype)
            != 0
        || experts_bwd(m, r, x, df) != 0 || route_bwd(m, r, x, dweight, drouter) != 0
        || (dshared && mlp_bwd(&m->shared, r, x, dy, dshared) != 0))
        goto out;
    (void)RUN(r, moe_gather_bwd, .dx = dx, .dy = df, .add1 = dshared, .add2 = drouter,
        .row = m->row, .T = r->T, .K = K, .H = H, .dtype = r->dtype);
out:
    r->temp.at = mark;
    return r->err->code;
}
