/* glm-reshard: the same tensors, every section of them, in other rectangles. */
#include "convert/build.h"

static int plan(struct build *b, const struct reshard_options *o, const struct reader *r,
    struct glm_error *err)
{
    const struct manifest *m = reader_manifest(r);
    const struct target_form same = {.same = true};

    if (build_config(b, r, err) != GLM_OK || build_begin(b, "reshard", err) != GLM_OK
        || build_table(b, o->ckpt, m->without_mtp, err) != GLM_OK
        || target_manifest(&b->m, m, b->table, &same, false, err) != GLM_OK)
        return (int)err->code;
    if (build_inherit(b, r, true, err) != GLM_OK)
        return (int)err->code;
    if (manifest_add_prov(b->m, "command", "glm-reshard") != 0)
        return glm_fail(err, GLM_ENOMEM, "no memory for provenance");
    return build_place(
        b, &o->topology, build_encoding(m, o->compress), o->shard_size, err);
}

int convert_reshard(const struct reshard_options *o, struct convert_report *report,
    const struct glm_events *events, struct glm_error *err)
{
    const double start = build_seconds();
    struct ckpt_source c = {.verify = !o->no_verify};
    struct build b = {0};

    *report = (struct convert_report){.dry_run = o->dry_run};
    if (build_apart(o->ckpt, o->out, err) != GLM_OK
        || reader_open(&c.reader, o->ckpt, err) != GLM_OK
        || plan(&b, o, c.reader, err) != GLM_OK)
        goto out;
    build_report(&b, report);
    report->files = reader_manifest(c.reader)->shard_count;
    if (o->dry_run)
        goto out;
    const struct flow_source source = ckpt_flow_source(&c);
    const struct build_run run = {.out = o->out,
        .verb = "reshard",
        .replace = o->replace,
        .restart = o->restart,
        .take_lease = o->take_lease,
        .threads = o->threads};
    build_run(&b, &source, &run, report, NULL, events, err);
    report->seconds = build_seconds() - start;
out:
    build_clear(&b);
    reader_close(c.reader);
    return (int)err->code;
}
