/* Between tokens.c and the two formats. */
#ifndef TRAIN_TOKENS_INSIDE_H
#define TRAIN_TOKENS_INSIDE_H

#include "train/tokens.h"

/* Fill everything but the counts that tokens.c takes from `start`. A failed one is closed by the
 * caller. */
int tokens_glm_open(struct tokens *t, const char *path, struct glm_error *err);
int tokens_megatron_open(
    struct tokens *t, const char *idx, const char *bin, struct glm_error *err);
/* Every digest of our format. */
int tokens_glm_check(
    const struct tokens *t, const struct glm_events *events, struct glm_error *err);

#endif
