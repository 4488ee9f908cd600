/* Pipeline layouts: which layers each virtual stage holds. Pure; private to ckpt/ (topology.c).
 *
 * Grammar, as Megatron's: E embedding, t decoder layer, m MTP, L head and loss; '|' ends a stage;
 * "t*18" and "(tt|)*3" repeat; commas and blanks mean nothing. E opens the first stage and L closes
 * the last; a stage may be without layers. Any count of m in one stage means "the MTP layers";
 * without m they go with L (spec/format.md L). */
#ifndef CKPT_LAYOUT_H
#define CKPT_LAYOUT_H

#include <stddef.h>

#include "ckpt/config.h"

struct layout {
    int stages;
    /* [stages + 1]: first layer of each stage; start[stages] = num_hidden_layers */
    int *start;
    int mtp; /* stage of the MTP layers */
};

/* Parses text for `stages` stages. GLM_EUSAGE says what is wrong and what would be valid. */
int layout_parse(struct layout *out, const char *text, const struct model_config *c,
    int stages, struct glm_error *err);
/* The default: stages start at full layers, sum of squared sizes least, then first in order. */
int layout_default(
    struct layout *out, const struct model_config *c, int stages, struct glm_error *err);
void layout_clear(struct layout *l);

/* The canonical string ("Et*18|t*20mL"; m only if the model has MTP layers). Length as snprintf. */
int layout_print(
    const struct layout *l, const struct model_config *c, char *buf, size_t size);

#endif
