/* Metrics: lines that read back bit for bit, files that survive crashes, full disks and resumes. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "tests/support/tmpdir.h"
#include "train/curves.h"
#include "train/metrics.h"

static char *dir;

static void make(void)
{
    dir = tmpdir_new();
}

static void drop(void)
{
    tmpdir_remove(dir);
}

TestSuite(metrics, .init = make, .fini = drop);

static struct metrics_row row(int64_t step)
{
    struct metrics_row r = metrics_row_empty();
    r.step = step;
    r.samples = 4 * step;
    r.tokens = 512 * step;
    r.loss = 1.0 / 3 / (double)step;
    r.lr = 1e-5 * (double)step;
    r.wall_time = 1764000000.25 + (double)step;
    return r;
}

static void write_steps(int64_t resume, int64_t from, int64_t to)
{
    struct glm_error err = {0};
    struct metrics m;
    cr_assert(metrics_open(&m, dir, resume, 1764000000, &err) == 0, "%s", err.text);
    for (int64_t s = from; s <= to; s++) {
        const struct metrics_row r = row(s);
        cr_assert(metrics_write(&m, &r, &err) == 0, "%s", err.text);
    }
    cr_assert(metrics_close(&m, &err) == 0, "%s", err.text);
}

static int64_t read_all(struct metrics_row **rows)
{
    struct glm_error err = {0};
    int64_t n;
    cr_assert(metrics_read(dir, rows, &n, &err) == 0, "%s", err.text);
    return n;
}

static void append(const char *text)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/metrics.jsonl", dir);
    FILE *const f = fopen(path, "a");
    fputs(text, f);
    fclose(f);
}

Test(metrics, read_back_bit_for_bit)
{
    static const double hard[] = {0.1, 1.0 / 3, 5e-324, 1.7976931348623157e308,
        2.2250738585072014e-308, -0.0, 123456789.123456789, 9007199254740993.0, 1e-5};
    struct glm_error err = {0};
    struct metrics m;
    struct metrics_row *rows;
    cr_assert(metrics_open(&m, dir, 0, 1764000000, &err) == 0, "%s", err.text);
    for (int64_t i = 0; i < 9; i++) {
        struct metrics_row r = row(i + 1);
        r.loss = hard[i];
        r.grad_norm = -hard[8 - i];
        metrics_write(&m, &r, &err);
    }
    cr_assert(metrics_close(&m, &err) == 0, "%s", err.text);
    cr_assert(read_all(&rows) == 9);
    for (int64_t i = 0; i < 9; i++) {
        const double back = -hard[8 - i];
        cr_expect(memcmp(&rows[i].loss, &hard[i], 8) == 0, "%.17g", hard[i]);
        cr_expect(memcmp(&rows[i].grad_norm, &back, 8) == 0);
        cr_expect(rows[i].tokens == 512 * (i + 1) && isnan(rows[i].eval_loss));
    }
    free(rows);
}

Test(metrics, have_the_same_keys_in_every_line)
{
    char a[METRICS_LINE], b[METRICS_LINE];
    struct metrics_row r = metrics_row_empty();
    metrics_print(&r, a);
    cr_expect(strstr(
        a, "{\"step\":0,\"samples\":0,\"tokens\":0,\"loss\":null,\"lm_loss\":null"));
    for (const struct metric *k = metrics_numbers; k->name; k++)
        *(double *)((char *)&r + k->at) =
            -2.2250738585072014e-308; /* the longest number there is */
    r.step = r.samples = r.tokens = INT64_MAX;
    const size_t n = metrics_print(&r, b);
    cr_expect(n == strlen(b) && n < METRICS_LINE - 1 && b[n - 1] == '\n');
    for (const struct metric *k = metrics_numbers; k->name; k++)
        cr_expect(strstr(a, k->name) && strstr(b, k->name), "%s", k->name);
}

Test(metrics, of_a_resumed_run_are_one_history)
{
    struct metrics_row *rows;
    write_steps(0, 1, 10);
    append("{\"step\":11,\"sam"); /* killed while writing */
    write_steps(7, 8, 12);
    cr_assert(read_all(&rows) == 12);
    for (int64_t i = 0; i < 12; i++)
        cr_expect(rows[i].step == i + 1);
    free(rows);
    write_steps(0, 1, 2);
    cr_expect(read_all(&rows) == 2, "a new run begins anew");
    free(rows);
}

Test(metrics, pass_over_a_line_that_a_crash_cut)
{
    struct metrics_row *rows;
    write_steps(0, 1, 3);
    append("{\"step\":4,");
    cr_expect(read_all(&rows) == 3);
    free(rows);
}

Test(metrics, that_are_not_ours_are_refused_with_their_line)
{
    static const struct {
        const char *line, *words;
    } wrong[] = {{"hello\n", "metrics.jsonl:3: expected a JSON object"},
        {"[1]\n", ":3: expected a JSON object"}, {"{}\n", ":3: key 'step'"},
        {"{\"step\":3,\"samples\":1,\"tokens\":-1}\n", "'tokens'"},
        {"{\"step\":3,\"samples\":1,\"tokens\":1,\"loss\":\"x\"}\n",
            "'loss': expected a number"},
        {"{\"step\":2,\"samples\":1,\"tokens\":1}\n", ":3: step 2 follows step 2"}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct glm_error err = {0};
        struct metrics_row *rows;
        int64_t n;
        write_steps(0, 1, 2);
        append(wrong[i].line);
        cr_expect(metrics_read(dir, &rows, &n, &err) == GLM_EFORMAT && rows == NULL);
        cr_expect(strstr(err.text, wrong[i].words), "%s", err.text);
    }
    struct glm_error err = {0};
    struct metrics m;
    cr_expect(metrics_open(&m, "/no/such/folder", 0, 0, &err) == GLM_EIO && m.fd == -1);
}

/* Files that may not grow past a limit are a disk that fills up. */
Test(metrics, lose_no_more_than_the_step_when_the_disk_is_full)
{
    struct glm_error err = {0};
    struct metrics m;
    struct metrics_row *rows;
    const struct rlimit small = {1000, RLIM_INFINITY},
                        large = {RLIM_INFINITY, RLIM_INFINITY};
    signal(SIGXFSZ, SIG_IGN);
    cr_assert(metrics_open(&m, dir, 0, 1764000000, &err) == 0, "%s", err.text);
    for (int64_t s = 1; s <= 6; s++) {
        const struct metrics_row r = row(s);
        struct glm_error e = {0};
        setrlimit(RLIMIT_FSIZE, s == 3 || s == 4 ? &small : &large);
        cr_expect(metrics_write(&m, &r, &e) == (s == 3 || s == 4 ? GLM_EIO : 0),
            "step %d: %s", (int)s, e.text);
    }
    metrics_close(&m, &err);
    const int64_t n = read_all(&rows);
    cr_assert(n == 4, "%d", (int)n);
    cr_expect(rows[1].step == 2 && rows[2].step == 5);
    free(rows);
}

Test(metrics, crc_is_castagnolis)
{
    /* RFC 3720 B.4 */
    unsigned char data[32];
    memset(data, 0, 32);
    cr_expect(tfevents_crc32c(data, 32) == 0x8a9136aau);
    memset(data, 0xff, 32);
    cr_expect(tfevents_crc32c(data, 32) == 0x62a8ab43u);
    for (int i = 0; i < 32; i++)
        data[i] = (unsigned char)i;
    cr_expect(tfevents_crc32c(data, 32) == 0x46dd794eu);
    cr_expect(tfevents_crc32c("123456789", 9) == 0xe3069283u);
}

static char *svg(const struct metrics_row *rows, int64_t n)
{
    char *text = NULL;
    size_t size;
    FILE *const f = open_memstream(&text, &size);
    curves_svg(f, "a <run> & more", rows, n);
    fclose(f);
    return text;
}

static int64_t occurrences(const char *text, const char *word)
{
    int64_t n = 0;
    for (const char *at = text; (at = strstr(at, word)); at += strlen(word))
        n++;
    return n;
}

Test(metrics, are_drawn_as_curves_that_lose_no_spike)
{
    struct metrics_row *const rows = calloc(5000, sizeof *rows);
    for (int64_t i = 0; i < 5000; i++) {
        rows[i] = row(i + 1);
        rows[i].grad_norm = i == 2500 ? 100 : 1;
        rows[i].lm_loss = 2;
    }
    rows[999].eval_loss = 1;
    char *text = svg(rows, 5000);
    cr_expect(strstr(text, "a &lt;run&gt; &amp; more") && strstr(text, "</svg>"));
    cr_expect(
        strstr(text, "gradient norm (log)") && !strstr(text, "learning rate (log)"));
    cr_expect(occurrences(text, "<circle") == 1, "an evaluation is a dot");
    cr_expect(
        strstr(text, "validation") && strstr(text, ">LM<") && !strstr(text, ">MTP<"));
    cr_expect(!strstr(text, "nan") && !strstr(text, "inf"));
    cr_expect(strlen(text) < 200000);
    /* The spike is the top of its panel: 100 is drawn 5 % below the upper edge. */
    cr_expect(occurrences(text, "V") > 0);
    free(text);
    text = svg(rows, 1);
    cr_expect(strstr(text, "</svg>") && !strstr(text, "nan"));
    free(text);
    text = svg(NULL, 0);
    cr_expect(occurrences(text, "no values") == 4);
    free(text);
    free(rows);
}

Test(metrics, axes_have_round_ticks)
{
    static const struct {
        double lo, hi, step, first;
    } t[] = {{0, 10, 2, 0}, {0.3, 1.1, 0.2, 0.4}, {-5, 5, 2, -4},
        {1e-5, 9e-5, 2e-5, 2e-5}, {0, 30, 5, 0}};
    for (size_t i = 0; i < sizeof t / sizeof t[0]; i++) {
        double first;
        cr_expect_float_eq(
            curves_ticks(t[i].lo, t[i].hi, 6, &first), t[i].step, 1e-9 * t[i].hi);
        cr_expect_float_eq(first, t[i].first, 1e-9 * t[i].hi);
    }
}
