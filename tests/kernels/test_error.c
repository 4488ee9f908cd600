/* Errors: the first cause stays, context goes in front, codes become the promised exit status. */
#include <errno.h>
#include <signal.h>
#include <string.h>

#include <criterion/criterion.h>

#include "kernels/base/error.h"

Test(error, keeps_the_first_cause)
{
    struct glm_error err = {0};

    cr_assert_eq(glm_fail(&err, GLM_EFORMAT, "byte %d", 7), GLM_EFORMAT);
    cr_assert_eq(glm_fail(&err, GLM_EIO, "later"), GLM_EFORMAT);
    errno = ENOSPC;
    cr_assert_eq(glm_fail_errno(&err, "later still"), GLM_EFORMAT);
    cr_assert_str_eq(err.text, "byte 7");
    cr_assert_eq(err.sys_errno, 0);
}

Test(error, adds_the_reason_of_errno)
{
    struct glm_error err = {0};

    errno = ENOSPC;
    cr_assert_eq(glm_fail_errno(&err, "%s: write", "a.h5"), GLM_EIO);
    cr_assert_str_eq(err.text, "a.h5: write: No space left on device");
    cr_assert_eq(err.sys_errno, ENOSPC);
    cr_assert_eq(errno, ENOSPC);
}

Test(error, calls_enomem_no_memory)
{
    struct glm_error err = {0};

    errno = ENOMEM;
    cr_assert_eq(glm_fail_errno(&err, "table"), GLM_ENOMEM);
}

Test(error, puts_context_in_front)
{
    struct glm_error err = {0};

    cr_assert_eq(glm_within(&err, "rank %d", 3), GLM_OK);
    cr_assert_str_eq(err.text, "");
    glm_fail(&err, GLM_EMISMATCH, "differs");
    cr_assert_eq(glm_within(&err, "rank %d", 3), GLM_EMISMATCH);
    cr_assert_eq(glm_within(&err, "step 9"), GLM_EMISMATCH);
    cr_assert_str_eq(err.text, "step 9: rank 3: differs");
}

Test(error, marks_a_sentence_that_was_cut)
{
    struct glm_error err = {0};
    char big[3000];

    memset(big, 'x', sizeof big);
    big[sizeof big - 1] = '\0';
    glm_fail(&err, GLM_EFORMAT, "%s", big);
    cr_assert_eq(strlen(err.text), sizeof err.text - 1);
    cr_assert_str_eq(err.text + sizeof err.text - 4, "...");
    glm_within(&err, "file %s", big);
    cr_assert_eq(strlen(err.text), sizeof err.text - 1);
    cr_assert_str_eq(err.text + sizeof err.text - 4, "...");
    cr_assert_eq(memcmp(err.text, "file x", 6), 0);
}

Test(error, gives_each_code_its_exit_status)
{
    static const struct {
        enum glm_code code;
        int status;
    } row[] = {
        {GLM_OK, 0},
        {GLM_EMISMATCH, 1},
        {GLM_EUSAGE, 2},
        {GLM_EFORMAT, 3},
        {GLM_EIO, 4},
        {GLM_ENOMEM, 4},
        {GLM_EDEVICE, 4},
    };

    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        const struct glm_error err = {.code = row[i].code};
        cr_expect_eq(glm_exit_status(&err), row[i].status);
    }
    const struct glm_error stopped = {.code = GLM_ESTOPPED, .sys_errno = SIGTERM};
    cr_expect_eq(glm_exit_status(&stopped), 128 + SIGTERM);
}

Test(error, is_empty_after_clear)
{
    struct glm_error err = {0};

    errno = EIO;
    glm_fail_errno(&err, "x");
    glm_error_clear(&err);
    cr_assert_eq(err.code, GLM_OK);
    cr_assert_eq(err.sys_errno, 0);
    cr_assert_str_eq(err.text, "");
    cr_assert_eq(glm_fail(&err, GLM_EUSAGE, "new"), GLM_EUSAGE);
}
