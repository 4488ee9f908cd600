/* Rectangles in matrix form. Half-open intervals on three axes; nothing here knows a tensor's name,
 * type or file. Shapes come from the table or from a checked manifest, so products do not wrap. */
#include "ckpt/rect.h"

#include <assert.h>

void rect_dims(int64_t dims[RECT_AXES], const int64_t *shape, int rank, bool stack)
{
    assert(rank >= 0 && (!stack || rank == 3));
    dims[0] = dims[1] = dims[2] = 1;
    if (stack) {
        for (int i = 0; i < RECT_AXES; i++)
            dims[i] = shape[i];
    } else if (rank == 1) {
        dims[2] = shape[0];
    } else if (rank >= 2) {
        dims[1] = shape[0];
        for (int i = 1; i < rank; i++)
            dims[2] *= shape[i];
    }
}

struct rect rect_whole(const int64_t dims[RECT_AXES])
{
    return (struct rect){.hi = {dims[0], dims[1], dims[2]}};
}

bool rect_empty(const struct rect *r)
{
    return r->lo[0] >= r->hi[0] || r->lo[1] >= r->hi[1] || r->lo[2] >= r->hi[2];
}

int64_t rect_count(const struct rect *r)
{
    return rect_empty(r) ? 0 : rect_len(r, 0) * rect_len(r, 1) * rect_len(r, 2);
}

bool rect_equal(const struct rect *a, const struct rect *b)
{
    for (int i = 0; i < RECT_AXES; i++)
        if (a->lo[i] != b->lo[i] || a->hi[i] != b->hi[i])
            return false;
    return true;
}

bool rect_contains(const struct rect *outer, const struct rect *inner)
{
    if (rect_empty(inner))
        return true;
    for (int i = 0; i < RECT_AXES; i++)
        if (inner->lo[i] < outer->lo[i] || inner->hi[i] > outer->hi[i])
            return false;
    return true;
}

bool rect_intersect(const struct rect *a, const struct rect *b, struct rect *out)
{
    struct rect both;
    for (int i = 0; i < RECT_AXES; i++) {
        both.lo[i] = a->lo[i] > b->lo[i] ? a->lo[i] : b->lo[i];
        both.hi[i] = a->hi[i] < b->hi[i] ? a->hi[i] : b->hi[i];
    }
    const bool some = !rect_empty(&both);
    *out = some ? both : (struct rect){.lo = {0}};
    return some;
}
