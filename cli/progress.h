/* Library events drawn for people: a status line with rate and time left, notes, a summary.
 *
 * On a terminal one line is redrawn a few times a second; elsewhere (a log) whole lines come every
 * ten seconds. Everything goes to one stream, stderr for a command, and never to stdout. The clock
 * and the kind of stream are parameters, so tests need neither time nor a terminal. Callbacks lock:
 * they may come from several threads. */
#ifndef CLI_PROGRESS_H
#define CLI_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "kernels/base/events.h"

struct progress_options {
    const char *name; /* "glm-import", in front of notes and log lines */
    FILE *out;        /* NULL: stderr */
    bool quiet;       /* draw nothing, no notes */
    enum { PROGRESS_AUTO, PROGRESS_TERMINAL, PROGRESS_LOG } mode; /* AUTO: isatty(out) */
    uint64_t (*now_ns)(void *ctx); /* NULL: CLOCK_MONOTONIC */
    void *clock_ctx;
};

struct progress;

/* Never fails: without memory it returns NULL, which all functions take and which draws nothing. */
struct progress *progress_new(const struct progress_options *o);
void progress_free(struct progress *p);

/* Events that report to p; stop may be NULL (see signals_catch). Valid as long as p. */
struct glm_events progress_events(struct progress *p, const volatile sig_atomic_t *stop);

/* Clears the status line and, if the work succeeded and moved bytes, leaves one summary line:
 * "import: 8.00 GB in 7.9 s, 1.01 GB/s". A second call does nothing. */
void progress_end(struct progress *p, bool succeeded);

/* "1.25 GB", units of 1000: for progress and for results on stdout. Returns buf. */
const char *progress_bytes(uint64_t bytes, char *buf, size_t size);
/* "7.9 s", "3 min 05 s", "2 h 07 min". Returns buf. */
const char *progress_time(double seconds, char *buf, size_t size);

#endif
