#include "cli/opt.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/base/version.h"

enum { NAME_MAX_LENGTH = 64, HELP_COLUMN = 30 };

static int smallest(int a, int b, int c)
{
    const int ab = a < b ? a : b;
    return ab < c ? ab : c;
}

/* Edits that turn a into b: insertion, deletion, change, swap of neighbours. Words longer than
 * NAME_MAX_LENGTH are far from everything. */
static int edits(const char *a, const char *b)
{
    int row[3][NAME_MAX_LENGTH + 1];
    const size_t na = strlen(a), nb = strlen(b);
    if (na > NAME_MAX_LENGTH || nb > NAME_MAX_LENGTH)
        return INT_MAX;
    for (size_t j = 0; j <= nb; j++)
        row[0][j] = (int)j;
    for (size_t i = 1; i <= na; i++) {
        int *const now = row[i % 3], *const last = row[(i + 2) % 3];
        const int *const before = row[(i + 1) % 3]; /* i - 2; read only from i = 2 on */
        now[0] = (int)i;
        for (size_t j = 1; j <= nb; j++) {
            now[j] = smallest(last[j] + 1, now[j - 1] + 1,
                last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]
                && before[j - 2] + 1 < now[j])
                now[j] = before[j - 2] + 1;
        }
    }
    return row[na % 3][nb];
}

const char *opt_nearest(const char *word, const char *const *words)
{
    const char *best = NULL;
    int best_edits = INT_MAX;
    for (; *words != NULL; words++) {
        /* A beginning of a name is what a user of abbreviations types. */
        const bool begins = word[0] != '\0' && strncmp(*words, word, strlen(word)) == 0;
        const int n = begins ? 1 : edits(word, *words);
        if (n < best_edits) {
            best = *words;
            best_edits = n;
        }
    }
    /* More than a third of the letters wrong: another word was meant. */
    return best != NULL && best_edits <= 1 + (int)strlen(best) / 3 ? best : NULL;
}

static int unknown(const struct command *self, const char *word, struct glm_error *err)
{
    const char *names[128];
    size_t n = 0;
    for (const struct opt *o = self->opts; o->kind != OPT_KIND_END && n < 125; o++)
        names[n++] = o->name;
    names[n++] = "help";
    names[n++] = "version";
    names[n] = NULL;

    char bare[NAME_MAX_LENGTH + 2];
    const size_t dashes = strspn(word, "-");
    const size_t length = strcspn(word + dashes, "=");
    snprintf(bare, sizeof bare, "%.*s",
        (int)(length < sizeof bare ? length : sizeof bare - 1), word + dashes);
    const char *near = opt_nearest(bare, names);
    if (near != NULL)
        return glm_fail(err, GLM_EUSAGE, "unknown option '%.*s'; did you mean '--%s'?",
            (int)(dashes + length), word, near);
    return glm_fail(err, GLM_EUSAGE,
        "unknown option '%.*s'; '%s --help' lists the options", (int)(dashes + length),
        word, self->name);
}

static int parse_int(const struct opt *o, const char *text, struct glm_error *err)
{
    char *end = NULL;
    errno = 0;
    const long long v = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || v < o->min || v > o->max)
        return glm_fail(err, GLM_EUSAGE,
            "--%s: expected a whole number from %" PRId64 " to %" PRId64 ", found '%s'",
            o->name, o->min, o->max, text);
    *o->to.integer = (int)v;
    return 0;
}

static int parse_real(const struct opt *o, const char *text, struct glm_error *err)
{
    char *end = NULL;
    const double v = strtod(text, &end);
    if (end == text || *end != '\0' || !isfinite(v) || v < 0)
        return glm_fail(err, GLM_EUSAGE,
            "--%s: expected a number of at least 0, found '%s'", o->name, text);
    *o->to.real = v;
    return 0;
}

static int parse_choice(const struct opt *o, const char *text, struct glm_error *err)
{
    const size_t length = strlen(text);
    for (const char *word = o->arg; *word != '\0';) {
        const size_t n = strcspn(word, "|");
        if (n == length && memcmp(word, text, n) == 0) {
            *o->to.str = text;
            return 0;
        }
        word += n + (word[n] == '|');
    }
    return glm_fail(
        err, GLM_EUSAGE, "--%s: expected %s, found '%s'", o->name, o->arg, text);
}

/* Multiplies by 1024 (or 1000, before a lone B) per step from K on. */
static bool size_unit(const char *unit, uint64_t *factor)
{
    static const char letters[] = "KMGT";
    *factor = 1;
    if (*unit == '\0' || strcmp(unit, "B") == 0)
        return true;
    /* We print kB ourselves, as physicists write it. */
    const char *at = strchr(letters, *unit == 'k' ? 'K' : *unit);
    if (at == NULL)
        return false;
    const bool binary = unit[1] == '\0' || strcmp(unit + 1, "iB") == 0;
    if (!binary && strcmp(unit + 1, "B") != 0)
        return false;
    for (const char *step = letters; step <= at; step++)
        *factor *= binary ? 1024 : 1000;
    return true;
}

int opt_size(const char *name, const char *text, uint64_t *out, struct glm_error *err)
{
    char *end = NULL;
    uint64_t factor, bytes;
    errno = 0;
    const unsigned long long v = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || errno != 0 || !size_unit(end, &factor) || v == 0
        || __builtin_mul_overflow((uint64_t)v, factor, &bytes) || bytes > INT64_MAX)
        return glm_fail(err, GLM_EUSAGE,
            "--%s: expected bytes like 512M, 4GiB (1024s) or 5GB (1000s), found '%s'",
            name, text);
    *out = bytes;
    return 0;
}

static int store(const struct opt *o, const char *text, struct glm_error *err)
{
    switch (o->kind) {
    case OPT_KIND_STR:
        *o->to.str = text;
        return 0;
    case OPT_KIND_CHOICE:
        return parse_choice(o, text, err);
    case OPT_KIND_TEXT:
        if (strlen(text) >= (size_t)o->max)
            return glm_fail(err, GLM_EUSAGE, "--%s: longer than %" PRId64 " characters",
                o->name, o->max - 1);
        memcpy(o->to.text, text, strlen(text) + 1);
        return 0;
    case OPT_KIND_INT:
        return parse_int(o, text, err);
    case OPT_KIND_REAL:
        return parse_real(o, text, err);
    case OPT_KIND_SIZE:
        return opt_size(o->name, text, o->to.size, err);
    case OPT_KIND_FLAG:
        *o->to.flag = true;
        return 0;
    case OPT_KIND_MANY:
        if (o->to.many->count == OPT_MANY)
            return glm_fail(
                err, GLM_EUSAGE, "--%s: given more than %d times", o->name, OPT_MANY);
        o->to.many->word[o->to.many->count++] = text;
        return 0;
    case OPT_KIND_END:
        break;
    }
    return glm_fail(err, GLM_EUSAGE, "--%s: no such kind of option", o->name);
}

static const struct opt *find(const struct command *self, const char *name, size_t length)
{
    for (const struct opt *o = self->opts; o->kind != OPT_KIND_END; o++)
        if (strlen(o->name) == length && memcmp(o->name, name, length) == 0)
            return o;
    return NULL;
}

/* Takes the option at argv[*i], and its value behind it if that stands apart. */
static int take(
    const struct command *self, int argc, char **argv, int *i, struct glm_error *err)
{
    const char *word = argv[*i];
    const char *name = word + 2;
    const size_t length = strcspn(name, "=");
    const char *value = name[length] == '=' ? name + length + 1 : NULL;
    const struct opt *o = word[1] == '-' ? find(self, name, length) : NULL;
    if (o == NULL)
        return unknown(self, word, err);
    if (o->kind == OPT_KIND_FLAG) {
        if (value != NULL)
            return glm_fail(
                err, GLM_EUSAGE, "--%s takes no value, found '%s'", o->name, value);
        return store(o, NULL, err);
    }
    if (value == NULL) {
        if (*i + 1 >= argc)
            return glm_fail(
                err, GLM_EUSAGE, "--%s: its value (%s) is missing", o->name, o->arg);
        value = argv[++*i];
    }
    return store(o, value, err);
}

static int check_count(
    const struct command *self, int count, char **args, struct glm_error *err)
{
    const char *wanted = self->synopsis[0] != NULL ? self->synopsis[0] : "";
    if (count < self->min_args)
        return glm_fail(err, GLM_EUSAGE,
            "expected %s, found %d argument%s; '%s --help' says more", wanted, count,
            count == 1 ? "" : "s", self->name);
    if (count > self->max_args)
        return glm_fail(err, GLM_EUSAGE, "unexpected argument '%s' after %s",
            args[self->max_args], self->max_args == 0 ? "the options" : wanted);
    return 0;
}

/* A file opened under the number of a closed standard stream would receive what is meant for the
 * stream. The wrong direction: writing to it goes on failing. */
static void keep_standard_streams(void)
{
    for (int fd = 0; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0)
            (void)!open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

/* A write past the limit of a file's size is to fail and be told, not to kill without a word. */
static void outlive_file_limit(void)
{
    signal(SIGXFSZ, SIG_IGN);
}

int opt_parse(const struct command *self, int *argc, char ***argv, struct glm_error *err)
{
    keep_standard_streams();
    outlive_file_limit();
    char **const in = *argv;
    int kept = 0;
    bool options = true;
    for (int i = 1; i < *argc; i++) {
        if (!options || in[i][0] != '-' || in[i][1] == '\0') {
            in[kept++] = in[i];
        } else if (strcmp(in[i], "--") == 0) {
            options = false;
        } else if (strcmp(in[i], "--help") == 0) {
            opt_help(self, stdout);
            return OPT_SHOWN;
        } else if (strcmp(in[i], "--version") == 0) {
            printf("%s %s\n", self->name, GLM_VERSION);
            return OPT_SHOWN;
        } else if (take(self, *argc, in, &i, err) != 0) {
            return err->code;
        }
    }
    in[kept] = NULL;
    *argc = kept;
    return check_count(self, kept, in, err);
}

/* Columns that a UTF-8 text takes, near enough for help: bytes that are no continuation. */
static int columns(const char *s)
{
    int n = 0;
    for (; *s != '\0'; s++)
        n += ((unsigned char)*s & 0xC0) != 0x80;
    return n;
}

static void help_row(FILE *out, const char *name, const char *arg, const char *help)
{
    char left[256];
    snprintf(left, sizeof left, "  --%s%s%s", name, arg != NULL ? " " : "",
        arg != NULL ? arg : "");
    if (columns(left) + 2 > HELP_COLUMN)
        fprintf(out, "%s\n%*s%s\n", left, HELP_COLUMN, "", help);
    else
        fprintf(out, "%s%*s%s\n", left, HELP_COLUMN - columns(left), "", help);
}

void opt_help(const struct command *self, FILE *out)
{
    for (int i = 0; i < OPT_MAX_MODES && (i == 0 || self->synopsis[i] != NULL); i++)
        fprintf(out, "%s %s [options] %s\n", i == 0 ? "usage:" : "      ", self->name,
            self->synopsis[i] != NULL ? self->synopsis[i] : "");
    if (self->summary != NULL)
        fprintf(out, "%s\n", self->summary);
    fprintf(out, "\n");
    for (const struct opt *o = self->opts; o->kind != OPT_KIND_END; o++)
        help_row(out, o->name, o->arg, o->help);
    help_row(out, "help", NULL, "print this help and exit");
    help_row(out, "version", NULL, "print the version and exit");
}

static int per_processor(const struct common_options *c, int each)
{
    if (c->threads > 0)
        return c->threads;
    cpu_set_t set;
    CPU_ZERO(&set);
    const int n =
        each * (sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1);
    return n < each ? each : n > 64 ? 64 : n;
}

int cli_threads(const struct common_options *c)
{
    return per_processor(c, 1);
}

int cli_movers(const struct common_options *c)
{
    return per_processor(c, 4);
}
