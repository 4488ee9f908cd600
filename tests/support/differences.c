#include "tests/support/differences.h"

#include <criterion/criterion.h>
#include <math.h>

#include "tests/support/rng.h"

double differences_dot(const double *c, const double *y, int64_t n)
{
    double s = 0;

    for (int64_t i = 0; i < n; i++)
        s += c[i] * y[i];
    return s;
}

/* The five-point formula: its error is of fourth order in the step, so that a step of 1e-3 leaves
 * neither truncation nor cancellation above 1e-9 for functions of ordinary size. */
static double derivative(differences_fn *fn, void *ctx, double *x)
{
    const double step = 1e-3, at = *x;
    double f[4];

    for (int i = 0; i < 4; i++) {
        *x = at + step * (i < 2 ? i - 2 : i - 1);
        f[i] = fn(ctx);
    }
    *x = at;
    return (f[0] - 8 * f[1] + 8 * f[2] - f[3]) / (12 * step);
}

void differences_check(const char *what, differences_fn *fn, void *ctx, double *x,
    int64_t n, const double *grad)
{
    enum { ENTRIES = 32 };
    double largest = 0;
    uint64_t state = 11;

    for (int64_t i = 0; i < n; i++)
        largest = fmax(largest, fabs(grad[i]));
    for (int64_t k = 0; k < (n < ENTRIES ? n : ENTRIES); k++) {
        const int64_t i = n <= ENTRIES ? k : (int64_t)rng_below(&state, (uint64_t)n);
        const double want = derivative(fn, ctx, &x[i]);
        cr_assert(fabs(grad[i] - want) <= 1e-7 * largest,
            "%s: element %lld: gradient %.12g, by differences %.12g", what, (long long)i,
            grad[i], want);
    }
}
