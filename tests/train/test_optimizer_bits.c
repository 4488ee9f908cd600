/* The optimizer's bits: threads, the model's copy, the norm at every split, stages, its state. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/bf16.h"
#include "kernels/cpu/pool.h"
#include "tests/support/brief.h"
#include "tests/support/gradnorm.h"
#include "tests/support/optmodel.h"
#include "tests/support/rng.h"
#include "tests/support/tensorsckpt.h"
#include "tests/support/tmpdir.h"

static const struct kernels *cpu(void)
{
    return kernels_find("cpu");
}

/* ---- bits ------------------------------------------------------------------------------------- */

static void same_with_threads(enum glm_dtype dtype, const struct optimizer_options *o)
{
    struct optmodel first = optmodel_new(dtype, PARAMS_ALL, o);
    struct optimizer_report r0, r;
    struct glm_error err = {0};

    optmodel_steps(&first, 1, 2, NULL, &r0);
    for (int threads = brief() ? 2 : 1; threads <= (brief() ? 2 : 4); threads *= 2) {
        const glm_stream stream = cpu()->stream_new(threads, &err);
        struct optmodel x = optmodel_new(dtype, PARAMS_ALL, o);
        optmodel_steps(&x, 1, 2, stream, &r);
        cr_assert_eq(pool_used(stream), threads);
        cr_assert_eq(memcmp(&r, &r0, sizeof r), 0);
        optmodel_same(&first, &x, "threads");
        optmodel_free(&x);
        cpu()->stream_free(stream);
    }
    optmodel_free(&first);
}

Test(optimizer_bits, bits_do_not_depend_on_threads, .timeout = 1800)
{
    const struct optimizer_options published = optimizer_defaults();
    struct optimizer_options other = optmodel_other_rules();

    other.muon_low_precision = true;
    if (!brief())
        same_with_threads(GLM_BF16, &published);
    same_with_threads(GLM_F32, &other);
}

Test(optimizer_bits, the_model_copy_is_the_rounded_master)
{
    const struct optimizer_options o = optimizer_defaults();
    struct optmodel x = optmodel_new(GLM_BF16, PARAMS_ALL, &o);
    struct optimizer_report r;

    optmodel_steps(&x, 1, 1, NULL, &r);
    for (int64_t i = 0; i < x.p->count; i++)
        for (int64_t k = 0; x.p->p[i].grad != NULL && k < x.p->p[i].count; k++)
            cr_assert_eq(((uint16_t *)x.p->p[i].w)[k],
                bf16_from_f32(((float *)x.p->p[i].master)[k]), "%s",
                x.p->p[i].entry->name);
    optmodel_free(&x);
}

/* ---- norm ------------------------------------------------------------------------------------- */

/* Leaves in the hands of several owners, joined by addition in any order, give the same bits. */
Test(optimizer_bits, the_norm_is_the_same_at_every_split_of_tiles_over_owners)
{
    const struct optimizer_options o = optimizer_defaults();
    struct optmodel x = optmodel_new(GLM_F32, PARAMS_ALL, &o);
    struct optimizer_report r;

    optmodel_steps(&x, 1, 1, NULL, &r);
    const int64_t *first = optimizer_leaf_index(x.o);
    const int64_t n = first[x.p->count];
    double *leaves = optimizer_leaf_array(x.o),
           *joined = malloc((size_t)n * sizeof *joined);
    signed char *group = malloc((size_t)x.p->count);
    for (int64_t i = 0; i < x.p->count; i++)
        group[i] = x.p->p[i].grad != NULL ? 0 : -1;
    cr_assert_gt(n, 2 * x.p->count);
    for (int owners = 1; owners <= 9; owners++) {
        uint64_t seed = (uint64_t)owners;
        double **part = malloc((size_t)owners * sizeof *part);
        for (int k = 0; k < owners; k++)
            part[k] = calloc((size_t)n, sizeof **part);
        for (int64_t i = 0; i < n; i++)
            part[rng_below(&seed, (uint64_t)owners)][i] = leaves[i];
        memset(joined, 0, (size_t)n * sizeof *joined);
        for (int k = owners - 1; k >= 0; k--) {
            for (int64_t i = 0; i < n; i++)
                joined[i] += part[k][i];
            free(part[k]);
        }
        free(part);
        cr_assert_eq(gradnorm_fold(joined, first, group, 0, x.p->count) * 0.5, r.norm);
    }
    free(joined);
    free(group);
    optmodel_free(&x);
}

/* A leaf depends on its tile alone: the same from a cut-out rectangle. */
Test(optimizer_bits, a_leaf_is_the_same_from_its_tile_alone)
{
    const struct optimizer_options o = optimizer_defaults();
    struct optmodel x = optmodel_new(GLM_F32, PARAMS_ALL, &o);
    struct glm_error err = {0};
    int more = 0;

    optmodel_gradients(&x, 1);
    for (int64_t i = 0; i < x.p->count; i++) {
        const struct param *one = &x.p->p[i];
        const struct tile_grid *g = &one->entry->grid;
        if (one->grad == NULL)
            continue;
        cr_assert_eq(optimizer_leaves(x.o, i, cpu(), NULL, &err), 0);
        for (int64_t k = 0; k < tile_count(g); k++) {
            const struct rect all = rect_whole(g->dims), at = tile_rect(g, k);
            const int64_t rows = rect_len(&at, 1), cols = rect_len(&at, 2);
            float *tile = malloc((size_t)rect_count(&at) * sizeof *tile);
            double leaf;
            region_copy(tile, &at, one->grad, &all, &at, sizeof *tile);
            const struct sum_squares p = {.out = &leaf,
                .x = tile,
                .B = 1,
                .R = rows,
                .C = cols,
                .row_stride = cols,
                .tile_rows = rows,
                .tile_cols = cols,
                .dtype = GLM_F32};
            cr_assert_eq(cpu_sum_squares(&p, NULL, &err), 0);
            cr_assert_eq(
                leaf, optimizer_leaf_array(x.o)[optimizer_leaf_index(x.o)[i] + k]);
            more += k > 0;
            free(tile);
        }
    }
    cr_assert_gt(more, 20);
    optmodel_free(&x);
}

Test(optimizer_bits, clipping_acts_above_the_limit_only)
{
    cr_assert_eq(gradnorm_clip(0.5, 1), 1);
    cr_assert_eq(gradnorm_clip(0, 1), 1);
    cr_assert_eq(gradnorm_clip(4, 0), 1);
    cr_assert_float_eq(gradnorm_clip(4, 1), 0.25, 1e-6);
    cr_assert_lt(gradnorm_clip(4, 1), 0.25);
    const double leaves[] = {1, 2, 3, 4, 5, 6, 7};
    cr_assert_eq(gradnorm_tree(leaves, 7), 28);
    cr_assert_eq(gradnorm_tree(leaves, 0), 0);
    /* ((1 + 1e-16) + (1e-16 + 1e-16)) loses less than a chain does. */
    const double small[] = {1, -1, 1e-16, 1e-16, 1e-16};
    cr_assert_eq(gradnorm_tree(small, 5), 2e-16 + 1e-16);
}

/* ---- stages ----------------------------------------------------------------------------------- */

Test(optimizer_bits, a_frozen_parameter_keeps_its_bits_and_has_no_state)
{
    const struct optimizer_options o = optimizer_defaults();
    struct optmodel x = optmodel_new(GLM_BF16, PARAMS_INDEXER, &o),
                    y = optmodel_new(GLM_BF16, PARAMS_INDEXER, &o);
    struct train_tensors state = {0};
    struct optimizer_report r;
    struct glm_error err = {0};
    struct optimizer_bytes all, some;

    optmodel_steps(&x, 1, 3, NULL, &r);
    for (int64_t i = 0; i < x.p->count; i++) {
        const struct param *a = &x.p->p[i], *b = &y.p->p[i];
        const bool equal =
            memcmp(a->w, b->w, (size_t)a->count * glm_dtype_size(a->dtype)) == 0;
        cr_assert_eq(equal, a->entry->kind != KIND_INDEXER, "%s", a->entry->name);
    }
    optimizer_state(x.o, &state, &err);
    cr_assert_eq(
        state.count, 5 * 3 + 5 * 2 * 2 + 2); /* 3 matrices, 2 vectors twice; train */
    const struct params_options whole = {.dtype = GLM_BF16, .trained = PARAMS_ALL};
    cr_assert_eq(optimizer_plan(&all, x.table, &whole, &o, &err), 0);
    cr_assert_eq(optimizer_plan(&some, x.table, &x.p->options, &o, &err), 0);
    cr_assert_lt(some.total, all.total / 4);
    tensors_clear(&state);
    optmodel_free(&x);
    optmodel_free(&y);
}

/* ---- state ------------------------------------------------------------------------------------ */

static struct reader *stored(struct optmodel *x, const char *dir)
{
    struct train_tensors list = {0};
    struct glm_error err = {0};
    struct reader *r;

    params_state(x->p, &list, &err);
    optimizer_state(x->o, &list, &err);
    cr_assert_eq(tensorsckpt_write(
                     dir, "tiny-a", &list, &(struct topology){.pp = 2, .ep = 2}, &err),
        0, "%s", err.text);
    cr_assert_eq(reader_open(&r, dir, &err), 0, "%s", err.text);
    tensors_clear(&list);
    return r;
}

static void goes_on(enum glm_dtype dtype, const struct optimizer_options *o)
{
    struct optmodel x = optmodel_new(dtype, PARAMS_ALL, o),
                    y = optmodel_new(dtype, PARAMS_ALL, o);
    struct optimizer_report a, b;
    struct glm_error err = {0};
    char *dir = tmpdir_new(), *out = strdup(tmpdir_path(dir, "out"));

    optmodel_steps(&x, 1, 2, NULL, &a);
    struct reader *r = stored(&x, out);
    cr_assert_eq(params_load(y.p, r, &err), 0, "%s", err.text);
    cr_assert_eq(optimizer_load(y.o, r, &err), 0, "%s", err.text);
    optmodel_same(&x, &y, "loaded");
    optmodel_steps(&x, 3, 4, NULL, &a);
    optmodel_steps(&y, 3, 4, NULL, &b);
    cr_assert_eq(memcmp(&a, &b, sizeof a), 0);
    optmodel_same(&x, &y, "two steps later");
    reader_close(r);
    optmodel_free(&x);
    optmodel_free(&y);
    free(out);
    tmpdir_remove(dir);
}

Test(optimizer_bits, a_stored_run_goes_on_with_the_same_bits, .timeout = 1800)
{
    const struct optimizer_options published = optimizer_defaults(),
                                   other = optmodel_other_rules();

    goes_on(GLM_BF16, &published);
    if (!brief())
        goes_on(GLM_F32, &other);
}

Test(optimizer_bits, other_options_than_the_checkpoints_are_refused)
{
    const struct optimizer_options o = optmodel_other_rules();
    struct optimizer_options changed = o;
    struct optmodel x = optmodel_new(GLM_F32, PARAMS_ALL, &o);
    struct glm_error err = {0};
    char *dir = tmpdir_new(), *out = strdup(tmpdir_path(dir, "out"));
    struct reader *r = stored(&x, out);

    changed.adam_beta2 = 0.95;
    struct optmodel y = optmodel_new(GLM_F32, PARAMS_ALL, &changed);
    cr_assert_eq(optimizer_load(y.o, r, &err), GLM_EUSAGE);
    cr_assert(strstr(err.text,
                  "'adam_beta2 0.98999999999999999' in the checkpoint, 'adam_beta2 "
                  "0.94999999999999996' here")
            != NULL,
        "%s", err.text);
    optmodel_free(&y);
    changed = o;
    changed.layouts = 4;
    y = optmodel_new(GLM_F32, PARAMS_ALL, &changed);
    glm_error_clear(&err);
    cr_assert_eq(optimizer_load(y.o, r, &err), GLM_EUSAGE);
    cr_assert(
        strstr(err.text, "muon_layout lm_head.weight whole") != NULL, "%s", err.text);
    reader_close(r);
    optmodel_free(&x);
    optmodel_free(&y);
    free(out);
    tmpdir_remove(dir);
}

Test(optimizer_bits, what_becomes_trainable_begins_at_its_own_first_step)
{
    const struct optimizer_options o = optimizer_defaults();
    struct optmodel x = optmodel_new(GLM_BF16, PARAMS_INDEXER, &o),
                    y = optmodel_new(GLM_BF16, PARAMS_ALL, &o);
    struct optimizer_report rep;
    struct train_tensors list = {0};
    struct glm_error err = {0};
    char *dir = tmpdir_new(), *out = strdup(tmpdir_path(dir, "out"));

    optmodel_steps(&x, 1, 2, NULL, &rep);
    struct reader *r = stored(&x, out);
    optmodel_steps(&y, 1, 1, NULL, &rep); /* loading must overwrite this */
    cr_assert_eq(optimizer_load(y.o, r, &err), 0, "%s", err.text);
    optimizer_state(y.o, &list, &err);
    const int64_t *counts = list.list[list.count - 1].data;
    for (int64_t i = 0; i < y.p->count; i++)
        cr_assert_eq(counts[i], y.table->entries[i].kind == KIND_INDEXER ? 2 : 0);
    for (int64_t i = 0; i < list.count; i++) {
        const struct train_tensor *t = &list.list[i];
        if (t->entry == NULL || t->entry->kind == KIND_INDEXER)
            continue;
        for (int64_t k = 0; k < tensors_elements(t); k++)
            cr_assert_eq(((float *)t->data)[k], 0, "%s", t->name);
    }
    tensors_clear(&list);
    reader_close(r);
    optmodel_free(&x);
    optmodel_free(&y);
    free(out);
    tmpdir_remove(dir);
}
