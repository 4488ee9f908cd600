/* glm-verify: proofs about checkpoints and runs. Each mode has its own options; here the mode is chosen. */
#include <stdio.h>
#include <string.h>

#include "cli/opt.h"
#include "cli/report.h"
#include "cli/verify_modes.h"
#include "kernels/base/version.h"

static const struct mode {
    const char *name, *arguments;
    int (*run)(int argc, char **argv);
} modes[] = {
    {"integrity", "CKPT", verify_integrity},
    {"diff", "A B", verify_diff},
    {"resume", "RECIPE", verify_resume},
    {"numerics", "CKPT GOLDEN", verify_numerics},
};

enum { MODES = sizeof modes / sizeof *modes };

static void help(void)
{
    for (int i = 0; i < MODES; i++)
        printf("%s glm-verify %s [options] %s\n", i == 0 ? "usage:" : "      ",
            modes[i].name, modes[i].arguments);
    printf("Proves that checkpoints are intact and equal, that runs repeat, and that the "
           "model computes\nwhat others do.\n\n"
           "  glm-verify MODE --help      the options of a mode\n"
           "  --help                      print this help and exit\n"
           "  --version                   print the version and exit\n");
}

int main(int argc, char **argv)
{
    struct glm_error err = {0};
    const char *names[MODES + 1] = {NULL};
    for (int i = 0; i < MODES; i++) {
        names[i] = modes[i].name;
        if (argc > 1 && strcmp(argv[1], modes[i].name) == 0)
            return modes[i].run(argc - 1, argv + 1);
    }
    if (argc > 1 && strcmp(argv[1], "--help") == 0) {
        help();
    } else if (argc > 1 && strcmp(argv[1], "--version") == 0) {
        printf("glm-verify %s\n", GLM_VERSION);
    } else if (argc < 2) {
        glm_fail(&err, GLM_EUSAGE,
            "which proof? integrity, diff, resume or numerics; glm-verify --help says "
            "more");
    } else {
        const char *near = opt_nearest(argv[1], names);
        glm_fail(&err, GLM_EUSAGE, "there is no mode '%s'%s%s%s", argv[1],
            near != NULL ? "; did you mean '"
                         : "; there are integrity, diff, resume and numerics",
            near != NULL ? near : "", near != NULL ? "'?" : "");
    }
    return cli_report("glm-verify", &err);
}
