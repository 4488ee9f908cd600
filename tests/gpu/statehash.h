/* A hash of what training changes: to see that two runs ended alike. */
#ifndef TESTS_GPU_STATEHASH_H
#define TESTS_GPU_STATEHASH_H

#include "train/train.h"

/* Of all weights, moments and counts of steps (FNV-1a); 0 with a sentence. */
uint64_t statehash(struct params *p, struct optimizer *o, struct glm_error *err);

#endif
