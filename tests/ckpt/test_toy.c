/* The parameter table against a second enumeration of the same models (tests/support/toy.c), and
 * the toy's own promises: elements that say where they belong, one model in several layouts. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/models.h"
#include "tests/support/tmpdir.h"
#include "tests/support/toy.h"

static const char *const configs[] = {
    "t1", "tiny-a", "tiny-b", "tiny-c", "glm-5.2", "glm-5.1", "t3-1g", "t3-8g", "t3-30g"};
enum { CONFIGS = sizeof configs / sizeof *configs };

static struct toy_options options_of(const char *name, char path[64])
{
    snprintf(path, 64, "fixtures/configs/%s.json", name);
    return (struct toy_options){.config = path};
}

/* Every tensor of the list is a member of the table, of the same shape and type, once. */
static void compare(const char *config, bool no_mtp)
{
    char path[64];
    struct toy_options o = options_of(config, path);
    struct toy_model m;
    o.no_mtp = no_mtp;
    cr_assert_eq(toy_model_new(&m, &o), 0, "%s", toy_error());
    struct table *t = models_table(config, no_mtp);
    unsigned char *seen = calloc((size_t)t->hf_tensors + 1, 1);
    int64_t *first = calloc((size_t)t->count + 1, sizeof *first);
    for (int64_t i = 0; i < t->count; i++)
        first[i + 1] = first[i] + table_members(&t->entries[i]);
    cr_assert_eq(m.count, t->hf_tensors, "%s: %lld tensors, table %lld", config,
        (long long)m.count, (long long)t->hf_tensors);
    cr_assert_eq(m.elements, t->elements);
    for (int64_t i = 0; i < m.count; i++) {
        const struct toy_tensor *x = &m.tensors[i];
        int64_t member = -1;
        const struct table_entry *e = table_find(t, x->name, strlen(x->name), &member);
        cr_assert(e, "%s: the table has no '%s'", config, x->name);
        const int skip = e->stack ? 1 : 0;
        cr_assert_eq(e->rank - skip, x->rank, "%s: %s", config, x->name);
        for (int d = 0; d < x->rank; d++)
            cr_assert_eq(
                e->shape[d + skip], x->shape[d], "%s: %s axis %d", config, x->name, d);
        cr_assert_str_eq(glm_dtype_name(e->dtype), toy_type_name(x->type), "%s", x->name);
        cr_assert_eq(e->quantised, x->quantised, "%s: %s", config, x->name);
        const int64_t at = first[e - t->entries] + (member < 0 ? 0 : member);
        cr_assert_eq(seen[at], 0, "%s: '%s' twice", config, x->name);
        seen[at] = 1;
    }
    free(seen);
    free(first);
    table_free(t);
    toy_model_clear(&m);
}

Test(toy, lists_what_the_table_lists)
{
    for (int i = 0; i < CONFIGS; i++) {
        compare(configs[i], false);
        compare(configs[i], true);
    }
}

Test(field_reports, B_07_layers_without_an_indexer_get_none)
{
    struct table *t = models_table("t1", false);
    int owners = 0;
    for (int64_t i = 0; i < t->count; i++)
        owners += strstr(t->entries[i].name, "indexer.wk.weight") != NULL;
    cr_assert_eq(owners, 4, "layers 0, 1, 2 and the MTP layer; found %d", owners);
    cr_assert_null(
        table_find(t, "model.layers.3.self_attn.indexer.wk.weight", 42, &(int64_t){0}));
    table_free(t);
}

Test(field_reports, B_83_the_table_keeps_the_router_bias_in_f32)
{
    struct table *t = models_table("t1", false);
    int biases = 0;
    for (int64_t i = 0; i < t->count; i++)
        if (strstr(t->entries[i].name, "e_score_correction_bias")) {
            cr_assert_eq(t->entries[i].dtype, GLM_F32);
            cr_assert(t->entries[i].keep_f32);
            biases++;
        }
    cr_assert_eq(biases, 5, "four MoE layers and the MTP layer; found %d", biases);
    table_free(t);
}

Test(toy, fused_stacks_hold_the_elements_of_their_members)
{
    char path[64];
    struct toy_options apart = options_of("t1", path), fused = apart;
    struct toy_model a, f;
    fused.fused = true;
    cr_assert(toy_model_new(&a, &apart) == 0 && toy_model_new(&f, &fused) == 0, "%s",
        toy_error());
    cr_assert_eq(a.elements, f.elements);
    for (int64_t i = 0; i < f.count; i++) {
        const struct toy_tensor *s = &f.tensors[i];
        if (s->fused != 1)
            continue;
        const int64_t part = s->shape[1] / 2 * s->shape[2];
        uint16_t *both = malloc(s->bytes), *one = malloc((size_t)part * 2);
        toy_fill(&fused, s, 0, (int64_t)s->bytes / 2, both);
        char name[128];
        snprintf(name, sizeof name, "%.*s10.up_proj.weight",
            (int)(strlen(s->name) - strlen("gate_up_proj")), s->name);
        for (int64_t k = 0; k < a.count; k++)
            if (strcmp(a.tensors[k].name, name) == 0)
                toy_fill(&apart, &a.tensors[k], 0, part, one);
        cr_assert_arr_eq(both + 21 * part, one, (size_t)part * 2, "%s", name);
        free(both);
        free(one);
        break;
    }
    toy_model_clear(&a);
    toy_model_clear(&f);
}

Test(toy, any_part_of_a_tensor_can_be_made_alone)
{
    char path[64];
    for (int form = TOY_PLAIN; form <= TOY_MX_U8; form++) {
        struct toy_options o = options_of("tiny-a", path);
        struct toy_model m;
        o.form = (enum toy_form)form;
        o.gauss = form == TOY_FP8;
        cr_assert_eq(toy_model_new(&m, &o), 0, "%s", toy_error());
        for (int64_t i = 0; i < m.count; i += 7) {
            const struct toy_tensor *t = &m.tensors[i];
            const int64_t size = (int64_t)toy_type_size(t->type),
                          n = (int64_t)t->bytes / size;
            unsigned char *whole = malloc(t->bytes), *part = malloc(t->bytes);
            toy_fill(&o, t, 0, n, whole);
            toy_fill(&o, t, n / 3, n - n / 3, part);
            cr_assert_arr_eq(
                whole + n / 3 * size, part, (size_t)((n - n / 3) * size), "%s", t->name);
            free(whole);
            free(part);
        }
        toy_model_clear(&m);
    }
}

Test(toy, other_names_seeds_and_places_give_other_elements)
{
    char path[64];
    struct toy_options o = options_of("t1", path), p = o;
    struct toy_model m;
    enum { N = 4096 };
    static uint16_t a[N], b[N];
    p.seed = 1;
    cr_assert_eq(toy_model_new(&m, &o), 0);
    toy_fill(&o, &m.tensors[0], 0, N, a);
    toy_fill(&p, &m.tensors[0], 0, N, b);
    int same = 0, shifted = 0;
    for (int i = 0; i < N; i++) {
        same += a[i] == b[i];
        shifted += i > 0 && a[i] == a[i - 1];
        cr_assert_neq(a[i] & 0x7f80, 0x7f80, "element %d is not finite", i);
    }
    cr_assert_lt(same, 4);
    cr_assert_lt(shifted, 4);
    toy_model_clear(&m);
}

Test(toy, a_full_size_model_is_headers_over_holes)
{
    char path[64], *dir = tmpdir_new();
    struct toy_options o = options_of("glm-5.2", path);
    o.sparse = true;
    o.files = 282;
    o.no_sides = true;
    cr_assert_eq(toy_write(dir, &o), 0, "%s", toy_error());
    size_t size;
    char *index = tmpdir_read(tmpdir_path(dir, "model.safetensors.index.json"), &size);
    cr_assert(strstr(index, "\"total_size\": 1506659919872"));
    cr_assert(strstr(index, "model-00282-of-00282.safetensors"));
    free(index);
    tmpdir_remove(dir);
}
