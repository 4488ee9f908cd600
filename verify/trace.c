#include "verify/trace.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

const char *const trace_number_names[TRACE_NUMBERS] = {
    "loss", "LM loss", "MTP loss", "indexer loss", "gradient norm", "learning rate"};

struct record { /* 8 bytes each, no padding */
    int64_t step;
    double number[TRACE_NUMBERS];
};

/* ---- writing ---------------------------------------------------------------------------------- */

int trace_create(
    struct trace_writer *w, const char *path, int64_t from, struct glm_error *err)
{
    *w = (struct trace_writer){
        .path = strdup(path), .from = from, .file = fopen(path, "wb")};
    if (w->path == NULL || w->file == NULL)
        return glm_fail_errno(err, "%s: create", path);
    return GLM_OK;
}

static int add_names(
    struct trace_writer *w, const struct state *state, struct glm_error *err)
{
    for (int64_t i = 0; i < state->tensors.count; i++) {
        const struct train_tensor *t = &state->tensors.list[i];
        const struct tile_grid g = state_grid(t);
        fprintf(w->file, "%s\t%s", section_name(t->section), t->name);
        for (int k = 0; k < RECT_AXES; k++)
            fprintf(w->file, "\t%" PRId64 "\t%" PRId64 "\t%" PRId64, g.dims[k], g.tile[k],
                g.count[k]);
        fprintf(w->file, "\n");
        w->tiles += tile_count(&g);
    }
    fprintf(w->file, "\n");
    w->digests = malloc((size_t)w->tiles * DIGEST_SIZE + 1);
    return w->digests != NULL ? GLM_OK
                              : glm_fail(err, GLM_ENOMEM, "no memory for digests");
}

int trace_add(struct trace_writer *w, const struct state *state,
    const struct train_step *s, struct glm_error *err)
{
    struct record r = {.step = state->step};

    if (w->digests == NULL && add_names(w, state, err) != GLM_OK)
        return (int)err->code;
    if (state->step < w->from)
        return GLM_OK;
    if (s != NULL) {
        const double numbers[TRACE_NUMBERS] = {
            s->loss, s->lm, s->mtp, s->indexer, s->norm, s->lr};
        memcpy(r.number, numbers, sizeof numbers);
    }
    if (state_hash_all(state, w->digests, err) != GLM_OK)
        return (int)err->code;
    if (fwrite(&r, sizeof r, 1, w->file) != 1
        || fwrite(w->digests, DIGEST_SIZE, (size_t)w->tiles, w->file) != (size_t)w->tiles)
        return glm_fail_errno(err, "%s: write", w->path);
    return GLM_OK;
}

int trace_finish(struct trace_writer *w, struct glm_error *err)
{
    if (w->file != NULL && fclose(w->file) != 0)
        glm_fail_errno(err, "%s: write", w->path);
    free(w->path);
    free(w->digests);
    *w = (struct trace_writer){0};
    return (int)err->code;
}

/* ---- comparing -------------------------------------------------------------------------------- */

struct name {
    char section[32], tensor[256];
    struct tile_grid grid;
};

struct trace {
    FILE *file;
    const char *path;
    struct name *name;
    int64_t names, tiles;
    unsigned char *digests;
    struct record record;
};

static bool read_name(struct name *n, char *line)
{
    char *at = line;
    const size_t section = strcspn(at, "\t"), tensor = strcspn(at + section + 1, "\t");

    if (section >= sizeof n->section || tensor >= sizeof n->tensor)
        return false;
    snprintf(n->section, sizeof n->section, "%.*s", (int)section, at);
    at += section + 1;
    snprintf(n->tensor, sizeof n->tensor, "%.*s", (int)tensor, at);
    at += tensor;
    for (int k = 0; k < RECT_AXES; k++)
        if (sscanf(at, "\t%" SCNd64 "\t%" SCNd64 "\t%" SCNd64, &n->grid.dims[k],
                &n->grid.tile[k], &n->grid.count[k])
            != 3)
            return false;
        else
            for (int skip = 0; skip < 3; skip++)
                at += 1 + strcspn(at + 1, "\t\n");
    return true;
}

static int trace_open(struct trace *t, const char *path, struct glm_error *err)
{
    char *line = NULL;
    size_t room = 0;

    *t = (struct trace){.path = path, .file = fopen(path, "rb")};
    if (t->file == NULL)
        return glm_fail_errno(err, "%s: open", path);
    while (getline(&line, &room, t->file) > 1) {
        struct name *more = realloc(t->name, (size_t)(t->names + 1) * sizeof *more);
        if (more == NULL) {
            glm_fail(err, GLM_ENOMEM, "%s: no memory", path);
            break;
        }
        t->name = more;
        if (!read_name(&t->name[t->names], line)) {
            glm_fail(err, GLM_EFORMAT, "%s: line %lld is no tensor", path,
                (long long)t->names + 1);
            break;
        }
        t->tiles += tile_count(&t->name[t->names++].grid);
    }
    free(line);
    t->digests = malloc((size_t)t->tiles * DIGEST_SIZE + 1);
    if (t->digests == NULL)
        return glm_fail(err, GLM_ENOMEM, "%s: no memory", path);
    return (int)err->code;
}

static void trace_close(struct trace *t)
{
    if (t->file != NULL)
        fclose(t->file);
    free(t->name);
    free(t->digests);
}

/* False at the end. */
static bool next(struct trace *t)
{
    return fread(&t->record, sizeof t->record, 1, t->file) == 1
        && fread(t->digests, DIGEST_SIZE, (size_t)t->tiles, t->file) == (size_t)t->tiles;
}

static int same_names(const struct trace *a, const struct trace *b, struct glm_error *err)
{
    if (a->names != b->names)
        return glm_fail(err, GLM_EMISMATCH,
            "%lld tensors in one process, %lld in the other", (long long)a->names,
            (long long)b->names);
    for (int64_t i = 0; i < a->names; i++)
        if (strcmp(a->name[i].tensor, b->name[i].tensor) != 0
            || strcmp(a->name[i].section, b->name[i].section) != 0
            || memcmp(&a->name[i].grid, &b->name[i].grid, sizeof a->name[i].grid) != 0)
            return glm_fail(err, GLM_EMISMATCH,
                "'%s/%s' in one process, '%s/%s' in the other", a->name[i].section,
                a->name[i].tensor, b->name[i].section, b->name[i].tensor);
    return GLM_OK;
}

static void compare_tensors(
    const struct trace *a, const struct trace *b, struct trace_difference *d)
{
    const unsigned char *x = a->digests, *y = b->digests;

    for (int64_t i = 0; i < a->names; i++) {
        const int64_t n = tile_count(&a->name[i].grid);
        int64_t k = 0;
        while (
            k < n && memcmp(x + k * DIGEST_SIZE, y + k * DIGEST_SIZE, DIGEST_SIZE) == 0)
            k++;
        if (k < n && d->tensors++ == 0 && !d->found) {
            snprintf(d->section, sizeof d->section, "%s", a->name[i].section);
            snprintf(d->tensor, sizeof d->tensor, "%s", a->name[i].tensor);
            d->tile = k;
            d->grid = a->name[i].grid;
            d->at = tile_rect(&d->grid, k);
            d->found = true;
        }
        x += n * DIGEST_SIZE;
        y += n * DIGEST_SIZE;
    }
}

static void compare(
    const struct trace *a, const struct trace *b, bool loaded, struct trace_difference *d)
{
    *d = (struct trace_difference){.step = b->record.step, .loaded = loaded};
    for (int i = 0; !loaded && i < TRACE_NUMBERS && !d->found; i++)
        if (memcmp(&a->record.number[i], &b->record.number[i], sizeof(double)) != 0) {
            snprintf(d->what, sizeof d->what, "%s", trace_number_names[i]);
            d->a = a->record.number[i];
            d->b = b->record.number[i];
            d->found = true;
        }
    compare_tensors(a, b, d);
}

int trace_compare(const char *path_a, const char *path_b, struct trace_difference *d,
    struct trace_counts *counts, struct glm_error *err)
{
    struct trace a = {0}, b = {0};
    bool loaded = true;

    *d = (struct trace_difference){0};
    *counts = (struct trace_counts){0};
    if (trace_open(&a, path_a, err) != GLM_OK || trace_open(&b, path_b, err) != GLM_OK
        || same_names(&a, &b, err) != GLM_OK)
        goto out;
    counts->tensors = a.names;
    counts->tiles = a.tiles;
    while (!d->found && next(&b)) {
        do {
            if (!next(&a)) {
                glm_fail(err, GLM_EMISMATCH, "step %lld: only the second process had it",
                    (long long)b.record.step);
                goto out;
            }
        } while (a.record.step < b.record.step);
        if (a.record.step != b.record.step) {
            glm_fail(err, GLM_EMISMATCH,
                "the second process went on at step %lld, the first had "
                "%lld",
                (long long)b.record.step, (long long)a.record.step);
            goto out;
        }
        compare(&a, &b, loaded, d);
        loaded = false;
        counts->records++;
    }
    if (!d->found && next(&a))
        glm_fail(err, GLM_EMISMATCH, "step %lld: only the first process had it",
            (long long)a.record.step);
out:
    trace_close(&a);
    trace_close(&b);
    return (int)err->code;
}
