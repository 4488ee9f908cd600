/* glm-inspect --metrics RUN: the steps of a training run as a table, and its curves. */
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/inspect_show.h"
#include "kernels/base/outfile.h"
#include "train/train.h"

enum {
    SHOWN = 20
}; /* rows of the table; of a longer run evenly chosen, first and last among them */

static void cell(const char *format, double x, int width)
{
    if (isfinite(x))
        printf(format, width, x);
    else
        printf(" %*s", width, "-");
}

static void print_row(const struct metrics_row *r)
{
    printf("%8" PRId64, r->step);
    cell(" %*.4f", r->loss, 9);
    cell(" %*.4f", r->lm_loss, 9);
    cell(" %*.4f", r->mtp_loss, 9);
    cell(" %*.4f", r->indexer_loss, 9);
    cell(" %*.4f", r->eval_loss, 9);
    cell(" %*.4g", r->grad_norm, 10);
    cell(" %*.3e", r->lr, 10);
    cell(" %*.0f", r->tokens_per_second, 9);
    cell(" %*.2f", r->tflops, 8);
    putchar('\n');
}

static void print_table(const struct metrics_row *rows, int64_t count)
{
    int64_t last = -1;
    printf("%8s %9s %9s %9s %9s %9s %10s %10s %9s %8s\n", "step", "loss", "LM", "MTP",
        "indexer", "eval", "grad norm", "lr", "tokens/s", "TFLOP/s");
    for (int64_t i = 0; i < SHOWN; i++) {
        const int64_t at = count <= SHOWN ? i : i * (count - 1) / (SHOWN - 1);
        if (at < count && at != last)
            print_row(&rows[at]);
        last = at;
    }
    if (count > SHOWN)
        printf("%d of %" PRId64 " steps\n", SHOWN, count);
}

static void add_row(struct jsonout *j, const char *key, const struct metrics_row *r)
{
    json_t *const o = jsonout_object(j, NULL, key);
    jsonout_int(j, o, "step", r->step);
    jsonout_int(j, o, "samples", r->samples);
    jsonout_int(j, o, "tokens", r->tokens);
    for (const struct metric *m = metrics_numbers; m->name; m++)
        jsonout_real(j, o, m->name, metrics_get(r, m));
}

/* A picture may lie in the run's folder, but not take the place of what the run wrote there. */
static int check_apart(const char *path, const char *run, struct glm_error *err)
{
    char folder[PATH_MAX], real[PATH_MAX];
    struct stat st;
    if (snprintf(folder, sizeof folder, "%s", run) >= PATH_MAX)
        return GLM_OK;
    if (stat(run, &st) == 0 && !S_ISDIR(st.st_mode)) { /* metrics.jsonl itself */
        char *const slash = strrchr(folder, '/');
        snprintf(slash != NULL ? slash + 1 : folder, 2, ".");
    }
    const bool inside = outfile_inside(path, folder, real);
    const size_t n = inside ? strlen(real) : 0;
    if (!inside || stat(real, &st) != 0 || !S_ISREG(st.st_mode)
        || (n > 4 && strcmp(real + n - 4, ".svg") == 0))
        return GLM_OK;
    return glm_fail(err, GLM_EUSAGE,
        "--svg %s: a file of the run, whose name does not end in .svg", path);
}

static int draw(const char *path, const char *run, const struct metrics_row *rows,
    int64_t count, struct glm_error *err)
{
    struct outfile o;
    if (check_apart(path, run, err) != GLM_OK || outfile_open(&o, path, err) != GLM_OK)
        return err->code;
    const bool file = o.regular; /* a device or a pipe is written to and stays */
    if (outfile_begin(&o, path, err) == GLM_OK)
        curves_svg(o.out, run, rows, count);
    outfile_close(&o, path, err);
    if (err->code != GLM_OK && file)
        unlink(path);
    return err->code;
}

int show_metrics(
    struct jsonout *json, const char *run, const char *svg, struct glm_error *err)
{
    struct metrics_row *rows;
    int64_t count;
    if (metrics_read(run, &rows, &count, err) != 0)
        return err->code;
    if (svg && draw(svg, run, rows, count, err) != 0)
        goto out;
    if (!json) {
        print_table(rows, count);
        goto out;
    }
    jsonout_str(json, NULL, "command", "glm-inspect");
    jsonout_str(json, NULL, "path", run);
    jsonout_int(json, NULL, "steps", count);
    if (count > 0) {
        add_row(json, "first", &rows[0]);
        add_row(json, "last", &rows[count - 1]);
    }
    if (svg)
        jsonout_str(json, NULL, "svg", svg);
out:
    free(rows);
    return err->code;
}
