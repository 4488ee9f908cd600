/* Small ranges out of turn: the scales of a matrix that is recoded, which may lie anywhere. They are
 * fetched in blocks, and a few blocks are kept, since scales often lie side by side. The bytes pass
 * again in their file's stream and are compared there; that these are the same ones rests on the
 * connection. */
#include <stdlib.h>
#include <string.h>

#include "convert/hubflow_inside.h"

enum { BLOCK = 256 << 10 };

struct fill {
    unsigned char *data;
    uint64_t begin;
};

static size_t take(
    void *ctx, uint64_t offset, const void *bytes, size_t n, struct glm_error *err)
{
    const struct fill *f = ctx;
    (void)err;
    memcpy(f->data + (offset - f->begin), bytes, n);
    return n;
}

static struct hubside *find(struct hubflow *f, int32_t file, uint64_t begin, uint64_t end)
{
    for (size_t i = 0; i < sizeof f->side / sizeof f->side[0]; i++) {
        struct hubside *s = &f->side[i];
        if (s->data != NULL && s->file == file && begin >= s->begin
            && end - s->begin <= s->size)
            return s;
    }
    return NULL;
}

static struct hubside *oldest(struct hubflow *f)
{
    struct hubside *s = &f->side[0];
    for (size_t i = 1; i < sizeof f->side / sizeof f->side[0]; i++)
        if (f->side[i].used < s->used)
            s = &f->side[i];
    return s;
}

/* side_lock held, and given back while the network works. */
static int fetch(struct hubflow *f, int32_t no, uint64_t begin, uint64_t end,
    unsigned char *out, struct glm_error *err)
{
    struct hub_file *file = hub_find(f->o.hub, f->s->files[no].name);
    const uint64_t size = file->listed->size, want = end - begin;
    uint64_t to = begin + (want > BLOCK ? want : BLOCK);
    if (to > size)
        to = size;
    struct fill fill = {malloc((size_t)(to - begin)), begin};
    if (fill.data == NULL)
        return glm_fail(err, GLM_ENOMEM, "%s: no memory for scales", file->what);
    const struct hubnet_get get = {.what = file->what,
        .url = file->url,
        .from = begin,
        .to = to,
        .size = size,
        .digest = file->listed->digest,
        .link = &file->link,
        .ctx = &fill,
        .data = take};
    pthread_mutex_unlock(&f->side_lock);
    hubnet_fetch(hub_net(f->o.hub), &get, err);
    pthread_mutex_lock(&f->side_lock);
    if (err->code != GLM_OK) {
        free(fill.data);
        return (int)err->code;
    }
    memcpy(out, fill.data, (size_t)want);
    struct hubside *s = oldest(f);
    free(s->data);
    *s = (struct hubside){no, begin, (size_t)(to - begin), fill.data, ++f->side_clock};
    return GLM_OK;
}

int hubflow_side(struct hubflow *f, int32_t file, uint64_t begin, uint64_t end,
    unsigned char *out, struct glm_error *err)
{
    pthread_mutex_lock(&f->side_lock);
    struct hubside *s = find(f, file, begin, end);
    if (s != NULL) {
        s->used = ++f->side_clock;
        memcpy(out, s->data + (begin - s->begin), (size_t)(end - begin));
    } else if (begin < end) {
        fetch(f, file, begin, end, out, err);
    }
    pthread_mutex_unlock(&f->side_lock);
    return (int)err->code;
}

void hubflow_side_clear(struct hubflow *f)
{
    for (size_t i = 0; i < sizeof f->side / sizeof f->side[0]; i++)
        free(f->side[i].data);
    memset(f->side, 0, sizeof f->side);
}
