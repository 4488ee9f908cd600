/* Cases of small elementwise operations: sizes around a vector, a warp, a block; one of many blocks. */
#include <stdlib.h>

#include "tests/gpu/opcase.h"
#include "tests/support/opdata.h"

static const int64_t sizes[] = {0, 1, 2, 7, 8, 31, 64, 255, 257, 1031, 4096, 100003};
enum { SIZES = sizeof sizes / sizeof *sizes };

static void adds(struct suite *s, enum glm_dtype dtype)
{
    for (int i = 0; i < SIZES; i++) {
        const struct add p = {.n = sizes[i], .dtype = dtype};
        struct opcase *c = case_new(s, OP_add, &p, "n %lld", (long long)p.n);
        if (c != NULL)
            c->expect = EXACT;
        case_run(s, c);
    }
    for (int i = 0; i < 2; i++) {
        const struct add p = {.n = 1000, .dtype = dtype};
        struct opcase *c = case_new(s, OP_add, &p, "y is %c", "ab"[i]);
        if (c == NULL)
            continue;
        case_alias(c, "y", i == 0 ? "a" : "b", 0);
        c->expect = EXACT;
        case_run(s, c);
    }
}

/* From `from` to each type; halfway cases, subnormals, overflow and what is no number. */
static void converts(struct suite *s, enum glm_dtype from)
{
    static const enum glm_dtype to[] = {GLM_BF16, GLM_F32};
    static const double special[] = {0.0, -0.0, 1.00390625, 1.01171875, 3.3961775e38,
        3.4e38, -3.4e38, 1e-40, -1e-45, 9.2e-41, 1e39, -1e39, 0.0 / 0.0};
    enum { SPECIAL = sizeof special / sizeof *special };

    for (int k = 0; k < 2; k++)
        for (int i = 0; i < SIZES; i++) {
            const struct convert p = {.n = sizes[i], .from = from, .to = to[k]};
            struct opcase *c = case_new(s, OP_convert, &p, "to %s, n %lld",
                glm_dtype_name(to[k]), (long long)p.n);
            if (c == NULL)
                continue;
            for (int64_t j = 0; j < SPECIAL && j < p.n; j++)
                op_set(from, case_data(c, "x"), j, special[j]);
            c->expect = EXACT;
            case_run(s, c);
        }
}

static void block_moves(struct suite *s, enum glm_dtype dtype)
{
    static const struct {
        int64_t T, N, D, y_row, y_head, x_row, x_head, add_row, add_head;
        bool acc_in, sum, add;
    } shapes[] = {
        {0, 1, 1, 1, 1, 1, 1, 1, 1, false, false, false},
        {1, 1, 1, 1, 1, 1, 1, 1, 1, false, false, true},
        {5, 3, 8, 24, 8, 24, 8, 24, 8, false, false, false},
        {5, 3, 7, 60, 11, 33, 11, 25, 8, false, false, true},
        {9, 4, 64, 4 * 256, 256, 576, 0, 64, 0, false, false, false}, /* one key to all */
        {9, 4, 192, 4 * 256, 256, 4 * 448, 448, 768, 192, false, false, true},
        {17, 4, 64, 64, 0, 4 * 256, 256, 0, 0, false, true, false},
        {17, 3, 5, 9, 0, 3 * 5 + 1, 5, 0, 0, true, true, false},
        {6, 2, 33, 70, 35, 66, 33, 66, 33, true, false, true},
        {6, 2, 32, 64, 32, 64, 32, 64, 32, true, false, false},
        {300, 8, 64, 8 * 256, 256, 8 * 64, 64, 0, 0, false, false, false},
    };

    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const struct blocks p = {.T = shapes[i].T,
            .N = shapes[i].N,
            .D = shapes[i].D,
            .y_row = shapes[i].y_row,
            .y_head = shapes[i].y_head,
            .x_row = shapes[i].x_row,
            .x_head = shapes[i].x_head,
            .add_row = shapes[i].add_row,
            .add_head = shapes[i].add_head,
            .acc_in = shapes[i].acc_in,
            .sum = shapes[i].sum,
            .dtype = dtype};
        struct opcase *c = case_new(s, OP_blocks, &p, "T %lld, N %lld, D %lld%s%s%s",
            (long long)p.T, (long long)p.N, (long long)p.D, p.acc_in ? ", acc" : "",
            p.sum ? ", sum" : "", shapes[i].add ? ", add" : "");
        if (c == NULL)
            continue;
        if (!shapes[i].add)
            case_drop(c, "add");
        if (!p.sum)
            c->expect = EXACT;
        case_run(s, c);
    }
}

static void swiglus(struct suite *s, enum glm_dtype dtype)
{
    for (int i = 0; i < SIZES; i++) {
        const struct swiglu_fwd p = {.n = sizes[i], .dtype = dtype};
        const struct swiglu_bwd q = {.n = sizes[i], .dtype = dtype};
        struct opcase *c = case_new(s, OP_swiglu_fwd, &p, "n %lld", (long long)p.n);
        if (c != NULL)
            case_scale(c, "a", 4); /* both ends of the sigmoid */
        case_run(s, c);
        c = case_new(s, OP_swiglu_bwd, &q, "n %lld", (long long)q.n);
        if (c != NULL)
            case_scale(c, "a", 4);
        case_run(s, c);
    }
    for (int i = 0; i < 2;
         i++) { /* e^-a leaves F32 on one side and is nothing on the other */
        const struct swiglu_fwd p = {.n = 100, .dtype = dtype};
        const struct swiglu_bwd q = {.n = 100, .dtype = dtype};
        struct opcase *c = i == 0 ? case_new(s, OP_swiglu_fwd, &p, "a up to 1000")
                                  : case_new(s, OP_swiglu_bwd, &q, "a up to 1000");
        if (c != NULL)
            case_scale(c, "a", 300);
        case_run(s, c);
    }
}

static void ropes(struct suite *s, enum glm_dtype dtype)
{
    static const struct {
        int64_t T, N, D, at, head, row;
    } shapes[] = {{0, 1, 2, 0, 2, 2}, {1, 1, 2, 0, 2, 2}, {7, 3, 64, 0, 64, 192},
        {33, 4, 64, 192, 256, 1024}, {5, 1, 64, 512, 0, 576}, {3, 2, 6, 1, 9, 21},
        {260, 2, 64, 64, 128, 256}};

    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        for (int inverse = 0; inverse < 2; inverse++) {
            const struct rope p = {.T = shapes[i].T,
                .N = shapes[i].N,
                .D = shapes[i].D,
                .at = shapes[i].at,
                .head_stride = shapes[i].head,
                .row_stride = shapes[i].row,
                .inverse = inverse != 0,
                .dtype = dtype};
            struct opcase *c = case_new(s, OP_rope, &p,
                "T %lld, N %lld, D %lld at %lld%s", (long long)p.T, (long long)p.N,
                (long long)p.D, (long long)p.at, inverse ? ", back" : "");
            if (c != NULL)
                c->expect = SAME, c->floor = dtype == GLM_BF16 ? 0x1p-7 : 0x1p-20;
            case_run(s, c);
        }
    }
}

static void rope_tables(struct suite *s, enum glm_dtype dtype)
{
    static const struct {
        int64_t T, D;
        double theta;
    } shapes[] = {{0, 2, 1e4}, {1, 2, 1e4}, {70, 64, 8e6}, {513, 128, 1e6}};

    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const struct rope_table p = {
            .T = shapes[i].T, .D = shapes[i].D, .theta = shapes[i].theta, .dtype = dtype};
        struct opcase *c = case_new(
            s, OP_rope_table, &p, "T %lld, D %lld", (long long)p.T, (long long)p.D);
        if (c == NULL)
            continue;
        for (int64_t t = 0; t < p.T; t++) /* small ones, then up to a million */
            ((int32_t *)case_data(c, "positions"))[t] =
                (int32_t)(t < 40 ? t : (t * t * 7919) % 1048577);
        c->expect = SAME;
        c->floor = dtype == GLM_BF16 ? 0x1p-8 : 0x1p-22;
        case_run(s, c);
    }
}

void cases_elementwise(struct suite *s, enum glm_dtype dtype)
{
    adds(s, dtype);
    converts(s, dtype);
    block_moves(s, dtype);
    swiglus(s, dtype);
    rope_tables(s, dtype);
    ropes(s, dtype);
}
