/* What cuBLASLt lacks around a product: splitting F32 in two BF16, rounding a sum in place. */
#include "kernels/cuda/launch.cuh"

enum { THREADS = 256 };

static __global__ void k_split(bf16 *high, bf16 *low_, const float *x, int64_t rows,
    int64_t cols, int64_t ld, int64_t to_ld)
{
    const int64_t c = (int64_t)blockIdx.x * THREADS + threadIdx.x;

    for (int64_t r = blockIdx.y; c < cols && r < rows; r += gridDim.y) {
        const float v = x[r * ld + c];
        const bf16 h = put<bf16>(v);
        high[r * to_ld + c] = h;
        low_[r * to_ld + c] = put<bf16>(isfinite(v) ? v - get(h) : 0);
    }
}

static unsigned row_blocks(int64_t rows)
{
    return (unsigned)(rows < 4096 ? rows : 4096);
}

extern "C" int cuda_split(void *high, void *low_, const void *x, int64_t rows,
    int64_t cols, int64_t ld, int64_t to_ld, glm_stream s, struct glm_error *err)
{
    return LAUNCH(k_split, dim3(blocks_of(cols, THREADS), row_blocks(rows)), THREADS, 0, s,
        err, (bf16 *)high, (bf16 *)low_, (const float *)x, rows, cols, ld, to_ld);
}

static __global__ void k_round(
    bf16 *y, const float *x, int64_t rows, int64_t cols, int64_t ld, bool add)
{
    const int64_t c = (int64_t)blockIdx.x * THREADS + threadIdx.x;

    for (int64_t r = blockIdx.y; c < cols && r < rows; r += gridDim.y) {
        const float v = x[r * cols + c];
        bf16 *const to = &y[r * ld + c];
        *to = put<bf16>(add ? v + get(*to) : v);
    }
}

extern "C" int cuda_round(void *y, const void *x, int64_t rows, int64_t cols, int64_t ld,
    bool add, glm_stream s, struct glm_error *err)
{
    return LAUNCH(k_round, dim3(blocks_of(cols, THREADS), row_blocks(rows)), THREADS, 0, s,
        err, (bf16 *)y, (const float *)x, rows, cols, ld, add);
}
