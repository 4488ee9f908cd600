#include "tests/support/optgolden.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/rng.h"
#include "tests/support/tmpdir.h"

enum { MAX_CASES = 64 };

static void parse(struct optgolden *c, const char *line)
{
    char kind[16];
    int at = 0;
    long long d[4];

    if (sscanf(line, "%15s %31s %n", kind, c->name, &at) != 2)
        abort();
    c->muon = strcmp(kind, "muon") == 0;
    if (c->muon) {
        if (sscanf(line + at, "%lld %lld %lld %31s %lf %lf %lf %d %31s %d %31s %lf %lf",
                &d[0], &d[1], &d[2], c->layout, &c->lr, &c->decay, &c->momentum,
                &c->nesterov, c->coeff, &c->steps, c->scale, &c->extra, &c->grad_scale)
            != 13)
            abort();
        c->E = d[0];
        c->R = d[1];
        c->C = d[2];
        c->n = c->E * c->R * c->C;
        const char *colon = strchr(c->layout, ':');
        if (colon != NULL && sscanf(colon + 1, "%lld,%lld", &d[0], &d[1]) == 2) {
            c->head = d[0];
            c->split = d[1];
        }
        return;
    }
    if (sscanf(line + at, "%lld %lld %lf %lf %lf %lf %lf %lf", &d[0], &d[1], &c->lr,
            &c->beta1, &c->beta2, &c->eps, &c->decay, &c->grad_scale)
        != 8)
        abort();
    c->n = d[0];
    c->step = d[1];
}

const struct optgolden *optgolden_cases(int *count)
{
    static struct optgolden cases[MAX_CASES];
    static int n;

    if (n == 0) {
        size_t size, bytes;
        char *text = tmpdir_read("fixtures/optimizer/cases.txt", &size), *rest = NULL;
        const double *next = tmpdir_read("fixtures/optimizer/results.f64", &bytes);
        const double *const end = next + bytes / sizeof *next;
        for (char *line = strtok_r(text, "\n", &rest); line != NULL && n < MAX_CASES;
             line = strtok_r(NULL, "\n", &rest)) {
            struct optgolden *c = &cases[n++];
            parse(c, line);
            c->w = next;
            c->m = next + c->n;
            c->v = c->muon ? NULL : next + 2 * c->n;
            next += (c->muon ? 2 : 3) * c->n;
        }
        if (next != end)
            abort();
        free(text);
    }
    *count = n;
    return cases;
}

void optgolden_input(const struct optgolden *c, const char *array, bool f64, void *out)
{
    const float scale = *array == 'w' ? 0.05f
        : *array == 'm'               ? 0.002f
        : *array == 'v'               ? 0.003f
                                      : 0.01f;
    const uint64_t h = rng_text(rng_text(rng_text(RNG_TEXT, c->name), "/"), array);

    for (int64_t i = 0; i < c->n; i++) {
        float x = (float)rng_unit(rng_mix(h + (uint64_t)i)) * scale;
        if (*array == 'v')
            x = (float)((double)x * (double)x);
        if (f64)
            ((double *)out)[i] = (double)x;
        else
            ((float *)out)[i] = x;
    }
}

static double at(const void *a, bool f64, int64_t i)
{
    return f64 ? ((const double *)a)[i] : (double)((const float *)a)[i];
}

double optgolden_norm_error(const void *a, bool f64, const double *expected, int64_t n)
{
    double off = 0, all = 0;

    for (int64_t i = 0; i < n; i++) {
        const double d = at(a, f64, i) - expected[i];
        off += d * d;
        all += expected[i] * expected[i];
    }
    return sqrt(off / all);
}

double optgolden_max_error(const void *a, bool f64, const double *expected, int64_t n)
{
    double off = 0, all = 0;

    for (int64_t i = 0; i < n; i++) {
        off = fmax(off, fabs(at(a, f64, i) - expected[i]));
        all = fmax(all, fabs(expected[i]));
        if (!isfinite(at(a, f64, i)))
            return INFINITY;
    }
    return off / all;
}
