/* Sentences about arguments that cannot be. */
#ifndef KERNELS_CPU_CHECK_H
#define KERNELS_CPU_CHECK_H

#include <stdint.h>

#include "kernels/base/error.h"

/* if (!(T >= 0 && D > 0)) return CHECK_SHAPE(err, "rmsnorm_fwd", "T %lld, D %lld", T, D) */
#define CHECK_SHAPE2(err, op, names, a, b)                                               \
    glm_fail(err, GLM_EFORMAT, op ": impossible shape: " names, (long long)(a),          \
        (long long)(b))
#define CHECK_SHAPE3(err, op, names, a, b, c)                                            \
    glm_fail(err, GLM_EFORMAT, op ": impossible shape: " names, (long long)(a),          \
        (long long)(b), (long long)(c))
#define CHECK_SHAPE4(err, op, names, a, b, c, d)                                         \
    glm_fail(err, GLM_EFORMAT, op ": impossible shape: " names, (long long)(a),          \
        (long long)(b), (long long)(c), (long long)(d))

/* Every id in [low, high). */
static inline int check_ids(const char *op, const char *what, const int32_t *ids,
    int64_t n, int64_t low, int64_t high, struct glm_error *err)
{
    for (int64_t i = 0; i < n; i++) {
        if (ids[i] < low || ids[i] >= high)
            return glm_fail(err, GLM_EFORMAT,
                "%s: %s %d at position %lld, expected %lld to %lld", op, what,
                (int)ids[i], (long long)i, (long long)low, (long long)high - 1);
    }
    return 0;
}

#endif
