/* Moving sub-rectangles between row-major buffers. Pure.
 *
 * A buffer "over" a rectangle holds its elements row-major, rows as long as the rectangle is wide:
 *
 *     over = [e0,e1) x [r0,r1) x [c0,c1)     element (e,r,c) at ((e-e0)*(r1-r0) + r-r0)*(c1-c0) + c-c0
 */
#ifndef CKPT_REGION_H
#define CKPT_REGION_H

#include <stddef.h>

#include "ckpt/rect.h"

/* Byte offset of element (e,r,c) in a buffer over a rectangle. */
static inline size_t region_at(
    const struct rect *over, int64_t e, int64_t r, int64_t c, size_t element)
{
    return (size_t)(((e - over->lo[0]) * rect_len(over, 1) + (r - over->lo[1]))
                   * rect_len(over, 2)
               + (c - over->lo[2]))
        * element;
}

/* Whether `part` is one run of bytes in a buffer over `over`. */
bool region_contiguous(const struct rect *over, const struct rect *part);
/* Copies `part` (inside both) from a buffer over `src_over` to one over `dst_over`. */
void region_copy(void *dst, const struct rect *dst_over, const void *src,
    const struct rect *src_over, const struct rect *part, size_t element);

#endif
