/* One row of operations per backend, and the memory they work on. */
#ifndef KERNELS_KERNELS_H
#define KERNELS_KERNELS_H

#include <stddef.h>

#include "kernels/ops.h"

struct kernels {
    const char *name; /* "cpu", "cuda" */
#define KERNELS_MEMBER(op) op##_fn *op;
    OPS(KERNELS_MEMBER)
#undef KERNELS_MEMBER
    /* The pool of n threads (CPU) or a CUDA stream. NULL with a sentence on failure. */
    glm_stream (*stream_new)(int threads, struct glm_error *err);
    void (*stream_free)(glm_stream stream);
    int (*stream_wait)(glm_stream stream, struct glm_error *err);
    const char *(*device_name)(glm_stream stream);

    /* Memory of the backend, aligned to 256 bytes, contents undefined; NULL with a sentence. Whether
     * the host may follow such pointers: `host`. */
    bool host;
    void *(*alloc)(size_t bytes, struct glm_error *err);
    void (*release)(void *memory); /* NULL is harmless */
    /* The host's memory, to and from which copies are fast (page-locked for a GPU). */
    void *(*host_alloc)(size_t bytes, struct glm_error *err);
    void (*host_release)(void *memory);
    /* In the order of the stream, done when they return. */
    int (*to_device)(void *to, const void *from, size_t bytes, glm_stream stream,
        struct glm_error *err);
    int (*to_host)(void *to, const void *from, size_t bytes, glm_stream stream,
        struct glm_error *err);
    int (*zero)(void *p, size_t bytes, glm_stream stream, struct glm_error *err);

    /* NULL, as the next two: operations need no memory of the backend besides their arguments. Else
     * on: operations queue nothing and read nothing, they only count. */
    void (*dry)(glm_stream stream, bool on);
    /* Operations take their scratch memory from here: base + at to base + size, until the next call;
     * without room they get it from the driver, which is slow. On a dry stream base is not read. */
    void (*lend)(glm_stream stream, void *base, size_t at, size_t size);
    /* The most that at + scratch came to since dry was set on. */
    size_t (*scratch_peak)(glm_stream stream);

    /* NULL, as the next three: nothing can be recorded. From record on, operations and zero are noted
     * down, with their arguments as they are now, and not run; nothing else may be asked of the
     * stream until recorded, which hands out what was noted. What the arguments point to must stay
     * where it is; replay queues it all as one piece, with the bits that the operations would have
     * had. After a failure between the two, recorded is called all the same. */
    int (*record)(glm_stream stream, struct glm_error *err);
    int (*recorded)(glm_stream stream, void **recording, struct glm_error *err);
    int (*replay)(void *recording, glm_stream stream, struct glm_error *err);
    void (*forget)(void *recording); /* NULL is harmless */
};

/* The backend of a name. "cuda" is a library of its own, libglm-cuda.so, looked for at $GLM_CUDA_LIB,
 * beside the program's folder (../lib, ../lib/glm) and where the loader looks; so nothing else
 * depends on CUDA. NULL with a sentence: GLM_EUSAGE no such name, GLM_EDEVICE not in this build. */
const struct kernels *kernels_open(const char *name, struct glm_error *err);
/* Whether the machine has an NVIDIA driver: nothing is started to find out. */
bool kernels_driver(void);
/* kernels_open without the sentence. */
const struct kernels *kernels_find(const char *name);

#endif
