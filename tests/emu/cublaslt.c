/* Products in column-major order, each element a sum in F32 in ascending k. As the library, it takes
 * factors of one type alone, and BF16 or F32 sums. */
#include <stdlib.h>
#include <string.h>

#include <cublasLt.h>

#include <emu.h>

#include "kernels/base/bf16.h"

struct emu_lt {
    int unused;
};

struct emu_lt_desc {
    cublasOperation_t trans[2];
};

struct emu_lt_layout {
    cudaDataType_t type;
    int64_t rows, cols, ld, stride;
    int32_t batch;
};

struct emu_lt_want {
    int unused;
};

const char *cublasLtGetStatusString(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_SUCCESS      ? "success"
        : status == CUBLAS_STATUS_NOT_SUPPORTED ? "not supported"
                                                : "failed";
}

static void *zeros(size_t bytes)
{
    void *const p = calloc(1, bytes);

    if (p == NULL)
        abort();
    return p;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *lt)
{
    *lt = zeros(sizeof **lt);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t lt)
{
    free(lt);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(
    cublasLtMatmulDesc_t *d, cublasComputeType_t compute, cudaDataType_t scale)
{
    (void)compute;
    *d = zeros(sizeof **d);
    return scale == CUDA_R_32F ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d)
{
    free(d);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d,
    cublasLtMatmulDescAttributes_t what, const void *value, size_t size)
{
    if (size != sizeof d->trans[0])
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(&d->trans[what == CUBLASLT_MATMUL_DESC_TRANSB], value, size);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *l, cudaDataType_t type,
    uint64_t rows, uint64_t cols, int64_t ld)
{
    *l = zeros(sizeof **l);
    **l = (struct emu_lt_layout){
        .type = type, .rows = (int64_t)rows, .cols = (int64_t)cols, .ld = ld, .batch = 1};
    return ld >= (int64_t)rows ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l)
{
    free(l);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t l,
    cublasLtMatrixLayoutAttribute_t what, const void *value, size_t size)
{
    if (what == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT && size == sizeof l->batch)
        memcpy(&l->batch, value, size);
    else if (what == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET
        && size == sizeof l->stride)
        memcpy(&l->stride, value, size);
    else
        return CUBLAS_STATUS_INVALID_VALUE;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *p)
{
    *p = zeros(sizeof **p);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p)
{
    free(p);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
    cublasLtMatmulPreferenceAttributes_t what, const void *value, size_t size)
{
    (void)p;
    (void)what;
    (void)value;
    (void)size;
    return CUBLAS_STATUS_SUCCESS;
}

static int64_t op_rows(const struct emu_lt_layout *l, cublasOperation_t op)
{
    return op == CUBLAS_OP_N ? l->rows : l->cols;
}

static int64_t op_cols(const struct emu_lt_layout *l, cublasOperation_t op)
{
    return op == CUBLAS_OP_N ? l->cols : l->rows;
}

static int fits(const struct emu_lt_desc *d, const struct emu_lt_layout *a,
    const struct emu_lt_layout *b, const struct emu_lt_layout *c)
{
    return a->type == b->type && (a->type == CUDA_R_16BF || c->type == CUDA_R_32F)
        && op_cols(a, d->trans[0]) == op_rows(b, d->trans[1])
        && op_rows(a, d->trans[0]) == c->rows && op_cols(b, d->trans[1]) == c->cols
        && a->batch == c->batch && b->batch == c->batch;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t lt, cublasLtMatmulDesc_t d,
    cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
    cublasLtMatrixLayout_t to, cublasLtMatmulPreference_t want, int asked,
    cublasLtMatmulHeuristicResult_t *found, int *count)
{
    (void)lt;
    (void)to;
    (void)want;
    memset(found, 0, (size_t)asked * sizeof *found);
    *count = fits(d, a, b, c);
    return *count > 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

static float at(const struct emu_lt_layout *l, const void *x, int64_t i)
{
    return l->type == CUDA_R_16BF ? bf16_to_f32(((const uint16_t *)x)[i])
                                  : ((const float *)x)[i];
}

/* Row i of op(x) as K floats `step` apart, or column i: begins at `first`. */
static float *widened(const struct emu_lt_layout *l, const void *x, int64_t offset)
{
    float *const y = zeros((size_t)(l->ld * l->cols) * sizeof *y + 1);

    for (int64_t j = 0; j < l->cols; j++)
        for (int64_t i = 0; i < l->rows; i++)
            y[j * l->ld + i] = at(l, x, offset + j * l->ld + i);
    return y;
}

static void one(const struct emu_lt_desc *d, float alpha, const float *a,
    const struct emu_lt_layout *la, const float *b, const struct emu_lt_layout *lb,
    float beta, const void *c, void *to, const struct emu_lt_layout *lc, int64_t offset)
{
    const int64_t K = op_cols(la, d->trans[0]);
    const int64_t a_i = d->trans[0] == CUBLAS_OP_N ? 1 : la->ld,
                  a_k = d->trans[0] == CUBLAS_OP_N ? la->ld : 1,
                  b_k = d->trans[1] == CUBLAS_OP_N ? 1 : lb->ld,
                  b_j = d->trans[1] == CUBLAS_OP_N ? lb->ld : 1;

    for (int64_t j = 0; j < lc->cols; j++)
        for (int64_t i = 0; i < lc->rows; i++) {
            const int64_t e = offset + j * lc->ld + i;
            float sum = 0;
            for (int64_t k = 0; k < K; k++)
                sum += a[i * a_i + k * a_k] * b[k * b_k + j * b_j];
            sum = alpha * sum + (beta != 0 ? beta * at(lc, c, e) : 0);
            if (lc->type == CUDA_R_16BF)
                ((uint16_t *)to)[e] = bf16_from_f32(sum);
            else
                ((float *)to)[e] = sum;
        }
}

/* A product, to be made now or whenever the graph it was noted in is launched. */
struct product {
    struct emu_lt_desc desc;
    struct emu_lt_layout a_is, b_is, c_is;
    float alpha, beta;
    const void *a, *b, *c;
    void *to;
};

static void multiply(void *ctx)
{
    const struct product *const p = ctx;

    for (int32_t i = 0; i < p->c_is.batch; i++) {
        float *const x = widened(&p->a_is, p->a, i * p->a_is.stride),
                     *const y = widened(&p->b_is, p->b, i * p->b_is.stride);
        one(&p->desc, p->alpha, x, &p->a_is, y, &p->b_is, p->beta, p->c, p->to, &p->c_is,
            i * p->c_is.stride);
        free(x);
        free(y);
    }
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t lt, cublasLtMatmulDesc_t d,
    const void *alpha, const void *a, cublasLtMatrixLayout_t la, const void *b,
    cublasLtMatrixLayout_t lb, const void *beta, const void *c, cublasLtMatrixLayout_t lc,
    void *to, cublasLtMatrixLayout_t lto, const cublasLtMatmulAlgo_t *algo, void *space,
    size_t space_bytes, cudaStream_t stream)
{
    struct product p = {.desc = *d,
        .a_is = *la,
        .b_is = *lb,
        .c_is = *lc,
        .alpha = *(const float *)alpha,
        .beta = *(const float *)beta,
        .a = a,
        .b = b,
        .c = c,
        .to = to};

    (void)lt;
    (void)lto;
    (void)algo;
    (void)space;
    (void)space_bytes;
    (void)stream;
    if (!fits(d, la, lb, lc))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (!emu_recording()) {
        multiply(&p);
        return CUBLAS_STATUS_SUCCESS;
    }
    struct product *const kept = zeros(sizeof *kept);
    *kept = p;
    emu_note(multiply, free, kept);
    return CUBLAS_STATUS_SUCCESS;
}
