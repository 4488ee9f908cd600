/* Switches that break an operation on purpose: a test of parity that passes with one of them on
 * proves nothing. Each is compiled in by -D<name> (make BUILD=... EXTRA_CFLAGS=-DMUTATE_...), never
 * in a build that is shipped.
 *
 * MUTATE_ROPE_HALVES      rope.c         pairs (j, j + D/2) in place of (2j, 2j+1)
 * MUTATE_GATE_UP_SWAPPED  elementwise.c  SwiGLU takes the other input through the sigmoid
 * MUTATE_NORM_UNCENTRED   layernorm.c    LayerNorm without its mean: RMSNorm with a bias
 * MUTATE_NO_RELU          indexer.c   index scores, and their gradients, without the ReLU
 * MUTATE_BIAS_IN_WEIGHTS  router.c    the selection bias enters the experts' weights too
 * MUTATE_GROUP_ZERO       router.c    experts of dropped groups count as 0, not as excluded */
#ifndef KERNELS_CPU_MUTATE_H
#define KERNELS_CPU_MUTATE_H

#endif
