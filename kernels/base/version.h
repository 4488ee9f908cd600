/* The version of the suite: commands, library and provenance lines say the same. */
#ifndef KERNELS_BASE_VERSION_H
#define KERNELS_BASE_VERSION_H

#define GLM_VERSION "0.1.0"

#endif
