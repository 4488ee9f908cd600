#include "train/gradnorm.h"

#include <math.h>

#include "kernels/base/normtree.h"

double gradnorm_tree(const double *leaves, int64_t n)
{
    return normtree(leaves, n);
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
