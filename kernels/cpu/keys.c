#include "kernels/cpu/keys.h"

#include <inttypes.h>

/* The sequence of row t: the last that begins at or before it. */
static int64_t sequence_of(const struct pack *p, int64_t t)
{
    int64_t low = 0, high = p->S;

    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        if (p->cu_seqlens[middle] <= t)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* The entries in front of the first -1. */
static int64_t set_size(const int32_t *index, int64_t K)
{
    int64_t low = 0, high = K;

    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (index[middle] >= 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static int check_boundaries(const struct pack *p, const char *op, struct glm_error *err)
{
    if (p->T < 0 || p->T > INT32_MAX || p->S < 0 || (p->T > 0 && p->S == 0))
        return glm_fail(err, GLM_EFORMAT, "%s: %" PRId64 " rows in %" PRId64 " sequences",
            op, p->T, p->S);
    if (p->S == 0)
        return 0;
    if (p->cu_seqlens[0] != 0)
        return glm_fail(err, GLM_EFORMAT,
            "%s: cu_seqlens begins with %" PRId32 ", expected 0", op, p->cu_seqlens[0]);
    for (int64_t i = 0; i < p->S; i++) {
        if (p->cu_seqlens[i] >= p->cu_seqlens[i + 1])
            return glm_fail(err, GLM_EFORMAT,
                "%s: cu_seqlens[%" PRId64 "] is %" PRId32 ", expected more than %" PRId32
                ", the one before",
                op, i + 1, p->cu_seqlens[i + 1], p->cu_seqlens[i]);
    }
    if (p->cu_seqlens[p->S] != p->T)
        return glm_fail(err, GLM_EFORMAT,
            "%s: cu_seqlens ends with %" PRId32 ", expected the number of rows, %" PRId64,
            op, p->cu_seqlens[p->S], p->T);
    return 0;
}

static int check_set(
    const struct pack *p, const char *op, int64_t t, int64_t first, struct glm_error *err)
{
    const int32_t *index = p->index + t * p->K;
    const int64_t count = set_size(index, p->K);
    int64_t before = first - 1;

    if (count == 0)
        return glm_fail(
            err, GLM_EFORMAT, "%s: the key set of row %" PRId64 " is empty", op, t);
    for (int64_t j = 0; j < p->K; j++) {
        if (j >= count ? index[j] != -1 : index[j] <= before || index[j] > t)
            return glm_fail(err, GLM_EFORMAT,
                "%s: entry %" PRId64 " of row %" PRId64 "'s key set is %" PRId32
                ", expected %" PRId64 " to %" PRId64
                ", ascending, and -1 behind the last",
                op, j, t, index[j], first, t);
        before = j >= count ? before : index[j];
    }
    return 0;
}

int keys_check(const struct pack *p, const char *op, int64_t *most, struct glm_error *err)
{
    int code = check_boundaries(p, op, err);

    *most = 0;
    if (code != 0)
        return code;
    if (p->index != NULL && p->K < 1)
        return glm_fail(
            err, GLM_EFORMAT, "%s: key sets of %" PRId64 " entries", op, p->K);
    for (int64_t i = 0; i < p->S; i++) {
        const int64_t length = p->cu_seqlens[i + 1] - p->cu_seqlens[i];
        const int64_t count = p->index != NULL && p->K < length ? p->K : length;
        *most = count > *most ? count : *most;
        for (int64_t t = p->cu_seqlens[i]; p->index != NULL && t < p->cu_seqlens[i + 1];
             t++) {
            if ((code = check_set(p, op, t, p->cu_seqlens[i], err)) != 0)
                return code;
        }
    }
    return 0;
}

struct keys keys_of(const struct pack *p, int64_t t)
{
    const int64_t first = p->cu_seqlens[sequence_of(p, t)];

    if (p->index == NULL)
        return (struct keys){.first = first, .count = t + 1 - first};
    const int32_t *index = p->index + t * p->K;
    return (struct keys){.index = index, .count = set_size(index, p->K)};
}

int64_t keys_end(const struct pack *p, int64_t t)
{
    return p->cu_seqlens[sequence_of(p, t) + 1];
}

int64_t keys_find(const struct keys *k, int64_t s)
{
    if (k->index == NULL)
        return s >= k->first && s < k->first + k->count ? s - k->first : -1;
    int64_t low = 0, high = k->count;

    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (k->index[middle] < s)
            low = middle + 1;
        else
            high = middle;
    }
    return low < k->count && k->index[low] == s ? low : -1;
}
