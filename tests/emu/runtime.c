/* Device memory is the host's: filled with NaN when it is new, between guards that are looked at when
 * it is freed. Streams are always done. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include "emu.h"

enum { ROOM = 256, GUARD = 0xA5, NAN_BYTE = 0xFF };

static cudaError_t last; /* of a launch, until it is asked for */

cudaError_t emu_failed(cudaError_t e)
{
    if (last == cudaSuccess)
        last = e;
    return e;
}

const char *cudaGetErrorString(cudaError_t e)
{
    return e == cudaSuccess              ? "no error"
        : e == cudaErrorMemoryAllocation ? "out of memory"
        : e == cudaErrorLaunchFailure    ? "a kernel came to a halt, see above"
        : e == cudaErrorInvalidConfiguration
        ? "more threads, blocks or shared memory than there are"
        : "error";
}

const char *cudaGetErrorName(cudaError_t e)
{
    return e == cudaSuccess ? "cudaSuccess" : "emulated";
}

cudaError_t cudaGetLastError(void)
{
    const cudaError_t e = last;

    last = cudaSuccess;
    return e;
}

cudaError_t cudaPeekAtLastError(void)
{
    return last;
}

cudaError_t cudaGetDeviceCount(int *n)
{
    *n = 1;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device)
{
    *device = 0;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    return device == 0 ? cudaSuccess : cudaErrorInvalidValue;
}

/* Few processors, so that persistent kernels go round more than once. */
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device)
{
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "emulated GPU");
    p->major = 9;
    p->multiProcessorCount = 3;
    p->sharedMemPerBlockOptin = EMU_SHARED;
    p->totalGlobalMem = (size_t)1 << 34;
    p->l2CacheSize = 50 << 20;
    return device == 0 ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = 13000;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    return cudaDriverGetVersion(version);
}

cudaError_t cudaDeviceSynchronize(void)
{
    return last;
}

/* ---- memory: [size | room of guards | bytes | room of guards] --------------------------------- */

cudaError_t cudaMalloc(void **p, size_t bytes)
{
    const size_t whole = (bytes + ROOM - 1) / ROOM * ROOM;
#ifdef __SANITIZE_ADDRESS__
    void *m = NULL; /* of the very size: the sanitizer has guards of its own */
    if (posix_memalign(&m, ROOM, bytes > 0 ? bytes : 1) != 0)
        m = NULL;
    (void)GUARD;
    (void)whole;
#else
    char *m = aligned_alloc(ROOM, whole + 2 * ROOM);
#endif

    if (m == NULL)
        return cudaErrorMemoryAllocation;
#ifndef __SANITIZE_ADDRESS__
    memset(m, GUARD, whole + 2 * ROOM);
    memcpy(m, &bytes, sizeof bytes);
    m += ROOM;
#endif
    memset(m, NAN_BYTE, bytes);
    *p = m;
    return cudaSuccess;
}

#ifndef __SANITIZE_ADDRESS__
static void guarded(const unsigned char *m, size_t from, size_t to, const char *where)
{
    for (size_t i = from; i < to; i++)
        if (m[i] != GUARD) {
            fprintf(stderr, "emulated GPU: a byte %s device memory was written\n", where);
            abort();
        }
}
#endif

cudaError_t cudaFree(void *p)
{
    if (p == NULL)
        return cudaSuccess;
#ifndef __SANITIZE_ADDRESS__
    unsigned char *const m = (unsigned char *)p - ROOM;
    size_t bytes;
    memcpy(&bytes, m, sizeof bytes);
    guarded(m, sizeof bytes, ROOM, "in front of");
    guarded(m, ROOM + bytes, (bytes + ROOM - 1) / ROOM * ROOM + 2 * ROOM, "behind");
    p = m;
#endif
    free(p);
    return cudaSuccess;
}

cudaError_t cudaMallocAsync(void **p, size_t bytes, cudaStream_t s)
{
    (void)s;
    return cudaMalloc(p, bytes);
}

cudaError_t cudaFreeAsync(void *p, cudaStream_t s)
{
    (void)s;
    return cudaFree(p);
}

cudaError_t cudaMallocHost(void **p, size_t bytes)
{
    *p = malloc(bytes > 0 ? bytes : 1);
    return *p == NULL ? cudaErrorMemoryAllocation : cudaSuccess;
}

cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned flags)
{
    (void)flags;
    return cudaMallocHost(p, bytes);
}

cudaError_t cudaFreeHost(void *p)
{
    free(p);
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *there, size_t *all)
{
    *there = *all = (size_t)1 << 34;
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t n, enum cudaMemcpyKind kind)
{
    (void)kind;
    memmove(to, from, n);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(
    void *to, const void *from, size_t n, enum cudaMemcpyKind kind, cudaStream_t s)
{
    (void)s;
    return cudaMemcpy(to, from, n, kind);
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t pitch,
    size_t width, size_t height, enum cudaMemcpyKind kind, cudaStream_t s)
{
    (void)kind;
    (void)s;
    for (size_t i = 0; i < height; i++)
        memmove((char *)to + i * to_pitch, (const char *)from + i * pitch, width);
    return cudaSuccess;
}

cudaError_t cudaMemset(void *p, int byte, size_t n)
{
    memset(p, byte, n);
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *p, int byte, size_t n, cudaStream_t s)
{
    (void)s;
    return cudaMemset(p, byte, n);
}

cudaError_t cudaMemset2DAsync(
    void *p, size_t pitch, int byte, size_t width, size_t height, cudaStream_t s)
{
    (void)s;
    for (size_t i = 0; i < height; i++)
        memset((char *)p + i * pitch, byte, width);
    return cudaSuccess;
}

/* ---- streams and events ----------------------------------------------------------------------- */

static char anything;

cudaError_t cudaStreamCreate(cudaStream_t *s)
{
    *s = (cudaStream_t)(void *)&anything;
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags)
{
    (void)flags;
    return cudaStreamCreate(s);
}

cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    (void)s;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    (void)s;
    return last;
}

cudaError_t cudaStreamQuery(cudaStream_t s)
{
    (void)s;
    return last;
}

cudaError_t cudaEventCreate(cudaEvent_t *e)
{
    *e = (cudaEvent_t)(void *)&anything;
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags)
{
    (void)flags;
    return cudaEventCreate(e);
}

cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    (void)e;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
    (void)e;
    (void)s;
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
    (void)e;
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t e)
{
    (void)e;
    return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    (void)from;
    (void)to;
    *ms = 0;
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags)
{
    (void)s;
    (void)e;
    (void)flags;
    return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(
    const void *kernel, enum cudaFuncAttribute what, int value)
{
    (void)kernel;
    (void)what;
    return value > EMU_SHARED ? cudaErrorInvalidValue : cudaSuccess;
}
