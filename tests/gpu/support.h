/* What tools on the GPU need beside the backend: weights by formula, events. libglm-cuda-test.so. */
#ifndef TESTS_GPU_SUPPORT_H
#define TESTS_GPU_SUPPORT_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Element i of n = mean + scale * (sum of the four 16-bit parts of splitmix64(seed + i) - 131070),
 * computed in float, rounded to BF16 if bf16, else F32. std: 37837.2 * scale. Done when it returns; 0
 * or CUDA's status. */
int cudatest_fill(void *to, int64_t n, int bf16, uint64_t seed, float scale, float mean);
/* The sum of squares and count picks of x[i * n / count], copied to the host. x is F32. */
int cudatest_sample(
    const void *x, int64_t n, int64_t count, float *picks, double *squares);
/* Events on the stream that is the first member of glm_stream: record `which`, then the milliseconds
 * between two. */
int cudatest_event(int which, void *stream);
float cudatest_elapsed(int from, int to);
/* Queues a copy inside the device's memory. */
int cudatest_copy(void *to, const void *from, int64_t bytes, void *stream);
/* A kernel on a stream of its own that keeps a quarter of the GPU and its memory busy until stop, or 20
 * s. 0, CUDA's status, or -1: it did not come to run; when it was stopped, it did not run any more. */
int cudatest_noise_start(void);
int cudatest_noise_stop(void);
/* Seconds in which a kernel, copy or fill was running since start, and how many kernels there were
 * (busy.cu). start: 0, or -1: CUPTI is not there. Running under it takes longer. */
int cudatest_busy_start(void);
double cudatest_busy_stop(int64_t *count);
/* Bytes of the device's memory that are in use. */
int64_t cudatest_used(void);

#ifdef __cplusplus
}
#endif
#endif
