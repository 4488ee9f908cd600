/* The threads of a block as fibers of the calling thread.
 *
 * A fiber runs until it has to wait. The scheduler goes through the warps; it stays with one as long
 * as any of its lanes can run. When none can and all that are left stand at the block's barrier, it
 * opens. When none can and they do not, the kernel would hang: that is told, and the launch fails. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <mutex>
#include <vector>

#include "emu.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#ifndef __x86_64__
#error "the switch between fibers is written for x86-64"
#endif

/* Saves the caller's registers on its stack, its stack in *from, and goes on at `to`. */
extern "C" void emu_swap(void **from, void *to);
asm(".text\n"
    ".type emu_swap,@function\n"
    "emu_swap:\n"
    "    pushq %rbp\n    pushq %rbx\n    pushq %r12\n"
    "    pushq %r13\n    pushq %r14\n    pushq %r15\n"
    "    movq %rsp, (%rdi)\n"
    "    movq %rsi, %rsp\n"
    "    popq %r15\n    popq %r14\n    popq %r13\n"
    "    popq %r12\n    popq %rbx\n    popq %rbp\n"
    "    ret\n"
    ".size emu_swap,.-emu_swap\n");

enum state { READY, SPINS, AT_BLOCK, AT_NAMED, AT_WARP, DONE };

struct copy {
    void *to;
    const void *from;
    int bytes, zeros;
};

struct fiber {
    void *sp;
    char *stack;
    enum state state;
    int thread;
    struct emu_dim at;
    int barrier;
    void *fake; /* of the address sanitizer */
    std::vector<copy> open;
    std::vector<std::vector<copy>> groups;
};

struct warp {
    unsigned arrived, live;
    unsigned mask[EMU_WARP];
    const char *what[EMU_WARP];
    uint64_t said[EMU_WARP], heard[EMU_WARP];
};

struct named {
    int arrived, count;
};

enum {
    STACK = 256 << 10,
    SHARED_ROOM = EMU_SHARED + 64 * 1024,
    SHARED_ALIGN = 1024,
    KEYS = 64
};

static struct fiber fiber[EMU_THREADS];
static struct warp warp[EMU_THREADS / EMU_WARP];
static struct named named[16];
static struct fiber *self;
static void *scheduler_sp;
#ifdef __SANITIZE_ADDRESS__
static void *scheduler_fake;
static const void *scheduler_stack;
static size_t scheduler_size;
#endif
static int threads, live, at_block, block_said, block_heard;
static void (*body)(void *);
static void *body_ctx;
static const char *kernel_name;

struct emu_dim emu_thread_at, emu_block_at, emu_block_size, emu_grid_size;

/* ---- shared memory ---------------------------------------------------------------------------- */

static char *shared; /* SHARED_ROOM bytes below 2^31 */
static size_t shared_used;
static struct {
    const void *key;
    void *place;
    size_t bytes;
} keys[KEYS];
static int key_count;
static void *dynamic_place;

static void *take_shared(size_t bytes)
{
    char *const p = shared + shared_used;

    if (bytes > SHARED_ROOM - shared_used)
        emu_die("more than %d bytes of shared memory", EMU_SHARED);
    /* A gap, so that what goes a step too far meets a guard of the address sanitizer. */
    shared_used += (bytes + 64 + SHARED_ALIGN - 1) / SHARED_ALIGN * SHARED_ALIGN;
#ifdef __SANITIZE_ADDRESS__
    ASAN_UNPOISON_MEMORY_REGION(p, bytes);
#endif
    memset(p, 0xFF, bytes);
    return p;
}

static void begin_shared(size_t dynamic)
{
    if (shared == NULL) {
        void *const p = mmap(NULL, SHARED_ROOM, PROT_READ | PROT_WRITE,
            MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
        if (p == MAP_FAILED)
            emu_die("no memory below 2 GiB");
        shared = (char *)p;
    }
#ifdef __SANITIZE_ADDRESS__
    ASAN_POISON_MEMORY_REGION(shared, SHARED_ROOM);
#endif
    shared_used = 0;
    key_count = 0;
    dynamic_place = dynamic > 0 ? take_shared(dynamic) : NULL;
}

void *emu_dynamic(void)
{
    if (dynamic_place == NULL)
        return shared + SHARED_ROOM; /* of 0 bytes: must not be followed */
    return dynamic_place;
}

void *emu_static(const void *key, size_t bytes)
{
    for (int i = 0; i < key_count; i++)
        if (keys[i].key == key)
            return keys[i].place;
    if (key_count == KEYS)
        emu_die("more than %d shared variables", KEYS);
    keys[key_count] = {key, take_shared(bytes), bytes};
    return keys[key_count++].place;
}

/* ---- switching -------------------------------------------------------------------------------- */

void emu_die(const char *fmt, ...)
{
    va_list args;

    fprintf(stderr, "emulated GPU: %s, block (%u,%u,%u)", kernel_name, emu_block_at.x,
        emu_block_at.y, emu_block_at.z);
    if (self != NULL)
        fprintf(stderr, ", thread %d", self->thread);
    fputs(": ", stderr);
    va_start(args, fmt);
    vfprintf(stderr, fmt, args);
    va_end(args);
    fputc('\n', stderr);
    abort();
}

static void to_scheduler(enum state state)
{
    struct fiber *const f = self;

    f->state = state;
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(
        state == DONE ? NULL : &f->fake, scheduler_stack, scheduler_size);
#endif
    emu_swap(&f->sp, scheduler_sp);
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(f->fake, NULL, NULL);
#endif
}

static void to_fiber(struct fiber *f)
{
    self = f;
    emu_thread_at = f->at;
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(&scheduler_fake, f->stack, STACK);
#endif
    emu_swap(&scheduler_sp, f->sp);
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(scheduler_fake, NULL, NULL);
#endif
    self = NULL;
}

static void try_warp(struct warp *w, unsigned mask);

static void entry(void)
{
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(NULL, &scheduler_stack, &scheduler_size);
#endif
    body(body_ctx);
    struct warp *const w = &warp[self->thread / EMU_WARP];
    live--;
    w->live &= ~(1u << self->thread % EMU_WARP);
    for (int i = 0; i < EMU_WARP; i++) /* others may have waited for this lane alone */
        if (w->arrived >> i & 1)
            try_warp(w, w->mask[i]);
    to_scheduler(DONE);
    abort();
}

static void begin_fiber(struct fiber *f)
{
    void **top;

    if (f->stack == NULL) {
        void *const p = mmap(NULL, STACK, PROT_READ | PROT_WRITE,
            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED)
            emu_die("no memory for stacks");
        f->stack = (char *)p;
    }
    top = (void **)(void *)(f->stack + STACK);
    top[-2] = (void *)entry; /* where `ret` goes, with the stack as after a call */
    f->sp = top - 2 - 6;
    f->state = READY;
    f->open.clear();
    f->groups.clear();
}

/* ---- waiting ---------------------------------------------------------------------------------- */

int emu_block(int said)
{
    block_said += said;
    at_block++;
    to_scheduler(AT_BLOCK);
    return block_heard;
}

static void open_block(void)
{
    block_heard = block_said;
    block_said = at_block = 0;
    for (int i = 0; i < threads; i++)
        if (fiber[i].state == AT_BLOCK)
            fiber[i].state = READY;
}

void emu_barrier(int id, int count, int arrive)
{
    struct named *const n = &named[id];

    if (id < 0 || id > 15 || (n->arrived > 0 && n->count != count))
        emu_die("barrier %d of %d threads, others say %d", id, count, n->count);
    n->count = count;
    if (++n->arrived == count) {
        n->arrived = 0;
        for (int i = 0; i < threads; i++)
            if (fiber[i].state == AT_NAMED && fiber[i].barrier == id)
                fiber[i].state = READY;
        return;
    }
    self->barrier = id;
    if (!arrive)
        to_scheduler(AT_NAMED);
}

/* Lets the lanes of mask go on if all of them that run are there. */
static void try_warp(struct warp *w, unsigned mask)
{
    const unsigned need = mask & w->live;

    if ((w->arrived & need) != need)
        return;
    const int base = (int)(w - warp) * EMU_WARP;
    int first = -1;
    for (int i = 0; i < EMU_WARP; i++) {
        if (!(need >> i & 1))
            continue;
        if (first < 0)
            first = i;
        if (w->mask[i] != mask || strcmp(w->what[i], w->what[first]) != 0)
            emu_die("lane %d is at %s of lanes %08x, lane %d at %s of %08x", i,
                w->what[i], w->mask[i], first, w->what[first], mask);
        w->heard[i] = w->said[i];
        fiber[base + i].state = READY;
    }
    w->arrived &= ~need;
}

const uint64_t *emu_warp(unsigned mask, uint64_t said, const char *what)
{
    struct warp *const w = &warp[self->thread / EMU_WARP];
    const int lane = self->thread % EMU_WARP;

    if (!(mask >> lane & 1))
        emu_die("lane %d is at %s of lanes %08x", lane, what, mask);
    w->said[lane] = said;
    w->mask[lane] = mask;
    w->what[lane] = what;
    w->arrived |= 1u << lane;
    self->state = AT_WARP;
    try_warp(w, mask);
    if (self->state == AT_WARP)
        to_scheduler(AT_WARP);
    return w->heard;
}

int emu_lane(void)
{
    return self->thread % EMU_WARP;
}

int emu_thread(void)
{
    return self->thread;
}

unsigned emu_live(void)
{
    return warp[self->thread / EMU_WARP].live;
}

void emu_spin(void)
{
    to_scheduler(SPINS);
}

/* ---- cp.async --------------------------------------------------------------------------------- */

void emu_copy(void *to, const void *from, int bytes, int zeros)
{
    self->open.push_back({to, from, bytes, zeros});
}

void emu_copy_commit(void)
{
    self->groups.push_back(self->open);
    self->open.clear();
}

void emu_copy_wait(int left)
{
    while ((int)self->groups.size() > left) {
        for (const copy &c : self->groups.front()) {
            memcpy(c.to, c.from, (size_t)c.bytes);
            memset((char *)c.to + c.bytes, 0, (size_t)c.zeros);
        }
        self->groups.erase(self->groups.begin());
    }
}

/* ---- running ---------------------------------------------------------------------------------- */

/* Runs what can run; false if nothing could. Lanes that only looked and found nothing do not count. */
static bool pass(void)
{
    bool any = false;

    for (int w = 0; w * EMU_WARP < threads; w++) {
        for (bool again = true; again;) {
            again = false;
            for (int i = w * EMU_WARP; i < threads && i < (w + 1) * EMU_WARP; i++) {
                if (fiber[i].state != READY && fiber[i].state != SPINS)
                    continue;
                const bool span = fiber[i].state == SPINS;
                to_fiber(&fiber[i]);
                if (!span || fiber[i].state != SPINS)
                    any = true;
                again |= fiber[i].state != SPINS;
            }
        }
    }
    return any;
}

static void tell_halt(void)
{
    static const char *const names[] = {"ready", "wait for memory",
        "wait at __syncthreads", "wait at a named barrier", "wait for their warp",
        "have returned"};
    int count[DONE + 1] = {0};

    fprintf(stderr,
        "emulated GPU: %s, block (%u,%u,%u) of %d threads cannot go on:", kernel_name,
        emu_block_at.x, emu_block_at.y, emu_block_at.z, threads);
    for (int i = 0; i < threads; i++)
        count[fiber[i].state]++;
    for (int i = 0; i <= DONE; i++)
        if (count[i] > 0)
            fprintf(stderr, " %d %s;", count[i], names[i]);
    for (int i = 0; i < threads; i++)
        if (fiber[i].state == AT_WARP) {
            const struct warp *const w = &warp[i / EMU_WARP];
            fprintf(stderr, " thread %d at %s of lanes %08x, there are %08x;", i,
                w->what[i % EMU_WARP], w->mask[i % EMU_WARP], w->arrived);
            break;
        }
    fputc('\n', stderr);
}

static bool run_block(void)
{
    int idle = 0;

    live = threads;
    at_block = block_said = 0;
    memset(named, 0, sizeof named);
    for (int w = 0; w * EMU_WARP < threads; w++) {
        const int lanes = threads - w * EMU_WARP;
        warp[w].arrived = 0;
        warp[w].live = lanes >= EMU_WARP ? 0xFFFFFFFFu : (1u << lanes) - 1;
    }
    for (int i = 0; i < threads; i++)
        begin_fiber(&fiber[i]);
    while (live > 0) {
        const bool any = pass();
        if (live > 0 && at_block == live)
            open_block();
        else if (any)
            idle = 0;
        else if (idle++ > 3)
            return false;
    }
    return true;
}

static void name_threads(struct emu_dim block)
{
    for (int i = 0; i < threads; i++) {
        fiber[i].thread = i;
        fiber[i].at = {(unsigned)i % block.x, (unsigned)i / block.x % block.y,
            (unsigned)i / (block.x * block.y)};
    }
}

/* Which kernels a list of tests reaches: a line a launch in the file that EMU_TRACE names. */
static void trace(const char *kernel)
{
    static FILE *const to =
        getenv("EMU_TRACE") == NULL ? NULL : fopen(getenv("EMU_TRACE"), "a");

    if (to != NULL)
        fprintf(to, "%s\n", kernel);
}

cudaError_t emu_run(const char *kernel, struct emu_dim grid, struct emu_dim block,
    size_t dynamic, void (*call)(void *ctx), void *ctx)
{
    static std::mutex one; /* a GPU */
    const std::lock_guard<std::mutex> lock(one);
    const size_t size = (size_t)block.x * block.y * block.z;

    if (size == 0 || size > EMU_THREADS || block.z > 64 || grid.y > 65535
        || grid.z > 65535 || grid.x > 0x7FFFFFFF || dynamic > EMU_SHARED)
        return emu_failed(cudaErrorInvalidConfiguration);
    threads = (int)size;
    body = call;
    body_ctx = ctx;
    kernel_name = kernel;
    trace(kernel);
    emu_block_size = block;
    emu_grid_size = grid;
    name_threads(block);
    for (emu_block_at.z = 0; emu_block_at.z < grid.z; emu_block_at.z++)
        for (emu_block_at.y = 0; emu_block_at.y < grid.y; emu_block_at.y++)
            for (emu_block_at.x = 0; emu_block_at.x < grid.x; emu_block_at.x++) {
                begin_shared(dynamic);
                if (!run_block()) {
                    tell_halt();
                    return emu_failed(cudaErrorLaunchFailure);
                }
            }
    return cudaSuccess;
}
