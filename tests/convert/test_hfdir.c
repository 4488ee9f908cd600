/* Opening a model directory: each way to be wrong is a sentence of its own, each right form is
 * accepted, and places point at the bytes they should. */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <criterion/criterion.h>

#include "convert/hfdir.h"
#include "tests/support/hfedit.h"
#include "tests/support/tmpdir.h"
#include "tests/support/toy.h"

#define INDEX "model.safetensors.index.json"

static char *dir;
static struct hfedit edit;

/* The T1 toy, headers only, in four files. */
static void make_form(enum toy_form form)
{
    const struct toy_options o = {.config = "fixtures/configs/t1.json", .files = 4, .form = form,
        .block = {16, 16}, .sparse = true};
    dir = tmpdir_new();
    cr_assert_eq(toy_write(dir, &o), 0, "%s", toy_error());
    hfedit_load(&edit, dir);
}

static void make(void)
{
    make_form(TOY_PLAIN);
}

static void done(void)
{
    hfedit_clear(&edit);
    tmpdir_remove(dir);
}

static struct hf_source *open_with(const struct hf_options *o)
{
    struct hf_source *s;
    struct glm_error err = {0};
    cr_assert_eq(hfdir_open(&s, dir, o, &err), 0, "%s", err.text);
    return s;
}

static struct hf_source *opens(void)
{
    return open_with(&(struct hf_options){.threads = 2});
}

static void fails_with(const struct hf_options *o, enum glm_code code, const char *a, const char *b)
{
    struct hf_source *s;
    struct glm_error err = {0};
    cr_assert_eq((int)hfdir_open(&s, dir, o, &err), (int)code, "code %d: %s", err.code, err.text);
    cr_assert_null(s);
    cr_assert(strstr(err.text, a), "wanted '%s', got '%s'", a, err.text);
    cr_assert(strstr(err.text, b), "wanted '%s', got '%s'", b, err.text);
}

static void refused(const char *a, const char *b)
{
    fails_with(&(struct hf_options){.threads = 2}, GLM_EFORMAT, a, b);
}

static void unusable(const int *layers, int layer_count, const int *experts, int expert_count,
    const char *sentence)
{
    fails_with(&(struct hf_options){.subset = {layers, layer_count, experts, expert_count}},
        GLM_EUSAGE, sentence, "");
}

static const char *file_of(const struct hfedit *h, const char *name)
{
    return h->files[h->tensors[hfedit_find(h, name)].file];
}

/* A file other than the tensor's. */
static const char *other_than(const struct hfedit *h, const char *name)
{
    return h->files[(h->tensors[hfedit_find(h, name)].file + 1) % h->file_count];
}

/* The place of a tensor by its own name in the source's headers. */
static void at_name(const struct hf_source *s, const struct hf_place *p, const char *name,
    uint64_t plus)
{
    cr_assert_geq(p->file, 0, "%s has no place", name);
    const struct st_header *h = &s->files[p->file].header;
    const struct st_tensor *t = st_find(h, name, strlen(name));
    cr_assert_not_null(t, "%s is not in %s", name, s->files[p->file].name);
    cr_assert_eq(p->offset, h->data_start + t->begin + plus, "%s", name);
    cr_assert_eq(p->dtype, t->dtype);
}

static bool warned(const struct hf_source *s, const char *sentence)
{
    for (int i = 0; i < s->warning_count; i++)
        if (strstr(s->warnings[i], sentence))
            return true;
    return false;
}

#define EXPERT "model.layers.1.mlp.experts.10.down_proj.weight"
#define KV_A "model.layers.2.self_attn.kv_a_proj_with_mqa.weight"

/* ---- what is right --------------------------------------------------------------------------- */

Test(hfdir, opens_a_model_and_places_every_tensor)
{
    make();
    struct hf_source *s = opens();
    cr_assert_eq(s->tensors, edit.count);
    cr_assert_eq(s->tensors, s->table->hf_tensors);
    cr_assert(s->has_mtp);
    cr_assert(!s->fused);
    cr_assert_str_eq(s->scale_suffix, "");
    uint64_t bytes = 0;
    for (int64_t f = 0; f < s->file_count; f++)
        bytes += s->files[f].header.file_size - s->files[f].header.data_start;
    cr_assert_eq(s->bytes, bytes);
    for (int64_t i = 0; i < s->table->count; i++)
        for (int64_t j = 0; j < table_members(&s->table->entries[i]); j++) {
            char name[256];
            table_member_name(&s->table->entries[i], j, name, sizeof name);
            at_name(s, hfdir_place(s, &s->table->entries[i], j, false), name, 0);
            cr_assert_eq(hfdir_place(s, &s->table->entries[i], j, true)->file, -1);
        }
    cr_assert_not_null(s->files[0].header_bytes);
    hfdir_close(s);
    done();
}

Test(hfdir, opens_one_file_without_index)
{
    const struct toy_options o = {.config = "fixtures/configs/t1.json", .sparse = true};
    dir = tmpdir_new();
    cr_assert_eq(toy_write(dir, &o), 0);
    struct hf_source *s = opens();
    cr_assert_eq(s->file_count, 1);
    hfdir_close(s);
    tmpdir_remove(dir);
}

Test(hfdir, opens_a_hub_cache_through_its_links)
{
    make();
    char *snapshot = tmpdir_new();
    for (int f = 0; f < edit.file_count; f++)
        cr_assert_eq(symlink(tmpdir_path(dir, "%s", edit.files[f]),
            tmpdir_path(snapshot, "%s", edit.files[f])), 0);
    cr_assert_eq(symlink(tmpdir_path(dir, INDEX), tmpdir_path(snapshot, INDEX)), 0);
    cr_assert_eq(symlink(tmpdir_path(dir, "config.json"), tmpdir_path(snapshot, "config.json")), 0);
    struct hf_source *s;
    struct glm_error err = {0};
    const struct hf_options o = {.threads = 1};
    cr_assert_eq(hfdir_open(&s, snapshot, &o, &err), 0, "%s", err.text);
    hfdir_close(s);
    unlink(tmpdir_path(dir, "%s", edit.files[1])); /* a blob that was not fetched */
    cr_assert_eq(hfdir_open(&s, snapshot, &o, &err), GLM_EFORMAT);
    cr_assert(strstr(err.text, "a link to a file that is not there"), "%s", err.text);
    tmpdir_remove(snapshot);
    done();
}

Test(field_reports, B_11_side_files_go_along_and_others_are_reported)
{
    make();
    tmpdir_write(tmpdir_path(dir, "tokenizer.model"), "t", 1);
    tmpdir_write(tmpdir_path(dir, "LICENSE"), "MIT", 3);
    tmpdir_write(tmpdir_path(dir, "extra.jinja"), "{}", 2);
    tmpdir_write(tmpdir_path(dir, "pytorch_model.bin"), "x", 1);
    tmpdir_write(tmpdir_path(dir, "modeling.py"), "x", 1);
    tmpdir_write(tmpdir_path(dir, ".gitattributes"), "x", 1);
    mkdir(tmpdir_path(dir, "original"), 0777);
    struct hf_source *s = opens();
    int seen = 0;
    for (int64_t i = 0; i < s->side_count; i++) {
        const char *p = s->sides[i].path;
        seen += !strcmp(p, "tokenizer.model") || !strcmp(p, "LICENSE") || !strcmp(p, "extra.jinja")
            || !strcmp(p, "config.json") || !strcmp(p, "model.safetensors.index.json");
        cr_assert(!strstr(p, "safetensors") || strstr(p, ".index.json"), "%s", p);
        cr_assert_neq(p[0], '.');
    }
    cr_assert_eq(seen, 5);
    cr_assert(warned(s, "original/: a sub-folder, ignored"));
    cr_assert(warned(s, "pytorch_model.bin: another format of the weights, ignored"));
    cr_assert(warned(s, "modeling.py: not a file that belongs to a model"));
    cr_assert_eq(s->warning_count, 3);
    hfdir_close(s);
    cr_assert_eq(truncate(tmpdir_path(dir, "LICENSE"), (256 << 20) + 1), 0);
    refused("LICENSE: 268435457 bytes are over", "");
    done();
}

Test(hfdir, says_what_a_folder_lacks_to_be_a_model)
{
    struct glm_error err = {0};
    struct hf_source *s;
    const struct hf_options o = {.threads = 1};
    make();
    cr_assert_eq(hfdir_open(&s, tmpdir_path(dir, "none"), &o, &err), GLM_EIO);
    glm_error_clear(&err);
    cr_assert_eq(hfdir_open(&s, tmpdir_path(dir, "config.json"), &o, &err), GLM_EFORMAT);
    cr_assert(strstr(err.text, "not a folder"), "%s", err.text);
    unlink(tmpdir_path(dir, "config.json"));
    refused("no config.json in it", "");
    done();
    dir = tmpdir_new();
    refused("no .safetensors file in it", "");
    tmpdir_remove(dir);
}

/* ---- A: tensors lost or invented ------------------------------------------------------------- */

Test(field_reports, B_01_a_missing_mtp_layer_is_an_error_unless_asked_for)
{
    make();
    struct hf_source *all = opens();
    const int64_t whole = all->tensors;
    hfdir_close(all);
    /* Asked for, with the layer there: exactly its names are left out. */
    const struct hf_options no_mtp = {.no_mtp = true, .threads = 1};
    struct hf_source *s = open_with(&no_mtp);
    const int dropped = hfedit_drop_like(&edit, ".layers.5.");
    cr_assert_gt(dropped, 40);
    cr_assert_eq(s->tensors, whole - dropped);
    cr_assert(!s->has_mtp);
    for (int64_t i = 0; i < s->table->count; i++)
        cr_assert_geq(hfdir_place(s, &s->table->entries[i], 0, false)->file, 0);
    hfdir_close(s);
    /* With the layer gone: the same, but without asking an error with names. */
    hfedit_save(&edit);
    s = open_with(&no_mtp);
    cr_assert_eq(s->tensors, whole - dropped);
    hfdir_close(s);
    refused("all of the MTP layer that config.json promises", "model.layers.5.");
    refused("--no-mtp", "");
    /* Only a part of it gone: that is not what transformers does. */
    done();
    make();
    hfedit_drop(&edit, "model.layers.5.eh_proj.weight");
    hfedit_save(&edit);
    refused("1 tensors missing: model.layers.5.eh_proj.weight", "");
    done();
}

/* The experts of layer 1 under one name; `from` names the projections, in order. */
static void stack(const char *from, const char *to)
{
    static const char *const projections[] = {"gate_proj", "up_proj", "down_proj"};
    int64_t shape[3] = {12, 0, 0};
    int file = 0;
    for (int p = 0; p < 3; p++) {
        if (!strstr(from, projections[p]))
            continue;
        for (int e = 0; e < 12; e++) {
            char name[256];
            snprintf(name, sizeof name, "model.layers.1.mlp.experts.%d.%s.weight", e,
                projections[p]);
            const struct hfedit_tensor *t = &edit.tensors[hfedit_find(&edit, name)];
            if (e == 0) {
                shape[1] += t->shape[0];
                shape[2] = t->shape[1];
            }
            file = t->file;
            hfedit_drop(&edit, name);
        }
    }
    hfedit_add(&edit, file, to, GLM_BF16, 3, shape);
}

Test(field_reports, B_02_stacked_experts_are_split)
{
    make();
    const int64_t count = edit.count;
    stack("down_proj", "model.layers.1.mlp.experts.down_proj.weight");
    hfedit_save(&edit);
    struct hf_source *s = opens();
    cr_assert_eq(s->tensors, count);
    int64_t member;
    const struct table_entry *e = table_find(s->table, EXPERT, strlen(EXPERT), &member);
    for (int64_t j = 0; j < 12; j++)
        at_name(s, hfdir_place(s, e, j, false), "model.layers.1.mlp.experts.down_proj.weight",
            (uint64_t)j * 256 * 80 * 2);
    hfdir_close(s);
    done();
}

Test(field_reports, B_44_fused_experts_are_gate_rows_then_up_rows)
{
    make();
    stack("gate_proj up_proj", "model.layers.1.mlp.experts.gate_up_proj");
    stack("down_proj", "model.layers.1.mlp.experts.down_proj");
    hfedit_save(&edit);
    struct hf_source *s = opens();
    cr_assert(s->fused);
    int64_t member;
    static const char *const names[] = {"model.layers.1.mlp.experts.gate_proj.weight",
        "model.layers.1.mlp.experts.up_proj.weight"};
    for (uint64_t half = 0; half < 2; half++) {
        const struct table_entry *e =
            table_find(s->table, names[half], strlen(names[half]), &member);
        for (uint64_t j = 0; j < 12; j++)
            at_name(s, hfdir_place(s, e, (int64_t)j, false),
                "model.layers.1.mlp.experts.gate_up_proj", (2 * j + half) * 80 * 256 * 2);
    }
    hfdir_close(s);
    done();
}

Test(hfdir, opens_the_fused_form_of_the_toy_with_as_many_tensors)
{
    make();
    const int64_t count = edit.count;
    done();
    const struct toy_options o = {.config = "fixtures/configs/t1.json", .files = 2, .fused = true,
        .sparse = true};
    dir = tmpdir_new();
    cr_assert_eq(toy_write(dir, &o), 0);
    struct hf_source *s = opens();
    cr_assert(s->fused);
    cr_assert_eq(s->tensors, count);
    hfdir_close(s);
    tmpdir_remove(dir);
}

Test(hfdir, refuses_an_expert_given_in_two_layouts)
{
    make();
    hfedit_add(&edit, 0, "model.layers.1.mlp.experts.down_proj", GLM_BF16, 3,
        (int64_t[]){12, 256, 80});
    hfedit_save(&edit);
    refused("tensors given more than once", "down_proj");
    done();
}

Test(hfdir, refuses_experts_of_two_types_in_one_stack)
{
    make();
    edit.tensors[hfedit_find(&edit, EXPERT)].dtype = GLM_F32;
    hfedit_save(&edit);
    refused("1 experts of another type than the first of their stack: " EXPERT, "");
    done();
}

Test(field_reports, B_07_an_indexer_in_the_wrong_layer_is_told_by_both_layers)
{
    make();
    int owners = 0;
    for (int i = 0; i < edit.count; i++)
        owners += strstr(edit.tensors[i].name, "indexer.wk.weight") != NULL;
    cr_assert_eq(owners, 4);
    struct hf_source *s = opens();
    hfdir_close(s);
    cr_assert_eq(hfedit_rename(&edit, "layers.2.self_attn.indexer", "layers.2", "layers.3"), 5);
    hfedit_save(&edit);
    refused("layer 2 lacks, layer 3 has one too many", "");
    done();
    make();
    hfedit_add(&edit, 0, "model.layers.4.self_attn.indexer.wk.weight", GLM_BF16, 2,
        (int64_t[]){32, 256});
    hfedit_save(&edit);
    refused("layer 4 has an indexer, but by config.json it shares", "indexer.wk.weight");
    done();
}

Test(field_reports, B_08_lost_layers_and_head_are_listed_and_counted)
{
    make();
    hfedit_drop(&edit, "lm_head.weight");
    const int dropped = hfedit_drop_like(&edit, ".layers.4.");
    hfedit_save(&edit);
    char want[64];
    snprintf(want, sizeof want, "%d tensors missing: model.layers.4.", dropped + 1);
    refused(want, ", …");
    done();
}

Test(field_reports, B_10_a_tied_head_needs_no_tensor_and_may_have_none)
{
    make();
    hfedit_json(dir, "config.json", NULL, "tie_word_embeddings", json_true());
    refused("extra tensors that the model does not have: lm_head.weight (config.json ties it)", "");
    hfedit_drop(&edit, "lm_head.weight");
    hfedit_save(&edit);
    struct hf_source *s = opens();
    cr_assert_eq(s->tensors, edit.count);
    hfdir_close(s);
    done();
}

Test(hfdir, tells_missing_extra_duplicate_and_misshapen_apart)
{
    make();
    hfedit_drop(&edit, EXPERT);
    hfedit_save(&edit);
    refused("1 tensors missing: " EXPERT, "");
    hfedit_add(&edit, 0, "model.layers.1.mlp.experts.12.down_proj.weight", GLM_BF16, 2,
        (int64_t[]){256, 80});
    hfedit_save(&edit);
    refused("1 tensors missing: " EXPERT, "1 extra that the model does not have: "
        "model.layers.1.mlp.experts.12.down_proj.weight in ");
    done();
    make();
    edit.tensors[hfedit_find(&edit, EXPERT)].shape[0] = 80;
    edit.tensors[hfedit_find(&edit, EXPERT)].shape[1] = 256;
    hfedit_save(&edit);
    refused("1 tensors misshapen: " EXPERT " in ", "is [80,256], not [256,80]");
    done();
    make();
    for (int i = 0; i < edit.file_count; i++)
        if (i != edit.tensors[hfedit_find(&edit, KV_A)].file) {
            hfedit_add(&edit, i, KV_A, GLM_BF16, 2, (int64_t[]){72, 256});
            break;
        }
    hfedit_save(&edit);
    unlink(tmpdir_path(dir, INDEX));
    refused("1 tensors given more than once: " KV_A " in ", " and ");
    done();
    make();
    hfedit_add(&edit, 0, "model.layers.0.rotary_emb.inv_freq", GLM_F32, 1, (int64_t[]){8});
    hfedit_save(&edit);
    refused("1 extra tensors that the model does not have: model.layers.0.rotary_emb.inv_freq", "");
    done();
}

Test(hfdir, does_not_take_shared_experts_for_experts)
{
    make();
    hfedit_add(&edit, 0, "model.layers.1.mlp.shared_experts.gate_up_proj", GLM_BF16, 3,
        (int64_t[]){12, 160, 256});
    hfedit_save(&edit);
    refused("extra tensors", "shared_experts.gate_up_proj");
    done();
}

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
    refused("scales whose meaning is unknown, since config.json has no quantization_config", "");
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
    edit.tensors[hfedit_find(&edit, "model.layers.2.self_attn.kv_a_proj_with_mqa.weight_scale")]
        .dtype = GLM_F32;
    edit.tensors[hfedit_find(&edit, "model.layers.2.self_attn.kv_a_proj_with_mqa.weight_scale")]
        .shape[1] = 8;
    hfedit_save(&edit);
    refused("1 scales of a type that is none for mxfp8", "(F32)");
    done();
}

/* ---- H: index and files ---------------------------------------------------------------------- */

Test(field_reports, B_19_index_names_a_tensor_the_file_lacks)
{
    make();
    hfedit_json(dir, INDEX, "weight_map", "model.layers.0.ghost", json_string(edit.files[0]));
    refused("weight_map names 'model.layers.0.ghost'", "the file does not have it, nor has any other");
    done();
}

Test(field_reports, B_19_index_lacks_a_tensor_the_file_has)
{
    make();
    hfedit_json(dir, INDEX, "weight_map", KV_A, NULL);
    refused("weight_map does not name '" KV_A "', which ", file_of(&edit, KV_A));
    done();
}

Test(field_reports, B_19_index_points_to_the_wrong_file)
{
    make();
    hfedit_json(dir, INDEX, "weight_map", KV_A, json_string(other_than(&edit, KV_A)));
    refused("weight_map says that '" KV_A "' is in ", "but it is in ");
    done();
}

Test(hfdir, refuses_a_tensor_in_two_files)
{
    make();
    const int other = (edit.tensors[hfedit_find(&edit, KV_A)].file + 1) % edit.file_count;
    hfedit_add(&edit, other, KV_A, GLM_BF16, 2, (int64_t[]){72, 256});
    hfedit_save(&edit);
    refused("'" KV_A "' is in two files, ", " and ");
    done();
}

Test(field_reports, B_20_a_missing_file_is_refused)
{
    make();
    cr_assert_eq(unlink(tmpdir_path(dir, "%s", edit.files[2])), 0);
    refused(edit.files[2], "which weight_map names for");
    refused("is not there", "");
    done();
}

Test(field_reports, B_22_a_truncated_file_is_refused_with_both_lengths)
{
    make();
    struct stat st;
    const char *path = tmpdir_path(dir, "%s", edit.files[1]);
    cr_assert_eq(stat(path, &st), 0);
    cr_assert_eq(truncate(path, st.st_size - 1), 0);
    char want[64];
    snprintf(want, sizeof want, "%jd are there", (intmax_t)st.st_size - 1);
    refused("the file is cut", want);
    done();
}

Test(field_reports, B_23_a_file_the_index_does_not_name_is_refused)
{
    make();
    struct hfedit more = {.dir = strdup(dir), .files = {strdup("model-old.safetensors")},
        .file_count = 1};
    hfedit_add(&more, 0, "model.norm.weight", GLM_BF16, 1, (int64_t[]){256});
    hfedit_save(&more);
    hfedit_clear(&more);
    refused("the file model-old.safetensors is there but weight_map does not name it", "");
    done();
}

Test(field_reports, B_25_a_wrong_total_size_is_a_warning)
{
    make();
    struct hf_source *s = opens();
    cr_assert_eq(s->warning_count, 0);
    hfdir_close(s);
    hfedit_json(dir, INDEX, "metadata", "total_size", json_integer(12345));
    s = opens();
    cr_assert(warned(s, "total_size says 12345 bytes, the tensors have "));
    hfdir_close(s);
    hfedit_json(dir, INDEX, "metadata", "total_size", NULL);
    s = opens();
    cr_assert_eq(s->warning_count, 0);
    hfdir_close(s);
    done();
}

Test(field_reports, B_26_any_style_of_file_names_works)
{
    static const char *const styles[] = {"model.safetensors-%05d-of-00004.safetensors",
        "model-%05d-of-000004.safetensors", "%d.safetensors", "model.safetensors-%05d-of-00004"};
    for (size_t i = 0; i < sizeof styles / sizeof styles[0]; i++) {
        make();
        for (int f = 0; f < edit.file_count; f++) {
            char name[128];
            unlink(tmpdir_path(dir, "%s", edit.files[f]));
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
            snprintf(name, sizeof name, styles[i], f + 1);
#pragma GCC diagnostic pop
            free(edit.files[f]);
            edit.files[f] = strdup(name);
        }
        hfedit_save(&edit);
        struct hf_source *s = opens();
        cr_assert_eq(s->file_count, 4);
        cr_assert_eq(s->warning_count, 0);
        hfdir_close(s);
        done();
    }
}

static void index_refused(const char *text, const char *sentence)
{
    tmpdir_write(tmpdir_path(dir, INDEX), text, strlen(text));
    refused(INDEX, sentence);
}

Test(hfdir, refuses_index_files_that_are_none)
{
    make();
    index_refused("", "the text ends, '{' expected");
    index_refused("[]", "expected '{'");
    index_refused("{}", "no weight_map in it");
    index_refused("{\"weight_map\":[]}", "weight_map: ");
    index_refused("{\"weight_map\":{\"a\":1}}", "a string expected");
    index_refused("{\"weight_map\":{},\"weight_map\":{}}", "weight_map is given twice");
    index_refused("{\"weight_map\":{\"\xff\":\"x\"}}", "not UTF-8");
    index_refused("{\"weight_map\":{}} x", "only white space after");
    index_refused("{\"metadata\":{", "has no end");
    index_refused("{\"metadata\":{\"a\"}}", "'metadata': not JSON");
    index_refused("{\"weight_map\":{}}", "weight_map does not name it");
    done();
}

Test(hfdir, refuses_a_name_the_map_gives_twice)
{
    make();
    size_t size;
    char *text = tmpdir_read(tmpdir_path(dir, INDEX), &size), *more = malloc(size + 256);
    const char *map = strstr(text, "\"weight_map\": {") + strlen("\"weight_map\": {");
    const int n = snprintf(more, size + 256, "%.*s\"%s\":\"%s\",%s", (int)(map - text), text, KV_A,
        file_of(&edit, KV_A), map);
    tmpdir_write(tmpdir_path(dir, INDEX), more, (size_t)n);
    refused("weight_map names '" KV_A "' twice", "");
    free(text);
    free(more);
    done();
}

Test(hfdir, refuses_two_indexes_unless_one_has_the_usual_name)
{
    make();
    size_t size;
    char *text = tmpdir_read(tmpdir_path(dir, INDEX), &size);
    tmpdir_write(tmpdir_path(dir, "a.safetensors.index.json"), text, size);
    struct hf_source *s = opens();
    cr_assert(warned(s, "a.safetensors.index.json: a second index, ignored"));
    hfdir_close(s);
    unlink(tmpdir_path(dir, INDEX));
    s = opens();
    hfdir_close(s);
    tmpdir_write(tmpdir_path(dir, "b.safetensors.index.json"), text, size);
    refused("two index files", "remove one");
    free(text);
    done();
}

/* ---- K: names -------------------------------------------------------------------------------- */

Test(field_reports, B_71_names_that_leave_the_folder_are_refused)
{
    static const struct { const char *name, *trouble; } names[] = {
        {"../x.safetensors", "leads out of the folder"}, {"a/../../x", "leads out of the folder"},
        {"..", "leads out of the folder"}, {"/etc/passwd", "is absolute"},
        {"//server/share/x", "is absolute"}, {"\\\\server\\share\\x", "holds a backslash"},
        {"..\\x", "holds a backslash"}, {"sub/x.safetensors", "lies in a sub-folder"},
        {"C:x", "holds a colon"}, {"NUL", "is reserved"}, {"con.safetensors", "is reserved"},
        {"COM1.safetensors", "is reserved"}, {"x.", "ends in a dot"}, {"x ", "ends in a dot or a space"},
        {"", "is empty"}, {"a\nb", "holds a control character"}};
    make();
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *trouble = hfdir_name_trouble(names[i].name, strlen(names[i].name));
        cr_assert_not_null(trouble, "'%s' was accepted", names[i].name);
        cr_assert(strstr(trouble, names[i].trouble), "'%s': %s", names[i].name, trouble);
        hfedit_json(dir, INDEX, "weight_map", KV_A, json_string(names[i].name));
        refused("weight_map sends '" KV_A "' to the file ", names[i].trouble);
    }
    cr_assert_not_null(hfdir_name_trouble("a\xff", 2));
    cr_assert_null(hfdir_name_trouble("a..b.json", 9));
    cr_assert_null(hfdir_name_trouble("console.json", 12));
    cr_assert_null(hfdir_name_trouble("com.json", 8));
    done();
    make();
    tmpdir_write(tmpdir_path(dir, "back\\slash.json"), "{}", 2);
    refused("the file name 'back\\slash.json' holds a backslash", "");
    unlink(tmpdir_path(dir, "back\\slash.json"));
    tmpdir_write(tmpdir_path(dir, "aux.json"), "{}", 2);
    refused("the file name 'aux.json' is reserved", "");
    done();
}

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
    static const char *const bad[] = {"", ",", "1,", "-1", "3-1", "1-", "a", "1 ,2", "99999999999",
        "1,1", "0-3,2", "1-2-3", "0x1"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        glm_error_clear(&err);
        cr_assert_eq(hf_list_parse("--layers", bad[i], &list, &count, &err), GLM_EUSAGE, "'%s'",
            bad[i]);
        cr_assert(strstr(err.text, "--layers: "), "%s", err.text);
        cr_assert_null(list);
    }
}

Test(subset, renumbers_layers_and_cuts_experts)
{
    make();
    const int layers[] = {0, 2, 4, 5}, experts[] = {1, 4, 10, 11};
    struct hf_source *s = open_with(&(struct hf_options){
        .subset = {layers, 4, experts, 4}, .threads = 1});
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
            const char *rest = e->layer < 0 ? NULL : strchr(e->name + strlen("model.layers."), '.');
            if (rest)
                snprintf(old_name, sizeof old_name, "model.layers.%d%s", layers[e->layer], rest);
            else
                snprintf(old_name, sizeof old_name, "%s", e->name);
            old.name = old_name;
            table_member_name(&old, e->stack ? experts[j] : 0, name, sizeof name);
            at_name(s, hfdir_place(s, e, j, false), name, 0);
        }
        cr_assert_eq(hfdir_cut_rows(s, e), strstr(e->name, ".mlp.gate.") != NULL, "%s", e->name);
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
    struct hf_source *s = open_with(&(struct hf_options){.subset = {layers, 2, experts, 3}});
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
    unusable((int[]){3, 4}, 2, NULL, 0, "the first kept layer 3 has no index set of its own; legal "
        "first layers: 0,1,2");
    unusable((int[]){0, 1, 3}, 3, NULL, 0, "layer 3 uses the index set of layer 2, which is not "
        "kept: add 2 or leave out 3");
    unusable((int[]){0, 9}, 2, NULL, 0, "layer 9: the model has layers 0-5, the MTP layers last");
    unusable((int[]){1, 0}, 2, NULL, 0, "0 does not follow 1");
    unusable((int[]){5}, 1, NULL, 0, "at least one of the layers 0-4 must be kept");
    unusable(NULL, 0, (int[]){0}, 1, "1 kept, but each token chooses 2: keep 2 or more");
    unusable(NULL, 0, (int[]){0, 12}, 2, "expert 12: the model has experts 0-11");
    unusable(NULL, 0, (int[]){1, 1}, 2, "1 does not follow 1");
    fails_with(&(struct hf_options){.no_mtp = true, .subset = {(int[]){0, 5}, 2, NULL, 0}},
        GLM_EUSAGE, "--layers names the MTP layer 5, which --no-mtp leaves out", "");
    hfedit_json(dir, "config.json", NULL, "n_group", json_integer(4));
    hfedit_json(dir, "config.json", NULL, "topk_group", json_integer(2));
    unusable(NULL, 0, (int[]){0, 1, 2, 3, 4, 5}, 6,
        "6 kept do not divide into the 4 groups of the router: keep 4 or 8");
    unusable(NULL, 0, (int[]){0, 1, 2, 3}, 4, "4 kept give 1 for each of 4 groups");
    done();
}

/* ---- full size ------------------------------------------------------------------------------- */

Test(hfdir, opens_the_full_model_below_300_mb, .timeout = 120)
{
    const struct toy_options o = {.config = "fixtures/configs/glm-5.2.json", .files = 282,
        .sparse = true, .no_sides = true};
    dir = tmpdir_new();
    cr_assert_eq(toy_write(dir, &o), 0, "%s", toy_error());
    const pid_t child = fork();
    if (child == 0) {
        struct hf_source *s;
        struct glm_error err = {0};
        struct rusage usage;
        if (hfdir_open(&s, dir, &(struct hf_options){.threads = 2}, &err) != 0) {
            fprintf(stderr, "%s\n", err.text);
            _exit(1);
        }
        getrusage(RUSAGE_SELF, &usage);
        if (s->tensors != 59585 || s->file_count != 282)
            _exit(2);
        hfdir_close(s);
#ifdef __SANITIZE_ADDRESS__
        _exit(0);
#else
        _exit(usage.ru_maxrss < 300 * 1024 ? 0 : 3);
#endif
    }
    int status;
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert(WIFEXITED(status));
    cr_assert_eq(WEXITSTATUS(status), 0, "status %d", WEXITSTATUS(status));
    tmpdir_remove(dir);
}
