/* Errors as values. The sentence lives in the caller's struct, so recording a failure allocates
 * nothing: running out of memory can be reported like any other cause. A sentence longer than the
 * buffer is cut and ends in "...", so a reader sees that it was. */
#include "kernels/base/error.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Formats over [at, sizeof text) and returns the new length. */
static size_t put(struct glm_error *err, size_t at, const char *fmt, va_list args)
{
    const size_t room = sizeof err->text - at;
    const int n = vsnprintf(err->text + at, room, fmt, args);

    if (n < 0) {
        err->text[at] = '\0';
        return at;
    }
    if ((size_t)n < room)
        return at + (size_t)n;
    memcpy(err->text + sizeof err->text - 4, "...", 4);
    return sizeof err->text - 1;
}

int glm_fail(struct glm_error *err, enum glm_code code, const char *fmt, ...)
{
    va_list args;

    assert(code != GLM_OK);
    if (err->code != GLM_OK)
        return (int)err->code;
    err->code = code;
    err->sys_errno = 0;
    va_start(args, fmt);
    put(err, 0, fmt, args);
    va_end(args);
    return (int)code;
}

static size_t put_reason(struct glm_error *err, size_t at, const char *fmt, ...)
    GLM_PRINTF(3, 4);

static size_t put_reason(struct glm_error *err, size_t at, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    at = put(err, at, fmt, args);
    va_end(args);
    return at;
}

int glm_fail_errno(struct glm_error *err, const char *fmt, ...)
{
    const int cause = errno; /* before anything here can change it */
    char reason[128];
    va_list args;

    if (err->code != GLM_OK)
        return (int)err->code;
    err->code = cause == ENOMEM ? GLM_ENOMEM : GLM_EIO;
    err->sys_errno = cause;
    va_start(args, fmt);
    const size_t at = put(err, 0, fmt, args);
    va_end(args);
    /* _GNU_SOURCE: this strerror_r returns the text, which may not be in the buffer. */
    put_reason(err, at, ": %s", strerror_r(cause, reason, sizeof reason));
    errno = cause;
    return (int)err->code;
}

int glm_within(struct glm_error *err, const char *fmt, ...)
{
    char inner[sizeof err->text];
    va_list args;

    if (err->code == GLM_OK)
        return GLM_OK;
    memcpy(inner, err->text, sizeof inner);
    inner[sizeof inner - 1] = '\0';
    va_start(args, fmt);
    const size_t at = put(err, 0, fmt, args);
    va_end(args);
    put_reason(err, at, ": %s", inner);
    return (int)err->code;
}

void glm_error_clear(struct glm_error *err)
{
    err->code = GLM_OK;
    err->sys_errno = 0;
    err->text[0] = '\0';
}

int glm_exit_status(const struct glm_error *err)
{
    switch (err->code) {
    case GLM_OK:
        return 0;
    case GLM_EMISMATCH:
        return 1;
    case GLM_EUSAGE:
        return 2;
    case GLM_EFORMAT:
        return 3;
    case GLM_EIO:
    case GLM_ENOMEM:
    case GLM_EDEVICE:
        return 4;
    case GLM_ESTOPPED:
        return 128 + err->sys_errno;
    }
    return 4;
}
