/* Rows of experts: a counting sort of (token, slot) by expert. Integers alone, one thread. */
#include <inttypes.h>
#include <string.h>

#include "kernels/ops.h"

int cpu_moe_plan(const struct moe_plan *p, glm_stream stream, struct glm_error *err)
{
    int32_t *const next = p->offset; /* of each expert, its next row */
    const int64_t n = p->T * p->K;

    (void)stream;
    if (p->T < 0 || p->K < 1 || p->E < 1 || n > INT32_MAX)
        return glm_fail(err, GLM_EFORMAT,
            "moe_plan: %" PRId64 " rows of %" PRId64 " in %" PRId64 " experts", p->T,
            p->K, p->E);
    memset(next, 0, (size_t)(p->E + 1) * sizeof *next);
    for (int64_t i = 0; i < n; i++) {
        if (p->expert[i] < 0 || p->expert[i] >= p->E)
            return glm_fail(err, GLM_EFORMAT,
                "moe_plan: expert %" PRId64 " of row %" PRId64 " is %" PRId32
                ", expected 0 to %" PRId64,
                i % p->K, i / p->K, p->expert[i], p->E - 1);
        next[p->expert[i] + 1]++;
    }
    for (int64_t e = 0; e < p->E; e++)
        next[e + 1] += next[e];
    for (int64_t i = 0; i < n; i++) {
        const int32_t row = next[p->expert[i]]++;
        p->token[row] = (int32_t)(i / p->K);
        p->slot[row] = (int32_t)(i % p->K);
        p->row[i] = row;
    }
    /* Each `next` now is where the following expert begins. */
    memmove(next + 1, next, (size_t)p->E * sizeof *next);
    next[0] = 0;
    return 0;
}
