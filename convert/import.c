/* glm-import: a Hugging Face directory into a checkpoint.
 *
 * hfdir has checked names, shapes, index and scales against the table by the time anything is
 * planned here, so what flows is complete. */
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "convert/build.h"
#include "kernels/base/version.h"

enum { SIDE_LIMIT = 256 << 20, PROBE = 32 << 20 };

/* A hub-cache snapshot says which repository and revision it is: .../models--org--name/snapshots/rev */
static void split_snapshot(const char *dir, char repo[PATH_MAX], char revision[128])
{
    char path[PATH_MAX];

    repo[0] = revision[0] = '\0';
    if (realpath(dir, path) == NULL)
        return;
    const char *base = strrchr(path, '/');
    snprintf(repo, PATH_MAX, "%s", base == NULL ? path : base + 1);
    char *models = strstr(path, "/models--"), *snap = strstr(path, "/snapshots/");
    if (models == NULL || snap == NULL || snap < models || strchr(snap + 11, '/') != NULL)
        return;
    snprintf(revision, 128, "%s", snap + 11);
    *snap = '\0';
    snprintf(repo, PATH_MAX, "%s", models + 9);
    char *dashes = strstr(repo, "--");
    if (dashes != NULL) {
        dashes[0] = '/';
        memmove(dashes + 1, dashes + 2, strlen(dashes + 2) + 1);
    }
}

static int add_provenance(struct build *b, const struct hf_source *s,
    const struct import_options *o, struct glm_error *err)
{
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
        split_snapshot(s->dir, repo, revision);
        snprintf(command, sizeof command, "glm-import%s%s%s%s%s%s%s",
            o->dtype != NULL && strcmp(o->dtype, "same") != 0 ? " --dtype " : "",
            o->dtype != NULL && strcmp(o->dtype, "same") != 0 ? o->dtype : "",
            o->no_mtp ? " --no-mtp" : "", o->layers != NULL ? " --layers " : "",
            o->layers != NULL ? o->layers : "", o->experts != NULL ? " --experts " : "",
            o->experts != NULL ? o->experts : "");
        failed = manifest_add_prov(b->m, "command", command)
            || manifest_add_prov(b->m, "headers-sha256", hex)
            || manifest_add_prov(b->m, "source", repo)
            || (revision[0] != '\0' && manifest_add_prov(b->m, "revision", revision))
            || manifest_add_prov(b->m, "version", GLM_VERSION);
    }
    return failed ? glm_fail(err, GLM_ENOMEM, "no memory for provenance") : GLM_OK;
}

/* Content can change under an interrupted import: length and time of change belong to the plan. */
static int plan_source(struct build *b, const struct hf_source *s, struct glm_error *err)
{
    for (int64_t i = 0; i < s->file_count; i++) {
        char path[PATH_MAX];
        struct stat st;
        snprintf(path, sizeof path, "%s/%s", s->dir, s->files[i].name);
        if (stat(path, &st) != 0)
            return glm_fail_errno(err, "%s", path);
        const int64_t seen[] = {
            (int64_t)st.st_size, st.st_mtim.tv_sec, st.st_mtim.tv_nsec};
        build_plan(b, s->files[i].name, seen, sizeof seen);
    }
    return GLM_OK;
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

/* Seconds the import will take at least: one read and one write at the rate at which the source
 * reads now (the output's rate cannot be known without writing), or hashing, whichever is slower. */
static double estimate(const struct hf_source *s, uint64_t bytes, int threads)
{
    struct glm_error err = {0};
    struct dio f = {.fd = -1, .direct = -1};
    char path[PATH_MAX];
    unsigned char *at, digest[DIGEST_SIZE];
    void *buf = dio_alloc(PROBE + 2 * DIO_ALIGN);
    double seconds = 0;

    if (buf == NULL || s->file_count == 0)
        goto out;
    snprintf(path, sizeof path, "%s/%s", s->dir, s->files[0].name);
    if (dio_open_read(&f, path, &err) != GLM_OK)
        goto out;
    const size_t size = f.size < PROBE ? (size_t)f.size : PROBE;
    if (size == 0)
        goto out;
    const double t0 = build_seconds();
    if (dio_read(&f, 0, size, buf, &at, &err) != GLM_OK)
        goto out;
    const double t1 = build_seconds();
    digest_of(at, size, digest);
    const double t2 = build_seconds();
    const double move = 2 * (t1 - t0), hash = (t2 - t1) / (threads < 1 ? 1 : threads);
    seconds = (double)bytes / (double)size * (move > hash ? move : hash);
out:
    dio_close(&f);
    dio_free(buf, PROBE + 2 * DIO_ALIGN);
    return seconds;
}

/* Everything up to the point where bytes would be written. */
static int plan(struct build *b, const struct import_options *o,
    const struct hf_source *s, const struct manifest *source,
    const struct target_form *form, struct glm_error *err)
{
    char path[PATH_MAX];

    snprintf(path, sizeof path, "%s/config.json", o->src);
    if (target_config(&b->config, &b->config_size, path, s->config_text, s->config_size,
            s->table, form, err)
            != GLM_OK
        || build_begin(b, "import", err) != GLM_OK
        || build_table(b, path, o->no_mtp, err) != GLM_OK
        || target_manifest(&b->m, source, b->table, form, true, err) != GLM_OK)
        return (int)err->code;
    b->m->without_mtp = o->no_mtp && !s->has_mtp;
    if (plan_source(b, s, err) != GLM_OK || add_files(b, s, err) != GLM_OK
        || add_provenance(b, s, o, err) != GLM_OK)
        return (int)err->code;
    build_plan(b, "layers", o->layers, o->layers == NULL ? 0 : strlen(o->layers));
    build_plan(b, "experts", o->experts, o->experts == NULL ? 0 : strlen(o->experts));
    return build_place(b, &o->topology, o->encoding, o->shard_size, err);
}

static int open_source(
    struct hf_source **s, const struct import_options *o, struct glm_error *err)
{
    struct hf_options h = {.no_mtp = o->no_mtp, .threads = o->threads};
    int *layers = NULL, *experts = NULL;

    if ((o->layers == NULL
            || hf_list_parse("--layers", o->layers, &layers, &h.subset.layer_count, err)
                == GLM_OK)
        && (o->experts == NULL
            || hf_list_parse(
                   "--experts", o->experts, &experts, &h.subset.expert_count, err)
                == GLM_OK)) {
        h.subset.layers = layers;
        h.subset.experts = experts;
        hfdir_open(s, o->src, &h, err);
    }
    free(layers);
    free(experts);
    return (int)err->code;
}

int convert_import(const struct import_options *o, struct convert_report *report,
    const struct glm_events *events, struct glm_error *err)
{
    const double start = build_seconds();
    struct target_form form;
    struct hf_source *s = NULL;
    struct hf_reader *r = NULL;
    struct build b = {0};

    *report = (struct convert_report){.dry_run = o->dry_run};
    if (target_form_parse(&form, o->dtype, o->scale_rule, err) != GLM_OK
        || build_apart(o->src, o->out, err) != GLM_OK || open_source(&s, o, err) != GLM_OK
        || hf_reader_open(&r, s, err) != GLM_OK)
        goto out;
    for (int i = 0; i < s->warning_count; i++)
        glm_events_note(events, s->warnings[i]);
    const struct flow_source source = hf_reader_source(r);
    if (plan(&b, o, s, source.m, &form, err) != GLM_OK)
        goto out;
    build_report(&b, report);
    report->files = s->file_count;
    report->read_bytes = s->bytes;
    if (o->dry_run) {
        report->seconds = estimate(s, s->bytes, o->threads);
        goto out;
    }
    const struct build_run run = {.out = o->out,
        .verb = "import",
        .replace = o->replace,
        .restart = o->restart,
        .take_lease = o->take_lease,
        .threads = o->threads,
        .rule = form.rule};
    build_run(&b, &source, &run, report, NULL, events, err);
    report->seconds = build_seconds() - start;
out:
    build_clear(&b);
    hf_reader_close(r);
    hfdir_close(s);
    return (int)err->code;
}
