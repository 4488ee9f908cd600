/* Whose memory an array lies in: a backend's, reached by its stream. The host copies what it wants
 * to look at; where the backend computes in the host's memory, nothing is copied. */
#ifndef TRAIN_HOME_H
#define TRAIN_HOME_H

#include "kernels/kernels.h"

struct home {
    const struct kernels *k; /* NULL: the host */
    glm_stream stream;
};

static inline bool home_is_host(const struct home *h)
{
    return h == NULL || h->k == NULL || h->k->host;
}

/* Fills an array at `to`, which lies in h, from the host. */
int home_put(const struct home *h, void *to, const void *from, size_t bytes,
    struct glm_error *err);
/* Where the host can read the array at `from`: there, or in buf, into which it was copied. NULL with
 * a sentence. */
const void *home_get(const struct home *h, const void *from, size_t bytes, void *buf,
    struct glm_error *err);
int home_zero(const struct home *h, void *p, size_t bytes, struct glm_error *err);

#endif
