#include "cli/opt.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct values {
    const char *dtype, *layers;
    char layout[8];
    int tp;
    double atol;
    uint64_t size;
    bool replace;
};

/* Parses words (ended by NULL, argv[0] left out) and returns the code. */
static int parse(struct values *v, const char *const *words, int *argc, char ***argv,
    struct glm_error *err)
{
    const struct opt opts[] = {
        OPT_INT("tp", "n", &v->tp, 1, 64, "tensor-parallel ranks"),
        OPT_CHOICE("dtype", "same|bf16|f32", &v->dtype, "type"),
        OPT_LIST("layers", "list", &v->layers, "layers"),
        OPT_TEXT("layout", "str", v->layout, sizeof v->layout, "layout"),
        OPT_REAL("atol", "x", &v->atol, "tolerance"),
        OPT_SIZE("shard-size", "bytes", &v->size, "size"),
        OPT_FLAG("replace", &v->replace, "replace"),
        OPT_END,
    };
    const struct command self = {.name = "glm-test",
        .synopsis = {"SRC CKPT"},
        .min_args = 1,
        .max_args = 2,
        .opts = opts};
    static char *line[32];
    int n = 0;
    line[n++] = (char *)(uintptr_t) "glm-test";
    for (; words[n - 1] != NULL; n++)
        line[n] = (char *)(uintptr_t)words[n - 1];
    *argc = n;
    *argv = line;
    return opt_parse(&self, argc, argv, err);
}

#define WORDS(...)                                                                       \
    (const char *const[])                                                                \
    {                                                                                    \
        __VA_ARGS__, NULL                                                                \
    }

static void expect_refused(const char *const *words, const char *sentence)
{
    struct values v = {0};
    struct glm_error err = {0};
    int argc;
    char **argv;
    cr_expect_eq(
        parse(&v, words, &argc, &argv, &err), GLM_EUSAGE, "accepted: %s", sentence);
    cr_expect_str_eq(err.text, sentence);
}

Test(opt, takes_values_with_equals_sign_or_as_the_next_word_in_any_order)
{
    struct values v = {0};
    struct glm_error err = {0};
    int argc;
    char **argv;
    cr_assert_eq(parse(&v,
                     WORDS("--tp=8", "src", "--dtype", "bf16", "--replace", "out",
                         "--layers=0-3,78", "--layout", "Et|tL", "--atol", "1e-3",
                         "--shard-size=512M"),
                     &argc, &argv, &err),
        0, "%s", err.text);
    cr_expect_eq(argc, 2);
    cr_expect_str_eq(argv[0], "src");
    cr_expect_str_eq(argv[1], "out");
    cr_expect_null(argv[2]);
    cr_expect_eq(v.tp, 8);
    cr_expect_str_eq(v.dtype, "bf16");
    cr_expect_str_eq(v.layers, "0-3,78");
    cr_expect_str_eq(v.layout, "Et|tL");
    cr_expect_eq(v.atol, 1e-3);
    cr_expect_eq(v.size, 512u << 20);
    cr_expect(v.replace);
}

Test(opt, two_dashes_end_the_options_and_a_single_dash_is_an_argument)
{
    struct values v = {0};
    struct glm_error err = {0};
    int argc;
    char **argv;
    cr_assert_eq(
        parse(&v, WORDS("-", "--", "--tp=8"), &argc, &argv, &err), 0, "%s", err.text);
    cr_expect_eq(argc, 2);
    cr_expect_str_eq(argv[0], "-");
    cr_expect_str_eq(argv[1], "--tp=8");
    cr_expect_eq(v.tp, 0);
}

Test(opt, the_last_of_a_repeated_option_wins)
{
    struct values v = {0};
    struct glm_error err = {0};
    int argc;
    char **argv;
    cr_assert_eq(parse(&v, WORDS("--tp=2", "a", "--tp", "4"), &argc, &argv, &err), 0);
    cr_expect_eq(v.tp, 4);
}

Test(opt, an_unknown_name_gets_the_nearest_known_one)
{
    expect_refused(
        WORDS("--dtpye=bf16", "a"), "unknown option '--dtpye'; did you mean '--dtype'?");
    expect_refused(
        WORDS("--repl", "a"), "unknown option '--repl'; did you mean '--replace'?");
    expect_refused(
        WORDS("--vresion", "a"), "unknown option '--vresion'; did you mean '--version'?");
    expect_refused(WORDS("-tp", "a"), "unknown option '-tp'; did you mean '--tp'?");
    expect_refused(WORDS("--compression", "a"),
        "unknown option '--compression'; 'glm-test --help' lists the options");
}

Test(opt, refuses_values_that_are_wrong_and_says_what_was_expected)
{
    expect_refused(
        WORDS("--tp=0", "a"), "--tp: expected a whole number from 1 to 64, found '0'");
    expect_refused(
        WORDS("--tp=8x", "a"), "--tp: expected a whole number from 1 to 64, found '8x'");
    expect_refused(
        WORDS("--tp=", "a"), "--tp: expected a whole number from 1 to 64, found ''");
    expect_refused(WORDS("--tp=99999999999999999999", "a"),
        "--tp: expected a whole number from 1 to 64, found '99999999999999999999'");
    expect_refused(
        WORDS("--dtype=bf1", "a"), "--dtype: expected same|bf16|f32, found 'bf1'");
    expect_refused(WORDS("--dtype=", "a"), "--dtype: expected same|bf16|f32, found ''");
    expect_refused(
        WORDS("--layout", "12345678", "a"), "--layout: longer than 7 characters");
    expect_refused(
        WORDS("--atol=nan", "a"), "--atol: expected a number of at least 0, found 'nan'");
    expect_refused(WORDS("--replace=yes", "a"), "--replace takes no value, found 'yes'");
    expect_refused(WORDS("a", "--tp"), "--tp: its value (n) is missing");
}

Test(opt, counts_arguments)
{
    expect_refused(WORDS("--tp=1"),
        "expected SRC CKPT, found 0 arguments; 'glm-test --help' says more");
    expect_refused(WORDS("a", "b", "c"), "unexpected argument 'c' after SRC CKPT");
}

Test(opt, sizes_count_in_1024s_unless_they_end_in_a_plain_B)
{
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {{"1", 1}, {"4096B", 4096}, {"1K", 1024}, {"512M", 536870912},
        {"4G", 4294967296}, {"4GiB", 4294967296}, {"5GB", 5000000000}, {"1KB", 1000},
        {"1kB", 1000}, {"2TB", 2000000000000}, {"1T", 1099511627776}};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        uint64_t v = 0;
        struct glm_error err = {0};
        cr_expect_eq(opt_size("s", good[i].text, &v, &err), 0, "%s", err.text);
        cr_expect_eq(v, good[i].bytes, "%s", good[i].text);
    }
    static const char *const bad[] = {"", "0", "G", "-1", "+1", " 1", "1.5G", "1g",
        "1GiBs", "1Gb", "99999999T", "18446744073709551616"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        uint64_t v = 0;
        struct glm_error err = {0};
        cr_expect_eq(
            opt_size("s", bad[i], &v, &err), GLM_EUSAGE, "accepted '%s'", bad[i]);
    }
}

Test(opt, help_shows_each_row_of_the_table_in_its_order)
{
    struct common_options common = {0};
    const struct opt opts[] = {
        OPT_CHOICE(
            "compress", "same|none|zstd|and-a-long-tail", &(const char *){0}, "how"),
        OPT_COMMON(&common),
        OPT_END,
    };
    const struct command self = {
        .name = "glm-x", .synopsis = {"A B", "A"}, .summary = "Does x.", .opts = opts};
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    opt_help(&self, f);
    fclose(f);
    cr_expect_str_eq(text,
        "usage: glm-x [options] A B\n"
        "       glm-x [options] A\n"
        "Does x.\n"
        "\n"
        "  --compress same|none|zstd|and-a-long-tail\n"
        "                              how\n"
        "  --threads n                 threads that work at the same time\n"
        "  --json                      print the result as one JSON object\n"
        "  --quiet                     print no progress and no notes\n"
        "  --help                      print this help and exit\n"
        "  --version                   print the version and exit\n");
    free(text);
}

Test(opt, no_file_takes_the_place_of_a_closed_standard_stream)
{
    const pid_t child = fork();
    cr_assert_geq(child, 0);
    if (child == 0) {
        struct values v = {0};
        struct glm_error err = {0};
        int argc;
        char **argv;
        for (int fd = 0; fd <= STDERR_FILENO; fd++)
            close(fd);
        const bool parsed = parse(&v, WORDS("src"), &argc, &argv, &err) == 0;
        const bool apart = open("Makefile", O_RDONLY) > STDERR_FILENO;
        /* What is lost must not look as if it had been written. */
        const bool fails =
            write(STDOUT_FILENO, "x", 1) < 0 && write(STDERR_FILENO, "x", 1) < 0;
        _exit(parsed && apart && fails ? 0 : 1);
    }
    int status;
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert_eq(status, 0);
}
