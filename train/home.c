#include "train/home.h"

#include <string.h>

int home_put(
    const struct home *h, void *to, const void *from, size_t bytes, struct glm_error *err)
{
    if (!home_is_host(h))
        return h->k->to_device(to, from, bytes, h->stream, err);
    if (bytes > 0)
        memcpy(to, from, bytes);
    return 0;
}

const void *home_get(const struct home *h, const void *from, size_t bytes, void *buf,
    struct glm_error *err)
{
    if (home_is_host(h))
        return from;
    return h->k->to_host(buf, from, bytes, h->stream, err) == 0 ? buf : NULL;
}

int home_zero(const struct home *h, void *p, size_t bytes, struct glm_error *err)
{
    if (!home_is_host(h))
        return h->k->zero(p, bytes, h->stream, err);
    if (bytes > 0)
        memset(p, 0, bytes);
    return 0;
}
