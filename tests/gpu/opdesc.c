/* The operations' pointers: direction, type, number of elements. One function per operation, in the
 * order of kernels/ops.h. What lies between strided rows of an output is in/out: it must stay. */
#include <stddef.h>

#include "tests/gpu/opcase.h"
#include "tests/support/opdata.h"

static void add(struct fields *f, const char *name, size_t at, enum dir dir,
    enum glm_dtype type, int64_t n)
{
    f->field[f->count++] =
        (struct field){.name = name, .at = at, .dir = dir, .type = type, .n = n};
}

#define AT(member) ((size_t)((const char *)&p->member - (const char *)p))
#define FIELD(dir, member, type, n) add(f, #member, AT(member), dir, type, n)
#define TYPE(member) (f->type_at[f->types++] = AT(member))
#define ELEM p->dtype
#define ACC op_acc(p->dtype)

/* Elements from the first to the end of the last of `rows` rows, `stride` apart (0: close). */
static int64_t span(int64_t rows, int64_t width, int64_t stride)
{
    return rows == 0 ? 0 : (rows - 1) * (stride == 0 ? width : stride) + width;
}

static enum dir gaps(bool any)
{
    return any ? INOUT : OUT;
}

#define DESCRIBE(op) static void describe_##op(const struct op *p, struct fields *f)

DESCRIBE(embedding_fwd)
{
    TYPE(dtype);
    FIELD(OUT, y, ELEM, p->T * p->H);
    FIELD(IN, table, ELEM, p->V * p->H);
    FIELD(IN, ids, GLM_I32, p->T);
}

DESCRIBE(embedding_bwd)
{
    TYPE(dtype);
    FIELD(INOUT, dtable, ACC, p->V * p->H);
    FIELD(IN, dy, ELEM, p->T * p->H);
    FIELD(IN, ids, GLM_I32, p->T);
}

DESCRIBE(rmsnorm_fwd)
{
    TYPE(dtype);
    FIELD(OUT, y, ELEM, p->T * p->D);
    FIELD(OUT, rstd, ACC, p->T);
    FIELD(IN, x, ELEM, span(p->T, p->D, p->x_stride));
    FIELD(IN, w, ELEM, p->D);
}

DESCRIBE(rmsnorm_bwd)
{
    TYPE(dtype);
    FIELD(gaps(p->dx_stride > p->D), dx, ELEM, span(p->T, p->D, p->dx_stride));
    FIELD(INOUT, dw, ACC, p->D);
    FIELD(IN, dy, ELEM, p->T * p->D);
    FIELD(IN, x, ELEM, span(p->T, p->D, p->x_stride));
    FIELD(IN, w, ELEM, p->D);
    FIELD(IN, rstd, ACC, p->T);
    FIELD(IN, dx_add, ELEM, p->T * p->D);
}

DESCRIBE(layernorm_fwd)
{
    TYPE(dtype);
    FIELD(OUT, y, ELEM, p->T * p->D);
    FIELD(OUT, mean, ACC, p->T);
    FIELD(OUT, rstd, ACC, p->T);
    FIELD(IN, x, ELEM, p->T * p->D);
    FIELD(IN, w, ELEM, p->D);
    FIELD(IN, b, ELEM, p->D);
}

DESCRIBE(layernorm_bwd)
{
    TYPE(dtype);
    FIELD(OUT, dx, ELEM, p->T * p->D);
    FIELD(INOUT, dw, ACC, p->D);
    FIELD(INOUT, db, ACC, p->D);
    FIELD(IN, dy, ELEM, p->T * p->D);
    FIELD(IN, x, ELEM, p->T * p->D);
    FIELD(IN, w, ELEM, p->D);
    FIELD(IN, mean, ACC, p->T);
    FIELD(IN, rstd, ACC, p->T);
}

DESCRIBE(gemm)
{
    TYPE(a_type), TYPE(b_type), TYPE(c_type);
    FIELD(gaps(p->accumulate || p->ldc > p->N), c, p->c_type, span(p->M, p->N, p->ldc));
    FIELD(IN, a, p->a_type,
        p->trans_a ? span(p->K, p->M, p->lda) : span(p->M, p->K, p->lda));
    FIELD(IN, b, p->b_type,
        p->trans_b ? span(p->N, p->K, p->ldb) : span(p->K, p->N, p->ldb));
}

/* Where the struct does not say the rows of the token side, the cases say them in place of offset. */
DESCRIBE(grouped_gemm)
{
    const int64_t rows = p->rows > 0 ? p->rows : (int64_t)(intptr_t)p->offset;

    TYPE(a_type), TYPE(b_type), TYPE(c_type);
    FIELD(gaps(p->accumulate), c, p->c_type,
        p->kind == GROUP_TN ? p->G * p->N * p->K : rows * p->N);
    FIELD(IN, a, p->a_type, rows * (p->kind == GROUP_TN ? p->N : p->K));
    FIELD(IN, b, p->b_type, p->kind == GROUP_TN ? rows * p->K : p->G * p->N * p->K);
    FIELD(IN, offset, GLM_I32, p->G + 1);
}

DESCRIBE(add)
{
    TYPE(dtype);
    FIELD(OUT, y, ELEM, p->n);
    FIELD(IN, a, ELEM, p->n);
    FIELD(IN, b, ELEM, p->n);
}

DESCRIBE(convert)
{
    TYPE(from), TYPE(to);
    FIELD(OUT, y, p->to, p->n);
    FIELD(IN, x, p->from, p->n);
}

static int64_t block_span(int64_t T, int64_t N, int64_t D, int64_t row, int64_t head)
{
    return T == 0 ? 0 : (T - 1) * row + (N - 1) * head + D;
}

DESCRIBE(blocks)
{
    const enum glm_dtype from = p->acc_in ? ACC : ELEM;

    TYPE(dtype);
    FIELD(INOUT, y, ELEM,
        block_span(p->T, p->sum ? 1 : p->N, p->D, p->y_row, p->sum ? 0 : p->y_head));
    FIELD(IN, x, from, block_span(p->T, p->N, p->D, p->x_row, p->x_head));
    FIELD(IN, add, from, block_span(p->T, p->N, p->D, p->add_row, p->add_head));
}

DESCRIBE(swiglu_fwd)
{
    TYPE(dtype);
    FIELD(OUT, h, ELEM, p->n);
    FIELD(IN, a, ELEM, p->n);
    FIELD(IN, b, ELEM, p->n);
}

DESCRIBE(swiglu_bwd)
{
    TYPE(dtype);
    FIELD(OUT, da, ELEM, p->n);
    FIELD(OUT, db, ELEM, p->n);
    FIELD(IN, dh, ELEM, p->n);
    FIELD(IN, a, ELEM, p->n);
    FIELD(IN, b, ELEM, p->n);
}

DESCRIBE(rope_table)
{
    TYPE(dtype);
    FIELD(OUT, cos, ACC, p->T * p->D / 2);
    FIELD(OUT, sin, ACC, p->T * p->D / 2);
    FIELD(IN, positions, GLM_I32, p->T);
}

DESCRIBE(rope)
{
    TYPE(dtype);
    FIELD(INOUT, x, ELEM, p->T * p->row_stride);
    FIELD(IN, cos, ACC, p->T * p->D / 2);
    FIELD(IN, sin, ACC, p->T * p->D / 2);
}

DESCRIBE(attention_fwd)
{
    TYPE(dtype);
    FIELD(OUT, o, ELEM, p->T * p->N * p->Dv);
    FIELD(OUT, lse, ACC, p->T * p->N);
    FIELD(IN, q, ELEM, p->T * p->N * p->Dq);
    FIELD(IN, k, ELEM, span(p->T, p->Nk * p->Dq, p->k_stride));
    FIELD(IN, v, ELEM, span(p->T, p->Nk * p->Dv, p->v_stride));
    FIELD(IN, index, GLM_I32, p->T * p->K);
    FIELD(IN, cu_seqlens, GLM_I32, p->S + 1);
}

DESCRIBE(attention_bwd)
{
    TYPE(dtype);
    FIELD(OUT, dq, ELEM, p->T * p->N * p->Dq);
    FIELD(OUT, dk, ACC, p->T * p->Nk * p->Dq);
    FIELD(OUT, dv, ACC, p->T * p->Nk * p->Dv);
    FIELD(IN, q, ELEM, p->T * p->N * p->Dq);
    FIELD(IN, k, ELEM, span(p->T, p->Nk * p->Dq, p->k_stride));
    FIELD(IN, v, ELEM, span(p->T, p->Nk * p->Dv, p->v_stride));
    FIELD(IN, o, ELEM, p->T * p->N * p->Dv);
    FIELD(IN, lse, ACC, p->T * p->N);
    FIELD(IN, do_, ELEM, p->T * p->N * p->Dv);
    FIELD(IN, index, GLM_I32, p->T * p->K);
    FIELD(IN, cu_seqlens, GLM_I32, p->S + 1);
}

DESCRIBE(indexer_topk)
{
    TYPE(dtype);
    FIELD(OUT, index, GLM_I32, p->T * p->K);
    FIELD(OUT, score, ACC, p->T * p->K);
    FIELD(IN, q, ELEM, p->T * p->N * p->D);
    FIELD(IN, k, ELEM, p->T * p->D);
    FIELD(IN, w, ELEM, p->T * p->N);
    FIELD(IN, cu_seqlens, GLM_I32, p->S + 1);
}

DESCRIBE(indexer_loss)
{
    TYPE(dtype);
    FIELD(OUT, kl, ACC, p->T);
    FIELD(OUT, dq, ACC, p->T * p->N * p->D);
    FIELD(OUT, dk, ACC, p->T * p->D);
    FIELD(OUT, dw, ACC, p->T * p->N);
    FIELD(IN, q, ELEM, p->T * p->N * p->D);
    FIELD(IN, k, ELEM, p->T * p->D);
    FIELD(IN, w, ELEM, p->T * p->N);
    FIELD(IN, mq, ELEM, p->T * p->MN * p->MDq);
    FIELD(IN, mk, ELEM, span(p->T, p->MNk * p->MDq, p->mk_stride));
    FIELD(IN, lse, ACC, p->T * p->MN);
    FIELD(IN, index, GLM_I32, p->T * p->K);
    FIELD(IN, cu_seqlens, GLM_I32, p->S + 1);
}

DESCRIBE(router_fwd)
{
    TYPE(dtype);
    FIELD(OUT, score, ACC, p->T * p->E);
    FIELD(OUT, weight, ACC, p->T * p->K);
    FIELD(p->given ? IN : OUT, expert, GLM_I32, p->T * p->K);
    FIELD(IN, logit, ACC, p->T * p->E);
    FIELD(IN, bias, GLM_F32, p->E);
}

DESCRIBE(router_bwd)
{
    TYPE(dtype);
    FIELD(OUT, dlogit, ACC, p->T * p->E);
    FIELD(IN, dweight, ACC, p->T * p->K);
    FIELD(IN, score, ACC, p->T * p->E);
    FIELD(IN, weight, ACC, p->T * p->K);
    FIELD(IN, expert, GLM_I32, p->T * p->K);
}

DESCRIBE(moe_plan)
{
    FIELD(OUT, token, GLM_I32, p->T * p->K);
    FIELD(OUT, slot, GLM_I32, p->T * p->K);
    FIELD(OUT, row, GLM_I32, p->T * p->K);
    FIELD(OUT, offset, GLM_I32, p->E + 1);
    FIELD(IN, expert, GLM_I32, p->T * p->K);
}

DESCRIBE(moe_gather)
{
    TYPE(dtype);
    FIELD(OUT, y, ELEM, p->rows * p->H);
    FIELD(IN, x, ELEM, p->T * p->H);
    FIELD(IN, token, GLM_I32, p->rows);
}

DESCRIBE(moe_combine_fwd)
{
    TYPE(dtype);
    FIELD(OUT, y, ELEM, p->T * p->H);
    FIELD(IN, f, ELEM, p->T * p->K * p->H);
    FIELD(IN, shared, ELEM, p->T * p->H);
    FIELD(IN, weight, ACC, p->T * p->K);
    FIELD(IN, row, GLM_I32, p->T * p->K);
}

DESCRIBE(moe_combine_bwd)
{
    TYPE(dtype);
    FIELD(OUT, df, ELEM, p->T * p->K * p->H);
    FIELD(OUT, dweight, ACC, p->T * p->K);
    FIELD(IN, dy, ELEM, p->T * p->H);
    FIELD(IN, f, ELEM, p->T * p->K * p->H);
    FIELD(IN, weight, ACC, p->T * p->K);
    FIELD(IN, row, GLM_I32, p->T * p->K);
}

DESCRIBE(moe_gather_bwd)
{
    TYPE(dtype);
    FIELD(OUT, dx, ELEM, p->T * p->H);
    FIELD(IN, dy, ELEM, p->T * p->K * p->H);
    FIELD(IN, add1, ELEM, p->T * p->H);
    FIELD(IN, add2, ELEM, p->T * p->H);
    FIELD(IN, row, GLM_I32, p->T * p->K);
}

DESCRIBE(linear_ce_fwd)
{
    TYPE(dtype);
    FIELD(OUT, loss, ACC, p->T);
    FIELD(OUT, lse, ACC, p->T);
    FIELD(IN, h, ELEM, p->T * p->H);
    FIELD(IN, w, ELEM, p->V * p->H);
    FIELD(IN, target, GLM_I32, p->T);
}

DESCRIBE(linear_ce_bwd)
{
    TYPE(dtype);
    FIELD(OUT, dh, ELEM, p->T * p->H);
    FIELD(INOUT, dw, ACC, p->V * p->H);
    FIELD(OUT, loss, ACC, p->T);
    FIELD(OUT, its_lse, ACC, p->T);
    FIELD(IN, h, ELEM, p->T * p->H);
    FIELD(IN, w, ELEM, p->V * p->H);
    FIELD(IN, lse, ACC, p->T);
    FIELD(IN, target, GLM_I32, p->T);
}

enum { RATES = sizeof(struct step_rates) / sizeof(double) };

DESCRIBE(adamw)
{
    TYPE(dtype);
    FIELD(IN, rates, GLM_F64, RATES);
    FIELD(INOUT, w, ACC, p->n);
    FIELD(INOUT, m, ACC, p->n);
    FIELD(INOUT, v, ACC, p->n);
    FIELD(IN, g, ACC, p->n);
    FIELD(INOUT, copy, GLM_BF16, p->n);
}

DESCRIBE(newton_schulz)
{
    TYPE(dtype);
    FIELD(OUT, o, ACC, p->B * p->R * p->C);
    FIELD(IN, x, ACC, p->B * p->R * p->C);
}

DESCRIBE(muon)
{
    const int64_t run = p->run == 0 ? p->R : p->run, last = p->R - 1;
    const int64_t n = p->B == 0 || p->R == 0 ? 0
                                             : (p->B - 1) * p->batch_stride
            + last / run * p->run_stride + last % run * p->row_stride + p->C;

    TYPE(dtype);
    FIELD(INOUT, w, ACC, n);
    FIELD(INOUT, m, ACC, n);
    FIELD(IN, g, ACC, n);
    FIELD(INOUT, copy, GLM_BF16, n);
    FIELD(IN, rates, GLM_F64, RATES);
}

static int64_t tiles(int64_t n, int64_t of)
{
    return of == 0 ? 0 : (n + of - 1) / of;
}

DESCRIBE(sum_squares)
{
    TYPE(dtype);
    FIELD(
        OUT, out, GLM_F64, p->B * tiles(p->R, p->tile_rows) * tiles(p->C, p->tile_cols));
    FIELD(IN, x, ELEM,
        p->B * p->R == 0
            ? 0
            : (p->B - 1) * p->batch_stride + span(p->R, p->C, p->row_stride));
}

DESCRIBE(total)
{
    TYPE(dtype);
    FIELD(OUT, out, GLM_F64, 1);
    FIELD(IN, x, ELEM, p->n);
}

DESCRIBE(expert_load)
{
    FIELD(INOUT, load, GLM_I64, p->E);
    FIELD(IN, offset, GLM_I32, p->E + 1);
    FIELD(IN, expert, GLM_I32, p->T * p->K);
    FIELD(IN, cu_seqlens, GLM_I32, p->S + 1);
}

DESCRIBE(router_bias)
{
    FIELD(INOUT, bias, GLM_F32, p->E);
    FIELD(IN, load, GLM_I64, p->E);
    FIELD(IN, rates, GLM_F64, RATES);
}

DESCRIBE(clip)
{
    FIELD(INOUT, rates, GLM_F64, p->n * RATES);
    FIELD(OUT, report, GLM_F64, 5);
    FIELD(IN, leaf, GLM_F64, p->leaves);
    FIELD(IN, first, GLM_I64, p->n + 1);
    FIELD(IN, group, GLM_I32, p->n);
    FIELD(IN, watched, GLM_F64, p->watch);
}

/* ---- the table -------------------------------------------------------------------------------- */

#define ENTRY(op)                                                                        \
    static void fields_##op(const void *p, struct fields *f)                             \
    {                                                                                    \
        describe_##op(p, f);                                                             \
    }                                                                                    \
    static int run_##op(const struct kernels *k, const void *p, glm_stream stream,       \
        struct glm_error *err)                                                           \
    {                                                                                    \
        return k->op(p, stream, err);                                                    \
    }                                                                                    \
    static bool there_##op(const struct kernels *k)                                      \
    {                                                                                    \
        return k->op != NULL;                                                            \
    }                                                                                    \
    _Static_assert(sizeof(struct op) <= STRUCT_BYTES, "struct opcase has no room");
OPS(ENTRY)

static const struct {
    const char *name;
    size_t size;
    void (*fields)(const void *p, struct fields *f);
    int (*run)(
        const struct kernels *k, const void *p, glm_stream stream, struct glm_error *err);
    bool (*there)(const struct kernels *k);
} table[OP_COUNT] = {
#define ROW(op) {#op, sizeof(struct op), fields_##op, run_##op, there_##op},
    OPS(ROW)
#undef ROW
};

const char *op_name(enum op_id op)
{
    return table[op].name;
}

size_t op_size(enum op_id op)
{
    return table[op].size;
}

bool op_there(enum op_id op, const struct kernels *k)
{
    return table[op].there(k);
}

int op_run(enum op_id op, const struct kernels *k, const void *p, glm_stream stream,
    struct glm_error *err)
{
    return table[op].run(k, p, stream, err);
}

void op_fields(enum op_id op, const void *p, struct fields *out)
{
    *out = (struct fields){.count = 0};
    table[op].fields(p, out);
}
