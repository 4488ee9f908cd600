/* The parameters of the table, handed to the modules by their names. */
#ifndef TRAIN_BIND_H
#define TRAIN_BIND_H

#include "train/mtp.h"

struct bind {
    const struct table *table;
    const struct model_param *params;
    const struct model_options *options;
};

/* Every parameter has the pointers that its use needs. */
int bind_check(const struct bind *b, struct glm_error *err);
/* A name outside the layers (layer < 0), or what follows "model.layers.N.". */
int bind_param(const struct bind *b, int64_t layer, const char *name,
    struct model_param *out, struct glm_error *err);
int bind_norm(const struct bind *b, int64_t layer, const char *name, double eps,
    struct norm *out, struct glm_error *err);
int bind_layer(
    const struct bind *b, int64_t layer, struct layer *out, struct glm_error *err);
int bind_mtp(const struct bind *b, int64_t layer, struct mtp *out, struct glm_error *err);

#endif
