/* Sums of squares in the canonical order, for what needs them inside. */
#ifndef KERNELS_CUDA_SQUARES_CUH
#define KERNELS_CUDA_SQUARES_CUH

#include "kernels/cuda/cuda.h"

/* sum_squares without cuda_begin: it adds its scratch to the caller's. */
int squares_queue(const struct sum_squares *p, glm_stream s, struct glm_error *err);

#endif
