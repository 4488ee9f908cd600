/* glm-convert: the same weights in another type, with a report of what the numbers lost. */
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "convert/build.h"
#include "kernels/base/outfile.h"

/* Whether any tensor becomes other bytes. */
static bool changes(const struct manifest *from, const struct manifest *to,
    enum codec_rule rule, struct glm_error *err)
{
    struct flow_item *items;
    bool any = false;

    if (recode_plan(from, to, rule, &items, err) != GLM_OK)
        return false;
    for (int64_t i = 0; i < to->tensor_count; i++)
        any = any || items[i].action == FLOW_RECODE;
    free(items);
    return any;
}

static int plan(struct build *b, const struct recode_options *o, const struct reader *r,
    const struct target_form *form, struct glm_error *err)
{
    const struct manifest *m = reader_manifest(r);
    char command[64];
    char *old;
    size_t old_size;

    if (build_config(b, r, err) != GLM_OK)
        return (int)err->code;
    old = b->config;
    old_size = b->config_size;
    b->config = NULL;
    target_config(
        &b->config, &b->config_size, o->ckpt, old, old_size, m->table, form, err);
    free(old);
    if (err->code != GLM_OK || build_begin(b, "convert", err) != GLM_OK
        || build_table(b, o->ckpt, m->without_mtp, err) != GLM_OK
        || target_manifest(&b->m, m, b->table, form, true, err) != GLM_OK)
        return (int)err->code;
    /* The headers are those of files with the elements as they were. */
    const bool headers = !changes(m, b->m, form->rule, err);
    if (err->code != GLM_OK || build_inherit(b, r, headers, err) != GLM_OK)
        return (int)err->code;
    snprintf(command, sizeof command, "glm-convert --dtype %s", o->dtype);
    if (manifest_add_prov(b->m, "command", command) != 0)
        return glm_fail(err, GLM_ENOMEM, "no memory for provenance");
    return build_place(b, placement_topology(m->placement),
        build_encoding(m, o->compress), o->shard_size, err);
}

/* Whether this run converted every element; an earlier one may have, and its figures are lost. */
static bool measured(const struct ckpt_tensor *t, const struct codec_error *e)
{
    return e->count == t->grid.dims[0] * t->grid.dims[1] * t->grid.dims[2];
}

static void write_figures(FILE *f, const struct codec_error *e)
{
    if (e == NULL)
        fprintf(f, "-\t-\t-\t-\t-\t-\n");
    else
        fprintf(f, "%" PRId64 "\t%" PRId64 "\t%" PRId64 "\t%.9g\t%.9g\t%.2f\n", e->count,
            e->changed, e->non_finite, e->max_abs, e->max_rel, codec_snr_db(e));
}

/* One line per converted tensor and a total of what this run converted, tab-separated. */
static int write_report(struct outfile *o, const char *path, const struct manifest *m,
    const struct flow_item *items, const struct codec_error *total, struct glm_error *err)
{
    if (outfile_begin(o, path, err) != GLM_OK)
        return (int)err->code;
    fprintf(o->out,
        "tensor\tdtype\telements\tchanged\tnon_finite\tmax_abs\tmax_rel\tsnr_db\n");
    for (int64_t i = 0; i < m->tensor_count; i++) {
        const struct ckpt_tensor *t = &m->tensors[i];
        if (items[i].action != FLOW_RECODE)
            continue;
        fprintf(o->out, "%s\t%s\t", t->name, glm_dtype_name(t->dtype));
        write_figures(o->out, measured(t, &items[i].error) ? &items[i].error : NULL);
    }
    fprintf(o->out, "total\t-\t");
    write_figures(o->out, total->count > 0 ? total : NULL);
    return outfile_close(o, path, err);
}

/* Asked before the work: a terabyte later would be late. */
static int check_report(const struct recode_options *o, struct glm_error *err)
{
    char real[PATH_MAX], partial[PATH_MAX];
    int n = (int)strlen(o->out);

    if (o->report_path == NULL)
        return GLM_OK;
    while (n > 1 && o->out[n - 1] == '/')
        n--;
    snprintf(partial, sizeof partial, "%.*s.partial", n, o->out);
    const char *const folders[] = {o->ckpt, o->out, partial};
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
        if (outfile_inside(o->report_path, folders[i], real))
            return glm_fail(err, GLM_EUSAGE, "--report %s: lies inside %s, which is %s",
                o->report_path, folders[i], i == 0 ? "read" : "written");
    return GLM_OK;
}

int convert_recode(const struct recode_options *o, struct convert_report *report,
    const struct glm_events *events, struct glm_error *err)
{
    const double start = build_seconds();
    struct ckpt_source c = {.verify = !o->no_verify};
    struct target_form form;
    struct flow_item *items = NULL;
    struct manifest *names = NULL;
    struct outfile lines = {0};
    struct build b = {0};

    *report = (struct convert_report){.dry_run = o->dry_run};
    if (target_form_parse(&form, o->dtype, o->scale_rule, err) != GLM_OK
        || build_apart(o->ckpt, o->out, err) != GLM_OK || check_report(o, err) != GLM_OK
        || reader_open(&c.reader, o->ckpt, err) != GLM_OK
        || plan(&b, o, c.reader, &form, err) != GLM_OK
        || target_manifest(&names, reader_manifest(c.reader), b.table, &form, true, err)
            != GLM_OK)
        goto out;
    const struct manifest *m = reader_manifest(c.reader);
    if (manifest_trained(m))
        glm_events_note(events,
            "only weights are converted: the training sections (masters, "
            "optimizer state) stay behind in the input");
    build_report(&b, report);
    report->files = m->shard_count;
    if (o->dry_run)
        goto out;
    /* Before the work, too; what is in the file stays until there is something better. */
    if (o->report_path != NULL && outfile_open(&lines, o->report_path, err) != GLM_OK)
        goto out;
    const struct flow_source source = ckpt_flow_source(&c);
    const struct build_run run = {.out = o->out,
        .verb = "convert",
        .replace = o->replace,
        .restart = o->restart,
        .take_lease = o->take_lease,
        .threads = o->threads,
        .rule = form.rule};
    if (build_run(&b, &source, &run, report, &items, events, err) != GLM_OK)
        goto out;
    report->seconds = build_seconds() - start;
    report->has_error =
        report->error.count > 0; /* an earlier run may have converted all */
    if (report->resumed && report->skipped_bytes > 0)
        glm_events_note(events,
            "the error report covers what this run converted; what an earlier "
            "run had finished is not in it");
    if (o->report_path != NULL)
        write_report(&lines, o->report_path, names, items, &report->error, err);
out:
    outfile_close(&lines, o->report_path, err);
    free(items);
    if (names != NULL)
        manifest_free(names);
    build_clear(&b);
    reader_close(c.reader);
    return (int)err->code;
}
