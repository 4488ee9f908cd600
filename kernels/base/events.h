/* What a long call tells its caller while it works, and how the caller stops it.
 *
 * Libraries print nothing: they report here. The struct is borrowed for the length of the call; a
 * NULL events pointer and NULL members mean that nobody listens. Callbacks may be called from any
 * thread and from several at once: whoever listens locks. */
#ifndef KERNELS_BASE_EVENTS_H
#define KERNELS_BASE_EVENTS_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct glm_events {
    /* what: a verb of the phase ("import", "check"); done and total in bytes, total 0: unknown. */
    void (*progress)(void *ctx, const char *what, uint64_t done, uint64_t total);
    /* One sentence that the user should see: a warning, a decision, "continues at 40 %". */
    void (*note)(void *ctx, const char *sentence);
    void *ctx;
    /* Points to the number of the signal that asks to stop, 0 while there is none. A library that
     * sees it saves its state and returns GLM_ESTOPPED with that number in sys_errno. */
    const volatile sig_atomic_t *stop;
};

static inline void glm_events_progress(
    const struct glm_events *e, const char *what, uint64_t done, uint64_t total)
{
    if (e != NULL && e->progress != NULL)
        e->progress(e->ctx, what, done, total);
}

static inline void glm_events_note(const struct glm_events *e, const char *sentence)
{
    if (e != NULL && e->note != NULL)
        e->note(e->ctx, sentence);
}

/* The signal that asks to stop, 0 if none. */
static inline int glm_events_stop(const struct glm_events *e)
{
    return e != NULL && e->stop != NULL ? (int)*e->stop : 0;
}

#endif
