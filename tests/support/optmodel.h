/* An optimizer on the parameters of tiny-a, with the values of fixtures/make_optimizer_golden.py. */
#ifndef TESTS_SUPPORT_OPTMODEL_H
#define TESTS_SUPPORT_OPTMODEL_H

#include "train/optimizer.h"

struct optmodel {
    struct table *table;
    struct params *p;
    struct optimizer *o;
};

/* Fails the test with the sentence if it is refused. */
struct optmodel optmodel_new(enum glm_dtype dtype, enum params_trained trained,
    const struct optimizer_options *options);
void optmodel_free(struct optmodel *x);
/* Element i of an array of a tensor: in [-scale, scale), a function of the names. */
float optmodel_uniform(const char *name, const char *array, int64_t i, float scale);
/* The gradients, and the experts' loads, that a step finds. */
void optmodel_gradients(struct optmodel *x, int step);
/* Steps from .. to, report (of the last) may not be NULL. */
void optmodel_steps(struct optmodel *x, int from, int to, glm_stream stream,
    struct optimizer_report *report);
/* The golden run that differs from the published rules wherever it can. */
struct optimizer_options optmodel_other_rules(void);
/* Fails the test unless weights and state are the same bits. */
void optmodel_same(const struct optmodel *a, const struct optmodel *b, const char *what);

#endif
