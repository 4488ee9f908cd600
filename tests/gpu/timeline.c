/* The lines that are timed. FLOPs are counted as in the guide: 2 per multiply-add, causal pairs of
 * rows and keys only, softmax and the like not at all. */
#include "tests/gpu/timeline.h"

#include <stdarg.h>
#include <string.h>

#define BF GLM_BF16

static struct timeline *add(struct timelines *out, const char *kernel, enum op_id op,
    const void *p, double flops, const char *name, ...) GLM_PRINTF(6, 7);

static struct timeline *add(struct timelines *out, const char *kernel, enum op_id op,
    const void *p, double flops, const char *name, ...)
{
    struct timeline *l = &out->line[out->count++];
    va_list args;

    *l = (struct timeline){.kernel = kernel, .op = op, .flops = flops};
    memcpy(l->p, p, op_size(op));
    va_start(args, name);
    vsnprintf(l->name, sizeof l->name, name, args);
    va_end(args);
    return l;
}

/* ---- products --------------------------------------------------------------------------------- */

/* out <- in of a linear layer: forward, gradient of its input, gradient of its weight. */
static void linear(
    struct timelines *o, int64_t T, int64_t out, int64_t in, enum glm_dtype c)
{
    const double flops = 2.0 * (double)T * (double)out * (double)in;

    add(o, "K1", OP_gemm,
        &(struct gemm){.M = T,
            .N = out,
            .K = in,
            .lda = in,
            .ldb = in,
            .ldc = out,
            .trans_b = true,
            .a_type = BF,
            .b_type = BF,
            .c_type = c},
        flops, "forward %lld <- %lld, T %lld", (long long)out, (long long)in,
        (long long)T);
    add(o, "K1", OP_gemm,
        &(struct gemm){.M = T,
            .N = in,
            .K = out,
            .lda = out,
            .ldb = in,
            .ldc = in,
            .a_type = BF,
            .b_type = BF,
            .c_type = BF},
        flops, "dgrad %lld -> %lld, T %lld", (long long)out, (long long)in, (long long)T);
    add(o, "K1", OP_gemm,
        &(struct gemm){.M = out,
            .N = in,
            .K = T,
            .lda = out,
            .ldb = in,
            .ldc = in,
            .trans_a = true,
            .accumulate = true,
            .a_type = BF,
            .b_type = BF,
            .c_type = GLM_F32},
        flops, "wgrad %lld x %lld, T %lld", (long long)out, (long long)in, (long long)T);
}

static void products(struct timelines *o, int64_t T)
{
    static const int64_t shapes[][2] = {{2048, 6144}, {16384, 2048}, {576, 6144},
        {28672, 512}, {6144, 16384}, {12288, 6144}, {6144, 12288}, {2048, 2048},
        {6144, 2048}};

    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        linear(o, T, shapes[i][0], shapes[i][1], BF);
    linear(o, T, 256, 6144, GLM_F32);
}

enum { EXPERTS = 16, CHOSEN = 8 };

static void grouped(struct timelines *o, int64_t T, int64_t experts, enum group_kind kind,
    int64_t N, int64_t K, bool accumulate, const char *what)
{
    const int64_t rows = T * CHOSEN;

    add(o, "K2", OP_grouped_gemm,
        &(struct grouped_gemm){.rows = rows,
            .G = experts,
            .N = N,
            .K = K,
            .kind = kind,
            .accumulate = accumulate,
            .a_type = BF,
            .b_type = BF,
            .c_type = kind == GROUP_TN ? GLM_F32 : BF},
        2.0 * (double)rows * (double)N * (double)K,
        "%s, %lld experts, N %lld, K %lld, T %lld", what, (long long)experts,
        (long long)N, (long long)K, (long long)T);
}

static void groups(struct timelines *o, int64_t T)
{
    static const int64_t counts[] = {EXPERTS, 32, 256};
    const int64_t H = 6144, W = 2048;

    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        const int64_t experts = counts[i];
        grouped(o, T, experts, GROUP_NT, W, H, false, "gate");
        grouped(o, T, experts, GROUP_NT, H, W, false, "down");
        grouped(o, T, experts, GROUP_NN, W, H, false, "down dgrad");
        grouped(o, T, experts, GROUP_NN, H, W, false, "gate dgrad");
        grouped(o, T, experts, GROUP_NN, H, W, true, "up dgrad, added");
        grouped(o, T, experts, GROUP_TN, W, H, true, "gate wgrad");
        grouped(o, T, experts, GROUP_TN, H, W, true, "down wgrad");
    }
}

/* ---- experts ---------------------------------------------------------------------------------- */

static void movement(struct timelines *o, int64_t T)
{
    const int64_t H = 6144, K = CHOSEN, E = EXPERTS;

    add(o, "K3", OP_router_fwd,
        &(struct router_fwd){.T = T,
            .E = E,
            .K = K,
            .groups = 1,
            .topk_groups = 1,
            .factor = 2.5,
            .norm = true,
            .dtype = BF},
        0, "E %lld, T %lld", (long long)E, (long long)T);
    add(o, "K3", OP_router_fwd,
        &(struct router_fwd){.T = T,
            .E = 256,
            .K = K,
            .groups = 1,
            .topk_groups = 1,
            .factor = 2.5,
            .norm = true,
            .dtype = BF},
        0, "E 256, T %lld", (long long)T);
    add(o, "K3", OP_router_bwd,
        &(struct router_bwd){
            .T = T, .E = E, .K = K, .factor = 2.5, .norm = true, .dtype = BF},
        0, "E %lld, T %lld", (long long)E, (long long)T);
    add(o, "K3", OP_moe_plan, &(struct moe_plan){.T = T, .E = E, .K = K}, 0,
        "E %lld, T %lld", (long long)E, (long long)T);
    add(o, "K3", OP_moe_gather,
        &(struct moe_gather){.T = T, .rows = T * K, .H = H, .dtype = BF}, 0, "T %lld",
        (long long)T);
    add(o, "K3", OP_moe_combine_fwd,
        &(struct moe_combine_fwd){.T = T, .K = K, .H = H, .dtype = BF}, 0, "T %lld",
        (long long)T);
    add(o, "K3", OP_moe_combine_bwd,
        &(struct moe_combine_bwd){.T = T, .K = K, .H = H, .dtype = BF}, 0, "T %lld",
        (long long)T);
    add(o, "K3", OP_moe_gather_bwd,
        &(struct moe_gather_bwd){.T = T, .K = K, .H = H, .dtype = BF}, 0, "T %lld",
        (long long)T);
}

/* ---- attention and indexer -------------------------------------------------------------------- */

enum { HEADS = 64, HEAD_DIM = 256, TOPK = 2048, I_HEADS = 32, I_DIM = 128 };

/* Sum over rows of the keys they see. */
static double pairs(int64_t T, int64_t most)
{
    const double t = (double)T, m = (double)most;
    return T <= most ? t * (t + 1) / 2 : m * (m + 1) / 2 + (t - m) * m;
}

static void attention(struct timelines *o, int64_t T, bool sets)
{
    const struct attention_fwd f = {.T = T,
        .S = 1,
        .N = HEADS,
        .Nk = HEADS,
        .Dq = HEAD_DIM,
        .Dv = HEAD_DIM,
        .K = sets ? TOPK : 0,
        .scale = 0.0625,
        .dtype = BF};
    const struct attention_bwd b = {.T = T,
        .S = 1,
        .N = HEADS,
        .Nk = HEADS,
        .Dq = HEAD_DIM,
        .Dv = HEAD_DIM,
        .K = sets ? TOPK : 0,
        .scale = 0.0625,
        .dtype = BF};
    const double flops = 4.0 * HEADS * HEAD_DIM * pairs(T, sets ? TOPK : T);
    const char *name = sets ? "sets of 2048" : "causal";
    struct timeline *l = add(o, sets ? "K6" : "K4", OP_attention_fwd, &f, flops,
        "%s, T %lld", name, (long long)T);

    l->drop[0] = sets ? NULL : "index";
    l = add(o, sets ? "K6" : "K5", OP_attention_bwd, &b, 2.5 * flops, "%s, T %lld", name,
        (long long)T);
    l->drop[0] = sets ? NULL : "index";
}

/* The absorbed form: one latent key a token for all heads, the values its first 512 dimensions. */
static void latent(struct timelines *o, int64_t T)
{
    enum { D = 576, V = 512 };
    const struct attention_fwd f = {.T = T,
        .S = 1,
        .N = HEADS,
        .Nk = 1,
        .Dq = D,
        .Dv = V,
        .K = TOPK,
        .k_stride = D,
        .v_stride = D,
        .scale = 0.0625,
        .dtype = BF};
    const struct attention_bwd b = {.T = T,
        .S = 1,
        .N = HEADS,
        .Nk = 1,
        .Dq = D,
        .Dv = V,
        .K = TOPK,
        .k_stride = D,
        .v_stride = D,
        .scale = 0.0625,
        .dtype = BF};
    const double per = 2.0 * HEADS * pairs(T, TOPK);

    add(o, "K7", OP_attention_fwd, &f, per * (D + V), "latent sets of 2048, T %lld",
        (long long)T);
    struct timeline *const l = add(o, "K8", OP_attention_bwd, &b, per * (3 * D + 2 * V),
        "latent sets of 2048, T %lld", (long long)T);
    l->drop[0] = "dv"; /* its part is in dk */
}

static void indexer(struct timelines *o, int64_t T)
{
    const double scores = 2.0 * I_HEADS * I_DIM;
    const struct indexer_loss p = {.T = T,
        .S = 1,
        .N = I_HEADS,
        .D = I_DIM,
        .K = TOPK,
        .MN = HEADS,
        .MNk = HEADS,
        .MDq = HEAD_DIM,
        .main_scale = 0.0625,
        .coeff = 1e-3,
        .dtype = BF};

    add(o, "K9", OP_indexer_topk,
        &(struct indexer_topk){
            .T = T, .S = 1, .N = I_HEADS, .D = I_DIM, .K = TOPK, .dtype = BF},
        scores * pairs(T, T), "T %lld", (long long)T);
    add(o, "K12", OP_indexer_loss, &p,
        (3 * scores + 2.0 * HEADS * HEAD_DIM) * pairs(T, TOPK), "T %lld", (long long)T);
}

/* ---- elementwise ------------------------------------------------------------------------------ */

static void norms(struct timelines *o, int64_t T)
{
    static const int64_t widths[] = {512, 2048, 6144};

    for (int i = 0; i < 3; i++) {
        const int64_t D = widths[i];
        struct timeline *l;
        add(o, "K13", OP_rmsnorm_fwd,
            &(struct rmsnorm_fwd){.T = T, .D = D, .eps = 1e-5f, .dtype = BF}, 0,
            "D %lld, T %lld", (long long)D, (long long)T);
        l = add(o, "K13", OP_rmsnorm_bwd,
            &(struct rmsnorm_bwd){.T = T, .D = D, .dtype = BF}, 0, "D %lld, T %lld%s",
            (long long)D, (long long)T, i == 2 ? ", added" : "");
        l->drop[0] = i == 2 ? NULL : "dx_add";
    }
    add(o, "K13", OP_layernorm_fwd,
        &(struct layernorm_fwd){.T = T, .D = I_DIM, .eps = 1e-6f, .dtype = BF}, 0,
        "D %d, T %lld", I_DIM, (long long)T);
    add(o, "K13", OP_layernorm_bwd,
        &(struct layernorm_bwd){.T = T, .D = I_DIM, .dtype = BF}, 0, "D %d, T %lld",
        I_DIM, (long long)T);
}

static void elementwise(struct timelines *o, int64_t T)
{
    struct timeline *l = add(o, "K14", OP_rope,
        &(struct rope){.T = T,
            .N = HEADS,
            .row_stride = HEADS * HEAD_DIM,
            .head_stride = HEAD_DIM,
            .at = 192,
            .D = 64,
            .dtype = BF},
        0, "queries, T %lld", (long long)T);

    l->bytes = (double)T * HEADS * 64 * 4;
    l = add(o, "K14", OP_blocks,
        &(struct blocks){.T = T,
            .N = HEADS,
            .D = 192,
            .y_row = HEADS * HEAD_DIM,
            .y_head = HEAD_DIM,
            .x_row = HEADS * 448,
            .x_head = 448,
            .dtype = BF},
        0, "keys, T %lld", (long long)T);
    l->bytes = (double)T * HEADS * 192 * 4;
    l->drop[0] = "add";
    l = add(o, "K14", OP_rope_table,
        &(struct rope_table){.T = T, .D = 64, .theta = 1e6, .dtype = BF}, 0, "T %lld",
        (long long)T);
    add(o, "K15", OP_swiglu_fwd, &(struct swiglu_fwd){.n = T * 12288, .dtype = BF}, 0,
        "dense, T %lld", (long long)T);
    add(o, "K15", OP_swiglu_bwd, &(struct swiglu_bwd){.n = T * 12288, .dtype = BF}, 0,
        "dense, T %lld", (long long)T);
    add(o, "-", OP_add, &(struct add){.n = T * 6144, .dtype = BF}, 0, "T %lld",
        (long long)T);
    l = add(o, "-", OP_embedding_fwd,
        &(struct embedding_fwd){.T = T, .V = 154880, .H = 6144, .dtype = BF}, 0, "T %lld",
        (long long)T);
    l->bytes = (double)T * 6144 * 4;
    l = add(o, "-", OP_embedding_bwd,
        &(struct embedding_bwd){
            .T = T, .V = 154880, .H = 6144, .skip_id = -1, .dtype = BF},
        0, "T %lld", (long long)T);
    l->bytes = (double)T * 6144 * 10;
}

/* ---- head and optimizer ----------------------------------------------------------------------- */

static void head(struct timelines *o, int64_t T)
{
    const double flops = 2.0 * (double)T * 6144 * 154880;

    add(o, "K16", OP_linear_ce_fwd,
        &(struct linear_ce_fwd){.T = T, .V = 154880, .H = 6144, .dtype = BF}, flops,
        "T %lld", (long long)T);
    for (int i = 0; i < 2; i++) {
        struct timeline *l = add(o, "K16", OP_linear_ce_bwd,
            &(struct linear_ce_bwd){
                .T = T, .V = 154880, .H = 6144, .scale = 1e-4, .dtype = BF},
            3 * flops, "T %lld%s", (long long)T, i == 0 ? "" : ", loss too");
        if (i == 0) {
            l->drop[0] = "loss";
            l->drop[1] = "its_lse";
        }
    }
}

static void optimizer(struct timelines *o)
{
    struct timeline *l;
    static const double coeff[5][3] = {{3.4445, -4.775, 2.0315}, {3.4445, -4.775, 2.0315},
        {3.4445, -4.775, 2.0315}, {3.4445, -4.775, 2.0315}, {3.4445, -4.775, 2.0315}};
    /* (4 R^2 C + 2 R^3) per step of a matrix [R,C], R <= C. */
    const double large = 16 * 5 * (4.0 * 2048 * 2048 * 6144 + 2.0 * 2048 * 2048 * 2048);
    const double heads = 64 * 5 * (4.0 * 256 * 256 * 2048 + 2.0 * 256 * 256 * 256);

    l = add(o, "K19", OP_adamw,
        &(struct adamw){.n = 256 << 20,
            .step = 3,
            .lr = 1e-4,
            .beta1 = 0.9,
            .beta2 = 0.95,
            .eps = 1e-8,
            .decay = 0.1,
            .grad_scale = 1,
            .dtype = GLM_F32},
        0, "%d Mi", 256);
    l->drop[0] = "rates";
    l->drop[1] = "copy";
    add(o, "K19", OP_sum_squares,
        &(struct sum_squares){.B = 16,
            .R = 2048,
            .C = 6144,
            .batch_stride = 2048 * 6144,
            .row_stride = 6144,
            .tile_rows = 2048,
            .tile_cols = 2048,
            .dtype = GLM_F32},
        0, "%s", "16 x 2048 x 6144");
    l = add(o, "K20", OP_muon,
        &(struct muon){.B = 16,
            .R = 2048,
            .C = 6144,
            .batch_stride = 2048 * 6144,
            .row_stride = 6144,
            .lr = 1e-3,
            .decay = 0.1,
            .momentum = 0.95,
            .grad_scale = 1,
            .factor = 1,
            .coeff = coeff,
            .steps = 5,
            .nesterov = true,
            .low_precision = true,
            .dtype = GLM_F32},
        large, "%s", "16 x 2048 x 6144");
    l->drop[0] = "rates";
    l->drop[1] = "copy";
    l = add(o, "K21", OP_muon,
        &(struct muon){.B = 64,
            .R = 256,
            .C = 2048,
            .batch_stride = 256 * 2048,
            .row_stride = 2048,
            .lr = 1e-3,
            .decay = 0.1,
            .momentum = 0.95,
            .grad_scale = 1,
            .factor = 1,
            .coeff = coeff,
            .steps = 5,
            .nesterov = true,
            .low_precision = true,
            .dtype = GLM_F32},
        heads, "%s", "64 x 256 x 2048");
    l->drop[0] = "rates";
    l->drop[1] = "copy";
}

void timeline_list(struct timelines *out, int64_t T)
{
    out->count = 0;
    products(out, T);
    groups(out, T);
    movement(out, T);
    attention(out, T, false);
    if (T > TOPK)
        attention(out, T, true), latent(out, T);
    indexer(out, T);
    norms(out, T);
    elementwise(out, T);
    head(out, T);
    optimizer(out);
}
