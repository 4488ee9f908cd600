#include "cli/report.h"

#include <criterion/criterion.h>
#include <criterion/redirect.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/signals.h"

Test(report, a_clear_error_says_nothing_and_is_zero)
{
    struct glm_error err = {0};
    cr_redirect_stderr();
    cr_expect_eq(cli_report("glm-x", &err), 0);
    fflush(stderr);
    cr_expect_stderr_eq_str("");
}

Test(report, one_sentence_on_stderr_and_the_exit_status_of_the_code)
{
    static const struct {
        enum glm_code code;
        int sys_errno, status;
    } cases[] = {{GLM_EMISMATCH, 0, 1}, {GLM_EUSAGE, 0, 2}, {GLM_EFORMAT, 0, 3},
        {GLM_EIO, 0, 4}, {GLM_ENOMEM, 0, 4}, {GLM_EDEVICE, 0, 4},
        {GLM_ESTOPPED, SIGTERM, 128 + SIGTERM}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct glm_error err = {.code = cases[i].code,
            .sys_errno = cases[i].sys_errno,
            .text = "a: is wrong"};
        cr_expect_eq(
            cli_report("glm-x", &err), cases[i].status, "code %d", (int)cases[i].code);
    }
    struct glm_error err = {
        .code = GLM_EFORMAT, .text = "model.safetensors: byte 8: is wrong"};
    cr_redirect_stderr();
    cli_report("glm-x", &err);
    fflush(stderr);
    cr_expect_stderr_eq_str("glm-x: model.safetensors: byte 8: is wrong\n");
}

Test(report, what_a_terminal_would_obey_is_shown_as_its_bytes)
{
    struct glm_error err = {.code = GLM_EFORMAT,
        .text = "a\nb\x1b[31m\x7f \xc2\x9b \xe2\x80\xae\xe2\x81\xa6 "
                "caf\xc3\xa9 \xe2\x80\x93 \xff: is wrong"};
    cr_redirect_stderr();
    cli_report("glm-x", &err);
    cr_expect_stderr_eq_str(
        "glm-x: a\\x0ab\\x1b[31m\\x7f \\xc2\\x9b \\xe2\\x80\\xae\\xe2\\x81\\xa6 "
        "caf\xc3\xa9 \xe2\x80\x93 \xff: is wrong\n");
}

Test(report, a_result_that_cannot_be_written_is_an_error)
{
    if (freopen("/dev/full", "w", stdout) == NULL)
        cr_assert_fail("/dev/full");
    printf("result\n");
    struct glm_error err = {0};
    cr_expect_eq(cli_report("glm-x", &err), 4);
}

Test(signals, the_first_is_remembered_and_the_second_of_its_kind_kills)
{
    const pid_t child = fork();
    cr_assert_geq(child, 0);
    if (child == 0) {
        const volatile sig_atomic_t *stop = signals_catch();
        if (*stop != 0)
            _exit(1);
        raise(SIGTERM);
        if (*stop != SIGTERM)
            _exit(2);
        raise(SIGTERM);
        _exit(3);
    }
    int status = 0;
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_expect(WIFSIGNALED(status), "exited with %d", WEXITSTATUS(status));
    cr_expect_eq(WTERMSIG(status), SIGTERM);
}

Test(signals, one_that_was_ignored_at_the_start_stays_ignored)
{
    signal(SIGHUP, SIG_IGN);
    const volatile sig_atomic_t *stop = signals_catch();
    raise(SIGHUP);
    cr_expect_eq(*stop, 0);
}
