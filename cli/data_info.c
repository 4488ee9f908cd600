/* glm-data info and check: what a token dataset is, and whether all of it is as it should be. */
#include <inttypes.h>
#include <stdio.h>

#include "cli/data_modes.h"
#include "cli/jsonout.h"
#include "cli/opt.h"
#include "cli/report.h"
#include "cli/watch.h"
#include "train/train.h"

static int print_json(const char *command, const char *path, const struct tokens *t,
    int64_t largest, struct glm_error *err)
{
    struct jsonout j;
    jsonout_init(&j);
    jsonout_str(&j, NULL, "command", command);
    jsonout_str(&j, NULL, "path", path);
    jsonout_str(&j, NULL, "format", tokens_format_name(t->format));
    jsonout_str(&j, NULL, "dtype", glm_dtype_name(t->dtype));
    jsonout_int(&j, NULL, "tokens", t->count);
    jsonout_int(&j, NULL, "documents", t->documents);
    jsonout_int(&j, NULL, "empty", t->empty);
    jsonout_int(&j, NULL, "shortest", t->shortest);
    jsonout_int(&j, NULL, "longest", t->longest);
    jsonout_bool(&j, NULL, "mask", t->mask_base != 0);
    if (largest >= 0)
        jsonout_int(&j, NULL, "largest_id", largest);
    else
        jsonout_str(&j, NULL, "largest_id", NULL);
    jsonout_digest(&j, NULL, "fingerprint", t->fingerprint);
    jsonout_print(&j, stdout, err);
    jsonout_clear(&j);
    return err->code;
}

static void print_text(const struct tokens *t)
{
    char hex[DIGEST_HEX];
    digest_hex(t->fingerprint, hex);
    printf("format       %s\n",
        t->format == TOKENS_GLM ? "glm (HDF5)" : "Megatron .idx, .bin");
    printf("tokens       %" PRId64 " of type %s\n", t->count, glm_dtype_name(t->dtype));
    printf(
        "documents    %" PRId64 ", %" PRId64 " of them empty\n", t->documents, t->empty);
    printf("lengths      %" PRId64 " to %" PRId64 "\n", t->shortest, t->longest);
    if (t->largest >= 0)
        printf("largest id   %" PRId64 "\n", t->largest);
    printf("loss mask    %s\n", t->mask_base != 0 ? "yes" : "no");
    printf("fingerprint  %s\n", hex);
}

int data_info(int argc, char **argv)
{
    struct common_options common = {0};
    const struct opt opts[] = {OPT_COMMON(&common), OPT_END};
    const struct command self = {
        .name = "glm-data info",
        .synopsis = {"DATASET"},
        .summary =
            "Prints what a token dataset is. Reads its header and documents, no tokens.",
        .min_args = 1,
        .max_args = 1,
        .opts = opts,
    };
    struct glm_error err = {0};
    struct tokens t;
    if (opt_parse(&self, &argc, &argv, &err) == 0
        && tokens_open(&t, argv[0], &err) == GLM_OK) {
        if (common.json)
            print_json(self.name, argv[0], &t, t.largest, &err);
        else
            print_text(&t);
        tokens_close(&t);
    }
    return cli_report("glm-data", &err);
}

int data_check(int argc, char **argv)
{
    int vocab = 0;
    struct common_options common = {0};
    const struct opt opts[] = {
        OPT_INT("vocab", "n", &vocab, 1, INT32_MAX, "ids must be below n"),
        OPT_COMMON(&common),
        OPT_END,
    };
    const struct command self = {
        .name = "glm-data check",
        .synopsis = {"DATASET"},
        .summary = "Reads all of a token dataset: ids, loss mask, digests.",
        .min_args = 1,
        .max_args = 1,
        .opts = opts,
    };
    struct glm_error err = {0};
    struct tokens t;
    if (opt_parse(&self, &argc, &argv, &err) == 0
        && tokens_open(&t, argv[0], &err) == GLM_OK) {
        char shown[CLI_SHOWN];
        int64_t largest;
        struct watch watch;
        watch_begin(&watch, "glm-data", &common);
        tokens_check(&t, vocab, &largest, &watch.events, &err);
        watch_end(&watch, err.code == GLM_OK);
        if (err.code == GLM_OK && common.json)
            print_json(self.name, argv[0], &t, largest, &err);
        else if (err.code == GLM_OK)
            printf("%s: %" PRId64 " tokens in %" PRId64 " documents, largest id %" PRId64
                   ": all as it should be\n",
                cli_shown(argv[0], shown), t.count, t.documents, largest);
        tokens_close(&t);
    }
    return cli_report("glm-data", &err);
}
