/* glm-import: a Hugging Face model into a checkpoint.
 *
 * hfdir has checked names, shapes, index and scales against the table by the time anything is
 * planned here, so what flows is complete. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "convert/build.h"
#include "convert/import_source.h"
#include "kernels/base/utf8.h"
#include "kernels/base/version.h"

enum { SIDE_LIMIT = 128 << 20 };

/* What comes from the name of a folder may be any bytes; a manifest is UTF-8. */
static int add_name(struct manifest *m, const char *key, const char *name)
{
    char *const text = utf8_mended(name);
    const int rc = text != NULL ? manifest_add_prov(m, key, text) : -1;
    free(text);
    return rc;
}

static int add_provenance(struct build *b, const struct import_source *in,
    const struct import_options *o, struct glm_error *err)
{
    const struct hf_source *s = in->s;
    char repo[PATH_MAX], revision[128], command[512], hex[DIGEST_HEX];
    unsigned char headers[DIGEST_SIZE];
    struct digest *d = digest_new();
    int failed = d == NULL;

    if (!failed) {
        digest_begin(d);
        for (int64_t i = 0; i < s->file_count; i++)
            digest_update(
                d, s->files[i].header_bytes, (size_t)s->files[i].header.data_start);
        digest_end(d, headers);
        digest_free(d);
        digest_hex(headers, hex);
        import_source_origin(in, repo, sizeof repo, revision, sizeof revision);
        snprintf(command, sizeof command, "glm-import%s%s%s%s%s%s%s",
            o->dtype != NULL && strcmp(o->dtype, "same") != 0 ? " --dtype " : "",
            o->dtype != NULL && strcmp(o->dtype, "same") != 0 ? o->dtype : "",
            o->no_mtp ? " --no-mtp" : "", o->layers != NULL ? " --layers " : "",
            o->layers != NULL ? o->layers : "", o->experts != NULL ? " --experts " : "",
            o->experts != NULL ? o->experts : "");
        failed = manifest_add_prov(b->m, "command", command)
            || manifest_add_prov(b->m, "headers-sha256", hex)
            || add_name(b->m, "source", repo)
            || (revision[0] != '\0' && add_name(b->m, "revision", revision))
            || manifest_add_prov(b->m, "version", GLM_VERSION);
    }
    return failed ? glm_fail(err, GLM_ENOMEM, "no memory for provenance") : GLM_OK;
}

static int add_files(struct build *b, const struct hf_source *s, struct glm_error *err)
{
    for (int64_t i = 0; i < s->side_count; i++) {
        void *data;
        size_t size;
        if (strcmp(s->sides[i].path, "config.json") == 0) {
            size = b->config_size;
            data = malloc(size + 1);
            if (data == NULL)
                return glm_fail(err, GLM_ENOMEM, "config.json: no memory");
            memcpy(data, b->config, size);
        } else {
            if (hfdir_slurp(s, s->sides[i].path, SIDE_LIMIT, &data, &size, err) != GLM_OK)
                return (int)err->code;
        }
        if (build_file(b, s->sides[i].path, false, data, size, err) != GLM_OK)
            return (int)err->code;
    }
    for (int64_t i = 0; i < s->file_count && !s->subset; i++) {
        const size_t size = (size_t)s->files[i].header.data_start;
        void *copy = malloc(size);
        if (copy == NULL)
            return glm_fail(err, GLM_ENOMEM, "%s: no memory", s->files[i].name);
        memcpy(copy, s->files[i].header_bytes, size);
        if (build_file(b, s->files[i].name, true, copy, size, err) != GLM_OK)
            return (int)err->code;
    }
    return GLM_OK;
}

/* Everything up to the point where bytes would be written. */
static int plan(struct build *b, const struct import_options *o,
    const struct import_source *in, const struct target_form *form, struct glm_error *err)
{
    const struct hf_source *s = in->s;
    char path[PATH_MAX];

    snprintf(path, sizeof path, "%s/config.json", s->dir);
    if (target_config(&b->config, &b->config_size, path, s->config_text, s->config_size,
            s->table, form, err)
            != GLM_OK
        || build_begin(b, "import", err) != GLM_OK
        || build_table(b, path, o->no_mtp, err) != GLM_OK
        || target_manifest(&b->m, in->source.m, b->table, form, true, err) != GLM_OK)
        return (int)err->code;
    b->m->without_mtp = o->no_mtp && !s->has_mtp;
    if (import_source_plan(in, b, err) != GLM_OK || add_files(b, s, err) != GLM_OK
        || add_provenance(b, in, o, err) != GLM_OK)
        return (int)err->code;
    build_plan(b, "layers", o->layers, o->layers == NULL ? 0 : strlen(o->layers));
    build_plan(b, "experts", o->experts, o->experts == NULL ? 0 : strlen(o->experts));
    return build_place(b, &o->topology, o->encoding, o->shard_size, err);
}

int convert_import(const struct import_options *o, struct convert_report *report,
    const struct glm_events *events, struct glm_error *err)
{
    const double start = build_seconds();
    struct target_form form;
    struct import_source in = {0};
    struct build b = {0};

    *report = (struct convert_report){.dry_run = o->dry_run};
    if (target_form_parse(&form, o->dtype, o->scale_rule, err) != GLM_OK
        || import_source_open(&in, o, &form, events, err) != GLM_OK)
        goto out;
    for (int i = 0; i < in.s->warning_count; i++)
        glm_events_note(events, in.s->warnings[i]);
    if (plan(&b, o, &in, &form, err) != GLM_OK)
        goto out;
    build_report(&b, report);
    report->files = in.s->file_count;
    report->read_bytes = in.s->bytes;
    if (o->dry_run) {
        report->seconds = import_source_estimate(&in, o->threads);
        goto out;
    }
    const struct build_run run = {.out = o->out,
        .verb = "import",
        .replace = o->replace,
        .restart = o->restart,
        .take_lease = o->take_lease,
        .seal = true,
        .threads = o->threads,
        .rule = form.rule};
    if (build_run(&b, &in.source, &run, report, NULL, events, err) == GLM_EUSAGE
        && in.hub != NULL)
        hub_moved(in.hub, o->out, err);
    report->seconds = build_seconds() - start;
out:
    build_clear(&b);
    import_source_close(&in);
    return (int)err->code;
}
