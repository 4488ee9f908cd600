/* Dense matrix products by cuBLASLt, and which of its algorithms: always the same for one shape.
 *
 * Our matrices are row-major, cuBLASLt's column-major: C = A B becomes C^T = B^T A^T. The algorithm
 * is the heuristic's first for the shape, types and alignment, under a fixed workspace and without
 * split-K sums by atomics (none of cuBLASLt's reductions are, but the list is asked for only those
 * that reduce in the workspace or not at all). It is chosen once per shape and kept; when many shapes
 * have come (packed documents have a number of rows of their own in every batch), all are forgotten
 * and chosen anew, to the same end. */
#include <cublasLt.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/cuda.h"

enum { PLANS = 1024 };

struct key {
    int64_t M, N, K, lda, ldb, ldc, batch, stride_a, stride_b, stride_c;
    int32_t a_type, b_type, c_type, trans_a, trans_b, accumulate, align;
};

struct plan {
    struct key key;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algo;
    bool used;
};

struct blas {
    cublasLtHandle_t lt;
    struct plan plan[PLANS]; /* a hash table, never more than three quarters full */
    int used;
};

static int check(cublasStatus_t status, const char *what, struct glm_error *err)
{
    if (status == CUBLAS_STATUS_SUCCESS)
        return (int)err->code;
    return glm_fail(
        err, GLM_EDEVICE, "cuBLASLt: %s: %s", what, cublasLtGetStatusString(status));
}

int cuda_gemm_open(glm_stream s, struct glm_error *err)
{
    struct blas *b = calloc(1, sizeof *b);

    if (b == NULL)
        return glm_fail(err, GLM_ENOMEM, "no memory for the products' plans");
    s->blas = b;
    if (check(cublasLtCreate(&b->lt), "cublasLtCreate", err) != 0)
        return (int)err->code;
    return cuda_check(
        cudaMalloc(&s->blas_space, CUDA_BLAS_SPACE), "cuBLASLt's workspace", err);
}

static void plan_clear(struct plan *p)
{
    if (p->desc != NULL)
        cublasLtMatmulDescDestroy(p->desc);
    cublasLtMatrixLayout_t all[] = {p->a, p->b, p->c};
    for (int i = 0; i < 3; i++)
        if (all[i] != NULL)
            cublasLtMatrixLayoutDestroy(all[i]);
    *p = (struct plan){0};
}

/* What is queued or recorded needs its plan no more. */
static void forget_all(struct blas *b)
{
    for (int i = 0; i < PLANS; i++)
        plan_clear(&b->plan[i]);
    b->used = 0;
}

void cuda_gemm_close(glm_stream s)
{
    struct blas *b = s->blas;

    if (b == NULL)
        return;
    forget_all(b);
    if (b->lt != NULL)
        cublasLtDestroy(b->lt);
    cudaFree(s->blas_space);
    free(b);
    s->blas = NULL;
    s->blas_space = NULL;
}

static cudaDataType_t type_of(enum glm_dtype t)
{
    return t == GLM_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

/* rows, cols and ld as stored in our order. */
static int layout(cublasLtMatrixLayout_t *out, enum glm_dtype type, int64_t rows,
    int64_t cols, int64_t ld, int64_t batch, int64_t stride, struct glm_error *err)
{
    const int32_t count = (int32_t)batch;

    if (check(cublasLtMatrixLayoutCreate(
                  out, type_of(type), (uint64_t)cols, (uint64_t)rows, ld),
            "layout", err)
            != 0
        || check(cublasLtMatrixLayoutSetAttribute(
                     *out, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count),
               "batch", err)
            != 0)
        return (int)err->code;
    return check(cublasLtMatrixLayoutSetAttribute(*out,
                     CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride),
        "stride", err);
}

/* The largest power of two, up to 256, that divides what the pointers and strides leave. */
static int32_t alignment(const struct gemm *p, const void *add)
{
    const uintptr_t bits =
        (uintptr_t)p->a | (uintptr_t)p->b | (uintptr_t)p->c | (uintptr_t)add;
    uintptr_t n = 1;

    while (n < 256 && (bits & n) == 0)
        n *= 2;
    return (int32_t)n;
}

static int choose(struct blas *b, struct plan *p, struct glm_error *err)
{
    const struct key *k = &p->key;
    const uint32_t reductions =
        CUBLASLT_REDUCTION_SCHEME_MASK & ~(uint32_t)CUBLASLT_REDUCTION_SCHEME_INPLACE;
    const uint64_t space = CUDA_BLAS_SPACE;
    const uint32_t align = (uint32_t)k->align;
    cublasLtMatmulPreference_t want = NULL;
    cublasLtMatmulHeuristicResult_t found;
    int count = 0;

    if (check(cublasLtMatmulPreferenceCreate(&want), "preference", err) != 0)
        return (int)err->code;
    cublasLtMatmulPreferenceSetAttribute(
        want, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &space, sizeof space);
    cublasLtMatmulPreferenceSetAttribute(
        want, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof reductions);
    static const cublasLtMatmulPreferenceAttributes_t aligns[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    for (int i = 0; i < 4; i++)
        cublasLtMatmulPreferenceSetAttribute(want, aligns[i], &align, sizeof align);
    check(cublasLtMatmulAlgoGetHeuristic(
              b->lt, p->desc, p->b, p->a, p->c, p->c, want, 1, &found, &count),
        "no algorithm for the product", err);
    cublasLtMatmulPreferenceDestroy(want);
    if (err->code == GLM_OK && count == 0)
        glm_fail(err, GLM_EDEVICE,
            "cuBLASLt has no algorithm for %lld x %lld x %lld (rows of %lld, %lld, %lld)",
            (long long)k->M, (long long)k->N, (long long)k->K, (long long)k->lda,
            (long long)k->ldb, (long long)k->ldc);
    p->algo = found.algo;
    return (int)err->code;
}

static int make(struct blas *b, struct plan *p, struct glm_error *err)
{
    const struct key *k = &p->key;
    const cublasOperation_t ta = k->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t tb = k->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N;

    if (check(cublasLtMatmulDescCreate(&p->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F),
            "description", err)
            != 0
        || check(cublasLtMatmulDescSetAttribute(
                     p->desc, CUBLASLT_MATMUL_DESC_TRANSA, &tb, sizeof tb),
               "transposition", err)
            != 0
        || check(cublasLtMatmulDescSetAttribute(
                     p->desc, CUBLASLT_MATMUL_DESC_TRANSB, &ta, sizeof ta),
               "transposition", err)
            != 0
        || layout(&p->a, (enum glm_dtype)k->a_type, k->trans_a ? k->K : k->M,
               k->trans_a ? k->M : k->K, k->lda, k->batch, k->stride_a, err)
            != 0
        || layout(&p->b, (enum glm_dtype)k->b_type, k->trans_b ? k->N : k->K,
               k->trans_b ? k->K : k->N, k->ldb, k->batch, k->stride_b, err)
            != 0
        || layout(&p->c, (enum glm_dtype)k->c_type, k->M, k->N, k->ldc, k->batch,
               k->stride_c, err)
            != 0)
        return (int)err->code;
    return choose(b, p, err);
}

static struct plan *plan_of(struct blas *b, const struct key *key, struct glm_error *err)
{
    uint64_t hash = 1469598103934665603u;
    const unsigned char *bytes = (const unsigned char *)key;

    for (size_t i = 0; i < sizeof *key; i++)
        hash = (hash ^ bytes[i]) * 1099511628211u;
    uint64_t at = hash % PLANS;
    for (; b->plan[at].used; at = (at + 1) % PLANS)
        if (memcmp(&b->plan[at].key, key, sizeof *key) == 0)
            return &b->plan[at];
    if (b->used >= PLANS - PLANS / 4) {
        forget_all(b);
        at = hash % PLANS;
    }
    struct plan *const p = &b->plan[at];
    p->key = *key;
    if (make(b, p, err) != 0) {
        plan_clear(p);
        return NULL;
    }
    p->used = true;
    b->used++;
    return p;
}

int cuda_gemm_strided(const struct gemm *p, const struct cuda_gemm_more *more,
    glm_stream s, struct glm_error *err)
{
    struct key key;
    struct blas *b = s->blas;
    const float alpha = more->alpha,
                beta = more->add != NULL ? more->beta : p->accumulate;
    const void *const add = more->add != NULL ? more->add : p->c;

    if (s->dry || p->M == 0 || p->N == 0 || more->batch == 0)
        return (int)err->code;
    memset(&key, 0, sizeof key); /* its gaps are compared, too */
    key.M = p->M;
    key.N = p->N;
    key.K = p->K;
    key.lda = p->lda;
    key.ldb = p->ldb;
    key.ldc = p->ldc;
    key.batch = more->batch;
    key.stride_a = more->stride_a;
    key.stride_b = more->stride_b;
    key.stride_c = more->stride_c;
    key.a_type = (int32_t)p->a_type;
    key.b_type = (int32_t)p->b_type;
    key.c_type = (int32_t)p->c_type;
    key.trans_a = p->trans_a;
    key.trans_b = p->trans_b;
    key.accumulate = more->add != NULL ? 2 : p->accumulate;
    key.align = alignment(p, more->add);
    const struct plan *plan = plan_of(b, &key, err);
    if (plan == NULL)
        return (int)err->code;
    return check(cublasLtMatmul(b->lt, plan->desc, &alpha, p->b, plan->b, p->a, plan->a,
                     &beta, add, plan->c, p->c, plan->c, &plan->algo, s->blas_space,
                     CUDA_BLAS_SPACE, s->stream),
        "product", err);
}

/* ---- the operation ---------------------------------------------------------------------------- */

static const struct cuda_gemm_more one = {.alpha = 1, .batch = 1};

/* One input F32, the other BF16, which cuBLASLt does not multiply: x = high + low + 2^-17 |x|, both
 * BF16, makes it two products of BF16. */
static int mixed(const struct gemm *p, glm_stream s, struct glm_error *err)
{
    const bool first = p->a_type == GLM_F32;
    const bool trans = first ? p->trans_a : p->trans_b;
    const int64_t inner = p->K, outer = first ? p->M : p->N;
    const int64_t rows = trans == first ? inner : outer,
                  cols = trans == first ? outer : inner;
    const int64_t ld = (cols + 7) / 8 * 8;
    const size_t bytes = (size_t)(rows * ld) * 2;
    void *const high = cuda_scratch(s, bytes, err),
                *const low = cuda_scratch(s, bytes, err);
    void *const sum = p->c_type == GLM_F32
        ? p->c
        : cuda_scratch(s, (size_t)(p->M * p->N) * sizeof(float), err);
    struct gemm q = *p;

    if (err->code != GLM_OK
        || cuda_split(high, low, first ? p->a : p->b, rows, cols, first ? p->lda : p->ldb,
               ld, s, err)
            != 0)
        return (int)err->code;
    q.c = sum;
    q.c_type = GLM_F32;
    if (p->c_type != GLM_F32) {
        q.ldc = p->N;
        q.accumulate = false;
    }
    *(first ? &q.a_type : &q.b_type) = GLM_BF16;
    *(first ? &q.lda : &q.ldb) = ld;
    *(first ? &q.a : &q.b) = high;
    if (cuda_gemm_strided(&q, &one, s, err) != 0)
        return (int)err->code;
    *(first ? &q.a : &q.b) = low;
    q.accumulate = true;
    if (cuda_gemm_strided(&q, &one, s, err) != 0 || p->c_type == GLM_F32)
        return (int)err->code;
    return cuda_round(p->c, sum, p->M, p->N, p->ldc, p->accumulate, s, err);
}

/* F32 inputs, BF16 output: the sum in F32, rounded behind it. */
static int narrow(const struct gemm *p, glm_stream s, struct glm_error *err)
{
    void *const sum = cuda_scratch(s, (size_t)(p->M * p->N) * sizeof(float), err);
    struct gemm q = *p;

    if (sum == NULL)
        return (int)err->code;
    q.c = sum;
    q.c_type = GLM_F32;
    q.ldc = p->N;
    q.accumulate = false;
    if (cuda_gemm_strided(&q, &one, s, err) != 0)
        return (int)err->code;
    return cuda_round(p->c, sum, p->M, p->N, p->ldc, p->accumulate, s, err);
}

static bool fits(const struct gemm *p)
{
    return p->M >= 0 && p->N >= 0 && p->K >= 0 && p->lda >= (p->trans_a ? p->M : p->K)
        && p->ldb >= (p->trans_b ? p->K : p->N) && p->ldc >= p->N;
}

int cuda_gemm(const struct gemm *p, glm_stream s, struct glm_error *err)
{
    if (cuda_type("gemm", p->a_type, err) != 0 || cuda_type("gemm", p->b_type, err) != 0
        || cuda_type("gemm", p->c_type, err) != 0)
        return (int)err->code;
    if (!fits(p))
        return glm_fail(err, GLM_EFORMAT,
            "gemm: impossible shape: M %lld, N %lld, K %lld, rows of %lld, %lld, %lld",
            (long long)p->M, (long long)p->N, (long long)p->K, (long long)p->lda,
            (long long)p->ldb, (long long)p->ldc);
    cuda_begin(s);
    if (p->M == 0 || p->N == 0)
        return 0;
    if (p->K == 0)
        return p->accumulate
            ? 0
            : cuda_clear(p->c, p->M, p->N * (int64_t)glm_dtype_size(p->c_type),
                p->ldc * (int64_t)glm_dtype_size(p->c_type), s, err);
    if (p->a_type != p->b_type)
        return mixed(p, s, err);
    if (p->a_type == GLM_F32 && p->c_type == GLM_BF16)
        return narrow(p, s, err);
    return cuda_gemm_strided(p, &one, s, err);
}
