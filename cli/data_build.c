/* glm-data build: options, and what was made. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli/data_modes.h"
#include "cli/jsonout.h"
#include "cli/opt.h"
#include "cli/report.h"
#include "cli/watch.h"
#include "train/train.h"

static int print(const char *out, const char *dtype, bool json,
    const struct tokens_build_report *r, struct glm_error *err)
{
    struct jsonout j;
    if (!json) {
        char shown[CLI_SHOWN];
        printf("%s: %" PRId64 " tokens (%s) in %" PRId64 " document%s",
            cli_shown(out, shown), r->tokens, dtype, r->documents,
            r->documents == 1 ? "" : "s");
        if (r->empty > 0)
            printf(", %" PRId64 " of them empty", r->empty);
        if (r->masked > 0)
            printf("; no loss on %" PRId64 " tokens", r->masked);
        printf("\n");
        return GLM_OK;
    }
    jsonout_init(&j);
    jsonout_str(&j, NULL, "command", "glm-data build");
    jsonout_str(&j, NULL, "output", out);
    jsonout_str(&j, NULL, "dtype", dtype);
    jsonout_int(&j, NULL, "tokens", r->tokens);
    jsonout_int(&j, NULL, "documents", r->documents);
    jsonout_int(&j, NULL, "empty", r->empty);
    jsonout_int(&j, NULL, "masked", r->masked);
    jsonout_print(&j, stdout, err);
    jsonout_clear(&j);
    return err->code;
}

static enum glm_dtype type(const char *name)
{
    return strcmp(name, "u16") == 0 ? GLM_U16
        : strcmp(name, "i32") == 0  ? GLM_I32
                                    : GLM_I64;
}

/* Options that only one kind of source has. */
static int contradictions(const struct tokens_build_options *o, const char *raw,
    const char *from, struct glm_error *err)
{
    if (o->separator != NULL && o->from != TOKENS_BYTES)
        return glm_fail(err, GLM_EUSAGE, "--split is for --from bytes, not %s", from);
    if (o->document_end >= 0 && o->from != TOKENS_RAW)
        return glm_fail(
            err, GLM_EUSAGE, "--document-end is for --from raw, not %s", from);
    if (raw != NULL && o->from != TOKENS_RAW)
        return glm_fail(err, GLM_EUSAGE, "--raw-dtype is for --from raw, not %s", from);
    if (raw == NULL && o->from == TOKENS_RAW)
        return glm_fail(err, GLM_EUSAGE,
            "--from raw wants --raw-dtype: u16, i32 or i64, the type in the files");
    return GLM_OK;
}

int data_build(int argc, char **argv)
{
    const char *from = "bytes", *dtype = NULL, *raw = NULL;
    int eos = -1, end = -1, vocab = 0;
    struct tokens_build_options o = {0};
    struct common_options common = {0};
    const struct opt opts[] = {
        OPT_CHOICE("from", "bytes|jsonl|raw", &from,
            "what the sources are: text, JSON lines of ids, raw ids"),
        OPT_CHOICE("dtype", "u16|i32", &dtype,
            "store ids in this type (default u16 for bytes, else i32)"),
        OPT_CHOICE("raw-dtype", "u16|i32|i64", &raw, "type of the ids in raw files"),
        OPT_STR("split", "text", &o.separator,
            "a line equal to text ends a document; '' is a blank line"),
        OPT_INT("document-end", "id", &end, 0, INT32_MAX,
            "this id ends a document of raw ids"),
        OPT_INT(
            "append-eos", "id", &eos, 0, INT32_MAX, "end every document with this id"),
        OPT_INT("vocab", "n", &vocab, 1, INT32_MAX, "refuse ids of n and above"),
        OPT_FLAG("replace", &o.replace, "overwrite OUT if it exists"),
        OPT_COMMON(&common),
        OPT_END,
    };
    const struct command self = {
        .name = "glm-data build",
        .synopsis = {"OUT SRC..."},
        .summary = "Makes a token dataset from text, JSON lines of ids, or raw ids.",
        .min_args = 2,
        .max_args = INT32_MAX,
        .opts = opts,
    };
    struct glm_error err = {0};
    if (opt_parse(&self, &argc, &argv, &err) != 0)
        return cli_report("glm-data", &err);
    o.from = from[0] == 'b' ? TOKENS_BYTES : from[0] == 'j' ? TOKENS_JSONL : TOKENS_RAW;
    if (dtype == NULL)
        dtype = o.from == TOKENS_BYTES && eos <= UINT16_MAX ? "u16" : "i32";
    o.dtype = type(dtype);
    o.raw_dtype = raw != NULL ? type(raw) : GLM_I32;
    o.document_end = end;
    o.append_eos = eos;
    o.vocab = vocab;
    if (contradictions(&o, raw, from, &err) == GLM_OK) {
        struct tokens_build_report report;
        struct watch watch;
        watch_begin(&watch, "glm-data", &common);
        o.events = &watch.events;
        tokens_build(argv[0], argv + 1, argc - 1, &o, &report, &err);
        watch_end(&watch, err.code == GLM_OK);
        if (err.code == GLM_OK)
            print(argv[0], dtype, common.json, &report, &err);
    }
    return cli_report("glm-data", &err);
}
