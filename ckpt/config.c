/* config.json: the parts that every family shares.
 *
 * The text is hostile until proven otherwise: duplicate keys are refused (readers disagree on which
 * one counts), integers are range-checked before anything is multiplied, and every refusal names
 * the key. What a family's keys mean is its own reader's business (glm52_config.c). */
#include "ckpt/config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "ckpt/config_keys.h"
#include "ckpt/digest.h"
#include "ckpt/family.h"

enum { BLOCK_MAX = 1 << 20, SHOWN = 64 };

const json_t *config_get(const json_t *json, const char *key)
{
    const json_t *v = json_object_get(json, key);
    return json_is_null(v) ? NULL : v;
}

const char *config_show(const json_t *value, char *buf, size_t size)
{
    const size_t flags = JSON_ENCODE_ANY | JSON_COMPACT | JSON_ENSURE_ASCII;
    const size_t n = value ? json_dumpb(value, buf, size - 1, flags) : 0;
    if (n > size - 1) {
        memcpy(buf + size - 4, "...", 4);
    } else {
        buf[n] = 0;
    }
    return value ? buf : "nothing";
}

static int read_int(const json_t *v, const char *key, int64_t min, int64_t max,
    int64_t *out, struct glm_error *err)
{
    char shown[SHOWN];
    if (!json_is_integer(v) || json_integer_value(v) < min || json_integer_value(v) > max)
        return glm_fail(err, GLM_EFORMAT,
            "key '%s': expected an integer from %lld to %lld, found %s", key,
            (long long)min, (long long)max, config_show(v, shown, sizeof shown));
    *out = json_integer_value(v);
    return 0;
}

int config_int(const json_t *json, const char *key, int64_t min, int64_t max,
    int64_t *out, struct glm_error *err)
{
    const json_t *v = config_get(json, key);
    if (!v)
        return glm_fail(err, GLM_EFORMAT,
            "key '%s' is missing: expected an integer from %lld to "
            "%lld",
            key, (long long)min, (long long)max);
    return read_int(v, key, min, max, out, err);
}

int config_int_or(const json_t *json, const char *key, int64_t min, int64_t max,
    int64_t *out, struct glm_error *err)
{
    const json_t *v = config_get(json, key);
    return v ? read_int(v, key, min, max, out, err) : 0;
}

int config_number_or(const json_t *json, const char *key, double min, double max,
    double *out, struct glm_error *err)
{
    const json_t *v = config_get(json, key);
    char shown[SHOWN];
    if (!v)
        return 0;
    const double x = json_is_number(v) ? json_number_value(v) : NAN;
    if (!(x >= min && x <= max))
        return glm_fail(err, GLM_EFORMAT,
            "key '%s': expected a number from %g to %g, found %s", key, min, max,
            config_show(v, shown, sizeof shown));
    *out = x;
    return 0;
}

int config_bool_or(const json_t *json, const char *key, bool *out, struct glm_error *err)
{
    const json_t *v = config_get(json, key);
    char shown[SHOWN];
    if (!v)
        return 0;
    if (!json_is_boolean(v))
        return glm_fail(err, GLM_EFORMAT, "key '%s': expected true or false, found %s",
            key, config_show(v, shown, sizeof shown));
    *out = json_is_true(v);
    return 0;
}

/* ---- what all families share ------------------------------------------------------------- */

static int read_dtype(struct model_config *c, const json_t *json, struct glm_error *err)
{
    static const struct {
        const char *name;
        enum glm_dtype dtype;
    } types[] = {
        {"bfloat16", GLM_BF16},
        {"float32", GLM_F32},
        {"float16", GLM_F16},
        {"float64", GLM_F64},
        {"float8_e4m3fn", GLM_F8_E4M3},
    };
    const char *key = config_get(json, "dtype") ? "dtype" : "torch_dtype";
    const json_t *v = config_get(json, key);
    char shown[SHOWN];
    c->dtype = GLM_BF16;
    if (!v)
        return 0;
    const char *name = json_is_string(v) ? json_string_value(v) : "";
    if (strncmp(name, "torch.", 6) == 0)
        name += 6;
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (strcmp(types[i].name, name) == 0) {
            c->dtype = types[i].dtype;
            return 0;
        }
    return glm_fail(err, GLM_EFORMAT,
        "key '%s': expected bfloat16, float32, float16, float64 or "
        "float8_e4m3fn, found %s",
        key, config_show(v, shown, sizeof shown));
}

static int read_block(struct model_config *c, const json_t *q, struct glm_error *err)
{
    const json_t *v = config_get(q, "weight_block_size");
    char shown[SHOWN];
    if (!v)
        return 0;
    if (!json_is_array(v) || json_array_size(v) != 2)
        return glm_fail(err, GLM_EFORMAT,
            "key 'quantization_config.weight_block_size': expected "
            "two integers, found %s",
            config_show(v, shown, sizeof shown));
    for (size_t i = 0; i < 2; i++)
        if (read_int(json_array_get(v, i), "quantization_config.weight_block_size", 1,
                BLOCK_MAX, &c->quant_block[i], err)
            != 0)
            return err->code;
    return 0;
}

/* Publishers spell MXFP8 as a method of its own, as ModelOpt's algorithm, or as "fp8" with the
 * block 1 x 32; all become "mxfp8". "fp8" is everything else with block scales, also with
 * power-of-two ones (scale_fmt ue8m0): their format is the same. */
static int read_quantisation(
    struct model_config *c, const json_t *json, struct glm_error *err)
{
    const json_t *q = config_get(json, "quantization_config");
    char shown[SHOWN];
    if (!q)
        return 0;
    if (!json_is_object(q))
        return glm_fail(err, GLM_EFORMAT,
            "key 'quantization_config': expected an object, found %s",
            config_show(q, shown, sizeof shown));
    const json_t *v = config_get(q, "quant_method");
    const char *method = json_is_string(v) ? json_string_value(v) : "";
    const json_t *a = config_get(q, "quant_algo");
    const char *algorithm = json_is_string(a) ? json_string_value(a) : "";
    if (read_block(c, q, err) != 0)
        return err->code;
    const bool mx = strcasecmp(method, "mxfp8") == 0
        || strcasecmp(method, "modelopt_mxfp8") == 0
        || (strncasecmp(method, "modelopt", 8) == 0
            && strcasecmp(algorithm, "mxfp8") == 0)
        || (strcasecmp(method, "fp8") == 0 && c->quant_block[0] == 1
            && c->quant_block[1] == 32);
    if (!mx && strcasecmp(method, "fp8") != 0)
        return glm_fail(err, GLM_EFORMAT,
            "key 'quantization_config.quant_method': expected fp8 or "
            "mxfp8, found %s",
            config_show(v, shown, sizeof shown));
    if (mx && config_get(q, "group_size") && !config_get(q, "weight_block_size")) {
        if (config_int(q, "group_size", 1, BLOCK_MAX, &c->quant_block[1], err) != 0)
            return glm_within(err, "quantization_config");
        c->quant_block[0] = 1;
    }
    memcpy(c->quant_method, mx ? "mxfp8" : "fp8", mx ? sizeof "mxfp8" : sizeof "fp8");
    return 0;
}

/* The key that the JSON reader choked on: the string that ends at the position (a duplicate key),
 * else the last "name": before it. */
static void key_before(const char *text, size_t at, char *out, size_t size)
{
    out[0] = 0;
    if (at > 0 && text[at - 1] == '"')
        at++; /* as if its colon had been read */
    else
        while (at > 0 && text[at - 1] != ':')
            at--;
    if (at == 0)
        return;
    size_t end = at - 1;
    while (end > 0 && text[end - 1] != '"')
        end--;
    size_t begin = end > 0 ? end - 1 : 0;
    while (begin > 0 && text[begin - 1] != '"')
        begin--;
    if (begin > 0 && end - 1 - begin < size && end - 1 > begin) {
        memcpy(out, text + begin, end - 1 - begin);
        out[end - 1 - begin] = 0;
        for (char *p = out; *p; p++)
            if ((unsigned char)*p < ' ' || (unsigned char)*p >= 0x7f)
                *p = '?';
    }
}

static json_t *load(
    const char *path, const char *text, size_t size, struct glm_error *err)
{
    json_error_t e;
    json_t *json = json_loadb(text, size, JSON_REJECT_DUPLICATES, &e);
    if (!json) {
        char key[SHOWN];
        /* What stands in the text is told by the library as it is, escape sequences too. */
        for (char *p = e.text; *p; p++)
            if ((unsigned char)*p < ' ' || (unsigned char)*p >= 0x7f)
                *p = '?';
        key_before(text,
            e.position > 0 && (size_t)e.position <= size ? (size_t)e.position : 0, key,
            sizeof key);
        glm_fail(err, GLM_EFORMAT, "%s: line %d: %s%s%s%s", path, e.line, e.text,
            key[0] ? " (key '" : "", key, key[0] ? "')" : "");
    } else if (!json_is_object(json)) {
        glm_fail(err, GLM_EFORMAT, "%s: expected a JSON object", path);
        json_decref(json);
        json = NULL;
    }
    return json;
}

static int parse_object(struct model_config *c, const json_t *json, struct glm_error *err)
{
    const json_t *type = config_get(json, "model_type");
    char shown[SHOWN];
    const struct table_family *family =
        json_is_string(type) ? family_find(json_string_value(type)) : NULL;
    if (!family)
        return glm_fail(err, GLM_EFORMAT,
            "key 'model_type': expected glm_moe_dsa, found %s",
            config_show(type, shown, sizeof shown));
    memcpy(c->model_type, family->model_type, strlen(family->model_type) + 1);
    if (read_dtype(c, json, err) != 0 || read_quantisation(c, json, err) != 0)
        return err->code;
    return family->config(c, json, err);
}

int config_parse(struct model_config *out, const char *path, const char *text,
    size_t size, struct glm_error *err)
{
    *out = (struct model_config){.pad_token_id = -1};
    json_t *json = load(path, text, size, err);
    if (!json)
        return err->code;
    digest_of(text, size, out->sha256);
    const int rc = parse_object(out, json, err);
    json_decref(json);
    if (rc != 0) {
        config_clear(out);
        glm_within(err, "%s", path);
    }
    return rc;
}

void config_clear(struct model_config *c)
{
    free(c->layer_is_dense);
    free(c->layer_owns_indexer);
    *c = (struct model_config){.pad_token_id = -1};
}
