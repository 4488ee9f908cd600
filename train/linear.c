/* Linear layers and RMSNorm, the two that every module is made of. */
#include "train/module.h"

static int multiply(
    struct run *r, const struct linear *l, const void *x, void *y, enum glm_dtype y_type)
{
    return RUN(r, gemm, .c = y, .a = x, .b = l->p.w, .M = r->T, .N = l->out, .K = l->in,
        .lda = l->in, .ldb = l->in, .ldc = l->out, .trans_b = true, .a_type = r->dtype,
        .b_type = r->dtype, .c_type = y_type);
}

int linear_fwd(struct run *r, const struct linear *l, const void *x, void *y)
{
    return multiply(r, l, x, y, r->dtype);
}

int linear_fwd_acc(struct run *r, const struct linear *l, const void *x, void *y)
{
    return multiply(r, l, x, y, r->acc);
}

int linear_dx(struct run *r, const struct linear *l, const void *dy,
    enum glm_dtype dy_type, void *dx, bool accumulate)
{
    return RUN(r, gemm, .c = dx, .a = dy, .b = l->p.w, .M = r->T, .N = l->in, .K = l->out,
        .lda = l->out, .ldb = l->in, .ldc = l->in, .accumulate = accumulate,
        .a_type = dy_type, .b_type = r->dtype, .c_type = r->dtype);
}

int linear_dw(struct run *r, const struct linear *l, const void *dy,
    enum glm_dtype dy_type, const void *x)
{
    if (!l->p.dw)
        return 0;
    return RUN(r, gemm, .c = l->p.dw, .a = dy, .b = x, .M = l->out, .N = l->in, .K = r->T,
        .lda = l->out, .ldb = l->in, .ldc = l->in, .trans_a = true, .accumulate = true,
        .a_type = dy_type, .b_type = r->dtype, .c_type = r->acc);
}

int norm_fwd(struct run *r, struct norm *n, const void *x, int64_t x_stride, void *y)
{
    n->rstd = keep_acc(r, r->T);
    return norm_again(r, n, x, x_stride, y);
}

int norm_again(
    struct run *r, const struct norm *n, const void *x, int64_t x_stride, void *y)
{
    return RUN(r, rmsnorm_fwd, .y = y, .rstd = n->rstd, .x = x, .w = n->p.w, .T = r->T,
        .D = n->D, .x_stride = x_stride, .eps = (float)n->eps, .dtype = r->dtype);
}

int norm_bwd(struct run *r, const struct norm *n, const void *dy, const void *x,
    int64_t x_stride, const void *dx_add, void *dx, int64_t dx_stride)
{
    return RUN(r, rmsnorm_bwd, .dx = dx, .dw = n->p.dw, .dy = dy, .x = x, .w = n->p.w,
        .rstd = n->rstd, .dx_add = dx_add, .T = r->T, .D = n->D, .x_stride = x_stride,
        .dx_stride = dx_stride, .dtype = r->dtype);
}
