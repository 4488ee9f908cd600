#include "tests/gpu/opprofile.h"

#include <stdio.h>
#include <string.h>

static const struct kernels *real;
static struct {
    const char *op;
    char note[64];
} timed[8000];
static int calls;
static int (*event)(int, void *);
static float (*elapsed)(int, int);

static void note(const char *op, const char *text)
{
    timed[calls].op = op;
    snprintf(timed[calls].note, sizeof timed[calls].note, "%s", text);
}

/* What makes calls of one operation differ. */
static const char *describe(const char *op, const void *p)
{
    static char text[64];
    text[0] = '\0';
    if (strcmp(op, "gemm") == 0) {
        const struct gemm *g = p;
        snprintf(text, sizeof text, "%lldx%lldx%lld%s", (long long)g->M, (long long)g->N,
            (long long)g->K, g->accumulate ? "+" : "");
    } else if (strcmp(op, "grouped_gemm") == 0) {
        const struct grouped_gemm *g = p;
        static const char *const kinds[] = {"NT", "NN", "TN"};
        snprintf(text, sizeof text, "%s %lldx%lld", kinds[g->kind], (long long)g->N,
            (long long)g->K);
    } else if (strcmp(op, "muon") == 0) {
        const struct muon *m = p;
        snprintf(text, sizeof text, "%lld of %lldx%lld", (long long)m->B, (long long)m->R,
            (long long)m->C);
    } else if (strcmp(op, "adamw") == 0) {
        snprintf(text, sizeof text, "%lld", (long long)((const struct adamw *)p)->n);
    }
    return text;
}

#define PROFILED(name)                                                                   \
    static int profiled_##name(                                                          \
        const struct name *p, glm_stream s, struct glm_error *err)                       \
    {                                                                                    \
        note(#name, describe(#name, p));                                                 \
        event(2 * calls, s);                                                             \
        const int status = real->name(p, s, err);                                        \
        event(2 * calls + 1, s);                                                         \
        if (calls < 7999)                                                                \
            calls++;                                                                     \
        return status;                                                                   \
    }
OPS(PROFILED)

struct kernels opprofile_of(
    const struct kernels *k, int (*record)(int, void *), float (*milliseconds)(int, int))
{
    struct kernels out = *k;
    real = k;
    event = record;
    elapsed = milliseconds;
    calls = 0;
#define SET(name) out.name = profiled_##name;
    OPS(SET)
    return out;
}

void opprofile_reset(void)
{
    calls = 0;
}

void opprofile_print(void)
{
    double all = 0;
    for (int i = 0; i < calls; i++)
        all += (double)elapsed(2 * i, 2 * i + 1);
    fprintf(
        stderr, "%10s %6s %5s  operation (sum %.3f ms)\n", "ms", "share", "calls", all);
    for (int i = 0; i < calls; i++) {
        double sum = 0;
        int n = 0;
        if (timed[i].op == NULL)
            continue;
        const char *op = timed[i].op;
        for (int j = i; j < calls; j++)
            if (timed[j].op == op && strcmp(timed[j].note, timed[i].note) == 0) {
                sum += (double)elapsed(2 * j, 2 * j + 1);
                n++;
                if (j > i)
                    timed[j].op = NULL;
            }
        fprintf(stderr, "%10.3f %5.1f%% %5d  %s %s\n", sum, 100 * sum / all, n, op,
            timed[i].note);
    }
}
