/* Every operation of training, once: formula, shapes, element types, numerics, order of sums.
 *
 * Types. `dtype` is the type of elements: BF16, F32, or F64 (on the CPU, for finite differences).
 * "elem" below is an array of that type; "acc" is F32, or F64 with F64: sums, statistics, gradients
 * of parameters. Arithmetic is in acc; an elem is rounded when it is stored, so the stores named in
 * a formula are the rounding points of BF16 mode (DESIGN.md 5; spec/glm-5.2.md 3 and 5).
 * Layout. Row-major, no padding, unless a stride is a parameter. Rows are tokens: T of them, of S
 * packed sequences: cu_seqlens[0] = 0 < ... < cu_seqlens[S] = T. Attention never leaves a sequence.
 * Order. Sums run in ascending index in a fixed tree that depends on shapes alone: never on the
 * number of threads, and a row's bits never on the other rows. `+=` outputs accumulate onto what is
 * there; the others are overwritten.
 * Errors. Shapes that cannot be and values out of range are GLM_EFORMAT; outputs are then undefined.
 *
 * Letters: T tokens, H hidden, V vocabulary, N heads, E experts, K chosen (keys or experts). */
#ifndef KERNELS_OPS_H
#define KERNELS_OPS_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/base/dtype.h"
#include "kernels/base/error.h"
#include "kernels/base/stream.h"

/* ---- embedding -------------------------------------------------------------------------------- */

struct embedding_fwd {  /* y[t] = table[ids[t]] */
    void *y;            /* [T,H] elem */
    const void *table;  /* [V,H] elem */
    const int32_t *ids; /* [T] in [0,V) */
    int64_t T, V, H;
    enum glm_dtype dtype;
};

struct embedding_bwd { /* dtable[ids[t]] += dy[t], rows of one id in ascending t */
    void *dtable;      /* [V,H] acc, += */
    const void *dy;    /* [T,H] elem */
    const int32_t *ids;
    int64_t T, V, H;
    int64_t skip_id; /* gets no gradient (padding_idx); -1: none */
    enum glm_dtype dtype;
};

/* ---- norms ------------------------------------------------------------------------------------ */

/* rstd[t] = 1/sqrt(mean_d x^2 + eps);  y = w * low(x * rstd)  (low: rounding to elem) */
struct rmsnorm_fwd {
    void *y, *rstd;    /* [T,D] elem; [T] acc */
    const void *x, *w; /* [T,D], [D] elem; rows of x lie x_stride elements apart (0: D) */
    int64_t T, D, x_stride;
    float eps;
    enum glm_dtype dtype;
};

/* d = dy*w; xh = x*rstd; dx = rstd*(d - xh*mean(d*xh)) [+ dx_add]; dw += sum_t dy*low(xh) */
struct rmsnorm_bwd {
    void *dx; /* [T,D] elem, rows dx_stride apart (0: D) */
    void *dw; /* [D] acc, += */
    const void *dy, *x, *w, *rstd;
    const void *dx_add; /* [T,D] elem, added before the one rounding; NULL: none */
    int64_t T, D, x_stride, dx_stride;
    enum glm_dtype dtype;
};

/* LayerNorm: mean and biased variance over D, eps inside the root; y = low(xh*w + b) */
struct layernorm_fwd {
    void *y, *mean, *rstd; /* [T,D] elem; [T] acc each */
    const void *x, *w, *b;
    int64_t T, D;
    float eps;
    enum glm_dtype dtype;
};

struct layernorm_bwd {
    void *dx, *dw, *db; /* [T,D] elem; [D] acc +=, [D] acc += */
    const void *dy, *x, *w, *mean, *rstd;
    int64_t T, D;
    enum glm_dtype dtype;
};

/* ---- linear ----------------------------------------------------------------------------------- */

/* C[M,N] = op(A) op(B) (+ C if accumulate), sums over K in acc. op: transposed if set.
 * Linear layers: y = x W^T: A = x [T,in], B = W [out,in], trans_b. dx = dy W. dW += dy^T x. */
struct gemm {
    void *c;
    const void *a, *b;
    int64_t M, N, K;
    int64_t lda, ldb, ldc; /* elements between rows as stored */
    bool trans_a, trans_b, accumulate;
    /* BF16 or F32 inputs and outputs mixed; or all F64 */
    enum glm_dtype a_type, b_type, c_type;
};

/* The same per group g: rows [offset[g], offset[g+1]) of the token side, weight g of a stack.
 * kind NN/NT: C rows of group g = A rows * B[g] (or its transpose). TN: C[g] += A_g^T B_g. */
enum group_kind { GROUP_NT, GROUP_NN, GROUP_TN };
struct grouped_gemm {
    void *c;
    const void *a, *b;
    const int32_t *offset; /* [G+1], ascending */
    int64_t rows; /* of the token side as it lies in memory, >= offset[G]; 0: not known,
                              which costs a GPU its fastest ways */
    int64_t G, N, K; /* NT: A [n,K], B [G,N,K], C [n,N]; NN: A [n,K], B [G,K,N], C [n,N];
                              TN: A [n,N], B [n,K], C [G,N,K] */
    bool accumulate;
    enum group_kind kind;
    enum glm_dtype a_type, b_type, c_type;
};

/* ---- small elementwise ------------------------------------------------------------------------ */

struct add { /* y = low(a + b); y may be a or b */
    void *y;
    const void *a, *b;
    int64_t n;
    enum glm_dtype dtype;
};

struct convert { /* y = x in another type, round to nearest even */
    void *y;
    const void *x;
    int64_t n;
    enum glm_dtype from, to;
};

/* y[t,n,:] = low(x[t,n,:] + add[t,n,:]): blocks of D elements moved between layouts; row t, head n
 * begins at t*row + n*head. A head stride of 0 in x serves one block to all heads. sum: y[t,:] =
 * low(sum_n x[t,n,:]), n ascending. What lies between the blocks of y is left alone. */
struct blocks {
    void *y;             /* elem */
    const void *x, *add; /* elem, or acc if acc_in; add may be NULL */
    int64_t T, N, D, y_row, y_head, x_row, x_head, add_row, add_head;
    bool acc_in, sum; /* sum: y_head is not used, add must be NULL */
    enum glm_dtype dtype;
};

struct swiglu_fwd { /* h = low(low(silu(a)) * b), silu(a) = a*sigmoid(a) */
    void *h;
    const void *a, *b; /* [n] elem */
    int64_t n;
    enum glm_dtype dtype;
};

struct swiglu_bwd { /* da = dh*b*s*(1 + a*(1-s)); db = dh*a*s; s = sigmoid(a) */
    void *da, *db;
    const void *dh, *a, *b;
    int64_t n;
    enum glm_dtype dtype;
};

/* ---- rotary position ------------------------------------------------------------------------- */

/* angle = f32(position) * f32(theta^(-2j/D)) as one F32 product (F64 in F64); cos, sin rounded to
 * elem and stored as acc. */
struct rope_table {
    void *cos, *sin;          /* [T, D/2] acc */
    const int32_t *positions; /* [T] */
    int64_t T, D;
    double theta;
    enum glm_dtype dtype;
};

/* In place on pairs (2j, 2j+1) of D dims that begin at `at` in each head:
 *   u = low(low(x0 cos) - low(x1 sin)),  w = low(low(x1 cos) + low(x0 sin)); inverse: sin negated. */
struct rope {
    void *x;               /* row t, head n at t*row_stride + n*head_stride, elem */
    const void *cos, *sin; /* [T, D/2] acc */
    int64_t T, N, row_stride, head_stride, at, D;
    bool inverse;
    enum glm_dtype dtype;
};

/* ---- attention -------------------------------------------------------------------------------- */

/* Softmax attention of row t over the keys s of its sequence with s <= t (index NULL), or over the
 * set index[t]: rows of the pack, ascending, -1 behind the last, never empty.
 * p = exp(scale*q.k - m) / sum, m the largest; lse = m + log sum; o = low(sum_s low(p) v).
 * One key head (Nk = 1) serves all query heads in the absorbed form; otherwise Nk = N. */
struct attention_fwd {
    void *o, *lse; /* [T,N,Dv] elem; [T,N] acc */
    const void *q, *k,
        *v; /* q [T,N,Dq]; k rows k_stride apart (0: Nk*Dq), [.,Nk,Dq]; v rows
                                 v_stride apart (0: Nk*Dv), [.,Nk,Dv]: v may point into k (latent
                                 keys, Nk = 1) */
    const int32_t *index;      /* [T,K] or NULL */
    const int32_t *cu_seqlens; /* [S+1] */
    int64_t T, S, N, Nk, Dq, Dv, K, k_stride, v_stride;
    double scale;
    enum glm_dtype dtype;
};

/* p = exp(scale*q.k - lse); ds = scale * p * (do.v - do.o); dq = low(sum_s ds k);
 * dk = sum_t ds q, dv = sum_t low(p) do: in ascending t, within t ascending heads (Nk = 1).
 * dv NULL, for Nk = 1 and v = k, Dv <= Dq: what v gets is added onto the first Dv columns of dk. */
struct attention_bwd {
    /* dq [T,N,Dq] elem; dk [T,Nk,Dq], dv [T,Nk,Dv] acc, overwritten; dv may be NULL */
    void *dq, *dk, *dv;
    const void *q, *k, *v, *o, *lse, *do_;
    const int32_t *index;
    const int32_t *cu_seqlens;
    int64_t T, S, N, Nk, Dq, Dv, K, k_stride, v_stride;
    double scale;
    enum glm_dtype dtype;
};

/* ---- indexer ---------------------------------------------------------------------------------- */

/* I[t,s] = sum_n w[t,n] * relu(q[t,n].k[s]) * scale for s <= t of the sequence; the K largest, ties
 * (and -0 = +0) to the lowest s, NaN below every number; written as rows of the pack, ascending, -1
 * behind the last where fewer than K can be seen. Sums over n ascending.
 * scale = (N*D)^(-1/2) is applied to w (DESIGN.md 9), or, hf_scales: D^(-1/2) on q.k before relu and
 * N^(-1/2) on w, as transformers does. */
struct indexer_topk {
    int32_t *index;        /* [T,K] */
    void *score;           /* [T,K] acc, of the chosen, 0 behind them; may be NULL */
    const void *q, *k, *w; /* [T,N,D], [T,D], [T,N] elem */
    const int32_t *cu_seqlens;
    int64_t T, S, N, D, K;
    bool hf_scales;
    enum glm_dtype dtype;
};

/* KL of the indexer's distribution u = softmax(I) against the heads' mean attention p, both over
 * index[t] (sparse) or all visible keys (index NULL, dense); spec/training.md 1.2, 1.4.
 *   A_s = sum_n exp(scale*q.k - lse_n) over the main heads;  p = A / max(sum A, 1e-10)
 *   kl[t] = sum_s p (log max(p,1e-10) - log u);  dI = coeff * (u - p)
 *   iw, iq, ik: gradients through w, relu, q.k; nothing flows into the main heads.
 * The last `fill` rows of each sequence are padding (spec/training.md 2.1): kl 0, no gradient. */
struct indexer_loss {
    void *kl;              /* [T] acc, not times coeff */
    void *dq, *dk, *dw;    /* [T,N,D], [T,D], [T,N] acc, overwritten; all NULL: loss
                                    only. dk: ascending t, then n */
    const void *q, *k, *w; /* the indexer's, elem, as in indexer_topk */
    const void *mq, *mk,
        *lse; /* main attention: [T,MN,MDq], keys as in attention_fwd, [T,MN] acc:
                                    of the same key set */
    const int32_t *index, *cu_seqlens;
    int64_t T, S, N, D, K, MN, MNk, MDq, mk_stride, fill;
    double main_scale, coeff;
    bool hf_scales;
    enum glm_dtype dtype;
};

/* ---- router and experts ----------------------------------------------------------------------- */

/* score = sigmoid(logit); selection by score + bias: groups by the sum of their two largest, the
 * topk_group best kept; then the K largest, ties to the lowest expert. expert[t] ascending by id;
 * weight = factor * score / (sum of chosen scores + 1e-20), or factor * score without norm. */
struct router_fwd {
    void *score, *weight; /* [T,E], [T,K] acc */
    int32_t *expert;      /* [T,K], ascending */
    const void *logit;    /* [T,E] acc */
    const float *bias;    /* [E] */
    int64_t T, E, K, groups, topk_groups;
    double factor;
    bool norm;
    bool given; /* replay: expert is an input */
    enum glm_dtype dtype;
};

struct router_bwd {
    void *dlogit; /* [T,E] acc, zero outside the chosen */
    const void *dweight, *score, *weight;
    const int32_t *expert;
    int64_t T, E, K;
    double factor;
    bool norm;
    enum glm_dtype dtype;
};

/* Rows sorted by (expert, token): row r serves token[r] in its slot[r]; offset [E+1]. */
struct moe_plan {
    int32_t *token, *slot; /* [T*K] */
    int32_t *row;          /* [T,K]: the row of a token's slot */
    int32_t *offset;       /* [E+1] */
    const int32_t *expert; /* [T,K] */
    int64_t T, E, K;
};

struct moe_gather { /* y[r] = x[token[r]] */
    void *y;
    const void *x;
    const int32_t *token; /* [rows] in [0,T) */
    int64_t T, rows, H;
    enum glm_dtype dtype;
};

/* y[t] = low(sum over slots in ascending expert id of weight*f + shared): one rounding; with
 * hf_rounding each product and each sum is rounded, as transformers does. shared may be NULL. */
struct moe_combine_fwd {
    void *y;                /* [T,H] elem */
    const void *f, *shared; /* [T*K,H], [T,H] elem */
    const void *weight;     /* [T,K] acc */
    const int32_t *row;     /* [T,K] */
    int64_t T, K, H;
    bool hf_rounding;
    enum glm_dtype dtype;
};

struct moe_combine_bwd { /* df[row] = low(weight*dy); dweight = dy.f */
    void *df, *dweight;  /* [T*K,H] elem; [T,K] acc */
    const void *dy, *f, *weight;
    const int32_t *row;
    int64_t T, K, H;
    enum glm_dtype dtype;
};

struct moe_gather_bwd {      /* dx[t] = low(sum over slots in order of dy[row] + add) */
    void *dx;                /* [T,H] elem */
    const void *dy;          /* [T*K,H] elem */
    const void *add1, *add2; /* [T,H] elem or NULL: shared expert's and router's part */
    const int32_t *row;
    int64_t T, K, H;
    enum glm_dtype dtype;
};

/* ---- head and loss ---------------------------------------------------------------------------- */

/* Cross-entropy of softmax(h W^T), logits rounded to elem then taken as acc, never all in memory.
 * target -100 (or any negative): the row has loss 0 and no gradient. */
struct linear_ce_fwd {
    void *loss, *lse;      /* [T] acc */
    const void *h, *w;     /* [T,H], [V,H] elem */
    const int32_t *target; /* [T] in [0,V) or negative */
    int64_t T, V, H;
    enum glm_dtype dtype;
};

/* dlogit = scale*(softmax - onehot) for rows with a target. With loss and its_lse, both [T] acc, the
 * forward pass is made here too, from the same logits, and lse is not read: one product less. */
struct linear_ce_bwd {
    void *dh, *dw;        /* [T,H] elem; [V,H] acc, += ; dw may be NULL (detached) */
    void *loss, *its_lse; /* both or neither */
    const void *h, *w, *lse;
    const int32_t *target;
    double scale;
    int64_t T, V, H;
    enum glm_dtype dtype;
};

/* ---- optimizer -------------------------------------------------------------------------------- */

/* What differs from step to step, in the backend's memory: read when an operation runs, not when it
 * is queued, so that a recorded step can run again (kernels.h). */
struct step_rates {
    double lr, decay, grad_scale; /* as in adamw and muon, in whose place they stand */
    double rest1, rest2;          /* 1 - beta1^step, 1 - beta2^step */
    double stop;                  /* not 0: nothing is changed */
};

/* All F32 (F64 with F64). In place on n elements; step counts from 1.
 *   m = beta1*m + (1-beta1)*g;  v = beta2*v + (1-beta2)*g^2
 *   w -= lr * ( m/(1-beta1^step) / (sqrt(v/(1-beta2^step)) + eps) + decay*w ) */
struct adamw {
    void *w, *m, *v;
    void *copy; /* BF16: w as it is now, rounded; NULL: none */
    const void *g;
    int64_t n, step;
    /* g is multiplied by grad_scale first */
    double lr, beta1, beta2, eps, decay, grad_scale;
    const struct step_rates *rates; /* NULL: lr, decay, grad_scale and step as above */
    enum glm_dtype dtype;
};

/* Newton-Schulz orthogonalisation of B matrices [R,C], one behind the other (spec/training.md 4.1):
 *   X = x / max(|x|_F, 1e-15), |x|_F^2 as in sum_squares; then `steps` times, R <= C:
 *   A = X X^T;  B = b A + c A A;  X = a X + B X         (R > C: A = X^T X;  X = a X + X B) */
struct newton_schulz {
    void *o;       /* [B,R,C] acc; may be x */
    const void *x; /* [B,R,C] acc */
    int64_t B, R, C;
    const double (*coeff)[3]; /* [steps] a, b, c */
    int steps;
    /* X, A, B rounded to BF16, each once, after its product. A GPU may make a step's A from the step
     * before (newton.cu), as near to the polynomial. */
    bool low_precision;
    enum glm_dtype dtype;
};

/* One Muon update of B independent matrices [R,C] inside w, m, g, which lie alike:
 *   w -= lr*decay*w;  m += (1-momentum)*(g*grad_scale - m)
 *   u = m, or with nesterov (1-momentum)*g*grad_scale + momentum*m;  w -= lr*factor*NS(u)
 * Row r of matrix b begins at b*batch_stride + (r/run)*run_stride + (r%run)*row_stride elements:
 * rows may be gathered from pieces of `run` rows (0: all R evenly). */
struct muon {
    void *w, *m;
    void *copy; /* BF16, lies like w: w as it is now, rounded; NULL: none */
    const void *g;
    int64_t B, R, C, batch_stride, row_stride, run, run_stride;
    double lr, decay, momentum, grad_scale, factor; /* factor: phi * rho(R,C) */
    const double (*coeff)[3];
    int steps;
    bool nesterov, low_precision;
    const struct step_rates *rates; /* NULL: lr, decay and grad_scale as above */
    enum glm_dtype dtype;
};

/* Sums of squares in F64 of the tiles of B matrices [R,C], one per tile, row-major over [B, tile
 * rows, tile columns]; last tiles are smaller. A tile's elements, row-major, in leaves of 1024:
 * element i of a leaf goes to lane i % 16, ascending; lanes fold in halves (l += l+8, +4, ...); n
 * leaves add up as a binary tree: the first 2^k < n of them, plus the rest. */
struct sum_squares {
    double *out;
    const void *x;
    int64_t B, R, C, batch_stride, row_stride; /* elements between matrices and rows */
    int64_t tile_rows, tile_cols;
    enum glm_dtype dtype;
};

/* ---- what a step decides by itself ------------------------------------------------------------ */

/* out = sum of x in F64: element i goes to lane i % 256, ascending; lanes fold in halves (l += l+128,
 * +64, ...). */
struct total {
    double *out;   /* [1] */
    const void *x; /* [n] */
    int64_t n;
    enum glm_dtype dtype; /* F32 or F64 */
};

/* load[e] += rows of expert e, by moe_plan's offset; with `padded` the last row of each sequence is
 * padding and counts for none of its experts. */
struct expert_load {
    int64_t *load;                      /* [E] += */
    const int32_t *offset;              /* [E+1] */
    const int32_t *expert, *cu_seqlens; /* [T,K], [S+1] */
    int64_t T, S, E, K;
    bool padded;
};

/* bias[e] += rate * sign(mean load - load[e]), exactly in integers, or compared with the mean in F32
 * (sum in ascending e). */
struct router_bias {
    float *bias;         /* [E] */
    const int64_t *load; /* [E] */
    int64_t E;
    double rate;
    bool f32_mean;
    const struct step_rates *rates; /* their stop; NULL: go on */
};

/* The norm of all gradients, and what follows from it, for two groups of tensors. Tensor i has leaves
 * [first[i], first[i+1]), squares' sums of its tiles, which add up as a binary tree (the first 2^k < n
 * of them, plus the rest); tensors of a group add up in ascending order.
 *   norm = scale * sqrt(sum);  clip = min(1, limit/(norm + 1e-6)), 1 without a limit (<= 0)
 * scale is rates[0].grad_scale on entry. rates[i].grad_scale = scale * clip; rates[i].stop = whether a
 * norm or one of `watched` is not finite. */
struct clip {
    struct step_rates *rates; /* [n] */
    double *report;           /* [5]: norm, clip of group 0, of group 1; stop */
    const double *leaf;
    const int64_t *first;     /* [n+1] */
    const int32_t *group;     /* [n]: 0, 1, or -1: none */
    const double *watched;    /* [watch] */
    int64_t n, leaves, watch; /* leaves = first[n] */
    double limit;
};

/* ---- the versions ----------------------------------------------------------------------------- */

/* clang-format off */
#define OPS(X) \
    X(embedding_fwd) X(embedding_bwd) X(rmsnorm_fwd) X(rmsnorm_bwd) X(layernorm_fwd) \
    X(layernorm_bwd) X(gemm) X(grouped_gemm) X(add) X(convert) X(blocks) X(swiglu_fwd) X(swiglu_bwd) \
    X(rope_table) X(rope) X(attention_fwd) X(attention_bwd) X(indexer_topk) X(indexer_loss) \
    X(router_fwd) X(router_bwd) X(moe_plan) X(moe_gather) X(moe_combine_fwd) X(moe_combine_bwd) \
    X(moe_gather_bwd) X(linear_ce_fwd) X(linear_ce_bwd) X(adamw) X(newton_schulz) X(muon) \
    X(sum_squares) X(total) X(expert_load) X(router_bias) X(clip)
/* clang-format on */

/* typedef int rmsnorm_fwd_fn(const struct rmsnorm_fwd *, glm_stream, struct glm_error *); and
 * rmsnorm_fwd_fn cpu_rmsnorm_fwd, cuda_rmsnorm_fwd; and so on. */
#define OPS_DECLARE(name)                                                                \
    typedef int name##_fn(                                                               \
        const struct name *p, glm_stream stream, struct glm_error *err);                 \
    name##_fn cpu_##name;                                                                \
    name##_fn cuda_##name;
OPS(OPS_DECLARE)
#undef OPS_DECLARE

#endif
