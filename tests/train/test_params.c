/* Parameters: sizes, seeded values, what a stage freezes, and every bit of a checkpoint. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/bf16.h"
#include "kernels/base/random.h"
#include "tests/support/models.h"
#include "tests/support/smallckpt.h"
#include "tests/support/tensorsckpt.h"
#include "tests/support/tmpdir.h"
#include "train/params.h"

static struct params *made(
    const struct table *t, enum glm_dtype dtype, enum params_trained trained)
{
    struct glm_error err = {0};
    struct params *p;
    const struct params_options o = {.dtype = dtype, .trained = trained};

    cr_assert_eq(params_new(&p, t, &o, &err), 0, "%s", err.text);
    return p;
}

static const struct param *named(const struct params *p, const char *name)
{
    int64_t member;
    const struct table_entry *e = table_find(p->table, name, strlen(name), &member);

    cr_assert_not_null(e, "%s", name);
    return &p->p[e - p->table->entries];
}

Test(params, arrays_lie_apart_and_inside_what_was_planned)
{
    struct table *t = models_table("tiny-a", false);
    static const enum glm_dtype types[] = {GLM_BF16, GLM_F32, GLM_F64};
    struct glm_error err = {0};

    for (int k = 0; k < 3; k++) {
        struct params *p = made(t, types[k], PARAMS_ALL);
        struct params_bytes b;
        size_t used = 0;
        cr_assert_eq(params_plan(&b, t, &p->options, &err), 0);
        /* Each array is filled with a number of its own; then every one still holds its own. */
        for (int round = 0; round < 2; round++)
            for (int64_t i = 0; i < p->count; i++) {
                const struct param *one = &p->p[i];
                void *const arrays[] = {one->w,
                    one->master == one->w ? NULL : one->master, one->grad, one->routed};
                const size_t sizes[] = {glm_dtype_size(one->dtype),
                    glm_dtype_size(p->acc), glm_dtype_size(p->acc), sizeof(int64_t)};
                for (int a = 0; a < 4; a++) {
                    const size_t bytes = (size_t)one->count * sizes[a];
                    if (arrays[a] == NULL)
                        continue;
                    const char mark = (char)(i * 4 + a);
                    if (round == 0) {
                        memset(arrays[a], mark, bytes);
                        used += bytes;
                        cr_assert((uintptr_t)arrays[a] % 64 == 0
                            || a == 3); /* counts: the host's */
                    } else {
                        for (size_t n = 0; n < bytes; n++)
                            cr_assert_eq(((char *)arrays[a])[n], mark);
                    }
                }
            }
        cr_assert_leq(used, b.total);
        cr_assert_gt(used, b.total - (size_t)p->count * 4 * 64);
        cr_assert_eq(b.total, b.model + b.master + b.gradient);
        cr_assert((types[k] == GLM_BF16) == (b.master > 0));
        params_free(p);
    }
    table_free(t);
}

Test(params, gradients_and_counts_begin_at_zero)
{
    struct table *t = models_table("tiny-a", false);
    struct params *p = made(t, GLM_BF16, PARAMS_ALL);
    struct glm_error err = {0};

    for (int round = 0; round < 2; round++) {
        for (int64_t i = 0; i < p->count; i++)
            for (int64_t k = 0; k < p->p[i].count; k++) {
                if (p->p[i].grad != NULL)
                    cr_assert_eq(((float *)p->p[i].grad)[k], 0);
                else
                    cr_assert_eq(p->p[i].routed[k], 0);
                if (p->p[i].grad != NULL)
                    ((float *)p->p[i].grad)[k] = 1;
            }
        cr_assert_eq(params_zero_grads(p, &err), 0);
    }
    params_free(p);
    table_free(t);
}

Test(params, initial_values_are_seeded_by_name_and_element)
{
    struct table *t = models_table("tiny-a", false);
    struct params *p = made(t, GLM_F32, PARAMS_ALL);
    const char *name = "model.layers.4.mlp.experts.up_proj.weight";
    struct glm_error err = {0};
    const struct random_stream s = random_open(11, "init", name);

    params_init(p, 11, &err);
    const struct param *one = named(p, name);
    double squares = 0;
    for (int64_t i = 0; i < one->count; i++) {
        const float x = ((float *)one->w)[i];
        cr_assert_eq(x, (float)(0.02 * random_normal(&s, (uint64_t)i)));
        squares += (double)x * (double)x;
    }
    cr_assert_float_eq(sqrt(squares / (double)one->count), 0.02, 0.0004);
    for (int64_t i = 0; i < p->count; i++) {
        const struct table_entry *e = p->p[i].entry;
        if (e->rank > 1)
            continue;
        const bool zero = strstr(e->name, "bias") != NULL;
        for (int64_t k = 0; k < p->p[i].count; k++)
            cr_assert_eq(((float *)p->p[i].w)[k], zero ? 0.0f : 1.0f, "%s", e->name);
    }
    params_free(p);
    table_free(t);
}

Test(params, every_type_begins_with_the_same_values)
{
    struct table *t = models_table("tiny-a", false);
    struct params *f = made(t, GLM_F32, PARAMS_ALL), *d = made(t, GLM_F64, PARAMS_ALL);
    struct params *h = made(t, GLM_BF16, PARAMS_ALL),
                  *frozen = made(t, GLM_BF16, PARAMS_INDEXER);
    struct glm_error err = {0};

    params_init(f, 5, &err);
    params_init(d, 5, &err);
    params_init(h, 5, &err);
    params_init(frozen, 5, &err);
    for (int64_t i = 0; i < f->count; i++) {
        if (f->p[i].entry->optimizer == OPT_ROUTER_BIAS) {
            cr_assert_eq(h->p[i].dtype, GLM_F32);
            continue;
        }
        for (int64_t k = 0; k < f->p[i].count; k++) {
            const float x = ((float *)f->p[i].w)[k];
            cr_assert_eq(((double *)d->p[i].w)[k], (double)x);
            cr_assert_eq(((float *)h->p[i].master)[k], x);
            cr_assert_eq(((uint16_t *)h->p[i].w)[k], bf16_from_f32(x));
            cr_assert_eq(((uint16_t *)frozen->p[i].w)[k], bf16_from_f32(x));
        }
    }
    params_free(f);
    params_free(d);
    params_free(h);
    params_free(frozen);
    table_free(t);
}

Test(params, a_stage_freezes_without_memory)
{
    struct table *t = models_table("tiny-a", false);
    struct params *p = made(t, GLM_BF16, PARAMS_INDEXER),
                  *q = made(t, GLM_BF16, PARAMS_NO_INDEXER);
    int trained = 0;

    for (int64_t i = 0; i < p->count; i++) {
        const bool indexer = p->p[i].entry->kind == KIND_INDEXER;
        cr_assert_eq(p->p[i].trained, indexer);
        cr_assert_eq(q->p[i].trained, !indexer);
        cr_assert_eq(p->p[i].grad != NULL, indexer);
        cr_assert_eq(p->p[i].master != NULL, indexer);
        cr_assert_null(p->p[i].routed);
        trained += indexer;
    }
    cr_assert_eq(trained, 5 * 5); /* layers 0, 1, 2, 6 and the MTP layer */
    params_free(p);
    params_free(q);
    table_free(t);
}

/* ---- checkpoints ------------------------------------------------------------------------------ */

static struct reader *opened(const char *dir)
{
    struct glm_error err = {0};
    struct reader *r;

    cr_assert_eq(reader_open(&r, dir, &err), 0, "%s", err.text);
    return r;
}

static void loads(
    const struct smallckpt_options *o, enum glm_dtype dtype, enum params_trained trained)
{
    struct table *t = models_table("tiny-a", false);
    struct params *p = made(t, dtype, trained);
    char *dir = tmpdir_new();
    struct glm_error err = {0};

    cr_assert_eq(smallckpt_write(dir, o, &err), 0, "%s", err.text);
    struct reader *r = opened(dir);
    cr_assert_eq(params_load(p, r, &err), 0, "%s", err.text);
    const struct manifest *m = reader_manifest(r);
    for (int64_t i = 0; i < p->count; i++) {
        const struct param *one = &p->p[i];
        int64_t at =
            o->training ? manifest_find(m, SECTION_MASTER, one->entry->name) : -1;
        if (at < 0)
            at = manifest_find(m, SECTION_WEIGHT, one->entry->name);
        const struct ckpt_tensor *c = &m->tensors[at];
        char *stored = malloc((size_t)one->count * 4);
        smallckpt_elements(c, 0, one->count, stored);
        for (int64_t k = 0; k < one->count; k++) {
            const float x = c->dtype == GLM_F32
                ? ((float *)(void *)stored)[k]
                : bf16_to_f32(((uint16_t *)(void *)stored)[k]);
            if (one->dtype == GLM_F64)
                cr_assert_eq(((double *)one->w)[k], (double)x);
            else if (one->dtype == GLM_F32)
                cr_assert_eq(((float *)one->w)[k], x);
            else
                cr_assert_eq(((uint16_t *)one->w)[k], bf16_from_f32(x));
            if (one->dtype == GLM_BF16 && one->trained)
                cr_assert_eq(((float *)one->master)[k], x);
        }
        free(stored);
    }
    reader_close(r);
    params_free(p);
    table_free(t);
    tmpdir_remove(dir);
}

Test(params, load_takes_masters_and_weights_as_they_are)
{
    const struct smallckpt_options plain = {.topo = {.pp = 2, .ep = 2}};
    const struct smallckpt_options state = {.training = true, .topo = {.tp = 2, .ep = 4}};

    loads(&plain, GLM_BF16, PARAMS_ALL);
    loads(&plain, GLM_F32, PARAMS_ALL);
    loads(&state, GLM_BF16, PARAMS_ALL);
    loads(&state, GLM_BF16, PARAMS_INDEXER);
    loads(&state, GLM_F32, PARAMS_INDEXER);
    loads(&state, GLM_F64, PARAMS_ALL);
}

static void refuses(
    const struct smallckpt_options *o, const char *config, const char *words)
{
    struct table *t = models_table(config, false);
    struct params *p = made(t, GLM_F32, PARAMS_ALL);
    char *dir = tmpdir_new();
    struct glm_error err = {0};

    cr_assert_eq(smallckpt_write(dir, o, &err), 0, "%s", err.text);
    struct reader *r = opened(dir);
    cr_assert_eq(params_load(p, r, &err), GLM_EFORMAT, "%s: %s", words, err.text);
    cr_assert(strstr(err.text, words) != NULL, "%s", err.text);
    reader_close(r);
    params_free(p);
    table_free(t);
    tmpdir_remove(dir);
}

Test(params, a_checkpoint_that_does_not_fit_is_named)
{
    refuses(
        &(struct smallckpt_options){.form = SMALL_FP8}, "tiny-a", "F8_E4M3 with scales");
    refuses(
        &(struct smallckpt_options){.no_mtp = true}, "tiny-a", "not in the checkpoint");
    refuses(&(struct smallckpt_options){0}, "mini",
        "dimension 0 is 320 in the checkpoint, expected");
}

static void comes_back(enum glm_dtype dtype)
{
    struct table *t = models_table("tiny-a", false);
    struct params *p = made(t, dtype, PARAMS_ALL), *q = made(t, dtype, PARAMS_ALL);
    struct train_tensors list = {0};
    struct glm_error err = {0};
    char *dir = tmpdir_new();
    const char *out = tmpdir_path(dir, "out");

    params_init(p, 3, &err);
    for (int64_t i = 0; i < p->count; i++)
        if (p->p[i].routed != NULL)
            for (int64_t k = 0; k < p->p[i].count; k++)
                ((float *)p->p[i].w)[k] = 0.001f * (float)(i + k);
    cr_assert_eq(params_state(p, &list, &err), 0);
    cr_assert_eq(tensorsckpt_write(
                     out, "tiny-a", &list, &(struct topology){.tp = 2, .pp = 2}, &err),
        0, "%s", err.text);
    struct reader *r = opened(tmpdir_path(dir, "out"));
    cr_assert_eq(params_load(q, r, &err), 0, "%s", err.text);
    for (int64_t i = 0; i < p->count; i++) {
        const size_t n = (size_t)p->p[i].count;
        cr_assert_eq(memcmp(p->p[i].w, q->p[i].w, n * glm_dtype_size(p->p[i].dtype)), 0,
            "%s", p->p[i].entry->name);
        if (p->p[i].routed == NULL)
            cr_assert_eq(
                memcmp(p->p[i].master, q->p[i].master, n * glm_dtype_size(p->acc)), 0);
    }
    reader_close(r);
    tensors_clear(&list);
    params_free(p);
    params_free(q);
    table_free(t);
    tmpdir_remove(dir);
}

Test(params, a_written_state_comes_back_bit_for_bit)
{
    comes_back(GLM_BF16);
    comes_back(GLM_F32);
    comes_back(GLM_F64);
}

Test(params, casting_rounds_to_nearest_even)
{
    const float x[] = {1.00390625f, 1.01171875f, -2.5f, 3.4e38f};
    uint16_t h[4];
    double d[4];
    float back[4];

    tensors_cast(h, GLM_BF16, x, GLM_F32, 4);
    cr_assert_eq(h[0], 0x3F80);
    cr_assert_eq(h[1], 0x3F82);
    cr_assert_eq(h[2], 0xC020);
    cr_assert_eq(h[3], 0x7F80);
    tensors_cast(d, GLM_F64, x, GLM_F32, 4);
    tensors_cast(back, GLM_F32, d, GLM_F64, 4);
    cr_assert_arr_eq(back, x, sizeof x);
}
