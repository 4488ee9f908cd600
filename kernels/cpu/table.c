/* cpu_<op>: the version of an operation for its element type.
 *
 * gemm, grouped_gemm and convert name types of their own, moe_plan and those of step.c have one or
 * none: their files define the cpu_ function themselves. */
#include "kernels/ops.h"

/* clang-format off */
/* Operations on elem: BF16, F32, F64. */
#define ELEM_OPS(X) \
    X(embedding_fwd) X(embedding_bwd) X(rmsnorm_fwd) X(rmsnorm_bwd) X(layernorm_fwd) \
    X(layernorm_bwd) X(add) X(blocks) X(swiglu_fwd) X(swiglu_bwd) X(rope_table) X(rope) \
    X(attention_fwd) X(attention_bwd) X(indexer_topk) X(indexer_loss) X(router_fwd) \
    X(router_bwd) X(moe_gather) X(moe_combine_fwd) X(moe_combine_bwd) X(moe_gather_bwd) \
    X(linear_ce_fwd) X(linear_ce_bwd) X(sum_squares)
/* clang-format on */

/* Operations on acc: F32, F64. */
#define ACC_OPS(X) X(adamw) X(newton_schulz) X(muon)

static int no_version(const char *op, enum glm_dtype dtype, struct glm_error *err)
{
    return glm_fail(err, GLM_EFORMAT, "%s: no version for elements of type %s", op,
        glm_dtype_name(dtype));
}

#define VERSION(op, mode)                                                                \
    int op##_##mode(const struct op *p, glm_stream stream, struct glm_error *err);

#define DISPATCH_ELEM(op)                                                                \
    VERSION(op, f32)                                                                     \
    VERSION(op, f64)                                                                     \
    VERSION(op, bf16)                                                                    \
    int cpu_##op(const struct op *p, glm_stream stream, struct glm_error *err)           \
    {                                                                                    \
        switch (p->dtype) {                                                              \
        case GLM_F32:                                                                    \
            return op##_f32(p, stream, err);                                             \
        case GLM_F64:                                                                    \
            return op##_f64(p, stream, err);                                             \
        case GLM_BF16:                                                                   \
            return op##_bf16(p, stream, err);                                            \
        default:                                                                         \
            return no_version(#op, p->dtype, err);                                       \
        }                                                                                \
    }
ELEM_OPS(DISPATCH_ELEM)

#define DISPATCH_ACC(op)                                                                 \
    VERSION(op, f32)                                                                     \
    VERSION(op, f64)                                                                     \
    int cpu_##op(const struct op *p, glm_stream stream, struct glm_error *err)           \
    {                                                                                    \
        switch (p->dtype) {                                                              \
        case GLM_F32:                                                                    \
            return op##_f32(p, stream, err);                                             \
        case GLM_F64:                                                                    \
            return op##_f64(p, stream, err);                                             \
        default:                                                                         \
            return no_version(#op, p->dtype, err);                                       \
        }                                                                                \
    }
ACC_OPS(DISPATCH_ACC)
