/* The parameters (params.h) as the model takes them, and its expert counts handed back. */
#ifndef TRAIN_MODELPARAMS_H
#define TRAIN_MODELPARAMS_H

#include "train/model.h"
#include "train/params.h"

/* out: one for each row of the table. */
void modelparams_link(const struct params *p, struct model_param *out);

/* Adds the tokens that the last forward sent to each expert to the counts of the router biases. */
int modelparams_count(const struct model *m, struct params *p, struct glm_error *err);

#endif
