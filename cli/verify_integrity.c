/* glm-verify integrity: options, and the report for people and programs. */
#include <stdio.h>
#include <string.h>

#include "cli/jsonout.h"
#include "cli/opt.h"
#include "cli/report.h"
#include "cli/verify_modes.h"
#include "cli/watch.h"
#include "verify/verify.h"

static const char *verdict_of(const struct glm_error *err)
{
    return err->code == GLM_OK       ? "intact"
        : err->code == GLM_EMISMATCH ? "damaged"
                                     : "unknown";
}

static void finding_json(struct jsonout *j, json_t *list, const struct finding *f)
{
    json_t *o = jsonout_object(j, list, NULL);
    jsonout_str(j, o, "kind", finding_kind_name(f->kind));
    jsonout_str(j, o, "file", f->file);
    jsonout_uint(j, o, "offset", f->offset);
    jsonout_uint(j, o, "bytes", f->bytes);
    jsonout_str(j, o, "section", f->section);
    jsonout_str(j, o, "tensor", f->tensor[0] != '\0' ? f->tensor : NULL);
    jsonout_str(j, o, "member", f->member[0] != '\0' ? f->member : NULL);
    jsonout_int(j, o, "tile", f->tile);
    json_t *range = jsonout_array(j, o, "range");
    for (int i = 0; f->tensor[0] != '\0' && i < f->rank; i++) {
        json_t *axis = jsonout_array(j, range, NULL);
        jsonout_int(j, axis, NULL, f->lo[i]);
        jsonout_int(j, axis, NULL, f->hi[i]);
    }
    jsonout_str(j, o, "text", f->text);
}

static int print_json(const char *path, const struct integrity_report *r,
    const struct glm_error *done, struct glm_error *err)
{
    struct jsonout j;
    jsonout_init(&j);
    jsonout_str(&j, NULL, "command", "glm-verify integrity");
    jsonout_str(&j, NULL, "checkpoint", path);
    jsonout_str(&j, NULL, "verdict", verdict_of(done));
    jsonout_bool(&j, NULL, "quick", r->quick);
    if (r->opened) {
        jsonout_digest(&j, NULL, "fingerprint", r->fingerprint);
        jsonout_digest(&j, NULL, "id", r->id);
    } else {
        jsonout_str(&j, NULL, "fingerprint", NULL);
        jsonout_str(&j, NULL, "id", NULL);
    }
    jsonout_int(&j, NULL, "shards", r->shards);
    jsonout_int(&j, NULL, "tensors", r->tensors);
    jsonout_int(&j, NULL, "tiles", r->tiles);
    jsonout_int(&j, NULL, "tiles_checked", r->tiles_checked);
    jsonout_int(&j, NULL, "chunks", r->chunks);
    jsonout_int(&j, NULL, "chunks_checked", r->chunks_checked);
    jsonout_uint(&j, NULL, "bytes", r->bytes);
    jsonout_uint(&j, NULL, "bytes_checked", r->bytes_checked);
    jsonout_int(&j, NULL, "finding_count", findings_total(&r->findings));
    json_t *list = jsonout_array(&j, NULL, "findings");
    for (int64_t i = 0; i < r->findings.count; i++)
        finding_json(&j, list, r->findings.items[i]);
    json_t *extra = jsonout_array(&j, NULL, "extra_files");
    for (int64_t i = 0; i < r->extra_files && i < INTEGRITY_EXTRA; i++)
        jsonout_str(&j, extra, NULL, r->extra[i]);
    jsonout_print(&j, stdout, err);
    jsonout_clear(&j);
    return err->code;
}

static void print_text(
    const char *path, const struct integrity_report *r, const struct glm_error *done)
{
    char bytes[32], hex[DIGEST_HEX], shown[CLI_SHOWN];
    for (int64_t i = 0; i < r->findings.count; i++)
        printf("%s\n", cli_shown(r->findings.items[i]->text, shown));
    if (r->findings.dropped > 0)
        printf("and %lld more\n", (long long)r->findings.dropped);
    for (int64_t i = 0; i < r->extra_files && i < INTEGRITY_EXTRA; i++)
        printf("note: %s is not part of the checkpoint\n", cli_shown(r->extra[i], shown));
    if (done->code != GLM_OK)
        return; /* the sentence on stderr says the verdict */
    digest_hex(r->fingerprint, hex);
    cli_shown(path, shown);
    if (r->quick)
        printf("%s: index, manifest and the lengths of %lld shards are right; data was "
               "not read\n",
            shown, (long long)r->shards);
    else
        printf("%s: intact: %lld tensors, %lld tiles, %lld shards, %s\n", shown,
            (long long)r->tensors, (long long)r->tiles, (long long)r->shards,
            progress_bytes(r->bytes, bytes, sizeof bytes));
    printf("fingerprint %s\n", hex);
}

int verify_integrity(int argc, char **argv)
{
    struct integrity_options o = {0};
    struct common_options common = {0};
    const struct opt opts[] = {
        OPT_FLAG(
            "quick", &o.quick, "check index, manifest and file lengths; read no data"),
        OPT_COMMON(&common),
        OPT_END,
    };
    const struct command self = {
        .name = "glm-verify integrity",
        .synopsis = {"CKPT"},
        .summary = "Proves that every byte of a checkpoint is what was written.",
        .min_args = 1,
        .max_args = 1,
        .opts = opts,
    };
    struct glm_error err = {0};
    if (opt_parse(&self, &argc, &argv, &err) != 0)
        return cli_report("glm-verify", &err);
    struct integrity_report report;
    struct watch watch;
    watch_begin(&watch, "glm-verify", &common);
    o.threads = cli_movers(&common);
    o.events = &watch.events;
    integrity_run(&report, argv[0], &o, &err);
    watch_end(&watch, err.code == GLM_OK);
    if (err.code == GLM_OK || err.code == GLM_EMISMATCH
        || findings_total(&report.findings) > 0) {
        struct glm_error printing = {0};
        if (!common.json)
            print_text(argv[0], &report, &err);
        else if (print_json(argv[0], &report, &err, &printing) != GLM_OK
            && err.code == GLM_OK)
            err = printing;
    }
    integrity_clear(&report);
    return cli_report("glm-verify", &err);
}
