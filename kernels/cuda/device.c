/* The device: streams, memory, copies, and sentences when there is none. */
#include "kernels/cuda/cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/arch.h"
#include "kernels/cuda/attention_cudnn.h"

struct cuda_extra {
    struct cuda_extra *next;
    void *memory;
};

int cuda_check(cudaError_t status, const char *what, struct glm_error *err)
{
    if (status == cudaSuccess)
        return (int)err->code;
    /* The runtime keeps it, too, and a caller that can do without (a copy of the state in page-locked
     * memory, a recording) would find it again behind its next kernel. */
    (void)cudaGetLastError();
    return glm_fail(err, status == cudaErrorMemoryAllocation ? GLM_ENOMEM : GLM_EDEVICE,
        "CUDA: %s: %s (%s)", what, cudaGetErrorString(status), cudaGetErrorName(status));
}

int cuda_type(const char *op, enum glm_dtype dtype, struct glm_error *err)
{
    if (dtype == GLM_BF16 || dtype == GLM_F32)
        return 0;
    return glm_fail(err, GLM_EUSAGE,
        "%s: elements of %s: on the GPU they are BF16 or F32", op, glm_dtype_name(dtype));
}

/* What the Makefile's CUDA_ARCH was. */
#ifndef CUDA_BUILT_FOR
#define CUDA_BUILT_FOR "90a"
#endif

/* ---- opening ---------------------------------------------------------------------------------- */

/* Why there is no device, and what to do. */
static int no_device(cudaError_t status, struct glm_error *err)
{
    int driver = 0, runtime = 0;

    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    if (driver == 0)
        return glm_fail(err, GLM_EDEVICE,
            "device cuda: this machine has no NVIDIA driver; install one, or choose "
            "device cpu");
    if (driver / 1000 < runtime / 1000)
        return glm_fail(err, GLM_EDEVICE,
            "device cuda: the driver serves CUDA %d.%d, this program needs %d.0 or "
            "newer; install a newer driver, or choose device cpu",
            driver / 1000, driver % 1000 / 10, runtime / 1000);
    return glm_fail(err, GLM_EDEVICE,
        "device cuda: no GPU can be used: %s; nvidia-smi lists what the driver finds, "
        "CUDA_VISIBLE_DEVICES may hide it",
        status == cudaSuccess ? "none is there" : cudaGetErrorString(status));
}

bool cuda_built_for(const char *archs, int major, int minor)
{
    char *end = NULL;

    for (const char *at = archs; *at != '\0'; at = end) {
        const long arch = strtol(at, &end, 10);
        if (end == at)
            break;
        const bool exact = *end == 'a';
        if (arch / 10 == major && (exact ? arch % 10 == minor : arch % 10 <= minor))
            return true;
        end += strcspn(end, " ");
    }
    return false;
}

/* What the environment variable asks for, one of the names of 0 to best; best if it is not set. The
 * device's name tells it: bits differ. */
static int asked(glm_stream s, const char *variable, const char *const names[], int best,
    struct glm_error *err)
{
    const char *const name = getenv(variable);
    const size_t used = strlen(s->name);

    if (name == NULL || name[0] == '\0' || strcmp(name, names[best]) == 0)
        return best;
    for (int i = 0; i < best; i++)
        if (strcmp(name, names[i]) == 0) {
            snprintf(s->name + used, sizeof s->name - used, ", %s=%s", variable, name);
            return i;
        }
    char all[64] = "";
    for (int i = 0; i <= best; i++)
        snprintf(all + strlen(all), sizeof all - strlen(all), " %s", names[i]);
    glm_fail(err, GLM_EUSAGE, "%s: \"%.40s\", expected one of:%s", variable, name, all);
    return best;
}

/* The best that this card has, or a lesser one that the environment asks for. */
static void choose_kernels(glm_stream s, struct glm_error *err)
{
    static const char *const attention[] = {"plain", "mma", "lean", "wgmma", "cudnn"};
    static const char *const grouped[] = {"plain", "mma", "wgmma", "pair"};

    s->attention = (enum cuda_attention)asked(
        s, "GLM_CUDA_ATTENTION", attention, CUDA_ATTENTION_CUDNN, err);
    s->grouped =
        (enum cuda_grouped)asked(s, "GLM_CUDA_GROUPED", grouped, CUDA_GROUPED_PAIR, err);
    if (s->major != 9 && s->attention > CUDA_ATTENTION_MMA)
        s->attention = CUDA_ATTENTION_MMA;
#ifdef CUDA_EMULATED
    if (s->attention > CUDA_ATTENTION_WGMMA)
        s->attention = CUDA_ATTENTION_WGMMA;
#endif
}

/* The device's name tells who does attention: bits differ. */
static int open_cudnn(glm_stream s, struct glm_error *err)
{
    const size_t used = strlen(s->name);
    struct glm_error why = {0};

    if (s->attention != CUDA_ATTENTION_CUDNN)
        return 0;
    if ((s->cudnn = attention_cudnn_new(&why)) != NULL) {
        const long v = attention_cudnn_version(s->cudnn);
        snprintf(s->name + used, sizeof s->name - used,
            ", attention by cuDNN %ld.%ld.%ld", v / 10000, v / 100 % 100, v % 100);
        return 0;
    }
    if (why.code != GLM_EUSAGE)
        return glm_fail(err, why.code, "%s", why.text);
    s->attention = CUDA_ATTENTION_WGMMA;
    snprintf(s->name + used, sizeof s->name - used,
        ", attention by its own kernels (%.100s)", why.text);
    return 0;
}

static int describe(glm_stream s, struct glm_error *err)
{
    struct cudaDeviceProp p;
    int device = 0;

    if (cuda_check(cudaGetDevice(&device), "cudaGetDevice", err) != 0
        || cuda_check(cudaGetDeviceProperties(&p, device), "cudaGetDeviceProperties", err)
            != 0)
        return (int)err->code;
    s->processors = p.multiProcessorCount;
    s->shared_bytes = (int)p.sharedMemPerBlockOptin;
    s->major = p.major;
    s->minor = p.minor;
    snprintf(s->name, sizeof s->name, "%s", p.name);
    if (p.major < 9)
        return glm_fail(err, GLM_EDEVICE,
            "device cuda: %s has compute capability %d.%d, expected 9.0 or newer; choose "
            "device cpu",
            p.name, p.major, p.minor);
    if (!cuda_built_for(CUDA_BUILT_FOR, p.major, p.minor))
        return glm_fail(err, GLM_EDEVICE,
            "device cuda: %s has compute capability %d.%d, this build has kernels for "
            "%s; build anew with make CUDA_ARCH=%d%da, or choose device cpu",
            p.name, p.major, p.minor, CUDA_BUILT_FOR, p.major, p.minor);
    choose_kernels(s, err);
    return (int)err->code;
}

static void stream_free(glm_stream s)
{
    if (s == NULL)
        return;
    if (s->stream != NULL)
        cudaStreamSynchronize(s->stream);
    cuda_begin(s);
    cuda_gemm_close(s);
    attention_cudnn_free(s->cudnn);
    if (s->stream != NULL)
        cudaStreamDestroy(s->stream);
    free(s);
}

static glm_stream stream_new(int threads, struct glm_error *err)
{
    glm_stream s;
    int devices = 0;
    const cudaError_t status = cudaGetDeviceCount(&devices);

    (void)threads; /* of the host */
    if (status != cudaSuccess || devices < 1) {
        no_device(status, err);
        return NULL;
    }
    if ((s = calloc(1, sizeof *s)) == NULL) {
        glm_fail(err, GLM_ENOMEM, "no memory for a stream");
        return NULL;
    }
    if (describe(s, err) != 0
        || cuda_check(cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking),
               "cudaStreamCreate", err)
            != 0
        || cuda_gemm_open(s, err) != 0 || open_cudnn(s, err) != 0) {
        stream_free(s);
        return NULL;
    }
    return s;
}

static int stream_wait(glm_stream s, struct glm_error *err)
{
    return s->dry ? 0 : cuda_check(cudaStreamSynchronize(s->stream), "a kernel", err);
}

static const char *device_name(glm_stream s)
{
    return s->name;
}

/* ---- memory ----------------------------------------------------------------------------------- */

static int no_room(cudaError_t status, size_t bytes, struct glm_error *err)
{
    size_t there = 0, all = 0;

    (void)cudaGetLastError();
    if (status != cudaErrorMemoryAllocation)
        return cuda_check(status, "memory of the GPU", err);
    cudaMemGetInfo(&there, &all);
    return glm_fail(err, GLM_ENOMEM,
        "the GPU has no room for %.2f GiB: %.2f of %.2f GiB are free",
        (double)bytes / (1 << 30), (double)there / (1 << 30), (double)all / (1 << 30));
}

static void *device_alloc(size_t bytes, struct glm_error *err)
{
    void *p = NULL;
    const cudaError_t status = cudaMalloc(&p, bytes > 0 ? bytes : 1);

    if (status == cudaSuccess)
        return p;
    no_room(status, bytes, err);
    return NULL;
}

static void device_release(void *p)
{
    cudaFree(p);
}

static void *host_alloc(size_t bytes, struct glm_error *err)
{
    void *p = NULL;
    const cudaError_t status =
        cudaHostAlloc(&p, bytes > 0 ? bytes : 1, cudaHostAllocDefault);

    if (status == cudaSuccess)
        return p;
    (void)cudaGetLastError();
    if (status == cudaErrorMemoryAllocation)
        glm_fail(err, GLM_ENOMEM,
            "the host gives no %.2f GiB of page-locked memory (a container or a job may "
            "have a limit of its own)",
            (double)bytes / (1 << 30));
    else
        cuda_check(status, "page-locked memory", err);
    return NULL;
}

static void host_release(void *p)
{
    cudaFreeHost(p);
}

static int copy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
    glm_stream s, struct glm_error *err)
{
    if (s->dry || bytes == 0)
        return 0;
    if (cuda_check(cudaMemcpyAsync(to, from, bytes, kind, s->stream), "a copy", err) != 0)
        return (int)err->code;
    return cuda_check(cudaStreamSynchronize(s->stream), "a copy", err);
}

static int to_device(
    void *to, const void *from, size_t bytes, glm_stream s, struct glm_error *err)
{
    return copy(to, from, bytes, cudaMemcpyHostToDevice, s, err);
}

static int to_host(
    void *to, const void *from, size_t bytes, glm_stream s, struct glm_error *err)
{
    return copy(to, from, bytes, cudaMemcpyDeviceToHost, s, err);
}

static int zero(void *p, size_t bytes, glm_stream s, struct glm_error *err)
{
    return cuda_fill(s, p, 0, bytes, err);
}

int cuda_fill(glm_stream s, void *p, int byte, size_t bytes, struct glm_error *err)
{
    if (s->dry || bytes == 0)
        return (int)err->code;
    return cuda_check(cudaMemsetAsync(p, byte, bytes, s->stream), "cudaMemset", err);
}

int cuda_clear(void *p, int64_t rows, int64_t bytes, int64_t pitch, glm_stream s,
    struct glm_error *err)
{
    if (s->dry || rows == 0 || bytes == 0)
        return (int)err->code;
    return cuda_check(
        cudaMemset2DAsync(p, (size_t)pitch, 0, (size_t)bytes, (size_t)rows, s->stream),
        "cudaMemset", err);
}

/* ---- scratch ---------------------------------------------------------------------------------- */

void cuda_begin(glm_stream s)
{
    s->at = 0;
    while (s->extra != NULL) {
        struct cuda_extra *e = s->extra;
        s->extra = e->next;
        cudaFreeAsync(e->memory, s->stream);
        free(e);
    }
}

static void *from_pool(glm_stream s, size_t bytes, struct glm_error *err)
{
    struct cuda_extra *e = malloc(sizeof *e);

    if (e == NULL) {
        glm_fail(err, GLM_ENOMEM, "no memory for scratch");
        return NULL;
    }
    const cudaError_t status = cudaMallocAsync(&e->memory, bytes, s->stream);
    if (status != cudaSuccess) {
        no_room(status, bytes, err);
        free(e);
        return NULL;
    }
    e->next = s->extra;
    s->extra = e;
    s->grown++;
    return e->memory;
}

void *cuda_scratch(glm_stream s, size_t bytes, struct glm_error *err)
{
    const size_t begin = s->at;

    s->at += (bytes + CUDA_ALIGN - 1) / CUDA_ALIGN * CUDA_ALIGN;
    if (s->lent + s->at > s->peak)
        s->peak = s->lent + s->at;
    if (s->dry)
        return (void *)(uintptr_t)(CUDA_ALIGN + begin); /* NOLINT: never followed */
    if (s->at <= s->size)
        return s->scratch + begin;
    return from_pool(s, bytes > 0 ? bytes : 1, err);
}

static void lend(glm_stream s, void *base, size_t at, size_t size)
{
    const size_t from = (at + CUDA_ALIGN - 1) / CUDA_ALIGN * CUDA_ALIGN;

    s->lent = from;
    s->scratch = s->dry || base == NULL ? NULL : (char *)base + from;
    s->size = from < size ? size - from : 0;
    s->at = 0;
}

static void dry(glm_stream s, bool on)
{
    s->dry = on;
    lend(s, NULL, 0, 0);
    if (on)
        s->peak = 0;
}

static size_t scratch_peak(glm_stream s)
{
    return s->peak;
}

/* ---- recording: a CUDA graph ------------------------------------------------------------------ */

/* Relaxed: libraries may still load a kernel that no step before has run. */
static int record(glm_stream s, struct glm_error *err)
{
    cuda_begin(s); /* nothing of before is given back inside */
    return cuda_check(cudaStreamBeginCapture(s->stream, cudaStreamCaptureModeRelaxed),
        "beginning to record a step", err);
}

static int recorded(glm_stream s, void **recording, struct glm_error *err)
{
    struct glm_error ignored = {0};
    struct glm_error *const say = err->code == GLM_OK ? err : &ignored;
    cudaGraph_t graph = NULL;
    cudaGraphExec_t ready = NULL;

    *recording = NULL;
    cuda_begin(s);
    if (cuda_check(cudaStreamEndCapture(s->stream, &graph), "recording a step", say) == 0
        && err->code == GLM_OK
        && cuda_check(cudaGraphInstantiate(&ready, graph, 0), "a recorded step", err) == 0
        && cuda_check(cudaGraphUpload(ready, s->stream), "a recorded step", err) == 0)
        *recording = ready;
    else if (ready != NULL)
        cudaGraphExecDestroy(ready);
    if (graph != NULL)
        cudaGraphDestroy(graph);
    if (err->code != GLM_OK)
        (void)cudaGetLastError(); /* the stream goes on */
    return (int)err->code;
}

static int replay(void *recording, glm_stream s, struct glm_error *err)
{
    return cuda_check(cudaGraphLaunch(recording, s->stream), "a recorded step", err);
}

static void forget(void *recording)
{
    if (recording != NULL)
        cudaGraphExecDestroy(recording);
}

/* ---- the table -------------------------------------------------------------------------------- */

#define CUDA_MEMBER(op) .op = cuda_##op,
static const struct kernels cuda = {.name = "cuda",
    .stream_new = stream_new,
    .stream_free = stream_free,
    .stream_wait = stream_wait,
    .device_name = device_name,
    .alloc = device_alloc,
    .release = device_release,
    .host_alloc = host_alloc,
    .host_release = host_release,
    .to_device = to_device,
    .to_host = to_host,
    .zero = zero,
    .dry = dry,
    .lend = lend,
    .scratch_peak = scratch_peak,
    .record = record,
    .recorded = recorded,
    .replay = replay,
    .forget = forget,
    OPS(CUDA_MEMBER)};

const struct kernels *glm_backend(void)
{
    return &cuda;
}
