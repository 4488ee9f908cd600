/* model.safetensors.index.json against the headers: the map is not believed, it is compared.
 *
 * The map is walked once, entry by entry, and marks the tensors it names; nothing of it is kept.
 * Each way in which map and files can disagree has its own sentence. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/ckpt.h"
#include "convert/hfdir_inside.h"
#include "convert/jsonin.h"

/* metadata becomes a tree, which may take a hundred times its bytes; the rest is only walked. */
enum { INDEX_LIMIT = 128 << 20, OTHER_CAP = 1 << 20 };

struct map {
    struct hf_source *s;
    struct jsonin in;      /* over the whole file */
    unsigned char **named; /* [file][tensor]: the map names it */
    int64_t *named_count;  /* [file] */
    int64_t total_size;    /* -1: not given */
    bool has_map;
    char name[JSONIN_MAX_STRING + 1], file[JSONIN_MAX_STRING + 1];
    char shown[JSONIN_SHOWN], shown_file[JSONIN_SHOWN];
    struct glm_error *err;
};

static int64_t find_file(const struct hf_source *s, const char *name)
{
    int64_t low = 0, high = s->file_count;
    while (low < high) {
        const int64_t mid = low + (high - low) / 2;
        const int order = strcmp(s->files[mid].name, name);
        if (order == 0)
            return mid;
        if (order < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return -1;
}

/* Another file that has the tensor; -1 if none. */
static int64_t elsewhere(
    const struct hf_source *s, int64_t not_in, const char *name, size_t length)
{
    for (int64_t i = 0; i < s->file_count; i++)
        if (i != not_in && st_find(&s->files[i].header, name, length))
            return i;
    return -1;
}

static int take_pair(struct map *x, size_t at, size_t length, size_t file_length)
{
    struct hf_source *s = x->s;
    const char *trouble = hfdir_name_trouble(x->file, file_length);
    if (trouble)
        return glm_fail(x->err, GLM_EFORMAT,
            "%s: byte %zu: weight_map sends '%s' to the file '%s',"
            " whose name %s",
            x->in.path, at, x->shown, x->shown_file, trouble);
    const int64_t f = find_file(s, x->file);
    if (f < 0)
        return glm_fail(x->err, GLM_EFORMAT,
            "%s: byte %zu: the file %s, which weight_map names for"
            " '%s', is not there",
            x->in.path, at, x->shown_file, x->shown);
    const struct st_tensor *t = st_find(&s->files[f].header, x->name, length);
    if (!t) {
        const int64_t other = elsewhere(s, f, x->name, length);
        if (other >= 0)
            return glm_fail(x->err, GLM_EFORMAT,
                "%s: byte %zu: weight_map says that '%s' is in %s,"
                " but it is in %s",
                x->in.path, at, x->shown, x->shown_file, s->files[other].name);
        return glm_fail(x->err, GLM_EFORMAT,
            "%s: byte %zu: weight_map names '%s' in %s, but the "
            "file does not have it, nor has any other",
            x->in.path, at, x->shown, x->shown_file);
    }
    unsigned char *mark = &x->named[f][t - s->files[f].header.tensors];
    if (*mark)
        return glm_fail(x->err, GLM_EFORMAT, "%s: byte %zu: weight_map names '%s' twice",
            x->in.path, at, x->shown);
    *mark = 1;
    x->named_count[f]++;
    return 0;
}

static int take_map(struct map *x, const struct jsonin_slice *map)
{
    struct jsonin in = {
        .path = x->in.path, .text = map->text, .size = map->size, .base = map->at};
    struct jsonin_slice key, value;
    size_t length, file_length;
    bool end;
    if (x->has_map)
        return glm_fail(x->err, GLM_EFORMAT, "%s: byte %zu: weight_map is given twice",
            in.path, map->at);
    x->has_map = true;
    if (jsonin_open(&in, x->err) != 0)
        return glm_within(x->err, "weight_map");
    for (;;) {
        if (jsonin_key(&in, &key, &end, x->err) != 0 || end)
            return x->err->code;
        if (jsonin_string(&in, &key, x->name, &length, x->err) != 0)
            return x->err->code;
        jsonin_shown(x->name, length, x->shown);
        if (jsonin_value(&in, JSONIN_MAX_STRING, x->shown, &value, x->err) != 0)
            return x->err->code;
        if (jsonin_string(&in, &value, x->file, &file_length, x->err) != 0)
            return glm_within(x->err, "weight_map, '%s'", x->shown);
        jsonin_shown(x->file, file_length, x->shown_file);
        if (take_pair(x, value.at, length, file_length) != 0)
            return x->err->code;
    }
}

static int take_metadata(struct map *x, const struct jsonin_slice *v)
{
    json_t *m = jsonin_load(&x->in, v, "metadata", x->err);
    if (!m)
        return x->err->code;
    const json_t *total = json_object_get(m, "total_size");
    /* Some writers give 1.5e9 or "1500000000"; what is no integer is as good as absent. */
    x->total_size = json_is_integer(total) ? json_integer_value(total) : -1;
    json_decref(m);
    return 0;
}

static int take_members(struct map *x)
{
    struct jsonin_slice key, value;
    size_t length;
    bool end;
    if (jsonin_open(&x->in, x->err) != 0)
        return x->err->code;
    for (;;) {
        if (jsonin_key(&x->in, &key, &end, x->err) != 0)
            return x->err->code;
        if (end)
            return jsonin_close(&x->in, x->err);
        if (jsonin_string(&x->in, &key, x->name, &length, x->err) != 0)
            return x->err->code;
        const bool map = strcmp(x->name, "weight_map") == 0;
        const bool metadata = strcmp(x->name, "metadata") == 0;
        jsonin_shown(x->name, length, x->shown);
        if (jsonin_value(&x->in, map ? INDEX_LIMIT : OTHER_CAP, x->shown, &value, x->err)
                != 0
            || (map && take_map(x, &value) != 0)
            || (metadata && take_metadata(x, &value) != 0))
            return x->err->code;
    }
}

/* What the files have and the map does not name. */
static int check_files(struct map *x)
{
    const struct hf_source *s = x->s;
    for (int64_t f = 0; f < s->file_count; f++) {
        const struct hf_file *file = &s->files[f];
        if (x->named_count[f] == 0 && file->header.count > 0)
            return glm_fail(x->err, GLM_EFORMAT,
                "%s: the file %s is there but weight_map does not "
                "name it: left over from another save? Remove it or the index",
                x->in.path, file->name);
        for (int64_t i = 0; i < file->header.count; i++) {
            if (x->named[f][i])
                continue;
            const struct st_tensor *t = &file->header.tensors[i];
            const int64_t other = elsewhere(s, f, t->name, t->name_length);
            jsonin_shown(t->name, t->name_length, x->shown);
            if (other >= 0)
                return glm_fail(x->err, GLM_EFORMAT,
                    "%s: '%s' is in two files, %s and %s", x->in.path, x->shown,
                    file->name, s->files[other].name);
            return glm_fail(x->err, GLM_EFORMAT,
                "%s: weight_map does not name '%s', which %s has", x->in.path, x->shown,
                file->name);
        }
    }
    return 0;
}

static int check_total(struct map *x)
{
    uint64_t total = 0;
    for (int64_t f = 0; f < x->s->file_count; f++)
        total += x->s->files[f].header.file_size - x->s->files[f].header.data_start;
    if (x->total_size >= 0 && (uint64_t)x->total_size != total)
        return hfdir_warn(x->s, x->err,
            "%s: total_size says %" PRId64 " bytes, the tensors have %" PRIu64,
            x->in.path, x->total_size, total);
    return 0;
}

static int make_marks(struct map *x)
{
    const struct hf_source *s = x->s;
    x->named = calloc((size_t)s->file_count, sizeof *x->named);
    x->named_count = calloc((size_t)s->file_count, sizeof *x->named_count);
    bool made = x->named && x->named_count;
    for (int64_t f = 0; made && f < s->file_count; f++)
        made = (x->named[f] = calloc((size_t)s->files[f].header.count + 1, 1)) != NULL;
    return made ? 0 : glm_fail(x->err, GLM_ENOMEM, "%s: no memory for the index", s->dir);
}

int hfdir_index_text(struct hf_source *s, const char *path, const char *text, size_t size,
    struct glm_error *err)
{
    size_t bad;
    struct map *x = calloc(1, sizeof *x);
    if (!x)
        return glm_fail(err, GLM_ENOMEM, "%s: no memory for the index", s->dir);
    x->s = s;
    x->err = err;
    x->total_size = -1;
    x->in = (struct jsonin){.path = path, .text = text, .size = size};
    if (!jsonin_utf8(text, size, &bad))
        glm_fail(err, GLM_EFORMAT, "%s: byte %zu: not UTF-8", path, bad);
    else if (make_marks(x) == 0 && take_members(x) == 0 && !x->has_map)
        glm_fail(err, GLM_EFORMAT, "%s: no weight_map in it", path);
    else if (err->code == GLM_OK && check_files(x) == 0)
        check_total(x);
    for (int64_t f = 0; x->named && f < s->file_count; f++)
        free(x->named[f]);
    free(x->named);
    free(x->named_count);
    free(x);
    return err->code;
}

int hfdir_index(struct hf_source *s, const char *index_name, struct glm_error *err)
{
    char path[4096];
    void *text = NULL;
    size_t size;
    snprintf(path, sizeof path, "%s/%s", s->dir, index_name);
    if (hfdir_slurp(s, index_name, INDEX_LIMIT, &text, &size, err) == 0)
        hfdir_index_text(s, path, text, size, err);
    free(text);
    return err->code;
}
