#include "tests/support/gradnorm.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Level by level from the leaves up, where the operation divides from the root down. */
double gradnorm_tree(const double *leaves, int64_t n)
{
    double *const node = malloc((size_t)(n > 0 ? n : 1) * sizeof *node);

    if (node == NULL)
        abort();
    node[0] = 0;
    memcpy(node, leaves, (size_t)n * sizeof *node);
    for (; n > 1; n = (n + 1) / 2)
        for (int64_t i = 0; i < n; i += 2)
            node[i / 2] = i + 1 < n ? node[i] + node[i + 1] : node[i];
    const double sum = node[0];
    free(node);
    return sum;
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
