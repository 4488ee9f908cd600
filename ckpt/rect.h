/* Rectangles of a logical tensor in matrix form, and their intersection. Pure.
 *
 * Every tensor is seen as [E, R, C]: rank 0 as [1,1,1], rank 1 [n] as [1,1,n], rank 2 [R,C] as
 * [1,R,C], an expert stack as it is, other ranks >= 3 as [1, d0, d1*d2*...]. Everything that cuts,
 * tiles, reads or writes works on this form; only names and files know the rank. */
#ifndef CKPT_RECT_H
#define CKPT_RECT_H

#include <stdbool.h>
#include <stdint.h>

enum { RECT_AXES = 3 }; /* 0 experts, 1 rows, 2 columns */

struct rect {
    int64_t lo[RECT_AXES], hi[RECT_AXES]; /* half open; lo == hi on any axis: empty */
};

/* dims[3] of a tensor's matrix form. stack: shape is [E,R,C] of routed experts. */
void rect_dims(int64_t dims[RECT_AXES], const int64_t *shape, int rank, bool stack);
struct rect rect_whole(const int64_t dims[RECT_AXES]);
bool rect_empty(const struct rect *r);
int64_t rect_count(const struct rect *r); /* elements */
bool rect_equal(const struct rect *a, const struct rect *b);
bool rect_contains(const struct rect *outer, const struct rect *inner);
/* The common part; false and an empty *out if there is none. */
bool rect_intersect(const struct rect *a, const struct rect *b, struct rect *out);
static inline int64_t rect_len(const struct rect *r, int axis)
{
    return r->hi[axis] - r->lo[axis];
}

#endif
