/* glm-verify numerics: options, and the table for people and programs. */
#include <stdio.h>
#include <string.h>

#include "cli/jsonout.h"
#include "cli/opt.h"
#include "cli/report.h"
#include "cli/verify_modes.h"
#include "cli/watch.h"
#include "verify/verify.h"

static bool within(const struct numerics_row *w)
{
    return w->worst <= w->bound;
}

static void print_table(
    const char *ckpt, const char *golden, const struct numerics_report *r)
{
    char a[CLI_SHOWN], b[CLI_SHOWN];
    printf("%s: %s %s\n", cli_shown(ckpt, a),
        r->first < 0 ? "within the bounds of" : "not within the bounds of",
        cli_shown(golden, b));
    printf("%-18s %-22s %8s %8s %9s  %s\n", "run", "quantity", "worst", "bound",
        "compared", "where");
    for (int i = 0; i < r->count; i++) {
        const struct numerics_row *const w = &r->rows[i];
        printf("%-18s %-22s %8.2g %8.2g %9lld%s%s%s\n", w->reference,
            numerics_name(w->quantity), w->worst, w->bound, (long long)w->compared,
            w->where[0] != '\0' ? "  " : "", w->where, within(w) ? "" : "  BEYOND");
    }
    if (r->replayed)
        printf("The recorded sets were replayed, so none is compared.\n");
}

static int print_json(const char *ckpt, const char *golden, const char *dtype,
    const struct numerics_report *r, const struct glm_error *done, struct glm_error *err)
{
    struct jsonout j;

    jsonout_init(&j);
    jsonout_str(&j, NULL, "command", "glm-verify numerics");
    jsonout_str(&j, NULL, "checkpoint", ckpt);
    jsonout_str(&j, NULL, "golden", golden);
    jsonout_str(&j, NULL, "dtype", dtype);
    jsonout_str(&j, NULL, "verdict", r->first < 0 ? "within" : "beyond");
    jsonout_bool(&j, NULL, "replayed", r->replayed);
    jsonout_bool(&j, NULL, "whole", r->whole);
    jsonout_int(&j, NULL, "gradient_elements", r->elements);
    json_t *const rows = jsonout_array(&j, NULL, "quantities");
    for (int i = 0; i < r->count; i++) {
        const struct numerics_row *const w = &r->rows[i];
        json_t *const o = jsonout_object(&j, rows, NULL);
        jsonout_str(&j, o, "reference", w->reference);
        jsonout_str(&j, o, "quantity", numerics_name(w->quantity));
        jsonout_real(&j, o, "worst", w->worst);
        jsonout_real(&j, o, "bound", w->bound);
        jsonout_int(&j, o, "compared", w->compared);
        jsonout_str(&j, o, "where", w->where[0] != '\0' ? w->where : NULL);
        jsonout_bool(&j, o, "within", within(w));
    }
    jsonout_str(&j, NULL, "text", done->code == GLM_OK ? NULL : done->text);
    jsonout_real(&j, NULL, "seconds", r->seconds);
    jsonout_print(&j, stdout, err);
    jsonout_clear(&j);
    return (int)err->code;
}

static enum glm_dtype dtype_of(const char *word)
{
    return strcmp(word, "f64") == 0 ? GLM_F64
        : strcmp(word, "bf16") == 0 ? GLM_BF16
                                    : GLM_F32;
}

int verify_numerics(int argc, char **argv)
{
    struct numerics_options o = {0};
    const char *dtype = "f32";
    struct common_options common = {0};
    const struct opt opts[] = {
        OPT_FLAG("replay", &o.replay, "use the recorded index and expert sets"),
        OPT_CHOICE("dtype", "f32|f64|bf16", &dtype, "compute in this type (default f32)"),
        OPT_CHOICE("device", "cpu|cuda", &o.device, "compute there (default cpu)"),
        OPT_FLAG("absorbed", &o.absorbed, "attend over latent keys, not expanded heads"),
        OPT_COMMON(&common),
        OPT_END,
    };
    const struct command self = {
        .name = "glm-verify numerics",
        .synopsis = {"CKPT GOLDEN"},
        .summary = "Compares what the model computes with a golden file.",
        .min_args = 2,
        .max_args = 2,
        .opts = opts,
    };
    struct glm_error err = {0};
    struct numerics_report report;

    if (opt_parse(&self, &argc, &argv, &err) != 0)
        return cli_report("glm-verify", &err);
    o.golden = argv[1];
    o.dtype = dtype_of(dtype);
    o.threads = cli_threads(&common);
    numerics_run(&report, argv[0], &o, &err);
    if (err.code == GLM_OK || err.code == GLM_EMISMATCH) {
        struct glm_error printing = {0};
        if (!common.json)
            print_table(argv[0], argv[1], &report);
        else if (print_json(argv[0], argv[1], dtype, &report, &err, &printing) != GLM_OK
            && err.code == GLM_OK)
            err = printing;
    }
    return cli_report("glm-verify", &err);
}
