/* glm-import: Hugging Face safetensors into a checkpoint. */
#include <string.h>

#include "cli/convert_opt.h"
#include "cli/outcome.h"
#include "cli/report.h"

int main(int argc, char **argv)
{
    struct import_options o = {.dtype = "same", .retries = -1};
    const char *compress = "none";
    struct common_options common = {0};
    const struct opt opts[] = {
        OPT_TOPOLOGY(&o.topology),
        OPT_DTYPE_OR_SAME(&o, "store"),
        OPT_SCALE_RULE(&o),
        OPT_CHOICE(
            "compress", "none|zstd", &compress, "compress each tile (default none)"),
        OPT_SHARD_SIZE(&o),
        OPT_FLAG("no-mtp", &o.no_mtp, "leave out the multi-token-prediction layers"),
        OPT_LIST("layers", "list", &o.layers, "keep only these layers, like 0-3,78"),
        OPT_LIST(
            "experts", "list", &o.experts, "keep only these routed experts, like 0-15"),
        OPT_OUTPUT(&o),
        OPT_FLAG(
            "dry-run", &o.dry_run, "open every header, print the plan, write nothing"),
        OPT_NO_VERIFY(&o),
        OPT_STR("keep", "dir", &o.keep, "keep the downloaded files, as they are, there"),
        OPT_INT("connections", "n", &o.connections, 1, 64,
            "files downloaded at the same time (default 4)"),
        OPT_SIZE(
            "limit-rate", "bytes", &o.limit_rate, "download at most so much a second"),
        OPT_INT("stall-limit", "seconds", &o.stall_s, 1, 3600,
            "give a silent connection up after so long (default 20)"),
        OPT_INT("retries", "n", &o.retries, 0, 1000,
            "attempts after a failed one without progress (default 5)"),
        OPT_COMMON(&common),
        OPT_END,
    };
    const struct command self = {
        .name = "glm-import",
        .synopsis = {"SRC CKPT"},
        .summary =
            "Imports a Hugging Face model, from a directory or a hub, into a checkpoint.",
        .min_args = 2,
        .max_args = 2,
        .opts = opts,
    };
    struct glm_error err = {0};
    struct convert_report report = {0};
    if (opt_parse(&self, &argc, &argv, &err) == 0) {
        o.src = argv[0];
        o.out = argv[1];
        o.encoding = strcmp(compress, "zstd") == 0 ? ENC_ZSTD : ENC_PLAIN;
        o.threads = cli_movers(&common);
        struct watch watch;
        watch_begin(&watch, self.name, &common);
        convert_import(&o, &report, &watch.events, &err);
        outcome_end(&(struct outcome){.command = self.name,
                        .input = o.src,
                        .output = o.out,
                        .json = common.json,
                        .report = &report},
            &watch, &err);
    }
    return cli_report(self.name, &err);
}
