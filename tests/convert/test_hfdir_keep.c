/* Subsets of layers and experts: what is a valid smaller model, and where its tensors lie. */
#include "tests/convert/hfcase.h"

/* ---- subsets --------------------------------------------------------------------------------- */

Test(hf_list, parses_numbers_and_ranges)
{
    struct glm_error err = {0};
    int *list, count;
    cr_assert_eq(hf_list_parse("--layers", "0-3,78", &list, &count, &err), 0);
    cr_assert_eq(count, 5);
    cr_assert_eq(list[3], 3);
    cr_assert_eq(list[4], 78);
    free(list);
    cr_assert_eq(hf_list_parse("--layers", "7,2-3", &list, &count, &err), 0);
    cr_assert_eq(list[0], 2);
    cr_assert_eq(list[2], 7);
    free(list);
    static const char *const bad[] = {"", ",", "1,", "-1", "3-1", "1-", "a", "1 ,2",
        "99999999999", "1,1", "0-3,2", "1-2-3", "0x1"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        glm_error_clear(&err);
        cr_assert_eq(hf_list_parse("--layers", bad[i], &list, &count, &err), GLM_EUSAGE,
            "'%s'", bad[i]);
        cr_assert(strstr(err.text, "--layers: "), "%s", err.text);
        cr_assert_null(list);
    }
}

Test(subset, renumbers_layers_and_cuts_experts)
{
    make();
    const int layers[] = {0, 2, 4, 5}, experts[] = {1, 4, 10, 11};
    struct hf_source *s =
        open_with(&(struct hf_options){.subset = {layers, 4, experts, 4}, .threads = 1});
    cr_assert(s->subset);
    cr_assert(s->has_mtp);
    const struct model_config *c = &s->table->config;
    cr_assert_eq(c->num_hidden_layers, 3);
    cr_assert_eq(c->num_mtp_layers, 1);
    cr_assert_eq(c->n_routed_experts, 4);
    cr_assert(c->layer_is_dense[0] && !c->layer_is_dense[1]);
    cr_assert(c->layer_owns_indexer[1] && !c->layer_owns_indexer[2]);
    for (int64_t i = 0; i < s->table->count; i++) {
        const struct table_entry *e = &s->table->entries[i];
        for (int64_t j = 0; j < table_members(e); j++) {
            struct table_entry old = *e;
            char old_name[256], name[256];
            const char *rest =
                e->layer < 0 ? NULL : strchr(e->name + strlen("model.layers."), '.');
            if (rest)
                snprintf(old_name, sizeof old_name, "model.layers.%d%s", layers[e->layer],
                    rest);
            else
                snprintf(old_name, sizeof old_name, "%s", e->name);
            old.name = old_name;
            table_member_name(&old, e->stack ? experts[j] : 0, name, sizeof name);
            at_name(s, hfdir_place(s, e, j, false), name, 0);
        }
        cr_assert_eq(
            hfdir_cut_rows(s, e), strstr(e->name, ".mlp.gate.") != NULL, "%s", e->name);
        if (hfdir_cut_rows(s, e))
            cr_assert_eq(e->shape[0], 4);
    }
    cr_assert_eq(s->experts[2], 10);
    cr_assert_eq(s->tensors, s->table->hf_tensors);
    json_t *json = json_loadb(s->config_text, s->config_size, 0, NULL);
    cr_assert_not_null(json);
    cr_assert_null(json_object_get(json, "index_topk_freq"));
    cr_assert_null(json_object_get(json, "index_skip_topk_offset"));
    cr_assert_eq(json_array_size(json_object_get(json, "mlp_layer_types")), 3u);
    cr_assert_eq(json_integer_value(json_object_get(json, "first_k_dense_replace")), 1);
    json_decref(json);
    hfdir_close(s);
    done();
}

Test(subset, without_the_mtp_layer_in_the_list_has_none)
{
    make();
    const int layers[] = {0, 1};
    struct hf_source *s = open_with(&(struct hf_options){.subset = {layers, 2, NULL, 0}});
    cr_assert(!s->has_mtp);
    cr_assert_eq(s->table->config.num_mtp_layers, 0);
    cr_assert_eq(s->table->config.n_routed_experts, 12);
    cr_assert_null(s->experts);
    hfdir_close(s);
    done();
}

Test(subset, needs_only_what_it_keeps)
{
    make();
    hfedit_drop_like(&edit, ".layers.3.");
    hfedit_drop(&edit, EXPERT);
    hfedit_save(&edit);
    const int layers[] = {0, 1}, experts[] = {0, 1, 2};
    struct hf_source *s =
        open_with(&(struct hf_options){.subset = {layers, 2, experts, 3}});
    hfdir_close(s);
    fails_with(&(struct hf_options){.subset = {layers, 2, NULL, 0}}, GLM_EFORMAT,
        "1 tensors missing: " EXPERT, "");
    done();
}

Test(subset, renumbers_the_modules_that_are_not_quantised)
{
    make_form(TOY_FP8);
    hfedit_json(dir, "config.json", "quantization_config", "modules_to_not_convert",
        json_pack("[s,s,s,s]", "lm_head", "model.layers.0.input_layernorm",
            "model.layers.2.mlp.gate", "model.layers.3.mlp.gate"));
    const int layers[] = {0, 2, 5};
    struct hf_source *s = open_with(&(struct hf_options){.subset = {layers, 3, NULL, 0}});
    json_t *json = json_loadb(s->config_text, s->config_size, 0, NULL);
    json_t *q = json_object_get(json, "quantization_config");
    json_t *want = json_pack("[s,s,s]", "lm_head", "model.layers.0.input_layernorm",
        "model.layers.1.mlp.gate");
    cr_assert(json_equal(json_object_get(q, "modules_to_not_convert"), want));
    json_decref(want);
    json_decref(json);
    cr_assert_eq(s->scale_block[0], 16);
    hfdir_close(s);
    done();
}

Test(subset, refuses_what_would_be_no_valid_model_and_says_what_would)
{
    make();
    unusable((int[]){3, 4}, 2, NULL, 0,
        "the first kept layer 3 has no index set of its own; legal "
        "first layers: 0,1,2");
    unusable((int[]){0, 1, 3}, 3, NULL, 0,
        "layer 3 uses the index set of layer 2, which is not "
        "kept: add 2 or leave out 3");
    unusable((int[]){0, 9}, 2, NULL, 0,
        "layer 9: the model has layers 0-5, the MTP layers last");
    unusable((int[]){1, 0}, 2, NULL, 0, "0 does not follow 1");
    unusable((int[]){5}, 1, NULL, 0, "at least one of the layers 0-4 must be kept");
    unusable(NULL, 0, (int[]){0}, 1, "1 kept, but each token chooses 2: keep 2 or more");
    unusable(NULL, 0, (int[]){0, 12}, 2, "expert 12: the model has experts 0-11");
    unusable(NULL, 0, (int[]){1, 1}, 2, "1 does not follow 1");
    fails_with(
        &(struct hf_options){.no_mtp = true, .subset = {(int[]){0, 5}, 2, NULL, 0}},
        GLM_EUSAGE, "--layers names the MTP layer 5, which --no-mtp leaves out", "");
    hfedit_json(dir, "config.json", NULL, "n_group", json_integer(4));
    hfedit_json(dir, "config.json", NULL, "topk_group", json_integer(2));
    unusable(NULL, 0, (int[]){0, 1, 2, 3, 4, 5}, 6,
        "6 kept do not divide into the 4 groups of the router: keep 4 or 8");
    unusable(NULL, 0, (int[]){0, 1, 2, 3}, 4, "4 kept give 1 for each of 4 groups");
    done();
}
