/* glm-export: a checkpoint into a Hugging Face model directory. */
#include "cli/convert_opt.h"
#include "cli/outcome.h"
#include "cli/report.h"

int main(int argc, char **argv)
{
    struct export_options o = {.dtype = "same"};
    struct common_options common = {0};
    const struct opt opts[] = {
        OPT_DTYPE_OR_SAME(&o, "write"),
        OPT_SCALE_RULE(&o),
        OPT_SIZE("max-shard-size", "bytes", &o.max_shard_size,
            "size of a safetensors file (default 5GB)"),
        OPT_FLAG("same-files", &o.same_files,
            "write the files that were imported, byte for byte"),
        OPT_OUTPUT(&o),
        OPT_FLAG("dry-run", &o.dry_run, "print the plan, write nothing"),
        OPT_NO_VERIFY(&o),
        OPT_COMMON(&common),
        OPT_END,
    };
    const struct command self = {
        .name = "glm-export",
        .synopsis = {"CKPT DIR"},
        .summary = "Exports a checkpoint into a Hugging Face model directory.",
        .min_args = 2,
        .max_args = 2,
        .opts = opts,
    };
    struct glm_error err = {0};
    struct convert_report report = {0};
    if (opt_parse(&self, &argc, &argv, &err) == 0) {
        o.ckpt = argv[0];
        o.out = argv[1];
        o.threads = cli_movers(&common);
        struct watch watch;
        watch_begin(&watch, self.name, &common);
        convert_export(&o, &report, &watch.events, &err);
        outcome_end(&(struct outcome){.command = self.name,
                        .input = o.ckpt,
                        .output = o.out,
                        .json = common.json,
                        .report = &report},
            &watch, &err);
    }
    return cli_report(self.name, &err);
}
