/* Option tables: parsing, --help, --version, and what the manual pages are checked against.
 *
 * A command is a name, its synopsis lines, and rows of options typed by their target. GNU long
 * options: `--name value` or `--name=value`, anywhere among the arguments; `--` ends them; the last
 * of a repeated option wins (OPT_KIND_MANY: all are kept). --help and --version are in every table without a row.
 *
 *     const struct opt opts[] = {
 *         OPT_CHOICE("dtype", "same|bf16|f32", &o.dtype, "store weights in this type"),
 *         OPT_COMMON(&common),
 *         OPT_END,
 *     };
 *     const struct command self = {.name = "glm-import", .synopsis = {"SRC CKPT"}, .opts = opts, …};
 *     if (opt_parse(&self, &argc, &argv, &err) == 0)
 *         …; argv[0] is SRC now */
#ifndef CLI_OPT_H
#define CLI_OPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "kernels/base/error.h"

enum opt_kind {
    OPT_KIND_END,
    OPT_KIND_STR,    /* const char *: points into argv */
    OPT_KIND_CHOICE, /* const char *: one of the words that arg lists, "a|b|c" */
    OPT_KIND_TEXT,   /* char[max]: a copy */
    OPT_KIND_INT,    /* int in [min, max] */
    OPT_KIND_REAL,   /* double, finite, >= 0 */
    OPT_KIND_SIZE,   /* uint64_t bytes, > 0 */
    OPT_KIND_FLAG,   /* bool: set to true */
    OPT_KIND_MANY,   /* struct opt_many: each one counts, not only the last */
};

enum { OPT_MANY = 64 };
struct opt_many {
    const char *word[OPT_MANY]; /* pointing into argv */
    int count;
};

struct opt {
    enum opt_kind kind;
    const char *name; /* without the dashes */
    const char *arg;  /* what --help calls the value; NULL for a flag */
    union {
        const char **str;
        char *text;
        int *integer;
        double *real;
        uint64_t *size;
        bool *flag;
        struct opt_many *many;
    } to;
    int64_t min, max;
    const char *help; /* one line, lower case, no full stop */
};

/* clang-format off */
#define OPT_STR(n, a, p, h) {.kind = OPT_KIND_STR, .name = (n), .arg = (a), .to.str = (p), .help = (h)}
#define OPT_LIST(n, a, p, h) OPT_STR(n, a, p, h) /* "0-3,78": whoever uses it knows the range */
#define OPT_CHOICE(n, a, p, h)                                                                      \
    {.kind = OPT_KIND_CHOICE, .name = (n), .arg = (a), .to.str = (p), .help = (h)}
#define OPT_TEXT(n, a, p, size, h)                                                                  \
    {.kind = OPT_KIND_TEXT, .name = (n), .arg = (a), .to.text = (p), .max = (size), .help = (h)}
#define OPT_INT(n, a, p, lo, hi, h)                                                                 \
    {.kind = OPT_KIND_INT, .name = (n), .arg = (a), .to.integer = (p), .min = (lo), .max = (hi),    \
        .help = (h)}
#define OPT_REAL(n, a, p, h)                                                                        \
    {.kind = OPT_KIND_REAL, .name = (n), .arg = (a), .to.real = (p), .help = (h)}
/* "65536", "512M" and "4GiB" count in 1024s, "5GB" in 1000s, as dd does. */
#define OPT_SIZE(n, a, p, h)                                                                        \
    {.kind = OPT_KIND_SIZE, .name = (n), .arg = (a), .to.size = (p), .help = (h)}
#define OPT_FLAG(n, p, h) {.kind = OPT_KIND_FLAG, .name = (n), .to.flag = (p), .help = (h)}
#define OPT_MANY_(n, a, p, h)                                                                       \
    {.kind = OPT_KIND_MANY, .name = (n), .arg = (a), .to.many = (p), .help = (h)}
#define OPT_END {.kind = OPT_KIND_END}
/* clang-format on */

enum { OPT_MAX_MODES = 8, OPT_SHOWN = -1 };

struct command {
    const char *name; /* "glm-import"; a mode's: "glm-verify diff" */
    const char *synopsis
        [OPT_MAX_MODES];    /* what follows name and options: "SRC CKPT"; one a mode */
    const char *summary;    /* one sentence for --help */
    int min_args, max_args; /* how many arguments are not options */
    const struct opt *opts; /* ended by OPT_END */
};

/* Parses argv[1..]. On return 0 *argv holds the arguments that are not options and *argc their
 * count (argv's strings are reordered in place; opt targets point into them). OPT_SHOWN: --help or
 * --version was printed on stdout, there is nothing more to do and err is clear. Otherwise
 * GLM_EUSAGE, with the nearest known name for an unknown one. */
int opt_parse(const struct command *self, int *argc, char ***argv, struct glm_error *err);

/* What --help prints. */
void opt_help(const struct command *self, FILE *out);

/* "512M" to bytes. name is for the sentence. */
int opt_size(const char *name, const char *text, uint64_t *out, struct glm_error *err);

/* The known word nearest to `word` by edits, NULL if none is near enough to be meant. words ends
 * with NULL. For modes and keys as well as for options. */
const char *opt_nearest(const char *word, const char *const *words);

/* Options that every command has. */
struct common_options {
    int threads; /* 0: not given; cli_threads(), cli_movers() */
    bool json, quiet;
};

/* clang-format off */
#define OPT_COMMON(c)                                                                               \
    OPT_INT("threads", "n", &(c)->threads, 1, 1024, "threads that work at the same time"),          \
        OPT_FLAG("json", &(c)->json, "print the result as one JSON object"),                        \
        OPT_FLAG("quiet", &(c)->quiet, "print no progress and no notes")
/* clang-format on */

/* The number given, else one per CPU that this process may use, at most 64. */
int cli_threads(const struct common_options *c);
/* For work that moves bytes: the number given, else four per CPU, at most 64, as most of them wait
 * for the disk at any time. */
int cli_movers(const struct common_options *c);

#endif
