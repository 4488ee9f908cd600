/* Muon: golden updates in float64 of independent code, known spectra, bits at every thread count. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/random.h"
#include "kernels/cpu/pool.h"
#include "kernels/kernels.h"
#include "tests/support/optgolden.h"

static const double simple[][3] = {{3.4445, -4.7750, 2.0315}, {3.4445, -4.7750, 2.0315},
    {3.4445, -4.7750, 2.0315}, {3.4445, -4.7750, 2.0315}, {3.4445, -4.7750, 2.0315},
    {3.4445, -4.7750, 2.0315}, {3.4445, -4.7750, 2.0315}, {3.4445, -4.7750, 2.0315},
    {2, -1.5, 0.5}, {2, -1.5, 0.5}};
static const double quintic[][3] = {{4.0848, -6.8946, 2.9270}, {3.9505, -6.3029, 2.6377},
    {3.7418, -5.5913, 2.3037}, {2.8769, -3.1427, 1.2046}, {2.8366, -3.0525, 1.2012},
    {2.8366, -3.0525, 1.2012}, {2.8366, -3.0525, 1.2012}};

static void fill(void *out, bool f64, int64_t n, const char *name, double std)
{
    const struct random_stream s = random_open(7, "test", name);

    for (int64_t i = 0; i < n; i++) {
        const float x = (float)(std * random_normal(&s, (uint64_t)i));
        if (f64)
            ((double *)out)[i] = (double)x;
        else
            ((float *)out)[i] = x;
    }
}

/* ---- golden ----------------------------------------------------------------------------------- */

static double rho(const char *mode, double rows, double cols)
{
    if (strcmp(mode, "spectral") == 0)
        return sqrt(fmax(rows, cols));
    return sqrt(strcmp(mode, "unit_rms") == 0 ? rows / cols : fmax(1, rows / cols));
}

/* The case's matrices as calls of the operation: parts[][4]: first row, R, B, gathered run. */
static int parts_of(const struct optgolden *c, int64_t parts[2][4])
{
    const int64_t heads = c->head > 0 ? c->R / c->head : 1;

    if (c->head == 0) {
        memcpy(parts[0], (int64_t[4]){0, c->R, c->E, 0}, sizeof parts[0]);
        return 1;
    }
    const int64_t rest = c->head - c->split;
    memcpy(parts[0], (int64_t[4]){0, c->split, heads, 0}, sizeof parts[0]);
    if (c->layout[0] == 'h')
        memcpy(parts[1], (int64_t[4]){c->split, rest, heads, 0}, sizeof parts[1]);
    else
        memcpy(parts[1], (int64_t[4]){c->split, rest * heads, 1, rest}, sizeof parts[1]);
    return 2;
}

static void update(const struct optgolden *c, bool f64, glm_stream stream, void *w,
    void *m, const void *g)
{
    const size_t size = f64 ? 8 : 4;
    struct glm_error err = {0};
    int64_t parts[2][4];
    const int n = parts_of(c, parts);

    for (int i = 0; i < n; i++) {
        const size_t at = (size_t)(parts[i][0] * c->C) * size;
        const int64_t stride = (c->head > 0 ? c->head : c->R) * c->C;
        const struct muon p = {.w = (char *)w + at,
            .m = (char *)m + at,
            .g = (const char *)g + at,
            .B = parts[i][2],
            .R = parts[i][1],
            .C = c->C,
            .batch_stride = stride,
            .row_stride = c->C,
            .run = parts[i][3],
            .run_stride = stride,
            .lr = c->lr,
            .decay = c->decay,
            .momentum = c->momentum,
            .grad_scale = c->grad_scale,
            .factor = c->extra * rho(c->scale, (double)parts[i][1], (double)c->C),
            .coeff = strcmp(c->coeff, "quintic") == 0 ? quintic : simple,
            .steps = c->steps,
            .nesterov = c->nesterov,
            .dtype = f64 ? GLM_F64 : GLM_F32};
        cr_assert_eq(cpu_muon(&p, stream, &err), 0, "%s: %s", c->name, err.text);
    }
}

static double checked(const struct optgolden *c, bool f64)
{
    const size_t bytes = (size_t)c->n * (f64 ? 8 : 4);
    void *w = malloc(bytes), *m = malloc(bytes), *g = malloc(bytes);
    double *before = malloc((size_t)c->n * 8), *moved = malloc((size_t)c->n * 8);
    double *expected = malloc((size_t)c->n * 8);

    optgolden_input(c, "w", true, before);
    optgolden_input(c, "w", f64, w);
    optgolden_input(c, "m", f64, m);
    optgolden_input(c, "g", f64, g);
    update(c, f64, NULL, w, m, g);
    const double limit = f64 ? 1e-11 : 1e-5;
    const double error_w = optgolden_max_error(w, f64, c->w, c->n);
    const double error_m = optgolden_max_error(m, f64, c->m, c->n);
    /* How far it moved is the update itself, which the weights could hide. */
    for (int64_t i = 0; i < c->n; i++) {
        moved[i] = (f64 ? ((double *)w)[i] : (double)((float *)w)[i]) - before[i];
        expected[i] = c->w[i] - before[i];
    }
    const double error_u = optgolden_norm_error(moved, true, expected, c->n);
    cr_assert_lt(error_w, limit, "%s: w %g", c->name, error_w);
    cr_assert_lt(error_m, limit, "%s: m %g", c->name, error_m);
    cr_assert_lt(error_u, limit, "%s: update %g", c->name, error_u);
    free(w);
    free(m);
    free(g);
    free(before);
    free(moved);
    free(expected);
    return fmax(error_u, fmax(error_w, error_m));
}

Test(muon, one_step_is_that_of_an_independent_float64_reference)
{
    int count, ran = 0;
    const struct optgolden *c = optgolden_cases(&count);
    double worst = 0;

    for (int i = 0; i < count; i++) {
        if (!c[i].muon)
            continue;
        worst = fmax(worst, checked(&c[i], false));
        checked(&c[i], true);
        ran++;
    }
    cr_assert_geq(ran, 12);
    cr_log_info("largest relative error in F32 %.2e", worst);
}

/* ---- known spectra ---------------------------------------------------------------------------- */

/* An [n,n] orthogonal matrix: the reflection that takes e_1 to a random direction. */
static void reflection(double *q, int64_t n, const char *name)
{
    double *v = malloc((size_t)n * sizeof *v), s = 0;

    fill(v, true, n, name, 1);
    for (int64_t i = 0; i < n; i++)
        s += v[i] * v[i];
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++)
            q[i * n + j] = (i == j) - 2 * v[i] * v[j] / s;
    free(v);
}

/* x = U diag(sigma) V^T; NS(x) must be U diag(p(sigma/|sigma|)) V^T. */
static void spectrum(int64_t R, int64_t C, bool low, double limit)
{
    const int64_t n = R < C ? R : C;
    double *u = malloc((size_t)(R * R) * 8), *v = malloc((size_t)(C * C) * 8);
    double *x = calloc((size_t)(R * C), 8), *o = calloc((size_t)(R * C), 8);
    double sigma[64], to[64], norm = 0;
    struct glm_error err = {0};

    reflection(u, R, "u");
    reflection(v, C, "v");
    for (int64_t k = 0; k < n; k++) {
        sigma[k] = k == n - 1 ? 0 : pow(0.8, (double)k);
        norm += sigma[k] * sigma[k];
    }
    for (int64_t k = 0; k < n; k++) {
        double s = sigma[k] / sqrt(norm);
        for (int i = 0; i < 5; i++)
            s = quintic[i][0] * s + quintic[i][1] * pow(s, 3) + quintic[i][2] * pow(s, 5);
        to[k] = s;
        for (int64_t i = 0; i < R; i++)
            for (int64_t j = 0; j < C; j++) {
                x[i * C + j] += u[i * R + k] * sigma[k] * v[j * C + k];
                o[i * C + j] += u[i * R + k] * to[k] * v[j * C + k];
            }
    }
    cr_assert(to[0] > 0.8 && to[0] < 1.2 && to[n - 1] == 0);
    const struct newton_schulz p = {.o = x,
        .x = x,
        .B = 1,
        .R = R,
        .C = C,
        .coeff = quintic,
        .steps = 5,
        .low_precision = low,
        .dtype = GLM_F64};
    cr_assert_eq(cpu_newton_schulz(&p, NULL, &err), 0, "%s", err.text);
    const double error = optgolden_norm_error(x, true, o, R * C);
    cr_assert_lt(error, limit, "%lld x %lld: %g", (long long)R, (long long)C, error);
    if (low)
        cr_assert_gt(error, 1e-5, "nothing was rounded");
    free(u);
    free(v);
    free(x);
    free(o);
}

Test(muon, newton_schulz_moves_singular_values_by_its_polynomials)
{
    spectrum(12, 12, false, 1e-12);
    spectrum(9, 31, false, 1e-12);
    spectrum(31, 9, false, 1e-12);
}

/* BF16 keeps 8 bits: a few roundings of 2^-9 in each of five steps. */
Test(muon, low_precision_stays_near_and_is_rounded)
{
    spectrum(12, 12, true, 0.05);
    spectrum(9, 31, true, 0.05);
    spectrum(31, 9, true, 0.05);
}

/* Every value that low precision stores is a BF16 value. */
Test(muon, low_precision_gives_bf16_values)
{
    float x[7 * 13], o[7 * 13];
    struct glm_error err = {0};

    fill(x, false, 7 * 13, "low", 1);
    const struct newton_schulz p = {.o = o,
        .x = x,
        .B = 1,
        .R = 7,
        .C = 13,
        .coeff = quintic,
        .steps = 5,
        .low_precision = true,
        .dtype = GLM_F32};
    cr_assert_eq(cpu_newton_schulz(&p, NULL, &err), 0, "%s", err.text);
    for (int i = 0; i < 7 * 13; i++) {
        uint32_t bits;
        memcpy(&bits, &o[i], sizeof bits);
        cr_assert_eq(bits & 0xFFFF, 0);
    }
}

Test(muon, zero_stays_zero_and_decay_still_acts)
{
    float w[6] = {1, 2, 3, 4, 5, 6}, m[6] = {0}, g[6] = {0};
    struct glm_error err = {0};
    const struct muon p = {.w = w,
        .m = m,
        .g = g,
        .B = 1,
        .R = 2,
        .C = 3,
        .row_stride = 3,
        .lr = 0.5,
        .decay = 0.5,
        .momentum = 0.95,
        .grad_scale = 1,
        .factor = 1,
        .coeff = quintic,
        .steps = 5,
        .dtype = GLM_F32};

    cr_assert_eq(cpu_muon(&p, NULL, &err), 0, "%s", err.text);
    for (int i = 0; i < 6; i++) {
        cr_assert_eq(w[i], 0.75f * (float)(i + 1));
        cr_assert_eq(m[i], 0);
    }
}

/* ---- bits ------------------------------------------------------------------------------------- */

static void same_at_every_thread_count(
    int64_t B, int64_t R, int64_t C, bool f64, bool low)
{
    const int64_t n = B * R * C;
    const size_t bytes = (size_t)n * (f64 ? 8 : 4);
    void *first_w = NULL, *first_m = NULL, *g = malloc(bytes);

    fill(g, f64, n, "g", 0.01);
    for (int threads = 0; threads <= 4; threads++) {
        struct glm_error err = {0};
        const glm_stream s =
            threads == 0 ? NULL : kernels_find("cpu")->stream_new(threads, &err);
        void *w = malloc(bytes), *m = malloc(bytes);
        fill(w, f64, n, "w", 0.05);
        fill(m, f64, n, "m", 0.01);
        const struct muon p = {.w = w,
            .m = m,
            .g = g,
            .B = B,
            .R = R,
            .C = C,
            .batch_stride = R * C,
            .row_stride = C,
            .lr = 0.02,
            .decay = 0.1,
            .momentum = 0.95,
            .grad_scale = 0.5,
            .factor = 2,
            .coeff = quintic,
            .steps = 5,
            .low_precision = low,
            .dtype = f64 ? GLM_F64 : GLM_F32};
        cr_assert_eq(cpu_muon(&p, s, &err), 0, "%s", err.text);
        if (threads > 0)
            cr_assert_eq(pool_used(s), threads);
        if (first_w == NULL) {
            first_w = w;
            first_m = m;
        } else {
            cr_assert_eq(memcmp(w, first_w, bytes), 0, "%d threads, w of %lld x %lld",
                threads, (long long)R, (long long)C);
            cr_assert_eq(memcmp(m, first_m, bytes), 0, "%d threads, m", threads);
            free(w);
            free(m);
        }
        kernels_find("cpu")->stream_free(s);
    }
    free(first_w);
    free(first_m);
    free(g);
}

Test(muon, bits_do_not_depend_on_threads)
{
    same_at_every_thread_count(1, 200, 333, false, false);
    same_at_every_thread_count(1, 333, 200, false, true);
    same_at_every_thread_count(2, 130, 97, true, false);
    same_at_every_thread_count(3, 96, 160, false, false);
    same_at_every_thread_count(9, 33, 65, false, false);
    same_at_every_thread_count(9, 65, 33, true, true);
}

Test(muon, a_matrix_has_the_same_bits_alone_and_in_a_batch)
{
    enum { B = 3, R = 50, C = 70, N = R * C };
    float *x = malloc(B * N * sizeof *x), *o = malloc(B * N * sizeof *o),
          *one = malloc(N * sizeof *one);
    struct glm_error err = {0};
    struct newton_schulz p = {.o = o,
        .x = x,
        .B = B,
        .R = R,
        .C = C,
        .coeff = simple,
        .steps = 5,
        .dtype = GLM_F32};

    fill(x, false, B * N, "x", 1);
    cr_assert_eq(cpu_newton_schulz(&p, NULL, &err), 0, "%s", err.text);
    for (int b = 0; b < B; b++) {
        p.x = x + b * N;
        p.o = one;
        p.B = 1;
        cr_assert_eq(cpu_newton_schulz(&p, NULL, &err), 0, "%s", err.text);
        cr_assert_eq(memcmp(one, o + b * N, N * sizeof *o), 0);
    }
    free(x);
    free(o);
    free(one);
}

Test(muon, impossible_shapes_and_types_are_refused)
{
    struct glm_error err = {0};
    const struct muon none = {.B = 1, .R = 0, .C = 3, .dtype = GLM_F32};
    const struct muon type = {.B = 1, .R = 1, .C = 1, .dtype = GLM_BF16};

    cr_assert_eq(cpu_muon(&none, NULL, &err), GLM_EFORMAT);
    cr_assert(strstr(err.text, "0 x 3") != NULL, "%s", err.text);
    glm_error_clear(&err);
    cr_assert_eq(cpu_muon(&type, NULL, &err), GLM_EFORMAT);
    cr_assert(strstr(err.text, "BF16") != NULL, "%s", err.text);
}
