/* Head and cross-entropy in one: logits exist for ROWS x VOCAB at a time.
 *
 * Rows are taken ROWS at a time, the vocabulary VOCAB at a time, both in ascending order: the sums
 * of a row over the vocabulary depend on V alone, those of dw over the rows on T alone. The
 * backward pass computes the logits again. */
#include "kernels/cpu/check.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/pool.h"

enum { ROWS = 256, VOCAB = 4096, GRAIN = 8 };

/* A part of the logits: rows [row, row+rows), columns [col, col+cols). */
struct part {
    real *logit; /* [rows, cols] */
    int64_t row, rows, col, cols;
    const int32_t *target;
    const real *lse; /* backward */
    real scale;      /* backward */
    /* forward, [rows]: of the columns so far; hit: the target's logit */
    real *max, *sum, *hit;
};

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int logits(const struct part *part, const void *h, const void *w, int64_t H,
    glm_stream stream, struct glm_error *err)
{
    return cpu_gemm(&(struct gemm){.c = part->logit,
                        .a = (const elem *)h + part->row * H,
                        .b = (const elem *)w + part->col * H,
                        .M = part->rows,
                        .N = part->cols,
                        .K = H,
                        .lda = H,
                        .ldb = H,
                        .ldc = part->cols,
                        .trans_b = true,
                        .a_type = MODE_DTYPE,
                        .b_type = MODE_DTYPE,
                        .c_type = MODE_ACC},
        stream, err);
}

static int check(const char *op, int64_t T, int64_t V, int64_t H, const int32_t *target,
    struct glm_error *err)
{
    if (T < 0 || V <= 0 || H <= 0)
        return glm_fail(err, GLM_EFORMAT, "%s: impossible shape: T %lld, V %lld, H %lld",
            op, (long long)T, (long long)V, (long long)H);
    for (int64_t t = 0; t < T; t++) {
        if (target[t] >= V)
            return glm_fail(err, GLM_EFORMAT,
                "%s: target %d at position %lld, expected below %lld, or negative for "
                "none",
                op, (int)target[t], (long long)t, (long long)V);
    }
    return 0;
}

/* ---- forward ----------------------------------------------------------------------------------- */

LANES_BODY real largest(const real *x, int64_t n)
{
    real lane[LANES], most;
    const int64_t whole = n - n % LANES;

    for (int i = 0; i < LANES; i++)
        lane[i] = -INFINITY;
    for (int64_t d = 0; d < whole; d += LANES) {
        for (int i = 0; i < LANES; i++)
            lane[i] = x[d + i] > lane[i] ? x[d + i] : lane[i];
    }
    most = lane[0];
    for (int i = 1; i < LANES; i++)
        most = lane[i] > most ? lane[i] : most;
    for (int64_t d = whole; d < n; d++)
        most = x[d] > most ? x[d] : most;
    return most;
}

/* Adds these columns to each row's maximum and sum of exp(logit - maximum). */
LANES_CLONES static void add_columns(const void *ctx, int64_t begin, int64_t end)
{
    const struct part *part = ctx;

    for (int64_t i = begin; i < end; i++) {
        real *x = part->logit + i * part->cols;
        const int64_t hit = part->target[part->row + i] - part->col;
        real sum;
        for (int64_t v = 0; v < part->cols; v++)
            x[v] = low(x[v]);
        const real most = largest(x, part->cols);
        const real max = most > part->max[i] ? most : part->max[i];
        LANES_SUM(sum, part->cols, real_exp(x[d] - max));
        part->sum[i] = part->sum[i] * real_exp(part->max[i] - max) + sum;
        part->max[i] = max;
        if (hit >= 0 && hit < part->cols)
            part->hit[i] = x[hit];
    }
}

static int fwd_rows(const struct linear_ce_fwd *p, struct part part, glm_stream stream,
    struct glm_error *err)
{
    real *loss = (real *)p->loss + part.row, *lse = (real *)p->lse + part.row;

    for (int64_t i = 0; i < part.rows; i++) {
        part.max[i] = -INFINITY;
        part.sum[i] = 0;
    }
    for (part.col = 0; part.col < p->V; part.col += VOCAB) {
        part.cols = least(p->V - part.col, VOCAB);
        if (logits(&part, p->h, p->w, p->H, stream, err) != 0)
            return err->code;
        pool_for(stream, part.rows, GRAIN, add_columns, &part);
    }
    for (int64_t i = 0; i < part.rows; i++) {
        lse[i] = part.max[i] + (real)log((double)part.sum[i]);
        loss[i] = p->target[part.row + i] < 0 ? 0 : lse[i] - part.hit[i];
    }
    return 0;
}

OP_FN(linear_ce_fwd)
{
    const int64_t rows = least(p->T, ROWS), cols = least(p->V, VOCAB);

    if (check("linear_ce_fwd", p->T, p->V, p->H, p->target, err) != 0)
        return err->code;
    real *const memory =
        pool_scratch(stream, (size_t)(rows * (cols + 3)) * sizeof *memory, err);
    if (memory == NULL)
        return err->code;
    struct part part = {.logit = memory + 3 * rows,
        .target = p->target,
        .max = memory,
        .sum = memory + rows,
        .hit = memory + 2 * rows};
    for (part.row = 0; part.row < p->T && err->code == GLM_OK; part.row += ROWS) {
        part.rows = least(p->T - part.row, ROWS);
        fwd_rows(p, part, stream, err);
    }
    pool_scratch_free(stream, memory);
    return err->code;
}

/* ---- backward ---------------------------------------------------------------------------------- */

/* logit -> scale * (softmax - onehot), in place. */
LANES_CLONES static void to_gradient(const void *ctx, int64_t begin, int64_t end)
{
    const struct part *part = ctx;

    for (int64_t i = begin; i < end; i++) {
        real *x = part->logit + i * part->cols;
        const int64_t target = part->target[part->row + i], hit = target - part->col;
        const real lse = part->lse[part->row + i];
        const real scale = part->scale;
        if (target < 0) {
            for (int64_t v = 0; v < part->cols; v++)
                x[v] = 0;
            continue;
        }
        const real at_hit = hit >= 0 && hit < part->cols ? low(x[hit]) : 0;
        for (int64_t v = 0; v < part->cols; v++)
            x[v] = scale * real_exp(low(x[v]) - lse);
        if (hit >= 0 && hit < part->cols)
            x[hit] = scale * (real_exp(at_hit - lse) - 1);
    }
}

/* dh (+)= dlogit W and dw += dlogit^T h for one part. */
static int spread(const struct linear_ce_bwd *p, const struct part *part, real *dh,
    glm_stream stream, struct glm_error *err)
{
    const elem *w = (const elem *)p->w + part->col * p->H;
    const elem *h = (const elem *)p->h + part->row * p->H;

    if (cpu_gemm(&(struct gemm){.c = dh,
                     .a = part->logit,
                     .b = w,
                     .M = part->rows,
                     .N = p->H,
                     .K = part->cols,
                     .lda = part->cols,
                     .ldb = p->H,
                     .ldc = p->H,
                     .accumulate = part->col > 0,
                     .a_type = MODE_ACC,
                     .b_type = MODE_DTYPE,
                     .c_type = MODE_ACC},
            stream, err)
            != 0
        || p->dw == NULL)
        return err->code;
    return cpu_gemm(&(struct gemm){.c = (real *)p->dw + part->col * p->H,
                        .a = part->logit,
                        .b = h,
                        .M = part->cols,
                        .N = p->H,
                        .K = part->rows,
                        .lda = part->cols,
                        .ldb = p->H,
                        .ldc = p->H,
                        .trans_a = true,
                        .accumulate = true,
                        .a_type = MODE_ACC,
                        .b_type = MODE_DTYPE,
                        .c_type = MODE_ACC},
        stream, err);
}

static int bwd_rows(const struct linear_ce_bwd *p, struct part part, real *dh,
    glm_stream stream, struct glm_error *err)
{
    elem *out = (elem *)p->dh + part.row * p->H;

    for (part.col = 0; part.col < p->V; part.col += VOCAB) {
        part.cols = least(p->V - part.col, VOCAB);
        if (logits(&part, p->h, p->w, p->H, stream, err) != 0)
            return err->code;
        pool_for(stream, part.rows, GRAIN, to_gradient, &part);
        if (spread(p, &part, dh, stream, err) != 0)
            return err->code;
    }
    for (int64_t i = 0; i < part.rows * p->H; i++)
        out[i] = put(dh[i]);
    return 0;
}

/* Once the forward pass, once the backward: the meaning, not the speed, of both in one. */
static int forward_too(
    const struct linear_ce_bwd *p, glm_stream stream, struct glm_error *err)
{
    const struct linear_ce_fwd fwd = {.loss = p->loss,
        .lse = p->its_lse,
        .h = p->h,
        .w = p->w,
        .target = p->target,
        .T = p->T,
        .V = p->V,
        .H = p->H,
        .dtype = p->dtype};

    return MODE_NAME(linear_ce_fwd)(&fwd, stream, err);
}

OP_FN(linear_ce_bwd)
{
    const int64_t rows = least(p->T, ROWS), cols = least(p->V, VOCAB);

    if (check("linear_ce_bwd", p->T, p->V, p->H, p->target, err) != 0)
        return err->code;
    if ((p->loss == NULL) != (p->its_lse == NULL))
        return glm_fail(
            err, GLM_EFORMAT, "linear_ce_bwd: of loss and its_lse one is missing");
    if (p->loss != NULL && forward_too(p, stream, err) != 0)
        return err->code;
    real *const memory =
        pool_scratch(stream, (size_t)(rows * (cols + p->H)) * sizeof *memory, err);
    if (memory == NULL)
        return err->code;
    struct part part = {.logit = memory, .target = p->target, .scale = (real)p->scale};
    part.lse = p->loss != NULL ? p->its_lse : p->lse;
    for (part.row = 0; part.row < p->T && err->code == GLM_OK; part.row += ROWS) {
        part.rows = least(p->T - part.row, ROWS);
        bwd_rows(p, part, memory + rows * cols, stream, err);
    }
    pool_scratch_free(stream, memory);
    return err->code;
}
