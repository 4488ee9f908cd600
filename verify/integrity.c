#include "verify/integrity.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "kernels/base/crew.h"
#include "verify/integrity_scan.h"

void integrity_clear(struct integrity_report *r)
{
    findings_clear(&r->findings);
    for (int64_t i = 0; r->extra != NULL && i < r->extra_files && i < INTEGRITY_EXTRA;
         i++)
        free(r->extra[i]);
    free(r->extra);
    r->extra = NULL;
}

/* Opens index.h5. What is wrong with it is a finding; only "no checkpoint here" and the system's own
 * failures are errors. */
static int integrity_open(struct integrity *g, struct glm_error *err)
{
    struct stat st;
    if (stat(g->dir, &st) != 0 && (errno == ENOENT || errno == ENOTDIR))
        return glm_fail(err, GLM_EUSAGE, "%s: no such checkpoint", g->dir);
    if (!S_ISDIR(st.st_mode))
        return glm_fail(err, GLM_EUSAGE,
            "%s: not a checkpoint, which is a folder with index.h5", g->dir);
    struct glm_error e = {0};
    if (index_open(&g->ix, g->dir, &e) == GLM_OK) {
        g->m = g->ix->manifest;
        return GLM_OK;
    }
    if (e.code == GLM_EFORMAT) {
        struct finding f = {.kind = FINDING_INDEX, .shard = -1, .tile = -1};
        snprintf(f.file, sizeof f.file, "index.h5");
        snprintf(f.text, sizeof f.text, "%.511s", e.text);
        return findings_add(&g->report->findings, &f, err);
    }
    *err = e;
    return err->code;
}

/* Presence and length of each shard. skip[]: there is nothing to read. */
static int integrity_files(struct integrity *g, struct glm_error *err)
{
    for (int64_t i = 0; i < g->m->shard_count; i++) {
        const struct ckpt_shard *s = &g->m->shards[i];
        struct finding f = {.shard = i, .tile = -1};
        struct stat st;
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", g->dir, s->file);
        snprintf(f.file, sizeof f.file, "%s", s->file);
        g->report->bytes += s->bytes;
        if (lstat(path, &st) != 0) {
            f.kind = errno == ENOENT ? FINDING_MISSING : FINDING_UNREADABLE;
            snprintf(f.text, sizeof f.text,
                errno == ENOENT ? "incomplete: %s is missing" : "%s: %s", s->file,
                strerror(errno));
            g->skip[i] = true;
        } else if (!S_ISREG(st.st_mode)) {
            f.kind = FINDING_MISSING;
            snprintf(f.text, sizeof f.text, "%s is not a regular file", s->file);
            g->skip[i] = true;
        } else {
            g->length[i] = (uint64_t)st.st_size;
            if (g->length[i] == s->bytes)
                continue;
            f.kind = FINDING_LENGTH;
            f.offset = g->length[i] < s->bytes ? g->length[i] : s->bytes;
            snprintf(f.text, sizeof f.text, "%s: has %llu bytes, expected %llu: %s",
                s->file, (unsigned long long)g->length[i], (unsigned long long)s->bytes,
                g->length[i] < s->bytes ? "it is cut" : "something was appended");
        }
        if (findings_add(&g->report->findings, &f, err) != GLM_OK)
            return err->code;
    }
    return GLM_OK;
}

static bool integrity_is_ours(const char *name)
{
    return strncmp(name, "shard-", 6) == 0 || strncmp(name, "index.h5", 8) == 0
        || strcmp(name, "lease") == 0 || strcmp(name, "journal") == 0
        || strcmp(name, "tiles.part") == 0;
}

static int integrity_name_compare(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Shard names in sorted order, for looking up folder entries. */
static const char **integrity_known(const struct integrity *g)
{
    const int64_t n = g->m != NULL ? g->m->shard_count : 0;
    const char **known = calloc((size_t)n + 1, sizeof *known);
    for (int64_t i = 0; known != NULL && i < n; i++)
        known[i] = g->m->shards[i].file;
    if (known != NULL)
        qsort(known, (size_t)n, sizeof *known, integrity_name_compare);
    return known;
}

/* A left-over of our own names could be taken for part of the checkpoint: damage. Anything else in
 * the folder cannot be, and is only told. */
static int integrity_extra(struct integrity *g, const char *name, struct glm_error *err)
{
    struct integrity_report *r = g->report;
    if (integrity_is_ours(name)) {
        struct finding f = {.kind = FINDING_EXTRA, .shard = -1, .tile = -1};
        snprintf(f.file, sizeof f.file, "%s", name);
        snprintf(
            f.text, sizeof f.text, "%.200s does not belong to this checkpoint", name);
        return findings_add(&r->findings, &f, err);
    }
    if (r->extra_files < INTEGRITY_EXTRA
        && (r->extra[r->extra_files] = strdup(name)) == NULL)
        return glm_fail(err, GLM_ENOMEM, "out of memory");
    r->extra_files++;
    return GLM_OK;
}

static int integrity_folder(struct integrity *g, struct glm_error *err)
{
    struct integrity_report *r = g->report;
    const char **known = integrity_known(g);
    const size_t n = g->m != NULL ? (size_t)g->m->shard_count : 0;
    DIR *d = opendir(g->dir);
    r->extra = calloc(INTEGRITY_EXTRA, sizeof *r->extra);
    if (d == NULL) {
        glm_fail_errno(err, "%s: list the folder", g->dir);
        goto out;
    }
    if (known == NULL || r->extra == NULL) {
        glm_fail(err, GLM_ENOMEM, "out of memory");
        goto out;
    }
    for (const struct dirent *e; (e = readdir(d)) != NULL;) {
        const char *name = e->d_name;
        if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0
            || strcmp(name, "index.h5") == 0
            || bsearch(&name, known, n, sizeof *known, integrity_name_compare) != NULL)
            continue;
        if (g->m == NULL && strncmp(name, "shard-", 6) == 0)
            continue; /* whose it is, the unreadable index would have to say */
        if (integrity_extra(g, name, err) != GLM_OK)
            goto out;
    }
    const int64_t kept =
        r->extra_files < INTEGRITY_EXTRA ? r->extra_files : INTEGRITY_EXTRA;
    qsort(r->extra, (size_t)kept, sizeof *r->extra, integrity_name_compare);
out:
    if (d != NULL)
        closedir(d);
    free(known);
    return err->code;
}

static int integrity_data(
    struct integrity *g, const struct integrity_options *o, struct glm_error *err)
{
    if (scan_plan(&g->scan, g->m, g->ix->chunks, g->skip, err) != GLM_OK)
        return err->code;
    for (int64_t j = 0; j < g->scan.job_count; j++)
        g->total += integrity_job_bytes(g, j);
    const struct crew crew = {
        .threads = 2 * o->threads, /* while one waits for the disk another hashes */
        .count = g->scan.job_count,
        .ctx = g,
        .events = o->events,
        .start = integrity_worker_new,
        .stop = integrity_worker_free,
        .work = integrity_job,
        .done = integrity_job_done,
    };
    return crew_run(&crew, err);
}

static int integrity_verdict(const struct integrity *g, struct glm_error *err)
{
    const struct findings *f = &g->report->findings;
    const int64_t unreadable = f->by_kind[FINDING_UNREADABLE];
    const int64_t wrong = findings_total(f) - unreadable;
    if (wrong > 0)
        return glm_fail(err, GLM_EMISMATCH, "%s: not intact: %lld finding%s", g->dir,
            (long long)(wrong + unreadable), wrong + unreadable == 1 ? "" : "s");
    if (unreadable > 0)
        return glm_fail(err, GLM_EIO, "%s: %lld part%s could not be read", g->dir,
            (long long)unreadable, unreadable == 1 ? "" : "s");
    return GLM_OK;
}

/* Which master's tiles also give those of a derived weight. */
static int integrity_derived(struct integrity *g, struct glm_error *err)
{
    struct manifest *m = g->m;
    if (manifest_index(m, err) != GLM_OK)
        return err->code;
    for (int64_t i = 0; i < m->tensor_count; i++)
        g->derived[i] = -1;
    for (int64_t i = 0; i < m->tensor_count; i++) {
        if (!m->tensors[i].derived)
            continue;
        const int64_t master = manifest_find(m, SECTION_MASTER, m->tensors[i].name);
        if (master >= 0)
            g->derived[master] = i;
    }
    return GLM_OK;
}

static int integrity_shards(
    struct integrity *g, const struct integrity_options *o, struct glm_error *err)
{
    struct integrity_report *r = g->report;
    const struct manifest *m = g->m;
    r->opened = true;
    r->shards = m->shard_count;
    r->tensors = m->tensor_count;
    r->tiles = m->tile_count;
    r->chunks = m->chunk_count;
    memcpy(r->fingerprint, m->fingerprint, sizeof r->fingerprint);
    memcpy(r->id, m->id, sizeof r->id);
    g->skip = calloc((size_t)m->shard_count + 1, sizeof *g->skip);
    g->length = calloc((size_t)m->shard_count + 1, sizeof *g->length);
    g->derived = calloc((size_t)m->tensor_count + 1, sizeof *g->derived);
    if (g->skip == NULL || g->length == NULL || g->derived == NULL)
        return glm_fail(err, GLM_ENOMEM, "out of memory");
    if (integrity_files(g, err) != GLM_OK || o->quick)
        return err->code;
    if (integrity_derived(g, err) != GLM_OK)
        return err->code;
    return integrity_data(g, o, err);
}

/* Which file index.h5 is. Shards are opened by name as their turn comes: where a command puts another
 * checkpoint in this one's place meanwhile, they would be held against the wrong digests. */
static struct stat index_now(const char *dir)
{
    struct stat st = {0};
    char path[4096];
    snprintf(path, sizeof path, "%s/index.h5", dir);
    if (stat(path, &st) != 0)
        st = (struct stat){0};
    return st;
}

static int check_same(
    struct integrity *g, const struct stat *before, struct glm_error *err)
{
    const struct stat now = index_now(g->dir);
    if (now.st_dev == before->st_dev && now.st_ino == before->st_ino)
        return GLM_OK;
    findings_clear(&g->report->findings);
    findings_init(&g->report->findings);
    return glm_fail(err, GLM_EIO,
        "%s: was exchanged for another checkpoint while it was read; run the same again",
        g->dir);
}

int integrity_run(struct integrity_report *out, const char *dir,
    const struct integrity_options *o, struct glm_error *err)
{
    *out = (struct integrity_report){.quick = o->quick};
    findings_init(&out->findings);
    struct integrity g = {.dir = dir, .report = out, .events = o->events};
    const struct stat before = index_now(dir);
    if (integrity_open(&g, err) != GLM_OK)
        goto out;
    if (g.m != NULL && integrity_shards(&g, o, err) != GLM_OK)
        goto out;
    if (integrity_folder(&g, err) == GLM_OK && check_same(&g, &before, err) == GLM_OK)
        integrity_verdict(&g, err);
out:
    findings_sort(&out->findings);
    scan_clear(&g.scan);
    free(g.skip);
    free(g.length);
    free(g.derived);
    index_close(g.ix);
    return err->code;
}
