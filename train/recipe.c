/* Reading a recipe: which keys are there, the values of all, what this build cannot do. */
#include "train/recipe_inside.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Sections of public recipes besides ours, passed over: they set the environment of a launcher. */
static const char *const passed_over[] = {"ENV_VARS", "TEST_TYPE", "MODE", "METRICS",
    "LAUNCHER", "SLURM", "CONTAINER", "BEFORE_SCRIPT", "AFTER_SCRIPT", "NAME",
    "DESCRIPTION", NULL};
/* Refused unless ignored: a second statement of the model. */
static const char *const refused[] = {"MODEL_CONFIG", "MODEL", NULL};

/* ---- names ------------------------------------------------------------------------------------ */

/* "--num-layers" and "num-layers" are num_layers. Returns buf. */
static const char *plain_name(const char *name, char *buf, size_t size)
{
    name += strncmp(name, "--", 2) == 0 ? 2 : 0;
    snprintf(buf, size, "%s", name);
    for (char *c = buf; *c; c++)
        if (*c == '-')
            *c = '_';
    return buf;
}

static int least(int a, int b)
{
    return a < b ? a : b;
}

/* Insertions, deletions and changes that turn a into b. */
static int edits(const char *a, const char *b)
{
    enum { LONGEST = 64 };
    int row[LONGEST + 1];
    const size_t na = strlen(a), nb = strlen(b);
    if (na > LONGEST || nb > LONGEST)
        return INT_MAX;
    for (size_t j = 0; j <= nb; j++)
        row[j] = (int)j;
    for (size_t i = 1; i <= na; i++) {
        int diagonal = row[0];
        row[0] = (int)i;
        for (size_t j = 1; j <= nb; j++) {
            const int above = row[j];
            row[j] =
                least(least(above, row[j - 1]) + 1, diagonal + (a[i - 1] != b[j - 1]));
            diagonal = above;
        }
    }
    return row[nb];
}

struct nearest {
    const char *word;
    int distance;
};

static void consider(struct nearest *best, const char *word, const char *candidate)
{
    const int d = candidate ? edits(word, candidate) : INT_MAX;
    if (d < best->distance)
        *best = (struct nearest){candidate, d};
}

static bool near_enough(const struct nearest *best)
{
    return best->word && best->distance <= 1 + (int)strlen(best->word) / 3;
}

static struct recipe_value *find(const struct recipe *r, const char *name, int section)
{
    char buf[80];
    plain_name(name, buf, sizeof buf);
    for (int64_t i = 0; i < r->value_count; i++) {
        const struct recipe_key *const k = r->values[i].key;
        if ((section < 0 || (int)k->section == section)
            && (strcmp(k->name, buf) == 0 || (k->alias && strcmp(k->alias, buf) == 0)))
            return &r->values[i];
    }
    return NULL;
}

/* "ARGS.x", "GLM.x" or "x". */
static struct recipe_value *find_path(const struct recipe *r, const char *key)
{
    if (strncmp(key, "ARGS.", 5) == 0)
        return find(r, key + 5, RECIPE_ARGS);
    if (strncmp(key, "GLM.", 4) == 0)
        return find(r, key + 4, RECIPE_GLM);
    return find(r, key, -1);
}

const struct recipe_value *recipe_find(const struct recipe *r, const char *key)
{
    return find_path(r, key);
}

struct recipe_value *recipe_at(struct recipe *r, const char *key)
{
    return find_path(r, key);
}

bool recipe_given(const struct recipe *r, const char *key)
{
    const struct recipe_value *const v = find_path(r, key);
    return v->origin == RECIPE_GIVEN || v->origin == RECIPE_SET;
}

int recipe_refuse(
    const struct recipe *r, const char *key, struct glm_error *err, const char *fmt, ...)
{
    char text[700], where[24] = "";
    const struct recipe_value *const v = find_path(r, key);
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (v->line)
        snprintf(where, sizeof where, "%d:", v->line);
    return glm_fail(err, GLM_EFORMAT, "%s:%s key %s.%s: %s", r->path, where,
        recipe_section_name(v->key->section), v->key->name, text);
}

static int unknown_key(const struct recipe *r, const char *name, int section,
    struct glm_error *err, enum glm_code code, int line)
{
    char buf[80], where[24] = "";
    struct nearest best = {NULL, INT_MAX};
    plain_name(name, buf, sizeof buf);
    const struct recipe_value *const other = find(r, name, -1);
    for (int64_t i = 0; i < r->value_count; i++) {
        if (section >= 0 && (int)r->values[i].key->section != section)
            continue;
        consider(&best, buf, r->values[i].key->name);
        consider(&best, buf, r->values[i].key->alias);
    }
    if (line)
        snprintf(where, sizeof where, "%d:", line);
    if (other)
        return glm_fail(err, code, "%s:%s unknown key %s.%s; it belongs into %s", r->path,
            where, recipe_section_name((enum recipe_section)section), buf,
            recipe_section_name(other->key->section));
    if (near_enough(&best))
        return glm_fail(err, code, "%s:%s unknown key '%s'; did you mean '%s'?", r->path,
            where, buf, best.word);
    return glm_fail(err, code, "%s:%s unknown key '%s'; glm-recipe(5) lists the keys",
        r->path, where, buf);
}

/* ---- sections --------------------------------------------------------------------------------- */

static int read_key(
    struct recipe *r, const struct yamltree *n, int section, struct glm_error *err)
{
    struct recipe_value *const v = find(r, n->name, section);
    if (!v)
        return unknown_key(r, n->name, section, err, GLM_EFORMAT, n->line);
    if (yamltree_is_null(n))
        return 0;
    if (v->origin == RECIPE_GIVEN)
        return glm_fail(err, GLM_EFORMAT,
            "%s:%d: key %s.%s is there twice, first in line %d", r->path, n->line,
            recipe_section_name(v->key->section), v->key->name, v->line);
    v->origin = RECIPE_GIVEN;
    return recipe_value_set(r, v, n, err);
}

static bool is_one_of(const char *word, const char *const *list)
{
    for (; *list; list++)
        if (strcmp(word, *list) == 0)
            return true;
    return false;
}

static bool asked_to_ignore(const struct recipe_options *o, const char *name)
{
    for (int i = 0; i < o->ignores; i++)
        if (strcmp(o->ignore[i], name) == 0)
            return true;
    return false;
}

static int skip_section(struct recipe *r, const struct yamltree *n,
    const struct recipe_options *o, struct glm_error *err)
{
    const bool wrong = is_one_of(n->name, refused);
    if (wrong && !o->allow_unbuilt && !asked_to_ignore(o, n->name))
        return glm_fail(err, GLM_EFORMAT,
            "%s:%d: section %s is not built: it states the model a "
            "second time; put its keys into ARGS, or go on with --ignore-key %s",
            r->path, n->line, n->name, n->name);
    char **const item =
        recipe_alloc(r, (size_t)(r->skipped.count + 1) * sizeof *item, err);
    if (!item)
        return err->code;
    if (r->skipped.count)
        memcpy(item, r->skipped.item, (size_t)r->skipped.count * sizeof *item);
    item[r->skipped.count] = recipe_keep(r, n->name, err);
    r->skipped.item = item;
    r->skipped.count++;
    return err->code;
}

static int read_section(struct recipe *r, const struct yamltree *n,
    const struct recipe_options *o, struct glm_error *err)
{
    int section = -1;
    if (strcmp(n->name, "ARGS") == 0 || strcmp(n->name, "MODEL_ARGS") == 0)
        section = RECIPE_ARGS;
    else if (strcmp(n->name, "GLM") == 0)
        section = RECIPE_GLM;
    if (section < 0 && (is_one_of(n->name, passed_over) || is_one_of(n->name, refused)))
        return skip_section(r, n, o, err);
    if (section < 0) {
        struct nearest best = {NULL, INT_MAX};
        consider(&best, n->name, "ARGS");
        consider(&best, n->name, "GLM");
        for (const char *const *p = passed_over; *p; p++)
            consider(&best, n->name, *p);
        const bool key = find(r, n->name, -1) != NULL;
        return glm_fail(err, GLM_EFORMAT, "%s:%d: unknown section '%.60s'%s%s%s", r->path,
            n->line, n->name,
            key ? "; a key stands under ARGS: or GLM:" : "; did you mean '",
            key                      ? ""
                : near_enough(&best) ? best.word
                                     : "ARGS",
            key ? "" : "'?");
    }
    if (yamltree_is_null(n))
        return 0;
    if (n->kind != YAMLTREE_MAP)
        return glm_fail(err, GLM_EFORMAT, "%s:%d: section %s: expected a map of keys",
            r->path, n->line, n->name);
    for (const struct yamltree *c = n->first; c; c = c->next)
        if (read_key(r, c, section, err) != 0)
            return err->code;
    return 0;
}

/* ---- --set and --ignore-key ------------------------------------------------------------------- */

/* A value of the command line is in no line of the recipe. */
static void no_lines(struct yamltree *n)
{
    for (; n; n = n->next) {
        n->line = 0;
        no_lines(n->first);
    }
}

static int apply_set(struct recipe *r, const char *set, struct glm_error *err)
{
    const char *const equals = strchr(set, '=');
    struct yamltree *n = NULL;
    if (!equals || equals == set)
        return glm_fail(err, GLM_EUSAGE, "--set %.200s: expected KEY=VALUE", set);
    char *const key = strndup(set, (size_t)(equals - set));
    char *const text = recipe_format(r, err, "value: %s", equals + 1);
    if (!key || !text) {
        glm_fail(err, GLM_ENOMEM, "--set %.200s: no memory", set);
        goto out;
    }
    struct recipe_value *const v = find_path(r, key);
    if (!v) {
        unknown_key(r, key, -1, err, GLM_EUSAGE, 0);
        goto out;
    }
    const struct yamltree *value;
    char where[80];
    snprintf(where, sizeof where, "--set %.60s", set);
    if (yamltree_parse(&n, where, text, strlen(text), err) != 0
        || !(value = yamltree_get(n, "value")) || n->first->next) {
        glm_fail(err, GLM_EUSAGE, "--set %.200s: expected one value", set);
        goto out;
    }
    no_lines(n);
    if (yamltree_is_null(value)) { /* takes the recipe's value away */
        recipe_value_clear(r, v->key);
        *v = (struct recipe_value){.key = v->key};
        if (v->key->type == RECIPE_LIST && v->key->at != SIZE_MAX)
            memset((char *)r + v->key->at, 0, sizeof(struct recipe_list));
        if (v->key->type == RECIPE_LAYOUT)
            r->optimizer.layouts = 0;
        goto out;
    }
    if (recipe_value_set(r, v, value, err) == 0)
        v->origin = RECIPE_SET;
    v->line = 0;
out:
    if (err->code == GLM_EFORMAT)
        err->code = GLM_EUSAGE;
    yamltree_free(n);
    free(key);
    return err->code;
}

static int apply_ignore(struct recipe *r, const char *name, struct glm_error *err)
{
    struct recipe_value *const v = find_path(r, name);
    if (v)
        v->ignored = true;
    else if (!is_one_of(name, refused) && !is_one_of(name, passed_over))
        return unknown_key(r, name, -1, err, GLM_EUSAGE, 0);
    return 0;
}

/* An ignored value is as if it were not there: the default takes its place. */
static void drop_ignored(struct recipe *r)
{
    for (int64_t i = 0; i < r->value_count; i++) {
        struct recipe_value *const v = &r->values[i];
        if (!v->unbuilt || !v->ignored || v->key->kind == RECIPE_UNBUILT)
            continue;
        recipe_value_clear(r, v->key);
        *v = (struct recipe_value){.key = v->key, .ignored = true};
    }
}

static int defaults(struct recipe *r, struct glm_error *err)
{
    for (int64_t i = 0; i < r->value_count && err->code == GLM_OK; i++) {
        struct recipe_value *const v = &r->values[i];
        if (v->origin == RECIPE_ABSENT && v->key->def && v->key->kind != RECIPE_MODEL)
            recipe_value_default(r, v, v->key->def, RECIPE_DEFAULT, err);
    }
    return err->code;
}

int recipe_check_built(const struct recipe *r, struct glm_error *err)
{
    char list[640] = "", line[24] = "";
    size_t at = 0;
    int more = 0, first = 0;
    for (int64_t i = 0; i < r->value_count; i++) {
        const struct recipe_value *const v = &r->values[i];
        if (!v->unbuilt || v->ignored || v->origin == RECIPE_ABSENT)
            continue;
        first = first ? first : v->line;
        const int n = snprintf(list + at, sizeof list - at, "%s%s.%s: %.40s",
            at ? ", " : "", recipe_section_name(v->key->section), v->key->name, v->text);
        if (at + (size_t)n + 1 > sizeof list) {
            list[at] = 0;
            more++;
        } else {
            at += (size_t)n;
        }
    }
    if (!at)
        return 0;
    if (more)
        snprintf(list + at, sizeof list - at, ", and more");
    if (first)
        snprintf(line, sizeof line, ":%d", first);
    return glm_fail(err, GLM_EFORMAT,
        "%s%s: changes numbers and is not built: %s; go on without it "
        "by --ignore-key KEY",
        r->path, line, list);
}

/* ---- the canonical text ------------------------------------------------------------------------ */

static int print_text(struct recipe *r, struct glm_error *err)
{
    size_t size = 0;
    FILE *const f = open_memstream(&r->text, &size);
    if (!f)
        return glm_fail(err, GLM_ENOMEM, "%s: no memory", r->path);
    for (int s = RECIPE_ARGS; s <= RECIPE_GLM; s++) {
        fprintf(f, "%s:\n", recipe_section_name((enum recipe_section)s));
        for (int64_t i = 0; i < r->value_count; i++) {
            const struct recipe_value *const v = &r->values[i];
            const bool said = v->origin != RECIPE_ABSENT && v->origin != RECIPE_DERIVED;
            if ((int)v->key->section == s && said && v->key->kind != RECIPE_NEUTRAL
                && !(v->unbuilt && v->ignored))
                fprintf(f, "  %s: %s\n", v->key->name, v->text);
        }
    }
    if (fclose(f) != 0)
        return glm_fail(err, GLM_ENOMEM, "%s: no memory", r->path);
    r->text_size = size;
    digest_of(r->text, size, r->sha256);
    return 0;
}

/* ---- all of it ---------------------------------------------------------------------------------- */

static int start(struct recipe *r, const char *path, struct glm_error *err)
{
    int64_t n = 0;
    while (recipe_keys[n].name)
        n++;
    if (!(r->path = strdup(path)) || !(r->values = calloc((size_t)n, sizeof *r->values)))
        return glm_fail(err, GLM_ENOMEM, "%s: no memory", path);
    r->value_count = n;
    for (int64_t i = 0; i < n; i++) {
        r->values[i].key = &recipe_keys[i];
        recipe_value_clear(r, &recipe_keys[i]);
    }
    return 0;
}

int recipe_parse(struct recipe **out, const char *path, const char *text, size_t size,
    const struct recipe_options *o, struct glm_error *err)
{
    static const struct recipe_options none = {0};
    struct yamltree *root = NULL;
    struct recipe *const r = calloc(1, sizeof *r);
    *out = NULL;
    o = o ? o : &none;
    if (!r)
        return glm_fail(err, GLM_ENOMEM, "%s: no memory", path);
    if (start(r, path, err) != 0 || yamltree_parse(&root, path, text, size, err) != 0)
        goto out;
    if (root->kind != YAMLTREE_MAP) {
        glm_fail(err, GLM_EFORMAT, "%s:1: expected sections ARGS: and GLM:", path);
        goto out;
    }
    for (const struct yamltree *n = root->first; n; n = n->next)
        if (read_section(r, n, o, err) != 0)
            goto out;
    for (int i = 0; i < o->sets; i++)
        if (apply_set(r, o->set[i], err) != 0)
            goto out;
    for (int i = 0; i < o->ignores; i++)
        if (apply_ignore(r, o->ignore[i], err) != 0)
            goto out;
    drop_ignored(r);
    if (!o->allow_unbuilt && recipe_check_built(r, err) != 0)
        goto out;
    if (defaults(r, err) != 0 || recipe_resolve_model(r, err) != 0
        || recipe_resolve(r, err) != 0 || print_text(r, err) != 0)
        goto out;
    *out = r;
out:
    yamltree_free(root);
    if (err->code != GLM_OK)
        recipe_free(r);
    return err->code;
}

int recipe_read(struct recipe **out, const char *path, const struct recipe_options *o,
    struct glm_error *err)
{
    char *const text = malloc(YAMLTREE_MAX_BYTES + 1);
    size_t size = 0;
    *out = NULL;
    FILE *const f = fopen(path, "rb");
    if (!f) {
        glm_fail_errno(err, "%s: open", path);
    } else if (!text) {
        glm_fail(err, GLM_ENOMEM, "%s: no memory", path);
    } else {
        size = fread(text, 1, YAMLTREE_MAX_BYTES + 1, f);
        if (ferror(f))
            glm_fail_errno(err, "%s: read", path);
    }
    if (f)
        fclose(f);
    if (err->code == GLM_OK)
        recipe_parse(out, path, text, size, o, err);
    free(text);
    return err->code;
}

void recipe_free(struct recipe *r)
{
    if (!r)
        return;
    for (void *p = r->pool; p;) { /* a block begins with the next one's address */
        void *const next = *(void **)p;
        free(p);
        p = next;
    }
    config_clear(&r->config);
    free(r->config_text);
    free(r->values);
    free(r->text);
    free(r->path);
    free(r);
}
