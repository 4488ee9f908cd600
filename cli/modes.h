/* A command of several modes, each with options of its own: "glm-verify diff A B". */
#ifndef CLI_MODES_H
#define CLI_MODES_H

struct mode {
    const char *name, *arguments;
    int (*run)(
        int argc, char **argv); /* argv[0] is the mode's name; returns the exit status */
};

enum { MODES_MAX = 8 };

struct modes {
    const char *command;             /* "glm-verify" */
    const char *question;            /* "which proof?": when no mode is given */
    const char *summary;             /* a sentence for --help */
    struct mode mode[MODES_MAX + 1]; /* one without a name ends them */
};

/* The whole of such a command: runs the mode that argv names; --help lists them. */
int modes_main(const struct modes *m, int argc, char **argv);

#endif
