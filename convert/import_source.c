/* Opens what glm-import reads: a folder, a snapshot in the cache, or a repository on a hub. All pass
 * the same checks (hfdir.h) and end as the same kind of flow source. */
#include "convert/import_source.h"

#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "convert/hubflow.h"
#include "convert/hubkeep.h"

enum { PROBE = 32 << 20, CONNECTIONS = 4, STALL_S = 20, RETRIES = 5 };

/* ---- a folder --------------------------------------------------------------------------------- */

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

/* Content can change under an interrupted import: length and time of change belong to the plan. */
static int plan_folder(struct build *b, const struct hf_source *s, struct glm_error *err)
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

static int open_model(struct hf_source **s, const char *dir,
    const struct import_options *o, const struct hf_store *store, struct glm_error *err)
{
    struct hf_options h = {.no_mtp = o->no_mtp, .threads = o->threads, .store = store};
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
        hfdir_open(s, dir, &h, err);
    }
    free(layers);
    free(experts);
    return (int)err->code;
}

/* ---- a hub ------------------------------------------------------------------------------------ */

/* Whether a weight is decoded with scales that lie elsewhere in the source. */
static bool needs_scales(const struct hf_source *s, const struct target_form *form)
{
    return s->scale_suffix[0] != '\0' && !form->same;
}

static int open_hub(struct import_source *in, const struct import_options *o,
    const struct target_form *form, const struct glm_events *events,
    struct glm_error *err)
{
    struct import_options wide = *o;
    const int connections = o->connections > 0 ? o->connections : CONNECTIONS;
    const struct hub_options h = {.spec = o->src,
        .limit_rate = o->limit_rate,
        .stall_s = o->stall_s > 0 ? o->stall_s : STALL_S,
        .retries = o->retries >= 0 ? o->retries : RETRIES,
        .events = events};

    if (hub_open(&in->hub, &h, err) != GLM_OK)
        return (int)err->code;
    wide.threads = connections; /* headers wait for the network, not for a processor */
    if (open_model(&in->s, hub_name(in->hub), &wide, hub_store(in->hub), err) != GLM_OK
        || hf_reader_open(&in->r, in->s, err) != GLM_OK)
        return (int)err->code;
    if (o->keep != NULL || o->encoding != ENC_PLAIN || needs_scales(in->s, form)) {
        const struct hubkeep_options k = {.hub = in->hub,
            .r = in->r,
            .folder = o->keep,
            .connections = connections,
            .events = events};
        if (hubkeep_open(&in->keep, &k, err) == GLM_OK)
            in->source = hubkeep_source(in->keep);
    } else {
        const struct hubflow_options f = {
            .hub = in->hub, .r = in->r, .connections = connections, .events = events};
        if (hubflow_open(&in->flow, &f, err) == GLM_OK)
            in->source = hubflow_source(in->flow);
    }
    return (int)err->code;
}

/* ---- either ----------------------------------------------------------------------------------- */

int import_source_open(struct import_source *in, const struct import_options *o,
    const struct target_form *form, const struct glm_events *events,
    struct glm_error *err)
{
    const char *dir = o->src;

    if (hubspec_is(o->src)) {
        if (hub_offline(o->src, &in->folder, err) != GLM_OK)
            return (int)err->code;
        if (in->folder == NULL)
            return open_hub(in, o, form, events, err);
        dir = in->folder;
    }
    if (o->keep != NULL)
        return glm_fail(err, GLM_EUSAGE,
            "--keep keeps what is downloaded, and nothing is downloaded from %s", o->src);
    if (build_apart(dir, o->out, err) == GLM_OK
        && open_model(&in->s, dir, o, NULL, err) == GLM_OK
        && hf_reader_open(&in->r, in->s, err) == GLM_OK)
        in->source = hf_reader_source(in->r);
    return (int)err->code;
}

int import_source_plan(
    const struct import_source *in, struct build *b, struct glm_error *err)
{
    if (in->hub == NULL)
        return plan_folder(b, in->s, err);
    build_plan(b, "repository", hub_repo(in->hub), strlen(hub_repo(in->hub)));
    build_plan(b, "commit", hub_commit(in->hub), strlen(hub_commit(in->hub)));
    for (int64_t i = 0; i < in->s->file_count; i++) {
        const struct hubtree_file *f = hub_find(in->hub, in->s->files[i].name)->listed;
        build_plan(b, f->path, &f->size, sizeof f->size);
        build_plan(b, "digest", f->digest, strlen(f->digest));
    }
    return GLM_OK;
}

void import_source_origin(const struct import_source *in, char *repo, size_t repo_room,
    char *revision, size_t revision_room)
{
    char name[PATH_MAX], commit[128];
    if (in->hub != NULL) {
        snprintf(repo, repo_room, "%s", hub_repo(in->hub));
        snprintf(revision, revision_room, "%s", hub_commit(in->hub));
        return;
    }
    split_snapshot(in->s->dir, name, commit);
    snprintf(repo, repo_room, "%s", name);
    snprintf(revision, revision_room, "%s", commit);
}

double import_source_estimate(const struct import_source *in, int threads)
{
    return in->hub != NULL ? 0 : estimate(in->s, in->s->bytes, threads);
}

void import_source_close(struct import_source *in)
{
    hubflow_close(in->flow);
    hubkeep_close(in->keep);
    hf_reader_close(in->r);
    hfdir_close(in->s);
    hub_close(in->hub);
    free(in->folder);
    *in = (struct import_source){0};
}
