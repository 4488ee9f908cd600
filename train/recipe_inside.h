/* Private to the recipe: the steps from YAML to what follows from it.
 *
 *     recipe_keys.c    the table
 *     recipe.c         reading: keys, values, defaults; what is unbuilt; the canonical text
 *     recipe_values.c  one value: YAML to a field, and its text
 *     recipe_model.c   the configuration: of a checkpoint, of config.json, or written from ARGS
 *     recipe_check.c   what follows from the values, and contradictions among them */
#ifndef TRAIN_RECIPE_INSIDE_H
#define TRAIN_RECIPE_INSIDE_H

#include "train/recipe.h"
#include "train/yamltree.h"

/* A string that lives as long as the recipe; NULL without memory (err set). */
char *recipe_keep(struct recipe *r, const char *text, struct glm_error *err);
void *recipe_alloc(struct recipe *r, size_t size, struct glm_error *err);
char *recipe_format(struct recipe *r, struct glm_error *err, const char *fmt, ...)
    GLM_PRINTF(3, 4);

/* Sets a field to "absent". */
void recipe_value_clear(struct recipe *r, const struct recipe_key *k);
/* Reads a node into v and the key's field. */
int recipe_value_set(struct recipe *r, struct recipe_value *v, const struct yamltree *n,
    struct glm_error *err);
/* The same from the text of a scalar. */
int recipe_value_default(struct recipe *r, struct recipe_value *v, const char *text,
    enum recipe_origin origin, struct glm_error *err);
/* Sets v to a whole number, or a number, that follows from others. */
int recipe_derive_int(
    struct recipe *r, const char *key, int64_t x, struct glm_error *err);
int recipe_derive_real(
    struct recipe *r, const char *key, double x, struct glm_error *err);
int recipe_derive_text(
    struct recipe *r, const char *key, const char *x, struct glm_error *err);

struct recipe_value *recipe_at(struct recipe *r, const char *key);
bool recipe_given(const struct recipe *r, const char *key);
/* GLM_EFORMAT "path:line: key ARGS.x: …". */
int recipe_refuse(const struct recipe *r, const char *key, struct glm_error *err,
    const char *fmt, ...) GLM_PRINTF(4, 5);

int recipe_resolve_model(struct recipe *r, struct glm_error *err);
int recipe_resolve(struct recipe *r, struct glm_error *err);

#endif
