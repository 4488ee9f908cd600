/* AdamW: golden updates in float64 of independent code, and bits at every thread count. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/random.h"
#include "kernels/cpu/pool.h"
#include "kernels/kernels.h"
#include "tests/support/optgolden.h"

static void checked(const struct optgolden *c, bool f64)
{
    const size_t bytes = (size_t)c->n * (f64 ? 8 : 4);
    const double limit = f64 ? 1e-13 : 1e-5;
    void *w = malloc(bytes), *m = malloc(bytes), *v = malloc(bytes), *g = malloc(bytes);
    struct glm_error err = {0};

    optgolden_input(c, "w", f64, w);
    optgolden_input(c, "m", f64, m);
    optgolden_input(c, "v", f64, v);
    optgolden_input(c, "g", f64, g);
    const struct adamw p = {.w = w,
        .m = m,
        .v = v,
        .g = g,
        .n = c->n,
        .step = c->step,
        .lr = c->lr,
        .beta1 = c->beta1,
        .beta2 = c->beta2,
        .eps = c->eps,
        .decay = c->decay,
        .grad_scale = c->grad_scale,
        .dtype = f64 ? GLM_F64 : GLM_F32};
    cr_assert_eq(cpu_adamw(&p, NULL, &err), 0, "%s", err.text);
    const void *got[] = {w, m, v};
    const double *expected[] = {c->w, c->m, c->v};
    for (int i = 0; i < 3; i++) {
        const double most = optgolden_max_error(got[i], f64, expected[i], c->n);
        const double norm = optgolden_norm_error(got[i], f64, expected[i], c->n);
        cr_assert_lt(most, limit, "%s %c: %g", c->name, "wmv"[i], most);
        cr_assert_lt(norm, limit, "%s %c: %g", c->name, "wmv"[i], norm);
    }
    free(w);
    free(m);
    free(v);
    free(g);
}

Test(adamw, one_step_is_that_of_an_independent_float64_reference)
{
    int count, ran = 0;
    const struct optgolden *c = optgolden_cases(&count);

    for (int i = 0; i < count; i++) {
        if (c[i].muon)
            continue;
        checked(&c[i], false);
        checked(&c[i], true);
        ran++;
    }
    cr_assert_geq(ran, 3);
}

Test(adamw, bits_do_not_depend_on_threads)
{
    enum { N = 100003 };
    const struct random_stream r = random_open(3, "test", "adamw");
    float *first = NULL, *g = malloc(N * sizeof *g);
    struct glm_error err = {0};

    random_normal_f32(&r, 0, N, 0, 0.01, g);
    for (int threads = 1; threads <= 4; threads *= 2) {
        const glm_stream s = kernels_find("cpu")->stream_new(threads, &err);
        float *x = calloc(3 * N, sizeof *x);
        random_normal_f32(&r, N, N, 0, 0.05, x);
        for (int step = 1; step <= 3; step++) {
            const struct adamw p = {.w = x,
                .m = x + N,
                .v = x + 2 * N,
                .g = g,
                .n = N,
                .step = step,
                .lr = 0.01,
                .beta1 = 0.9,
                .beta2 = 0.95,
                .eps = 1e-8,
                .decay = 0.1,
                .grad_scale = 0.3,
                .dtype = GLM_F32};
            cr_assert_eq(cpu_adamw(&p, s, &err), 0, "%s", err.text);
        }
        cr_assert_eq(pool_used(s), threads);
        if (first == NULL)
            first = x;
        else
            cr_assert_eq(memcmp(first, x, 3 * N * sizeof *x), 0, "%d threads", threads);
        if (x != first)
            free(x);
        kernels_find("cpu")->stream_free(s);
    }
    free(first);
    free(g);
}

Test(adamw, a_step_before_the_first_is_refused)
{
    struct glm_error err = {0};
    const struct adamw p = {
        .n = 0, .step = 0, .beta1 = 0.9, .beta2 = 0.9, .dtype = GLM_F32};

    cr_assert_eq(cpu_adamw(&p, NULL, &err), GLM_EFORMAT);
    cr_assert(strstr(err.text, "step 0") != NULL, "%s", err.text);
}
