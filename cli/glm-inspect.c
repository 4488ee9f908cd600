/* glm-inspect: what is inside a checkpoint. */
#include <langinfo.h>
#include <limits.h>
#include <locale.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/inspect_show.h"
#include "cli/opt.h"
#include "cli/report.h"
#include "cli/watch.h"
#include "kernels/base/outfile.h"

struct views {
    bool tree, topology, provenance;
    const char *section, *slice, *svg, *metrics;
};

static int draw(struct inspect *in, const char *path, struct glm_error *err)
{
    struct outfile o;
    if (outfile_open(&o, path, err) != GLM_OK)
        return err->code;
    const bool file = o.regular; /* a device or a pipe is written to and stays */
    if (outfile_begin(&o, path, err) == GLM_OK
        && inspect_picture(in, o.out, err) != GLM_OK)
        glm_within(err, "%s", path);
    outfile_close(&o, path, err);
    if (err->code != GLM_OK && file)
        unlink(path);
    return err->code;
}

static int show(
    struct show *s, const struct views *v, const char *tensor, struct glm_error *err)
{
    bool shown = false;
    if (tensor != NULL)
        return show_tensor(s, v->section, tensor, v->slice, err);
    if (v->slice != NULL || v->section != NULL)
        return glm_fail(
            err, GLM_EUSAGE, "--slice and --section want the name of a tensor");
    if (v->svg != NULL) {
        shown = true;
        if (draw(s->in, v->svg, err) != GLM_OK)
            return err->code;
        if (s->json != NULL)
            jsonout_str(s->json, NULL, "svg", v->svg);
    }
    const struct {
        bool wanted;
        int (*print)(const struct show *, struct glm_error *);
    } list[] = {{v->tree, show_tree}, {v->topology, show_topology},
        {v->provenance, show_provenance}};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        if (!list[i].wanted)
            continue;
        shown = true;
        if (list[i].print(s, err) != GLM_OK)
            return err->code;
    }
    return shown ? GLM_OK : show_summary(s, err);
}

/* A picture is of a checkpoint and not in it. */
static int check_apart(const char *svg, const char *ckpt, struct glm_error *err)
{
    char real[PATH_MAX];
    if (svg == NULL || !outfile_inside(svg, ckpt, real))
        return GLM_OK;
    return glm_fail(
        err, GLM_EUSAGE, "--svg %s: lies inside %s, which is read", svg, ckpt);
}

static int check(const struct views *v, int args, struct glm_error *err)
{
    if (v->metrics != NULL
        && (args > 0 || v->tree || v->topology || v->provenance || v->section
            || v->slice))
        return glm_fail(err, GLM_EUSAGE, "--metrics goes with --svg and --json alone");
    if (v->metrics == NULL && args == 0)
        return glm_fail(err, GLM_EUSAGE,
            "expected CKPT or --metrics RUN, found 0 arguments; 'glm-inspect --help' "
            "says more");
    if (args > 1 && (v->tree || v->topology || v->provenance || v->svg))
        return glm_fail(err, GLM_EUSAGE,
            "--tree, --topology, --provenance and --svg are of a whole checkpoint, not "
            "of "
            "a tensor");
    return 0;
}

static int metrics(const struct command *self, const struct views *v, bool as_json)
{
    struct glm_error err = {0};
    struct jsonout json;
    jsonout_init(&json);
    if (show_metrics(as_json ? &json : NULL, v->metrics, v->svg, &err) == GLM_OK
        && as_json)
        jsonout_print(&json, stdout, &err);
    jsonout_clear(&json);
    return cli_report(self->name, &err);
}

int main(int argc, char **argv)
{
    struct views v = {0};
    struct common_options common = {0};
    const struct opt opts[] = {
        OPT_FLAG("tree", &v.tree, "list every tensor with its type, shape and size"),
        OPT_FLAG("topology", &v.topology, "print which cell and stage holds what"),
        OPT_FLAG("provenance", &v.provenance, "print where the checkpoint came from"),
        OPT_STR(
            "section", "name", &v.section, "look for the tensor here (default weight)"),
        OPT_STR("slice", "a:b,c:d", &v.slice, "print these elements of the tensor"),
        OPT_STR(
            "metrics", "run", &v.metrics, "print the steps of a training run instead"),
        OPT_STR("svg", "file", &v.svg,
            "write a picture of which shard holds what, or of the run's curves"),
        OPT_COMMON(&common),
        OPT_END,
    };
    const struct command self = {
        .name = "glm-inspect",
        .synopsis = {"CKPT", "CKPT TENSOR", "--metrics RUN"},
        .summary =
            "Shows what is inside a checkpoint, a model directory or a training run.",
        .min_args = 0,
        .max_args = 2,
        .opts = opts,
    };
    struct glm_error err = {0};
    if (opt_parse(&self, &argc, &argv, &err) != 0 || check(&v, argc, &err) != 0)
        return cli_report(self.name, &err);
    if (v.metrics != NULL)
        return metrics(&self, &v, common.json);
    setlocale(LC_CTYPE, "");
    struct inspect *in = NULL;
    struct jsonout json;
    struct watch watch;
    const char *const tensor = argc > 1 ? argv[1] : NULL;
    jsonout_init(&json);
    watch_begin(&watch, self.name, &common);
    struct show s = {
        .path = argv[0],
        .json = common.json ? &json : NULL,
        .ascii = common.quiet || strcmp(nl_langinfo(CODESET), "UTF-8") != 0,
        .threads = cli_movers(&common),
        .events = &watch.events,
    };
    if (check_apart(v.svg, argv[0], &err) == GLM_OK
        && inspect_open(&in, argv[0], tensor != NULL, s.threads, &err) == GLM_OK) {
        s.in = in;
        jsonout_str(&json, NULL, "command", self.name);
        jsonout_str(&json, NULL, "path", argv[0]);
        show(&s, &v, tensor, &err);
    }
    watch_end(&watch, false); /* no summary line: the result is what was asked for */
    if (err.code == GLM_OK && common.json)
        jsonout_print(&json, stdout, &err);
    inspect_close(in);
    jsonout_clear(&json);
    return cli_report(self.name, &err);
}
