/* The one place that calls the GEMM library: one block of C, on the calling thread.
 *
 * BLIS with its path for small matrices off: then an element of C is one chain of multiply-adds
 * over K (in the library's fixed pieces of K), whatever the other rows and columns are. So a row's
 * bits depend neither on how rows are grouped nor on who computes which block;
 * tests/kernels/test_gemm.c checks it. */
#ifndef KERNELS_CPU_GEMM_H
#define KERNELS_CPU_GEMM_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/base/dtype.h"
#include "kernels/base/error.h"
#include "kernels/base/stream.h"

struct gemm_matrix {
    void *p; /* of the first element; A and B are only read */
    int64_t stride;
    enum glm_dtype type; /* BF16, F32, F64 */
    bool transposed;
};

/* Row i and column j of the matrix after its transposition. */
struct gemm_matrix gemm_at(struct gemm_matrix m, int64_t i, int64_t j);

/* C[m,n] = A[m,k] B[k,n] (+ C). BF16 is widened first, exactly; a BF16 C is rounded once. All F64
 * or none. Scratch comes from the pool, from any of its threads. */
int gemm_block(struct gemm_matrix c, struct gemm_matrix a, struct gemm_matrix b,
    int64_t m, int64_t n, int64_t k, bool accumulate, glm_stream pool,
    struct glm_error *err);

/* Are the types a possible combination? */
bool gemm_types(enum glm_dtype a, enum glm_dtype b, enum glm_dtype c);

#endif
