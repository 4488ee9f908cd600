#include "cli/report.h"

#include <errno.h>
#include <stdio.h>

/* Length of a character, in UTF-8, that is not to reach a terminal; else 0. */
static int unsafe(const unsigned char *c)
{
    if (c[0] < 0x20 || c[0] == 0x7f)
        return 1;
    if (c[0] == 0xc2 && c[1] >= 0x80 && c[1] < 0xa0)
        return 2;
    if (c[0] != 0xe2)
        return 0;
    return (c[1] == 0x80
               && (c[2] == 0x8e || c[2] == 0x8f || (c[2] >= 0xa8 && c[2] <= 0xae)))
            || (c[1] == 0x81 && c[2] >= 0xa6 && c[2] <= 0xa9)
        ? 3
        : 0;
}

const char *cli_shown(const char *text, char shown[CLI_SHOWN])
{
    size_t at = 0;
    for (const unsigned char *c = (const unsigned char *)text;
         *c != '\0' && at + 16 < CLI_SHOWN;) {
        const int n = unsafe(c);
        if (n == 0)
            shown[at++] = (char)*c++;
        for (int i = 0; i < n; i++)
            at += (size_t)snprintf(shown + at, CLI_SHOWN - at, "\\x%02x", *c++);
    }
    shown[at] = '\0';
    return shown;
}

void cli_sentence(FILE *out, const char *name, const char *text)
{
    char shown[CLI_SHOWN]; /* one write: stderr has no buffer of its own */
    fprintf(out, "%s: %s\n", name, cli_shown(text, shown));
}

int cli_report(const char *name, struct glm_error *err)
{
    errno = 0;
    if (fflush(stdout) != 0)
        glm_fail_errno(err, "standard output: write");
    else if (ferror(stdout))
        glm_fail(err, GLM_EIO, "standard output: an earlier write failed");
    if (err->code != GLM_OK)
        cli_sentence(stderr, name, err->text);
    return glm_exit_status(err);
}
