/* The files of a model, from its folder or from a store. */
#include <stdio.h>

#include "ckpt/ckpt.h"
#include "convert/hfdir_inside.h"

int hfdir_slurp(const struct hf_source *s, const char *name, size_t limit, void **data,
    size_t *size, struct glm_error *err)
{
    char path[4096];
    if (s->store != NULL)
        return s->store->slurp(s->store->ctx, name, limit, data, size, err);
    snprintf(path, sizeof path, "%s/%s", s->dir, name);
    return dio_slurp(path, limit, data, size, err);
}

int hfdir_read_header(struct hf_source *s, int64_t file, struct glm_error *err)
{
    struct hf_file *f = &s->files[file];
    char path[4096];
    if (s->store != NULL)
        return s->store->header(
            s->store->ctx, f->name, &f->header, &f->header_bytes, err);
    snprintf(path, sizeof path, "%s/%s", s->dir, f->name);
    return st_read(&f->header, path, &f->header_bytes, err);
}
