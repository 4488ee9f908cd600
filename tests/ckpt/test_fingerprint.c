/* A fingerprint tells any two things in each other's place: tiles, rows, experts, tensors. */
#include <stdlib.h>
#include <string.h>

#include <criterion/criterion.h>

#include "ckpt/digest.h"
#include "ckpt/reader.h"
#include "tests/support/models.h"
#include "tests/support/rng.h"
#include "tests/support/smallckpt.h"

struct model {
    struct table *table;
    struct manifest *m;
    unsigned char *tiles;
};

static void model_new(struct model *x)
{
    struct glm_error err = {0};
    x->table = models_table("t1", false);
    x->m = manifest_new(x->table);
    for (int64_t i = 0; i < x->table->count; i++) {
        const struct table_entry *t = &x->table->entries[i];
        manifest_add_tensor(
            x->m, t->name, SECTION_WEIGHT, t->dtype, t->shape, t->rank, t->stack, t);
    }
    cr_assert_eq(volumes_plan(x->m, models_placement(x->table, (struct topology){0}),
                     &(struct volumes_options){0}, &err),
        0, "%s", err.text);
    x->tiles = calloc((size_t)x->m->tile_count, DIGEST_SIZE);
}

static void model_free(struct model *x)
{
    free(x->tiles);
    manifest_free(x->m);
    table_free(x->table);
}

/* The whole tensor's elements; free them. */
static unsigned char *elements(const struct ckpt_tensor *t)
{
    const struct rect all = rect_whole(t->grid.dims);
    unsigned char *data = malloc((size_t)rect_count(&all) * glm_dtype_size(t->dtype) + 1);
    smallckpt_elements(t, 0, rect_count(&all), data);
    return data;
}

static void hash(struct model *x, const struct ckpt_tensor *t, const unsigned char *data)
{
    const struct rect all = rect_whole(t->grid.dims);
    reader_hash_tiles(&t->grid, &all, glm_dtype_size(t->dtype), data,
        x->tiles + (size_t)t->first_tile * DIGEST_SIZE);
}

static void hash_all(struct model *x)
{
    for (int64_t i = 0; i < x->m->tensor_count; i++) {
        unsigned char *data = elements(&x->m->tensors[i]);
        hash(x, &x->m->tensors[i], data);
        free(data);
    }
}

static void seal(struct model *x, unsigned char out[DIGEST_SIZE])
{
    struct glm_error err = {0};
    cr_assert_eq(manifest_seal(x->m, x->tiles, &err), 0, "%s", err.text);
    memcpy(out, x->m->fingerprint, DIGEST_SIZE);
}

static void swap(unsigned char *a, unsigned char *b, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        const unsigned char c = a[i];
        a[i] = b[i];
        b[i] = c;
    }
}

Test(fingerprint, swapping_any_two_tiles_changes_it, .timeout = 1800)
{
    struct model x;
    unsigned char before[DIGEST_SIZE], after[DIGEST_SIZE];
    int64_t pairs = 0;
    model_new(&x);
    hash_all(&x);
    seal(&x, before);
    for (int64_t a = 0; a < x.m->tile_count; a++)
        for (int64_t b = a + 1; b < x.m->tile_count; b += 1 + (b - a) / 8, pairs++) {
            unsigned char *p = x.tiles + a * DIGEST_SIZE, *q = x.tiles + b * DIGEST_SIZE;
            cr_assert_neq(memcmp(p, q, DIGEST_SIZE), 0, "tiles %ld and %ld are equal",
                (long)a, (long)b);
            swap(p, q, DIGEST_SIZE);
            seal(&x, after);
            swap(p, q, DIGEST_SIZE);
            cr_assert_neq(memcmp(before, after, DIGEST_SIZE), 0, "tiles %ld and %ld",
                (long)a, (long)b);
        }
    cr_assert_gt(pairs, 5000);
    seal(&x, after);
    cr_assert_arr_eq(before, after, DIGEST_SIZE);
    model_free(&x);
}

Test(fingerprint, swapping_any_two_experts_changes_it)
{
    struct model x;
    unsigned char before[DIGEST_SIZE], after[DIGEST_SIZE];
    int stacks = 0;
    model_new(&x);
    hash_all(&x);
    seal(&x, before);
    for (int64_t i = 0; i < x.m->tensor_count; i++) {
        const struct ckpt_tensor *t = &x.m->tensors[i];
        if (!t->stack)
            continue;
        const size_t one = (size_t)(t->grid.count[1] * t->grid.count[2]) * DIGEST_SIZE;
        unsigned char *tiles = x.tiles + (size_t)t->first_tile * DIGEST_SIZE;
        for (int64_t a = 0; a < t->shape[0]; a++)
            for (int64_t b = a + 1; b < t->shape[0]; b++) {
                swap(tiles + (size_t)a * one, tiles + (size_t)b * one, one);
                seal(&x, after);
                swap(tiles + (size_t)a * one, tiles + (size_t)b * one, one);
                cr_assert_neq(memcmp(before, after, DIGEST_SIZE), 0,
                    "%s: experts %ld and %ld", t->name, (long)a, (long)b);
            }
        stacks++;
    }
    cr_assert_eq(stacks, 15);
    model_free(&x);
}

/* Rows far apart and side by side, elements of a vector: in every tensor. */
Test(fingerprint, swapping_any_two_rows_changes_it)
{
    struct model x;
    unsigned char before[DIGEST_SIZE], after[DIGEST_SIZE];
    uint64_t state = 11;
    model_new(&x);
    hash_all(&x);
    seal(&x, before);
    for (int64_t i = 0; i < x.m->tensor_count; i++) {
        const struct ckpt_tensor *t = &x.m->tensors[i];
        const size_t element = glm_dtype_size(t->dtype);
        const int64_t rows =
            t->rank == 1 ? t->grid.dims[2] : t->grid.dims[0] * t->grid.dims[1];
        const size_t row = t->rank == 1 ? element : (size_t)t->grid.dims[2] * element;
        unsigned char *data = elements(t);
        for (int k = 0; k < 6 && rows > 1; k++) {
            const int64_t a = k == 0 ? 0 : (int64_t)rng_below(&state, (uint64_t)rows);
            const int64_t b = k == 0
                ? rows - 1
                : (a + 1 + (k > 3 ? 0 : (int64_t)rng_below(&state, (uint64_t)(rows - 1))))
                    % rows;
            unsigned char *p = data + (size_t)a * row, *q = data + (size_t)b * row;
            if (memcmp(p, q, row) == 0)
                continue; /* two equal elements of a vector */
            swap(p, q, row);
            hash(&x, t, data);
            seal(&x, after);
            swap(p, q, row);
            cr_assert_neq(memcmp(before, after, DIGEST_SIZE), 0, "%s: rows %ld and %ld",
                t->name, (long)a, (long)b);
        }
        hash(&x, t, data);
        free(data);
    }
    seal(&x, after);
    cr_assert_arr_eq(before, after, DIGEST_SIZE);
    model_free(&x);
}

Test(fingerprint, the_type_and_the_shape_are_part_of_it)
{
    struct model x;
    unsigned char before[DIGEST_SIZE], after[DIGEST_SIZE];
    model_new(&x);
    hash_all(&x);
    seal(&x, before);
    struct ckpt_tensor *t = &x.m->tensors[0];
    t->dtype = GLM_F16;
    seal(&x, after);
    cr_assert_neq(memcmp(before, after, DIGEST_SIZE), 0);
    t->dtype = GLM_BF16;
    swap(
        (unsigned char *)&t->shape[0], (unsigned char *)&t->shape[1], sizeof t->shape[0]);
    seal(&x, after);
    cr_assert_neq(memcmp(before, after, DIGEST_SIZE), 0);
    model_free(&x);
}
