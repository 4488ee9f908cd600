/* Cases of head, loss and optimizer. */
#include <math.h>
#include <stdlib.h>

#include "tests/gpu/opcase.h"
#include "tests/support/opdata.h"
#include "tests/support/rng.h"

/* ---- cross-entropy ---------------------------------------------------------------------------- */

/* how: 0 all rows have targets, 1 some, 2 none. */
static void targets(int32_t *target, int64_t T, int64_t V, int how)
{
    for (int64_t t = 0; t < T; t++) {
        const uint64_t x = rng_mix((uint64_t)t + 99);
        target[t] = (int32_t)(x % (uint64_t)V);
        if (how == 2 || (how == 1 && x >> 40 & 1))
            target[t] = x >> 41 & 1 ? -100 : -1;
    }
}

void cases_head(struct suite *s, enum glm_dtype dtype)
{
    static const struct {
        int64_t T, V, H;
        bool big;
    } shapes[] = {{0, 5, 8, false}, {1, 1, 1, false}, {5, 7, 9, false},
        {33, 130, 64, false}, {70, 300, 40, false}, {257, 1031, 96, true},
        {300, 20000, 256, true}};

    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int how = 0; how < 3; how++) {
            if (shapes[i].big && (s->small || (how != 1 && shapes[i].V > 5000)))
                continue;
            const struct linear_ce_fwd p = {
                .T = shapes[i].T, .V = shapes[i].V, .H = shapes[i].H, .dtype = dtype};
            const struct linear_ce_bwd q = {
                .T = p.T, .V = p.V, .H = p.H, .scale = 0.37, .dtype = dtype};
            struct opcase *c =
                case_new(s, OP_linear_ce_fwd, &p, "T %lld, V %lld, H %lld, targets %d",
                    (long long)p.T, (long long)p.V, (long long)p.H, how);
            if (c != NULL) {
                case_scale(c, "w", 2 / sqrt((double)p.H));
                targets(case_data(c, "target"), p.T, p.V, how);
            }
            case_run(s, c);
            c = case_new(s, OP_linear_ce_bwd, &q,
                "T %lld, V %lld, H %lld, targets %d, loss too", (long long)p.T,
                (long long)p.V, (long long)p.H, how);
            if (c != NULL) {
                case_scale(c, "w", 2 / sqrt((double)p.H));
                targets(case_data(c, "target"), p.T, p.V, how);
                case_drop(c, "lse");
            }
            case_run(s, c);
            c = case_new(s, OP_linear_ce_bwd, &q, "T %lld, V %lld, H %lld, targets %d%s",
                (long long)p.T, (long long)p.V, (long long)p.H, how,
                i % 2 && how == 1 ? ", no dw" : "");
            if (c == NULL)
                continue;
            case_scale(c, "w", 2 / sqrt((double)p.H));
            targets(case_data(c, "target"), p.T, p.V, how);
            case_drop(c, "loss");
            case_drop(c, "its_lse");
            const struct linear_ce_fwd f = {.loss = op_zeros(GLM_F32, p.T),
                .lse = case_data(c, "lse"),
                .h = case_data(c, "h"),
                .w = case_data(c, "w"),
                .target = case_data(c, "target"),
                .T = p.T,
                .V = p.V,
                .H = p.H,
                .dtype = dtype};
            struct glm_error err = {0};
            if (cpu_linear_ce_fwd(&f, s->cpu_stream, &err) != 0)
                abort();
            free(f.loss);
            if (i % 2 && how == 1)
                case_drop(c, "dw");
            case_run(s, c);
        }
}

/* ---- optimizer: F32 alone --------------------------------------------------------------------- */

static void adam(struct suite *s)
{
    static const int64_t sizes[] = {0, 1, 3, 4, 255, 1029, 100003};

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const struct adamw p = {.n = sizes[i],
            .step = i % 2 ? 1 : 1000,
            .lr = 1e-2,
            .beta1 = 0.9,
            .beta2 = 0.95,
            .eps = 1e-8,
            .decay = i % 3 ? 0.1 : 0,
            .grad_scale = 0.25,
            .dtype = GLM_F32};
        struct opcase *c = case_new(
            s, OP_adamw, &p, "n %lld, step %lld", (long long)p.n, (long long)p.step);
        if (c == NULL)
            continue;
        for (int64_t j = 0; j < p.n; j++) {
            float *const v = (float *)case_data(c, "v") + j;
            *v = *v * *v;
        }
        case_run(s, c);
    }
}

static const double muon_coeff[5][3] = {{3.4445, -4.7750, 2.0315},
    {3.4445, -4.7750, 2.0315}, {3.4445, -4.7750, 2.0315}, {3.4445, -4.7750, 2.0315},
    {3.4445, -4.7750, 2.0315}};

static const struct {
    int64_t B, R, C, run, gap; /* gap: elements between runs and behind rows */
    bool big;
} matrices[] = {{0, 4, 4, 0, 0, false}, {1, 1, 1, 0, 0, false}, {3, 5, 9, 0, 0, false},
    {2, 9, 5, 0, 3, false}, {4, 16, 64, 8, 2, false}, {1, 65, 33, 13, 0, false},
    {2, 192, 512, 64, 0, true}, {1, 256, 2048, 0, 0, true}, {1, 700, 600, 0, 0, true},
    {2, 520, 530, 0, 0, true}, {50, 512, 640, 0, 0, true}};

static void muons(struct suite *s)
{
    for (size_t i = 0; i < sizeof matrices / sizeof *matrices; i++)
        for (int way = 0; way < 4; way++) {
            if ((s->small && matrices[i].big) || (matrices[i].B > 9 && way != 1))
                continue;
            const bool low = way & 1, nesterov = way & 2;
            const int64_t R = matrices[i].R, C = matrices[i].C, run = matrices[i].run;
            const struct newton_schulz p = {.B = matrices[i].B,
                .R = R,
                .C = C,
                .coeff = muon_coeff,
                .steps = 5,
                .low_precision = low,
                .dtype = GLM_F32};
            struct muon q = {.B = p.B,
                .R = R,
                .C = C,
                .row_stride = C + matrices[i].gap,
                .run = run,
                .lr = 0.02,
                .decay = 0.1,
                .momentum = 0.95,
                .grad_scale = 0.5,
                .factor = 0.2 * sqrt((double)(R > C ? R : C)),
                .coeff = muon_coeff,
                .steps = 5,
                .nesterov = nesterov,
                .low_precision = low,
                .dtype = GLM_F32};
            q.run_stride = run * q.row_stride + 3 * matrices[i].gap;
            q.batch_stride =
                (run == 0 ? R : run) * q.row_stride * (run == 0 ? 1 : R / run)
                + (run == 0 ? 0 : R / run * 3 * matrices[i].gap) + matrices[i].gap;
            struct opcase *c = !nesterov
                ? case_new(s, OP_newton_schulz, &p, "%lld of %lld x %lld%s",
                    (long long)p.B, (long long)R, (long long)C, low ? ", low" : "")
                : NULL;
            /* Five steps amplify what a rounding to BF16 turned the other way, and a GPU rounds at
             * other places. */
            if (c != NULL)
                c->floor = low ? 0x1p-4 : 0x1p-12;
            if (c != NULL && i % 2)
                case_alias(c, "o", "x", 0);
            case_run(s, c);
            c = case_new(s, OP_muon, &q, "%lld of %lld x %lld, runs of %lld%s%s",
                (long long)q.B, (long long)R, (long long)C, (long long)run,
                nesterov ? ", nesterov" : "", low ? ", low" : "");
            if (c != NULL)
                c->floor = low ? 0x1p-8 : 0x1p-14;
            case_run(s, c);
        }
}

static void squares(struct suite *s, enum glm_dtype dtype)
{
    static const struct {
        int64_t B, R, C, down, across, gap;
        bool big;
    } shapes[] = {{0, 3, 3, 2, 2, 0, false}, {1, 0, 5, 2, 2, 0, false},
        {1, 1, 1, 4, 4, 0, false}, {2, 7, 33, 3, 8, 5, false},
        {1, 40, 100, 64, 256, 0, false}, {3, 65, 130, 32, 64, 7, false},
        {1, 1, 5000, 1, 4096, 0, false}, {2, 300, 1000, 128, 512, 24, true},
        {1, 2048, 2048, 512, 1024, 0, true}, {2, 1024, 4097, 1024, 8192, 3, true},
        {1, 2200, 2048, 2200, 2048, 0, true}}; /* more leaves than a tree takes at once */

    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        if (s->small && shapes[i].big)
            continue;
        const struct sum_squares p = {.B = shapes[i].B,
            .R = shapes[i].R,
            .C = shapes[i].C,
            .row_stride = shapes[i].C + shapes[i].gap,
            .batch_stride =
                shapes[i].R * (shapes[i].C + shapes[i].gap) + (i % 2 ? 11 : 12),
            .tile_rows = shapes[i].down,
            .tile_cols = shapes[i].across,
            .dtype = dtype};
        struct opcase *c = case_new(s, OP_sum_squares, &p,
            "%lld of %lld x %lld in %lld x %lld", (long long)p.B, (long long)p.R,
            (long long)p.C, (long long)p.tile_rows, (long long)p.tile_cols);
        if (c != NULL)
            c->expect = EXACT;
        case_run(s, c);
    }
}

void cases_optimizer(struct suite *s, enum glm_dtype dtype)
{
    squares(s, dtype);
    if (dtype != GLM_F32)
        return;
    adam(s);
    muons(s);
}
