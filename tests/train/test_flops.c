/* Operations of a step against the published and audited totals (spec/training.md 9.2, 9.3). */
#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "train/flops.h"
#include "train/recipe.h"

static const struct flops_options mtp7 = {.mtp_depth = 7,
    .mtp_detached = true,
    .mtp_tv = true,
    .mtp_kv_share = true,
    .indexer = FLOPS_INDEXER_SPARSE};

static struct flops count(const struct model_config *c, const struct flops_options *o,
    int64_t length, int64_t sequences)
{
    struct glm_error err = {0};
    struct flops_rows rows = {0};
    struct flops f = {{0}, 0};
    cr_assert(
        flops_add(&rows, length, sequences, c->index_topk, &err) == 0, "%s", err.text);
    cr_assert(flops_count(&f, c, o, &rows, &err) == 0, "%s", err.text);
    return f;
}

static struct model_config full(void)
{
    static char text[1 << 16];
    struct glm_error err = {0};
    struct model_config c;
    FILE *const f = fopen("fixtures/configs/glm-5.2.json", "r");
    const size_t n = fread(text, 1, sizeof text, f);
    fclose(f);
    cr_assert(config_parse(&c, "glm-5.2.json", text, n, &err) == 0, "%s", err.text);
    return c;
}

Test(flops, of_the_proxy_recipe_are_the_published_total_part_by_part)
{
    static const uint64_t parts[] = {14602346566778880, 8978068773273600,
        7232441063178240, 4709541161730048, 68771402219520, 76950781558784,
        831230741053440};
    struct glm_error err = {0};
    struct recipe *r;
    const struct recipe_options plan = {.allow_unbuilt = true};
    cr_assert(recipe_read(&r, "fixtures/recipes/glm52-proxy.yaml", &plan, &err) == 0,
        "%s", err.text);
    const struct flops f = count(&r->config, &mtp7, 4095, 64);
    for (int i = 0; i < FLOPS_PARTS; i++)
        cr_expect(f.part[i] == parts[i], "%s: %" PRIu64 ", expected %" PRIu64,
            flops_part_name((enum flops_part)i), f.part[i], parts[i]);
    cr_expect(f.total == UINT64_C(36499350489792512));
    cr_expect_float_eq(flops_tera(f.total, 3.49375) / 16, 652.94, 0.005);
    cr_expect_float_eq(flops_mfu(f.total, 3.49375, 16 * 2500.0), 652.94 / 2500, 1e-5);
    recipe_free(r);
}

Test(flops, of_the_whole_model_are_the_four_audited_totals)
{
    struct model_config c = full();
    const struct flops_options off = {.indexer = FLOPS_INDEXER_SPARSE};
    cr_expect(count(&c, &off, 3968, 2048).total == UINT64_C(2365415775956631552));
    cr_expect(count(&c, &mtp7, 3968, 2048).total == UINT64_C(2831183079438024704));
    cr_expect(count(&c, &off, 126976, 64).total == UINT64_C(2588353331277594624));
    cr_expect(count(&c, &mtp7, 126976, 64).total == UINT64_C(3070445568691011584));
    config_clear(&c);
}

Test(flops, of_a_sparse_indexer_loss_save_what_the_spec_says)
{
    struct model_config c = full();
    const struct flops_options sparse = {.indexer = FLOPS_INDEXER_SPARSE},
                               dense = {.indexer = FLOPS_INDEXER_DENSE};
    const uint64_t DP = UINT64_C(8000) * 8001 / 2;
    uint64_t SP = 0;
    for (uint64_t i = 1; i <= 8000; i++)
        SP += i < 2048 ? i : 2048;
    const uint64_t saved =
        count(&c, &dense, 8000, 1).total - count(&c, &sparse, 8000, 1).total;
    cr_expect(saved == 21 * 4 * UINT64_C(32) * 128 * (DP - SP));
    config_clear(&c);
}

Test(flops, add_up_over_sequences_of_any_length)
{
    struct glm_error err = {0};
    struct model_config c = full();
    const int64_t lengths[] = {1, 2, 7, 2047, 2048, 2049, 5000, 0};
    const struct flops_options o = {.mtp_depth = 1, .indexer = FLOPS_INDEXER_SPARSE};
    struct flops_rows rows = {0};
    uint64_t total = 0;
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        uint64_t dense = 0, sparse = 0;
        struct flops_rows one = {0};
        flops_add(&rows, lengths[i], 3, c.index_topk, &err);
        flops_add(&one, lengths[i], 1, c.index_topk, &err);
        for (int64_t t = 1; t <= lengths[i]; t++) {
            dense += (uint64_t)t;
            sparse += (uint64_t)(t < c.index_topk ? t : c.index_topk);
        }
        cr_expect(
            one.dense == dense && one.sparse == sparse, "length %" PRId64, lengths[i]);
        total += count(&c, &o, lengths[i], 3).total;
    }
    struct flops f;
    cr_assert(flops_count(&f, &c, &o, &rows, &err) == 0);
    cr_expect(f.total == total);
    config_clear(&c);
}

Test(flops, that_64_bits_cannot_hold_are_refused)
{
    struct glm_error err = {0};
    struct model_config c = full();
    struct flops_rows rows = {0};
    struct flops f;
    cr_assert(flops_add(&rows, INT64_C(1) << 22, 64, c.index_topk, &err) == 0);
    cr_expect(flops_count(&f, &c, &mtp7, &rows, &err) == GLM_EUSAGE);
    err = (struct glm_error){0};
    rows = (struct flops_rows){0};
    cr_expect(flops_add(&rows, INT64_C(1) << 40, 1, c.index_topk, &err) == GLM_EUSAGE);
    config_clear(&c);
}
