#include "train/flops.h"

#include <math.h>

/* Products and sums that note an overflow instead of wrapping. */
struct count {
    bool over;
};

static uint64_t mul(struct count *c, uint64_t a, uint64_t b)
{
    uint64_t x;
    c->over |= __builtin_mul_overflow(a, b, &x);
    return x;
}

static uint64_t add(struct count *c, uint64_t a, uint64_t b)
{
    uint64_t x;
    c->over |= __builtin_add_overflow(a, b, &x);
    return x;
}

static int too_large(struct glm_error *err)
{
    return glm_fail(
        err, GLM_EUSAGE, "a step of more than 2^64 operations cannot be counted");
}

const char *flops_part_name(enum flops_part p)
{
    static const char *const names[] = {
        "mlp", "head", "proj", "core", "idxp", "idxs", "eh"};
    return names[p];
}

/* n (n + 1) / 2 without leaving 64 bits where the result does not. */
static uint64_t triangle(struct count *c, uint64_t n)
{
    return n % 2 ? mul(c, n, n / 2 + 1) : mul(c, n / 2, n + 1);
}

int flops_add(struct flops_rows *rows, int64_t length, int64_t count, int64_t topk,
    struct glm_error *err)
{
    struct count c = {0};
    const uint64_t L = (uint64_t)length, n = (uint64_t)count;
    const uint64_t m = topk < length ? (uint64_t)topk : L;
    const uint64_t sparse = add(&c, triangle(&c, m), mul(&c, L - m, m));
    const uint64_t tokens = add(&c, (uint64_t)rows->tokens, mul(&c, L, n));
    rows->dense = add(&c, rows->dense, mul(&c, triangle(&c, L), n));
    rows->sparse = add(&c, rows->sparse, mul(&c, sparse, n));
    if (c.over || tokens > INT64_MAX)
        return too_large(err);
    rows->tokens = (int64_t)tokens;
    return 0;
}

/* How many indexers a step executes. */
static uint64_t indexers(const struct model_config *c, const struct flops_options *o)
{
    uint64_t n = 0;
    for (int64_t i = 0; i < c->num_hidden_layers; i++)
        n += c->layer_owns_indexer[i];
    if (o->indexer == FLOPS_INDEXER_OFF)
        return 0;
    return n + (o->mtp_depth == 0 ? 0 : o->mtp_kv_share ? 1 : (uint64_t)o->mtp_depth);
}

int flops_count(struct flops *out, const struct model_config *c,
    const struct flops_options *o, const struct flops_rows *rows, struct glm_error *err)
{
    struct count k = {0};
    const uint64_t T = (uint64_t)rows->tokens, N = (uint64_t)c->num_hidden_layers;
    const uint64_t D = (uint64_t)o->mtp_depth, h = (uint64_t)c->hidden_size;
    const uint64_t H = (uint64_t)c->num_heads, rq = (uint64_t)c->q_lora_rank;
    const uint64_t rkv = (uint64_t)c->kv_lora_rank, dr = (uint64_t)c->qk_rope_head_dim;
    const uint64_t dn = (uint64_t)c->qk_nope_head_dim, dv = (uint64_t)c->v_head_dim;
    const uint64_t fd = (uint64_t)c->intermediate_size,
                   fe = (uint64_t)c->moe_intermediate_size;
    const uint64_t active = (uint64_t)(c->num_experts_per_tok + c->n_shared_experts);
    const uint64_t HI = (uint64_t)c->index_n_heads, dI = (uint64_t)c->index_head_dim;
    const uint64_t nI = indexers(c, o);
    const uint64_t pairs = o->dense_attention ? rows->dense : rows->sparse;
    uint64_t dense = 0;
    for (uint64_t i = 0; i < N; i++)
        dense += c->layer_is_dense[i];

    /* The widths of one token in one layer stay far inside 64 bits; products with T may not. */
    const uint64_t mlp = 3 * fd * dense + 3 * fe * active * (N - dense + D);
    out->part[FLOPS_MLP] = mul(&k, mul(&k, 6 * h, T), mlp);

    const uint64_t passes = 3 + (o->mtp_detached ? 2 : 3) * D + (o->mtp_tv && D ? 1 : 0);
    out->part[FLOPS_HEAD] = mul(&k, mul(&k, 2 * h * (uint64_t)c->vocab_size, T), passes);

    const uint64_t q = rq * (h + H * (dn + dr) + 1), kd = rkv * (h + 1) + h * dr;
    const uint64_t kvu = rkv * H * (dn + dv), out_proj = H * dv * h;
    const uint64_t whole = N + (o->mtp_kv_share && D ? 1 : D), late = N + D - whole;
    const uint64_t proj = whole * (q + kd + kvu + out_proj) + late * (q + kvu + out_proj);
    out->part[FLOPS_PROJ] = mul(&k, 6 * T, proj);

    out->part[FLOPS_CORE] = mul(&k, mul(&k, 6 * H * (2 * rkv + dr), pairs), N + D);

    /* Forward; with a loss the weights' gradient, the input is detached. */
    const bool learns =
        o->indexer == FLOPS_INDEXER_SPARSE || o->indexer == FLOPS_INDEXER_DENSE;
    const uint64_t idxp = nI * (rq * HI * dI + h * dI + h * HI);
    out->part[FLOPS_IDXP] = mul(&k, mul(&k, learns ? 4 : 2, T), idxp);

    uint64_t scored = rows->dense;
    if (o->indexer == FLOPS_INDEXER_SPARSE)
        scored = add(&k, scored, mul(&k, 2, rows->sparse));
    else if (o->indexer == FLOPS_INDEXER_DENSE)
        scored = mul(&k, 3, rows->dense);
    out->part[FLOPS_IDXS] = mul(&k, 2 * nI * HI * dI, scored);

    out->part[FLOPS_EH] = mul(&k, mul(&k, 6 * D, T), 2 * h * h + 3 * h);

    out->total = 0;
    for (int i = 0; i < FLOPS_PARTS; i++)
        out->total = add(&k, out->total, out->part[i]);
    return k.over ? too_large(err) : 0;
}

double flops_tera(uint64_t total, double seconds)
{
    return (double)total / seconds / 1e12;
}

double flops_mfu(uint64_t total, double seconds, double peak_tflops)
{
    return peak_tflops > 0 ? flops_tera(total, seconds) / peak_tflops : (double)NAN;
}
