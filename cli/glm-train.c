/* glm-train: a recipe into checkpoints. */
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "cli/jsonout.h"
#include "cli/opt.h"
#include "cli/progress.h"
#include "cli/report.h"
#include "cli/signals.h"
#include "cli/watch.h"
#include "train/train.h"

struct train_words { /* options that are more than a value */
    struct opt_many set, ignore;
    const char *stop_after, *device;
    char device_set[64];
};

/* "90", "90s", "30m", "2h", "1d" in seconds. */
static int parse_time(const char *text, double *out, struct glm_error *err)
{
    static const struct {
        const char *unit;
        double seconds;
    } units[] = {{"", 1}, {"s", 1}, {"m", 60}, {"h", 3600}, {"d", 86400}};
    char *end = NULL;
    const double x = strtod(text, &end);

    for (size_t i = 0; end != text && i < sizeof units / sizeof *units; i++)
        if (strcmp(end, units[i].unit) == 0 && isfinite(x) && x > 0) {
            *out = x * units[i].seconds;
            return GLM_OK;
        }
    return glm_fail(err, GLM_EUSAGE,
        "--stop-after: expected a time like 90s, 30m or 2h, found '%s'", text);
}

/* ---- while it runs ---------------------------------------------------------------------------- */

static void show_step(void *ctx, const struct train_step *s)
{
    char memory[24], left[32];

    (void)ctx;
    fprintf(
        stderr, "step %" PRId64 "/%" PRId64 "  loss %.5f", s->step, s->steps, s->loss);
    if (isfinite(s->lm))
        fprintf(stderr, "  lm %.5f", s->lm);
    if (s->indexer_on)
        fprintf(stderr, "  indexer %.5f", s->indexer);
    if (s->mtp_on)
        fprintf(stderr, "  mtp %.5f", s->mtp);
    fprintf(stderr, "  norm %.4f  lr %.3e  %.0f tokens/s  %.4f TFLOP/s", s->norm, s->lr,
        s->tokens_per_second, s->tflops);
    if (isfinite(s->mfu))
        fprintf(stderr, "  MFU %.1f %%", 100 * s->mfu);
    fprintf(stderr, "  %s  %s left\n",
        progress_bytes(s->memory_bytes, memory, sizeof memory),
        progress_time(s->left_seconds, left, sizeof left));
}

static void show_eval(void *ctx, const struct train_eval *e)
{
    (void)ctx;
    fprintf(stderr, "step %" PRId64 "  validation loss %.5f  perplexity %.3f\n", e->step,
        e->loss, e->perplexity);
}

static void show_saved(void *ctx, const char *path, double seconds, double waited)
{
    char took[32];

    (void)ctx;
    fprintf(stderr, "saved %s in %s", path, progress_time(seconds, took, sizeof took));
    if (waited < seconds)
        fprintf(stderr, ", training waited %.3f s", waited);
    fprintf(stderr, "\n");
}

/* ---- the result ------------------------------------------------------------------------------- */

static int print_json(const struct train_report *r, struct glm_error *err)
{
    struct jsonout j;

    jsonout_init(&j);
    jsonout_str(&j, NULL, "command", "glm-train");
    jsonout_int(&j, NULL, "first_step", r->first);
    jsonout_int(&j, NULL, "step", r->step);
    jsonout_int(&j, NULL, "steps", r->steps);
    jsonout_str(&j, NULL, "stopped_by", r->why);
    jsonout_real(&j, NULL, "first_loss", r->first_loss);
    jsonout_real(&j, NULL, "last_loss", r->last_loss);
    jsonout_real(&j, NULL, "eval_loss", r->eval.targets > 0 ? r->eval.loss : NAN);
    jsonout_real(
        &j, NULL, "eval_perplexity", r->eval.targets > 0 ? r->eval.perplexity : NAN);
    jsonout_int(&j, NULL, "eval_targets", r->eval.targets);
    jsonout_str(&j, NULL, "checkpoint", r->checkpoint[0] != '\0' ? r->checkpoint : NULL);
    jsonout_real(&j, NULL, "seconds", r->seconds);
    const int rc = jsonout_print(&j, stdout, err);
    jsonout_clear(&j);
    return rc;
}

static void print_text(const struct train_report *r, bool only_eval)
{
    char took[32], shown[CLI_SHOWN];

    if (!only_eval) {
        if (r->why != NULL)
            printf("stopped at step %" PRId64 " of %" PRId64 " (%s)\n", r->step, r->steps,
                r->why);
        else
            printf(
                "trained      to step %" PRId64 " of %" PRId64 "\n", r->step, r->steps);
    }
    if (isfinite(r->first_loss))
        printf("loss         %.5f at step %" PRId64 ", %.5f at step %" PRId64 "\n",
            r->first_loss, r->first + 1, r->last_loss, r->step);
    if (r->eval.targets > 0)
        printf("validation   loss %.5f, perplexity %.3f on %" PRId64 " tokens\n",
            r->eval.loss, r->eval.perplexity, r->eval.targets);
    if (r->checkpoint[0] != '\0')
        printf("checkpoint   %s\n", cli_shown(r->checkpoint, shown));
    printf("time         %s\n", progress_time(r->seconds, took, sizeof took));
}

/* ---- the run ---------------------------------------------------------------------------------- */

static int run(const char *path, const struct train_words *w,
    const struct train_options *o, const struct common_options *common,
    struct glm_error *err)
{
    const struct train_watch show = {
        .step = show_step, .eval = show_eval, .saved = show_saved};
    const struct recipe_options ro = {.set = w->set.word,
        .sets = w->set.count,
        .ignore = w->ignore.word,
        .ignores = w->ignore.count};
    struct train_report report;
    struct recipe *recipe = NULL;
    struct watch watch;

    watch_begin(&watch, "glm-train", common);
    signals_also(SIGUSR1);
    signals_ignore_pipe();
    if (recipe_read(&recipe, path, &ro, err) == GLM_OK)
        train_run(recipe, o, common->quiet ? NULL : &show, &watch.events, &report, err);
    watch_end(&watch, err->code == GLM_OK);
    recipe_free(recipe);
    if (err->code != GLM_OK)
        return (int)err->code;
    if (common->json)
        print_json(&report, err);
    else
        print_text(&report, o->eval_only != NULL);
    if (report.stopped != 0 && report.stopped != SIGTERM && report.stopped != SIGUSR1) {
        glm_fail(err, GLM_ESTOPPED,
            "stopped at step %" PRId64 " of %" PRId64
            "; the state is saved, --resume goes on",
            report.step, report.steps);
        err->sys_errno = report.stopped;
    }
    return (int)err->code;
}

int main(int argc, char **argv)
{
    struct train_options o = {0};
    struct train_words w = {0};
    struct common_options common = {0};
    const struct opt opts[] = {
        OPT_MANY_("set", "key=value", &w.set, "overrule a key of the recipe"),
        OPT_MANY_(
            "ignore-key", "key", &w.ignore, "go on without a key that is not built"),
        OPT_STR("run", "dir", &o.run_dir, "folder of the run, instead of the recipe's"),
        OPT_FLAG("resume", &o.resume, "go on from the run's newest checkpoint"),
        OPT_STR(
            "stop-after", "time", &w.stop_after, "save and stop after 90s, 30m or 2h"),
        OPT_STR(
            "eval-only", "ckpt", &o.eval_only, "print a checkpoint's validation loss"),
        OPT_CHOICE("device", "auto|cpu|cuda", &w.device, "what computes"),
        OPT_REAL("peak-tflops", "n", &o.peak_tflops, "the device's peak, for MFU"),
        OPT_FLAG("take-lease", &o.take_lease, "take over a run of another host"),
        OPT_COMMON(&common),
        OPT_END,
    };
    const struct command self = {
        .name = "glm-train",
        .synopsis = {"RECIPE"},
        .summary = "Trains the model of a recipe.",
        .min_args = 1,
        .max_args = 1,
        .opts = opts,
    };
    struct glm_error err = {0};

    if (opt_parse(&self, &argc, &argv, &err) == 0
        && (w.stop_after == NULL
            || parse_time(w.stop_after, &o.stop_after_seconds, &err) == 0)) {
        if (w.device != NULL && w.set.count < OPT_MANY) {
            snprintf(w.device_set, sizeof w.device_set, "GLM.device=%s", w.device);
            w.set.word[w.set.count++] = w.device_set;
        }
        o.threads = cli_threads(&common);
        run(argv[0], &w, &o, &common, &err);
    }
    return cli_report(self.name, &err);
}
