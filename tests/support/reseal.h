/* One bit of a checkpoint changed so that no digest tells: all are computed again and all is sealed. */
#ifndef TESTS_SUPPORT_RESEAL_H
#define TESTS_SUPPORT_RESEAL_H

#include "ckpt/manifest.h"

/* Flips bit `bit` (0: the lowest) of element `element` (row-major) of a stored tensor, in place: the
 * checkpoint is written anew beside ckpt and takes its place. */
int reseal_flip(const char *ckpt, enum ckpt_section section, const char *tensor,
    int64_t element, int bit, struct glm_error *err);

#endif
