/* Device memory is the host's: filled with NaN when it is new, between guards that are looked at when
 * it is freed. Streams are always done. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include "emu.h"

enum { ROOM = 256, GUARD = 0xA5, NAN_BYTE = 0xFF };

static cudaError_t last; /* of a launch or an allocation, until it is asked for */

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
        return emu_failed(cudaErrorMemoryAllocation);
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

/* ---- recording -------------------------------------------------------------------------------- */

struct emu_graph {
    struct emu_noted {
        void (*call)(void *ctx), (*done)(void *ctx);
        void *ctx;
    } * list;
    size_t count, room;
};

static struct emu_graph *recording;

int emu_recording(void)
{
    return recording != NULL;
}

void emu_note(void (*call)(void *ctx), void (*done)(void *ctx), void *ctx)
{
    if (recording->count == recording->room) {
        recording->room = 2 * recording->room + 64;
        recording->list =
            realloc(recording->list, recording->room * sizeof *recording->list);
        if (recording->list == NULL)
            abort();
    }
    recording->list[recording->count++] = (struct emu_noted){call, done, ctx};
}

cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode)
{
    (void)s;
    (void)mode;
    if (recording != NULL || (recording = calloc(1, sizeof *recording)) == NULL)
        return cudaErrorStreamCaptureUnsupported;
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *graph)
{
    (void)s;
    *graph = recording;
    recording = NULL;
    return *graph != NULL ? cudaSuccess : cudaErrorStreamCaptureUnsupported;
}

/* The calls go over to what is instantiated. */
cudaError_t cudaGraphInstantiate(
    cudaGraphExec_t *ready, cudaGraph_t graph, unsigned long long flags)
{
    (void)flags;
    if ((*ready = malloc(sizeof **ready)) == NULL)
        return cudaErrorMemoryAllocation;
    **ready = *graph;
    *graph = (struct emu_graph){0};
    return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t ready, cudaStream_t s)
{
    (void)s;
    return ready != NULL ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t ready, cudaStream_t s)
{
    (void)s;
    if (recording != NULL)
        return cudaErrorStreamCaptureUnsupported;
    for (size_t i = 0; i < ready->count; i++)
        ready->list[i].call(ready->list[i].ctx);
    return last;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t ready)
{
    return cudaGraphDestroy(ready);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    for (size_t i = 0; i < graph->count; i++)
        graph->list[i].done(graph->list[i].ctx);
    free(graph->list);
    free(graph);
    return cudaSuccess;
}

/* A memset or a copy, noted down. */
struct noted_bytes {
    char *to;
    const char *from; /* NULL: `byte` */
    int byte;
    size_t to_pitch, pitch, width, height;
};

static void move_bytes(void *ctx)
{
    const struct noted_bytes *const b = ctx;

    for (size_t i = 0; i < b->height; i++)
        if (b->from != NULL)
            memmove(b->to + i * b->to_pitch, b->from + i * b->pitch, b->width);
        else
            memset(b->to + i * b->to_pitch, b->byte, b->width);
}

static cudaError_t move_or_note(struct noted_bytes b)
{
    struct noted_bytes *kept;

    if (recording == NULL) {
        move_bytes(&b);
        return cudaSuccess;
    }
    if ((kept = malloc(sizeof *kept)) == NULL)
        return cudaErrorMemoryAllocation;
    *kept = b;
    emu_note(move_bytes, free, kept);
    return cudaSuccess;
}

cudaError_t cudaMallocAsync(void **p, size_t bytes, cudaStream_t s)
{
    (void)s;
    if (recording != NULL)
        return cudaErrorStreamCaptureUnsupported;
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
    return *p == NULL ? emu_failed(cudaErrorMemoryAllocation) : cudaSuccess;
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
    (void)kind;
    return move_or_note((struct noted_bytes){to, from, 0, n, n, n, 1});
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t pitch,
    size_t width, size_t height, enum cudaMemcpyKind kind, cudaStream_t s)
{
    (void)kind;
    (void)s;
    return move_or_note(
        (struct noted_bytes){to, from, 0, to_pitch, pitch, width, height});
}

cudaError_t cudaMemset(void *p, int byte, size_t n)
{
    memset(p, byte, n);
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *p, int byte, size_t n, cudaStream_t s)
{
    (void)s;
    return move_or_note((struct noted_bytes){p, NULL, byte, n, n, n, 1});
}

cudaError_t cudaMemset2DAsync(
    void *p, size_t pitch, int byte, size_t width, size_t height, cudaStream_t s)
{
    (void)s;
    return move_or_note((struct noted_bytes){p, NULL, byte, pitch, 0, width, height});
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
    return recording != NULL ? cudaErrorStreamCaptureUnsupported : last;
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
