#include "kernels/kernels.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/cpu/pool.h"

/* ---- the processor ---------------------------------------------------------------------------- */

static int cpu_wait(glm_stream stream, struct glm_error *err)
{
    (void)stream; /* calls return when the work is done */
    (void)err;
    return 0;
}

static const char *cpu_name(glm_stream stream)
{
    (void)stream;
    return "cpu";
}

static void *cpu_alloc(size_t bytes, struct glm_error *err)
{
    enum { ALIGN = 256 };
    void *p = aligned_alloc(ALIGN, (bytes / ALIGN + 1) * ALIGN);

    if (p == NULL)
        glm_fail(err, GLM_ENOMEM, "no memory: %zu bytes", bytes);
    return p;
}

static int cpu_copy(
    void *to, const void *from, size_t bytes, glm_stream stream, struct glm_error *err)
{
    (void)stream;
    (void)err;
    if (bytes > 0)
        memcpy(to, from, bytes);
    return 0;
}

static int cpu_zero(void *p, size_t bytes, glm_stream stream, struct glm_error *err)
{
    (void)stream;
    (void)err;
    if (bytes > 0)
        memset(p, 0, bytes);
    return 0;
}

#define CPU_MEMBER(op) .op = cpu_##op,
static const struct kernels cpu = {.name = "cpu",
    .stream_new = pool_new,
    .stream_free = pool_free,
    .stream_wait = cpu_wait,
    .device_name = cpu_name,
    .host = true,
    .alloc = cpu_alloc,
    .release = free,
    .host_alloc = cpu_alloc,
    .host_release = free,
    .to_device = cpu_copy,
    .to_host = cpu_copy,
    .zero = cpu_zero,
    OPS(CPU_MEMBER)};
#undef CPU_MEMBER

/* ---- the GPU ---------------------------------------------------------------------------------- */

static const char library[] = "libglm-cuda.so";
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const struct kernels *cuda; /* never unloaded: the driver would not like it */

/* The first that opens: places relative to the program, then the loader's own. */
static void *open_library(char why[512])
{
    static const char *const beside[] = {"../lib", "../lib/glm", "."};
    const char *const named = getenv("GLM_CUDA_LIB");
    char self[4096], path[4352];
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    void *so = NULL;

    why[0] = '\0';
    if (named != NULL && named[0] != '\0') {
        if ((so = dlopen(named, RTLD_NOW | RTLD_LOCAL)) == NULL)
            snprintf(why, 512, "%s", dlerror());
        return so;
    }
    if (n > 0) {
        self[n] = '\0';
        *strrchr(self, '/') = '\0';
    }
    for (size_t i = 0; n > 0 && so == NULL && i < sizeof beside / sizeof *beside; i++) {
        snprintf(path, sizeof path, "%s/%s/%s", self, beside[i], library);
        if (access(path, R_OK) == 0 && (so = dlopen(path, RTLD_NOW | RTLD_LOCAL)) == NULL)
            snprintf(why, 512, "%s", dlerror());
    }
    if (so == NULL && why[0] == '\0'
        && (so = dlopen(library, RTLD_NOW | RTLD_LOCAL)) == NULL)
        snprintf(why, 512, "%s", dlerror());
    return so;
}

static int load_cuda(struct glm_error *err)
{
    typedef const struct kernels *backend_fn(void);
    union {
        void *p;
        backend_fn *f;
    } entry = {NULL};
    char why[512];
    void *const so = open_library(why);

    if (so == NULL)
        return glm_fail(err, GLM_EDEVICE,
            "device cuda: the GPU backend does not load: %s; make builds it where nvcc "
            "is, and the loader has to find CUDA's libcublasLt; or choose device cpu",
            why);
    entry.p = dlsym(so, "glm_backend");
    if (entry.p == NULL)
        return glm_fail(err, GLM_EDEVICE,
            "device cuda: the %s that was found is not this program's GPU backend; "
            "remove it or set GLM_CUDA_LIB to the right file",
            library);
    cuda = entry.f();
    return GLM_OK;
}

const struct kernels *kernels_open(const char *name, struct glm_error *err)
{
    const struct kernels *k;

    if (strcmp(name, "cpu") == 0)
        return &cpu;
    if (strcmp(name, "cuda") != 0) {
        glm_fail(err, GLM_EUSAGE, "device '%s': expected cpu or cuda", name);
        return NULL;
    }
    pthread_mutex_lock(&lock);
    if (cuda == NULL)
        load_cuda(err);
    k = cuda;
    pthread_mutex_unlock(&lock);
    return k;
}

const struct kernels *kernels_find(const char *name)
{
    struct glm_error unused = {0};
    return kernels_open(name, &unused);
}

bool kernels_driver(void)
{
    static const char *const signs[] = {
        "/dev/nvidiactl", "/dev/dxg", "/proc/driver/nvidia/version"};

    for (size_t i = 0; i < sizeof signs / sizeof *signs; i++)
        if (access(signs[i], F_OK) == 0)
            return true;
    return false;
}
