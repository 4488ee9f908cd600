/* Reading keys of a config.json: one function per kind of value, each refusing with the key's name.
 *
 * Private to ckpt/: the families' readers (glm52_config.c) use it. json is a json_t object. A
 * missing key and an explicit null are the same thing. All return 0 or GLM_EFORMAT. */
#ifndef CKPT_CONFIG_KEYS_H
#define CKPT_CONFIG_KEYS_H

#include <jansson.h>

#include "ckpt/config.h"

/* The value of key, or NULL if it is absent or null. */
const json_t *config_get(const json_t *json, const char *key);

/* An integer in [min, max]; required. */
int config_int(const json_t *json, const char *key, int64_t min, int64_t max,
    int64_t *out, struct glm_error *err);
/* The same; *out keeps its value (the default) when the key is absent. */
int config_int_or(const json_t *json, const char *key, int64_t min, int64_t max,
    int64_t *out, struct glm_error *err);
/* A finite number in [min, max] or the default. */
int config_number_or(const json_t *json, const char *key, double min, double max,
    double *out, struct glm_error *err);
int config_bool_or(const json_t *json, const char *key, bool *out, struct glm_error *err);

/* A short printable form of a value for sentences: its JSON text, cut. Returns buf. */
const char *config_show(const json_t *value, char *buf, size_t size);

#endif
