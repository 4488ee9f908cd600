/* config.json: what is read, the traps, and hostile values; each refusal names its key. */
#include "ckpt/config.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/digest.h"
#include "tests/support/models.h"

struct change {
    const char *from, *to;
};

/* The fixture with one piece of its text replaced (from NULL: as it is). */
static int parse(
    struct model_config *c, const char *name, struct change x, struct glm_error *err)
{
    char *text = models_config(name), *changed = NULL;
    *err = (struct glm_error){0};
    if (x.from) {
        const char *at = strstr(text, x.from);
        cr_assert_not_null(at, "%s", x.from);
        cr_assert(asprintf(&changed, "%.*s%s%s", (int)(at - text), text, x.to,
                      at + strlen(x.from))
            > 0);
    }
    const char *use = changed ? changed : text;
    const int rc = config_parse(c, "config.json", use, strlen(use), err);
    free(changed);
    free(text);
    return rc;
}

static int full_layers(const struct model_config *c)
{
    int n = 0;
    for (int64_t i = 0; i < c->num_hidden_layers; i++)
        n += c->layer_owns_indexer[i];
    return n;
}

Test(config, reads_glm_5_2)
{
    struct model_config c;
    struct glm_error err;
    cr_assert_eq(parse(&c, "glm-5.2", (struct change){0}, &err), 0, "%s", err.text);
    cr_assert(
        c.vocab_size == 154880 && c.hidden_size == 6144 && c.num_hidden_layers == 78);
    cr_assert(
        c.num_mtp_layers == 1 && c.n_routed_experts == 256 && c.num_experts_per_tok == 8);
    cr_assert(
        c.qk_nope_head_dim == 192 && c.qk_rope_head_dim == 64 && c.v_head_dim == 256);
    cr_assert(c.pad_token_id == 154820 && c.max_position_embeddings == 1048576);
    cr_assert_float_eq(c.rope_theta, 8e6, 0);
    cr_assert_float_eq(c.rms_norm_eps, 1e-5, 0);
    cr_assert_eq(c.dtype, GLM_BF16);
    cr_assert_str_eq(c.quant_method, "");
    static const int full[] = {
        0, 1, 2, 6, 10, 14, 18, 22, 26, 30, 34, 38, 42, 46, 50, 54, 58, 62, 66, 70, 74};
    cr_assert_eq(full_layers(&c), 21);
    for (size_t i = 0; i < 21; i++)
        cr_assert(c.layer_owns_indexer[full[i]]);
    for (int i = 0; i < 78; i++)
        cr_assert_eq(c.layer_is_dense[i], i < 3);
    char *text = models_config("glm-5.2");
    unsigned char sha[32];
    digest_of(text, strlen(text), sha);
    cr_assert_arr_eq(c.sha256, sha, 32);
    free(text);
    config_clear(&c);
    config_clear(&c);
}

Test(config, takes_the_schedule_from_any_of_its_sources)
{
    static const struct {
        const char *model;
        struct change x;
        int full;
    } rows[] = {
        {"tiny-a", {"\"indexer_types\"", "\"ignored\""}, 4},
        {"tiny-a", {"\"index_topk_freq\"", "\"ignored\""}, 4},
        {"tiny-a", {"\"index_skip_topk_offset\": 3", "\"ignored\": 3"}, 4},
        {"tiny-a",
            {"\"index_topk_pattern\": null", "\"index_topk_pattern\": \"FFFSSSFS\""}, 4},
        {"tiny-a",
            {"\"index_topk_pattern\": null",
                "\"index_topk_pattern\": "
                "[\"F\",\"F\",\"F\",\"S\",\"S\",\"S\",\"F\",\"S\"]"},
            4},
        {"tiny-c",
            {"\"model_type\"", "\"index_topk_pattern\": \"FSFSFSSS\", \"model_type\""},
            3},
        {"tiny-c",
            {"\"model_type\"",
                "\"index_topk_freq\": 4, \"index_skip_topk_offset\": 3, \"model_type\""},
            4},
        {"tiny-c",
            {"\"model_type\"",
                "\"index_topk_freq\": 2, \"index_skip_topk_offset\": 0, \"model_type\""},
            0},
        {"tiny-c", {"\"model_type\"", "\"index_topk_freq\": 1, \"model_type\""}, 8},
        {"tiny-c", {0}, 8},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct model_config c;
        struct glm_error err;
        const int rc = parse(&c, rows[i].model, rows[i].x, &err);
        if (rows[i].full == 0) { /* freq 2, offset 0 would start on a shared layer */
            cr_assert_eq(rc, GLM_EFORMAT);
            cr_assert_not_null(strstr(err.text, "layer 0 shares"), "%s", err.text);
            continue;
        }
        cr_assert_eq(rc, 0, "row %zu: %s", i, err.text);
        cr_assert_eq(full_layers(&c), rows[i].full, "row %zu", i);
        config_clear(&c);
    }
}

Test(config, springs_no_trap)
{
    static const struct change rows[] = {
        {"\"model_type\"", "\"head_dim\": 192, \"model_type\""},
        {"\"model_type\"", "\"head_dim\": -5, \"model_type\""},
        {"\"model_type\"", "\"num_experts\": 99, \"model_type\""},
        {"\"model_type\"", "\"num_local_experts\": 99, \"model_type\""},
        {"\"n_routed_experts\"", "\"num_experts\""},
        {"\"n_routed_experts\"", "\"num_local_experts\""},
        {"\"rope_theta\": 8000000,", "\"x\": 1,"},
        {"\"rope_parameters\"", "\"rope_theta\": 8000000.0, \"rope_scaling\""},
        {"\"first_k_dense_replace\": 3",
            "\"first_k_dense_replace\": 7"}, /* the list decides */
        {"\"mlp_layer_types\"", "\"ignored\""},
        {"\"dtype\": \"bfloat16\"", "\"torch_dtype\": \"torch.bfloat16\""},
        {"\"dtype\": \"bfloat16\"", "\"dtype\": null"},
        {"\"moe_router_dtype\"", "\"layer_types\": 7, \"ignored\""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct model_config c;
        struct glm_error err;
        cr_assert_eq(parse(&c, "tiny-a", rows[i], &err), 0, "row %zu: %s", i, err.text);
        cr_assert(
            c.n_routed_experts == 8 && c.qk_rope_head_dim == 16 && c.dtype == GLM_BF16);
        for (int k = 0; k < 8; k++)
            cr_assert_eq(c.layer_is_dense[k], k < 3, "row %zu", i);
        config_clear(&c);
    }
}

Test(config, reads_types_and_quantisation)
{
    static const struct {
        const char *json, *method;
        int64_t block[2];
    } rows[] = {
        {"{\"quant_method\": \"fp8\", \"weight_block_size\": [16, 16]}", "fp8", {16, 16}},
        {"{\"quant_method\": \"fp8\", \"scale_fmt\": \"ue8m0\"}", "fp8", {0, 0}},
        {"{\"quant_method\": \"fp8\", \"weight_block_size\": [1, 32]}", "mxfp8", {1, 32}},
        {"{\"quant_method\": \"mxfp8\"}", "mxfp8", {0, 0}},
        {"{\"quant_method\": \"MXFP8\", \"group_size\": 32}", "mxfp8", {1, 32}},
        {"{\"quant_method\": \"modelopt\", \"quant_algo\": \"MXFP8\"}", "mxfp8", {0, 0}},
        {"null", "", {0, 0}},
    };
    struct model_config c;
    struct glm_error err;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char to[256];
        snprintf(
            to, sizeof to, "\"quantization_config\": %s, \"model_type\"", rows[i].json);
        cr_assert_eq(parse(&c, "tiny-a", (struct change){"\"model_type\"", to}, &err), 0,
            "%s", err.text);
        cr_assert_str_eq(c.quant_method, rows[i].method);
        cr_assert_arr_eq(c.quant_block, rows[i].block, sizeof c.quant_block);
        config_clear(&c);
    }
    cr_assert_eq(
        parse(&c, "tiny-a", (struct change){"\"bfloat16\"", "\"float32\""}, &err), 0);
    cr_assert_eq(c.dtype, GLM_F32);
    config_clear(&c);
}

Test(config, refuses_by_the_name_of_the_key)
{
    static const struct {
        struct change x;
        const char *says[2];
    } rows[] = {
        {{"\"hidden_size\": 160", "\"hidden_size\": -1"}, {"'hidden_size'", "found -1"}},
        {{"\"hidden_size\": 160", "\"hidden_size\": 0"}, {"'hidden_size'", "found 0"}},
        {{"\"hidden_size\": 160", "\"hidden_size\": 160.0"}, {"'hidden_size'", "160.0"}},
        {{"\"hidden_size\": 160", "\"hidden_size\": \"160\""},
            {"'hidden_size'", "\"160\""}},
        {{"\"hidden_size\": 160", "\"hidden_size\": 99999999999"},
            {"'hidden_size'", "99999999999"}},
        {{"\"hidden_size\": 160", "\"hidden_size\": 99999999999999999999"},
            {"'hidden_size'", "line 12"}},
        {{"\"hidden_size\": 160", "\"hidden_size\": 1e999"}, {"'hidden_size'", ""}},
        {{"\"hidden_size\": 160", "\"hidden_size\": null"}, {"'hidden_size'", "missing"}},
        {{"\"hidden_size\": 160",
             "\"hidden_size\": {\"a\": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, "
             "13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23]}"},
            {"'hidden_size'", "..."}},
        {{"\"num_hidden_layers\": 8", "\"num_hidden_layers\": 1000000"},
            {"'num_hidden_layers'", ""}},
        {{"\"num_nextn_predict_layers\": 1", "\"num_nextn_predict_layers\": -1"},
            {"'num_nextn_predict_layers'", ""}},
        {{"\"n_routed_experts\": 8", "\"n_routed_experts\": 0"},
            {"'n_routed_experts'", ""}},
        {{"\"n_routed_experts\": 8", "\"num_experts\": 8, \"num_local_experts\": 4"},
            {"num_experts", "num_local_experts"}},
        {{"\"n_routed_experts\": 8", "\"x\": 8"}, {"'n_routed_experts'", "missing"}},
        {{"\"num_experts_per_tok\": 2", "\"num_experts_per_tok\": 9"},
            {"'num_experts_per_tok'", ""}},
        {{"\"n_group\": 1", "\"n_group\": 3"}, {"'n_group'", "do not divide"}},
        {{"\"num_key_value_heads\": 4", "\"num_key_value_heads\": 2"},
            {"num_key_value_heads", "num_attention_heads"}},
        {{"\"qk_rope_head_dim\": 16", "\"qk_rope_head_dim\": 24"},
            {"qk_head_dim", "24 + 24"}},
        {{"\"attention_bias\": false", "\"attention_bias\": true"},
            {"'attention_bias'", ""}},
        {{"\"tie_word_embeddings\": false", "\"tie_word_embeddings\": 0"},
            {"'tie_word_embeddings'", "true or false"}},
        {{"\"rope_parameters\"", "\"rope_theta\": 5.0, \"rope_parameters\""},
            {"'rope_theta'", "rope_parameters.rope_theta"}},
        {{"\"rope_theta\": 8000000", "\"rope_theta\": -8000000"},
            {"rope_parameters", "'rope_theta'"}},
        {{"\"rms_norm_eps\": 1e-05", "\"rms_norm_eps\": \"x\""}, {"'rms_norm_eps'", ""}},
        {{"\"pad_token_id\": 0", "\"pad_token_id\": 320"},
            {"'pad_token_id'", "0 to 319"}},
        {{"\"dtype\": \"bfloat16\"", "\"dtype\": \"int4\""}, {"'dtype'", "int4"}},
        {{"\"model_type\": \"glm_moe_dsa\"", "\"model_type\": \"llama\""},
            {"'model_type'", "llama"}},
        {{"\"model_type\": \"glm_moe_dsa\"", "\"x\": 1"}, {"'model_type'", "nothing"}},
        {{"\"sparse\",", "\"spars\","}, {"'mlp_layer_types'", "layer 3"}},
        {{"\"sparse\",", ""}, {"'mlp_layer_types'", "= 8"}},
        {{"\"indexer_types\"", "\"indexer_types\": 3, \"x\""}, {"'indexer_types'", ""}},
        {{"\"index_topk_freq\": 4", "\"index_topk_freq\": 2"},
            {"'indexer_types'",
                "'index_topk_freq/index_skip_topk_offset' disagree at layer 4"}},
        {{"\"index_topk_freq\": 4", "\"index_topk_freq\": 1"},
            {"'indexer_types'", "layer 3"}},
        {{"\"index_topk_pattern\": null", "\"index_topk_pattern\": \"FFFFSSFS\""},
            {"'indexer_types'", "'index_topk_pattern' disagree at layer 3"}},
        {{"\"index_topk_pattern\": null", "\"index_topk_pattern\": \"FFFSSSF\""},
            {"'index_topk_pattern'", "7 characters"}},
        {{"\"index_topk_pattern\": null", "\"index_topk_pattern\": \"FFFSSSFX\""},
            {"'index_topk_pattern'", ""}},
        {{"\"index_topk_freq\": 4", "\"index_topk_freq\": 0"}, {"'index_topk_freq'", ""}},
        {{"\"model_type\"", "\"hidden_size\": 160, \"model_type\""},
            {"duplicate", "hidden_size"}},
        {{"\"model_type\"",
             "\"quantization_config\": {\"quant_method\": \"gptq\"}, \"model_type\""},
            {"quantization_config.quant_method", "gptq"}},
        {{"\"model_type\"", "\"quantization_config\": {}, \"model_type\""},
            {"quantization_config.quant_method", "nothing"}},
        {{"\"model_type\"",
             "\"quantization_config\": {\"quant_method\": \"fp8\", "
             "\"weight_block_size\": [128, -1]}, \"model_type\""},
            {"weight_block_size", "-1"}},
        {{"\"model_type\"",
             "\"quantization_config\": {\"quant_method\": \"fp8\", "
             "\"weight_block_size\": [128]}, \"model_type\""},
            {"weight_block_size", "two"}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct model_config c;
        struct glm_error err;
        cr_assert_eq(parse(&c, "tiny-a", rows[i].x, &err), GLM_EFORMAT, "row %zu", i);
        cr_assert_null(c.layer_is_dense, "cleared");
        cr_assert_eq(
            strncmp(err.text, "config.json: ", 13), 0, "row %zu: %s", i, err.text);
        for (int k = 0; k < 2; k++)
            cr_assert_not_null(
                strstr(err.text, rows[i].says[k]), "row %zu: %s", i, err.text);
    }
}

Test(config, refuses_a_frequency_without_its_offset)
{
    struct model_config c;
    struct glm_error err;
    cr_assert_eq(
        parse(&c, "tiny-c",
            (struct change){"\"model_type\"", "\"index_topk_freq\": 4, \"model_type\""},
            &err),
        GLM_EFORMAT);
    cr_assert_not_null(
        strstr(err.text, "'index_skip_topk_offset' is missing"), "%s", err.text);
}

Test(config, refuses_to_guess_which_layers_are_dense)
{
    struct model_config c;
    struct glm_error err;
    cr_assert_eq(
        parse(&c, "glm-5.1", (struct change){"\"first_k_dense_replace\"", "\"x\""}, &err),
        GLM_EFORMAT);
    cr_assert_not_null(strstr(err.text, "'first_k_dense_replace'"), "%s", err.text);
    cr_assert_eq(
        parse(&c, "glm-5.1",
            (struct change){"\"moe_layer_freq\": 1", "\"moe_layer_freq\": 2"}, &err),
        GLM_EFORMAT);
    cr_assert_not_null(strstr(err.text, "'moe_layer_freq'"), "%s", err.text);
}

Test(config, refuses_what_is_no_json_object)
{
    static const char *const texts[] = {"", " ", "[]", "3", "{", "{\"a\":}", "{} {}",
        "\xff", "{\"a\" 1}", "{\"model_type\": \"glm_moe_dsa\\u0000\"}"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct model_config c;
        struct glm_error err = {0};
        cr_assert_eq(config_parse(&c, "x/config.json", texts[i], strlen(texts[i]), &err),
            GLM_EFORMAT, "%s", texts[i]);
        cr_assert_eq(strncmp(err.text, "x/config.json: ", 15), 0, "%s", err.text);
    }
}

/* Whatever one byte is changed to, parsing ends and leaves nothing behind (run under ASan). */
Test(config, survives_every_changed_byte)
{
    char *text = models_config("tiny-a");
    const size_t n = strlen(text);
    for (size_t i = 0; i < n; i++)
        for (int k = 0; k < 3; k++) {
            struct model_config c;
            struct glm_error err = {0};
            const char old = text[i];
            text[i] = "\"9}"[k];
            const int rc = config_parse(&c, "config.json", text, n, &err);
            cr_assert(rc == 0 || rc == GLM_EFORMAT);
            config_clear(&c);
            config_parse(&c, "config.json", text, i, &err);
            config_clear(&c);
            text[i] = old;
        }
    free(text);
}
