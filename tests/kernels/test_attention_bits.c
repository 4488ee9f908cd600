/* Attention: the same bits with any number of threads and in any pack; what it refuses. */
#include <criterion/criterion.h>

#include "tests/kernels/attention_data.h"
#include "tests/support/brief.h"

/* ---- bits ------------------------------------------------------------------------------------- */

static void assert_same_rows(
    const struct data *a, const struct data *b, int64_t first, int64_t rows)
{
#define SAME(x, type, width)                                                             \
    cr_assert_eq(                                                                        \
        op_differ(type, a->x,                                                            \
            (const char *)b->x + (size_t)(first * (width)) * glm_dtype_size(type),       \
            rows * (width)),                                                             \
        0, #x)
    SAME(o, a->dtype, a->N * a->Dv);
    SAME(lse, a->acc, a->N);
    SAME(dq, a->dtype, a->N * a->Dq);
    SAME(dk, a->acc, a->Nk * a->Dq);
    SAME(dv, a->acc, a->Nk * a->Dv);
}

Test(attention_bits, has_the_same_bits_with_any_number_of_threads)
{
    static const int threads[] = {1, 2, 4};

    for (size_t i = 1; i < SHAPES; i++) {
        for (int m = 0; m < 3; m++) {
            if (skipped(i, op_dtypes[m]))
                continue;
            struct data alone = data_new(&shapes[i], op_dtypes[m], i);
            run(&alone, NULL);
            for (int j = brief() ? 2 : 0; j < 3; j++) {
                struct glm_error err = {0};
                struct data d = data_new(&shapes[i], op_dtypes[m], i);
                const glm_stream pool = pool_new(threads[j], &err);
                run(&d, pool);
                cr_assert_eq(pool_used(pool), threads[j], "shape %zu", i);
                assert_same_rows(&alone, &d, 0, d.T);
                pool_free(pool);
                data_free(&d);
            }
            data_free(&alone);
        }
    }
}

Test(attention_bits, of_a_sequence_does_not_depend_on_its_neighbours)
{
    for (size_t i = 0; i < SHAPES; i++) {
        for (int m = 0; m < 3; m++) {
            if (skipped(i, op_dtypes[m]))
                continue;
            struct data d = data_new(&shapes[i], op_dtypes[m], i);
            const size_t size = glm_dtype_size(d.dtype);
            run(&d, NULL);
            for (int64_t s = 0; s < d.S; s++) {
                struct shape one = shapes[i];
                const int64_t first = d.cu[s], rows = d.cu[s + 1] - first;
                memset(one.lengths, 0, sizeof one.lengths);
                one.lengths[0] = (int)rows;
                struct data e = data_new(&one, op_dtypes[m], 99);
                memcpy(e.q, (char *)d.q + (size_t)(first * d.N * d.Dq) * size,
                    (size_t)(rows * d.N * d.Dq) * size);
                memcpy(e.k, (char *)d.k + (size_t)(first * d.k_stride) * size,
                    (size_t)(rows * d.k_stride) * size);
                memcpy(e.v, (char *)d.v + (size_t)(first * d.v_stride) * size,
                    (size_t)(rows * d.v_stride) * size);
                memcpy(e.do_, (char *)d.do_ + (size_t)(first * d.N * d.Dv) * size,
                    (size_t)(rows * d.N * d.Dv) * size);
                for (int64_t j = 0; j < rows * d.K; j++) {
                    const int32_t at = d.index[first * d.K + j];
                    e.index[j] = at < 0 ? -1 : at - (int32_t)first;
                }
                run(&e, NULL);
                assert_same_rows(&e, &d, first, rows);
                data_free(&e);
            }
            data_free(&d);
        }
    }
}

/* ---- refusals --------------------------------------------------------------------------------- */

static void assert_refused(const struct data *d, const char *word)
{
    struct glm_error err = {0}, again = {0};

    cr_assert_eq(forward(d, NULL, &err), GLM_EFORMAT, "%s", word);
    cr_assert_not_null(strstr(err.text, word), "%s", err.text);
    cr_assert_eq(backward(d, NULL, &again), GLM_EFORMAT, "%s", word);
    cr_assert_not_null(strstr(again.text, word), "%s", again.text);
}

Test(attention_bits, refuses_what_cannot_be)
{
    struct data d = data_new(&shapes[3], GLM_F32, 0); /* sequences at 0, 5, 6, 23; K 8 */
    int32_t *row = d.index + 10 * d.K; /* of the sequence that begins at 6 */
    int32_t saved[8];

    memcpy(saved, row, sizeof saved);
    memcpy(row, (int32_t[]){5, 6, 7, -1, -1, -1, -1, -1}, sizeof saved);
    assert_refused(&d, "row 10's key set is 5");
    memcpy(row, (int32_t[]){6, 11, -1, -1, -1, -1, -1, -1}, sizeof saved);
    assert_refused(&d, "row 10's key set is 11");
    memcpy(row, (int32_t[]){7, 7, -1, -1, -1, -1, -1, -1}, sizeof saved);
    assert_refused(&d, "entry 1 of row 10");
    memcpy(row, (int32_t[]){6, -1, 8, -1, -1, -1, -1, -1}, sizeof saved);
    assert_refused(&d, "row 10's key set");
    memcpy(row, (int32_t[]){-1, -1, -1, -1, -1, -1, -1, -1}, sizeof saved);
    assert_refused(&d, "row 10 is empty");
    memcpy(row, saved, sizeof saved);
    d.cu[0] = 1;
    assert_refused(&d, "begins with 1");
    d.cu[0] = 0;
    d.cu[2] = 5;
    assert_refused(&d, "cu_seqlens[2] is 5");
    d.cu[2] = 6;
    d.T++;
    assert_refused(&d, "ends with 32");
    d.T--;
    d.N = 3;
    assert_refused(&d, "2 key heads");
    d.N = 2;
    d.Dv = 0;
    assert_refused(&d, "0 dimensions");
    d.Dv = 16;
    d.dtype = GLM_F16;
    assert_refused(&d, "F16");
    data_free(&d);
}
