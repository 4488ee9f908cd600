/* A few spare buffers; the smallest that fits is taken. */
#include "convert/hubpool.h"

#include "ckpt/ckpt.h"

/* Few sizes, so that buffers fit again. */
static size_t rounded(size_t n)
{
    const size_t step = n > 1 << 20 ? 1 << 20 : 64 << 10;
    return (n + step - 1) / step * step;
}

bool hubpool_has_room(const struct hubpool *p, size_t n)
{
    return p->used == 0 || p->used + rounded(n) <= p->most;
}

static void drop(struct hubpool *p, int i)
{
    p->kept -= p->spare[i].size;
    p->spare[i] = p->spare[--p->count];
}

/* The smallest spare one that is large enough and not much too big, or -1. */
static int fitting(const struct hubpool *p, size_t n)
{
    int best = -1;
    for (int i = 0; i < p->count; i++)
        if (p->spare[i].size >= n && p->spare[i].size <= 2 * n
            && (best < 0 || p->spare[i].size < p->spare[best].size))
            best = i;
    return best;
}

unsigned char *hubpool_take(struct hubpool *p, size_t n, size_t *size)
{
    n = rounded(n);
    const int best = fitting(p, n);
    struct hubspare got = {NULL, n};
    if (best >= 0) {
        got = p->spare[best];
        drop(p, best);
    } else {
        while (p->count > 0 && p->used + p->kept + n > p->most) {
            dio_free(p->spare[p->count - 1].data, p->spare[p->count - 1].size);
            drop(p, p->count - 1);
        }
        got.data = dio_alloc(n);
    }
    if (got.data != NULL)
        p->used += got.size;
    *size = got.size;
    return got.data;
}

void hubpool_give(struct hubpool *p, unsigned char *data, size_t size)
{
    p->used -= size;
    if (p->count < (int)(sizeof p->spare / sizeof p->spare[0])
        && p->used + p->kept + size <= p->most) {
        p->spare[p->count++] = (struct hubspare){data, size};
        p->kept += size;
    } else {
        dio_free(data, size);
    }
}

void hubpool_clear(struct hubpool *p)
{
    for (int i = 0; i < p->count; i++)
        dio_free(p->spare[i].data, p->spare[i].size);
    p->kept = 0;
    p->count = 0;
}
