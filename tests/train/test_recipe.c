/* Recipes: what is read, what follows, what is refused and in which words. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/tmpdir.h"
#include "train/recipe.h"

/* The least that trains; %s: more lines. */
#define TINY                                                                             \
    "ARGS:\n  lr: 1e-3\n  micro_batch_size: 2\n  global_batch_size: 4\n  seq_length: "   \
    "64\n"                                                                               \
    "  train_iters: 30\n"
#define TINY_MODEL "GLM:\n  model: fixtures/configs/tiny-a.json\n"

static struct recipe *read_with(const char *text, const struct recipe_options *o)
{
    struct glm_error err = {0};
    struct recipe *r;
    recipe_parse(&r, "r.yaml", text, strlen(text), o, &err);
    cr_assert(err.code == GLM_OK, "%s", err.text);
    return r;
}

static struct recipe *good(const char *lines)
{
    char text[4096];
    snprintf(text, sizeof text, TINY "%s", lines);
    return read_with(text, NULL);
}

/* Refused with this code, and every one of the words (between '|') in the sentence. */
static void refused(const char *text, const struct recipe_options *o, enum glm_code code,
    const char *words)
{
    struct glm_error err = {0};
    struct recipe *r;
    char list[512], *rest = NULL;
    recipe_parse(&r, "r.yaml", text, strlen(text), o, &err);
    cr_assert(err.code == code, "code %d of '%s', recipe\n%s", err.code, err.text, text);
    cr_assert(r == NULL);
    snprintf(list, sizeof list, "%s", words);
    for (char *w = strtok_r(list, "|", &rest); w; w = strtok_r(NULL, "|", &rest))
        cr_expect(strstr(err.text, w), "'%s' is not in '%s'", w, err.text);
}

static void bad(const char *lines, const char *words)
{
    char text[4096];
    snprintf(text, sizeof text, TINY "%s", lines);
    refused(text, NULL, GLM_EFORMAT, words);
}

static const char *text_of(const struct recipe *r, const char *key)
{
    return recipe_find(r, key)->text;
}

/* ---- the public recipe --------------------------------------------------------------------------- */

Test(recipe, of_the_public_proxy_parses_and_says_what_is_not_built)
{
    static const char *const unbuilt[] = {"mtp_num_layers", "mtp_detach_heads",
        "fp8_format", "fp8_recipe", "fp8_param_gather",
        "reuse_grad_buf_for_mxfp8_param_ag"};
    const struct recipe_options plan = {.allow_unbuilt = true};
    struct glm_error err = {0};
    struct recipe *r;
    size_t seen = 0;
    cr_assert(recipe_read(&r, "fixtures/recipes/glm52-proxy.yaml", &plan, &err) == 0,
        "%s", err.text);
    for (int64_t i = 0; i < r->value_count; i++) {
        if (!r->values[i].unbuilt)
            continue;
        cr_assert(
            seen < sizeof unbuilt / sizeof unbuilt[0], "%s", r->values[i].key->name);
        cr_expect_str_eq(r->values[i].key->name, unbuilt[seen++]);
    }
    cr_expect(seen == sizeof unbuilt / sizeof unbuilt[0]);
    cr_expect(recipe_check_built(r, &err) == GLM_EFORMAT);
    cr_expect(
        strstr(err.text, "ARGS.mtp_num_layers: 7") && strstr(err.text, "--ignore-key"),
        "%s", err.text);
    cr_expect(r->skipped.count == 1);
    cr_expect_str_eq(r->skipped.item[0], "ENV_VARS");
    recipe_free(r);
}

Test(recipe, of_the_public_proxy_gives_its_model)
{
    /* Which layers compute an index set: 1, 2, 6, 10, 14, 18 from 1 (spec/training.md 0.3). */
    static const bool full[21] = {[0] = 1, [1] = 1, [5] = 1, [9] = 1, [13] = 1, [17] = 1};
    const struct recipe_options plan = {.allow_unbuilt = true};
    struct glm_error err = {0};
    struct recipe *r;
    cr_assert(recipe_read(&r, "fixtures/recipes/glm52-proxy.yaml", &plan, &err) == 0,
        "%s", err.text);
    const struct model_config *const c = &r->config;
    cr_expect(c->num_hidden_layers == 21 && c->n_routed_experts == 64
        && c->num_mtp_layers == 1);
    cr_expect(c->hidden_size == 6144 && c->vocab_size == 154880 && c->index_topk == 2048);
    cr_expect(
        c->qk_nope_head_dim == 192 && c->qk_rope_head_dim == 64 && c->v_head_dim == 256);
    cr_expect(
        c->n_shared_experts == 1 && c->num_experts_per_tok == 8 && c->norm_topk_prob);
    cr_expect_float_eq(c->rope_theta, 8e6, 0);
    cr_expect_float_eq(c->routed_scaling_factor, 2.5, 0);
    for (int i = 0; i < 21; i++) {
        cr_expect(c->layer_owns_indexer[i] == full[i], "layer %d", i);
        cr_expect(c->layer_is_dense[i] == (i < 2), "layer %d", i);
    }
    struct table *t;
    cr_assert(table_build(&t, &r->config, false, &err) == 0, "%s", err.text);
    /* 20 MoE layers with 64 experts, 2 dense, 22 of attention, 7 indexers. */
    cr_expect(t->hf_tensors == 3 + 22 * 9 + 7 * 5 + 2 * 3 + 20 * (2 + 3 + 64 * 3) + 4);
    table_free(t);
    recipe_free(r);
}

Test(recipe, goes_on_without_the_keys_it_is_told_to_ignore)
{
    static const char *const keys[] = {"mtp_num_layers", "ARGS.mtp_detach_heads",
        "fp8_format", "--fp8-recipe", "fp8_param_gather",
        "reuse_grad_buf_for_mxfp8_param_ag"};
    const struct recipe_options o = {.ignore = keys, .ignores = 6};
    struct glm_error err = {0};
    struct recipe *r;
    cr_assert(recipe_read(&r, "fixtures/recipes/glm52-proxy.yaml", &o, &err) == 0, "%s",
        err.text);
    cr_expect(r->train.mtp_depth == 0 && !r->train.mtp_detach_heads,
        "as if they were not there");
    cr_expect(strstr(r->text, "fp8") == NULL);
    recipe_free(r);
    const struct recipe_options five = {.ignore = keys, .ignores = 5};
    cr_expect(
        recipe_read(&r, "fixtures/recipes/glm52-proxy.yaml", &five, &err) == GLM_EFORMAT);
    cr_expect(strstr(err.text, "reuse_grad_buf_for_mxfp8_param_ag"), "%s", err.text);
}

/* ---- values and defaults -------------------------------------------------------------------------- */

Test(recipe, takes_megatrons_defaults)
{
    struct recipe *const r = good(TINY_MODEL);
    static const struct {
        const char *key, *text;
    } rows[] = {{"optimizer", "adam"}, {"adam_beta1", "0.9"}, {"adam_beta2", "0.999"},
        {"adam_eps", "1e-08"}, {"weight_decay", "0.01"}, {"clip_grad", "1"},
        {"muon_momentum", "0.95"}, {"muon_nesterov", "false"}, {"muon_num_ns_steps", "5"},
        {"muon_coefficient_type", "quintic"}, {"muon_scale_mode", "spectral"},
        {"muon_extra_scale_factor", "1"}, {"mtp_loss_scaling_factor", "0.1"},
        {"dsa_indexer_loss_coeff", "0"}, {"moe_router_bias_update_rate", "0.001"},
        {"lr_decay_style", "linear"}, {"lr_wsd_decay_style", "exponential"},
        {"min_lr", "0"}, {"seed", "1234"}, {"split", "\"969,30,1\""},
        {"make_vocab_size_divisible_by", "128"}, {"eval_iters", "100"},
        {"norm_scope", "global"}, {"canonical", "false"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        cr_expect_str_eq(text_of(r, rows[i].key), rows[i].text, "%s", rows[i].key);
        cr_expect(recipe_find(r, rows[i].key)->origin == RECIPE_DEFAULT);
    }
    cr_expect(
        recipe_find(r, "lr")->origin == RECIPE_GIVEN && recipe_find(r, "lr")->line == 2);
    recipe_free(r);
}

Test(recipe, without_a_configuration_wants_no_default_sizes)
{
    struct recipe *const r = good(TINY_MODEL);
    cr_expect_str_eq(
        text_of(r, "kv_lora_rank"), "64", "the configuration's, not Megatron's 32");
    cr_expect_str_eq(text_of(r, "moe_layer_freq"), "\"[0,0,0,1,1,1,1,1]\"");
    cr_expect(recipe_find(r, "kv_lora_rank")->origin == RECIPE_DERIVED);
    cr_expect(r->train.mtp_depth == 1, "what the configuration has");
    recipe_free(r);
}

Test(recipe, reads_values_however_yaml_writes_them)
{
    struct recipe *const r = good(
        "  --weight-decay: .1\n  bf16: True\n  muon_use_nesterov: yes\n"
        "  clip-grad: 0\n  seed: \"7\"\n  save_interval: null\n"
        "  data_path: 0.3 a 0.7  c.bin\n" TINY_MODEL "  eval: \"x: \\\"y\\\"\\t\"\n");
    cr_expect_float_eq(r->optimizer.weight_decay, 0.1, 0);
    cr_expect(r->train.bf16 && r->optimizer.muon_nesterov && r->train.seed == 7);
    cr_expect(r->run.interval == 0);
    cr_expect_str_eq(r->data.eval, "x: \"y\"\t");
    recipe_free(r);
}

Test(recipe, knows_which_token_ends_a_document)
{
    struct recipe *const r = good("  eod_mask_loss: true\n" TINY_MODEL);
    cr_expect(r->data.end_id == 1, "tiny-a's eos_token_id");
    recipe_free(r);
    bad("  eod_mask_loss: true\n" TINY_MODEL "  end_token: 320\n", "GLM.end_token|320");
}

Test(recipe, blends_datasets_by_weights_as_written)
{
    struct recipe *r = good("  data_path: [0.30, one, 7, 'two words']\n" TINY_MODEL);
    cr_assert(r->data.sources == 2);
    cr_expect_str_eq(r->data.source[0].weight, "0.30");
    cr_expect_str_eq(r->data.source[1].path, "two words");
    recipe_free(r);
    r = good(TINY_MODEL "  data: one\n");
    cr_assert(r->data.sources == 1);
    cr_expect(r->data.source[0].weight == NULL);
    recipe_free(r);
    r = good("  data_path: a b c\n" TINY_MODEL);
    cr_assert(r->data.sources == 3 && !r->data.source[2].weight, "by their size");
    recipe_free(r);
    bad("  data_path: 1 a b\n" TINY_MODEL, "3 words|weight in front");
    bad("  data_path: 1 a b c\n" TINY_MODEL, "weight above 0 in front of 'c', found 'b'");
    bad("  data_path: 0 b\n" TINY_MODEL, "weight above 0");
    bad("  data_path: a\n" TINY_MODEL "  data: b\n",
        "GLM.data|ARGS.data_path|one of them");
    bad("  mock_data: true\n" TINY_MODEL "  data: b\n", "mock_data|GLM.data");
}

Test(recipe, has_a_canonical_text_that_parses_to_itself)
{
    char one[1 << 14];
    struct recipe *const r =
        good("  data_path: [1, 'a b', 2, c]\n  lr_warmup_fraction: 0.1\n"
             "  muon_coefficient_type: simple\n" TINY_MODEL
             "  muon_layout:\n    - {tensor: '*.q_b_proj.weight', rows: [24, 16],"
             " policy: [each, gathered]}\n    - {tensor: 'lm_head*', policy: adamw}\n");
    struct recipe *const again = read_with(r->text, NULL);
    cr_expect_str_eq(again->text, r->text);
    cr_expect_arr_eq(again->sha256, r->sha256, 32);
    cr_expect(again->optimizer.layouts == 2 && again->optimizer.layout[0].rows[1] == 16);
    cr_expect(again->optimizer.layout[0].policy[1] == RECIPE_GATHERED);
    cr_expect(again->optimizer.layout[1].policy[0] == RECIPE_ADAMW);
    snprintf(one, sizeof one, "%s", r->text);
    recipe_free(again);
    recipe_free(r);
    /* Other spelling and order, the same text. */
    struct recipe *const other = read_with(
        "GLM: {muon_layout: [{tensor: '*.q_b_proj.weight', rows: [24, 16], policy: "
        "[each, gathered]},"
        " {tensor: 'lm_head*', policy: [adamw]}], model: fixtures/configs/tiny-a.json}\n"
        "MODEL_ARGS: {--lr: 0.001, train_iters: +30, seq_length: 64, global_batch_size: "
        "4,"
        " micro_batch_size: 2, muon_coefficient_type: 'simple', data_path: [1, 'a b', 2, "
        "c],"
        " lr_warmup_fraction: 10e-2}\n",
        NULL);
    cr_expect_str_eq(other->text, one);
    recipe_free(other);
}

/* YAML has escapes for characters that it does not take as they are: a canonical text needs them too. */
Test(recipe, odd_characters_of_a_path_read_back)
{
    static const char *const odd[] = {"\\x01", "\\x7f", "\\x81", "\\x85", "\\x9f",
        "\\xa0", "\\u2027", "\\u2028", "\\u2029", "\\ufeff", "\\ufffd", "\\ufffe",
        "\\uffff", "\\U0010ffff", "\\\"", "\\\\", "\\n", "\\t"};
    for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++) {
        char lines[128];
        snprintf(
            lines, sizeof lines, "  data_path: [\"a %s b\", c]\n" TINY_MODEL, odd[i]);
        struct recipe *const r = good(lines);
        struct recipe *const again = read_with(r->text, NULL);
        cr_expect_str_eq(again->text, r->text, "%s", odd[i]);
        cr_expect_str_eq(
            again->data.source[0].path, r->data.source[0].path, "%s", odd[i]);
        recipe_free(again);
        recipe_free(r);
    }
}

Test(recipe, numbers_read_back_bit_for_bit)
{
    static const double numbers[] = {0.1, 1.0 / 3, 5e-324, 2.2250738585072014e-308,
        0.30000000000000004, 123456.7890123456789, 1e-5};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        char lines[128];
        snprintf(lines, sizeof lines, "  min_lr: 0\n  adam_eps: %.17g\n" TINY_MODEL,
            numbers[i] > 1 ? 1 / numbers[i] : numbers[i]);
        struct recipe *const r = good(lines);
        const double read = strtod(text_of(r, "adam_eps"), NULL);
        cr_expect(
            memcmp(&read, &r->optimizer.adam_eps, 8) == 0, "%s", text_of(r, "adam_eps"));
        recipe_free(r);
    }
}

Test(recipe, values_are_overruled_by_set)
{
    const char *const set[] = {"lr=2e-3", "GLM.keep_last=5", "ARGS.train_iters=null",
        "train-samples=80", "data=[1, x, 2, y]"};
    const struct recipe_options o = {.set = set, .sets = 5};
    struct recipe *const r = read_with(TINY TINY_MODEL, &o);
    cr_expect_float_eq(r->schedule.lr, 2e-3, 0);
    cr_expect(r->run.keep_last == 5 && r->batch.steps == 20 && r->data.sources == 2);
    cr_expect(recipe_find(r, "lr")->origin == RECIPE_SET);
    recipe_free(r);
    static const struct {
        const char *set, *words;
    } wrong[] = {{"lr", "KEY=VALUE"}, {"=3", "KEY=VALUE"},
        {"lrr=3", "unknown key 'lrr'|'lr'"},
        {"lr=fast", "--set: key ARGS.lr|a number|'fast'"},
        {"seed=4294967296", "from 0 to 4294967295|'4294967296'"}, {"lr={a: 1}", "a map"},
        {"GLM.lr=3", "unknown"}, {"lr=[", "lr=["}, {"lr=1\nmin_lr: 3", "one value"}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        const struct recipe_options one = {.set = &wrong[i].set, .sets = 1};
        refused(TINY TINY_MODEL, &one, GLM_EUSAGE, wrong[i].words);
    }
    const char *const unknown = "mtp_num_layer";
    const struct recipe_options ignore = {.ignore = &unknown, .ignores = 1};
    refused(TINY TINY_MODEL, &ignore, GLM_EUSAGE, "did you mean 'mtp_num_layers'");
}

/* ---- what follows --------------------------------------------------------------------------------- */

Test(recipe, counts_the_schedule_in_samples)
{
    struct recipe *r =
        good("  lr_warmup_iters: 3\n  lr_decay_iters: 20\n  lr_decay_style: WSD\n"
             "  lr_wsd_decay_iters: 5\n" TINY_MODEL);
    cr_expect(r->schedule.warmup_samples == 12 && r->schedule.decay_samples == 80);
    cr_expect(r->schedule.wsd_samples == 20 && r->batch.samples == 120);
    cr_expect(r->batch.micro_batches == 2 && r->batch.steps == 30);
    recipe_free(r);
    r = good("  lr_warmup_fraction: 0.25\n" TINY_MODEL);
    cr_expect(r->schedule.warmup_samples == 30 && r->schedule.decay_samples == 120);
    recipe_free(r);
}

Test(recipe, layer_expressions_are_lists_products_and_sums)
{
    static const struct {
        const char *text, *layers;
    } rows[] = {{"([0]*2+[1]*3)", "00111"}, {"[0,1]*2 + [1]", "01011"},
        {"2*[0, 1]+[0]", "01010"}, {"([0]+[1]*1)*2+[1]", "01011"}, {"1", "11111"},
        {"2", "10101"}, {"[0]*0+[1]*5", "11111"}, {"[1,0,1,0,1]", "10101"},
        {"[]+[1]*5", "11111"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        bool is_moe[5];
        struct glm_error err = {0};
        cr_assert(recipe_layer_freq(rows[i].text, 5, is_moe, &err) == 0, "%s: %s",
            rows[i].text, err.text);
        for (int l = 0; l < 5; l++)
            cr_expect(
                is_moe[l] == (rows[i].layers[l] == '1'), "%s layer %d", rows[i].text, l);
    }
    static const char *const wrong[] = {"", "0", "-1", "[0]*2", "[0]*6", "[2]*5",
        "[1]*5 x", "[1]*5+", "[1", "(", "([1]*5", "[1]*99999999999999999999",
        "__import__('os')", "3*4", "[1]*[1]", "[1,]"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        bool is_moe[5];
        struct glm_error err = {0};
        cr_expect(
            recipe_layer_freq(wrong[i], 5, is_moe, &err) == GLM_EFORMAT, "%s", wrong[i]);
    }
}

Test(recipe, stages_choose_attention_and_indexer_loss)
{
    struct recipe *r = good("  dsa_indexer_loss_coeff: 0.01\n  "
                            "dsa_indexer_use_sparse_loss: true\n" TINY_MODEL);
    cr_expect(r->train.stage == RECIPE_SPARSE_JOINT
        && r->train.indexer_loss == RECIPE_LOSS_SPARSE);
    recipe_free(r);
    r = good("  dsa_indexer_loss_coeff: 0.01\n" TINY_MODEL "  stages: indexer_warmup\n");
    cr_expect(r->train.indexer_loss == RECIPE_LOSS_DENSE && r->train.indexer_trainable);
    recipe_free(r);
    r = good(TINY_MODEL "  stages: rl_safe\n");
    cr_expect(!r->train.indexer_trainable && r->train.indexer_loss == RECIPE_LOSS_OFF);
    recipe_free(r);
    bad("  dsa_indexer_loss_coeff: 1\n" TINY_MODEL,
        "dsa_indexer_use_sparse_loss|indexer_warmup");
    bad("  dsa_indexer_loss_coeff: 1\n" TINY_MODEL "  stages: dense\n",
        "stage dense has no indexer");
    bad(TINY_MODEL "  stages: indexer_warmup\n", "dsa_indexer_loss_coeff|nothing else");
    bad("  dsa_indexer_loss_coeff: 1\n" TINY_MODEL
        "  stages: indexer_warmup\n  indexer_trainable: false\n",
        "indexer_trainable");
}

Test(recipe, runs_go_where_it_says)
{
    struct recipe *r = good(TINY_MODEL);
    cr_expect_str_eq(r->run.run_dir, "r.run");
    cr_expect_str_eq(r->run.save, "r.run");
    recipe_free(r);
    r = good("  save: elsewhere\n" TINY_MODEL);
    cr_expect_str_eq(r->run.run_dir, "elsewhere");
    recipe_free(r);
    r = good("  save: a\n" TINY_MODEL "  run_dir: b\n");
    cr_expect_str_eq(r->run.run_dir, "b");
    cr_expect_str_eq(r->run.save, "a");
    recipe_free(r);
}

/* ---- refusals ---------------------------------------------------------------------------------------- */

Test(recipe, contradictions_name_both_sides)
{
    bad("  train_samples: 4\n" TINY_MODEL, "r.yaml:6:|train_iters|train_samples");
    bad("  global_batch_size: 5\n" TINY_MODEL, "global_batch_size' is there twice");
    bad("  lr_warmup_samples: 4\n" TINY_MODEL,
        "r.yaml:7:|lr_warmup_samples|train_iters|lr_warmup_iters");
    bad("  lr_decay_samples: 4\n" TINY_MODEL, "lr_decay_samples|lr_decay_iters");
    bad("  lr_warmup_iters: 2\n  lr_warmup_fraction: 0.1\n" TINY_MODEL,
        "lr_warmup_fraction|lr_warmup_iters");
    bad("  lr_warmup_iters: 30\n" TINY_MODEL, "120 samples|not shorter");
    bad("  lr_decay_style: WSD\n" TINY_MODEL, "lr_wsd_decay_iters|WSD");
    bad("  lr_decay_style: WSD\n  lr_wsd_decay_iters: 31\n" TINY_MODEL, "does not fit");
    bad("  min_lr: 1\n" TINY_MODEL, "min_lr|exceeds lr");
    bad("  weight_decay_incr_style: cosine\n" TINY_MODEL,
        "start_weight_decay and end_weight_decay");
    bad("  start_weight_decay: 0.1\n" TINY_MODEL, "start_weight_decay|constant");
    bad("  bf16: true\n  fp16: true\n" TINY_MODEL, "fp16");
    bad("  eval_interval: 5\n  split: '1,0,0'\n" TINY_MODEL,
        "eval_interval|split|GLM.eval");
    bad("  split: 'a,b'\n" TINY_MODEL, "split|969,30,1");
    bad("  split: '0,1'\n" TINY_MODEL, "split");
    bad(TINY_MODEL "  load: x\n", "GLM.model|GLM.load");
    const char *const set = "global_batch_size=5";
    const struct recipe_options o = {.set = &set, .sets = 1};
    refused(TINY TINY_MODEL, &o, GLM_EFORMAT, "global_batch_size|5|micro_batch_size = 2");
    const char *const longer = "seq_length=257";
    const struct recipe_options l = {.set = &longer, .sets = 1};
    refused(TINY TINY_MODEL, &l, GLM_EFORMAT, "257|max_position_embeddings = 256");
}

Test(recipe, must_agree_with_the_configuration)
{
    struct recipe *const r =
        good("  num_layers: 8\n  moe_layer_freq: '[0]*3+[1]*5'\n  hidden_size: 160\n"
             "  dsa_indexer_topk_freq: 4\n  dsa_indexer_skip_topk_offset: 3\n"
             "  mtp_num_layers: 0\n" TINY_MODEL);
    cr_expect(
        r->train.mtp_depth == 0 && r->config.num_mtp_layers == 1, "stored, not trained");
    recipe_free(r);
    bad("  num_layers: 9\n" TINY_MODEL,
        "ARGS.num_layers|9|tiny-a.json|num_hidden_layers = 8");
    bad("  rotary_base: 10000\n" TINY_MODEL, "rotary_base|10000|rope_theta = 8000000");
    bad("  moe_layer_freq: '[0]*2+[1]*6'\n" TINY_MODEL, "layer 2 is MoE here, dense in");
    bad("  moe_layer_freq: '[0]*3+[1]*4'\n" TINY_MODEL, "moe_layer_freq|7 layers|8");
    bad("  dsa_indexer_topk_freq: 4\n  dsa_indexer_skip_topk_offset: 2\n" TINY_MODEL,
        "layer 2|shares");
    bad("  vocab_size: 32000\n" TINY_MODEL, "vocab_size|320");
}

Test(recipe, without_a_configuration_names_the_first_size_that_is_missing)
{
    bad("", "num_layers|missing|GLM.model");
    bad("  num_layers: 4\n", "hidden_size|missing");
}

Test(recipe, unknown_keys_name_the_nearest)
{
    bad("  num_layer: 4\n",
        "r.yaml:7:|unknown key 'num_layer'|did you mean 'num_layers'");
    bad("  adam_beta_2: 4\n", "did you mean 'adam_beta2'");
    bad("  zxcvbnmqwertyuiop: 4\n", "unknown key|glm-recipe(5)");
    bad("  run_dir: x\n", "belongs into GLM");
    bad("ARG:\n  lr: 1\n", "unknown section 'ARG'|'ARGS'");
    refused("lr: 1\n", NULL, GLM_EFORMAT, "unknown section 'lr'|under ARGS: or GLM:");
    refused(TINY TINY_MODEL "MODEL_CONFIG:\n  x: 1\n", NULL, GLM_EFORMAT,
        "MODEL_CONFIG|--ignore-key");
    const char *const section = "MODEL_CONFIG";
    const struct recipe_options o = {.ignore = &section, .ignores = 1};
    recipe_free(read_with(TINY TINY_MODEL "MODEL_CONFIG:\n  x: 1\n", &o));
}

Test(recipe, values_of_the_wrong_kind_say_what_was_expected)
{
    bad("  seed: 1.5\n", "r.yaml:7: key ARGS.seed|whole number|'1.5'");
    bad("  seed: -1\n", "from 0 to 4294967295|'-1'");
    bad("  seed: 99999999999999999999\n", "whole number");
    bad("  clip_grad: nan\n", "a number|'nan'");
    bad("  clip_grad: 0x10\n", "a number");
    bad("  clip_grad: [1]\n", "a list");
    bad("  bf16: 1\n", "true or false|'1'");
    bad("  lr_decay_style: Cosine\n", "constant|linear|cosine");
    bad("  data_path: {a: b}\n", "a map");
    bad("  hidden_dropout: 0.1\n" TINY_MODEL, "not built: ARGS.hidden_dropout: 0.1");
    bad("  normalization: LayerNorm\n" TINY_MODEL,
        "not built: ARGS.normalization: LayerNorm");
    bad("  load: x\n" TINY_MODEL, "not built: ARGS.load");
    bad(TINY_MODEL "  canonical: true\n", "not built: GLM.canonical: true");
    bad(TINY_MODEL "  muon_layout: [{tensor: x, rows: [1], policy: [each, each]}]\n",
        "policy");
    bad(TINY_MODEL "  muon_layout: [{rows: [1]}]\n", "tensor");
    bad(TINY_MODEL "  muon_layout: [{tensor: x, row: [1]}]\n", "unknown key 'row'");
    bad(TINY_MODEL "  muon_layout: [{tensor: x, rows: [0]}]\n", "rows");
    bad(TINY_MODEL "  muon_layout: x\n", "a list of");
}

Test(recipe, flags_that_are_off_are_no_obstacle)
{
    recipe_free(good("  finetune: false\n  fp8: null\n  mtp_detach_heads: false\n"
                     "  moe_router_force_load_balancing: False\n" TINY_MODEL));
}

Test(recipe, yaml_that_hides_something_is_refused)
{
    refused("ARGS: &a\n  lr: 1\n", NULL, GLM_EFORMAT, "r.yaml:1|anchor");
    refused("ARGS:\n  lr: !!int 1\n", NULL, GLM_EFORMAT, "r.yaml:2|tag");
    refused("ARGS:\n  lr: *x\n", NULL, GLM_EFORMAT, "r.yaml:2|alias");
    refused("ARGS:\n  lr: 1\n---\nGLM:\n", NULL, GLM_EFORMAT, "second document");
    refused("ARGS:\n  lr: 1\n  lr: 2\n", NULL, GLM_EFORMAT,
        "r.yaml:3|'lr' is there twice|line 2");
    refused("ARGS:\n  muon_nesterov: true\n  muon_use_nesterov: true\n", NULL,
        GLM_EFORMAT, "muon_nesterov is there twice, first in line 2");
    refused("ARGS:\n  [a]: 1\n", NULL, GLM_EFORMAT, "a key must be a word");
    refused("ARGS: [1\n", NULL, GLM_EFORMAT, "not YAML");
    refused("- 1\n", NULL, GLM_EFORMAT, "ARGS: and GLM:");
    refused("ARGS: 3\n", NULL, GLM_EFORMAT, "a map of keys");
    refused("", NULL, GLM_EFORMAT, "num_layers");
    char deep[200] = "ARGS: ";
    memset(deep + 6, '[', 100);
    refused(deep, NULL, GLM_EFORMAT, "deep");
    struct glm_error err = {0};
    struct recipe *r;
    cr_expect(
        recipe_parse(&r, "r", "ARGS: {\"a\\0b\": 1}", 17, NULL, &err) == GLM_EFORMAT);
    cr_expect(strstr(err.text, "NUL"), "%s", err.text);
    err = (struct glm_error){0};
    cr_expect(recipe_read(&r, "no/such/recipe", NULL, &err) == GLM_EIO);
}

Test(recipe, starts_from_a_checkpoints_configuration)
{
    struct glm_error err = {0};
    struct recipe *r;
    bad("GLM:\n  load: fixtures/configs\n", "GLM.load|no checkpoint|glm-import");
    const char *const text = TINY "GLM:\n  model: no/such/folder\n";
    cr_expect(recipe_parse(&r, "r", text, strlen(text), NULL, &err) == GLM_EIO);
    cr_expect(strstr(err.text, "no/such/folder"), "%s", err.text);
}

Test(recipe, keys_are_each_there_once_and_their_defaults_are_values)
{
    for (const struct recipe_key *k = recipe_keys; k->name; k++)
        for (const struct recipe_key *l = k + 1; l->name; l++)
            cr_expect(
                strcmp(k->name, l->name) != 0 || k->section != l->section, "%s", k->name);
}

/* ---- the manual ------------------------------------------------------------------------------------ */

Test(recipe, manual_has_every_key_and_its_default)
{
    size_t size;
    char *const manual = tmpdir_read("man/glm-recipe.5", &size);
    for (const struct recipe_key *k = recipe_keys; k->name; k++) {
        char item[200];
        snprintf(item, sizeof item, "\n.It Cm %s ", k->name);
        const char *const at = strstr(manual, item);
        snprintf(item, sizeof item, "\n.Cm %s ", k->name);
        cr_expect(at || strstr(manual, item), "%s is not in the manual", k->name);
        if (!at || !k->def)
            continue;
        snprintf(item, sizeof item, "Cm %s ", k->def);
        const char *const end = strstr(at + 1, "\n.It Cm "),
                          *const def = strstr(at, item);
        cr_expect(def && (!end || def < end), "%s: default %s", k->name, k->def);
    }
    free(manual);
}
