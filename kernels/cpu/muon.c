/* Muon and its Newton-Schulz iteration (spec/training.md 4.1).
 *
 * Matrices of a batch are independent. With at least as many of them as threads, each is one
 * thread's; otherwise the threads share each one. Both give the same bits: gemm's do not depend on
 * threads, norms are summed in one order, and all else is elementwise. A matrix with more rows than
 * columns is iterated from the right (X B with A = X^T X), so nothing is transposed. */
#include <pthread.h>
#include <string.h>

#include "kernels/cpu/lanes.h"
#include "kernels/cpu/pool.h"
#include "kernels/cpu/squares.h"

#if !defined(MODE_BF16) /* weights, momentum and gradients are F32 or F64 */

enum { GRAIN = 8192 };

/* ---- elementwise ------------------------------------------------------------------------------ */

struct blend { /* y = alpha*y + beta*x, rounded once if `low` */
    real *y;
    const real *x;
    real alpha, beta;
    bool low;
};

LANES_BODY real rounded(real x)
{
    return (real)bf16_to_f32(bf16_from_f32((float)x));
}

LANES_CLONES static void blend_range(const void *ctx, int64_t begin, int64_t end)
{
    const struct blend *p = ctx;
    real *restrict y = p->y;
    const real *restrict x = p->x;
    const real alpha = p->alpha, beta = p->beta;

    if (p->low) {
        for (int64_t i = begin; i < end; i++)
            y[i] = rounded(alpha * y[i] + beta * x[i]);
    } else {
        for (int64_t i = begin; i < end; i++)
            y[i] = alpha * y[i] + beta * x[i];
    }
}

struct scale { /* y = x / by, rounded if `low` */
    real *y;
    const real *x;
    real by;
    bool low;
};

LANES_CLONES static void scale_range(const void *ctx, int64_t begin, int64_t end)
{
    const struct scale *p = ctx;

    for (int64_t i = begin; i < end; i++) {
        const real q = p->x[i] / p->by;
        p->y[i] = p->low ? rounded(q) : q;
    }
}

/* ---- Newton-Schulz ---------------------------------------------------------------------------- */

/* Memory of one matrix: x and y [R,C], a and b [n,n], n = min(R,C). */
struct space {
    real *x, *y, *a, *b;
};

static int64_t shorter(int64_t R, int64_t C)
{
    return R < C ? R : C;
}

static int space_new(
    struct space *s, int64_t R, int64_t C, glm_stream pool, struct glm_error *err)
{
    const size_t whole = (size_t)R * (size_t)C, n = (size_t)shorter(R, C);

    s->x = pool_scratch(pool, (2 * whole + 2 * n * n) * sizeof(real), err);
    if (s->x == NULL)
        return err->code;
    s->y = s->x + whole;
    s->a = s->y + whole;
    s->b = s->a + n * n;
    return 0;
}

struct factor {
    const real *p;
    int64_t stride;
    bool transposed;
};

static int product(real *c, struct factor a, struct factor b, int64_t M, int64_t N,
    int64_t K, glm_stream stream, struct glm_error *err)
{
    const struct gemm g = {.c = c,
        .a = a.p,
        .b = b.p,
        .M = M,
        .N = N,
        .K = K,
        .lda = a.stride,
        .ldb = b.stride,
        .ldc = N,
        .trans_a = a.transposed,
        .trans_b = b.transposed,
        .a_type = MODE_DTYPE,
        .b_type = MODE_DTYPE,
        .c_type = MODE_DTYPE};
    return cpu_gemm(&g, stream, err);
}

LANES_CLONES static real frobenius(const real *x, int64_t n)
{
    struct squares s;

    squares_begin(&s);
    squares_add(&s, x, n);
    return (real)sqrt(squares_end(&s));
}

/* One step: y = c[0] x + (c[1] A + c[2] A A) x, from the side of A. */
static int ns_step(const struct space *s, int64_t R, int64_t C, const double c[3],
    bool low, glm_stream stream, struct glm_error *err)
{
    const bool wide = R <= C;
    const int64_t n = shorter(R, C);
    const struct factor x = {s->x, C, false}, xt = {s->x, C, true};
    const struct factor a = {s->a, n, false}, b = {s->b, n, false};

    if (product(s->a, wide ? x : xt, wide ? xt : x, n, n, wide ? C : R, stream, err) != 0)
        return err->code;
    if (low) {
        const struct scale round = {s->a, s->a, 1, true};
        pool_each(stream, n * n, GRAIN, scale_range, &round);
    }
    if (product(s->b, a, a, n, n, n, stream, err) != 0)
        return err->code;
    const struct blend poly = {s->b, s->a, (real)c[2], (real)c[1], low};
    pool_each(stream, n * n, GRAIN, blend_range, &poly);
    if (product(s->y, wide ? b : x, wide ? x : b, R, C, n, stream, err) != 0)
        return err->code;
    const struct blend sum = {s->y, s->x, 1, (real)c[0], low};
    pool_each(stream, R * C, GRAIN, blend_range, &sum);
    return 0;
}

/* Orthogonalises s->x in place (x and y may have changed places). */
static int ns(struct space *s, int64_t R, int64_t C, const double (*coeff)[3], int steps,
    bool low, glm_stream stream, struct glm_error *err)
{
    const real norm = frobenius(s->x, R * C);
    const struct scale unit = {s->x, s->x, norm < (real)1e-15 ? (real)1e-15 : norm, low};

    pool_each(stream, R * C, GRAIN, scale_range, &unit);
    for (int i = 0; i < steps; i++) {
        if (ns_step(s, R, C, coeff[i], low, stream, err) != 0)
            return err->code;
        real *const old = s->x;
        s->x = s->y;
        s->y = old;
    }
    return 0;
}

/* ---- a batch of matrices ---------------------------------------------------------------------- */

typedef int batch_fn(
    const void *op, int64_t b, glm_stream stream, glm_stream pool, struct glm_error *err);

struct batch {
    batch_fn *fn;
    const void *op;
    glm_stream pool;
    pthread_mutex_t *lock;
    struct glm_error *err;
};

static void batch_range(const void *ctx, int64_t begin, int64_t end)
{
    const struct batch *job = ctx;

    for (int64_t b = begin; b < end; b++) {
        struct glm_error mine = {0};
        if (job->fn(job->op, b, NULL, job->pool, &mine) == 0)
            continue;
        pthread_mutex_lock(job->lock);
        if (job->err->code == GLM_OK)
            *job->err = mine;
        pthread_mutex_unlock(job->lock);
    }
}

/* fn(op, b, stream, pool): stream computes (NULL inside a range of the pool), pool has memory. */
static int for_each_matrix(
    batch_fn *fn, const void *op, int64_t B, glm_stream pool, struct glm_error *err)
{
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    const struct batch job = {fn, op, pool, &lock, err};

    if (B >= pool_threads(pool)) {
        pool_for(pool, B, 1, batch_range, &job);
        return err->code;
    }
    for (int64_t b = 0; b < B; b++)
        if (fn(op, b, pool, pool, err) != 0)
            return err->code;
    return 0;
}

static int check(
    const char *op, int64_t B, int64_t R, int64_t C, int steps, struct glm_error *err)
{
    if (B < 0 || R < 1 || C < 1 || steps < 0)
        return glm_fail(err, GLM_EFORMAT, "%s: %lld matrices of %lld x %lld in %d steps",
            op, (long long)B, (long long)R, (long long)C, steps);
    return 0;
}

static int ns_matrix(
    const void *op, int64_t b, glm_stream stream, glm_stream pool, struct glm_error *err)
{
    const struct newton_schulz *p = op;
    const int64_t n = p->R * p->C;
    struct space s = {0};

    if (space_new(&s, p->R, p->C, pool, err) != 0)
        return err->code;
    real *const memory = s.x;
    memcpy(s.x, (const real *)p->x + b * n, (size_t)n * sizeof(real));
    if (ns(&s, p->R, p->C, p->coeff, p->steps, p->low_precision, stream, err) == 0)
        memcpy((real *)p->o + b * n, s.x, (size_t)n * sizeof(real));
    pool_scratch_free(pool, memory);
    return err->code;
}

OP_FN(newton_schulz)
{
    if (check("newton_schulz", p->B, p->R, p->C, p->steps, err) != 0)
        return err->code;
    return for_each_matrix(ns_matrix, p, p->B, stream, err);
}

/* ---- Muon ------------------------------------------------------------------------------------- */

struct rows { /* of one matrix of the batch */
    const struct muon *p;
    int64_t b;
    real *x; /* [R,C]: u before, NS(u) after */
};

static int64_t row_at(const struct rows *k, int64_t r)
{
    const struct muon *p = k->p;
    const int64_t run = p->run > 0 ? p->run : p->R;

    return k->b * p->batch_stride + r / run * p->run_stride + r % run * p->row_stride;
}

LANES_CLONES static void before(const void *ctx, int64_t begin, int64_t end)
{
    const struct rows *k = ctx;
    const struct muon *p = k->p;
    const real shrink = (real)(p->lr * p->decay), rest = (real)(1 - p->momentum);
    const real keep = p->nesterov ? (real)p->momentum : 1, ahead = p->nesterov ? rest : 0;
    const real scale = (real)p->grad_scale;

    for (int64_t r = begin; r < end; r++) {
        const int64_t at = row_at(k, r);
        real *restrict w = (real *)p->w + at, *restrict m = (real *)p->m + at;
        real *restrict u = k->x + r * p->C;
        const real *restrict g = (const real *)p->g + at;
        for (int64_t c = 0; c < p->C; c++) {
            const real gc = g[c] * scale;
            w[c] -= shrink * w[c];
            m[c] += rest * (gc - m[c]);
            u[c] = ahead * gc + keep * m[c];
        }
    }
}

LANES_CLONES static void after(const void *ctx, int64_t begin, int64_t end)
{
    const struct rows *k = ctx;
    const struct muon *p = k->p;
    const real rate = (real)(p->lr * p->factor);

    for (int64_t r = begin; r < end; r++) {
        real *restrict w = (real *)p->w + row_at(k, r);
        const real *restrict o = k->x + r * p->C;
        for (int64_t c = 0; c < p->C; c++)
            w[c] -= rate * o[c];
        uint16_t *const copy =
            p->copy != NULL ? (uint16_t *)p->copy + row_at(k, r) : NULL;
        for (int64_t c = 0; copy != NULL && c < p->C; c++)
            copy[c] = bf16_from_f32((float)w[c]);
    }
}

static int muon_matrix(
    const void *op, int64_t b, glm_stream stream, glm_stream pool, struct glm_error *err)
{
    const struct muon *p = op;
    const int64_t grain = GRAIN / p->C + 1;
    struct space s = {0};

    if (space_new(&s, p->R, p->C, pool, err) != 0)
        return err->code;
    real *const memory = s.x;
    struct rows k = {p, b, s.x};
    pool_each(stream, p->R, grain, before, &k);
    if (ns(&s, p->R, p->C, p->coeff, p->steps, p->low_precision, stream, err) == 0) {
        k.x = s.x;
        pool_each(stream, p->R, grain, after, &k);
    }
    pool_scratch_free(pool, memory);
    return err->code;
}

OP_FN(muon)
{
    struct muon now = *p;

    if (check("muon", p->B, p->R, p->C, p->steps, err) != 0)
        return err->code;
    if (p->rates != NULL) {
        now.lr = p->rates->lr;
        now.decay = p->rates->decay;
        now.grad_scale = p->rates->grad_scale;
        if (p->rates->stop != 0)
            return 0;
    }
    return for_each_matrix(muon_matrix, &now, p->B, stream, err);
}

#endif
