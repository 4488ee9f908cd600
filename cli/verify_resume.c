/* glm-verify resume: options, and the report for people and programs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/jsonout.h"
#include "cli/opt.h"
#include "cli/report.h"
#include "cli/verify_modes.h"
#include "cli/watch.h"
#include "verify/verify.h"

/* "N,M" */
static int parse_steps(const char *text, struct resume_options *o, struct glm_error *err)
{
    long long n = 0, m = 0;
    int end = 0;

    if (text == NULL)
        return GLM_OK;
    if (sscanf(text, "%lld,%lld%n", &n, &m, &end) != 2 || text[end] != '\0' || n < 1
        || m < 1)
        return glm_fail(err, GLM_EUSAGE,
            "--steps: expected two whole numbers above 0 like 10,10, found '%s'", text);
    o->n = n;
    o->m = m;
    return GLM_OK;
}

static int print_json(const char *recipe, const struct resume_report *r,
    const struct glm_error *done, struct glm_error *err)
{
    const struct trace_difference *const d = &r->difference;
    struct jsonout j;

    jsonout_init(&j);
    jsonout_str(&j, NULL, "command", "glm-verify resume");
    jsonout_str(&j, NULL, "recipe", recipe);
    jsonout_str(&j, NULL, "verdict", done->code == GLM_OK ? "equal" : "different");
    jsonout_int(&j, NULL, "steps_before", r->n);
    jsonout_int(&j, NULL, "steps_after", r->m);
    jsonout_int(&j, NULL, "states", r->counts.records);
    jsonout_int(&j, NULL, "tensors", r->counts.tensors);
    jsonout_int(&j, NULL, "tiles", r->counts.tiles);
    if (d->found)
        jsonout_int(&j, NULL, "first_step", d->step);
    else
        jsonout_str(&j, NULL, "first_step", NULL);
    jsonout_str(&j, NULL, "number", d->what[0] != '\0' ? d->what : NULL);
    jsonout_str(&j, NULL, "section", d->section[0] != '\0' ? d->section : NULL);
    jsonout_str(&j, NULL, "tensor", d->tensor[0] != '\0' ? d->tensor : NULL);
    jsonout_int(&j, NULL, "tile", d->tile);
    jsonout_str(&j, NULL, "text", done->code == GLM_OK ? NULL : done->text);
    jsonout_real(&j, NULL, "seconds", r->seconds);
    jsonout_print(&j, stdout, err);
    jsonout_clear(&j);
    return (int)err->code;
}

int verify_resume(int argc, char **argv)
{
    struct resume_options o = {0};
    struct opt_many set = {0}, ignore = {0};
    const char *steps = NULL, *then = NULL;
    struct topology topology = {0};
    struct common_options common = {0};
    const struct opt opts[] = {
        OPT_STR(
            "steps", "n,m", &steps, "steps before and after the restart (default 5,5)"),
        OPT_STR("then", "topology", &then,
            "restart from it at another one, like tp2,pp2,ep4"),
        OPT_MANY_("set", "key=value", &set, "overrule a key of the recipe"),
        OPT_MANY_("ignore-key", "key", &ignore, "go on without a key that is not built"),
        OPT_STR("dir", "dir", &o.dir, "work here, in a new folder, and keep it"),
        OPT_COMMON(&common),
        OPT_END,
    };
    const struct command self = {
        .name = "glm-verify resume",
        .synopsis = {"RECIPE"},
        .summary = "Proves that a restart changes no bit of a training run.",
        .min_args = 1,
        .max_args = 1,
        .opts = opts,
    };
    struct glm_error err = {0};
    struct resume_report report;
    struct watch watch;

    if (opt_parse(&self, &argc, &argv, &err) != 0 || parse_steps(steps, &o, &err) != 0
        || (then != NULL && topology_parse(&topology, then, &err) != 0))
        return cli_report("glm-verify", &err);
    watch_begin(&watch, "glm-verify", &common);
    o.recipe = argv[0];
    o.keys = (struct recipe_options){.set = set.word,
        .sets = set.count,
        .ignore = ignore.word,
        .ignores = ignore.count};
    o.then = then != NULL ? &topology : NULL;
    o.threads = cli_threads(&common);
    o.events = &watch.events;
    resume_run(&report, &o, &err);
    watch_end(&watch, err.code == GLM_OK);
    if (common.json && (err.code == GLM_OK || err.code == GLM_EMISMATCH)) {
        struct glm_error printing = {0};
        if (print_json(argv[0], &report, &err, &printing) != GLM_OK && err.code == GLM_OK)
            err = printing;
    } else if (err.code == GLM_OK) {
        char shown[CLI_SHOWN];
        printf("%s: %lld + %lld steps are the same bits with a restart between them\n"
               "compared     %lld states of %lld tensors, %lld tiles each; losses and "
               "norms\n",
            cli_shown(argv[0], shown), (long long)report.n, (long long)report.m,
            (long long)report.counts.records, (long long)report.counts.tensors,
            (long long)report.counts.tiles);
    }
    return cli_report("glm-verify", &err);
}
