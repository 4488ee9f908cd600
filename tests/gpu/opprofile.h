/* Every operation of a backend between two events, summed by operation and shape. */
#ifndef TESTS_GPU_OPPROFILE_H
#define TESTS_GPU_OPPROFILE_H

#include "kernels/kernels.h"

/* k with operations that note two events around each call, of the first 8000; event and elapsed as in
 * support.h. One at a time. */
struct kernels opprofile_of(const struct kernels *k,
    int (*event)(int which, void *stream), float (*elapsed)(int from, int to));
void opprofile_reset(void); /* forgets what was noted */
void opprofile_print(void); /* a table to standard error */

#endif
