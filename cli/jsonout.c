#include "cli/jsonout.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "kernels/base/utf8.h"

void jsonout_init(struct jsonout *j)
{
    *j = (struct jsonout){.root = json_object()};
    j->failed = j->root == NULL;
}

void jsonout_clear(struct jsonout *j)
{
    json_decref(j->root); /* NULL is harmless */
    *j = (struct jsonout){0};
}

static int set(json_t *to, const char *key, json_t *value)
{
    char *const name = utf8_mended(key);
    const int rc = name != NULL ? json_object_set_new(to, name, value) : -1;
    if (name == NULL)
        json_decref(value);
    free(name);
    return rc;
}

/* Takes over value. */
static json_t *put(struct jsonout *j, json_t *to, const char *key, json_t *value)
{
    if (to == NULL)
        to = j->root;
    const int rc = j->failed ? -1
        : key == NULL        ? json_array_append_new(to, value)
                             : set(to, key, value);
    if (j->failed)
        json_decref(value);
    if (rc == 0)
        return value;
    if (!j->failed)
        j->failed_key = key;
    j->failed = true;
    return NULL;
}

void jsonout_str(struct jsonout *j, json_t *to, const char *key, const char *value)
{
    char *const text = value != NULL ? utf8_mended(value) : NULL;
    put(j, to, key,
        value == NULL      ? json_null()
            : text != NULL ? json_string(text)
                           : NULL);
    free(text);
}

void jsonout_int(struct jsonout *j, json_t *to, const char *key, int64_t value)
{
    put(j, to, key, json_integer((json_int_t)value));
}

void jsonout_uint(struct jsonout *j, json_t *to, const char *key, uint64_t value)
{
    put(j, to, key, value <= INT64_MAX ? json_integer((json_int_t)value) : NULL);
}

void jsonout_real(struct jsonout *j, json_t *to, const char *key, double value)
{
    put(j, to, key, isfinite(value) ? json_real(value) : json_null());
}

void jsonout_bool(struct jsonout *j, json_t *to, const char *key, bool value)
{
    put(j, to, key, json_boolean(value));
}

void jsonout_digest(
    struct jsonout *j, json_t *to, const char *key, const unsigned char value[32])
{
    static const char digits[] = "0123456789abcdef";
    char hex[65];
    for (int i = 0; i < 32; i++) {
        hex[2 * i] = digits[value[i] >> 4];
        hex[2 * i + 1] = digits[value[i] & 15];
    }
    hex[64] = '\0';
    jsonout_str(j, to, key, hex);
}

json_t *jsonout_object(struct jsonout *j, json_t *to, const char *key)
{
    return put(j, to, key, json_object());
}

json_t *jsonout_array(struct jsonout *j, json_t *to, const char *key)
{
    return put(j, to, key, json_array());
}

int jsonout_print(struct jsonout *j, FILE *out, struct glm_error *err)
{
    if (j->failed)
        return glm_fail(err, GLM_ENOMEM, "JSON output: key '%s' cannot be stored",
            j->failed_key != NULL ? j->failed_key : "(list element)");
    errno = 0;
    if (json_dumpf(j->root, out, JSON_INDENT(2) | JSON_PRESERVE_ORDER) != 0
        || fputc('\n', out) < 0)
        return glm_fail_errno(err, "JSON output: write");
    return 0;
}
