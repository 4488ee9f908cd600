/* From a source to a committed checkpoint, the part that import, convert and reshard share. */
#include "convert/build.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/base/version.h"

double build_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

void build_plan(struct build *b, const char *key, const void *data, size_t size)
{
    const uint64_t length = size;
    digest_update(b->plan, key, strlen(key) + 1);
    digest_update(b->plan, &length, sizeof length);
    digest_update(b->plan, data, size);
}

int build_begin(struct build *b, const char *command, struct glm_error *err)
{
    b->plan = digest_new();
    if (b->plan == NULL)
        return glm_fail(err, GLM_ENOMEM, "no memory for a digest");
    digest_begin(b->plan);
    build_plan(b, "command", command, strlen(command));
    build_plan(b, "version", GLM_VERSION, strlen(GLM_VERSION));
    return GLM_OK;
}

void build_clear(struct build *b)
{
    if (b->m != NULL)
        manifest_free(b->m);
    table_free(b->table);
    for (int64_t i = 0; i < b->kept_count; i++)
        free(b->kept[i]);
    free(b->kept);
    free(b->config);
    digest_free(b->plan);
    *b = (struct build){0};
}

int build_table(struct build *b, const char *path, bool drop_mtp, struct glm_error *err)
{
    struct model_config config = {0};

    if (config_parse(&config, path, b->config, b->config_size, err) != GLM_OK) {
        config_clear(&config);
        return (int)err->code;
    }
    build_plan(b, "config", config.sha256, DIGEST_SIZE);
    build_plan(b, "without mtp", &drop_mtp, sizeof drop_mtp);
    return table_build(&b->table, &config, drop_mtp, err);
}

int build_file(struct build *b, const char *path, bool header, void *data, uint64_t size,
    struct glm_error *err)
{
    void **more = realloc(b->kept, (size_t)(b->kept_count + 1) * sizeof *more);
    unsigned char digest[DIGEST_SIZE];

    if (more == NULL) {
        free(data);
        return glm_fail(err, GLM_ENOMEM, "%s: no memory", path);
    }
    b->kept = more;
    b->kept[b->kept_count++] = data;
    digest_of(data, (size_t)size, digest);
    build_plan(b, path, digest, DIGEST_SIZE);
    if (manifest_add_file(b->m, path, header, data, size) == NULL)
        return glm_fail(err, GLM_ENOMEM, "%s: no memory", path);
    return GLM_OK;
}

int build_place(struct build *b, const struct topology *topology,
    enum ckpt_encoding encoding, uint64_t shard_size, struct glm_error *err)
{
    const struct volumes_options v = {.shard_size = shard_size, .encoding = encoding};
    struct placement *p;
    char text[64];

    if (placement_init(&p, b->table, topology, err) != GLM_OK)
        return (int)err->code;
    const struct topology *full = placement_topology(p);
    topology_print(full, text, sizeof text);
    build_plan(b, "topology", text, strlen(text));
    build_plan(b, "layout", full->layout, strlen(full->layout));
    build_plan(b, "encoding", &encoding, sizeof encoding);
    build_plan(b, "shard size", &shard_size, sizeof shard_size);
    for (int64_t i = 0; i < b->m->tensor_count; i++) {
        const struct ckpt_tensor *t = &b->m->tensors[i];
        build_plan(b, t->name, &t->dtype, sizeof t->dtype);
        build_plan(b, t->scale_rule, &t->derived, sizeof t->derived);
    }
    b->encoding = encoding;
    return volumes_plan(b->m, p, &v, err);
}

uint64_t build_bytes(const struct build *b)
{
    uint64_t n = (uint64_t)b->m->tile_count * DIGEST_SIZE + (1 << 20);

    for (int64_t i = 0; i < b->m->piece_count; i++) {
        const struct ckpt_piece *p = &b->m->pieces[i];
        const uint64_t raw =
            (uint64_t)rect_count(&p->at) * glm_dtype_size(b->m->tensors[p->tensor].dtype);
        n += p->encoding == ENC_ZSTD ? raw / 100 * 60
                                     : raw; /* frames: what they rarely go below */
    }
    for (int64_t i = 0; i < b->m->file_count; i++)
        n += b->m->files[i].bytes;
    return n;
}

void build_report(const struct build *b, struct convert_report *report)
{
    const struct topology *t = placement_topology(b->m->placement);

    report->shards = b->m->shard_count;
    for (int64_t i = 0; i < b->m->tensor_count; i++) {
        const struct ckpt_tensor *x = &b->m->tensors[i];
        const int64_t members = x->stack ? x->shape[0] : 1;
        if (x->section == SECTION_WEIGHT)
            report->hf_tensors += members;
        report->tensors++;
        report->elements += x->grid.dims[0] * x->grid.dims[1] * x->grid.dims[2];
    }
    for (int64_t i = 0; i < b->m->piece_count; i++)
        report->written_bytes += (uint64_t)rect_count(&b->m->pieces[i].at)
            * glm_dtype_size(b->m->tensors[b->m->pieces[i].tensor].dtype);
    topology_print(t, report->topology, sizeof report->topology);
    snprintf(report->layout, sizeof report->layout, "%s", t->layout);
}

static void sum_errors(const struct manifest *m, const struct flow_item *items,
    struct convert_report *report)
{
    for (int64_t i = 0; i < m->tensor_count; i++)
        if (items[i].action == FLOW_RECODE) {
            report->converted += m->tensors[i].stack ? m->tensors[i].shape[0] : 1;
            report->has_error = true;
            codec_error_add(&report->error, &items[i].error);
        }
}

int build_run(struct build *b, const struct flow_source *source,
    const struct build_run *o, struct convert_report *report,
    struct flow_item **out_items, const struct glm_events *events, struct glm_error *err)
{
    unsigned char plan[DIGEST_SIZE];
    struct writer *w = NULL;
    struct flow_item *items = NULL;
    struct flow_stats stats = {0};
    const struct work_options work = {.target = o->out,
        .plan = plan,
        .replace = o->replace,
        .restart = o->restart,
        .take_lease = o->take_lease,
        .need_bytes = build_bytes(b),
        .seal = o->seal};
    bool finished = false;

    digest_end(b->plan, plan);
    if (o->seal
        && writer_finish(&work, report->fingerprint, report->id, &finished, err)
            != GLM_OK)
        return (int)err->code;
    if (finished) {
        report->resumed = true;
        report->skipped_bytes = report->written_bytes;
        report->read_bytes = report->written_bytes = 0;
        glm_events_note(events, "the earlier run had finished all but the last rename");
        return GLM_OK;
    }
    /* Two for a file, and libhdf5's own for a packed one. */
    if (dio_need_descriptors(
            2 * report->files + (b->encoding == ENC_ZSTD ? 3 : 2) * b->m->shard_count,
            err)
        != GLM_OK)
        return (int)err->code;
    if (recode_plan(source->m, b->m, o->rule, &items, err) != GLM_OK)
        return (int)err->code;
    struct manifest *m = b->m;
    b->m = NULL; /* the writer's from here on, on failure too */
    if (writer_open(&w, m, &work, &report->resumed, err) != GLM_OK)
        goto out;
    if (report->resumed)
        glm_events_note(events, "continues unfinished work");
    writer_report_to(w, report->fingerprint, report->id);
    const struct flow_sink sink = ckpt_flow_sink(w);
    if (flow_run(source, &sink, items, o->threads, o->verb, events, &stats, err)
        != GLM_OK)
        goto out;
    sum_errors(m, items, report);
    report->read_bytes = stats.read_bytes;
    report->written_bytes = stats.written_bytes;
    report->skipped_bytes = stats.skipped_bytes;
    if (writer_commit(w, err) == GLM_OK)
        w = NULL;
out:
    writer_close(w);
    if (out_items != NULL && err->code == GLM_OK) {
        *out_items = items;
        items = NULL;
    }
    free(items);
    return (int)err->code;
}

/* Whether the folder a is b, or lies below it; both as realpath has them. */
static bool within(const char *a, const char *b)
{
    const size_t n = strlen(b);
    return strncmp(a, b, n) == 0 && (a[n] == '/' || a[n] == '\0' || n == 1);
}

/* Where the work is done is cleared before it begins. */
static int apart_from_work(
    const char *in, const char *real, const char *out, struct glm_error *err)
{
    char name[PATH_MAX + 16], work[PATH_MAX];
    size_t n = strlen(out);

    while (n > 1 && out[n - 1] == '/')
        n--;
    snprintf(name, sizeof name, "%.*s.partial", (int)n, out);
    if (realpath(name, work) == NULL || !within(real, work))
        return GLM_OK;
    return glm_fail(err, GLM_EUSAGE,
        "%s: the input lies in the folder %s, in which the output is made; rename one",
        in, name);
}

int build_apart(const char *in, const char *out, struct glm_error *err)
{
    char a[PATH_MAX], b[PATH_MAX], parent[PATH_MAX];

    if (realpath(in, a) == NULL)
        return GLM_OK; /* whoever opens it says what is wrong */
    if (apart_from_work(in, a, out, err) != GLM_OK)
        return (int)err->code;
    if (realpath(out, b) == NULL) {
        snprintf(parent, sizeof parent, "%s", out);
        char *slash = strrchr(parent, '/');
        if (slash != NULL)
            *slash = '\0';
        if (realpath(slash == NULL ? "." : parent[0] == '\0' ? "/" : parent, b) == NULL)
            return GLM_OK;
    } else if (strcmp(a, b) == 0) {
        return glm_fail(err, GLM_EUSAGE, "%s: input and output are the same folder", out);
    } else if (within(a, b)) {
        return glm_fail(err, GLM_EUSAGE, "%s: the input %s lies inside it", out, in);
    }
    if (within(b, a))
        return glm_fail(err, GLM_EUSAGE, "%s: lies inside the input %s", out, in);
    return GLM_OK;
}

int build_inherit(
    struct build *b, const struct reader *parent, bool headers, struct glm_error *err)
{
    const struct index *ix = reader_index(parent);
    const struct manifest *m = ix->manifest;
    char hex[DIGEST_HEX];

    build_plan(b, "parent", m->id, DIGEST_SIZE);
    for (int64_t i = 0; i < m->file_count; i++) {
        void *data;
        const struct ckpt_file *f = &m->files[i];
        if (f->header ? !headers : strcmp(f->path, "config.json") == 0)
            continue;
        if (index_file(ix, f, &data, err) != GLM_OK
            || build_file(b, f->path, f->header, data, f->bytes, err) != GLM_OK)
            return (int)err->code;
    }
    void *config = malloc(b->config_size + 1);
    if (config == NULL)
        return glm_fail(err, GLM_ENOMEM, "config.json: no memory");
    memcpy(config, b->config, b->config_size);
    if (build_file(b, "config.json", false, config, b->config_size, err) != GLM_OK)
        return (int)err->code;
    for (int64_t i = 0; i < m->prov_count; i++)
        if (strncmp(m->prov[i].key, "parent-", 7) != 0
            && strcmp(m->prov[i].key, "command") != 0
            && strcmp(m->prov[i].key, "version") != 0
            && manifest_add_prov(b->m, m->prov[i].key, m->prov[i].value) != 0)
            return glm_fail(err, GLM_ENOMEM, "no memory for provenance");
    digest_hex(m->fingerprint, hex);
    if (manifest_add_prov(b->m, "parent-fingerprint", hex) != 0)
        return glm_fail(err, GLM_ENOMEM, "no memory for provenance");
    digest_hex(m->id, hex);
    if (manifest_add_prov(b->m, "parent-id", hex) != 0
        || manifest_add_prov(b->m, "version", GLM_VERSION) != 0)
        return glm_fail(err, GLM_ENOMEM, "no memory for provenance");
    return GLM_OK;
}

/* As the input's shards are: packed if any piece is. */
enum ckpt_encoding build_encoding(
    const struct manifest *m, enum convert_compress compress)
{
    if (compress != COMPRESS_SAME)
        return compress == COMPRESS_ZSTD ? ENC_ZSTD : ENC_PLAIN;
    for (int64_t i = 0; i < m->piece_count; i++)
        if (m->pieces[i].encoding == ENC_ZSTD)
            return ENC_ZSTD;
    return ENC_PLAIN;
}

/* config.json as the checkpoint holds it. */
int build_config(struct build *b, const struct reader *r, struct glm_error *err)
{
    const struct index *ix = reader_index(r);
    const struct ckpt_file *f = index_find_file(ix, "config.json", false);
    void *text;

    if (f == NULL)
        return glm_fail(err, GLM_EFORMAT, "%s: holds no config.json", ix->path);
    if (index_file(ix, f, &text, err) != GLM_OK)
        return (int)err->code;
    b->config = text;
    b->config_size = (size_t)f->bytes;
    return GLM_OK;
}
