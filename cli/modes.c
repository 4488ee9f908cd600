#include "cli/modes.h"

#include <stdio.h>
#include <string.h>

#include "cli/opt.h"
#include "cli/report.h"
#include "kernels/base/version.h"

static void help(const struct modes *m)
{
    for (const struct mode *x = m->mode; x->name != NULL; x++)
        printf("%s %s %s [options] %s\n", x == m->mode ? "usage:" : "      ", m->command,
            x->name, x->arguments);
    printf("%s\n\n"
           "  %s MODE --help%*sthe options of a mode\n"
           "  --help                      print this help and exit\n"
           "  --version                   print the version and exit\n",
        m->summary, m->command, 16 - (int)strlen(m->command), "");
}

/* "build, info, show or check" */
static void list(const struct modes *m, const char *last, char *out, size_t size)
{
    size_t n = (size_t)snprintf(out, size, "%s", m->mode[0].name);
    for (const struct mode *x = m->mode + 1; x->name != NULL && n < size; x++)
        n += (size_t)snprintf(out + n, size - n, "%s%s %s", x[1].name != NULL ? "," : " ",
            x[1].name != NULL ? "" : last, x->name);
}

int modes_main(const struct modes *m, int argc, char **argv)
{
    struct glm_error err = {0};
    const char *names[MODES_MAX + 1] = {NULL};
    char all[128];

    for (int i = 0; m->mode[i].name != NULL; i++) {
        names[i] = m->mode[i].name;
        if (argc > 1 && strcmp(argv[1], names[i]) == 0)
            return m->mode[i].run(argc - 1, argv + 1);
    }
    if (argc > 1 && strcmp(argv[1], "--help") == 0) {
        help(m);
    } else if (argc > 1 && strcmp(argv[1], "--version") == 0) {
        printf("%s %s\n", m->command, GLM_VERSION);
    } else if (argc < 2) {
        list(m, "or", all, sizeof all);
        glm_fail(
            &err, GLM_EUSAGE, "%s %s; %s --help says more", m->question, all, m->command);
    } else {
        const char *near = opt_nearest(argv[1], names);
        list(m, "and", all, sizeof all);
        glm_fail(&err, GLM_EUSAGE, "there is no mode '%s'; %s%s%s", argv[1],
            near != NULL ? "did you mean '" : "there are ", near != NULL ? near : all,
            near != NULL ? "'?" : "");
    }
    return cli_report(m->command, &err);
}
