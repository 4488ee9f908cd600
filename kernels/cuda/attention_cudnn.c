#include "kernels/cuda/attention_cudnn.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/cudnn.h"

/* ---- graphs ----------------------------------------------------------------------------------- */

/* The tensors that a run fills in have these ids: a graph names them first, in this order. */
enum { F_Q = 1, F_K, F_V, F_SCALE, F_NONE, F_LSE, F_O, F_END };

struct shape {
    int64_t T, N, D, k_stride, v_stride;
};

static int tensor(struct cudnn_graph *g, enum cudnn_type type, enum cudnn_place place,
    int64_t heads, int64_t rows, int64_t cols, int64_t head_stride, int64_t row_stride,
    int64_t col_stride)
{
    const int64_t dims[4] = {1, heads, rows, cols};
    const int64_t strides[4] = {rows * cols * heads, head_stride, row_stride, col_stride};

    return cudnn_tensor(g, type, place, dims, strides);
}

/* Rows of all heads, as operations hold them; transposed where the graph wants columns first. */
static int rows_of(
    struct cudnn_graph *g, const struct shape *s, enum cudnn_type type, int64_t stride)
{
    return tensor(g, type, CUDNN_MEMORY, s->N, s->T, s->D, s->D, stride, 1);
}

static int cols_of(struct cudnn_graph *g, const struct shape *s, int64_t stride)
{
    return tensor(g, CUDNN_BF16, CUDNN_MEMORY, s->N, s->D, s->T, s->D, 1, stride);
}

static int stats_of(struct cudnn_graph *g, const struct shape *s)
{
    return tensor(g, CUDNN_F32, CUDNN_MEMORY, s->N, s->T, 1, 1, s->N, 1);
}

static int number(struct cudnn_graph *g)
{
    return tensor(g, CUDNN_F32, CUDNN_NUMBER, 1, 1, 1, 1, 1, 1);
}

/* [N,T,T] between operations. */
static int scores(struct cudnn_graph *g, const struct shape *s, enum cudnn_type type)
{
    return tensor(g, type, CUDNN_BETWEEN, s->N, s->T, s->T, s->T * s->T, s->T, 1);
}

/* [N,T] between operations. */
static int column(struct cudnn_graph *g, const struct shape *s)
{
    return tensor(g, CUDNN_F32, CUDNN_BETWEEN, s->N, s->T, 1, s->T, 1, 1);
}

/* y = x `mode` b, [N,T,T]. */
static int apply(struct cudnn_graph *g, const struct shape *s, enum cudnn_pointwise mode,
    int x, int b, enum cudnn_type type)
{
    const int y = scores(g, s, type);

    cudnn_pointwise(g, mode, CUDNN_F32, 0, x, b, 0, y);
    return y;
}

/* x where the key's number is at most the row's, else `none`. */
static int causal(struct cudnn_graph *g, const struct shape *s, int x, int none)
{
    const int row = scores(g, s, CUDNN_I32), col = scores(g, s, CUDNN_I32);
    const int seen = scores(g, s, CUDNN_BOOL), y = scores(g, s, CUDNN_F32);

    cudnn_pointwise(g, CUDNN_INDEX, CUDNN_F32, 2, x, 0, 0, row);
    cudnn_pointwise(g, CUDNN_INDEX, CUDNN_F32, 3, x, 0, 0, col);
    cudnn_pointwise(g, CUDNN_AT_LEAST, CUDNN_BOOL, 0, row, col, 0, seen);
    cudnn_pointwise(g, CUDNN_SELECT, CUDNN_F32, 0, x, none, seen, y);
    return y;
}

static struct cudnn_graph *fwd_graph(const struct cudnn *c, const struct shape *s)
{
    struct cudnn_graph *const g = cudnn_graph_new(c);

    if (g == NULL)
        return NULL;
    rows_of(g, s, CUDNN_BF16, s->N * s->D);
    cols_of(g, s, s->k_stride);
    rows_of(g, s, CUDNN_BF16, s->v_stride);
    number(g);
    number(g);
    stats_of(g, s);
    rows_of(g, s, CUDNN_BF16, s->N * s->D);

    int x = scores(g, s, CUDNN_F32);
    cudnn_matmul(g, F_Q, F_K, x);
    x = apply(g, s, CUDNN_MUL, x, F_SCALE, CUDNN_F32);
    x = causal(g, s, x, F_NONE);
    const int most = column(g, s), sum = column(g, s), log = column(g, s);
    cudnn_reduce(g, CUDNN_MOST, x, most);
    x = apply(g, s, CUDNN_SUB, x, most, CUDNN_F32);
    x = apply(g, s, CUDNN_EXP, x, 0, CUDNN_F32);
    cudnn_reduce(g, CUDNN_SUM, x, sum);
    cudnn_pointwise(g, CUDNN_LOG, CUDNN_F32, 0, sum, 0, 0, log);
    cudnn_pointwise(g, CUDNN_ADD, CUDNN_F32, 0, most, log, 0, F_LSE);
    x = apply(g, s, CUDNN_DIV, x, sum, CUDNN_BF16);
    cudnn_matmul(g, x, F_V, F_O);
    return g;
}

/* ---- plans, one for each shape ---------------------------------------------------------------- */

enum {
    PLANS = 32,
    OLDEST = 91002
}; /* 9.10.0 and 9.10.1 are wrong, older ones mask by a number */

struct kept {
    struct shape shape;
    struct cudnn_plan *plan; /* NULL: cuDNN does not take this shape */
    bool used;
};

struct attention_cudnn {
    struct cudnn *lib;
    struct kept kept[PLANS];
    int next;
};

struct attention_cudnn *attention_cudnn_new(struct glm_error *err)
{
    struct attention_cudnn *const a = calloc(1, sizeof *a);

    if (a == NULL)
        glm_fail(err, GLM_ENOMEM, "no memory for attention's plans");
    else if ((a->lib = cudnn_new(OLDEST, err)) != NULL)
        return a;
    attention_cudnn_free(a);
    return NULL;
}

void attention_cudnn_free(struct attention_cudnn *a)
{
    if (a == NULL)
        return;
    for (int i = 0; i < PLANS; i++)
        cudnn_plan_free(a->kept[i].plan);
    cudnn_free(a->lib);
    free(a);
}

long attention_cudnn_version(const struct attention_cudnn *a)
{
    return cudnn_version(a->lib);
}

/* NULL: cuDNN does not take the shape, or the reason is in err. */
static const struct cudnn_plan *plan_of(
    struct attention_cudnn *a, const struct shape *s, struct glm_error *err)
{
    for (int i = 0; i < PLANS; i++) {
        const struct kept *const k = &a->kept[i];
        if (k->used && memcmp(&k->shape, s, sizeof *s) == 0)
            return k->plan;
    }
    struct kept *const k = &a->kept[a->next++ % PLANS];
    cudnn_plan_free(k->plan);
    k->shape = *s;
    k->plan = cudnn_plan_new(fwd_graph(a->lib, s), err);
    k->used = k->plan != NULL || err->code == GLM_OK;
    return k->plan;
}

bool attention_cudnn_fwd(
    const struct attention_fwd *p, glm_stream stream, struct glm_error *err)
{
    static const int64_t ids[] = {F_Q, F_K, F_V, F_SCALE, F_NONE, F_LSE, F_O};
    const struct shape shape = {p->T, p->N, p->Dq, p->k_stride, p->v_stride};
    const struct cudnn_plan *const plan = plan_of(stream->cudnn, &shape, err);
    const float scale = (float)p->scale, none = -INFINITY;

    if (plan == NULL)
        return err->code != GLM_OK;
    const void *const pointers[] = {p->q, p->k, p->v, &scale, &none, p->lse, p->o};
    const size_t bytes = cudnn_workspace(plan);
    void *const space = cuda_scratch(stream, bytes > 0 ? bytes : 1, err);
    if (space != NULL && !stream->dry)
        cudnn_run(plan, stream->stream, ids, pointers, F_END - 1, space, err);
    return true;
}
