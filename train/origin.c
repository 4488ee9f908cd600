#include "train/origin.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/base/version.h"

static int no_memory(struct glm_error *err)
{
    return glm_fail(err, GLM_ENOMEM, "no memory for side files");
}

/* Takes over data. A file of that name is replaced. */
static int add_file(
    struct origin *o, const char *path, void *data, uint64_t bytes, struct glm_error *err)
{
    for (int64_t i = 0; i < o->files; i++)
        if (strcmp(o->file[i].path, path) == 0) {
            free(o->file[i].data);
            o->file[i].data = data;
            o->file[i].bytes = bytes;
            return GLM_OK;
        }
    struct origin_file *more = realloc(o->file, (size_t)(o->files + 1) * sizeof *more);
    char *name = strdup(path);
    if (more != NULL)
        o->file = more;
    if (more == NULL || name == NULL) {
        free(name);
        free(data);
        return no_memory(err);
    }
    o->file[o->files++] = (struct origin_file){name, data, bytes};
    return GLM_OK;
}

int origin_prov(
    struct origin *o, const char *key, const char *value, struct glm_error *err)
{
    char *copy = strdup(value), *name;

    if (copy == NULL)
        return no_memory(err);
    for (int64_t i = 0; i < o->provs; i++)
        if (strcmp(o->prov[i].key, key) == 0) {
            free(o->prov[i].value);
            o->prov[i].value = copy;
            return GLM_OK;
        }
    struct ckpt_prov *more = realloc(o->prov, (size_t)(o->provs + 1) * sizeof *more);
    if (more != NULL)
        o->prov = more;
    if (more == NULL || (name = strdup(key)) == NULL) {
        free(copy);
        return no_memory(err);
    }
    o->prov[o->provs++] = (struct ckpt_prov){name, copy};
    return GLM_OK;
}

int origin_from(struct origin *o, const struct reader *r, bool own, struct glm_error *err)
{
    const struct index *ix = reader_index(r);
    const struct manifest *m = ix->manifest;
    char hex[DIGEST_HEX];

    for (int64_t i = 0; i < m->file_count; i++) {
        void *data;
        const struct ckpt_file *f = &m->files[i];
        if (f->header) /* of files with the elements as they were before training */
            continue;
        if (index_file(ix, f, &data, err) != GLM_OK
            || add_file(o, f->path, data, f->bytes, err) != GLM_OK)
            return (int)err->code;
    }
    for (int64_t i = 0; i < m->prov_count; i++)
        if ((own || strncmp(m->prov[i].key, "parent-", 7) != 0)
            && origin_prov(o, m->prov[i].key, m->prov[i].value, err) != GLM_OK)
            return (int)err->code;
    if (own)
        return GLM_OK;
    digest_hex(m->fingerprint, hex);
    if (origin_prov(o, "parent-fingerprint", hex, err) != GLM_OK)
        return (int)err->code;
    digest_hex(m->id, hex);
    return origin_prov(o, "parent-id", hex, err);
}

static int add_text(struct origin *o, const char *path, const char *text, size_t size,
    struct glm_error *err)
{
    void *copy = malloc(size + 1);

    if (copy == NULL)
        return no_memory(err);
    memcpy(copy, text, size);
    return add_file(o, path, copy, size, err);
}

int origin_random(struct origin *o, const struct recipe *r, struct glm_error *err)
{
    return add_text(o, "config.json", r->config_text, r->config_size, err);
}

int origin_recipe(struct origin *o, const struct recipe *r, struct glm_error *err)
{
    char hex[DIGEST_HEX];

    digest_hex(r->sha256, hex);
    if (add_text(o, "recipe.yaml", r->text, r->text_size, err) != GLM_OK
        || origin_prov(o, "recipe-sha256", hex, err) != GLM_OK
        || origin_prov(o, "command", "glm-train", err) != GLM_OK)
        return (int)err->code;
    return origin_prov(o, "version", GLM_VERSION, err);
}

void origin_clear(struct origin *o)
{
    for (int64_t i = 0; i < o->files; i++) {
        free(o->file[i].path);
        free(o->file[i].data);
    }
    for (int64_t i = 0; i < o->provs; i++) {
        free(o->prov[i].key);
        free(o->prov[i].value);
    }
    free(o->file);
    free(o->prov);
    *o = (struct origin){0};
}

int origin_apply(const struct origin *o, struct manifest *m, struct glm_error *err)
{
    for (int64_t i = 0; i < o->files; i++)
        if (manifest_add_file(
                m, o->file[i].path, false, o->file[i].data, o->file[i].bytes)
            == NULL)
            return no_memory(err);
    for (int64_t i = 0; i < o->provs; i++)
        if (manifest_add_prov(m, o->prov[i].key, o->prov[i].value) != 0)
            return no_memory(err);
    return GLM_OK;
}
