#include "cli/outcome.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli/jsonout.h"
#include "cli/progress.h"
#include "cli/report.h"

static void error_json(struct jsonout *j, const struct codec_error *e)
{
    json_t *to = jsonout_object(j, NULL, "error");
    jsonout_int(j, to, "elements", e->count);
    jsonout_int(j, to, "changed", e->changed);
    jsonout_int(j, to, "non_finite", e->non_finite);
    jsonout_real(j, to, "max_abs", e->max_abs);
    jsonout_real(j, to, "max_rel", e->max_rel);
    jsonout_real(j, to, "snr_db", codec_snr_db(e));
}

/* What an export converted has none: it is no checkpoint's. */
static bool has_fingerprint(const struct convert_report *r)
{
    static const unsigned char none[sizeof r->fingerprint];
    return !r->dry_run && memcmp(r->fingerprint, none, sizeof none) != 0;
}

static int print_json(const struct outcome *o, struct glm_error *err)
{
    const struct convert_report *r = o->report;
    struct jsonout j;
    jsonout_init(&j);
    jsonout_str(&j, NULL, "command", o->command);
    jsonout_str(&j, NULL, "input", o->input);
    jsonout_str(&j, NULL, "output", o->output);
    jsonout_bool(&j, NULL, "dry_run", r->dry_run);
    jsonout_bool(&j, NULL, "resumed", r->resumed);
    jsonout_int(&j, NULL, "hf_tensors", r->hf_tensors);
    jsonout_int(&j, NULL, "tensors", r->tensors);
    jsonout_int(&j, NULL, "elements", r->elements);
    jsonout_int(&j, NULL, "converted", r->converted);
    jsonout_int(&j, NULL, "input_files", r->files);
    jsonout_int(&j, NULL, "output_files", r->shards);
    jsonout_uint(&j, NULL, "read_bytes", r->read_bytes);
    jsonout_uint(&j, NULL, "written_bytes", r->written_bytes);
    jsonout_uint(&j, NULL, "skipped_bytes", r->skipped_bytes);
    jsonout_real(&j, NULL, "seconds", r->seconds);
    jsonout_str(&j, NULL, "topology", r->topology[0] != '\0' ? r->topology : NULL);
    jsonout_str(&j, NULL, "layout", r->layout[0] != '\0' ? r->layout : NULL);
    if (has_fingerprint(r))
        jsonout_digest(&j, NULL, "fingerprint", r->fingerprint);
    else
        jsonout_str(&j, NULL, "fingerprint", NULL);
    if (r->dry_run)
        jsonout_str(&j, NULL, "id", NULL);
    else
        jsonout_digest(&j, NULL, "id", r->id);
    if (r->has_error)
        error_json(&j, &r->error);
    else
        jsonout_str(&j, NULL, "error", NULL);
    const int rc = jsonout_print(&j, stdout, err);
    jsonout_clear(&j);
    return rc;
}

static void print_error(const struct codec_error *e)
{
    printf("changed      %" PRId64 " of %" PRId64 " elements", e->changed, e->count);
    if (e->non_finite > 0)
        printf(", %" PRId64 " not finite", e->non_finite);
    printf("\nerror        at most %.6g absolute, %.6g relative, SNR %.2f dB\n",
        e->max_abs, e->max_rel, codec_snr_db(e));
}

static void print_text(const struct outcome *o)
{
    const struct convert_report *r = o->report;
    char bytes[24], took[32], shown[CLI_SHOWN];
    const uint64_t size = r->written_bytes + r->skipped_bytes;
    printf("%-11s  %s\n", r->dry_run ? "would write" : "written",
        cli_shown(o->output, shown));
    printf("tensors      %" PRId64 " (%" PRId64 " in Hugging Face's count), %" PRId64
           " elements\n",
        r->tensors, r->hf_tensors, r->elements);
    if (r->converted > 0)
        printf("converted    %" PRId64 " tensors\n", r->converted);
    printf("size         %s in %" PRId64 " file%s\n",
        progress_bytes(size, bytes, sizeof bytes), r->shards, r->shards == 1 ? "" : "s");
    if (r->topology[0] != '\0')
        printf("topology     %s %s\n", r->topology, r->layout);
    if (r->has_error)
        print_error(&r->error);
    if (has_fingerprint(r)) {
        char hex[DIGEST_HEX];
        digest_hex(r->fingerprint, hex);
        printf("fingerprint  %s\n", hex);
    } else if (r->dry_run && r->seconds > 0) {
        printf("estimate     %s\n", progress_time(r->seconds, took, sizeof took));
    }
}

int outcome_print(const struct outcome *o, struct glm_error *err)
{
    if (o->json)
        return print_json(o, err);
    print_text(o);
    return 0;
}

void outcome_end(const struct outcome *o, struct watch *watch, struct glm_error *err)
{
    watch_end(watch, err->code == GLM_OK);
    if (err->code == GLM_OK)
        outcome_print(o, err);
}
