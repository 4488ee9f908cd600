/* Scales and their weights: what belongs together, what it means, and what is refused. */
#include "tests/convert/hfcase.h"

/* ---- C: scales ------------------------------------------------------------------------------- */

#define SCALE "model.layers.2.self_attn.kv_a_proj_with_mqa.weight_scale_inv"

Test(hfdir, opens_block_scales_by_the_ceil_rule)
{
    make_form(TOY_FP8);
    const struct hfedit_tensor *t = &edit.tensors[hfedit_find(&edit, SCALE)];
    cr_assert_eq(t->shape[0], 5); /* 72 rows in blocks of 16 */
    struct hf_source *s = opens();
    cr_assert_str_eq(s->scale_suffix, ".weight_scale_inv");
    cr_assert_eq(s->scale_block[0], 16);
    cr_assert_eq(s->scale_block[1], 16);
    cr_assert_eq(s->scale_dtype, GLM_F32);
    cr_assert_eq(s->tensors, edit.count);
    int64_t member;
    const struct table_entry *e = table_find(s->table, KV_A, strlen(KV_A), &member);
    at_name(s, hfdir_place(s, e, 0, true), SCALE, 0);
    at_name(s, hfdir_place(s, e, 0, false), KV_A, 0);
    uint64_t bytes = 0;
    for (int64_t f = 0; f < s->file_count; f++)
        bytes += s->files[f].header.file_size - s->files[f].header.data_start;
    cr_assert_eq(s->bytes, bytes);
    hfdir_close(s);
    edit.tensors[hfedit_find(&edit, SCALE)].shape[0] = 4;
    hfedit_save(&edit);
    refused("1 tensors misshapen: " SCALE, "is [4,16], not [5,16]");
    done();
}

Test(field_reports, B_28_a_weight_without_scale_and_a_scale_without_weight_are_refused)
{
    make_form(TOY_FP8);
    hfedit_drop(&edit, SCALE);
    hfedit_save(&edit);
    refused("1 FP8 weights without their scale: " KV_A, "");
    done();
    make_form(TOY_FP8);
    hfedit_drop(&edit, KV_A);
    hfedit_save(&edit);
    refused("1 scales without their weight: " SCALE, "");
    done();
    make_form(TOY_FP8);
    edit.tensors[hfedit_find(&edit, KV_A)].dtype = GLM_BF16;
    hfedit_save(&edit);
    refused("1 weights with a scale that are not FP8: " KV_A, "");
    done();
}

Test(field_reports, B_31_the_suffix_scale_is_known_and_a_mixture_refused)
{
    make_form(TOY_FP8);
    cr_assert_gt(hfedit_rename(&edit, "", ".weight_scale_inv", ".scale"), 100);
    hfedit_save(&edit);
    struct hf_source *s = opens();
    cr_assert_str_eq(s->scale_suffix, ".scale");
    cr_assert_eq(s->tensors, edit.count);
    hfdir_close(s);
    done();
    make_form(TOY_FP8);
    hfedit_rename(&edit, "layers.5.", ".weight_scale_inv", ".scale");
    hfedit_save(&edit);
    refused("two names for scales in one model", ".scale (model.layers.5.");
    done();
    make_form(TOY_FP8); /* an unknown one is no scale, so its weight has none */
    hfedit_rename(&edit, SCALE, ".weight_scale_inv", ".weight_factor");
    hfedit_save(&edit);
    refused("extra tensors", "kv_a_proj_with_mqa.weight_factor");
    done();
}

Test(field_reports, B_32_weight_scale_means_what_the_configuration_says)
{
    make_form(TOY_FP8);
    hfedit_rename(&edit, "", ".weight_scale_inv", ".weight_scale");
    hfedit_save(&edit);
    struct hf_source *s = opens();
    cr_assert_str_eq(s->scale_suffix, ".weight_scale");
    cr_assert_eq(s->scale_block[0], 16);
    hfdir_close(s);
    hfedit_rename(&edit, "experts.3.", ".weight_scale", ".weight_scale_inv");
    hfedit_save(&edit);
    refused("two names for scales in one model", "end in .weight_scale_inv");
    refused("in .weight_scale (", "");
    hfedit_rename(&edit, "experts.3.", ".weight_scale_inv", ".weight_scale");
    hfedit_save(&edit);
    hfedit_json(dir, "config.json", NULL, "quantization_config", NULL);
    refused(
        "scales whose meaning is unknown, since config.json has no quantization_config",
        "");
    done();
}

Test(field_reports, B_34_a_block_size_is_never_guessed)
{
    make_form(TOY_FP8);
    hfedit_json(dir, "config.json", "quantization_config", "weight_block_size", NULL);
    refused("scales whose block size is unknown", "weight_block_size; it is not guessed");
    hfedit_json(dir, "config.json", "quantization_config", "weight_block_size",
        json_pack("[i,i]", 128, 128));
    refused("tensors misshapen", "weight_scale_inv");
    done();
}

Test(hfdir, opens_mx_scales_stored_as_e8m0_and_as_u8)
{
    for (int u8 = 0; u8 < 2; u8++) {
        make_form(u8 ? TOY_MX_U8 : TOY_MX_E8M0);
        struct hf_source *s = opens();
        cr_assert_str_eq(s->scale_suffix, ".weight_scale");
        cr_assert_eq(s->scale_block[0], 1);
        cr_assert_eq(s->scale_block[1], 32);
        cr_assert_eq(s->scale_dtype, GLM_F8_E8M0);
        int64_t member;
        const struct table_entry *e = table_find(s->table, KV_A, strlen(KV_A), &member);
        cr_assert_eq(hfdir_place(s, e, 0, true)->dtype, u8 ? GLM_U8 : GLM_F8_E8M0);
        hfdir_close(s);
        done();
    }
}

Test(hfdir, refuses_e5m2_weights_with_scales_which_no_checkpoint_holds)
{
    make_form(TOY_FP8);
    edit.tensors[hfedit_find(&edit, KV_A)].dtype = GLM_F8_E5M2;
    hfedit_save(&edit);
    refused("1 weights of F8_E5M2 with a scale, which must be F8_E4M3: " KV_A, "");
    done();
}

/* An element of its own for each scale is no block: a scale would look like a weight. */
Test(hfdir, refuses_scales_of_single_elements)
{
    make_form(TOY_FP8);
    for (int i = 0; i < edit.count; i++) { /* each scale gets its weight's shape */
        char weight[256];
        if (!table_scale_of(edit.tensors[i].name, strlen(edit.tensors[i].name),
                ".weight_scale_inv", weight, sizeof weight))
            continue;
        const struct hfedit_tensor *w = &edit.tensors[hfedit_find(&edit, weight)];
        memcpy(edit.tensors[i].shape, w->shape, sizeof w->shape);
    }
    hfedit_save(&edit);
    hfedit_json(dir, "config.json", "quantization_config", "weight_block_size",
        json_pack("[i,i]", 1, 1));
    refused("236 scales of blocks of 1x1 by weight_block_size in config.json", "");
    done();
}

Test(hfdir, refuses_a_vector_with_scales)
{
    static const char norm[] = "model.norm.weight";
    make_form(TOY_FP8);
    struct hfedit_tensor *const t = &edit.tensors[hfedit_find(&edit, norm)];
    const int64_t shape[1] = {t->shape[0]};
    t->dtype = GLM_F8_E4M3;
    hfedit_add(&edit, t->file, "model.norm.weight_scale_inv", GLM_F32, 1, shape);
    hfedit_save(&edit);
    refused("1 vectors with a scale, whose blocks are those of a matrix: ", norm);
    done();
}

Test(hfdir, refuses_scales_of_a_type_the_method_does_not_have)
{
    make_form(TOY_FP8);
    edit.tensors[hfedit_find(&edit, SCALE)].dtype = GLM_U8;
    hfedit_save(&edit);
    refused("1 scales of a type that is none for fp8", SCALE " (U8)");
    edit.tensors[hfedit_find(&edit, SCALE)].dtype = GLM_BF16;
    hfedit_save(&edit);
    refused("scales of another type than the others", "");
    done();
    make_form(TOY_MX_U8);
    edit.tensors[hfedit_find(
                     &edit, "model.layers.2.self_attn.kv_a_proj_with_mqa.weight_scale")]
        .dtype = GLM_F32;
    edit.tensors[hfedit_find(
                     &edit, "model.layers.2.self_attn.kv_a_proj_with_mqa.weight_scale")]
        .shape[1] = 8;
    hfedit_save(&edit);
    refused("1 scales of a type that is none for mxfp8", "(F32)");
    done();
}
