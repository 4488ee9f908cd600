/* Dense causal attention forward by cuDNN, one sequence, heads of 256 dimensions in BF16: the graph that
 * its frontend builds of products, softmax and mask, by an engine that repeats its bits.
 *
 * A plan is made once per shape, on the host, when an operation of the shape first comes (also on a
 * dry stream): that takes seconds. A run takes scratch memory and queues kernels, nothing else.
 *
 * On an H200, cuDNN 9.14, 64 heads: 0.83 ms for 4,096 rows and 3.04 for 8,192, attention_tma.cu 0.86
 * and 3.17. Backward is not here: its deterministic engine (dS in workspace) took 4.76 and 18.7 ms
 * where ours took 4.13 and 15.8 on that day, and it left NaN in dk where the length was no multiple
 * of 128. */
#ifndef KERNELS_CUDA_ATTENTION_CUDNN_H
#define KERNELS_CUDA_ATTENTION_CUDNN_H

#include "kernels/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

struct attention_cudnn;

/* NULL: the reason is in err, GLM_EUSAGE if there is no cuDNN here that is new enough. */
struct attention_cudnn *attention_cudnn_new(struct glm_error *err);
void attention_cudnn_free(struct attention_cudnn *a);
long attention_cudnn_version(const struct attention_cudnn *a);

/* Whether cuDNN took the operation, which has resolved strides, one sequence and no sets; what
 * became of it is in err. */
bool attention_cudnn_fwd(
    const struct attention_fwd *p, glm_stream stream, struct glm_error *err);

#ifdef __cplusplus
}
#endif
#endif
