#include "cli/progress.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli/report.h"

enum {
    WINDOW = 16,       /* samples of the rate shown: old speed should not hide a stall */
    TERMINAL_MS = 200, /* between two drawings of the status line */
    LOG_MS = 10000,    /* between two lines of a log */
    SAMPLE_MS = 500,
};

struct sample {
    uint64_t at_ns, done;
};

struct progress {
    pthread_mutex_t lock;
    struct progress_options o;
    bool terminal, drawn, ended;
    char what[64];
    uint64_t begin_ns; /* of this phase */
    uint64_t heard_ns; /* last report */
    uint64_t drawn_ns, done, total;
    struct sample window[WINDOW]; /* ring, oldest at samples % WINDOW when full */
    uint64_t samples;
};

static uint64_t monotonic_ns(void *ctx)
{
    (void)ctx;
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t now(const struct progress *p)
{
    return p->o.now_ns(p->o.clock_ctx);
}

struct progress *progress_new(const struct progress_options *o)
{
    struct progress *p = calloc(1, sizeof *p);
    if (p == NULL)
        return NULL;
    if (pthread_mutex_init(&p->lock, NULL) != 0) {
        free(p);
        return NULL;
    }
    p->o = *o;
    if (p->o.out == NULL)
        p->o.out = stderr;
    if (p->o.now_ns == NULL)
        p->o.now_ns = monotonic_ns;
    p->begin_ns = now(p);
    p->terminal = o->mode == PROGRESS_TERMINAL
        || (o->mode == PROGRESS_AUTO && isatty(fileno(p->o.out)));
    return p;
}

void progress_free(struct progress *p)
{
    if (p == NULL)
        return;
    progress_end(p, false);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

const char *progress_bytes(uint64_t bytes, char *buf, size_t size)
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
    double v = (double)bytes;
    size_t u = 0;
    /* 999.5 and more would be printed as 1000. */
    while (v >= 999.5 && u + 1 < sizeof units / sizeof units[0]) {
        v /= 1000;
        u++;
    }
    snprintf(buf, size, "%.*f %s",
        u == 0 || v >= 99.95 ? 0
            : v >= 9.995     ? 1
                             : 2,
        v, units[u]);
    return buf;
}

const char *progress_time(double seconds, char *buf, size_t size)
{
    if (seconds < 9.95) {
        snprintf(buf, size, "%.1f s", seconds);
        return buf;
    }
    const unsigned long s = (unsigned long)(seconds + 0.5);
    if (s < 60)
        snprintf(buf, size, "%lu s", s);
    else if (s < 3600)
        snprintf(buf, size, "%lu min %02lu s", s / 60, s % 60);
    else
        snprintf(buf, size, "%lu h %02lu min", s / 3600, s % 3600 / 60);
    return buf;
}

static void take_sample(struct progress *p, uint64_t at_ns)
{
    if (p->samples > 0
        && at_ns - p->window[(p->samples - 1) % WINDOW].at_ns < SAMPLE_MS * 1000000ull)
        return;
    p->window[p->samples++ % WINDOW] = (struct sample){at_ns, p->done};
}

/* Bytes per second since the oldest sample, 0 if not known. */
static double rate(const struct progress *p, uint64_t at_ns)
{
    if (p->samples == 0)
        return 0;
    const struct sample *s = &p->window[p->samples < WINDOW ? 0 : p->samples % WINDOW];
    if (at_ns <= s->at_ns || p->done < s->done)
        return 0;
    return (double)(p->done - s->done) / ((double)(at_ns - s->at_ns) / 1e9);
}

static void status(const struct progress *p, uint64_t at_ns, char *buf, size_t size)
{
    char done[24], total[24], speed[24], left[32];
    const double r = rate(p, at_ns);
    int n = snprintf(
        buf, size, "%s: %s", p->what, progress_bytes(p->done, done, sizeof done));
    if (p->total > 0)
        n += snprintf(buf + n, size - (size_t)n, " of %s, %d %%",
            progress_bytes(p->total, total, sizeof total),
            (int)(100.0 * (double)p->done / (double)p->total));
    if (r >= 1)
        n += snprintf(buf + n, size - (size_t)n, ", %s/s",
            progress_bytes((uint64_t)r, speed, sizeof speed));
    else if (p->samples >= WINDOW)
        n += snprintf(buf + n, size - (size_t)n, ", stalled");
    if (r >= 1 && p->total > p->done)
        snprintf(buf + n, size - (size_t)n, ", %s left",
            progress_time((double)(p->total - p->done) / r, left, sizeof left));
}

static void draw(struct progress *p, uint64_t at_ns)
{
    char line[256];
    status(p, at_ns, line, sizeof line);
    if (p->terminal)
        fprintf(p->o.out, "\r%s\033[K", line);
    else
        fprintf(p->o.out, "%s: %s\n", p->o.name, line);
    fflush(p->o.out);
    p->drawn = p->terminal;
    p->drawn_ns = at_ns;
}

static void wipe(struct progress *p)
{
    if (p->drawn)
        fputs("\r\033[K", p->o.out);
    p->drawn = false;
}

/* Closes a phase: only a finished one has a line worth keeping. */
static void summary(struct progress *p, uint64_t at_ns)
{
    char moved[24], took[32], speed[24];
    const uint64_t bytes = p->done;
    const double seconds = (double)(at_ns - p->begin_ns) / 1e9;
    wipe(p);
    if (bytes == 0)
        return;
    fprintf(p->o.out, "%s: %s in %s", p->what, progress_bytes(bytes, moved, sizeof moved),
        progress_time(seconds, took, sizeof took));
    if (seconds > 0)
        fprintf(p->o.out, ", %s/s",
            progress_bytes((uint64_t)((double)bytes / seconds), speed, sizeof speed));
    fputc('\n', p->o.out);
    fflush(p->o.out);
}

static void begin_phase(struct progress *p, const char *what, uint64_t at_ns)
{
    /* The first report comes when a first piece is done: the phase began before it, when the one
     * before was last heard of. */
    if (p->what[0] != '\0') {
        summary(p, p->heard_ns);
        p->begin_ns = p->heard_ns;
    }
    snprintf(p->what, sizeof p->what, "%s", what);
    /* The first line of a log comes after its interval: short work leaves no more than a summary. */
    p->drawn_ns = at_ns;
    p->samples = 0;
    p->done = 0;
}

static void on_progress(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    struct progress *p = ctx;
    pthread_mutex_lock(&p->lock);
    const uint64_t at_ns = now(p);
    if (strncmp(p->what, what, sizeof p->what - 1) != 0)
        begin_phase(p, what, at_ns);
    if (done > p->done)
        p->done = done; /* threads may report out of order */
    p->total = total;
    p->heard_ns = at_ns;
    take_sample(p, at_ns);
    if (at_ns - p->drawn_ns >= (p->terminal ? TERMINAL_MS : LOG_MS) * 1000000ull)
        draw(p, at_ns);
    pthread_mutex_unlock(&p->lock);
}

static void on_note(void *ctx, const char *sentence)
{
    struct progress *p = ctx;
    pthread_mutex_lock(&p->lock);
    wipe(p);
    cli_sentence(p->o.out, p->o.name, sentence);
    fflush(p->o.out);
    pthread_mutex_unlock(&p->lock);
}

struct glm_events progress_events(struct progress *p, const volatile sig_atomic_t *stop)
{
    struct glm_events e = {.stop = stop};
    if (p != NULL && !p->o.quiet) {
        e.progress = on_progress;
        e.note = on_note;
        e.ctx = p;
    }
    return e;
}

void progress_end(struct progress *p, bool succeeded)
{
    if (p == NULL)
        return;
    pthread_mutex_lock(&p->lock);
    if (!p->ended && p->what[0] != '\0') {
        if (succeeded)
            summary(p, now(p));
        else
            wipe(p);
        fflush(p->o.out);
    }
    p->ended = true;
    pthread_mutex_unlock(&p->lock);
}
