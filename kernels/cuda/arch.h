/* Which devices a build has kernels for. */
#ifndef KERNELS_CUDA_ARCH_H
#define KERNELS_CUDA_ARCH_H

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Whether code for these architectures, as in "90a 100a", runs on a device of this compute capability:
 * 90a on 9.0 alone, 100f on any from 10.0 to 10.9, 90 on any from 9.0 to 9.9. */
bool cuda_built_for(const char *archs, int major, int minor);

#ifdef __cplusplus
}
#endif
#endif
