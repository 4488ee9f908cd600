/* The index against the headers, and names that no file of a model may have. */
#include "tests/convert/hfcase.h"

/* ---- H: index and files ---------------------------------------------------------------------- */

Test(field_reports, B_19_index_names_a_tensor_the_file_lacks)
{
    make();
    hfedit_json(
        dir, INDEX, "weight_map", "model.layers.0.ghost", json_string(edit.files[0]));
    refused("weight_map names 'model.layers.0.ghost'",
        "the file does not have it, nor has any other");
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
    struct hfedit more = {
        .dir = strdup(dir), .files = {strdup("model-old.safetensors")}, .file_count = 1};
    hfedit_add(&more, 0, "model.norm.weight", GLM_BF16, 1, (int64_t[]){256});
    hfedit_save(&more);
    hfedit_clear(&more);
    refused(
        "the file model-old.safetensors is there but weight_map does not name it", "");
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
        "model-%05d-of-000004.safetensors", "%d.safetensors",
        "model.safetensors-%05d-of-00004"};
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

/* What stands behind .safetensors tells a copy put aside from data. */
Test(hfdir, a_name_that_only_holds_safetensors_is_no_data)
{
    static const char *const names[] = {"model.safetensors.bak", "a.safetensors-old",
        "a.safetensors-1-of-", "a.safetensors-of-2", "a.safetensors-1-of-2.tmp",
        "a.safetensorsx"};
    make();
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        tmpdir_write(tmpdir_path(dir, "%s", names[i]), "no header", 9);
    hfedit_save(&edit);
    struct hf_source *s = opens();
    cr_assert_eq(s->file_count, edit.file_count);
    cr_assert_eq(s->warning_count, (int)(sizeof names / sizeof names[0]));
    hfdir_close(s);
    done();
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
    const int n = snprintf(more, size + 256, "%.*s\"%s\":\"%s\",%s", (int)(map - text),
        text, KV_A, file_of(&edit, KV_A), map);
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
    static const struct {
        const char *name, *trouble;
    } names[] = {{"../x.safetensors", "leads out of the folder"},
        {"a/../../x", "leads out of the folder"}, {"..", "leads out of the folder"},
        {"/etc/passwd", "is absolute"}, {"//server/share/x", "is absolute"},
        {"\\\\server\\share\\x", "holds a backslash"}, {"..\\x", "holds a backslash"},
        {"sub/x.safetensors", "lies in a sub-folder"}, {"C:x", "holds a colon"},
        {"NUL", "is reserved"}, {"con.safetensors", "is reserved"},
        {"COM1.safetensors", "is reserved"}, {"x.", "ends in a dot"},
        {"x ", "ends in a dot or a space"}, {"", "is empty"},
        {"a\nb", "holds a control character"}};
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
