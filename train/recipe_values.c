/* One value: from a YAML node to its field, and to the text that stands for it everywhere.
 *
 * The text is canonical: equal values have equal texts, and it is YAML that gives the value again. */
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "train/number.h"
#include "train/recipe_inside.h"

enum { NUMBER = 40, SHOWN = 80 };

struct pool {
    struct pool *next;
    max_align_t data[];
};

void *recipe_alloc(struct recipe *r, size_t size, struct glm_error *err)
{
    struct pool *const p = calloc(1, sizeof *p + size);
    if (!p) {
        glm_fail(err, GLM_ENOMEM, "%s: no memory", r->path ? r->path : "recipe");
        return NULL;
    }
    p->next = r->pool;
    r->pool = p;
    return p->data;
}

char *recipe_keep(struct recipe *r, const char *text, struct glm_error *err)
{
    const size_t size = strlen(text) + 1;
    char *const kept = recipe_alloc(r, size, err);
    if (kept)
        memcpy(kept, text, size);
    return kept;
}

char *recipe_format(struct recipe *r, struct glm_error *err, const char *fmt, ...)
{
    va_list a, b;
    va_start(a, fmt);
    va_copy(b, a);
    const int n = vsnprintf(NULL, 0, fmt, a);
    char *const out = n < 0 ? NULL : recipe_alloc(r, (size_t)n + 1, err);
    if (out)
        vsnprintf(out, (size_t)n + 1, fmt, b);
    va_end(b);
    va_end(a);
    return out;
}

/* A word that YAML reads as it is; everything else is quoted. */
static bool is_plain(const char *s)
{
    if (!*s || strcmp(s, "~") == 0 || strcasecmp(s, "null") == 0
        || strcmp(s, "None") == 0)
        return false;
    for (const char *c = s; *c; c++)
        if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./+-",
                *c))
            return false;
    return s[0] != '-';
}

/* The code point at s (valid UTF-8) if YAML does not take it as it is: controls of ASCII and of
 * Latin 1, the breaks U+2028 and U+2029, and U+FFFE, U+FFFF. Else 0. */
static unsigned unprintable(const char *s)
{
    const unsigned char *u = (const unsigned char *)s;
    if (u[0] < 0x20 || u[0] == 0x7f)
        return u[0];
    if (u[0] == 0xc2 && u[1] < 0xa0)
        return u[1];
    if (u[0] == 0xe2 && u[1] == 0x80 && (u[2] == 0xa8 || u[2] == 0xa9))
        return 0x2000u | (u[2] & 0x3fu);
    if (u[0] == 0xef && u[1] == 0xbf && u[2] >= 0xbe)
        return 0xffc0u | (u[2] & 0x3fu);
    return 0;
}

static size_t bytes_of(unsigned point)
{
    return point >= 0x800 ? 3 : point >= 0x80 ? 2 : 1;
}

/* Length of s as YAML; written to out if that is not NULL. */
static size_t quote(const char *s, char *out)
{
    size_t n = 0;
    const bool plain = is_plain(s);
#define PUT(c) (out ? (void)(out[n] = (c)) : (void)0, n++)
    if (!plain)
        PUT('"');
    for (; *s; s++) {
        const unsigned c = unprintable(s);
        if (c != 0) {
            PUT('\\');
            PUT(c < 0x100 ? 'x' : 'u');
            for (int shift = c < 0x100 ? 4 : 12; shift >= 0; shift -= 4)
                PUT("0123456789abcdef"[c >> shift & 15]);
            s += bytes_of(c) - 1;
        } else {
            if (*s == '"' || *s == '\\')
                PUT('\\');
            PUT(*s);
        }
    }
    if (!plain)
        PUT('"');
#undef PUT
    if (out)
        out[n] = 0;
    return n;
}

static char *quoted(struct recipe *r, const char *s, struct glm_error *err)
{
    char *const out = recipe_alloc(r, quote(s, NULL) + 1, err);
    if (out)
        quote(s, out);
    return out;
}

static const char *shown(const struct yamltree *n, char buf[SHOWN])
{
    if (n->kind != YAMLTREE_SCALAR)
        return n->kind == YAMLTREE_LIST ? "a list" : "a map";
    snprintf(buf, SHOWN, "'%.60s'", n->text);
    for (char *c = buf; *c; c++)
        if (unprintable(c) != 0)
            memset(c, '?', bytes_of(unprintable(c)));
    return buf;
}

static int wrong(const struct recipe *r, const struct recipe_value *v,
    const struct yamltree *n, const char *wanted, struct glm_error *err)
{
    char buf[SHOWN], line[24] = "";
    if (n->line)
        snprintf(line, sizeof line, ":%d", n->line);
    return glm_fail(err, GLM_EFORMAT, "%s%s: key %s.%s: expected %s, found %s",
        n->line ? r->path : "--set", line, recipe_section_name(v->key->section),
        v->key->name, wanted, shown(n, buf));
}

static void *field(struct recipe *r, const struct recipe_key *k)
{
    return k->at == SIZE_MAX ? NULL : (char *)r + k->at;
}

void recipe_value_clear(struct recipe *r, const struct recipe_key *k)
{
    void *const at = field(r, k);
    if (!at)
        return;
    switch (k->type) {
    case RECIPE_INT:
        *(int64_t *)at = RECIPE_NONE;
        break;
    case RECIPE_REAL:
        *(double *)at = (double)NAN;
        break;
    case RECIPE_BOOL:
        *(bool *)at = false;
        break;
    case RECIPE_TEXT:
        *(const char **)at = NULL;
        break;
    default:
        break;
    }
}

/* ---- one kind of value each; every one fills v->text and the field ------------------------- */

static bool read_int(const char *s, int64_t *out)
{
    char *end;
    errno = 0;
    const long long x = strtoll(s, &end, 10);
    *out = x;
    return *s && strspn(s, "+-0123456789") == strlen(s) && !*end && errno == 0;
}

static bool read_real(const char *s, double *out)
{
    char *end;
    *out = strtod(s, &end);
    return *s && strspn(s, "+-.0123456789eE") == strlen(s) && !*end && isfinite(*out);
}

static bool read_bool(const char *s, bool *out)
{
    static const char *const yes[] = {"true", "yes", "on"},
                             *const no[] = {"false", "no", "off"};
    for (int i = 0; i < 3; i++) {
        if (strcasecmp(s, yes[i]) == 0 || strcasecmp(s, no[i]) == 0) {
            *out = strcasecmp(s, yes[i]) == 0;
            return true;
        }
    }
    return false;
}

static int set_int(struct recipe *r, struct recipe_value *v, const struct yamltree *n,
    struct glm_error *err)
{
    const struct recipe_key *const k = v->key;
    char wanted[96];
    int64_t x;
    if (k->max < 9e15)
        snprintf(
            wanted, sizeof wanted, "a whole number from %.0f to %.0f", k->min, k->max);
    else
        snprintf(wanted, sizeof wanted, "a whole number of at least %.0f", k->min);
    if (n->kind != YAMLTREE_SCALAR || !read_int(n->text, &x) || (double)x < k->min
        || (double)x > k->max)
        return wrong(r, v, n, wanted, err);
    if (field(r, k))
        *(int64_t *)field(r, k) = x;
    v->text = recipe_format(r, err, "%lld", (long long)x);
    return err->code;
}

static int set_real(struct recipe *r, struct recipe_value *v, const struct yamltree *n,
    struct glm_error *err)
{
    const struct recipe_key *const k = v->key;
    char wanted[96], number[NUMBER];
    double x;
    snprintf(wanted, sizeof wanted, "a number from %g to %g", k->min, k->max);
    if (n->kind != YAMLTREE_SCALAR || !read_real(n->text, &x) || x < k->min || x > k->max)
        return wrong(r, v, n, wanted, err);
    x += 0.0; /* -0 is 0 */
    if (field(r, k))
        *(double *)field(r, k) = x;
    v->text = recipe_keep(r, number_print(x, number, sizeof number), err);
    return err->code;
}

static int set_bool(struct recipe *r, struct recipe_value *v, const struct yamltree *n,
    struct glm_error *err)
{
    bool x;
    if (n->kind != YAMLTREE_SCALAR || !read_bool(n->text, &x))
        return wrong(r, v, n, "true or false", err);
    if (field(r, v->key))
        *(bool *)field(r, v->key) = x;
    v->text = recipe_keep(r, x ? "true" : "false", err);
    return err->code;
}

/* Whether word is one of "a|b|c". */
static bool among(const char *word, const char *list)
{
    const size_t length = strlen(word);
    for (const char *at = list; *at;) {
        const size_t n = strcspn(at, "|");
        if (n == length && memcmp(at, word, n) == 0)
            return true;
        at += n + (at[n] == '|');
    }
    return false;
}

/* "[a,b]" for a list of scalars. */
static char *joined(struct recipe *r, const struct yamltree *n, struct glm_error *err)
{
    size_t size = 3;
    for (const struct yamltree *c = n->first; c; c = c->next) {
        if (c->kind != YAMLTREE_SCALAR)
            return NULL;
        size += strlen(c->text) + 1;
    }
    char *const out = recipe_alloc(r, size, err);
    if (!out)
        return NULL;
    char *at = out;
    *at++ = '[';
    for (const struct yamltree *c = n->first; c; c = c->next)
        at += sprintf(at, "%s%s", c->text, c->next ? "," : "");
    strcpy(at, "]");
    return out;
}

static int set_text(struct recipe *r, struct recipe_value *v, const struct yamltree *n,
    struct glm_error *err)
{
    const struct recipe_key *const k = v->key;
    char *text = NULL;
    if (n->kind == YAMLTREE_LIST)
        text = joined(r, n, err);
    else if (n->kind == YAMLTREE_SCALAR)
        text = recipe_keep(r, n->text, err);
    if (!text || (k->choices && !among(text, k->choices))) {
        char wanted[160];
        snprintf(wanted, sizeof wanted, "%s", k->choices ? k->choices : "a text");
        return err->code != GLM_OK ? (int)err->code : wrong(r, v, n, wanted, err);
    }
    if (field(r, k))
        *(const char **)field(r, k) = text;
    v->text = quoted(r, text, err);
    return err->code;
}

static int set_list(struct recipe *r, struct recipe_value *v, const struct yamltree *n,
    struct glm_error *err)
{
    struct recipe_list list = {0};
    size_t size = 3;
    if (n->kind == YAMLTREE_MAP)
        return wrong(r, v, n, "a list, or words between spaces", err);
    const size_t room =
        n->kind == YAMLTREE_SCALAR ? strlen(n->text) / 2 + 1 : YAMLTREE_MAX_NODES;
    list.item = recipe_alloc(r, room * sizeof *list.item, err);
    char *words = n->kind == YAMLTREE_SCALAR ? recipe_keep(r, n->text, err) : NULL;
    if (err->code != GLM_OK)
        return err->code;
    if (n->kind == YAMLTREE_SCALAR) {
        char *rest = NULL;
        for (char *w = strtok_r(words, " \t\n", &rest); w;
             w = strtok_r(NULL, " \t\n", &rest))
            list.item[list.count++] = w;
    } else {
        for (const struct yamltree *c = n->first; c; c = c->next) {
            if (c->kind != YAMLTREE_SCALAR)
                return wrong(r, v, c, "a list of words", err);
            if (!(list.item[list.count++] = recipe_keep(r, c->text, err)))
                return err->code;
        }
    }
    for (int i = 0; i < list.count; i++)
        size += quote(list.item[i], NULL) + 2;
    char *const text = recipe_alloc(r, size, err);
    if (!text)
        return err->code;
    char *at = text;
    *at++ = '[';
    for (int i = 0; i < list.count; i++) {
        at += quote(list.item[i], at);
        if (i + 1 < list.count)
            at += sprintf(at, ", ");
    }
    strcpy(at, "]");
    if (field(r, v->key))
        *(struct recipe_list *)field(r, v->key) = list;
    v->text = text;
    return 0;
}

/* ---- GLM.muon_layout: [{tensor: PATTERN, rows: [192, 64], policy: [each, gathered]}, …] ------ */

static const char *const policies[] = {"each", "gathered", "adamw"};

static int layout_entry(struct recipe *r, struct recipe_value *v,
    const struct yamltree *n, struct recipe_layout *out, struct glm_error *err)
{
    if (n->kind != YAMLTREE_MAP)
        return wrong(r, v, n, "a map of tensor, rows and policy", err);
    for (const struct yamltree *c = n->first; c; c = c->next)
        if (strcmp(c->name, "tensor") != 0 && strcmp(c->name, "rows") != 0
            && strcmp(c->name, "policy") != 0)
            return glm_fail(err, GLM_EFORMAT,
                "%s:%d: key GLM.muon_layout: unknown key '%.60s'; an "
                "entry has tensor, rows and policy",
                r->path, c->line, c->name);
    const struct yamltree *const tensor = yamltree_get(n, "tensor"),
                                 *const rows = yamltree_get(n, "rows"),
                                 *const policy = yamltree_get(n, "policy");
    if (!tensor || tensor->kind != YAMLTREE_SCALAR || !*tensor->text)
        return wrong(r, v, tensor ? tensor : n, "tensor: a pattern of tensor names", err);
    if (!(out->tensor = recipe_keep(r, tensor->text, err)))
        return err->code;
    for (const struct yamltree *c = rows ? rows->first : NULL; c; c = c->next) {
        int64_t x;
        if (out->parts == RECIPE_PARTS || c->kind != YAMLTREE_SCALAR
            || !read_int(c->text, &x) || x < 1)
            return wrong(r, v, c, "at most four whole numbers of rows", err);
        out->rows[out->parts++] = x;
    }
    if (rows && rows->kind != YAMLTREE_LIST)
        return wrong(r, v, rows, "rows: a list", err);
    int given = 0;
    const struct yamltree *c =
        policy && policy->kind == YAMLTREE_LIST ? policy->first : policy;
    for (; c; c = policy->kind == YAMLTREE_LIST ? c->next : NULL) {
        size_t p = 0;
        while (p < 3 && (c->kind != YAMLTREE_SCALAR || strcmp(c->text, policies[p]) != 0))
            p++;
        if (p == 3 || given == RECIPE_PARTS)
            return wrong(r, v, c, "each, gathered or adamw, one for each of rows", err);
        out->policy[given++] = (enum recipe_policy)p;
    }
    const bool adamw = given == 1 && out->policy[0] == RECIPE_ADAMW;
    for (int i = 0; i < given && given > 1; i++)
        if (out->policy[i] == RECIPE_ADAMW)
            return wrong(r, v, policy, "adamw alone, for the whole tensor", err);
    if (given && (adamw ? out->parts != 0 : given != out->parts))
        return wrong(
            r, v, policy, "one policy for each of rows; adamw without rows", err);
    return 0;
}

/* "[{tensor: …, rows: [192, 64], policy: [each, each]}]" */
static char *layout_text(
    struct recipe *r, const struct recipe_layout *l, int n, struct glm_error *err)
{
    char *text = recipe_keep(r, "[", err);
    for (int i = 0; i < n && text; i++) {
        char rows[160], policy[80];
        size_t a = 0, b = 0;
        rows[0] = policy[0] = 0;
        for (int p = 0; p < l[i].parts; p++) {
            a += (size_t)sprintf(
                rows + a, "%s%lld", p ? ", " : "", (long long)l[i].rows[p]);
            b += (size_t)sprintf(
                policy + b, "%s%s", p ? ", " : "", policies[l[i].policy[p]]);
        }
        if (!l[i].parts && l[i].policy[0] == RECIPE_ADAMW)
            strcpy(policy, "adamw");
        char *const name = quoted(r, l[i].tensor, err);
        if (!name)
            return NULL;
        text = recipe_format(r, err, "%s%s{tensor: %s, rows: [%s], policy: [%s]}", text,
            i ? ", " : "", name, rows, policy);
    }
    return text ? recipe_format(r, err, "%s]", text) : NULL;
}

static int set_layout(struct recipe *r, struct recipe_value *v, const struct yamltree *n,
    struct glm_error *err)
{
    if (n->kind != YAMLTREE_LIST)
        return wrong(r, v, n, "a list of {tensor, rows, policy}", err);
    struct recipe_layout *const l = recipe_alloc(r, RECIPE_LAYOUTS * sizeof *l, err);
    int count = 0;
    if (!l)
        return err->code;
    for (const struct yamltree *c = n->first; c; c = c->next) {
        if (count == RECIPE_LAYOUTS)
            return wrong(r, v, c, "at most 32 entries", err);
        if (layout_entry(r, v, c, &l[count++], err) != 0)
            return err->code;
    }
    r->optimizer.layout = l;
    r->optimizer.layouts = count;
    v->text = layout_text(r, l, count, err);
    return err->code;
}

static bool is_built(const struct recipe_value *v)
{
    const struct recipe_key *const k = v->key;
    if (k->kind == RECIPE_NEUTRAL)
        return true;
    if (!k->built)
        return k->kind != RECIPE_UNBUILT;
    if (k->type != RECIPE_REAL)
        return among(v->text, k->built);
    const double x = strtod(v->text, NULL), y = strtod(k->built, NULL);
    return !(x < y) && !(x > y);
}

int recipe_value_set(struct recipe *r, struct recipe_value *v, const struct yamltree *n,
    struct glm_error *err)
{
    static int (*const set[])(struct recipe *, struct recipe_value *,
        const struct yamltree *, struct glm_error *) = {
        [RECIPE_INT] = set_int,
        [RECIPE_REAL] = set_real,
        [RECIPE_BOOL] = set_bool,
        [RECIPE_TEXT] = set_text,
        [RECIPE_LIST] = set_list,
        [RECIPE_LAYOUT] = set_layout,
    };
    if (v->key->type == RECIPE_ANY) {
        char buf[SHOWN];
        v->text = n->kind == YAMLTREE_SCALAR ? quoted(r, n->text, err)
                                             : recipe_keep(r, shown(n, buf), err);
    } else {
        set[v->key->type](r, v, n, err);
    }
    if (err->code != GLM_OK)
        return err->code;
    v->line = n->line;
    v->unbuilt = !is_built(v);
    return 0;
}

int recipe_value_default(struct recipe *r, struct recipe_value *v, const char *text,
    enum recipe_origin origin, struct glm_error *err)
{
    char *const kept = recipe_keep(r, text, err);
    if (!kept)
        return err->code;
    const struct yamltree n = {.kind = YAMLTREE_SCALAR, .text = kept};
    if (recipe_value_set(r, v, &n, err) != 0)
        return err->code;
    v->origin = origin;
    return 0;
}

int recipe_derive_text(
    struct recipe *r, const char *key, const char *x, struct glm_error *err)
{
    return recipe_value_default(r, recipe_at(r, key), x, RECIPE_DERIVED, err);
}

int recipe_derive_int(struct recipe *r, const char *key, int64_t x, struct glm_error *err)
{
    char buf[NUMBER];
    snprintf(buf, sizeof buf, "%lld", (long long)x);
    return recipe_derive_text(r, key, buf, err);
}

int recipe_derive_real(struct recipe *r, const char *key, double x, struct glm_error *err)
{
    char buf[NUMBER];
    return recipe_derive_text(r, key, number_print(x, buf, sizeof buf), err);
}
