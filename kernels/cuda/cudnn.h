/* cuDNN's graphs from C, as much of them as attention takes: tensors of four dimensions, operations
 * on them, a plan that runs all of them as one.
 *
 *     struct cudnn_graph *g = cudnn_graph_new(lib);
 *     int a = cudnn_tensor(g, CUDNN_BF16, CUDNN_MEMORY, dims, strides), b = ..., c = ...;
 *     cudnn_matmul(g, a, b, c);
 *     struct cudnn_plan *plan = cudnn_plan_new(g, err);       // ends g, whatever comes
 *     cudnn_run(plan, stream, ids, pointers, 3, workspace, err);
 *
 * The library is opened when it is first asked for (libcudnn.so.9) and nothing is linked to it; its
 * numbers of attributes are part of its ABI. A graph keeps the first thing that went wrong, and
 * cudnn_plan_new tells it, unless it was that cuDNN does not take the graph.
 *
 * Only engines that cuDNN does not call nondeterministic are taken, the first in the order of its
 * heuristics that accepts the graph: a function of the graph, the device and cuDNN's version. */
#ifndef KERNELS_CUDA_CUDNN_H
#define KERNELS_CUDA_CUDNN_H

#include "kernels/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

enum cudnn_type { CUDNN_F32 = 0, CUDNN_I32 = 4, CUDNN_BF16 = 9, CUDNN_BOOL = 11 };

/* Between operations; in device memory; one number, in host memory when the plan runs. */
enum cudnn_place { CUDNN_BETWEEN, CUDNN_MEMORY, CUDNN_NUMBER };

/* cudnnPointwiseMode_t and cudnnReduceTensorOp_t. */
enum cudnn_pointwise {
    CUDNN_ADD = 0,
    CUDNN_MUL = 1,
    CUDNN_DIV = 6,
    CUDNN_SUB = 9,
    CUDNN_EXP = 13,
    CUDNN_LOG = 15,
    CUDNN_AT_LEAST = 303,
    CUDNN_INDEX = 501, /* along an axis */
    CUDNN_SELECT = 601 /* x where t, else b */
};
enum cudnn_reduction { CUDNN_SUM = 0, CUDNN_MOST = 3 };

struct cudnn;
struct cudnn_graph;
struct cudnn_plan;

/* For the current device. oldest: the version that will do, as cudnn_version has it. NULL: the reason is
 * in err, GLM_EUSAGE if there is no such cuDNN 9 here. */
struct cudnn *cudnn_new(long oldest, struct glm_error *err);
void cudnn_free(struct cudnn *c);
/* 91900 for 9.19.0. */
long cudnn_version(const struct cudnn *c);

struct cudnn_graph *cudnn_graph_new(const struct cudnn *c);
void cudnn_graph_free(struct cudnn_graph *g);
/* The tensor's id, positive. */
int cudnn_tensor(struct cudnn_graph *g, enum cudnn_type type, enum cudnn_place place,
    const int64_t dims[4], const int64_t strides[4]);
void cudnn_matmul(struct cudnn_graph *g, int a, int b, int c);
/* b, t: 0 where the mode takes none. `in` is the type that is computed in. */
void cudnn_pointwise(struct cudnn_graph *g, enum cudnn_pointwise mode, enum cudnn_type in,
    int axis, int x, int b, int t, int y);
void cudnn_reduce(struct cudnn_graph *g, enum cudnn_reduction op, int x, int y);

/* NULL: no engine takes the graph; or, with err set, something failed. */
struct cudnn_plan *cudnn_plan_new(struct cudnn_graph *g, struct glm_error *err);
void cudnn_plan_free(struct cudnn_plan *p);
size_t cudnn_workspace(const struct cudnn_plan *p);
int cudnn_run(const struct cudnn_plan *p, cudaStream_t stream, const int64_t ids[],
    const void *const pointers[], int n, void *workspace, struct glm_error *err);

#ifdef __cplusplus
}
#endif
#endif
