/* libmemory.so: the k-th allocation of a program fails.
 *
 * Preloaded (LD_PRELOAD), it stands in front of what allocates. Calls that come out of the
 * executable itself are numbered from 1; those of libraries, which end as their authors like, pass.
 *
 *   MEMORY_AT     k; 0 or absent: nothing fails, calls are only counted
 *   MEMORY_COUNT  a file that gets the number of calls at the end
 *   MEMORY_HIT    a file that gets the place of the call that failed, as an address for addr2line
 *
 * One fails and all others are met, so that what a program does after it is seen too. The pointer
 * that asprintf leaves undefined is set to one that nobody may use. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <link.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define CALLER ((uintptr_t)__builtin_return_address(0))

/* What glibc calls malloc and the others by: reached without a look-up, which would allocate. */
extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

static uintptr_t base, begin, end; /* of the executable's code; 0 until it is known */
static long at;
static atomic_long calls;

static int first_object(struct dl_phdr_info *info, size_t size, void *ctx)
{
    (void)size;
    (void)ctx;
    base = info->dlpi_addr;
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_LOAD && (info->dlpi_phdr[i].p_flags & PF_X)) {
            begin = base + info->dlpi_phdr[i].p_vaddr;
            end = begin + info->dlpi_phdr[i].p_memsz;
        }
    return 1; /* the executable comes first */
}

/* Without stdio, which allocates. */
static void write_file(const char *variable, const char *text, int size)
{
    const char *path = getenv(variable);
    const int fd = path == NULL ? -1 : open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (fd < 0)
        return;
    if (write(fd, text, (size_t)size) != size)
        abort();
    close(fd);
}

__attribute__((constructor)) static void start(void)
{
    const char *text = getenv("MEMORY_AT");
    at = text == NULL ? 0 : atol(text);
    dl_iterate_phdr(first_object, NULL);
}

__attribute__((destructor)) static void stop(void)
{
    char text[32];
    write_file("MEMORY_COUNT", text, snprintf(text, sizeof text, "%ld\n", (long)calls));
}

static int fails(uintptr_t caller)
{
    if (caller < begin || caller >= end || atomic_fetch_add(&calls, 1) + 1 != at)
        return 0;
    char text[32];
    write_file("MEMORY_HIT", text,
        snprintf(text, sizeof text, "0x%" PRIxPTR "\n", caller - base - 1));
    errno = ENOMEM;
    return 1;
}

EXPORT void *malloc(size_t size)
{
    return fails(CALLER) ? NULL : __libc_malloc(size);
}

EXPORT void *calloc(size_t count, size_t size)
{
    return fails(CALLER) ? NULL : __libc_calloc(count, size);
}

EXPORT void *realloc(void *old, size_t size)
{
    return fails(CALLER) ? NULL : __libc_realloc(old, size);
}

EXPORT void *aligned_alloc(size_t alignment, size_t size)
{
    return fails(CALLER) ? NULL : __libc_memalign(alignment, size);
}

EXPORT int posix_memalign(void **out, size_t alignment, size_t size)
{
    if (fails(CALLER))
        return ENOMEM;
    *out = __libc_memalign(alignment, size);
    return *out == NULL ? ENOMEM : 0;
}

EXPORT void *mmap(
    void *where, size_t size, int protection, int flags, int fd, off_t offset)
{
    if (fails(CALLER))
        return MAP_FAILED;
    return (void *)syscall(SYS_mmap, where, size, protection, flags, fd, offset);
}

static char *copied(const char *text, size_t size)
{
    char *out = __libc_malloc(size + 1);
    if (out != NULL) {
        memcpy(out, text, size);
        out[size] = '\0';
    }
    return out;
}

EXPORT char *strdup(const char *text)
{
    return fails(CALLER) ? NULL : copied(text, strlen(text));
}

EXPORT char *strndup(const char *text, size_t most)
{
    return fails(CALLER) ? NULL : copied(text, strnlen(text, most));
}

static int printed(int lost, char **out, const char *format, va_list args)
{
    va_list again;
    va_copy(again, args);
    const int size = vsnprintf(NULL, 0, format, again);
    va_end(again);
    *out = lost || size < 0 ? NULL : __libc_malloc((size_t)size + 1);
    if (*out == NULL) {
        *out = (char *)1;
        return -1;
    }
    return vsnprintf(*out, (size_t)size + 1, format, args);
}

EXPORT int vasprintf(char **out, const char *format, va_list args)
{
    return printed(fails(CALLER), out, format, args);
}

EXPORT int asprintf(char **out, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    const int size = printed(fails(CALLER), out, format, args);
    va_end(args);
    return size;
}

EXPORT FILE *open_memstream(char **out, size_t *size)
{
    static FILE *(*real)(char **, size_t *);
    if (real == NULL)
        *(void **)&real = dlsym(RTLD_NEXT, "open_memstream");
    return fails(CALLER) ? NULL : real(out, size);
}
