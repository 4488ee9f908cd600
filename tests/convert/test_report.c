/* glm-convert's report: what one run converted has figures, what an earlier one did has none. */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "convert/convert.h"
#include "tests/support/tmpdir.h"
#include "tests/support/toy.h"

/* The stop comes when this many bytes in a hundred are done. */
struct stopper {
    volatile sig_atomic_t signal;
    uint64_t percent;
};

static void stop_at(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    struct stopper *const s = ctx;
    (void)what;
    if (done >= total / 100 * s->percent)
        s->signal = SIGTERM;
}

static enum glm_code converted(const struct recode_options *o,
    struct convert_report *report, const struct glm_events *events)
{
    struct glm_error err = {0};
    convert_recode(o, report, events, &err);
    cr_assert(err.code == GLM_OK || err.code == GLM_ESTOPPED, "%s", err.text);
    return err.code;
}

/* Lines of figures, lines without, and the elements of the lines and of the total. */
struct lines {
    int64_t measured, unmeasured, elements, total;
};

static struct lines lines_of(const char *path)
{
    char line[512], name[256], type[32], rest[256];
    long long elements;
    struct lines l = {.total = -1};
    FILE *const f = fopen(path, "r");
    cr_assert_not_null(f);
    cr_assert_not_null(fgets(line, sizeof line, f), "the names of the fields");
    while (fgets(line, sizeof line, f) != NULL) {
        cr_assert_eq(sscanf(line, "%255[^\t]\t%31[^\t]\t%255[^\n]", name, type, rest), 3,
            "%s", line);
        const bool figures = sscanf(rest, "%lld\t", &elements) == 1;
        cr_assert(figures || strcmp(rest, "-\t-\t-\t-\t-\t-") == 0, "%s", line);
        if (strcmp(name, "total") == 0) {
            l.total = figures ? elements : 0;
            continue;
        }
        l.measured += figures;
        l.unmeasured += !figures;
        l.elements += figures ? elements : 0;
        cr_assert(!figures || strstr(rest, "inf") == NULL, "noise loses bits: %s", line);
    }
    fclose(f);
    return l;
}

Test(report, tensors_that_an_earlier_run_converted_have_no_figures, .timeout = 600)
{
    char *const dir = tmpdir_new(), *const src = strdup(tmpdir_path(dir, "src"));
    char *const a = strdup(tmpdir_path(dir, "a")),
                *const b = strdup(tmpdir_path(dir, "b"));
    char *const tsv = strdup(tmpdir_path(dir, "report.tsv"));
    const struct toy_options toy = {
        .config = "fixtures/configs/tiny-a.json", .files = 2, .gauss = true};
    cr_assert_eq(toy_write(src, &toy), 0, "%s", toy_error());
    struct glm_error err = {0};
    struct convert_report r;
    convert_import(
        &(struct import_options){.src = src, .out = a, .dtype = "same", .threads = 2}, &r,
        NULL, &err);
    cr_assert_eq(err.code, GLM_OK, "%s", err.text);

    struct recode_options o = {
        .ckpt = a, .out = b, .dtype = "mxfp8", .report_path = tsv, .threads = 1};
    cr_assert_eq(converted(&o, &r, NULL), GLM_OK);
    const struct lines whole = lines_of(tsv);
    cr_assert_gt(whole.measured, 10);
    cr_assert_eq(whole.unmeasured, 0);
    cr_assert_eq(whole.total, whole.elements);
    cr_assert_eq(whole.total, r.error.count);

    struct stopper stop = {.percent = 50};
    const struct glm_events events = {
        .progress = stop_at, .ctx = &stop, .stop = &stop.signal};
    o.replace = true;
    cr_assert_eq(converted(&o, &r, &events), GLM_ESTOPPED);
    cr_assert_eq(lines_of(tsv).measured, whole.measured, "what is there stays");
    cr_assert_eq(converted(&o, &r, NULL), GLM_OK);
    cr_assert(r.resumed && r.skipped_bytes > 0);
    const struct lines half = lines_of(tsv);
    cr_assert_eq(half.measured + half.unmeasured, whole.measured);
    cr_assert_gt(half.measured, 0);
    cr_assert_gt(half.unmeasured, 0);
    cr_assert_eq(half.total, r.error.count);
    cr_assert_lt(half.total, whole.total);
    cr_assert_geq(half.total, half.elements, "parts of tensors are in it, too");
    tmpdir_remove(dir);
    free(src);
    free(a);
    free(b);
    free(tsv);
}
