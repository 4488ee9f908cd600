/* SwiGLU and its three matrices. */
#include "train/mlp.h"

int mlp_act_fwd(struct run *r, const void *g, const void *u, void *h, int64_t n)
{
    return RUN(r, swiglu_fwd, .h = h, .a = g, .b = u, .n = n, .dtype = r->dtype);
}

int mlp_act_bwd(struct run *r, const void *g, const void *u, const void *dh, void *dg,
    void *du, int64_t n)
{
    return RUN(r, swiglu_bwd, .da = dg, .db = du, .dh = dh, .a = g, .b = u, .n = n,
        .dtype = r->dtype);
}

int mlp_fwd(struct mlp *m, struct run *r, const void *x, void *y)
{
    const int64_t n = r->T * m->gate.out;
    const size_t mark = r->temp.at;
    m->g = keep_elem(r, n);
    m->u = keep_elem(r, n);
    m->h = lean_elem(r, n);
    if (linear_fwd(r, &m->gate, x, m->g) == 0 && linear_fwd(r, &m->up, x, m->u) == 0
        && mlp_act_fwd(r, m->g, m->u, m->h, n) == 0)
        linear_fwd(r, &m->down, m->h, y);
    r->temp.at = mark;
    return r->err->code;
}

int mlp_bwd(struct mlp *m, struct run *r, const void *x, const void *dy, void *dx)
{
    const int64_t n = r->T * m->gate.out;
    const size_t mark = r->temp.at;
    void *dh = temp_elem(r, n), *dg = temp_elem(r, n), *du = temp_elem(r, n);
    if (run_lean(r))
        m->h = temp_elem(r, n);
    if ((!run_lean(r) || mlp_act_fwd(r, m->g, m->u, m->h, n) == 0)
        && linear_dw(r, &m->down, dy, r->dtype, m->h) == 0
        && linear_dx(r, &m->down, dy, r->dtype, dh, false) == 0
        && mlp_act_bwd(r, m->g, m->u, dh, dg, du, n) == 0
        && linear_dw(r, &m->gate, dg, r->dtype, x) == 0
        && linear_dw(r, &m->up, du, r->dtype, x) == 0
        && linear_dx(r, &m->gate, dg, r->dtype, dx, false) == 0)
        linear_dx(r, &m->up, du, r->dtype, dx, true);
    r->temp.at = mark;
    return r->err->code;
}
