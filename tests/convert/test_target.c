/* config.json after a conversion: only quantization_config and dtype differ, as JSON and as text. */
#include "convert/target.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include <criterion/criterion.h>

#include "tests/support/models.h"

static const char *const configs[] = {
    "glm-5.1", "glm-5.2", "glm-5.2-fp8", "mini", "t1", "tiny-a", "tiny-b", "tiny-c"};
static const char *const forms[] = {"bf16", "f32", "mxfp8", "fp8"};
enum { CONFIGS = sizeof configs / sizeof *configs, FORMS = sizeof forms / sizeof *forms };

static char *edited(
    const struct table *t, const char *text, const char *dtype, const char *rule)
{
    struct glm_error err = {0};
    struct target_form form;
    char *out;
    size_t size;
    cr_assert_eq(target_form_parse(&form, dtype, rule, &err), GLM_OK, "%s", err.text);
    cr_assert_eq(
        target_config(&out, &size, "config.json", text, strlen(text), t, &form, &err),
        GLM_OK, "%s", err.text);
    char *whole = calloc(size + 1, 1);
    memcpy(whole, out, size);
    free(out);
    return whole;
}

static json_t *loaded(const char *text)
{
    json_error_t e;
    json_t *j = json_loads(text, JSON_REJECT_DUPLICATES, &e);
    cr_assert_not_null(j, "%s at line %d of:\n%s", e.text, e.line, text);
    return j;
}

static const char *dtype_key(const json_t *j)
{
    return json_object_get(j, "dtype") ? "dtype" : "torch_dtype";
}

/* The two texts say the same but for the keys that may change. */
static void only_those_keys(const char *a, const char *b)
{
    static const char *const keys[] = {"quantization_config", "dtype", "torch_dtype"};
    json_t *x = loaded(a), *y = loaded(b);
    for (size_t i = 0; i < 3; i++) {
        json_object_del(x, keys[i]);
        json_object_del(y, keys[i]);
    }
    cr_assert(json_equal(x, y), "%s\n%s", a, b);
    json_decref(x);
    json_decref(y);
}

static void check_form(const char *text, const char *dtype, const char *rule)
{
    json_t *j = loaded(text), *q = json_object_get(j, "quantization_config");
    const char *type = json_string_value(json_object_get(j, dtype_key(j)));
    if (strcmp(dtype, "bf16") == 0 || strcmp(dtype, "f32") == 0) {
        cr_assert_null(q);
        cr_assert(
            type == NULL || strcmp(type, *dtype == 'b' ? "bfloat16" : "float32") == 0);
    } else {
        const bool mx = strcmp(dtype, "mxfp8") == 0;
        json_t *b = json_object_get(q, "weight_block_size");
        const char *scale = json_string_value(json_object_get(q, "scale_fmt"));
        cr_assert_str_eq(json_string_value(json_object_get(q, "quant_method")), dtype);
        cr_assert_eq(json_integer_value(json_array_get(b, 0)), mx ? 1 : 128);
        cr_assert_eq(json_integer_value(json_array_get(b, 1)), mx ? 32 : 128);
        const bool pow2 = mx || (rule != NULL && strcmp(rule, "pow2") == 0);
        cr_assert_eq(scale != NULL, pow2);
        cr_assert(!pow2 || strcmp(scale, "ue8m0") == 0);
    }
    json_decref(j);
}

Test(target, only_quantization_config_and_dtype_change_in_every_config)
{
    for (int c = 0; c < CONFIGS; c++) {
        struct table *t = models_table(configs[c], false);
        char *text = models_config(configs[c]);
        for (int f = 0; f < FORMS; f++) {
            char *to = edited(t, text, forms[f], NULL);
            only_those_keys(text, to);
            check_form(to, forms[f], NULL);
            /* And from there on to every other form. */
            for (int g = 0; g < FORMS; g++) {
                char *next = edited(t, to, forms[g], NULL);
                only_those_keys(text, next);
                check_form(next, forms[g], NULL);
                free(next);
            }
            free(to);
        }
        char *pow2 = edited(t, text, "fp8", "pow2");
        check_form(pow2, "fp8", "pow2");
        free(pow2);
        free(text);
        table_free(t);
    }
}

Test(target, there_and_back_gives_the_same_bytes)
{
    static const char *const there[] = {"fp8", "mxfp8"};
    for (int c = 0; c < CONFIGS; c++) {
        struct table *t = models_table(configs[c], false);
        char *text = models_config(configs[c]);
        if (strstr(text, "quantization_config") == NULL)
            for (int i = 0; i < 2; i++) {
                char *to = edited(t, text, there[i], NULL),
                     *back = edited(t, to, "bf16", NULL);
                cr_assert_str_eq(back, text, "%s by %s", configs[c], there[i]);
                free(to);
                free(back);
            }
        char *same = edited(t, text, "same", NULL);
        cr_assert_str_eq(same, text);
        free(same);
        free(text);
        table_free(t);
    }
}

/* Ways in which people write the member, and where it may stand. */
static const char *const written[] = {
    "{\"a\": 1, \"dtype\": \"float16\", \"quantization_config\": {\"x\": [1, {\"dtype\": "
    "2}]}}",
    "{\"quantization_config\": null, \"a\": {\"dtype\": \"keep\"}, \"torch_dtype\": "
    "\"float32\"}",
    "{\"quantization_config\":{}}",
    "{\"quantization_config\":{},\"a\":1}",
    "{ \"a\" : 1 ,\r\n\t\"quantization_config\" : { } "
    ",\r\n\t\"dtype\":\"float32\"\r\n}\r\n",
    "{\"a\": \"quantization_config\", \"b\": \"}, \\\"dtype\\\": 3\", \"c\": "
    "[\"dtype\"]}",
    "{\n\n}",
    "{\"dtype\":\"bfloat16\"}",
};

Test(target, finds_the_members_however_they_are_written)
{
    struct table *t = models_table("mini", false);
    for (size_t i = 0; i < sizeof written / sizeof *written; i++)
        for (int f = 0; f < FORMS; f++) {
            char *to = edited(t, written[i], forms[f], NULL);
            only_those_keys(written[i], to);
            check_form(to, forms[f], NULL);
            free(to);
        }
    table_free(t);
}

Test(target, the_modules_that_stay_are_those_that_the_table_does_not_quantise)
{
    struct table *t = models_table("t1", false);
    char *text = models_config("t1"), *to = edited(t, text, "fp8", NULL);
    json_t *j = loaded(to);
    json_t *kept = json_object_get(
        json_object_get(j, "quantization_config"), "modules_to_not_convert");
    size_t want = 0;
    for (int64_t i = 0; i < t->count; i++) {
        if (t->entries[i].quantised)
            continue;
        const char *name = json_string_value(json_array_get(kept, want++));
        cr_assert_not_null(name);
        cr_assert_eq(strncmp(name, t->entries[i].name, strlen(name)), 0, "%s", name);
    }
    cr_assert_eq(json_array_size(kept), want);
    json_decref(j);
    free(text);
    free(to);
    table_free(t);
}

Test(target, words_that_are_none_and_rules_of_another_form_are_refused)
{
    static const char *const bad[][2] = {{"fp16", NULL}, {"", NULL}, {"FP8", NULL},
        {"fp8", "te_round_up"}, {"mxfp8", "amax"}, {"bf16", "amax"}, {NULL, "amax"},
        {"fp8", "round"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct glm_error err = {0};
        struct target_form form;
        cr_assert_eq(target_form_parse(&form, bad[i][0], bad[i][1], &err), GLM_EUSAGE);
        cr_assert_not_null(strstr(err.text, "--"), "%s", err.text);
    }
}

/* ---- manifests ---- */

static struct manifest *weights(const struct table *t)
{
    struct glm_error err = {0};
    struct manifest *m = manifest_new(t);
    for (int64_t i = 0; i < t->count; i++) {
        const struct table_entry *e = &t->entries[i];
        manifest_add_tensor(
            m, e->name, SECTION_WEIGHT, e->dtype, e->shape, e->rank, e->stack, e);
    }
    for (int64_t i = 0; i < t->count; i++) {
        const struct table_entry *e = &t->entries[i];
        manifest_add_tensor(
            m, e->name, SECTION_MASTER, GLM_F32, e->shape, e->rank, e->stack, e);
        m->tensors[i].derived = e->dtype == GLM_BF16;
    }
    manifest_index(m, &err);
    return m;
}

Test(target, converts_what_the_table_says_and_leaves_the_rest)
{
    struct table *t = models_table("t1", false);
    struct manifest *m = weights(t);
    for (int f = 0; f < FORMS; f++) {
        struct glm_error err = {0};
        struct target_form form;
        struct manifest *out;
        target_form_parse(&form, forms[f], NULL, &err);
        cr_assert_eq(
            target_manifest(&out, m, t, &form, true, &err), GLM_OK, "%s", err.text);
        for (int64_t i = 0; i < t->count; i++) {
            const struct table_entry *e = &t->entries[i];
            const struct ckpt_tensor *x =
                &out->tensors[manifest_find(out, SECTION_WEIGHT, e->name)];
            const bool coded = f >= 2 && e->quantised;
            cr_assert_not(x->derived, "nothing is derived where there are no masters");
            cr_assert_eq(x->dtype,
                coded        ? GLM_F8_E4M3
                    : f == 1 ? GLM_F32
                             : e->dtype,
                "%s", e->name);
            cr_assert_eq(x->scale >= 0, coded);
            cr_assert(!coded || out->tensors[x->scale].entry == e);
        }
        cr_assert_lt(manifest_find(out, SECTION_MASTER, t->entries[0].name), 0);
        manifest_free(out);
    }
    manifest_free(m);
    table_free(t);
}

Test(target, a_copy_keeps_every_section_and_what_is_derived)
{
    struct glm_error err = {0};
    struct table *t = models_table("t1", false);
    struct manifest *m = weights(t), *out;
    cr_assert_eq(
        target_manifest(&out, m, t, &(struct target_form){.same = true}, false, &err),
        GLM_OK);
    cr_assert_eq(out->tensor_count, m->tensor_count);
    for (int64_t i = 0; i < m->tensor_count; i++) {
        cr_assert_str_eq(out->tensors[i].name, m->tensors[i].name);
        cr_assert_eq(out->tensors[i].section, m->tensors[i].section);
        cr_assert_eq(out->tensors[i].derived, m->tensors[i].derived);
    }
    manifest_free(out);
    manifest_free(m);
    table_free(t);
}
