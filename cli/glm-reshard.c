/* glm-reshard: a checkpoint into one of another topology. */
#include "cli/convert_opt.h"
#include "cli/outcome.h"
#include "cli/report.h"

int main(int argc, char **argv)
{
    struct reshard_options o = {0};
    const char *compress = "same";
    struct common_options common = {0};
    const struct opt opts[] = {
        OPT_TOPOLOGY(&o.topology),
        OPT_COMPRESS_OR_SAME(&compress),
        OPT_SHARD_SIZE(&o),
        OPT_OUTPUT(&o),
        OPT_FLAG("dry-run", &o.dry_run, "print the plan, write nothing"),
        OPT_NO_VERIFY(&o),
        OPT_COMMON(&common),
        OPT_END,
    };
    const struct command self = {
        .name = "glm-reshard",
        .synopsis = {"CKPT OUT"},
        .summary = "Writes a checkpoint again at another topology.",
        .min_args = 2,
        .max_args = 2,
        .opts = opts,
    };
    struct glm_error err = {0};
    struct convert_report report = {0};
    if (opt_parse(&self, &argc, &argv, &err) == 0) {
        o.ckpt = argv[0];
        o.out = argv[1];
        o.compress = compress_or_same(compress);
        o.threads = cli_movers(&common);
        struct watch watch;
        watch_begin(&watch, self.name, &common);
        convert_reshard(&o, &report, &watch.events, &err);
        outcome_end(&(struct outcome){.command = self.name,
                        .input = o.ckpt,
                        .output = o.out,
                        .json = common.json,
                        .report = &report},
            &watch, &err);
    }
    return cli_report(self.name, &err);
}
