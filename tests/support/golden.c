/* Safetensors, just enough for our own golden files. */
#include "tests/support/golden.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/tmpdir.h"

struct golden {
    unsigned char *bytes; /* of the data: aligned for any type */
    size_t size;
    json_t *header;
};

int golden_open(struct golden **out, const char *path, struct glm_error *err)
{
    size_t size;
    unsigned char *file = tmpdir_read(path, &size);
    struct golden *g = calloc(1, sizeof *g);
    uint64_t head = 0;
    *out = NULL;
    if (size >= 8)
        memcpy(&head, file, 8);
    if (g && size >= 8 && head <= size - 8)
        g->header = json_loadb((const char *)file + 8, head, 0, NULL);
    if (!g || !g->header) {
        glm_fail(err, GLM_EFORMAT, "%s: not a safetensors file", path);
        goto out;
    }
    g->size = size - 8 - head;
    g->bytes = malloc(g->size + 1);
    if (!g->bytes) {
        glm_fail(err, GLM_ENOMEM, "%s: no memory", path);
        goto out;
    }
    memcpy(g->bytes, file + 8 + head, g->size);
    *out = g;
out:
    if (err->code != GLM_OK)
        golden_close(g);
    free(file);
    return err->code;
}

void golden_close(struct golden *g)
{
    if (!g)
        return;
    json_decref(g->header);
    free(g->bytes);
    free(g);
}

const char *golden_text(const struct golden *g, const char *key)
{
    return json_string_value(
        json_object_get(json_object_get(g->header, "__metadata__"), key));
}

static const void *find(
    const struct golden *g, const char *name, const char *type, size_t width, int64_t *n)
{
    const json_t *line = json_object_get(g->header, name);
    const json_t *at = json_object_get(line, "data_offsets");
    const char *dtype = json_string_value(json_object_get(line, "dtype"));
    const size_t begin = (size_t)json_integer_value(json_array_get(at, 0));
    const size_t end = (size_t)json_integer_value(json_array_get(at, 1));
    if (!dtype || strcmp(dtype, type) != 0 || begin > end || end > g->size
        || begin % width != 0)
        return NULL;
    *n = (int64_t)((end - begin) / width);
    return g->bytes + begin;
}

const float *golden_f32(const struct golden *g, const char *name, int64_t *n)
{
    return find(g, name, "F32", sizeof(float), n);
}

const double *golden_f64(const struct golden *g, const char *name, int64_t *n)
{
    return find(g, name, "F64", sizeof(double), n);
}

const int32_t *golden_i32(const struct golden *g, const char *name, int64_t *n)
{
    return find(g, name, "I32", sizeof(int32_t), n);
}
