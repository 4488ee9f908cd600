/* Cases of norms and the embedding. */
#include <stdlib.h>

#include "tests/gpu/opcase.h"
#include "tests/support/opdata.h"
#include "tests/support/rng.h"

static const struct {
    int64_t T, D, x_stride, dx_stride;
    bool big;
} shapes[] = {{0, 8, 0, 0, false}, {1, 1, 0, 0, false}, {2, 7, 0, 0, false},
    {3, 64, 0, 0, false}, {5, 100, 131, 103, false}, {9, 128, 576, 576, false},
    {33, 512, 576, 0, false}, {130, 257, 0, 300, false}, {2, 2048, 0, 0, false},
    {3, 6144, 0, 0, false}, {3, 4096, 0, 4104, true}, {3, 8192, 0, 0, true},
    {2, 9000, 0, 0, true}, {257, 192, 448, 0, true}, {300, 6144, 0, 0, true},
    {600, 256, 0, 0, true}};

enum { SHAPES = sizeof shapes / sizeof *shapes };

static void rms(struct suite *s, enum glm_dtype dtype)
{
    for (int i = 0; i < SHAPES; i++) {
        if (s->small && shapes[i].big)
            continue;
        const struct rmsnorm_fwd p = {.T = shapes[i].T,
            .D = shapes[i].D,
            .x_stride = shapes[i].x_stride,
            .eps = 1e-5f,
            .dtype = dtype};
        struct opcase *c = case_new(s, OP_rmsnorm_fwd, &p, "T %lld, D %lld, rows of %lld",
            (long long)p.T, (long long)p.D, (long long)p.x_stride);
        if (c != NULL && i == 3)
            case_fill(c, "x", 0); /* rstd is 1/sqrt(eps) */
        case_run(s, c);
    }
    for (int i = 0; i < SHAPES; i++) {
        for (int add = 0; add < 2; add++) {
            if (s->small && shapes[i].big)
                continue;
            const struct rmsnorm_bwd p = {.T = shapes[i].T,
                .D = shapes[i].D,
                .x_stride = shapes[i].x_stride,
                .dx_stride = shapes[i].dx_stride,
                .dtype = dtype};
            struct opcase *c = case_new(s, OP_rmsnorm_bwd, &p,
                "T %lld, D %lld, rows of %lld and %lld%s", (long long)p.T, (long long)p.D,
                (long long)p.x_stride, (long long)p.dx_stride, add ? ", add" : "");
            if (c == NULL)
                continue;
            if (!add)
                case_drop(c, "dx_add");
            const struct rmsnorm_fwd f = {.y = op_zeros(dtype, p.T * p.D),
                .rstd = case_data(c, "rstd"),
                .x = case_data(c, "x"),
                .w = case_data(c, "w"),
                .T = p.T,
                .D = p.D,
                .x_stride = p.x_stride,
                .eps = 1e-5f,
                .dtype = dtype};
            struct glm_error err = {0};
            cpu_rmsnorm_fwd(&f, s->cpu_stream, &err);
            free(f.y);
            if (!add && p.dx_stride == 0 && i % 2 == 0)
                case_alias(c, "dx", "dy", 0);
            case_run(s, c);
        }
    }
}

static void layer(struct suite *s, enum glm_dtype dtype)
{
    for (int i = 0; i < SHAPES; i++) {
        if (s->small && shapes[i].big)
            continue;
        const struct layernorm_fwd p = {
            .T = shapes[i].T, .D = shapes[i].D, .eps = 1e-6f, .dtype = dtype};
        const struct layernorm_bwd q = {.T = p.T, .D = p.D, .dtype = dtype};
        struct opcase *c = case_new(
            s, OP_layernorm_fwd, &p, "T %lld, D %lld", (long long)p.T, (long long)p.D);
        case_run(s, c);
        c = case_new(
            s, OP_layernorm_bwd, &q, "T %lld, D %lld", (long long)p.T, (long long)p.D);
        if (c == NULL)
            continue;
        const struct layernorm_fwd f = {.y = op_zeros(dtype, p.T * p.D),
            .mean = case_data(c, "mean"),
            .rstd = case_data(c, "rstd"),
            .x = case_data(c, "x"),
            .w = case_data(c, "w"),
            .b = case_data(c, "w"),
            .T = p.T,
            .D = p.D,
            .eps = 1e-6f,
            .dtype = dtype};
        struct glm_error err = {0};
        cpu_layernorm_fwd(&f, s->cpu_stream, &err);
        free(f.y);
        case_run(s, c);
    }
}

/* ids: 0 at random, 1 all the same, 2 only the last row, now and then the padding. */
static void ids_of(int32_t *ids, int64_t T, int64_t V, int how)
{
    for (int64_t t = 0; t < T; t++)
        ids[t] = (int32_t)(how == 0 ? (int64_t)(rng_mix((uint64_t)t) % (uint64_t)V)
                : how == 1          ? V / 2
                                    : (t % 3 == 0 ? 0 : V - 1));
}

static void embedding(struct suite *s, enum glm_dtype dtype)
{
    static const struct {
        int64_t T, V, H;
        bool big;
    } e[] = {{0, 5, 8, false}, {1, 1, 1, false}, {9, 5, 7, false}, {70, 11, 64, false},
        {200, 1000, 129, false}, {33, 40, 512, false}, {2000, 300, 640, true}};

    for (size_t i = 0; i < sizeof e / sizeof *e; i++) {
        for (int how = 0; how < 3; how++) {
            if (s->small && e[i].big)
                continue;
            const struct embedding_fwd p = {
                .T = e[i].T, .V = e[i].V, .H = e[i].H, .dtype = dtype};
            const struct embedding_bwd q = {.T = p.T,
                .V = p.V,
                .H = p.H,
                .skip_id = how == 2 ? 0 : -1,
                .dtype = dtype};
            struct opcase *c =
                case_new(s, OP_embedding_fwd, &p, "T %lld, V %lld, H %lld, ids %d",
                    (long long)p.T, (long long)p.V, (long long)p.H, how);
            if (c != NULL) {
                ids_of(case_data(c, "ids"), p.T, p.V, how);
                c->expect = EXACT;
            }
            case_run(s, c);
            c = case_new(s, OP_embedding_bwd, &q, "T %lld, V %lld, H %lld, ids %d",
                (long long)p.T, (long long)p.V, (long long)p.H, how);
            if (c != NULL)
                ids_of(case_data(c, "ids"), p.T, p.V, how);
            case_run(s, c);
        }
    }
}

void cases_norms(struct suite *s, enum glm_dtype dtype)
{
    embedding(s, dtype);
    rms(s, dtype);
    layer(s, dtype);
}
