/* Lines and fields of a manifest. */
#include "ckpt/manifest_parse.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/digest.h"
#include "kernels/base/checked.h"

int parse_fail(struct parse *p, const char *fmt, ...)
{
    char what[700];
    va_list args;
    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    for (char *c = what; *c; c++) /* what a hostile file says must not reach a terminal */
        if (((unsigned char)*c < 0x20 || *c == 0x7F))
            *c = '?';
    return glm_fail(p->err, GLM_EFORMAT, "%s: manifest, line %" PRId64 ": %s", p->path,
        p->line, what);
}

int parse_no_memory(struct parse *p)
{
    return glm_fail(p->err, GLM_ENOMEM, "%s: manifest: out of memory", p->path);
}

/* ---- lines and fields ----------------------------------------------------------------------- */

bool parse_next(struct parse *p)
{
    p->line++;
    p->fields = 0;
    if (p->at == p->end)
        return false;
    const char *const stop = memchr(p->at, '\n', (size_t)(p->end - p->at));
    if (!stop) {
        parse_fail(p, "the last line does not end");
        return false;
    }
    p->start = p->at;
    p->start_length = (size_t)(stop - p->at);
    const char *s = p->at;
    p->at = stop + 1;
    for (;;) {
        const char *const tab = memchr(s, '\t', (size_t)(stop - s));
        if (p->fields == FIELDS_MOST) {
            parse_fail(p, "more than %d fields", FIELDS_MOST);
            return false;
        }
        p->f[p->fields++] = (struct field){s, (size_t)((tab ? tab : stop) - s)};
        if (!tab)
            return true;
        s = tab + 1;
    }
}

bool parse_field_is(const struct field *f, const char *word)
{
    return f->length == strlen(word) && memcmp(f->text, word, f->length) == 0;
}

bool parse_line_is(const struct parse *p, const char *word)
{
    return p->fields > 0 && parse_field_is(&p->f[0], word);
}

static bool number_u64(const char *s, size_t n, uint64_t *out)
{
    uint64_t v = 0;
    if (n == 0 || n > 20 || (s[0] == '0' && n > 1))
        return false;
    for (size_t i = 0; i < n; i++)
        if (s[i] < '0' || s[i] > '9' || !checked_mul_u64(v, 10, &v)
            || !checked_add_u64(v, (uint64_t)(s[i] - '0'), &v))
            return false;
    *out = v;
    return true;
}

int parse_u64(struct parse *p, int i, const char *what, uint64_t *out)
{
    if (!number_u64(p->f[i].text, p->f[i].length, out))
        return parse_fail(p, "%s: '%.*s' is not a decimal number", what,
            (int)(p->f[i].length < 40 ? p->f[i].length : 40), p->f[i].text);
    return 0;
}

int parse_i64(struct parse *p, int i, const char *what, int64_t *out)
{
    uint64_t v = 0;
    if (parse_u64(p, i, what, &v) != 0)
        return p->err->code;
    if (v > INT64_MAX)
        return parse_fail(p, "%s: %" PRIu64 " is too big", what, v);
    *out = (int64_t)v;
    return 0;
}

int parse_digest(struct parse *p, int i, unsigned char out[DIGEST_SIZE])
{
    char hex[DIGEST_HEX];
    if (p->f[i].length == DIGEST_HEX - 1) {
        memcpy(hex, p->f[i].text, DIGEST_HEX - 1);
        hex[DIGEST_HEX - 1] = '\0';
        if (digest_from_hex(hex, out))
            return 0;
    }
    return parse_fail(p, "field %d is not a SHA-256 in lower-case hexadecimal", i + 1);
}

int parse_list(struct parse *p, int i, const char *what, int64_t *out, int most)
{
    const char *s = p->f[i].text;
    const char *const end = s + p->f[i].length;
    int n = 0;
    if (parse_field_is(&p->f[i], "-"))
        return 0;
    for (;; s++) {
        const char *const comma = memchr(s, ',', (size_t)(end - s));
        const char *const stop = comma ? comma : end;
        uint64_t v = 0;
        if (n == most || !number_u64(s, (size_t)(stop - s), &v) || v > INT64_MAX) {
            parse_fail(p, "%s: '%.*s' is not a list of at most %d numbers", what,
                (int)(p->f[i].length < 80 ? p->f[i].length : 80), p->f[i].text, most);
            return -1;
        }
        out[n++] = (int64_t)v;
        if (!comma)
            return n;
        s = comma;
    }
}

int parse_line_of(struct parse *p, const char *word, int fields)
{
    if (!parse_line_is(p, word))
        return parse_fail(p, "expected a line '%s'", word);
    if (p->fields != fields)
        return parse_fail(p, "'%s' has %d fields, expected %d", word, p->fields, fields);
    return 0;
}
