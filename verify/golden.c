#include "verify/golden.h"

#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "convert/convert.h"

struct golden {
    struct st_header header;
    json_t *metadata;     /* NULL: none */
    unsigned char *bytes; /* of the data: aligned for any type */
};

static int read_data(struct golden *g, const char *path, struct glm_error *err)
{
    const size_t size = (size_t)(g->header.file_size - g->header.data_start);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    size_t done = 0;

    if (fd < 0)
        return glm_fail_errno(err, "%s: open", path);
    if ((g->bytes = malloc(size + 1)) == NULL) {
        glm_fail(err, GLM_ENOMEM, "%s: no memory for %zu bytes", path, size);
        goto out;
    }
    while (done < size) {
        const ssize_t n =
            pread(fd, g->bytes + done, size - done, (off_t)(g->header.data_start + done));
        if (n < 0)
            glm_fail_errno(err, "%s: read", path);
        else if (n == 0)
            glm_fail(err, GLM_EFORMAT, "%s: ends %zu bytes early", path, size - done);
        if (n <= 0)
            goto out;
        done += (size_t)n;
    }
out:
    close(fd);
    return err->code;
}

int golden_open(struct golden **out, const char *path, struct glm_error *err)
{
    struct golden *g = calloc(1, sizeof *g);

    *out = NULL;
    if (g == NULL)
        return glm_fail(err, GLM_ENOMEM, "%s: no memory", path);
    if (st_read(&g->header, path, NULL, err) == GLM_OK
        && read_data(g, path, err) == GLM_OK) {
        if (g->header.metadata != NULL)
            g->metadata = json_loads(g->header.metadata, 0, NULL);
        *out = g;
        g = NULL;
    }
    golden_close(g);
    return err->code;
}

void golden_close(struct golden *g)
{
    if (g == NULL)
        return;
    st_clear(&g->header);
    json_decref(g->metadata);
    free(g->bytes);
    free(g);
}

const char *golden_text(const struct golden *g, const char *key)
{
    return json_string_value(json_object_get(g->metadata, key));
}

static const void *find(
    const struct golden *g, const char *name, enum glm_dtype type, int64_t *n)
{
    const struct st_tensor *t = st_find(&g->header, name, strlen(name));
    const size_t width = glm_dtype_size(type);

    if (t == NULL || t->dtype != type || t->begin % width != 0)
        return NULL;
    *n = (int64_t)((t->end - t->begin) / width);
    return g->bytes + t->begin;
}

const float *golden_f32(const struct golden *g, const char *name, int64_t *n)
{
    return find(g, name, GLM_F32, n);
}

const double *golden_f64(const struct golden *g, const char *name, int64_t *n)
{
    return find(g, name, GLM_F64, n);
}

const int32_t *golden_i32(const struct golden *g, const char *name, int64_t *n)
{
    return find(g, name, GLM_I32, n);
}
