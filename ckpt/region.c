/* Row copies, joined where the rows are whole on both sides. */
#include "ckpt/region.h"

#include <string.h>

bool region_contiguous(const struct rect *over, const struct rect *part)
{
    const bool one_e = rect_len(part, 0) == 1, one_r = rect_len(part, 1) == 1;
    const bool full_r = rect_len(part, 1) == rect_len(over, 1);
    const bool full_c = rect_len(part, 2) == rect_len(over, 2);

    return (one_e || full_r) && ((one_e && one_r) || full_c);
}

void region_copy(void *dst, const struct rect *dst_over, const void *src,
    const struct rect *src_over, const struct rect *part, size_t element)
{
    unsigned char *to = dst;
    const unsigned char *from = src;
    const bool whole_rows = rect_len(part, 2) == rect_len(dst_over, 2)
        && rect_len(part, 2) == rect_len(src_over, 2);
    const int64_t rows = rect_len(part, 1);
    const size_t row = (size_t)rect_len(part, 2) * element;

    for (int64_t e = part->lo[0]; e < part->hi[0]; e++) {
        unsigned char *d = to + region_at(dst_over, e, part->lo[1], part->lo[2], element);
        const unsigned char *s =
            from + region_at(src_over, e, part->lo[1], part->lo[2], element);
        if (whole_rows) {
            memcpy(d, s, row * (size_t)rows);
            continue;
        }
        for (int64_t r = 0; r < rows; r++)
            memcpy(d + (size_t)(r * rect_len(dst_over, 2)) * element,
                s + (size_t)(r * rect_len(src_over, 2)) * element, row);
    }
}
