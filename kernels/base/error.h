/* Errors as values: a function that can fail returns 0 or a code and leaves one sentence here.
 *
 * The first cause stays. A caller that knows more puts context in front with glm_within().
 * Libraries never print and never exit; a command turns the code into its exit status. */
#ifndef KERNELS_BASE_ERROR_H
#define KERNELS_BASE_ERROR_H

#define GLM_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))

enum glm_code {
    GLM_OK = 0,
    GLM_EMISMATCH, /* a check found a difference: exit 1 */
    GLM_EUSAGE,    /* the command line asks for something impossible: exit 2 */
    GLM_EFORMAT,   /* an input is not what it should be: exit 3 */
    GLM_EIO,       /* the system: I/O, space, permissions: exit 4 */
    GLM_ENOMEM,    /* exit 4 */
    GLM_EDEVICE,   /* exit 4 */
    GLM_ESTOPPED, /* a signal asked to stop; the state is saved: exit 128 + sys_errno (signal) */
};

struct glm_error {
    enum glm_code code;
    int sys_errno; /* errno of the cause, 0 if none; the signal number with GLM_ESTOPPED */
    char text[1024];
};

/* Both record the failure, unless err already holds one, and return err->code (never GLM_OK). */
int glm_fail(struct glm_error *err, enum glm_code code, const char *fmt, ...)
    GLM_PRINTF(3, 4);
/* Adds ": <strerror(errno)>". The code is GLM_ENOMEM for ENOMEM and GLM_EIO for the rest. */
int glm_fail_errno(struct glm_error *err, const char *fmt, ...) GLM_PRINTF(2, 3);

/* Puts "<context>: " in front of the recorded sentence; returns err->code. No-op without one. */
int glm_within(struct glm_error *err, const char *fmt, ...) GLM_PRINTF(2, 3);

void glm_error_clear(struct glm_error *err);
int glm_exit_status(const struct glm_error *err);

#endif
