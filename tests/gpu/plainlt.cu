/* cublasLtMatmul as a plain kernel: an element a thread, its sum in F32 in ascending k. It makes up
 * libglm-cuda-plain.so.
 *
 * compute-sanitizer's racecheck cannot run cuBLASLt's own kernels on Hopper (it ends with an internal
 * error), so operations that use both are checked with this one in their place: gpu_ops
 * --plain-products opens this library before the backend, and the loader takes the first of a name. All
 * else of cuBLASLt stays: what a product is, is read from its descriptors. */
#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdint.h>

struct matrix {
    const void *x;
    int64_t rows, cols, ld, stride;
    int type, batch;
    bool trans;
};

struct product {
    struct matrix a, b, c;
    void *to;
    float alpha, beta;
    int64_t K;
};

static __device__ float at(const struct matrix &m, int64_t row, int64_t col, int64_t batch)
{
    const int64_t i = batch * m.stride + (m.trans ? row * m.ld + col : col * m.ld + row);
    return m.type == CUDA_R_16BF ? __bfloat162float(((const __nv_bfloat16 *)m.x)[i])
                                 : ((const float *)m.x)[i];
}

static __global__ void plain_product(struct product p)
{
    const int64_t n = p.c.rows * p.c.cols * p.c.batch;

    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x) {
        const int64_t row = i % p.c.rows, col = i / p.c.rows % p.c.cols,
                      batch = i / (p.c.rows * p.c.cols);
        float sum = 0;
        for (int64_t k = 0; k < p.K; k++)
            sum += at(p.a, row, k, batch) * at(p.b, k, col, batch);
        sum = p.alpha * sum + (p.beta != 0 ? p.beta * at(p.c, row, col, batch) : 0);
        const int64_t to = batch * p.c.stride + col * p.c.ld + row;
        if (p.c.type == CUDA_R_16BF)
            ((__nv_bfloat16 *)p.to)[to] = __float2bfloat16_rn(sum);
        else
            ((float *)p.to)[to] = sum;
    }
}

template <class T> static T get(cublasLtMatrixLayout_t l, cublasLtMatrixLayoutAttribute_t what)
{
    T value = 0;
    size_t size;
    cublasLtMatrixLayoutGetAttribute(l, what, &value, sizeof value, &size);
    return value;
}

static struct matrix matrix_of(const void *x, cublasLtMatrixLayout_t l, bool trans)
{
    struct matrix m = {};
    m.x = x;
    m.rows = (int64_t)get<uint64_t>(l, CUBLASLT_MATRIX_LAYOUT_ROWS);
    m.cols = (int64_t)get<uint64_t>(l, CUBLASLT_MATRIX_LAYOUT_COLS);
    m.ld = get<int64_t>(l, CUBLASLT_MATRIX_LAYOUT_LD);
    m.stride = get<int64_t>(l, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET);
    m.type = (int)get<uint32_t>(l, CUBLASLT_MATRIX_LAYOUT_TYPE);
    m.batch = get<int32_t>(l, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT);
    m.trans = trans;
    return m;
}

static bool transposed(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t what)
{
    int32_t op = CUBLAS_OP_N;
    size_t size;
    cublasLtMatmulDescGetAttribute(d, what, &op, sizeof op, &size);
    return op != CUBLAS_OP_N;
}

extern "C" cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t d,
    const void *alpha, const void *a, cublasLtMatrixLayout_t la, const void *b,
    cublasLtMatrixLayout_t lb, const void *beta, const void *c, cublasLtMatrixLayout_t lc,
    void *to, cublasLtMatrixLayout_t, const cublasLtMatmulAlgo_t *, void *, size_t,
    cudaStream_t stream)
{
    struct product p = {};
    p.a = matrix_of(a, la, transposed(d, CUBLASLT_MATMUL_DESC_TRANSA));
    p.b = matrix_of(b, lb, transposed(d, CUBLASLT_MATMUL_DESC_TRANSB));
    p.c = matrix_of(c, lc, false);
    p.to = to;
    p.alpha = *(const float *)alpha;
    p.beta = *(const float *)beta;
    p.K = p.a.trans ? p.a.rows : p.a.cols;
    plain_product<<<256, 256, 0, stream>>>(p);
    return cudaGetLastError() == cudaSuccess ? CUBLAS_STATUS_SUCCESS
                                             : CUBLAS_STATUS_EXECUTION_FAILED;
}
