#include "tests/support/gradnorm.h"

#include <math.h>

double gradnorm_tree(const double *leaves, int64_t n)
{
    int64_t first = 1;

    if (n <= 1)
        return n < 1 ? 0 : leaves[0];
    while (2 * first < n)
        first *= 2;
    return gradnorm_tree(leaves, first) + gradnorm_tree(leaves + first, n - first);
}

double gradnorm_fold(const double *leaves, const int64_t *first,
    const signed char *chosen, signed char group, int64_t tensors)
{
    double sum = 0;

    for (int64_t i = 0; i < tensors; i++)
        if (chosen[i] == group)
            sum += gradnorm_tree(leaves + first[i], first[i + 1] - first[i]);
    return sqrt(sum);
}

double gradnorm_clip(double norm, double limit)
{
    if (limit <= 0)
        return 1;
    return fmin(1, limit / (norm + 1e-6));
}
