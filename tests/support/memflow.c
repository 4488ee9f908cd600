#include "tests/support/memflow.h"

#include <stdlib.h>

static size_t element_of(const struct memflow *f, int64_t tensor)
{
    return glm_dtype_size(f->m->tensors[tensor].dtype);
}

void memflow_init(struct memflow *f, const struct manifest *m)
{
    *f = (struct memflow){.m = m};
    pthread_mutex_init(&f->lock, NULL);
    f->data = calloc((size_t)m->tensor_count + 1, sizeof *f->data);
    f->done = calloc((size_t)m->tensor_count + 1, sizeof *f->done);
    for (int64_t i = 0; i < m->tensor_count; i++) {
        const struct rect all = rect_whole(m->tensors[i].grid.dims);
        f->data[i] = calloc((size_t)rect_count(&all) + 1, element_of(f, i));
        f->done[i] = calloc((size_t)tile_count(&m->tensors[i].grid) + 1, 1);
    }
}

void memflow_clear(struct memflow *f)
{
    for (int64_t i = 0; i < f->m->tensor_count; i++) {
        free(f->data[i]);
        free(f->done[i]);
    }
    free(f->data);
    free(f->done);
    pthread_mutex_destroy(&f->lock);
}

static int mem_read(void *ctx, int64_t tensor, const struct rect *at,
    struct dio_buffer *buf, unsigned char **data, unsigned char *digests, bool *known,
    struct flow_thread *t, struct glm_error *err)
{
    struct memflow *f = ctx;
    const struct rect all = rect_whole(f->m->tensors[tensor].grid.dims);

    (void)digests;
    (void)t;
    if (f->before != NULL && f->before(f->ctx, tensor, at, err) != GLM_OK)
        return (int)err->code;
    *known = false;
    *data = buf->data;
    region_copy(buf->data, at, f->data[tensor], &all, at, element_of(f, tensor));
    return GLM_OK;
}

static int mem_put(void *ctx, int64_t tensor, const struct rect *at, const void *data,
    const unsigned char *digests, struct flow_thread *t, struct glm_error *err)
{
    struct memflow *f = ctx;
    const struct tile_grid *g = &f->m->tensors[tensor].grid;
    const struct rect all = rect_whole(g->dims), tiles = tile_cover(g, at);

    (void)digests;
    (void)t;
    if (f->before != NULL && f->before(f->ctx, tensor, at, err) != GLM_OK)
        return (int)err->code;
    pthread_mutex_lock(&f->lock);
    region_copy(f->data[tensor], &all, data, at, at, element_of(f, tensor));
    for (int64_t e = tiles.lo[0]; e < tiles.hi[0]; e++)
        for (int64_t r = tiles.lo[1]; r < tiles.hi[1]; r++)
            for (int64_t c = tiles.lo[2]; c < tiles.hi[2]; c++)
                f->done[tensor][tile_index(g, e, r, c)]++;
    f->puts++;
    pthread_mutex_unlock(&f->lock);
    return GLM_OK;
}

static bool mem_has(void *ctx, int64_t tensor, const struct rect *at)
{
    struct memflow *f = ctx;
    const struct tile_grid *g = &f->m->tensors[tensor].grid;
    const struct rect tiles = tile_cover(g, at);
    bool all = true;

    pthread_mutex_lock(&f->lock);
    for (int64_t e = tiles.lo[0]; e < tiles.hi[0]; e++)
        for (int64_t r = tiles.lo[1]; r < tiles.hi[1]; r++)
            for (int64_t c = tiles.lo[2]; c < tiles.hi[2]; c++)
                all = all && f->done[tensor][tile_index(g, e, r, c)] > 0;
    pthread_mutex_unlock(&f->lock);
    return all;
}

/* Tensors in the opposite order of the manifest: an order of the sink's own. */
static uint64_t mem_key(void *ctx, int64_t tensor, int64_t member)
{
    const struct memflow *f = ctx;
    (void)member;
    return (uint64_t)(f->m->tensor_count - tensor);
}

struct flow_source memflow_source(struct memflow *f)
{
    return (struct flow_source){.m = f->m, .ctx = f, .read = mem_read};
}

struct flow_sink memflow_sink(struct memflow *f, bool whole_width)
{
    return (struct flow_sink){.m = f->m,
        .ctx = f,
        .whole_width = whole_width,
        .key = mem_key,
        .has = mem_has,
        .put = mem_put};
}
