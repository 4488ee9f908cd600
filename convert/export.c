/* glm-export: a checkpoint into a Hugging Face directory. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "convert/build.h"

enum { INDEX_SUFFIX = 11 /* ".index.json" */ };
static const uint64_t default_shard = 5000000000; /* the habit: 5 GB, decimal */

/* The stored index file describes the original files, not those of a new layout. */
static bool is_file_index(const char *name)
{
    const size_t n = strlen(name);
    return n > INDEX_SUFFIX && strcmp(name + n - INDEX_SUFFIX, ".index.json") == 0;
}

static int write_sides(struct hf_writer *w, const struct index *ix,
    const struct export_options *o, const char *config, size_t config_size,
    struct glm_error *err)
{
    const struct manifest *m = ix->manifest;

    for (int64_t i = 0; i < m->file_count && err->code == GLM_OK; i++) {
        const struct ckpt_file *f = &m->files[i];
        void *data = NULL;
        if (f->header || (is_file_index(f->path) && !o->same_files))
            continue;
        if (strcmp(f->path, "config.json") == 0)
            hf_writer_side(w, f->path, config, config_size, err);
        else if (index_file(ix, f, &data, err) == GLM_OK)
            hf_writer_side(w, f->path, data, (size_t)f->bytes, err);
        free(data);
    }
    return (int)err->code;
}

/* The type that config.json is to name. What was imported keeps its text; training stores weights in
 * a type of its own, and a reader that goes by the text would round them. */
static struct target_form named_form(
    const struct manifest *m, const struct target_form *asked)
{
    int64_t f32 = 0, bf16 = 0;

    if (!asked->same || !manifest_trained(m))
        return *asked;
    for (int64_t i = 0; i < m->tensor_count; i++) {
        const struct ckpt_tensor *t = &m->tensors[i];
        if (t->section != SECTION_WEIGHT)
            continue;
        const int64_t n = t->grid.dims[0] * t->grid.dims[1] * t->grid.dims[2];
        f32 += t->dtype == GLM_F32 ? n : 0;
        bf16 += t->dtype == GLM_BF16 ? n : 0;
    }
    return (struct target_form){.dtype = f32 > bf16 ? GLM_F32 : GLM_BF16};
}

/* Everything that decides the output's bytes. */
static void plan_digest(struct build *b, const struct index *ix,
    const struct export_options *o, uint64_t limit, unsigned char out[DIGEST_SIZE])
{
    const char *dtype = o->dtype == NULL ? "same" : o->dtype;
    const char *rule = o->scale_rule == NULL ? "" : o->scale_rule;

    build_plan(b, "input", ix->manifest->id, DIGEST_SIZE);
    build_plan(b, "dtype", dtype, strlen(dtype));
    build_plan(b, "rule", rule, strlen(rule));
    build_plan(b, "same files", &o->same_files, sizeof o->same_files);
    build_plan(b, "limit", &limit, sizeof limit);
    digest_end(b->plan, out);
}

static void fill_report(struct convert_report *report, const struct manifest *m,
    const struct index *ix, const struct hf_writer *w, const struct flow_stats *stats,
    const struct flow_item *items, bool unseen)
{
    report->files = ix->manifest->shard_count;
    report->shards = hf_writer_files(w);
    report->hf_tensors = hf_writer_tensors(w);
    report->tensors = m->tensor_count;
    report->read_bytes = stats->read_bytes;
    report->written_bytes = report->dry_run ? hf_writer_bytes(w) : stats->written_bytes;
    report->skipped_bytes = stats->skipped_bytes;
    memcpy(report->id, ix->manifest->id, DIGEST_SIZE);
    for (int64_t i = 0; i < m->tensor_count; i++) {
        const struct ckpt_tensor *t = &m->tensors[i];
        report->elements += t->grid.dims[0] * t->grid.dims[1] * t->grid.dims[2];
        if (items[i].action != FLOW_RECODE)
            continue;
        report->converted += t->grid.dims[0];
        report->has_error = !report->dry_run;
        codec_error_add(&report->error, &items[i].error);
    }
    if (report->converted == 0 && !unseen)
        manifest_weights_fingerprint(ix->manifest, report->fingerprint);
}

int convert_export(const struct export_options *o, struct convert_report *report,
    const struct glm_events *events, struct glm_error *err)
{
    const double start = build_seconds();
    const uint64_t limit = o->max_shard_size == 0 ? default_shard : o->max_shard_size;
    struct ckpt_source c = {.verify = !o->no_verify};
    struct target_form form;
    struct flow_item *items = NULL;
    struct flow_stats stats = {0};
    struct hf_writer *w = NULL;
    struct build b = {0};
    char *config = NULL;
    size_t config_size = 0;
    unsigned char plan[DIGEST_SIZE];

    *report = (struct convert_report){.dry_run = o->dry_run};
    if (target_form_parse(&form, o->dtype, o->scale_rule, err) != GLM_OK
        || build_apart(o->ckpt, o->out, err) != GLM_OK)
        return (int)err->code;
    if (o->same_files && (!form.same || o->max_shard_size != 0))
        return glm_fail(err, GLM_EUSAGE,
            "--same-files gives the original files: --dtype and --max-shard-size do not "
            "go with it");
    if (reader_open(&c.reader, o->ckpt, err) != GLM_OK
        || build_begin(&b, "export", err) != GLM_OK
        || build_config(&b, c.reader, err) != GLM_OK)
        goto out;
    const struct index *ix = reader_index(c.reader);
    const struct target_form named = named_form(ix->manifest, &form);
    if (target_config(&config, &config_size, o->ckpt, b.config, b.config_size, ix->table,
            &named, err)
            != GLM_OK
        || target_manifest(&b.m, ix->manifest, ix->table, &form, true, err) != GLM_OK
        || recode_plan(ix->manifest, b.m, form.rule, &items, err) != GLM_OK)
        goto out;
    plan_digest(&b, ix, o, limit, plan);
    const struct work_options work = {.target = o->out,
        .plan = plan,
        .replace = o->replace,
        .restart = o->restart,
        .take_lease = o->take_lease};
    const struct hf_writer_options writer = {.m = b.m,
        .headers = o->same_files ? ix : NULL,
        .max_shard_size = limit,
        .source_files = ix->manifest->shard_count,
        .work = o->dry_run ? NULL : &work};
    if (hf_writer_open(&w, &writer, &report->resumed, err) != GLM_OK)
        goto out;
    if (o->dry_run) {
        fill_report(report, b.m, ix, w, &stats, items, o->no_verify);
        goto out;
    }
    if (report->resumed)
        glm_events_note(events, "continues unfinished work");
    const struct flow_source source = ckpt_flow_source(&c);
    const struct flow_sink sink = hf_writer_sink(w);
    if (flow_run(&source, &sink, items, o->threads, "export", events, &stats, err)
            != GLM_OK
        || write_sides(w, ix, o, config, config_size, err) != GLM_OK)
        goto out;
    fill_report(report, b.m, ix, w, &stats, items, o->no_verify);
    if (hf_writer_commit(w, err) == GLM_OK)
        w = NULL;
    report->seconds = build_seconds() - start;
out:
    hf_writer_close(w);
    free(items);
    free(config);
    build_clear(&b);
    reader_close(c.reader);
    return (int)err->code;
}
