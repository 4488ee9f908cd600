/* How long the GPU was at work, by CUPTI's records of every kernel, copy and fill: the union of their
 * times. libcupti is looked for when it is asked for; without it, or without its header when this was
 * built, there is no answer. */
#include "tests/gpu/support.h"

#include <stdlib.h>

#if defined(__has_include)
#if __has_include(<cupti.h>)
#define WITH_CUPTI
#endif
#endif

#ifdef WITH_CUPTI
#include <algorithm>
#include <cupti.h>
#include <dlfcn.h>
#include <mutex>
#include <vector>

enum { ROOM = 8 << 20 };

struct span {
    uint64_t from, to;
};
static std::vector<span> spans;
static int64_t kernels;
static std::mutex lock;

static const CUpti_ActivityKind kinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
    CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET};

static struct {
    CUptiResult (*enable)(CUpti_ActivityKind);
    CUptiResult (*disable)(CUpti_ActivityKind);
    CUptiResult (*flush)(uint32_t);
    CUptiResult (*next)(uint8_t *, size_t, CUpti_Activity **);
    CUptiResult (*callbacks)(
        CUpti_BuffersCallbackRequestFunc, CUpti_BuffersCallbackCompleteFunc);
} cupti;

static void CUPTIAPI give(uint8_t **buffer, size_t *size, size_t *records)
{
    *buffer = (uint8_t *)aligned_alloc(8, ROOM);
    *size = *buffer != NULL ? ROOM : 0;
    *records = 0;
}

static void CUPTIAPI taken(
    CUcontext context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid)
{
    CUpti_Activity *one = NULL;
    std::lock_guard<std::mutex> hold(lock);

    (void)context;
    (void)stream;
    (void)size;
    while (cupti.next(buffer, valid, &one) == CUPTI_SUCCESS)
        switch (one->kind) {
        case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
        case CUPTI_ACTIVITY_KIND_KERNEL: {
            const CUpti_ActivityKernel9 *const k = (const CUpti_ActivityKernel9 *)one;
            spans.push_back({k->start, k->end});
            kernels++;
            break;
        }
        case CUPTI_ACTIVITY_KIND_MEMCPY: {
            const CUpti_ActivityMemcpy5 *const k = (const CUpti_ActivityMemcpy5 *)one;
            spans.push_back({k->start, k->end});
            break;
        }
        case CUPTI_ACTIVITY_KIND_MEMSET: {
            const CUpti_ActivityMemset4 *const k = (const CUpti_ActivityMemset4 *)one;
            spans.push_back({k->start, k->end});
            break;
        }
        default:
            break;
        }
    free(buffer);
}

static bool open_cupti(void)
{
    void *so = NULL;

    for (const char *name : {"libcupti.so.13", "libcupti.so", "libcupti.so.12"})
        if (so == NULL)
            so = dlopen(name, RTLD_NOW);
    if (so == NULL)
        return false;
    *(void **)&cupti.enable = dlsym(so, "cuptiActivityEnable");
    *(void **)&cupti.disable = dlsym(so, "cuptiActivityDisable");
    *(void **)&cupti.flush = dlsym(so, "cuptiActivityFlushAll");
    *(void **)&cupti.next = dlsym(so, "cuptiActivityGetNextRecord");
    *(void **)&cupti.callbacks = dlsym(so, "cuptiActivityRegisterCallbacks");
    return cupti.enable && cupti.disable && cupti.flush && cupti.next && cupti.callbacks
        && cupti.callbacks(give, taken) == CUPTI_SUCCESS;
}

int cudatest_busy_start(void)
{
    static const bool there = open_cupti();

    if (!there)
        return -1;
    spans.clear();
    kernels = 0;
    for (CUpti_ActivityKind kind : kinds)
        if (cupti.enable(kind) != CUPTI_SUCCESS)
            return -1;
    return 0;
}

double cudatest_busy_stop(int64_t *count)
{
    uint64_t busy = 0, end = 0;

    cupti.flush(1);
    for (CUpti_ActivityKind kind : kinds)
        cupti.disable(kind);
    std::lock_guard<std::mutex> hold(lock);
    std::sort(spans.begin(), spans.end(),
        [](const span &a, const span &b) { return a.from < b.from; });
    for (const span &s : spans) {
        const uint64_t from = s.from > end ? s.from : end;
        busy += s.to > from ? s.to - from : 0;
        end = s.to > end ? s.to : end;
    }
    *count = kernels;
    return 1e-9 * (double)busy;
}

#else

int cudatest_busy_start(void)
{
    return -1;
}

double cudatest_busy_stop(int64_t *count)
{
    *count = 0;
    return 0;
}

#endif
