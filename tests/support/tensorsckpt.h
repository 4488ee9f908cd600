/* A checkpoint made of the arrays in memory that train/ lists, through the library's own writer. */
#ifndef TESTS_SUPPORT_TENSORSCKPT_H
#define TESTS_SUPPORT_TENSORSCKPT_H

#include "train/tensors.h"

/* config: fixtures/configs/<config>.json. dir must not exist. Section train must be sorted by name. */
int tensorsckpt_write(const char *dir, const char *config, const struct train_tensors *t,
    const struct topology *topology, struct glm_error *err);

#endif
