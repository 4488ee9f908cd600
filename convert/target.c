/* The table says which tensors a form touches; config.json is edited as text. */
#include "convert/target.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "convert/jsonin.h"

enum { MX_BLOCK = 32, FP8_BLOCK = 128, MEMBER_LIMIT = 16 << 20 };

int target_form_parse(
    struct target_form *out, const char *dtype, const char *rule, struct glm_error *err)
{
    static const struct {
        const char *name;
        struct target_form form;
    } forms[] = {
        {"same", {.same = true}},
        {"bf16", {.dtype = GLM_BF16}},
        {"f32", {.dtype = GLM_F32}},
        {"mxfp8", {.dtype = GLM_F8_E4M3, .mx = true, .rule = RULE_TE_ROUND_UP}},
        {"fp8", {.dtype = GLM_F8_E4M3, .rule = RULE_AMAX}},
    };
    size_t i = 0;

    while (i < sizeof forms / sizeof *forms
        && strcmp(forms[i].name, dtype ? dtype : "same") != 0)
        i++;
    if (i == sizeof forms / sizeof *forms)
        return glm_fail(
            err, GLM_EUSAGE, "--dtype %s: expected same, bf16, f32, mxfp8 or fp8", dtype);
    *out = forms[i].form;
    if (rule == NULL)
        return GLM_OK;
    if (codec_rule_find(rule, &out->rule) != 0)
        return glm_fail(err, GLM_EUSAGE,
            "--scale-rule %s: expected te_round_up, ocp_floor, amax or pow2", rule);
    const bool mx_rule = out->rule == RULE_TE_ROUND_UP || out->rule == RULE_OCP_FLOOR;
    if (out->dtype != GLM_F8_E4M3 || out->same || mx_rule != out->mx)
        return glm_fail(err, GLM_EUSAGE,
            "--scale-rule %s does not go with --dtype %s: "
            "te_round_up and ocp_floor are for mxfp8, amax and pow2 for fp8",
            rule, dtype ? dtype : "same");
    return GLM_OK;
}

static bool plain_float(enum glm_dtype d)
{
    return d == GLM_BF16 || d == GLM_F16 || d == GLM_F32;
}

enum fate { FATE_KEEP, FATE_CAST, FATE_QUANTISE };

/* What a form does to one weight. */
static enum fate fate_of(
    const struct manifest *m, const struct ckpt_tensor *t, const struct target_form *f)
{
    if (f->same || t->section != SECTION_WEIGHT || t->entry == NULL)
        return FATE_KEEP;
    if (f->dtype != GLM_F8_E4M3) {
        if (t->scale >= 0)
            return FATE_CAST;
        return plain_float(t->dtype) && t->dtype != f->dtype && !t->entry->keep_f32
            ? FATE_CAST
            : FATE_KEEP;
    }
    if (!t->entry->quantised)
        return FATE_KEEP;
    if (t->scale < 0)
        return FATE_QUANTISE;
    const struct ckpt_tensor *s = &m->tensors[t->scale];
    const bool same_form = f->mx ? codec_is_mx(s->dtype, s->block)
                                 : s->block[0] == FP8_BLOCK && s->block[1] == FP8_BLOCK;
    return same_form ? FATE_KEEP : FATE_QUANTISE;
}

static struct ckpt_tensor *add(struct manifest *m, const struct ckpt_tensor *like,
    enum glm_dtype dtype, struct glm_error *err)
{
    /* The row in the new table: the source's rows go when the source is closed. */
    const struct table_entry *row = NULL;
    int64_t member;
    if (like->entry != NULL)
        row = table_find(m->table, like->entry->name, strlen(like->entry->name), &member);
    struct ckpt_tensor *t = manifest_add_tensor(
        m, like->name, like->section, dtype, like->shape, like->rank, like->stack, row);

    if (t == NULL) {
        glm_fail(err, GLM_ENOMEM, "no memory for the plan");
        return NULL;
    }
    t->block[0] = like->block[0];
    t->block[1] = like->block[1];
    return t;
}

/* The scale tensor of the quantised weight that was added last. */
static int add_scale(
    struct manifest *m, const struct target_form *f, struct glm_error *err)
{
    const int64_t weight = m->tensor_count - 1;
    const struct ckpt_tensor *w = &m->tensors[weight];
    const int64_t block[2] = {f->mx ? 1 : FP8_BLOCK, f->mx ? MX_BLOCK : FP8_BLOCK};
    int64_t shape[4];
    char name[512];

    memcpy(shape, w->shape, sizeof shape);
    for (int i = 0; i < 2; i++) {
        int64_t *n = &shape[w->rank - 2 + i];
        *n = (*n + block[i] - 1) / block[i];
    }
    table_scale_name(
        w->name, f->mx ? ".weight_scale" : ".weight_scale_inv", name, sizeof name);
    struct ckpt_tensor *s = manifest_add_tensor(m, name, SECTION_WEIGHT,
        f->mx ? GLM_F8_E8M0 : GLM_F32, shape, w->rank, w->stack, w->entry);
    if (s == NULL)
        return glm_fail(err, GLM_ENOMEM, "no memory for the plan");
    memcpy(s->block, block, sizeof block);
    m->tensors[weight].scale = m->tensor_count - 1;
    snprintf(m->tensors[weight].scale_rule, sizeof m->tensors[weight].scale_rule, "%s",
        codec_rule_name(f->rule));
    return GLM_OK;
}

static int add_kept(struct manifest *m, const struct manifest *source,
    const struct ckpt_tensor *t, struct glm_error *err)
{
    /* A manifest has scales of no other weights: nothing could read it. */
    if (t->scale >= 0 && t->section == SECTION_WEIGHT && !t->entry->quantised)
        return glm_fail(err, GLM_EFORMAT,
            "'%s' has scales, but is none of the weights that a checkpoint holds in "
            "codes: --dtype bf16 or f32 takes its values",
            t->name);
    struct ckpt_tensor *n = add(m, t, t->dtype, err);
    if (n == NULL)
        return (int)err->code;
    n->derived = t->derived;
    memcpy(n->scale_rule, t->scale_rule, sizeof n->scale_rule);
    if (t->scale < 0)
        return GLM_OK;
    const int64_t weight = m->tensor_count - 1;
    if (add(m, &source->tensors[t->scale], source->tensors[t->scale].dtype, err) == NULL)
        return (int)err->code;
    m->tensors[weight].scale = m->tensor_count - 1;
    return GLM_OK;
}

int target_manifest(struct manifest **out, const struct manifest *source,
    const struct table *table, const struct target_form *form, bool weights_only,
    struct glm_error *err)
{
    struct manifest *m = manifest_new(table);

    *out = NULL;
    if (m == NULL)
        return glm_fail(err, GLM_ENOMEM, "no memory for the plan");
    m->without_mtp = source->without_mtp;
    for (int64_t i = 0; err->code == GLM_OK && i < source->tensor_count; i++) {
        const struct ckpt_tensor *t = &source->tensors[i];
        if (t->block[0] * t->block[1] > 1
            || (weights_only && t->section != SECTION_WEIGHT))
            continue; /* scales come with their weight */
        const enum fate fate = fate_of(source, t, form);
        if (fate == FATE_KEEP)
            add_kept(m, source, t, err);
        else if (add(m, t, form->dtype, err) != NULL && fate == FATE_QUANTISE)
            add_scale(m, form, err);
        if (weights_only && err->code == GLM_OK)
            m->tensors[m->tensor_count - 1].derived = false;
    }
    if (err->code == GLM_OK && manifest_index(m, err) == GLM_OK)
        *out = m;
    else
        manifest_free(m);
    return (int)err->code;
}

/* ---- config.json ------------------------------------------------------------------------------ */

struct edit { /* replace [from, to) of the text */
    size_t from, to;
    char *with; /* owned; NULL: nothing */
};

/* The modules that stay as they are, by the names that readers of the form look up. */
static void print_kept_modules(FILE *f, const struct table *t)
{
    const char *comma = "";

    for (int64_t i = 0; i < t->count; i++) {
        const struct table_entry *e = &t->entries[i];
        if (e->quantised)
            continue;
        const size_t n = strlen(e->name), suffix = strlen(".weight");
        const bool cut = n > suffix && strcmp(e->name + n - suffix, ".weight") == 0;
        fprintf(f, "%s\n      \"%.*s\"", comma, (int)(cut ? n - suffix : n), e->name);
        comma = ",";
    }
}

/* The value of quantization_config, indented as the second level of a two-space file. */
static char *quantisation_text(const struct table *t, const struct target_form *form)
{
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);

    if (f == NULL)
        return NULL;
    fprintf(f,
        "{\n    \"activation_scheme\": \"dynamic\",\n    \"fmt\": \"e4m3\",\n"
        "    \"modules_to_not_convert\": [");
    print_kept_modules(f, t);
    fprintf(f, "\n    ],\n    \"quant_method\": \"%s\",\n", form->mx ? "mxfp8" : "fp8");
    if (form->mx || form->rule == RULE_POW2)
        fprintf(f, "    \"scale_fmt\": \"ue8m0\",\n");
    fprintf(f, "    \"weight_block_size\": [\n      %d,\n      %d\n    ]\n  }",
        form->mx ? 1 : FP8_BLOCK, form->mx ? MX_BLOCK : FP8_BLOCK);
    if (fclose(f) != 0) {
        free(text);
        return NULL;
    }
    return text;
}

struct member {
    size_t key, value, value_end, after;
    bool found;
};

struct places { /* where the members of interest stand in the text */
    struct member quant, dtype;
    size_t last_end; /* end of the last member's value */
    bool any;
};

static int find_places(struct places *p, const char *path, const char *text, size_t size,
    struct glm_error *err)
{
    struct jsonin j = {.path = path, .text = text, .size = size};
    struct jsonin_slice key, value;
    char name[JSONIN_MAX_STRING + 1];
    size_t length;
    bool end;

    if (jsonin_open(&j, err) != GLM_OK)
        return (int)err->code;
    while (jsonin_key(&j, &key, &end, err) == GLM_OK && !end) {
        if (jsonin_string(&j, &key, name, &length, err) != GLM_OK
            || jsonin_value(&j, MEMBER_LIMIT, name, &value, err) != GLM_OK)
            return (int)err->code;
        const size_t at = (size_t)(value.text - text);
        const struct member here = {
            (size_t)(key.text - text), at, at + value.size, 0, true};
        if (strcmp(name, "quantization_config") == 0)
            p->quant = here;
        else if (strcmp(name, "dtype") == 0 || strcmp(name, "torch_dtype") == 0)
            p->dtype = here;
        p->last_end = here.value_end;
        p->any = true;
    }
    return (int)err->code;
}

/* A member together with one of the commas beside it. */
static struct edit removal(const char *text, size_t size, const struct member *m)
{
    size_t from = m->key, to = m->value_end;

    while (to < size && strchr(" \t\r\n", text[to]) != NULL)
        to++;
    if (to < size && text[to] == ',') { /* "key": value, -> nothing, up to the next key */
        to++;
        while (to < size && strchr(" \t\r\n", text[to]) != NULL)
            to++;
    } else { /* the last member: the comma before it goes */
        to = m->value_end;
        while (from > 0 && strchr(" \t\r\n", text[from - 1]) != NULL)
            from--;
        if (from > 0 && text[from - 1] == ',')
            from--;
        else
            from = m->key;
    }
    return (struct edit){from, to, NULL};
}

static int by_from(const void *a, const void *b)
{
    const struct edit *x = a, *y = b;
    return x->from < y->from ? -1 : x->from > y->from;
}

static char *apply(
    const char *text, size_t size, struct edit *edits, int count, size_t *out_size)
{
    char *out = NULL;
    size_t at = 0;
    FILE *f = open_memstream(&out, out_size);

    if (f == NULL)
        return NULL;
    qsort(edits, (size_t)count, sizeof *edits, by_from);
    for (int i = 0; i < count; i++) {
        fwrite(text + at, 1, edits[i].from - at, f);
        if (edits[i].with != NULL)
            fputs(edits[i].with, f);
        at = edits[i].to;
    }
    fwrite(text + at, 1, size - at, f);
    return fclose(f) == 0 ? out : NULL;
}

int target_config(char **text, size_t *size, const char *path, const char *old,
    size_t old_size, const struct table *table, const struct target_form *form,
    struct glm_error *err)
{
    struct places p = {0};
    struct edit edits[2];
    int count = 0;

    *text = NULL;
    if (find_places(&p, path, old, old_size, err) != GLM_OK)
        return (int)err->code;
    if (form->same) {
        *text = malloc(old_size + 1);
        if (*text != NULL) {
            memcpy(*text, old, old_size);
            (*text)[old_size] = '\0';
            *size = old_size;
        }
        return *text == NULL ? glm_fail(err, GLM_ENOMEM, "%s: no memory", path) : GLM_OK;
    }
    if (form->dtype == GLM_F8_E4M3) {
        char *quant = quantisation_text(table, form), *with = quant;
        size_t from = p.quant.value, to = p.quant.value_end;
        if (!p.quant.found && quant != NULL) {
            const char *brace =
                memchr(old, '{', old_size); /* find_places has been past it */
            from = to = p.any || brace == NULL ? p.last_end : (size_t)(brace - old) + 1;
            if (asprintf(
                    &with, "%s\n  \"quantization_config\": %s", p.any ? "," : "", quant)
                < 0)
                with = NULL;
            free(quant);
        }
        if (with == NULL)
            return glm_fail(err, GLM_ENOMEM, "%s: no memory", path);
        edits[count++] = (struct edit){from, to, with};
    } else {
        if (p.quant.found)
            edits[count++] = removal(old, old_size, &p.quant);
        if (p.dtype.found)
            edits[count++] = (struct edit){p.dtype.value, p.dtype.value_end,
                strdup(form->dtype == GLM_F32 ? "\"float32\"" : "\"bfloat16\"")};
    }
    *text = apply(old, old_size, edits, count, size);
    for (int i = 0; i < count; i++)
        free(edits[i].with);
    return *text == NULL ? glm_fail(err, GLM_ENOMEM, "%s: no memory", path) : GLM_OK;
}
