/* Opening a model directory: each right form is accepted, places point at the bytes they should,
 * and tensors lost or invented are told apart. */
#include "tests/convert/hfcase.h"
#include "tests/support/tiny.h"

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

Test(hfdir, opens_what_transformers_wrote)
{
    static const struct {
        const char *name;
        int64_t tensors;
        bool fused, no_mtp;
    } tiny[] = {{"fixtures/tiny-a-bf16", 296, false, false},
        {"fixtures/tiny-a-bf16-fused", 296, true, false},
        {"fixtures/tiny-a-bf16-nomtp", 249, false, true},
        {"fixtures/tiny-b-plain-bf16", 249, false, false},
        {"fixtures/tiny-c-f32", 316, false, false}};
    for (size_t i = 0; i < sizeof tiny / sizeof tiny[0]; i++) {
        struct glm_error err = {0};
        dir = tmpdir_new();
        cr_assert_eq(tiny_write(dir, tiny[i].name, &err), 0, "%s", err.text);
        if (tiny[i].no_mtp)
            refused("47 tensors missing, all of the MTP layer", "--no-mtp");
        struct hf_source *s = open_with(&(struct hf_options){.no_mtp = tiny[i].no_mtp});
        cr_assert_eq(s->fused, tiny[i].fused, "%s", tiny[i].name);
        cr_assert_eq(s->tensors, tiny[i].tensors, "%s", tiny[i].name);
        hfdir_close(s);
        tmpdir_remove(dir);
    }
}

Test(hfdir, opens_a_hub_cache_through_its_links)
{
    make();
    char *cache = tmpdir_new(), *snapshot = strdup(tmpdir_path(cache, "snapshots/c0"));
    cr_assert_eq(mkdir(tmpdir_path(cache, "snapshots"), 0777), 0);
    cr_assert_eq(mkdir(snapshot, 0777), 0);
    cr_assert_eq(symlink(dir, tmpdir_path(cache, "blobs")), 0);
    for (int f = 0; f < edit.file_count; f++)
        cr_assert_eq(symlink(tmpdir_path("../../blobs", "%s", edit.files[f]),
                         tmpdir_path(snapshot, "%s", edit.files[f])),
            0);
    cr_assert_eq(symlink("../../blobs/" INDEX, tmpdir_path(snapshot, INDEX)), 0);
    cr_assert_eq(
        symlink("../../blobs/config.json", tmpdir_path(snapshot, "config.json")), 0);
    struct hf_source *s;
    struct glm_error err = {0};
    const struct hf_options o = {.threads = 1};
    cr_assert_eq(hfdir_open(&s, snapshot, &o, &err), 0, "%s", err.text);
    hfdir_close(s);
    unlink(tmpdir_path(dir, "%s", edit.files[1])); /* a blob that was not fetched */
    cr_assert_eq(hfdir_open(&s, snapshot, &o, &err), GLM_EFORMAT);
    cr_assert(strstr(err.text, "a link to a file that is not there"), "%s", err.text);
    free(snapshot);
    tmpdir_remove(cache);
    done();
}

Test(hfdir, refuses_a_side_file_that_is_a_link_out_of_the_folder)
{
    make();
    char *other = tmpdir_new();
    tmpdir_write(tmpdir_path(other, "secret"), "x", 1);
    cr_assert_eq(symlink(tmpdir_path(other, "secret"), tmpdir_path(dir, "vocab.txt")), 0);
    refused("vocab.txt: a link that leads out of the folder, to ", other);
    unlink(tmpdir_path(dir, "vocab.txt"));
    cr_assert_eq(symlink("config.json", tmpdir_path(dir, "vocab.txt")), 0);
    hfdir_close(opens());
    tmpdir_remove(other);
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
        seen += !strcmp(p, "tokenizer.model") || !strcmp(p, "LICENSE")
            || !strcmp(p, "extra.jinja") || !strcmp(p, "config.json")
            || !strcmp(p, "model.safetensors.index.json");
        cr_assert(!strstr(p, "safetensors") || strstr(p, ".index.json"), "%s", p);
        cr_assert_neq(p[0], '.');
    }
    cr_assert_eq(seen, 5);
    cr_assert(warned(s, "original/: a sub-folder, ignored"));
    cr_assert(warned(s, "pytorch_model.bin: another format of the weights, ignored"));
    cr_assert(warned(s, "modeling.py: not a file that belongs to a model"));
    cr_assert_eq(s->warning_count, 3);
    hfdir_close(s);
    cr_assert_eq(truncate(tmpdir_path(dir, "LICENSE"), (128 << 20) + 1), 0);
    refused("LICENSE: with its 134217729 bytes the side files are over", "");
    done();
}

Test(hfdir, says_what_a_folder_lacks_to_be_a_model)
{
    struct glm_error err = {0};
    struct hf_source *s;
    const struct hf_options o = {.threads = 1};
    make();
    cr_assert_eq(hfdir_open(&s, tmpdir_path(dir, "none"), &o, &err), GLM_EUSAGE);
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
    /* To be looked at, not imported: it may lack, but only as a whole. */
    const struct hf_options look = {.mtp_may_lack = true};
    s = open_with(&look);
    cr_assert_eq(s->tensors, whole - dropped);
    hfdir_close(s);
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
        at_name(s, hfdir_place(s, e, j, false),
            "model.layers.1.mlp.experts.down_proj.weight", (uint64_t)j * 256 * 80 * 2);
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
    const struct toy_options o = {
        .config = "fixtures/configs/t1.json", .files = 2, .fused = true, .sparse = true};
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
    cr_assert_eq(
        hfedit_rename(&edit, "layers.2.self_attn.indexer", "layers.2", "layers.3"), 5);
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
    refused("extra tensors that the model does not have: lm_head.weight (config.json "
            "ties it)",
        "");
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
    refused("1 tensors missing: " EXPERT,
        "1 extra that the model does not have: "
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
    hfedit_add(
        &edit, 0, "model.layers.0.rotary_emb.inv_freq", GLM_F32, 1, (int64_t[]){8});
    hfedit_save(&edit);
    refused("1 extra tensors that the model does not have: "
            "model.layers.0.rotary_emb.inv_freq",
        "");
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

/* ---- full size ------------------------------------------------------------------------------- */

Test(hfdir, opens_the_full_model_below_300_mb, .timeout = 1800)
{
    const struct toy_options o = {.config = "fixtures/configs/glm-5.2.json",
        .files = 282,
        .sparse = true,
        .no_sides = true};
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
