/* add, SwiGLU and convert, element by element; exp of the float modes. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/bf16.h"
#include "kernels/cpu/lanes.h"
#include "kernels/ops.h"
#include "tests/support/close.h"
#include "tests/support/differences.h"
#include "tests/support/values.h"

/* None, one, tails of every vector width, more than a range of a thread. */
static const int64_t sizes[] = {0, 1, 7, 16, 100, 70001};
enum { SIZES = sizeof sizes / sizeof *sizes };

Test(add, is_the_sum_and_may_take_the_place_of_either)
{
    for (int i = 0; i < VALUE_TYPES * SIZES * VALUE_POOLS; i++) {
        const enum glm_dtype dtype = value_types[i % VALUE_TYPES];
        const int64_t n = sizes[i / VALUE_TYPES % SIZES];
        const glm_stream stream = value_pool(i / VALUE_TYPES / SIZES);
        void *a = values_random(dtype, n, 1, 1), *b = values_random(dtype, n, 2, 1);
        void *y = values_filled(dtype, n, 0);
        double *want = malloc((size_t)n * sizeof *want + 1);
        struct add p = {.y = y, .a = a, .b = b, .n = n, .dtype = dtype};
        struct glm_error err = {0};

        for (int64_t k = 0; k < n; k++)
            want[k] = value_at(dtype, a, k) + value_at(dtype, b, k);
        cr_assert_eq(cpu_add(&p, stream, &err), 0);
        close_check("add", CLOSE_FEW, dtype, dtype, y, want, n);
        p.y = b;
        cr_assert_eq(cpu_add(&p, stream, &err), 0);
        close_same("in place", dtype, y, b, n);
        free(a);
        free(b);
        free(y);
        free(want);
    }
}

/* ---- SwiGLU ------------------------------------------------------------------------------------ */

struct swiglu {
    enum glm_dtype dtype;
    int64_t n;
    void *a, *b, *dh, *h, *da, *db;
};

static struct swiglu swiglu_new(enum glm_dtype dtype, int64_t n)
{
    return (struct swiglu){dtype, n, values_random(dtype, n, 1, 3),
        values_random(dtype, n, 2, 1), values_random(dtype, n, 3, 1),
        values_filled(dtype, n, 0), values_filled(dtype, n, 0),
        values_filled(dtype, n, 0)};
}

static void swiglu_free(struct swiglu *s)
{
    free(s->a);
    free(s->b);
    free(s->dh);
    free(s->h);
    free(s->da);
    free(s->db);
}

static void swiglu_run(struct swiglu *s, glm_stream stream)
{
    struct glm_error err = {0};

    cpu_swiglu_fwd(
        &(struct swiglu_fwd){
            .h = s->h, .a = s->a, .b = s->b, .n = s->n, .dtype = s->dtype},
        stream, &err);
    cpu_swiglu_bwd(&(struct swiglu_bwd){.da = s->da,
                       .db = s->db,
                       .dh = s->dh,
                       .a = s->a,
                       .b = s->b,
                       .n = s->n,
                       .dtype = s->dtype},
        stream, &err);
    cr_assert_eq(err.code, 0, "%s", err.text);
}

static void check_swiglu(enum glm_dtype dtype, int64_t n, glm_stream stream)
{
    struct swiglu s = swiglu_new(dtype, n), one = swiglu_new(dtype, n);
    double *h = malloc((size_t)n * 8 + 1), *da = malloc((size_t)n * 8 + 1);
    double *db = malloc((size_t)n * 8 + 1);

    for (int64_t i = 0; i < n; i++) {
        const double a = value_at(dtype, s.a, i), b = value_at(dtype, s.b, i);
        const double g = value_at(dtype, s.dh, i), sigma = 1 / (1 + exp(-a));
        h[i] = a * sigma * b;
        da[i] = g * b * sigma * (1 + a * (1 - sigma));
        db[i] = g * a * sigma;
    }
    swiglu_run(&s, stream);
    swiglu_run(&one, NULL);
    close_check("h", CLOSE_FEW, dtype, dtype, s.h, h, n);
    close_check("da", CLOSE_FEW, dtype, dtype, s.da, da, n);
    close_check("db", CLOSE_FEW, dtype, dtype, s.db, db, n);
    close_same("h", dtype, s.h, one.h, n);
    close_same("da", dtype, s.da, one.da, n);
    close_same("db", dtype, s.db, one.db, n);
    swiglu_free(&s);
    swiglu_free(&one);
    free(h);
    free(da);
    free(db);
}

Test(swiglu, is_its_formula_forward_and_backward_with_any_threads)
{
    for (int i = 0; i < VALUE_TYPES * SIZES * VALUE_POOLS; i++)
        check_swiglu(value_types[i % VALUE_TYPES], sizes[i / VALUE_TYPES % SIZES],
            value_pool(i / VALUE_TYPES / SIZES));
}

Test(swiglu, is_finite_at_the_ends_of_the_range)
{
    const float a[6] = {-1e30f, -200, -104, 100, 1e30f, -0.0f},
                one[6] = {1, 1, 1, 1, 1, 1};
    float h[6], da[6], db[6];
    struct swiglu s = {GLM_F32, 6, (void *)(uintptr_t)a, (void *)(uintptr_t)one,
        (void *)(uintptr_t)one, h, da, db};
    const float want[6] = {0, 0, 0, 100, 1e30f, 0}, slope[6] = {0, 0, 0, 1, 1, 0.5f};

    swiglu_run(&s, NULL);
    for (int i = 0; i < 6; i++) {
        cr_assert_float_eq(h[i], want[i], 1e-30f, "h %d: %g", i, (double)h[i]);
        cr_assert_float_eq(da[i], slope[i], 1e-30f, "da %d: %g", i, (double)da[i]);
    }
}

static double loss(void *ctx)
{
    struct swiglu *s = ctx;
    struct glm_error err = {0};

    cpu_swiglu_fwd(
        &(struct swiglu_fwd){
            .h = s->h, .a = s->a, .b = s->b, .n = s->n, .dtype = s->dtype},
        NULL, &err);
    return differences_dot(s->dh, s->h, s->n);
}

Test(swiglu, has_the_gradients_that_differences_have)
{
    struct swiglu s = swiglu_new(GLM_F64, 60);

    swiglu_run(&s, NULL);
    differences_check("da", loss, &s, s.a, s.n, s.da);
    differences_check("db", loss, &s, s.b, s.n, s.db);
    swiglu_free(&s);
}

/* ---- exp --------------------------------------------------------------------------------------- */

Test(exp, of_floats_is_within_one_unit_of_the_last_place)
{
    for (float x = -87.0f; x < 88.5f; x += 0.00137f) {
        const double want = exp((double)x), unit = ldexp(1, ilogb(want) - 23);
        cr_assert(fabs((double)real_exp(x) - want) <= unit,
            "exp(%.9g) = %.9g, expected %.9g", (double)x, (double)real_exp(x), want);
    }
    cr_assert_eq(real_exp(0), 1);
    cr_assert_eq(real_exp(-INFINITY), 0);
    cr_assert_eq(real_exp(-1e30f), 0);
    cr_assert(isinf(real_exp(INFINITY)) && isinf(real_exp(89)));
    cr_assert(isnan(real_exp(NAN)));
    cr_assert(real_exp(-100) > 0, "subnormal results are kept");
}

/* ---- convert ----------------------------------------------------------------------------------- */

static void convert_one(enum glm_dtype from, enum glm_dtype to, const void *x, void *y,
    int64_t n, glm_stream stream)
{
    struct glm_error err = {0};

    cr_assert_eq(
        cpu_convert(&(struct convert){.y = y, .x = x, .n = n, .from = from, .to = to},
            stream, &err),
        0, "%s", err.text);
}

Test(convert, rounds_to_the_nearest_between_all_types)
{
    enum { N = 70001 };

    for (int i = 0; i < VALUE_TYPES * VALUE_TYPES * VALUE_POOLS; i++) {
        const enum glm_dtype from = value_types[i % VALUE_TYPES];
        const enum glm_dtype to = value_types[i / VALUE_TYPES % VALUE_TYPES];
        void *x = values_random(from, N, 1, 1e10), *y = values_filled(to, N, 0);
        convert_one(from, to, x, y, N, value_pool(i / VALUE_TYPES / VALUE_TYPES));
        for (int64_t k = 0; k < N; k++) {
            const double a = value_at(from, x, k), b = value_at(to, y, k);
            const double unit = to == GLM_F64 ? 0 : to == GLM_F32 ? 0x1p-24 : 0x1p-8;
            cr_assert(fabs(a - b) <= unit * fabs(a), "%.17g became %.17g", a, b);
        }
        free(x);
        free(y);
    }
}

Test(convert, rounds_a_double_to_bf16_once)
{
    /* The float between would be a tie, and go the wrong way. */
    static const struct {
        double x;
        uint16_t want;
    } cases[] = {{1 + 0x1p-8, 0x3f80}, {1 + 0x1p-8 + 0x1p-40, 0x3f81},
        {1 + 0x3p-8 - 0x1p-40, 0x3f81}, {1 + 0x3p-8, 0x3f82},
        {-1 - 0x1p-8 - 0x1p-40, 0xbf81}, {1e300, 0x7f80}, {-INFINITY, 0xff80},
        {0x1p-134, 0x0000}, {0x1.0000000001p-134, 0x0001}, {-0.0, 0x8000},
        {1e-300, 0x0000}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint16_t y;
        convert_one(GLM_F64, GLM_BF16, &cases[i].x, &y, 1, NULL);
        cr_assert_eq(y, cases[i].want, "%a became %04x, expected %04x", cases[i].x,
            (unsigned)y, (unsigned)cases[i].want);
    }
    const double nan = NAN;
    uint16_t y;
    convert_one(GLM_F64, GLM_BF16, &nan, &y, 1, NULL);
    cr_assert(isnan(bf16_to_f32(y)));
}

Test(convert, names_types_it_does_not_know)
{
    struct glm_error err = {0};

    cr_assert_eq(
        cpu_convert(&(struct convert){.from = GLM_F32, .to = GLM_F8_E4M3}, NULL, &err),
        GLM_EFORMAT);
    cr_assert(strstr(err.text, "from F32 to") != NULL, "%s", err.text);
}
