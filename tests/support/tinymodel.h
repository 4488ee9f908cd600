/* A small model for tests: table, weights by the rules of fixtures/make_tiny.py, gradients. */
#ifndef TESTS_SUPPORT_TINYMODEL_H
#define TESTS_SUPPORT_TINYMODEL_H

#include "train/model.h"

struct tinymodel {
    struct table *table;
    struct model_param *params; /* [table->count]; w and dw are ours to write */
    enum glm_dtype dtype, acc;
};

/* config: the text of a config.json. Weights are the rules' float32 values rounded to dtype. Aborts
 * with a sentence on failure. */
struct tinymodel *tinymodel_new(const char *config, uint32_t seed, bool small_latents,
    enum glm_dtype dtype, bool drop_mtp);
void tinymodel_free(struct tinymodel *t);

/* Elements of row i, the type of its values (F32 for a router bias). */
int64_t tinymodel_count(const struct tinymodel *t, int64_t i);
enum glm_dtype tinymodel_type(const struct tinymodel *t, int64_t i);
void tinymodel_zero_grads(struct tinymodel *t);

/* model_new, aborting with its sentence. */
struct model *tinymodel_model(
    struct tinymodel *t, const struct model_options *o, glm_stream stream);

/* A packed batch of sequences of the given lengths (0 ends them), made from a seed; token 0 and
 * targets of -100 occur. */
struct tinybatch {
    struct model_batch batch;
    int32_t *memory;
};
struct tinybatch tinybatch_new(const int *lengths, int64_t vocab, uint32_t seed);
void tinybatch_free(struct tinybatch *b);

#endif
