/* glm-convert: a checkpoint into one with other number types, with an error report. */
#include "cli/convert_opt.h"
#include "cli/outcome.h"
#include "cli/report.h"

int main(int argc, char **argv)
{
    struct recode_options o = {0};
    const char *compress = "same";
    struct common_options common = {0};
    const struct opt opts[] = {
        OPT_CHOICE(
            "dtype", "bf16|f32|mxfp8|fp8", &o.dtype, "store the weights in this type"),
        OPT_SCALE_RULE(&o),
        OPT_STR("report", "file", &o.report_path,
            "write the error of each tensor to this file"),
        OPT_COMPRESS_OR_SAME(&compress),
        OPT_SHARD_SIZE(&o),
        OPT_OUTPUT(&o),
        OPT_FLAG("dry-run", &o.dry_run, "print the plan, write nothing"),
        OPT_NO_VERIFY(&o),
        OPT_COMMON(&common),
        OPT_END,
    };
    const struct command self = {
        .name = "glm-convert",
        .synopsis = {"--dtype type CKPT OUT"},
        .summary = "Converts the weights of a checkpoint to another number type.",
        .min_args = 2,
        .max_args = 2,
        .opts = opts,
    };
    struct glm_error err = {0};
    struct convert_report report = {0};
    const int parsed = opt_parse(&self, &argc, &argv, &err);
    if (parsed == 0 && o.dtype == NULL)
        glm_fail(&err, GLM_EUSAGE, "--dtype is missing: the type to convert to");
    else if (parsed == 0) {
        o.ckpt = argv[0];
        o.out = argv[1];
        o.compress = compress_or_same(compress);
        o.threads = cli_movers(&common);
        struct watch watch;
        watch_begin(&watch, self.name, &common);
        convert_recode(&o, &report, &watch.events, &err);
        outcome_end(&(struct outcome){.command = self.name,
                        .input = o.ckpt,
                        .output = o.out,
                        .json = common.json,
                        .report = &report},
            &watch, &err);
    }
    return cli_report(self.name, &err);
}
