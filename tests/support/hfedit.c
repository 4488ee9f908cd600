#include "tests/support/hfedit.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/tmpdir.h"

static void die(const char *what)
{
    fprintf(stderr, "hfedit: %s\n", what);
    abort();
}

static char *copy(const char *s)
{
    char *c = strdup(s);
    if (!c)
        die("no memory");
    return c;
}

void hfedit_add(struct hfedit *h, int file, const char *name, enum glm_dtype dtype,
    int rank, const int64_t *shape)
{
    h->tensors = realloc(h->tensors, ((size_t)h->count + 1) * sizeof *h->tensors);
    if (!h->tensors)
        die("no memory");
    struct hfedit_tensor *t = &h->tensors[h->count++];
    *t = (struct hfedit_tensor){
        .name = copy(name), .file = file, .dtype = dtype, .rank = rank};
    memcpy(t->shape, shape, (size_t)rank * sizeof *shape);
}

static void load_file(struct hfedit *h, const char *name)
{
    struct st_header header;
    struct glm_error err = {0};
    if (st_read(&header, tmpdir_path(h->dir, "%s", name), NULL, &err) != 0)
        die(err.text);
    for (int64_t i = 0; i < header.count; i++) {
        const struct st_tensor *t = &header.tensors[i];
        hfedit_add(h, h->file_count, t->name, t->dtype, t->rank, t->shape);
    }
    h->files[h->file_count++] = copy(name);
    st_clear(&header);
}

void hfedit_load(struct hfedit *h, const char *dir)
{
    *h = (struct hfedit){.dir = copy(dir)};
    DIR *d = opendir(dir);
    if (!d)
        die(dir);
    for (const struct dirent *e; (e = readdir(d));)
        if (strlen(e->d_name) > 12
            && strcmp(e->d_name + strlen(e->d_name) - 12, ".safetensors") == 0)
            load_file(h, e->d_name);
    closedir(d);
}

static void save_file(const struct hfedit *h, int file, json_t *map, json_int_t *total)
{
    struct st_tensor *list = calloc((size_t)h->count + 1, sizeof *list);
    struct glm_error err = {0};
    int64_t count = 0;
    void *bytes;
    size_t size;
    for (int i = 0; i < h->count; i++) {
        const struct hfedit_tensor *t = &h->tensors[i];
        if (t->file != file)
            continue;
        list[count++] = (struct st_tensor){.name = t->name,
            .name_length = strlen(t->name),
            .dtype = t->dtype,
            .rank = t->rank,
            .shape = t->shape};
        json_object_set_new(map, t->name, json_string(h->files[file]));
    }
    if (st_build(list, count, 8, &bytes, &size, &err) != 0)
        die(err.text);
    const char *path = tmpdir_path(h->dir, "%s", h->files[file]);
    const json_int_t data = count ? (json_int_t)list[count - 1].end : 0;
    tmpdir_write(path, bytes, size);
    if (truncate(path, (off_t)size + data) != 0)
        die(path);
    *total += data;
    free(bytes);
    free(list);
}

void hfedit_save(const struct hfedit *h)
{
    json_t *map = json_object();
    json_int_t total = 0;
    for (int f = 0; f < h->file_count; f++)
        save_file(h, f, map, &total);
    json_t *index =
        json_pack("{s:{s:I}, s:o}", "metadata", "total_size", total, "weight_map", map);
    if (h->file_count > 1
        && json_dump_file(
               index, tmpdir_path(h->dir, "model.safetensors.index.json"), JSON_INDENT(2))
            != 0)
        die("index");
    json_decref(index);
}

void hfedit_clear(struct hfedit *h)
{
    for (int i = 0; i < h->count; i++)
        free(h->tensors[i].name);
    for (int i = 0; i < h->file_count; i++)
        free(h->files[i]);
    free(h->tensors);
    free(h->dir);
    *h = (struct hfedit){0};
}

int hfedit_find(const struct hfedit *h, const char *name)
{
    for (int i = 0; i < h->count; i++)
        if (strcmp(h->tensors[i].name, name) == 0)
            return i;
    return -1;
}

static void drop_at(struct hfedit *h, int i)
{
    free(h->tensors[i].name);
    memmove(&h->tensors[i], &h->tensors[i + 1],
        (size_t)(--h->count - i) * sizeof *h->tensors);
}

void hfedit_drop(struct hfedit *h, const char *name)
{
    const int i = hfedit_find(h, name);
    if (i < 0)
        die(name);
    drop_at(h, i);
}

int hfedit_drop_like(struct hfedit *h, const char *part)
{
    int dropped = 0;
    for (int i = h->count - 1; i >= 0; i--)
        if (strstr(h->tensors[i].name, part)) {
            drop_at(h, i);
            dropped++;
        }
    return dropped;
}

int hfedit_rename(struct hfedit *h, const char *where, const char *from, const char *to)
{
    int renamed = 0;
    for (int i = 0; i < h->count; i++) {
        struct hfedit_tensor *t = &h->tensors[i];
        const char *at = strstr(t->name, from);
        char name[1024];
        if (!at || !strstr(t->name, where))
            continue;
        snprintf(name, sizeof name, "%.*s%s%s", (int)(at - t->name), t->name, to,
            at + strlen(from));
        free(t->name);
        t->name = copy(name);
        renamed++;
    }
    return renamed;
}

void hfedit_json(
    const char *dir, const char *file, const char *object, const char *key, json_t *value)
{
    json_error_t e;
    json_t *json = json_load_file(tmpdir_path(dir, "%s", file), 0, &e);
    if (!json)
        die(e.text);
    json_t *in = object ? json_object_get(json, object) : json;
    if (value)
        json_object_set_new(in, key, value);
    else
        json_object_del(in, key);
    if (json_dump_file(json, tmpdir_path(dir, "%s", file), JSON_INDENT(2)) != 0)
        die(file);
    json_decref(json);
}
