/* A run's curves as one SVG: loss, its parts, gradient norm, learning rate, over steps.
 *
 * Pure but for the writing. Thousands of steps are drawn as the band between the least and the
 * greatest of each pixel column, so a spike is never lost. */
#ifndef TRAIN_CURVES_H
#define TRAIN_CURVES_H

#include <stdio.h>

#include "train/metrics.h"

/* title: above the picture. count 0 draws an empty one. The caller looks at ferror(out). */
void curves_svg(
    FILE *out, const char *title, const struct metrics_row *rows, int64_t count);

/* Ticks of an axis from lo to hi: steps of 1, 2 or 5 times a power of ten, at most `most`. Returns
 * the step; *first is the first tick >= lo. */
double curves_ticks(double lo, double hi, int most, double *first);

#endif
