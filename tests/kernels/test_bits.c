/* The bits of results do not depend on vector width or optimisation: sums have a written order.
 *
 * The digests below are of the release build, which picks the widest copy of each loop that the
 * processor has; the sanitizer build runs the same test without vectors. What goes through the GEMM
 * or the C library's functions is not here. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/ops.h"
#include "tests/support/values.h"

enum { ROWS = 67, D = 100, N = ROWS * D };

static uint64_t digest(uint64_t seed, enum glm_dtype type, const void *p, int64_t n)
{
    const unsigned char *bytes = p;

    for (size_t i = 0; i < (size_t)n * glm_dtype_size(type); i++)
        seed = (seed ^ bytes[i]) * UINT64_C(0x100000001b3); /* FNV-1a */
    return seed;
}

static const uint64_t start = UINT64_C(0xcbf29ce484222325);

struct inputs {
    enum glm_dtype dtype, acc;
    void *x, *w, *b, *dy, *y, *dx; /* elem */
    void *dw, *db, *mean, *rstd;   /* acc */
    struct glm_error err;
};

static struct inputs inputs_new(enum glm_dtype dtype)
{
    const enum glm_dtype acc = value_acc(dtype);

    return (struct inputs){.dtype = dtype,
        .acc = acc,
        .x = values_random(dtype, N, 1, 2),
        .w = values_random(dtype, D, 2, 1),
        .b = values_random(dtype, N, 3, 1),
        .dy = values_random(dtype, N, 4, 1),
        .y = values_filled(dtype, N, 0),
        .dx = values_filled(dtype, N, 0),
        .dw = values_random(acc, N, 5, 1),
        .db = values_random(acc, N, 6, 1),
        .mean = values_filled(acc, ROWS, 0),
        .rstd = values_filled(acc, ROWS, 0)};
}

static void inputs_free(struct inputs *s)
{
    void *const all[] = {
        s->x, s->w, s->b, s->dy, s->y, s->dx, s->dw, s->db, s->mean, s->rstd};

    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

static uint64_t rmsnorm(struct inputs *s)
{
    cpu_rmsnorm_fwd(&(struct rmsnorm_fwd){.y = s->y,
                        .rstd = s->rstd,
                        .x = s->x,
                        .w = s->w,
                        .T = ROWS,
                        .D = D,
                        .eps = 1e-5f,
                        .dtype = s->dtype},
        NULL, &s->err);
    cpu_rmsnorm_bwd(&(struct rmsnorm_bwd){.dx = s->dx,
                        .dw = s->dw,
                        .dy = s->dy,
                        .x = s->x,
                        .w = s->w,
                        .rstd = s->rstd,
                        .T = ROWS,
                        .D = D,
                        .dtype = s->dtype},
        NULL, &s->err);
    return digest(
        digest(digest(start, s->dtype, s->y, N), s->dtype, s->dx, N), s->acc, s->dw, D);
}

static uint64_t layernorm(struct inputs *s)
{
    cpu_layernorm_fwd(&(struct layernorm_fwd){.y = s->y,
                          .mean = s->mean,
                          .rstd = s->rstd,
                          .x = s->x,
                          .w = s->w,
                          .b = s->b,
                          .T = ROWS,
                          .D = D,
                          .eps = 1e-5f,
                          .dtype = s->dtype},
        NULL, &s->err);
    cpu_layernorm_bwd(&(struct layernorm_bwd){.dx = s->dx,
                          .dw = s->dw,
                          .db = s->db,
                          .dy = s->dy,
                          .x = s->x,
                          .w = s->w,
                          .mean = s->mean,
                          .rstd = s->rstd,
                          .T = ROWS,
                          .D = D,
                          .dtype = s->dtype},
        NULL, &s->err);
    return digest(
        digest(digest(start, s->dtype, s->y, N), s->dtype, s->dx, N), s->acc, s->dw, D);
}

static uint64_t swiglu(struct inputs *s)
{
    cpu_swiglu_fwd(
        &(struct swiglu_fwd){.h = s->y, .a = s->x, .b = s->b, .n = N, .dtype = s->dtype},
        NULL, &s->err);
    uint64_t d = digest(start, s->dtype, s->y, N);
    cpu_swiglu_bwd(&(struct swiglu_bwd){.da = s->y,
                       .db = s->dx,
                       .dh = s->dy,
                       .a = s->x,
                       .b = s->b,
                       .n = N,
                       .dtype = s->dtype},
        NULL, &s->err);
    return digest(digest(d, s->dtype, s->y, N), s->dtype, s->dx, N);
}

static uint64_t rope(struct inputs *s)
{
    cpu_rope(&(struct rope){.x = s->x,
                 .cos = s->dw,
                 .sin = s->db,
                 .T = ROWS,
                 .N = 2,
                 .row_stride = D,
                 .head_stride = D / 2,
                 .at = 6,
                 .D = 40,
                 .dtype = s->dtype},
        NULL, &s->err);
    return digest(start, s->dtype, s->x, N);
}

static uint64_t embedding(struct inputs *s)
{
    int32_t ids[ROWS];

    for (int t = 0; t < ROWS; t++)
        ids[t] = t * t % 5;
    cpu_embedding_bwd(&(struct embedding_bwd){.dtable = s->dw,
                          .dy = s->dy,
                          .ids = ids,
                          .T = ROWS,
                          .V = 5,
                          .H = D,
                          .skip_id = -1,
                          .dtype = s->dtype},
        NULL, &s->err);
    return digest(start, s->acc, s->dw, 5 * D);
}

static uint64_t add_and_convert(struct inputs *s)
{
    cpu_add(&(struct add){.y = s->y, .a = s->x, .b = s->b, .n = N, .dtype = s->dtype},
        NULL, &s->err);
    cpu_convert(
        &(struct convert){.y = s->dx, .x = s->dw, .n = N, .from = s->acc, .to = s->dtype},
        NULL, &s->err);
    return digest(digest(start, s->dtype, s->y, N), s->dtype, s->dx, N);
}

Test(bits, are_the_same_in_every_build)
{
    static const struct {
        const char *name;
        uint64_t (*run)(struct inputs *s);
        uint64_t f32, bf16;
    } golden[] = {
        {"rmsnorm", rmsnorm, 0xd4b3e9702e01b8bc, 0x5d464418d93cf3f7},
        {"layernorm", layernorm, 0x597f6ab1fc3f2153, 0x4e72adc63101970f},
        {"swiglu", swiglu, 0x141bce56c4fa58d1, 0xf645032c5ab773f8},
        {"rope", rope, 0xa5606936c5c35044, 0x48929e3682c3d493},
        {"embedding", embedding, 0xf9fd01d065e4c558, 0x66ecdc46c3782e53},
        {"add, convert", add_and_convert, 0xb8d1e24610466c1e, 0x3bba4cd9faa9b245},
    };
    bool same = true;

    for (size_t i = 0; i < 2 * (sizeof golden / sizeof *golden); i++) {
        const bool low = i % 2;
        struct inputs s = inputs_new(low ? GLM_BF16 : GLM_F32);
        const uint64_t got = golden[i / 2].run(&s);
        const uint64_t want = low ? golden[i / 2].bf16 : golden[i / 2].f32;
        cr_assert_eq(s.err.code, 0, "%s", s.err.text);
        if (got != want) {
            fprintf(stderr, "%s, %s: digest 0x%016llx, expected 0x%016llx\n",
                golden[i / 2].name, glm_dtype_name(s.dtype), (unsigned long long)got,
                (unsigned long long)want);
            same = false;
        }
        inputs_free(&s);
    }
    cr_assert(same);
}
