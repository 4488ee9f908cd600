#include "tests/gpu/statehash.h"

#include <stdlib.h>

static uint64_t add(uint64_t h, const struct train_tensor *t, struct glm_error *err)
{
    const size_t n = (size_t)tensors_elements(t) * glm_dtype_size(t->dtype);
    unsigned char *const buf = malloc(n + 1);
    const unsigned char *const p =
        buf != NULL ? home_get(t->home, t->data, n, buf, err) : NULL;

    if (buf == NULL)
        glm_fail(err, GLM_ENOMEM, "no memory to hash %s", t->name);
    for (size_t k = 0; p != NULL && k < n; k++)
        h = (h ^ p[k]) * 1099511628211u;
    free(buf);
    return h;
}

uint64_t statehash(struct params *p, struct optimizer *o, struct glm_error *err)
{
    struct train_tensors t = {0};
    uint64_t h = 1469598103934665603u;

    if (params_state(p, &t, err) == 0 && optimizer_state(o, &t, err) == 0)
        for (int64_t i = 0; i < t.count && err->code == GLM_OK; i++)
            h = add(h, &t.list[i], err);
    tensors_clear(&t);
    return err->code == GLM_OK ? h : 0;
}
