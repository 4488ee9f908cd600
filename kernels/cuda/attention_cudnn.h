/* Dense causal attention of one sequence by cuDNN, heads of 256 dimensions in BF16, forward and
 * backward: the graphs that its frontend builds of products, softmax and mask, by an engine that
 * repeats its bits. dS goes to scratch memory, a chunk of heads at a time.
 *
 * A plan is made once per shape, on the host, when an operation of the shape first comes (also on a
 * dry stream): that takes seconds. A run takes scratch memory and queues kernels, nothing else. */
#ifndef KERNELS_CUDA_ATTENTION_CUDNN_H
#define KERNELS_CUDA_ATTENTION_CUDNN_H

#include "kernels/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

struct attention_cudnn;

/* NULL: the reason is in err. */
struct attention_cudnn *attention_cudnn_new(struct glm_error *err);
void attention_cudnn_free(struct attention_cudnn *a);
long attention_cudnn_version(const struct attention_cudnn *a);

/* Whether cuDNN took the operation, which has resolved strides, T > 0, one sequence and no sets; what
 * became of it is in err. */
bool attention_cudnn_fwd(
    const struct attention_fwd *p, glm_stream stream, struct glm_error *err);
bool attention_cudnn_bwd(
    const struct attention_bwd *p, glm_stream stream, struct glm_error *err);

#ifdef __cplusplus
}
#endif
#endif
