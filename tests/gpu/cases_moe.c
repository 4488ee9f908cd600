/* Cases of router and experts: ties, groups, skewed and empty experts. Logits are a shuffled grid, so
 * that no two choices lie within a rounding of each other, or all equal. */
#include <math.h>
#include <stdlib.h>

#include "tests/gpu/opcase.h"
#include "tests/support/opdata.h"
#include "tests/support/rng.h"

static const struct {
    int64_t T, E, K, groups, kept;
    bool big;
} routes[] = {{0, 8, 2, 1, 1, false}, {1, 1, 1, 1, 1, false}, {5, 8, 2, 1, 1, false},
    {9, 8, 3, 4, 2, false}, {70, 16, 8, 1, 1, false}, {33, 33, 8, 1, 1, false},
    {17, 24, 4, 8, 3, false}, {130, 256, 8, 1, 1, false}, {66, 256, 8, 8, 4, false},
    {12, 300, 12, 1, 1, false}, {3000, 256, 8, 1, 1, true}, {2000, 16, 8, 1, 1, true}};
enum { ROUTES = sizeof routes / sizeof *routes };

/* Row t of a [T,n] table: a permutation of a grid around 0. */
static void grid(
    struct opcase *c, const char *field, enum glm_dtype type, int64_t T, int64_t n)
{
    uint64_t state = 77;

    for (int64_t t = 0; t < T; t++)
        for (int64_t e = 0; e < n; e++) {
            const int64_t j = (int64_t)rng_below(&state, (uint64_t)(e + 1));
            void *const x = case_data(c, field);
            op_set(type, x, t * n + e, j == e ? 0 : op_at(type, x, t * n + j));
            op_set(type, x, t * n + j, ((double)e - (double)n / 2) * 6 / (double)n);
        }
}

static void route(
    struct suite *s, int i, enum glm_dtype dtype, bool ties, bool norm, bool given)
{
    const struct router_fwd p = {.T = routes[i].T,
        .E = routes[i].E,
        .K = routes[i].K,
        .groups = routes[i].groups,
        .topk_groups = routes[i].kept,
        .factor = 2.5,
        .norm = norm,
        .given = given,
        .dtype = dtype};
    struct opcase *c = case_new(s, OP_router_fwd, &p,
        "T %lld, E %lld, K %lld, groups %lld of %lld%s%s%s", (long long)p.T,
        (long long)p.E, (long long)p.K, (long long)p.topk_groups, (long long)p.groups,
        ties ? ", ties" : "", norm ? ", norm" : "", given ? ", given" : "");
    if (c == NULL)
        return;
    grid(c, "logit", GLM_F32, p.T, p.E);
    /* The bias moves choices by several steps of the grid, never onto another one's. */
    for (int64_t e = 0; e < p.E; e++)
        ((float *)case_data(c, "bias"))[e] = 0.013f * (float)((e * 31) % 7);
    if (ties) {
        case_fill(c, "logit", 0.25);
        case_fill(c, "bias", 0.5);
    }
    if (given)
        for (int64_t t = 0; t < p.T; t++)
            for (int64_t k = 0; k < p.K; k++)
                ((int32_t *)case_data(c, "expert"))[t * p.K + k] =
                    (int32_t)(k + (p.E - p.K) * (t % 3) / 2);
    case_run(s, c);
}

static void route_back(struct suite *s, int i, enum glm_dtype dtype, bool norm)
{
    const struct router_bwd p = {.T = routes[i].T,
        .E = routes[i].E,
        .K = routes[i].K,
        .factor = 2.5,
        .norm = norm,
        .dtype = dtype};
    struct opcase *c = case_new(s, OP_router_bwd, &p, "T %lld, E %lld, K %lld%s",
        (long long)p.T, (long long)p.E, (long long)p.K, norm ? ", norm" : "");
    if (c == NULL)
        return;
    grid(c, "score", GLM_F32, p.T, p.E);
    for (int64_t j = 0; j < p.T * p.E; j++) {
        float *const x = (float *)case_data(c, "score") + j;
        *x = 1 / (1 + expf(-*x));
    }
    for (int64_t t = 0; t < p.T; t++) {
        const int64_t first = (p.E - p.K) * (t % 4) / 3;
        for (int64_t k = 0; k < p.K; k++) {
            ((int32_t *)case_data(c, "expert"))[t * p.K + k] = (int32_t)(first + k);
            ((float *)case_data(c, "weight"))[t * p.K + k] = 2.5f / (float)p.K;
        }
    }
    case_run(s, c);
}

/* K different experts for each token, ascending. how: 0 at random, 1 the first ones, 2 the last but
 * for a few tokens. */
static void experts_of(int32_t *expert, int64_t T, int64_t E, int64_t K, int how)
{
    uint64_t state = 5;

    for (int64_t t = 0; t < T; t++) {
        int64_t left = K;
        for (int64_t e = 0; how == 0 && e < E; e++)
            if ((int64_t)rng_below(&state, (uint64_t)(E - e)) < left)
                expert[t * K + K - left--] = (int32_t)e;
        for (int64_t k = 0; how != 0 && k < K; k++)
            expert[t * K + k] = (int32_t)(how == 1 || t % 50 == 7 ? k : E - K + k);
    }
}

static void plan(struct suite *s, int i, int how)
{
    const struct moe_plan p = {.T = routes[i].T, .E = routes[i].E, .K = routes[i].K};
    struct opcase *c = case_new(s, OP_moe_plan, &p, "T %lld, E %lld, K %lld, load %d",
        (long long)p.T, (long long)p.E, (long long)p.K, how);
    if (c != NULL)
        experts_of(case_data(c, "expert"), p.T, p.E, p.K, how);
    case_run(s, c);
}

static const struct {
    int64_t T, E, K, H;
    bool big;
} moves[] = {{0, 4, 2, 8, false}, {1, 1, 1, 1, false}, {5, 8, 3, 7, false},
    {33, 16, 8, 64, false}, {20, 8, 2, 257, false}, {9, 16, 8, 1032, false},
    {300, 16, 8, 6144, true}, {700, 32, 4, 512, true}};

/* The plan of random experts by the CPU: token and row, [T*K] each, free() them. */
static void planned(struct suite *s, int i, int32_t **token, int32_t **row)
{
    const int64_t n = moves[i].T * moves[i].K;
    int32_t *const expert = op_zeros(GLM_I32, n);
    struct moe_plan p = {
        .T = moves[i].T, .E = moves[i].E, .K = moves[i].K, .expert = expert};
    struct glm_error err = {0};

    experts_of(expert, p.T, p.E, p.K, 0);
    p.token = *token = op_zeros(GLM_I32, n);
    p.row = *row = op_zeros(GLM_I32, n);
    p.slot = op_zeros(GLM_I32, n);
    p.offset = op_zeros(GLM_I32, p.E + 1);
    if (cpu_moe_plan(&p, s->cpu_stream, &err) != 0)
        abort();
    free(p.slot);
    free(p.offset);
    free(expert);
}

#define MOVE "T %lld, K %lld, H %lld"
#define MOVE_ARGS (long long)p.T, (long long)p.K, (long long)p.H

static void combine(struct suite *s, int i, enum glm_dtype dtype, const int32_t *row)
{
    for (int way = 0; way < 4; way++) {
        const struct moe_combine_fwd p = {.T = moves[i].T,
            .K = moves[i].K,
            .H = moves[i].H,
            .hf_rounding = way % 2 != 0,
            .dtype = dtype};
        struct opcase *c = case_new(s, OP_moe_combine_fwd, &p, MOVE "%s%s", MOVE_ARGS,
            way % 2 ? ", hf" : "", way < 2 ? ", shared" : "");
        if (c == NULL)
            continue;
        case_copy(c, "row", row);
        if (way >= 2)
            case_drop(c, "shared");
        case_run(s, c);
    }
    const struct moe_combine_bwd p = {
        .T = moves[i].T, .K = moves[i].K, .H = moves[i].H, .dtype = dtype};
    struct opcase *c = case_new(s, OP_moe_combine_bwd, &p, MOVE, MOVE_ARGS);
    if (c != NULL)
        case_copy(c, "row", row);
    case_run(s, c);
}

static void gather(struct suite *s, int i, enum glm_dtype dtype, const int32_t *token,
    const int32_t *row)
{
    const struct moe_gather g = {.T = moves[i].T,
        .rows = moves[i].T * moves[i].K,
        .H = moves[i].H,
        .dtype = dtype};
    struct opcase *c = case_new(s, OP_moe_gather, &g, "T %lld, rows %lld, H %lld",
        (long long)g.T, (long long)g.rows, (long long)g.H);
    if (c != NULL) {
        case_copy(c, "token", token);
        c->expect = EXACT;
    }
    case_run(s, c);
    for (int way = 0; way < 4; way++) {
        const struct moe_gather_bwd p = {
            .T = moves[i].T, .K = moves[i].K, .H = moves[i].H, .dtype = dtype};
        c = case_new(s, OP_moe_gather_bwd, &p, MOVE "%s%s", MOVE_ARGS,
            way & 1 ? ", add1" : "", way & 2 ? ", add2" : "");
        if (c == NULL)
            continue;
        case_copy(c, "row", row);
        if (!(way & 1))
            case_drop(c, "add1");
        if (!(way & 2))
            case_drop(c, "add2");
        case_run(s, c);
    }
}

void cases_moe(struct suite *s, enum glm_dtype dtype)
{
    for (int i = 0; i < ROUTES; i++) {
        if (s->small && routes[i].big)
            continue;
        route(s, i, dtype, false, true, false);
        route(s, i, dtype, i % 2 != 0, false, false);
        route(s, i, dtype, true, true, false);
        route(s, i, dtype, false, i % 2 != 0, true);
        route_back(s, i, dtype, true);
        route_back(s, i, dtype, false);
        for (int how = 0; how < 3 && dtype == GLM_BF16; how++) /* integers alone: once */
            plan(s, i, how);
    }
    for (int i = 0; i < (int)(sizeof moves / sizeof *moves); i++) {
        int32_t *token, *row;
        if (s->small && moves[i].big)
            continue;
        planned(s, i, &token, &row);
        combine(s, i, dtype, row);
        gather(s, i, dtype, token, row);
        free(token);
        free(row);
    }
}
