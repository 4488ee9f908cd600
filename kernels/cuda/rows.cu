/* The sums over rows of which each block has its part. */
#include "kernels/cuda/rows.cuh"

/* Block [32, ROW_FOLDS]: slices of the parts side by side, then slices in order. */
static __global__ void k_fold(
    float *to, const float *part, int parts, int64_t pitch, int64_t D)
{
    __shared__ float slice[ROW_FOLDS][ROW_COLUMNS];
    const int64_t d = (int64_t)blockIdx.x * ROW_COLUMNS + threadIdx.x;
    const int s = threadIdx.y, begin = s * parts / ROW_FOLDS;
    const int end = (s + 1) * parts / ROW_FOLDS;
    float sum = 0;

#pragma unroll 8
    for (int i = begin; i < end; i++)
        sum += d < D ? part[i * pitch + d] : 0;
    slice[s][threadIdx.x] = sum;
    __syncthreads();
    if (s > 0 || d >= D)
        return;
    for (int i = 1; i < ROW_FOLDS; i++)
        sum += slice[i][threadIdx.x];
    to[d] += sum;
}

int rows_fold(float *to, const float *part, int parts, int64_t pitch, int64_t D,
    glm_stream s, struct glm_error *err)
{
    return LAUNCH(k_fold, blocks_of(D, ROW_COLUMNS), dim3(ROW_COLUMNS, ROW_FOLDS), 0, s,
        err, to, part, parts, pitch, D);
}
