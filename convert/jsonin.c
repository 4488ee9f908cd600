/* The walk over one JSON object: see the header. Every sentence names the byte in the file. */
#include "convert/jsonin.h"

#include <jansson.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "kernels/base/utf8.h"

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static void skip_space(struct jsonin *j)
{
    while (j->at < j->size && is_space(j->text[j->at]))
        j->at++;
}

/* The next byte after white space; 0 at the end (NUL is no JSON, so it serves as "other"). */
static char peek(struct jsonin *j)
{
    skip_space(j);
    return j->at < j->size ? j->text[j->at] : '\0';
}

static int unexpected(const struct jsonin *j, const char *wanted, struct glm_error *err)
{
    if (j->at >= j->size)
        return glm_fail(err, GLM_EFORMAT,
            "%s: byte %zu: not JSON: the text ends, %s expected", j->path,
            j->base + j->at, wanted);
    char shown[JSONIN_SHOWN];
    return glm_fail(err, GLM_EFORMAT, "%s: byte %zu: not JSON: found '%s', expected %s",
        j->path, j->base + j->at, jsonin_shown(j->text + j->at, 1, shown), wanted);
}

int jsonin_open(struct jsonin *j, struct glm_error *err)
{
    if (peek(j) != '{')
        return unexpected(j, "'{'", err);
    j->at++;
    j->started = false;
    return 0;
}

/* Moves past a string whose opening quote is at j->at; escapes are only stepped over. */
static int skip_string(struct jsonin *j, size_t cap, struct glm_error *err)
{
    const size_t start = j->at++;
    for (; j->at < j->size; j->at++) {
        const char c = j->text[j->at];
        if (j->at - start > cap)
            return glm_fail(err, GLM_EFORMAT,
                "%s: byte %zu: a string longer than %zu bytes is refused", j->path,
                j->base + start, cap);
        if (c == '"') {
            j->at++;
            return 0;
        }
        if (c == '\\')
            j->at++;
    }
    j->at = j->size;
    return glm_fail(err, GLM_EFORMAT, "%s: byte %zu: not JSON: a string without end",
        j->path, j->base + start);
}

int jsonin_key(
    struct jsonin *j, struct jsonin_slice *key, bool *end, struct glm_error *err)
{
    char c = peek(j);
    *end = false;
    if (c == '}') {
        j->at++;
        *end = true;
        return 0;
    }
    if (j->started) {
        if (c != ',')
            return unexpected(j, "',' or '}'", err);
        j->at++;
        c = peek(j);
    }
    if (c != '"')
        return unexpected(j, "a key in quotes", err);
    const size_t start = j->at;
    if (skip_string(j, JSONIN_MAX_STRING, err) != 0)
        return err->code;
    *key = (struct jsonin_slice){j->text + start, j->at - start, j->base + start};
    if (peek(j) != ':')
        return unexpected(j, "':'", err);
    j->at++;
    j->started = true;
    return 0;
}

static int too_long(const struct jsonin *j, const char *name, size_t start, size_t cap,
    struct glm_error *err)
{
    return glm_fail(err, GLM_EFORMAT,
        "%s: byte %zu: the entry of '%s' is longer than %zu bytes, which no tensor needs",
        j->path, j->base + start, name, cap);
}

/* Moves past {...} or [...]; brackets of the two kinds are told apart by the library later. */
static int skip_nested(
    struct jsonin *j, size_t cap, const char *name, struct glm_error *err)
{
    const size_t start = j->at;
    int depth = 0;
    while (j->at < j->size) {
        const char c = j->text[j->at];
        if (j->at - start >= cap)
            return too_long(j, name, start, cap, err);
        if (c == '"') {
            if (skip_string(j, cap, err) != 0)
                return err->code;
            continue;
        }
        j->at++;
        if ((c == '{' || c == '[') && ++depth > JSONIN_MAX_DEPTH)
            return glm_fail(err, GLM_EFORMAT,
                "%s: byte %zu: the entry of '%s' nests deeper than %d levels", j->path,
                j->base + j->at - 1, name, JSONIN_MAX_DEPTH);
        if ((c == '}' || c == ']') && --depth == 0)
            return 0;
    }
    return glm_fail(err, GLM_EFORMAT,
        "%s: byte %zu: not JSON: the entry of '%s' has no end", j->path, j->base + start,
        name);
}

int jsonin_value(struct jsonin *j, size_t cap, const char *name,
    struct jsonin_slice *value, struct glm_error *err)
{
    const char c = peek(j);
    const size_t start = j->at;
    if (c == '{' || c == '[') {
        if (skip_nested(j, cap, name, err) != 0)
            return err->code;
    } else if (c == '"') {
        if (skip_string(j, cap, err) != 0)
            return err->code;
    } else {
        while (j->at < j->size && !is_space(j->text[j->at])
            && !strchr(",}]", j->text[j->at])) {
            if (j->at - start >= cap)
                return too_long(j, name, start, cap, err);
            j->at++;
        }
        if (j->at == start)
            return unexpected(j, "a value", err);
    }
    *value = (struct jsonin_slice){j->text + start, j->at - start, j->base + start};
    return 0;
}

int jsonin_close(struct jsonin *j, struct glm_error *err)
{
    skip_space(j);
    return j->at < j->size ? unexpected(j, "only white space after the object", err) : 0;
}

void *jsonin_load(const struct jsonin *j, const struct jsonin_slice *s, const char *name,
    struct glm_error *err)
{
    json_error_t e;
    json_t *v =
        json_loadb(s->text, s->size, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &e);
    if (v)
        return v;
    const size_t at = s->at + (e.position > 0 ? (size_t)e.position : 0);
    char shown[JSONIN_SHOWN];
    const enum json_error_code why = json_error_code(&e);
    if (why == json_error_out_of_memory)
        glm_fail(err, GLM_ENOMEM, "%s: no memory for the entry of '%s'", j->path, name);
    else if (why == json_error_numeric_overflow)
        glm_fail(err, GLM_EFORMAT,
            "%s: byte %zu: '%s': a number beyond what 64 bits hold", j->path, at, name);
    else if (why == json_error_duplicate_key)
        glm_fail(err, GLM_EFORMAT, "%s: byte %zu: '%s': a key is given twice", j->path,
            at, name);
    else if (why == json_error_null_character || why == json_error_null_byte_in_key)
        glm_fail(
            err, GLM_EFORMAT, "%s: byte %zu: '%s': a NUL character", j->path, at, name);
    else
        glm_fail(err, GLM_EFORMAT, "%s: byte %zu: '%s': not JSON: %s", j->path, at, name,
            jsonin_shown(e.text, strlen(e.text), shown));
    return NULL;
}

/* A string that stands for itself: no escapes, no control characters. */
static bool is_plain(const char *text, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (text[i] == '\\' || (unsigned char)text[i] < 0x20)
            return false;
    return true;
}

int jsonin_string(const struct jsonin *j, const struct jsonin_slice *s, char *buf,
    size_t *length, struct glm_error *err)
{
    if (s->size < 2 || s->text[0] != '"')
        return glm_fail(
            err, GLM_EFORMAT, "%s: byte %zu: a string expected", j->path, s->at);
    if (s->size - 2 > JSONIN_MAX_STRING)
        return glm_fail(err, GLM_EFORMAT,
            "%s: byte %zu: a string of %zu bytes is refused", j->path, s->at,
            s->size - 2);
    /* The common case costs a copy only. Decoding never makes a string longer. */
    if (is_plain(s->text + 1, s->size - 2)) {
        *length = s->size - 2;
        memcpy(buf, s->text + 1, *length);
        buf[*length] = '\0';
        return 0;
    }
    char shown[JSONIN_SHOWN];
    json_t *v = jsonin_load(j, s, jsonin_shown(s->text + 1, s->size - 2, shown), err);
    if (!v)
        return err->code;
    *length = json_string_length(v);
    memcpy(buf, json_string_value(v), *length);
    buf[*length] = '\0';
    json_decref(v);
    return 0;
}

bool jsonin_utf8(const char *text, size_t size, size_t *bad)
{
    const unsigned char *p = (const unsigned char *)text;
    size_t i = 0;
    while (i < size) {
        uint64_t word;
        if (size - i >= sizeof word) { /* eight plain bytes at a time */
            memcpy(&word, p + i, sizeof word);
            if ((word & UINT64_C(0x8080808080808080)) == 0) {
                i += sizeof word;
                continue;
            }
        }
        const size_t n = utf8_sequence(p + i, size - i);
        if (n == 0) {
            *bad = i;
            return false;
        }
        i += n;
    }
    return true;
}

const char *jsonin_shown(const char *name, size_t length, char buf[JSONIN_SHOWN])
{
    size_t at = 0;
    for (size_t i = 0; i < length; i++) {
        const unsigned char c = (unsigned char)name[i];
        if (at + 8 > JSONIN_SHOWN) { /* room for one escape and the dots */
            memcpy(buf + at, "...", 3);
            at += 3;
            break;
        }
        if (c >= 0x20 && c < 0x7f)
            buf[at++] = (char)c;
        else
            at += (size_t)snprintf(buf + at, 5, "\\x%02x", c);
    }
    buf[at] = '\0';
    return buf;
}
