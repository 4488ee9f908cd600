/* What the modules share: the run of one step, a parameter as they see it, linear layers.
 *
 * A module is a struct of its parameters and of what its forward recorded. <module>_fwd records what
 * <module>_bwd needs in run.keep, which lasts until the next forward; run.temp holds what a function
 * needs while it runs, and each function puts it back as it was. Nothing else is allocated.
 * Every call to an operation goes through RUN, so a module knows no processor. Functions return 0
 * or run.err's code. Activations and their gradients are elem, statistics and gradients of
 * parameters acc (kernels/ops.h). */
#ifndef TRAIN_MODULE_H
#define TRAIN_MODULE_H

#include "ckpt/ckpt.h"
#include "kernels/kernels.h"
#include "train/arena.h"
#include "train/model.h"

struct run {
    const struct kernels *k;
    glm_stream stream;
    struct glm_error *err;
    const struct model_config *c;
    const struct model_options *o;
    enum glm_dtype dtype, acc;
    struct arena keep, temp;
    int64_t T, S, K; /* tokens, sequences, keys a row may choose */
    const int32_t *cu_seqlens;
    const void *cos, *sin;
    double indexer_scale; /* what KL's gradient is multiplied by */
    bool dry;             /* nothing may be read */
    bool late;            /* the heads' losses come with backward */
};

/* What lies above the temporary memory in use is scratch memory of the operation. */
static inline void run_lend(const struct run *r)
{
    if (r->k->lend != NULL)
        r->k->lend(r->stream, r->temp.base, r->temp.at, r->temp.size);
}

#define RUN(r, op, ...)                                                                  \
    (run_lend(r), (r)->k->op(&(struct op){__VA_ARGS__}, (r)->stream, (r)->err))

static inline void *keep_elem(struct run *r, int64_t n)
{
    return arena_take(&r->keep, (size_t)n * glm_dtype_size(r->dtype));
}

/* Of what backward can make again. */
static inline bool run_lean(const struct run *r)
{
    return r->o->lean && !r->o->inference;
}

static inline void *lean_elem(struct run *r, int64_t n)
{
    return arena_take(
        run_lean(r) ? &r->temp : &r->keep, (size_t)n * glm_dtype_size(r->dtype));
}

static inline void *keep_acc(struct run *r, int64_t n)
{
    return arena_take(&r->keep, (size_t)n * glm_dtype_size(r->acc));
}

static inline int32_t *keep_ids(struct run *r, int64_t n)
{
    return arena_take(&r->keep, (size_t)n * sizeof(int32_t));
}

static inline void *temp_elem(struct run *r, int64_t n)
{
    return arena_take(&r->temp, (size_t)n * glm_dtype_size(r->dtype));
}

static inline void *temp_acc(struct run *r, int64_t n)
{
    return arena_take(&r->temp, (size_t)n * glm_dtype_size(r->acc));
}

/* Element i of an array of elem; of acc. */
static inline void *elem_at(const struct run *r, const void *p, int64_t i)
{
    return (char *)(uintptr_t)p + (size_t)i * glm_dtype_size(r->dtype);
}

static inline void *acc_at(const struct run *r, const void *p, int64_t i)
{
    return (char *)(uintptr_t)p + (size_t)i * glm_dtype_size(r->acc);
}

/* A linear layer y = x W^T, W [out,in], no bias: rows, in, out as in ops.h. */
struct linear {
    struct model_param p;
    int64_t in, out;
};

int linear_fwd(struct run *r, const struct linear *l, const void *x, void *y);
/* The same with a result in acc. */
int linear_fwd_acc(struct run *r, const struct linear *l, const void *x, void *y);
/* dx = dy W, or dx += dy W (rounded to elem again); dy of type dy_type. */
int linear_dx(struct run *r, const struct linear *l, const void *dy,
    enum glm_dtype dy_type, void *dx, bool accumulate);
/* dW += dy^T x; nothing for a frozen parameter. */
int linear_dw(struct run *r, const struct linear *l, const void *dy,
    enum glm_dtype dy_type, const void *x);

/* RMSNorm with its statistics. x rows lie x_stride apart (0: D). */
struct norm {
    struct model_param p;
    int64_t D;
    double eps;
    void *rstd;
};

int norm_fwd(struct run *r, struct norm *n, const void *x, int64_t x_stride, void *y);
/* The same y again, with the same statistics in the same place. */
int norm_again(
    struct run *r, const struct norm *n, const void *x, int64_t x_stride, void *y);
/* dx (rows dx_stride apart) = gradient + dx_add (NULL: none). */
int norm_bwd(struct run *r, const struct norm *n, const void *dy, const void *x,
    int64_t x_stride, const void *dx_add, void *dx, int64_t dx_stride);

#endif
