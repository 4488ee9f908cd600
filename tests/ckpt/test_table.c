/* The table against the published counts, and its look-ups. */
#include "ckpt/table.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/models.h"
#include "tests/support/toy.h"

/* Bytes with F32 router biases, and the FP8 release: E4M3 with F32 scales of 128 x 128. */
static int64_t bytes_of(
    const struct table *t, bool fp8, int64_t *tensors, int64_t *quantised)
{
    int64_t sum = 0;
    *tensors = *quantised = 0;
    for (int64_t i = 0; i < t->count; i++) {
        const struct table_entry *e = &t->entries[i];
        const int64_t members = table_members(e);
        int64_t n = 1;
        for (int k = 0; k < e->rank; k++)
            n *= e->shape[k];
        *tensors += members;
        if (fp8 && e->quantised) {
            const int64_t R = e->grid.dims[1], C = e->grid.dims[2];
            *tensors += members;
            *quantised += members;
            sum += n + 4 * members * ((R + 127) / 128) * ((C + 127) / 128);
        } else {
            sum += n * (int64_t)glm_dtype_size(e->dtype);
        }
    }
    return sum;
}

static int64_t tiles_of(const struct table *t)
{
    int64_t sum = 0;
    for (int64_t i = 0; i < t->count; i++)
        sum += tile_count(&t->entries[i].grid);
    return sum;
}

Test(table, has_the_published_counts_of_glm_5_2)
{
    struct table *t = models_table("glm-5.2", false);
    int64_t tensors, quantised;
    cr_assert_eq(t->hf_tensors, 59585);
    cr_assert_eq(t->elements, 753329940480);
    cr_assert_eq(bytes_of(t, false, &tensors, &quantised), 1506659919872);
    cr_assert_eq(tiles_of(t), 1627611);
    table_free(t);
    t = models_table("glm-5.2", true);
    cr_assert_eq(t->hf_tensors, 58794);
    cr_assert_eq(t->elements, 743377019904);
    cr_assert_eq(t->config.num_mtp_layers, 0);
    table_free(t);
}

Test(table, has_the_published_counts_of_glm_5_1)
{
    struct table *t = models_table("glm-5.1", false);
    cr_assert_eq(t->hf_tensors, 59870);
    cr_assert_eq(t->elements, 753864139008);
    table_free(t);
    t = models_table("glm-5.1", true);
    cr_assert_eq(t->hf_tensors, 59079);
    cr_assert_eq(t->elements, 743911218432);
    table_free(t);
}

Test(table, has_the_published_counts_of_the_fp8_release)
{
    struct table *t = models_table("glm-5.2-fp8", false);
    int64_t tensors, quantised;
    cr_assert_str_eq(t->config.quant_method, "fp8");
    cr_assert(t->config.quant_block[0] == 128 && t->config.quant_block[1] == 128);
    cr_assert_eq(bytes_of(t, true, &tensors, &quantised), 755617140416);
    cr_assert_eq(tensors, 118629);
    cr_assert_eq(quantised, 59044);
    table_free(t);
}

Test(table, has_the_census_of_the_toys)
{
    struct table *a = models_table("tiny-a", false), *m = models_table("tiny-a", true);
    cr_assert_eq(a->hf_tensors, 296);
    cr_assert_eq(a->elements, 3436752);
    cr_assert_eq(m->hf_tensors, 249);
    cr_assert_eq(a->elements - m->elements, 499720);
    table_free(a);
    table_free(m);
    struct table *c = models_table("tiny-c", false), *b = models_table("tiny-b", false);
    cr_assert_eq(c->hf_tensors, 296 + 4 * 5, "layers 3, 4, 5 and 7 own an indexer too");
    cr_assert_eq(b->config.n_group, 4);
    table_free(c);
    table_free(b);
}

Test(table, has_the_group_counts_of_glm_5_2)
{
    static const struct {
        enum table_kind kind;
        int64_t tensors;
    } rows[] = {
        {KIND_EXPERT, 58368},
        {KIND_SHARED_EXPERT, 228},
        {KIND_ROUTER, 152},
        {KIND_DENSE, 9},
        {KIND_ATTENTION, 395},
        {KIND_NORM, 316 + 1},
        {KIND_INDEXER, 110},
        {KIND_EMBEDDING, 1},
        {KIND_HEAD, 1},
        {KIND_MTP, 4},
    };
    struct table *t = models_table("glm-5.2", false);
    int64_t counts[KIND_COUNT] = {0}, f32 = 0;
    for (int64_t i = 0; i < t->count; i++) {
        counts[t->entries[i].kind] += table_members(&t->entries[i]);
        f32 += t->entries[i].dtype == GLM_F32;
        cr_assert_eq(t->entries[i].keep_f32, t->entries[i].dtype == GLM_F32);
    }
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        cr_assert_eq(counts[rows[i].kind], rows[i].tensors, "%s: %lld",
            table_kind_name(rows[i].kind), (long long)counts[rows[i].kind]);
    cr_assert_eq(f32, 76);
    table_free(t);
}

static const struct table_entry *find(
    const struct table *t, const char *name, int64_t *member)
{
    return table_find(t, name, strlen(name), member);
}

Test(table, finds_rows_and_members_by_every_name)
{
    struct table *t = models_table("t1", false);
    int64_t found = 0;
    for (int64_t i = 0; i < t->count; i++) {
        const struct table_entry *e = &t->entries[i];
        int64_t member;
        cr_assert_eq(find(t, e->name, &member), e);
        cr_assert_eq(member, -1);
        for (int64_t m = 0; m < table_members(e); m++) {
            char name[256];
            const int n = table_member_name(e, e->stack ? m : -1, name, sizeof name);
            cr_assert_eq((size_t)n, strlen(name));
            cr_assert_eq(find(t, name, &member), e, "%s", name);
            cr_assert_eq(member, e->stack ? m : -1);
            found++;
        }
    }
    cr_assert_eq(found, t->hf_tensors);
    table_free(t);
}

Test(table, writes_members_as_hugging_face_does)
{
    struct table *t = models_table("t1", false);
    int64_t member;
    char name[256];
    const struct table_entry *e =
        find(t, "model.layers.1.mlp.experts.10.down_proj.weight", &member);
    cr_assert_not_null(e);
    cr_assert_str_eq(e->name, "model.layers.1.mlp.experts.down_proj.weight");
    cr_assert_eq(member, 10);
    table_member_name(e, 2, name, sizeof name);
    cr_assert_str_eq(name, "model.layers.1.mlp.experts.2.down_proj.weight");
    table_free(t);
}

Test(table, refuses_names_that_only_look_right)
{
    static const char *const names[] = {
        "model.layers.1.mlp.experts.12.down_proj.weight", /* 12 experts: 0..11 */
        "model.layers.1.mlp.experts.01.down_proj.weight",
        "model.layers.1.mlp.experts.-1.down_proj.weight",
        "model.layers.1.mlp.experts..down_proj.weight",
        "model.layers.1.mlp.experts.1",
        "model.layers.1.mlp.experts.99999999999999999999.down_proj.weight",
        "model.layers.0.mlp.experts.1.down_proj.weight", /* layer 0 is dense */
        "model.layers.1.mlp.shared_experts.1.down_proj.weight",
        "model.layers.3.self_attn.indexer.wk.weight", /* layer 3 shares */
        "model.layers.6.input_layernorm.weight",
        "model.layers.01.input_layernorm.weight",
        "model.embed_tokens.weight ",
        "model.embed_tokens",
        "",
        "model.layers.1.mlp.experts.gate_up_proj",
    };
    struct table *t = models_table("t1", false);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        int64_t member;
        cr_assert_null(find(t, names[i], &member), "%s", names[i]);
    }
    int64_t member;
    cr_assert_null(table_find(t, "model.norm.weight\0x", 19, &member));
    table_free(t);
}

Test(table, keeps_embedding_first_and_head_last)
{
    struct table *t = models_table("tiny-a", false);
    cr_assert_str_eq(t->entries[0].name, "model.embed_tokens.weight");
    cr_assert_str_eq(t->entries[t->count - 2].name, "model.norm.weight");
    cr_assert_str_eq(t->entries[t->count - 1].name, "lm_head.weight");
    int layer = 0;
    for (int64_t i = 1; i < t->count - 2; i++) {
        const struct table_entry *e = &t->entries[i];
        cr_assert(e->layer == layer || e->layer == layer + 1);
        cr_assert_eq(e->where, e->layer == 8 ? WHERE_MTP : WHERE_LAYER);
        layer = e->layer;
    }
    cr_assert_eq(layer, 8);
    table_free(t);
}

Test(table, cuts_whole_heads_and_classes_the_optimizer)
{
    static const struct {
        const char *name;
        enum table_cut cut;
        int64_t unit;
        enum table_optimizer optimizer;
        bool decay;
        int64_t head, split;
    } rows[] = {
        {"model.embed_tokens.weight", CUT_VOCAB, 1, OPT_ADAMW, true, 0, 0},
        {"lm_head.weight", CUT_VOCAB, 1, OPT_ADAMW, true, 0, 0},
        {"model.norm.weight", CUT_NONE, 1, OPT_ADAMW, false, 0, 0},
        {"model.layers.6.self_attn.q_b_proj.weight", CUT_ROWS, 256, OPT_MUON_HEADS, true,
            256, 192},
        {"model.layers.6.self_attn.kv_b_proj.weight", CUT_ROWS, 448, OPT_MUON_HEADS, true,
            448, 192},
        {"model.layers.6.self_attn.kv_a_proj_with_mqa.weight", CUT_NONE, 1, OPT_MUON,
            true, 0, 0},
        {"model.layers.6.self_attn.o_proj.weight", CUT_COLS, 256, OPT_MUON, true, 0, 0},
        {"model.layers.6.self_attn.indexer.k_norm.bias", CUT_NONE, 1, OPT_ADAMW, false, 0,
            0},
        {"model.layers.6.mlp.gate.weight", CUT_NONE, 1, OPT_MUON, true, 0, 0},
        {"model.layers.6.mlp.gate.e_score_correction_bias", CUT_NONE, 1, OPT_ROUTER_BIAS,
            false, 0, 0},
        {"model.layers.6.mlp.experts.up_proj.weight", CUT_ROWS, 1, OPT_MUON, true, 0, 0},
        {"model.layers.6.mlp.experts.down_proj.weight", CUT_COLS, 1, OPT_MUON, true, 0,
            0},
        {"model.layers.78.eh_proj.weight", CUT_ROWS, 1, OPT_MUON, true, 0, 0},
    };
    struct table *t = models_table("glm-5.2", false);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int64_t member;
        const struct table_entry *e = find(t, rows[i].name, &member);
        cr_assert_not_null(e, "%s", rows[i].name);
        cr_assert(e->cut == rows[i].cut && e->unit == rows[i].unit
                && e->optimizer == rows[i].optimizer && e->decay == rows[i].decay
                && e->head_rows == rows[i].head && e->head_split == rows[i].split,
            "%s", rows[i].name);
    }
    table_free(t);
}

Test(table, names_scales_both_ways)
{
    char buf[64];
    const char *const w = "a.mlp.experts.3.up_proj.weight";
    cr_assert_eq(table_scale_name(w, ".weight_scale_inv", buf, sizeof buf), 40);
    cr_assert_str_eq(buf, "a.mlp.experts.3.up_proj.weight_scale_inv");
    cr_assert(table_scale_of(buf, strlen(buf), ".weight_scale_inv", buf + 0, sizeof buf));
    cr_assert_str_eq(buf, w);
    cr_assert_not(table_scale_of(w, strlen(w), ".weight_scale_inv", buf, sizeof buf));
    cr_assert_not(
        table_scale_of("a.weight_scale_inv", 18, ".weight_scale", buf, sizeof buf));
    cr_assert_not(
        table_scale_of("a.weight_scale", 14, ".weight_scale", buf, 8), "no room");
    cr_assert(table_scale_of("a.weight_scale", 14, ".weight_scale", buf, 9));
    cr_assert_eq(table_scale_name("a.bias", ".weight_scale", buf, sizeof buf), -1);
    cr_assert_str_eq(buf, "");
}

static struct table *build_changed(
    const char *name, const char *from, const char *to, struct glm_error *err)
{
    char *text = models_config(name), *at = strstr(text, from);
    cr_assert_not_null(at);
    char *changed = NULL;
    struct model_config c;
    struct table *t = NULL;
    cr_assert(
        asprintf(&changed, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from))
        > 0);
    if (config_parse(&c, "config.json", changed, strlen(changed), err) == 0)
        table_build(&t, &c, false, err);
    free(changed);
    free(text);
    return t;
}

Test(table, makes_a_tied_head_an_alias)
{
    struct glm_error err = {0};
    struct table *t = build_changed("tiny-a", "\"tie_word_embeddings\": false",
        "\"tie_word_embeddings\": true", &err);
    int64_t member;
    cr_assert_not_null(t, "%s", err.text);
    cr_assert_eq(t->hf_tensors, 295);
    cr_assert_null(find(t, "lm_head.weight", &member));
    cr_assert_eq(table_alias(t, "lm_head.weight", 14), &t->entries[0]);
    cr_assert_null(table_alias(t, "lm_head.bias", 12));
    table_free(t);
    t = models_table("tiny-a", false);
    cr_assert_null(table_alias(t, "lm_head.weight", 14));
    table_free(t);
}

Test(table, refuses_sizes_whose_products_overflow)
{
    struct glm_error err = {0};
    char *text = models_config("tiny-a");
    struct model_config c;
    cr_assert_eq(config_parse(&c, "config.json", text, strlen(text), &err), 0);
    free(text);
    c.n_routed_experts = 1 << 16;
    c.moe_intermediate_size = c.hidden_size = 1 << 24;
    struct table *t = NULL;
    cr_assert_eq(table_build(&t, &c, false, &err), GLM_EFORMAT);
    cr_assert_null(t);
    cr_assert(strstr(err.text, "mlp.experts.gate_proj.weight"), "%s", err.text);
}

/* The second method: the toys' own enumeration, made from the model's description. */
Test(table, lists_the_tensors_that_the_toy_generator_lists)
{
    static const char *const names[] = {
        "t1", "tiny-a", "tiny-b", "tiny-c", "glm-5.2", "glm-5.1"};
    for (size_t k = 0; k < sizeof names / sizeof names[0]; k++) {
        char path[128];
        struct toy_model toy;
        struct table *t = models_table(names[k], false);
        snprintf(path, sizeof path, "fixtures/configs/%s.json", names[k]);
        cr_assert_eq(toy_model_new(&toy, &(struct toy_options){.config = path}), 0, "%s",
            toy_error());
        cr_assert_eq(toy.count, t->hf_tensors, "%s", names[k]);
        for (int64_t i = 0; i < toy.count; i++) {
            const struct toy_tensor *x = &toy.tensors[i];
            int64_t member;
            const struct table_entry *e = find(t, x->name, &member);
            cr_assert_not_null(e, "%s", x->name);
            const int skip = member >= 0;
            cr_assert_eq(e->rank - skip, x->rank, "%s", x->name);
            cr_assert_arr_eq(e->shape + skip, x->shape,
                (size_t)x->rank * sizeof x->shape[0], "%s", x->name);
            cr_assert_eq(e->quantised, x->quantised, "%s", x->name);
            cr_assert_eq(e->keep_f32, x->type == TOY_F32, "%s", x->name);
        }
        toy_model_clear(&toy);
        table_free(t);
    }
}
