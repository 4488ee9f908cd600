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

/* way 0: as the struct says, 1: as rates say, 2: they say stop, and what would have been is not. */
static void rates(struct opcase *c, int way)
{
    const double r[6] = {3e-3, 0.07, 0.375, 1 - 0.9 * 0.9, 1 - 0.95 * 0.95, way == 2};

    if (c == NULL)
        return;
    if (way == 0)
        case_drop(c, "rates");
    else
        case_copy(c, "rates", r);
}

static void adam_way(struct suite *s, int way)
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
        struct opcase *c = case_new(s, OP_adamw, &p, "n %lld, step %lld, rates %d",
            (long long)p.n, (long long)p.step, way);
        if (c == NULL)
            continue;
        for (int64_t j = 0; j < p.n; j++) {
            float *const v = (float *)case_data(c, "v") + j;
            *v = *v * *v;
        }
        rates(c, way);
        if (c != NULL && i % 2)
            case_drop(c, "copy");
        case_run(s, c);
    }
}

static void adam(struct suite *s)
{
    for (int way = 0; way < 3; way++)
        adam_way(s, way);
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
            rates(c, (int)(i + (size_t)way) % 3);
            if (c != NULL && (i + (size_t)way) % 2)
                case_drop(c, "copy");
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

/* ---- what a step decides by itself ------------------------------------------------------------ */

static void totals(struct suite *s)
{
    static const int64_t sizes[] = {0, 1, 255, 256, 257, 5000, 70001};

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const struct total p = {.n = sizes[i], .dtype = GLM_F32};
        struct opcase *c = case_new(s, OP_total, &p, "n %lld", (long long)p.n);
        if (c != NULL)
            c->expect = EXACT;
        case_run(s, c);
    }
}

static void loads(struct suite *s)
{
    static const struct {
        int64_t T, S, E, K;
    } shapes[] = {{1, 1, 1, 1}, {9, 3, 5, 2}, {40, 1, 16, 8}, {300, 70, 256, 8}};

    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int padded = 0; padded < 2; padded++) {
            const struct expert_load p = {.T = shapes[i].T,
                .S = shapes[i].S,
                .E = shapes[i].E,
                .K = shapes[i].K,
                .padded = padded};
            struct opcase *c = case_new(s, OP_expert_load, &p,
                "T %lld, S %lld, E %lld, K %lld, padded %d", (long long)p.T,
                (long long)p.S, (long long)p.E, (long long)p.K, padded);
            if (c == NULL)
                continue;
            int32_t *const expert = case_data(c, "expert");
            int32_t *const offset = case_data(c, "offset");
            int32_t *const cu = case_data(c, "cu_seqlens");
            for (int64_t k = 0; k < p.T * p.K; k++) {
                expert[k] = (int32_t)(rng_mix((uint64_t)k) % (uint64_t)p.E);
                for (int64_t e = expert[k]; e < p.E; e++)
                    offset[e + 1]++;
            }
            for (int64_t k = 0; k <= p.S; k++)
                cu[k] = (int32_t)(k * p.T / p.S);
            for (int64_t e = 0; e < p.E; e++)
                ((int64_t *)case_data(c, "load"))[e] = (int64_t)5 << 31;
            c->expect = EXACT;
            case_run(s, c);
        }
}

static void biases(struct suite *s)
{
    static const int64_t sizes[] = {1, 8, 256, 1000};

    for (int i = 0; i < 12; i++) {
        const struct router_bias p = {
            .E = sizes[i % 4], .rate = 1e-3, .f32_mean = i % 2 == 1};
        const int way = i / 4;
        struct opcase *c = case_new(s, OP_router_bias, &p,
            "E %lld, F32 mean %d, rates %d", (long long)p.E, p.f32_mean, way);
        if (c == NULL)
            continue;
        for (int64_t e = 0; e < p.E; e++) /* one in eight has the mean */
            ((int64_t *)case_data(c, "load"))[e] =
                (1 << 24) + (e % 8 < 7 ? 1 - e % 8 % 3 : 0);
        c->expect = EXACT;
        rates(c, way);
        case_run(s, c);
    }
}

/* how: 0 below the limit, 1 above it, 2 without one, 3 a leaf that is no number, 4 a loss that is
 * none, 5 the sum overflows. */
static void clip_way(struct suite *s, int64_t n, int64_t most, int how)
{
    const int64_t leaves = n * (most + 1) / 2;
    const struct clip p = {.n = n,
        .leaves = leaves,
        .watch = n % 7 + 1,
        .limit = how == 0 ? 1e6
            : how == 2    ? 0
                          : 1};
    struct opcase *c = case_new(s, OP_clip, &p, "%lld tensors, %lld leaves, way %d",
        (long long)n, (long long)leaves, how);

    if (c == NULL)
        return;
    int64_t *const first = case_data(c, "first");
    double *const leaf = case_data(c, "leaf"), *const watched = case_data(c, "watched");
    for (int64_t i = 0; i <= n; i++) /* pieces of very different lengths */
        first[i] = leaves * i / (n > 0 ? n : 1) * i / (n > 0 ? n : 1);
    for (int64_t i = 0; i < n; i++)
        ((int32_t *)case_data(c, "group"))[i] = i % 5 == 4 ? -1 : i % 3 == 1;
    for (int64_t i = 0; i < leaves; i++)
        leaf[i] = how == 5 ? 1e308 : leaf[i] * leaf[i];
    if (how == 3 && leaves > 0)
        leaf[0] = NAN;
    if (how == 4)
        watched[p.watch - 1] = INFINITY;
    for (int64_t i = 0; i < n; i++)
        ((double *)case_data(c, "rates"))[6 * i + 2] = 0.3;
    c->expect = EXACT;
    case_run(s, c);
}

static void clips(struct suite *s)
{
    static const int64_t sizes[][2] = {{1, 1}, {3, 10}, {60, 9}, {300, 40}};

    for (int how = 0; how < 6; how++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            clip_way(s, sizes[i][0], sizes[i][1], how);
}

void cases_optimizer(struct suite *s, enum glm_dtype dtype)
{
    squares(s, dtype);
    if (dtype != GLM_F32)
        return;
    totals(s);
    loads(s);
    biases(s);
    clips(s);
    adam(s);
    muons(s);
}
