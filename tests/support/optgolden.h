/* The golden updates of fixtures/optimizer (make_optimizer_golden.py); run from the tree's root. */
#ifndef TESTS_SUPPORT_OPTGOLDEN_H
#define TESTS_SUPPORT_OPTGOLDEN_H

#include <stdbool.h>
#include <stdint.h>

struct optgolden {
    bool muon;
    char name[32];
    /* Muon */
    int64_t E, R, C;
    char layout[32], coeff[32], scale[32];
    int64_t head, split; /* of layouts heads:HEAD,SPLIT and gathered:HEAD,SPLIT */
    double momentum, extra;
    int nesterov, steps;
    /* AdamW */
    int64_t step;
    double beta1, beta2, eps;
    /* both */
    int64_t n; /* elements */
    double lr, decay, grad_scale;
    const double *w, *m, *v; /* expected */
};

/* All cases; *count of them. Aborts if the files are not there. Never freed. */
const struct optgolden *optgolden_cases(int *count);

/* An input array of a case: "w", "m", "g", "v" with the script's scale; out as float or double. */
void optgolden_input(const struct optgolden *c, const char *array, bool f64, void *out);

/* |a-b|_2 / |b|_2, and the largest difference over the largest expected value. */
double optgolden_norm_error(const void *a, bool f64, const double *expected, int64_t n);
double optgolden_max_error(const void *a, bool f64, const double *expected, int64_t n);

#endif
