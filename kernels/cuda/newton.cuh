/* Newton-Schulz of a batch of matrices, for newton_schulz and Muon. */
#ifndef KERNELS_CUDA_NEWTON_CUH
#define KERNELS_CUDA_NEWTON_CUH

#include "kernels/cuda/cuda.h"

/* A batch under way, all in scratch memory: u F32, the rest F32 or BF16. With BF16 a matrix takes
 * 6 R C + 8 n n bytes, n = min(R,C). */
struct newton {
    float *u;            /* [B,R,C]: room for what comes in; Y lies in its place */
    void *x, *y;         /* [B,R,C]: X, and where the next X goes */
    void *a, *b, *t, *q; /* [B,n,n]; t, q where steps are chained */
    double *squares;     /* [B] */
    int64_t B, R, C, n;
    enum glm_dtype type;
};

int newton_check(const char *op, enum glm_dtype dtype, int64_t B, int64_t R, int64_t C,
    int steps, struct glm_error *err);
/* Matrices of B that go through together: what keeps scratch memory within 2 GiB. A matrix's bits do
 * not depend on it. */
int64_t newton_batch(int64_t B, int64_t R, int64_t C, bool low);
int newton_open(struct newton *s, int64_t B, int64_t R, int64_t C, bool low,
    glm_stream stream, struct glm_error *err);
/* s->x = NS(u), of s->type; u may be s->u. */
int newton_run(struct newton *s, const float *u, const double (*coeff)[3], int steps,
    glm_stream stream, struct glm_error *err);

#endif
