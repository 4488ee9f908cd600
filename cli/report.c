#include "cli/report.h"

#include <errno.h>
#include <stdio.h>

int cli_report(const char *name, struct glm_error *err)
{
    errno = 0;
    if (fflush(stdout) != 0)
        glm_fail_errno(err, "standard output: write");
    else if (ferror(stdout))
        glm_fail(err, GLM_EIO, "standard output: an earlier write failed");
    if (err->code != GLM_OK)
        fprintf(stderr, "%s: %s\n", name, err->text);
    return glm_exit_status(err);
}
