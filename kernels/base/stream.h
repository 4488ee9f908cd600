/* Where an operation runs: a backend's queue. On the CPU a stream is a pool of threads and calls
 * return when the work is done; on CUDA it is a stream and they return at once. */
#ifndef KERNELS_BASE_STREAM_H
#define KERNELS_BASE_STREAM_H

typedef struct glm_stream_ *glm_stream; /* NULL on the CPU: the calling thread alone */

#endif
