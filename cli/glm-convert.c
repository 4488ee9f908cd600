/* glm-convert: a checkpoint into one with other number types, with an error report. */
#include <string.h>

#include "cli/opt.h"
#include "cli/outcome.h"
#include "cli/report.h"
#include "cli/watch.h"

int main(int argc, char **argv)
{
    struct recode_options o = {0};
    const char *compress = "same";
    struct common_options common = {0};
    const struct opt opts[] = {
        OPT_CHOICE(
            "dtype", "bf16|f32|mxfp8|fp8", &o.dtype, "store the weights in this type"),
        OPT_CHOICE("scale-rule", "te_round_up|ocp_floor|amax|pow2", &o.scale_rule,
            "how scales are chosen (default te_round_up for mxfp8, amax for fp8)"),
        OPT_STR("report", "file", &o.report_path,
            "write the error of each tensor to this file"),
        OPT_CHOICE(
            "compress", "same|none|zstd", &compress, "compress each tile (default same)"),
        OPT_SIZE(
            "shard-size", "bytes", &o.shard_size, "size of a shard file (default 4GiB)"),
        OPT_FLAG("replace", &o.replace, "put the output in the place of an existing one"),
        OPT_FLAG("restart", &o.restart, "discard the unfinished output of other options"),
        OPT_FLAG(
            "take-lease", &o.take_lease, "take over unfinished work of another host"),
        OPT_FLAG("dry-run", &o.dry_run, "print the plan, write nothing"),
        OPT_FLAG("no-verify", &o.no_verify, "do not check digests while reading"),
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
        o.compress = strcmp(compress, "zstd") == 0 ? COMPRESS_ZSTD
            : strcmp(compress, "none") == 0        ? COMPRESS_NONE
                                                   : COMPRESS_SAME;
        o.threads = cli_threads(&common);
        struct watch watch;
        watch_begin(&watch, self.name, &common);
        convert_recode(&o, &report, &watch.events, &err);
        watch_end(&watch, err.code == GLM_OK);
        if (err.code == GLM_OK)
            outcome_print(&(struct outcome){.command = self.name,
                              .input = o.ckpt,
                              .output = o.out,
                              .json = common.json,
                              .report = &report},
                &err);
    }
    return cli_report(self.name, &err);
}
