/* gemm and grouped_gemm against three nested loops in double; rows and threads do not show. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/pool.h"
#include "kernels/ops.h"
#include "tests/support/brief.h"
#include "tests/support/close.h"
#include "tests/support/values.h"

/* ---- gemm -------------------------------------------------------------------------------------- */

static const struct {
    enum glm_dtype a, b, c;
} types[] = {
    {GLM_F32, GLM_F32, GLM_F32},
    {GLM_F64, GLM_F64, GLM_F64},
    {GLM_BF16, GLM_BF16, GLM_BF16},
    {GLM_BF16, GLM_BF16, GLM_F32},
    {GLM_F32, GLM_BF16, GLM_F32},
    {GLM_BF16, GLM_F32, GLM_BF16},
};
enum { TYPES = sizeof types / sizeof *types };

/* One element, one row, one column; below, at and above the library's tiles; K past its panels. */
static const int64_t shapes[][3] = {{1, 1, 1}, {1, 64, 64}, {64, 1, 40}, {3, 5, 7},
    {17, 96, 33}, {64, 64, 64}, {200, 130, 70}, {7, 300, 1100}, {97, 49, 256}, {5, 6, 0},
    {0, 4, 4}, {4, 0, 4}};

static void naive(const struct gemm *p, double *c)
{
    for (int64_t i = 0; i < p->M; i++) {
        for (int64_t j = 0; j < p->N; j++) {
            double s = 0;
            for (int64_t k = 0; k < p->K; k++)
                s += value_at(
                         p->a_type, p->a, p->trans_a ? k * p->lda + i : i * p->lda + k)
                    * value_at(
                        p->b_type, p->b, p->trans_b ? j * p->ldb + k : k * p->ldb + j);
            c[i * p->N + j] =
                s + (p->accumulate ? value_at(p->c_type, p->c, i * p->ldc + j) : 0);
        }
    }
}

/* Runs p on every pool, from the same C: all give the same bits, near the naive result, and leave
 * what lies between the rows alone. */
static void check_gemm(struct gemm p)
{
    const int64_t size = p.M * p.ldc;
    void *start = values_random(p.c_type, size, 3, 1), *first = NULL, *packed;
    double *want = malloc((size_t)(p.M * p.N) * sizeof *want + 1);
    struct glm_error err = {0};

    p.c = start;
    naive(&p, want);
    for (int which = 0; which < VALUE_POOLS; which++) {
        p.c = values_copy(p.c_type, start, size);
        cr_assert_eq(cpu_gemm(&p, value_pool(which), &err), 0, "%s", err.text);
        if (which == 0)
            first = values_copy(p.c_type, p.c, size);
        close_same("threads", p.c_type, first, p.c, size);
        free(p.c);
    }
    packed = values_filled(p.c_type, p.M * p.N, 0);
    for (int64_t i = 0; i < p.M; i++) {
        memcpy(value_ptr(p.c_type, packed, i * p.N),
            value_ptr(p.c_type, first, i * p.ldc),
            (size_t)p.N * glm_dtype_size(p.c_type));
        close_same("between rows", p.c_type, value_ptr(p.c_type, first, i * p.ldc + p.N),
            value_ptr(p.c_type, start, i * p.ldc + p.N), p.ldc - p.N);
    }
    close_check("gemm", CLOSE_SUM, p.c_type, p.c_type, packed, want, p.M * p.N);
    free(start);
    free(first);
    free(packed);
    free(want);
}

Test(gemm, is_the_sum_of_products_for_all_types_shapes_and_layouts)
{
    for (size_t t = 0; t < TYPES; t++) {
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            const int64_t M = shapes[s][0], N = shapes[s][1], K = shapes[s][2];
            for (int how = 0; how < 8; how += brief() ? 3 : 1) {
                const bool ta = how & 1, tb = how & 2;
                struct gemm p = {.M = M,
                    .N = N,
                    .K = K,
                    .trans_a = ta,
                    .trans_b = tb,
                    .accumulate = how & 4,
                    .a_type = types[t].a,
                    .b_type = types[t].b,
                    .c_type = types[t].c,
                    .lda = (ta ? M : K) + 3,
                    .ldb = (tb ? K : N) + 1,
                    .ldc = N + 2};
                void *a = values_random(p.a_type, (ta ? K : M) * p.lda, 1, 1);
                void *b = values_random(p.b_type, (tb ? N : K) * p.ldb, 2, 1);
                p.a = a;
                p.b = b;
                check_gemm(p);
                free(a);
                free(b);
            }
        }
    }
}

/* All rows at once, and the same rows in groups. */
static void check_rows(enum glm_dtype type, int64_t N, int64_t K, bool trans_b)
{
    static const int64_t groups[] = {1, 3, 17, 64, 200};
    enum { ROWS = 200 };
    void *a = values_random(type, ROWS * K, 1, 1), *b = values_random(type, N * K, 2, 1);
    void *start = values_random(type, ROWS * N, 3, 1);
    struct glm_error err = {0};

    for (int accumulate = 0; accumulate < 2; accumulate++) {
        void *first = NULL;
        for (int which = 1; which < VALUE_POOLS; which++) {
            for (size_t g = 0; g < sizeof groups / sizeof *groups; g++) {
                char *c = values_copy(type, start, ROWS * N);
                for (int64_t at = 0; at < ROWS; at += groups[g]) {
                    const int64_t m = ROWS - at < groups[g] ? ROWS - at : groups[g];
                    const struct gemm p = {.c = value_ptr(type, c, at * N),
                        .a = value_ptr(type, a, at * K),
                        .b = b,
                        .M = m,
                        .N = N,
                        .K = K,
                        .lda = K,
                        .ldb = trans_b ? K : N,
                        .ldc = N,
                        .trans_b = trans_b,
                        .accumulate = accumulate,
                        .a_type = type,
                        .b_type = type,
                        .c_type = type};
                    cr_assert_eq(
                        cpu_gemm(&p, value_pool(which), &err), 0, "%s", err.text);
                }
                if (first == NULL)
                    first = values_copy(type, c, ROWS * N);
                close_same("rows regrouped", type, first, c, ROWS * N);
                free(c);
            }
        }
        free(first);
    }
    free(a);
    free(b);
    free(start);
}

Test(gemm, gives_a_row_the_same_bits_whatever_the_other_rows_and_threads, .timeout = 1800)
{
    static const int64_t nk[][2] = {
        {1, 64}, {1, 700}, {2, 300}, {6, 33}, {64, 64}, {100, 1}, {512, 256}, {130, 900}};

    for (int t = 0; t < VALUE_TYPES; t++) {
        for (size_t i = 0; i < sizeof nk / sizeof *nk; i++) {
            if (!brief() || i % 2 == 0)
                check_rows(value_types[t], nk[i][0], nk[i][1], false);
            if (!brief() || i % 2 == 1)
                check_rows(value_types[t], nk[i][0], nk[i][1], true);
        }
    }
    for (int which = 1; which < VALUE_POOLS; which++)
        cr_assert_eq(pool_used(value_pool(which)), pool_threads(value_pool(which)),
            "every thread took part");
}

Test(gemm, refuses_what_cannot_be)
{
    const struct gemm good = {.M = 2,
        .N = 3,
        .K = 4,
        .lda = 4,
        .ldb = 3,
        .ldc = 3,
        .a_type = GLM_F32,
        .b_type = GLM_F32,
        .c_type = GLM_F32};
    struct gemm p;
    struct glm_error err = {0};

#define REFUSED(change, sentence)                                                        \
    p = good;                                                                            \
    p.change;                                                                            \
    glm_error_clear(&err);                                                               \
    cr_assert_eq(cpu_gemm(&p, NULL, &err), GLM_EFORMAT);                                 \
    cr_assert(strstr(err.text, sentence) != NULL, "%s", err.text)
    REFUSED(M = -1, "M -1, N 3, K 4");
    REFUSED(lda = 3, "lda 3");
    REFUSED(ldb = 2, "ldb 2");
    REFUSED(ldc = 2, "ldc 2");
    REFUSED(b_type = GLM_F64, "F32 = F32 x F64");
    REFUSED(c_type = GLM_I32, "I32");
#undef REFUSED
}

/* ---- groups ------------------------------------------------------------------------------------ */

static int64_t rows_of(const struct grouped_gemm *p)
{
    return p->offset[p->G];
}

/* Each group by gemm, which is tested above. */
static void by_groups(const struct grouped_gemm *p, void *c)
{
    const bool tn = p->kind == GROUP_TN, nn = p->kind == GROUP_NN;
    struct glm_error err = {0};

    for (int64_t g = 0; g < p->G; g++) {
        const int64_t at = p->offset[g], n = p->offset[g + 1] - at;
        struct gemm q = {.M = tn ? p->N : n,
            .N = tn ? p->K : p->N,
            .K = tn ? n : p->K,
            .lda = tn ? p->N : p->K,
            .ldb = nn ? p->N : p->K,
            .ldc = tn ? p->K : p->N,
            .trans_a = tn,
            .trans_b = p->kind == GROUP_NT,
            .accumulate = p->accumulate,
            .a_type = p->a_type,
            .b_type = p->b_type,
            .c_type = p->c_type};
        q.a = value_ptr(p->a_type, p->a, at * q.lda);
        q.b = value_ptr(p->b_type, p->b, tn ? at * p->K : g * p->N * p->K);
        q.c = value_ptr(p->c_type, c, tn ? g * p->N * p->K : at * p->N);
        cr_assert_eq(cpu_gemm(&q, NULL, &err), 0, "%s", err.text);
    }
}

static void check_grouped(struct grouped_gemm p)
{
    const bool tn = p.kind == GROUP_TN;
    const int64_t n = rows_of(&p), c_size = tn ? p.G * p.N * p.K : n * p.N;
    void *a = values_random(p.a_type, n * (tn ? p.N : p.K), 1, 1);
    void *b = values_random(p.b_type, tn ? n * p.K : p.G * p.N * p.K, 2, 1);
    void *start = values_random(p.c_type, c_size, 3, 1);
    void *want = values_copy(p.c_type, start, c_size);
    struct glm_error err = {0};

    p.a = a;
    p.b = b;
    by_groups(&p, want);
    for (int which = 0; which < VALUE_POOLS; which++) {
        p.c = values_copy(p.c_type, start, c_size);
        cr_assert_eq(cpu_grouped_gemm(&p, value_pool(which), &err), 0, "%s", err.text);
        close_same("groups", p.c_type, want, p.c, c_size);
        free(p.c);
    }
    free(a);
    free(b);
    free(start);
    free(want);
}

Test(grouped_gemm, is_gemm_group_by_group)
{
    static const int32_t few[] = {0, 5, 5, 40}, none[] = {0, 0},
                         many[] = {0, 1, 2, 2, 9, 30, 31, 31, 40, 41, 42, 43, 60, 60, 61,
                             70, 71, 90};
    static const struct {
        const int32_t *offset;
        int64_t G, N, K;
    } cases[] = {{few, 3, 100, 33}, {none, 1, 8, 8}, {many, 17, 20, 64}, {few, 3, 1, 1},
        {few, 0, 4, 4}, {few, 3, 0, 4}, {few, 3, 4, 0}};

    for (size_t t = 0; t < TYPES; t++) {
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            for (int how = 0; how < 6; how++)
                check_grouped((struct grouped_gemm){.offset = cases[i].offset,
                    .G = cases[i].G,
                    .N = cases[i].N,
                    .K = cases[i].K,
                    .accumulate = how & 1,
                    .kind = (enum group_kind)(how / 2),
                    .a_type = types[t].a,
                    .b_type = types[t].b,
                    .c_type = types[t].c});
        }
    }
}

Test(grouped_gemm, refuses_offsets_that_descend)
{
    const int32_t bad[] = {0, 4, 3}, below[] = {-1, 2};
    struct grouped_gemm p = {.offset = bad,
        .G = 2,
        .N = 1,
        .K = 1,
        .a_type = GLM_F32,
        .b_type = GLM_F32,
        .c_type = GLM_F32};
    struct glm_error err = {0};

    cr_assert_eq(cpu_grouped_gemm(&p, NULL, &err), GLM_EFORMAT);
    cr_assert(strstr(err.text, "descend from 4 to 3 at group 1") != NULL, "%s", err.text);
    glm_error_clear(&err);
    p.offset = below;
    cr_assert_eq(cpu_grouped_gemm(&p, NULL, &err), GLM_EFORMAT);
    glm_error_clear(&err);
    p.offset = bad;
    p.a_type = GLM_F64;
    cr_assert_eq(cpu_grouped_gemm(&p, NULL, &err), GLM_EFORMAT);
}
