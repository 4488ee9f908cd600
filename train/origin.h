/* Where a run's model comes from: side files and provenance that every checkpoint of it carries on.
 *
 * From a checkpoint: its config.json, tokenizer and other files, its provenance, its id as parent.
 * From random weights: the configuration. From a checkpoint of the run itself: what that carries,
 * so that a run that was interrupted writes the same as one that was not. */
#ifndef TRAIN_ORIGIN_H
#define TRAIN_ORIGIN_H

#include "ckpt/ckpt.h"
#include "train/recipe.h"

struct origin_file {
    char *path;
    void *data;
    uint64_t bytes;
};

struct origin {
    struct origin_file *file;
    int64_t files;
    struct ckpt_prov *prov;
    int64_t provs;
};

/* own: r is a checkpoint of this run. */
int origin_from(
    struct origin *o, const struct reader *r, bool own, struct glm_error *err);
int origin_random(struct origin *o, const struct recipe *recipe, struct glm_error *err);
/* What the recipe adds: its text as recipe.yaml, its digest. Replaces what is there. */
int origin_recipe(struct origin *o, const struct recipe *recipe, struct glm_error *err);
int origin_prov(
    struct origin *o, const char *key, const char *value, struct glm_error *err);
void origin_clear(struct origin *o); /* harmless on a zeroed one */
/* Files and provenance into a plan; the files' bytes stay ours. */
int origin_apply(const struct origin *o, struct manifest *m, struct glm_error *err);

#endif
