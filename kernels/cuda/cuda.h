/* What the files of the CUDA backend share: the stream, its scratch memory, checked calls.
 *
 * Calls return when the work is queued. An operation takes what it needs besides its arguments from
 * the stream's scratch memory: cuda_begin, then cuda_scratch as often as it likes, then kernels. The
 * next operation takes the same bytes again, which the order of the stream makes safe.
 *
 * A dry stream queues nothing: operations run through their host code and only count scratch, so
 * that one dry step finds how much the real one takes. LAUNCH, cuda_fill and the GEMM check `dry`
 * themselves. An operation that needs more than was reserved (in tests: always) gets it from the
 * driver's pool; `grown` counts these.
 *
 * Nothing here or in the operations reads device memory on the host. */
#ifndef KERNELS_CUDA_CUDA_H
#define KERNELS_CUDA_CUDA_H

#ifdef __cplusplus
extern "C" {
#endif

#include <cuda_runtime_api.h>

#include "kernels/kernels.h"

/* Attention's path, and that of the indexer's loss, where several serve a shape. Left to itself the
 * best; the environment variable GLM_CUDA_ATTENTION=plain|mma|lean|wgmma|cudnn names the best that may
 * be taken, read once when the stream is made, and the device's name then says so. lean: wgmma that
 * goes backward as it does where a head's dS fits no memory. cudnn: wgmma, but cuDNN forward over one
 * whole sequence without key sets; the default on Hopper where there is cuDNN. */
enum cuda_attention {
    CUDA_ATTENTION_PLAIN,
    CUDA_ATTENTION_MMA,
    CUDA_ATTENTION_LEAN,
    CUDA_ATTENTION_WGMMA,
    CUDA_ATTENTION_CUDNN
};

/* Who makes the tiles of grouped_gemm in BF16, where shapes and device allow: likewise
 * GLM_CUDA_GROUPED=plain|mma|wgmma|pair. pair: wgmma in clusters of two blocks. */
enum cuda_grouped {
    CUDA_GROUPED_PLAIN,
    CUDA_GROUPED_MMA,
    CUDA_GROUPED_WGMMA,
    CUDA_GROUPED_PAIR
};

struct glm_stream_ {
    cudaStream_t stream;
    void *blas;       /* cublasLtHandle_t */
    void *blas_space; /* its workspace, CUDA_BLAS_SPACE bytes: the same in every call */
    char *scratch;    /* lent */
    size_t at, lent, peak, size; /* lent: what lies in front of it, for peak */
    struct cuda_extra *extra;    /* pool memory of the operation that runs */
    long grown;
    bool dry;
    int processors, shared_bytes; /* multiprocessors; shared memory a block may ask for */
    int major, minor;             /* compute capability */
    enum cuda_attention attention;
    struct attention_cudnn *cudnn; /* with CUDA_ATTENTION_CUDNN */
    enum cuda_grouped grouped;
    char name[256];
};

enum { CUDA_ALIGN = 256, CUDA_BLAS_SPACE = 64 << 20 };

/* Sentence from a status: what was asked, the driver's words. Returns err->code, 0 for success. */
int cuda_check(cudaError_t status, const char *what, struct glm_error *err);

/* Forgets the scratch of the operation before. */
void cuda_begin(glm_stream s);
/* bytes > 0, aligned to CUDA_ALIGN. NULL with a sentence. On a dry stream an address that must not
 * be followed. */
void *cuda_scratch(glm_stream s, size_t bytes, struct glm_error *err);
/* memset in the order of the stream. */
int cuda_fill(glm_stream s, void *p, int byte, size_t bytes, struct glm_error *err);

/* Makes the GEMM ready; frees it. */
int cuda_gemm_open(glm_stream s, struct glm_error *err);
void cuda_gemm_close(glm_stream s);
/* C = alpha op(A) op(B) + (accumulate ? C : 0) of `batch` matrices, stride_x elements apart (0: the
 * same for all). With `add`, of C's type and layout: C = alpha op(A) op(B) + beta add, rounded once.
 * The rest as in struct gemm. */
struct cuda_gemm_more {
    float alpha;
    int64_t batch, stride_a, stride_b, stride_c;
    const void *add;
    float beta;
};
int cuda_gemm_strided(const struct gemm *p, const struct cuda_gemm_more *more,
    glm_stream s, struct glm_error *err);

/* high + low = x to 2^-17: BF16 each, [rows,cols], rows to_ld apart; x F32, rows ld apart. */
int cuda_split(void *high, void *low, const void *x, int64_t rows, int64_t cols,
    int64_t ld, int64_t to_ld, glm_stream s, struct glm_error *err);
/* y = low(x) or low(x + y): y BF16, rows ld apart; x [rows,cols] F32. */
int cuda_round(void *y, const void *x, int64_t rows, int64_t cols, int64_t ld, bool add,
    glm_stream s, struct glm_error *err);
/* Zeroes `rows` rows of `bytes` bytes, `pitch` bytes apart. */
int cuda_clear(void *p, int64_t rows, int64_t bytes, int64_t pitch, glm_stream s,
    struct glm_error *err);

/* Types a backend without F64 has: BF16 and F32. GLM_EUSAGE names the operation. */
int cuda_type(const char *op, enum glm_dtype dtype, struct glm_error *err);

const struct kernels *glm_backend(void); /* what kernels_open looks for in the library */

#ifdef __cplusplus
}
#endif
#endif
