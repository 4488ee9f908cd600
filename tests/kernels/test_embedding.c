/* Embedding: rows moved bit for bit, gradients summed in order. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/ops.h"
#include "tests/support/close.h"
#include "tests/support/rng.h"
#include "tests/support/values.h"

static int32_t *random_ids(int64_t T, int64_t V)
{
    int32_t *ids = malloc((size_t)T * sizeof *ids + 1);
    uint64_t state = 5;

    for (int64_t t = 0; t < T; t++)
        ids[t] = (int32_t)rng_below(&state, (uint64_t)V);
    return ids;
}

static void check_embedding(
    enum glm_dtype dtype, int64_t T, int64_t V, int64_t H, int64_t skip)
{
    const enum glm_dtype acc = value_acc(dtype);
    int32_t *ids = random_ids(T, V);
    void *table = values_random(dtype, V * H, 1, 1),
         *dy = values_random(dtype, T * H, 2, 1);
    void *start = values_random(acc, V * H, 3, 1),
         *first = values_copy(acc, start, V * H);
    double *want = values_double(acc, start, V * H),
           *rows = malloc((size_t)(T * H) * 8 + 1);
    struct glm_error err = {0};

    for (int64_t i = 0; i < T * H; i++) {
        rows[i] = value_at(dtype, table, ids[i / H] * H + i % H);
        if (ids[i / H] != skip)
            want[ids[i / H] * H + i % H] += value_at(dtype, dy, i);
    }
    for (int which = 0; which < VALUE_POOLS; which++) {
        void *y = values_filled(dtype, T * H, 7), *d = values_copy(acc, start, V * H);
        cpu_embedding_fwd(&(struct embedding_fwd){.y = y,
                              .table = table,
                              .ids = ids,
                              .T = T,
                              .V = V,
                              .H = H,
                              .dtype = dtype},
            value_pool(which), &err);
        cpu_embedding_bwd(&(struct embedding_bwd){.dtable = d,
                              .dy = dy,
                              .ids = ids,
                              .T = T,
                              .V = V,
                              .H = H,
                              .skip_id = skip,
                              .dtype = dtype},
            value_pool(which), &err);
        cr_assert_eq(err.code, 0, "%s", err.text);
        close_check("y", CLOSE_COPY, dtype, dtype, y, rows, T * H);
        close_check("dtable", CLOSE_SUM, acc, acc, d, want, V * H);
        if (which == 0)
            memcpy(first, d, (size_t)(V * H) * glm_dtype_size(acc));
        close_same("dtable", acc, first, d, V * H);
        free(y);
        free(d);
    }
    free(ids);
    free(table);
    free(dy);
    free(start);
    free(first);
    free(want);
    free(rows);
}

Test(embedding, gathers_rows_and_sums_gradients_per_id)
{
    for (int t = 0; t < VALUE_TYPES; t++) {
        check_embedding(value_types[t], 1, 1, 1, -1);
        check_embedding(value_types[t], 100, 7, 33, -1);
        check_embedding(value_types[t], 100, 7, 300, 3);
        check_embedding(value_types[t], 40, 1000, 64, 0);
        check_embedding(value_types[t], 0, 4, 4, -1);
    }
}

Test(embedding, adds_rows_of_one_id_in_ascending_order)
{
    /* 1 + 2^-24 + 2^-24 in F32 is 1 from the left and 1 + 2^-23 from the right. */
    const float dy[3] = {1, 0x1p-24f, 0x1p-24f};
    const int32_t ids[3] = {0, 0, 0};
    float d = 0;
    struct glm_error err = {0};

    cpu_embedding_bwd(&(struct embedding_bwd){.dtable = &d,
                          .dy = dy,
                          .ids = ids,
                          .T = 3,
                          .V = 1,
                          .H = 1,
                          .skip_id = -1,
                          .dtype = GLM_F32},
        NULL, &err);
    cr_assert_eq(d, 1);
}

Test(embedding, names_an_id_out_of_the_vocabulary_and_its_position)
{
    const int32_t high[3] = {0, 4, 5}, low[2] = {1, -1};
    float table[10], y[6];
    struct embedding_fwd f = {
        .y = y, .table = table, .ids = high, .T = 3, .V = 5, .H = 2, .dtype = GLM_F32};
    struct embedding_bwd b = {.dtable = table,
        .dy = y,
        .ids = low,
        .T = 2,
        .V = 5,
        .H = 2,
        .skip_id = -1,
        .dtype = GLM_F32};
    struct glm_error err = {0};

    cr_assert_eq(cpu_embedding_fwd(&f, NULL, &err), GLM_EFORMAT);
    cr_assert(
        strstr(err.text, "id 5 at position 2, expected 0 to 4") != NULL, "%s", err.text);
    glm_error_clear(&err);
    cr_assert_eq(cpu_embedding_bwd(&b, NULL, &err), GLM_EFORMAT);
    cr_assert(strstr(err.text, "id -1 at position 1") != NULL, "%s", err.text);
    glm_error_clear(&err);
    f.H = 0;
    cr_assert_eq(cpu_embedding_fwd(&f, NULL, &err), GLM_EFORMAT);
    glm_error_clear(&err);
    b.V = 0;
    cr_assert_eq(cpu_embedding_bwd(&b, NULL, &err), GLM_EFORMAT);
}
