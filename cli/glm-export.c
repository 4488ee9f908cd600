/* glm-export: a checkpoint into a Hugging Face model directory. */
#include "cli/opt.h"
#include "cli/outcome.h"
#include "cli/report.h"
#include "cli/watch.h"

int main(int argc, char **argv)
{
    struct export_options o = {.dtype = "same"};
    struct common_options common = {0};
    const struct opt opts[] = {
        OPT_CHOICE("dtype", "same|bf16|f32|mxfp8|fp8", &o.dtype,
            "write the weights in this type (default same)"),
        OPT_CHOICE("scale-rule", "te_round_up|ocp_floor|amax|pow2", &o.scale_rule,
            "how scales are chosen (default te_round_up for mxfp8, amax for fp8)"),
        OPT_SIZE("max-shard-size", "bytes", &o.max_shard_size,
            "size of a safetensors file (default 5GB)"),
        OPT_FLAG("same-files", &o.same_files,
            "write the files that were imported, byte for byte"),
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
        o.threads = cli_threads(&common);
        struct watch watch;
        watch_begin(&watch, self.name, &common);
        convert_export(&o, &report, &watch.events, &err);
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
