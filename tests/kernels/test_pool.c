/* The pool: every index once, each thread used, scratch memory that comes back. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/pool.h"
#include "kernels/kernels.h"

struct marks {
    unsigned char *seen;
    int64_t n, grain;
};

static void mark(const void *ctx, int64_t begin, int64_t end)
{
    const struct marks *m = ctx;

    cr_assert(begin % m->grain == 0 && end - begin <= m->grain && end <= m->n);
    for (int64_t i = begin; i < end; i++)
        m->seen[i]++;
}

Test(pool, runs_every_index_once)
{
    static const int64_t sizes[][2] = {
        {0, 1}, {1, 1}, {1, 9}, {7, 1}, {64, 8}, {1000, 7}};
    struct glm_error err = {0};

    for (int threads = 0; threads <= 5; threads++) {
        const glm_stream p = threads == 0 ? NULL : pool_new(threads, &err);
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            const int64_t n = sizes[i][0];
            const struct marks m = {calloc(1, (size_t)n + 1), n, sizes[i][1]};
            for (int k = 1; k <= 20; k++) {
                pool_for(p, n, m.grain, mark, &m);
                for (int64_t j = 0; j < n; j++)
                    cr_assert_eq(m.seen[j], k);
            }
            cr_assert_eq(m.seen[n], 0);
            free(m.seen);
        }
        pool_free(p);
    }
}

Test(pool, uses_each_thread_that_can_have_a_range)
{
    struct glm_error err = {0};

    for (int threads = 1; threads <= 4; threads++) {
        for (int64_t ranges = 1; ranges <= 6; ranges++) {
            const glm_stream p = pool_new(threads, &err);
            const struct marks m = {calloc(1, 6), ranges, 1};
            cr_assert_eq(pool_used(p), 0);
            pool_for(p, ranges, 1, mark, &m);
            cr_assert_eq(pool_used(p), ranges < threads ? ranges : threads);
            free(m.seen);
            pool_free(p);
        }
    }
}

Test(pool, hands_out_scratch_again_and_apart)
{
    struct glm_error err = {0};
    const glm_stream p = pool_new(2, &err);
    void *a = pool_scratch(p, 100, &err), *b = pool_scratch(p, 50, &err);

    cr_assert(a != NULL && b != NULL && a != b && (uintptr_t)a % 64 == 0);
    memset(a, 1, 100);
    pool_scratch_free(p, a);
    cr_assert_eq(
        pool_scratch(p, 60, &err), a, "a block that is large enough serves again");
    cr_assert_neq(pool_scratch(p, 60, &err), a);
    pool_scratch_free(p, NULL);
    pool_free(p);

    a = pool_scratch(NULL, 10, &err);
    cr_assert_not_null(a);
    pool_scratch_free(NULL, a);
}

Test(pool, reports_what_it_cannot_make)
{
    struct glm_error err = {0};

    cr_assert_null(pool_new(0, &err));
    cr_assert_eq(err.code, GLM_EUSAGE);
    glm_error_clear(&err);
    cr_assert_null(pool_scratch(NULL, SIZE_MAX, &err));
    cr_assert_eq(err.code, GLM_ENOMEM);
    glm_error_clear(&err);

    const glm_stream p = pool_new(1, &err);
    cr_assert_null(pool_scratch(p, SIZE_MAX, &err));
    cr_assert_eq(err.code, GLM_ENOMEM);
    glm_error_clear(&err);
    cr_assert_not_null(pool_scratch(p, 8, &err), "and goes on after a failure");
    pool_free(p);
}

Test(kernels, table_has_the_cpu_and_names_unknown_types)
{
    struct glm_error err = {0};
    const struct kernels *k = kernels_find("cpu");

    cr_assert(k != NULL && kernels_find("tpu") == NULL);
    float x = 1, y = 2;
    cr_assert_eq(
        k->add(&(struct add){.y = &y, .a = &x, .b = &x, .n = 1, .dtype = GLM_F32}, NULL,
            &err),
        0, "%s", err.text);
    cr_assert_eq(y, 2);
    cr_assert_eq(k->add(&(struct add){.dtype = GLM_I32}, NULL, &err), GLM_EFORMAT);
    cr_assert(strstr(err.text, "I32") != NULL);
}
