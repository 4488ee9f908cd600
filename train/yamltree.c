#include "train/yamltree.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <yaml.h>

struct reading {
    yaml_parser_t parser;
    const char *path;
    int nodes;
    struct glm_error *err;
};

static int refuse(struct reading *r, const yaml_event_t *e, const char *what)
{
    return glm_fail(
        r->err, GLM_EFORMAT, "%s:%zu: %s", r->path, e->start_mark.line + 1, what);
}

/* The next event; the caller deletes it. */
static int next(struct reading *r, yaml_event_t *e)
{
    if (yaml_parser_parse(&r->parser, e))
        return 0;
    if (r->parser.error == YAML_MEMORY_ERROR)
        return glm_fail(r->err, GLM_ENOMEM, "%s: no memory", r->path);
    const size_t line = r->parser.problem_mark.line > r->parser.context_mark.line
        ? r->parser.problem_mark.line
        : r->parser.context_mark.line;
    return glm_fail(r->err, GLM_EFORMAT, "%s:%zu: not YAML: %s", r->path, line + 1,
        r->parser.problem ? r->parser.problem : "unreadable");
}

static struct yamltree *fill(
    struct reading *r, struct yamltree *n, yaml_event_t *e, int depth);

/* The children of a list or map up to its end event. */
static int children(struct reading *r, struct yamltree *n, int depth)
{
    struct yamltree **last = &n->first;
    for (;;) {
        yaml_event_t e;
        char *name = NULL;
        if (next(r, &e) != 0)
            return r->err->code;
        if (e.type == YAML_SEQUENCE_END_EVENT || e.type == YAML_MAPPING_END_EVENT) {
            yaml_event_delete(&e);
            return 0;
        }
        if (n->kind == YAMLTREE_MAP) {
            if (e.type != YAML_SCALAR_EVENT) {
                refuse(r, &e, "a key must be a word");
            } else if (strlen((char *)e.data.scalar.value) != e.data.scalar.length) {
                refuse(r, &e, "a key holds a NUL");
            } else {
                const struct yamltree *twin =
                    yamltree_get(n, (char *)e.data.scalar.value);
                if (twin)
                    glm_fail(r->err, GLM_EFORMAT,
                        "%s:%zu: key '%.100s' is there twice, first in "
                        "line %d",
                        r->path, e.start_mark.line + 1, twin->name, twin->line);
                else if (!(name = strdup((char *)e.data.scalar.value)))
                    glm_fail(r->err, GLM_ENOMEM, "%s: no memory", r->path);
            }
            yaml_event_delete(&e);
            if (r->err->code != GLM_OK || next(r, &e) != 0) {
                free(name);
                return r->err->code;
            }
        }
        struct yamltree *const child = calloc(1, sizeof *child);
        if (!child) {
            free(name);
            yaml_event_delete(&e);
            return glm_fail(r->err, GLM_ENOMEM, "%s: no memory", r->path);
        }
        child->name = name;
        *last = child;
        last = &child->next;
        fill(r, child, &e, depth);
        if (r->err->code != GLM_OK)
            return r->err->code;
    }
}

/* The node that event e begins; deletes the event. */
static struct yamltree *fill(
    struct reading *r, struct yamltree *n, yaml_event_t *e, int depth)
{
    bool marked = false; /* an anchor or a tag */
    n->line = (int)e->start_mark.line + 1;
    switch (e->type) {
    case YAML_SCALAR_EVENT:
        n->kind = YAMLTREE_SCALAR;
        n->quoted = e->data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
        marked = e->data.scalar.anchor || e->data.scalar.tag;
        if (strlen((char *)e->data.scalar.value) != e->data.scalar.length)
            refuse(r, e, "a value holds a NUL");
        else if (!(n->text = strdup((char *)e->data.scalar.value)))
            glm_fail(r->err, GLM_ENOMEM, "%s: no memory", r->path);
        break;
    case YAML_SEQUENCE_START_EVENT:
        n->kind = YAMLTREE_LIST;
        marked = e->data.sequence_start.anchor || e->data.sequence_start.tag;
        break;
    case YAML_MAPPING_START_EVENT:
        n->kind = YAMLTREE_MAP;
        marked = e->data.mapping_start.anchor || e->data.mapping_start.tag;
        break;
    default:
        refuse(r, e, "an alias (*name); write the value out");
        break;
    }
    if (marked)
        refuse(r, e, "an anchor (&name) or tag (!name); recipes have neither");
    else if (depth >= YAMLTREE_MAX_DEPTH)
        refuse(r, e, "nested too deeply");
    else if (++r->nodes > YAMLTREE_MAX_NODES)
        refuse(r, e, "too many values");
    yaml_event_delete(e);
    if (r->err->code == GLM_OK && n->kind != YAMLTREE_SCALAR)
        children(r, n, depth + 1);
    return n;
}

/* Stream start, document start, the root, document end, stream end. */
static int document(struct reading *r, struct yamltree *root)
{
    yaml_event_t e;
    bool seen = false;
    for (;;) {
        if (next(r, &e) != 0)
            return r->err->code;
        switch (e.type) {
        case YAML_STREAM_END_EVENT:
            yaml_event_delete(&e);
            return 0;
        case YAML_STREAM_START_EVENT:
        case YAML_DOCUMENT_END_EVENT:
            yaml_event_delete(&e);
            break;
        case YAML_DOCUMENT_START_EVENT:
            if (seen)
                refuse(r, &e, "a second document; one file is one recipe");
            seen = true;
            yaml_event_delete(&e);
            break;
        default:
            fill(r, root, &e, 0);
            break;
        }
        if (r->err->code != GLM_OK)
            return r->err->code;
    }
}

int yamltree_parse(struct yamltree **out, const char *path, const char *text, size_t size,
    struct glm_error *err)
{
    struct reading r = {.path = path, .err = err};
    *out = NULL;
    if (size > YAMLTREE_MAX_BYTES)
        return glm_fail(err, GLM_EFORMAT, "%s: %zu bytes; a recipe has at most %d", path,
            size, YAMLTREE_MAX_BYTES);
    struct yamltree *const root = calloc(1, sizeof *root);
    if (!root || !yaml_parser_initialize(&r.parser)) {
        free(root);
        return glm_fail(err, GLM_ENOMEM, "%s: no memory", path);
    }
    root->kind = YAMLTREE_MAP;
    root->line = 1;
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)text, size);
    if (document(&r, root) == 0)
        *out = root;
    else
        yamltree_free(root);
    yaml_parser_delete(&r.parser);
    return err->code;
}

void yamltree_free(struct yamltree *n)
{
    while (n) { /* depth is bounded, lists need not be */
        struct yamltree *const after = n->next;
        yamltree_free(n->first);
        free(n->name);
        free(n->text);
        free(n);
        n = after;
    }
}

const struct yamltree *yamltree_get(const struct yamltree *map, const char *name)
{
    for (const struct yamltree *n = map ? map->first : NULL; n; n = n->next)
        if (n->name && strcmp(n->name, name) == 0)
            return n;
    return NULL;
}

bool yamltree_is_null(const struct yamltree *n)
{
    return n->kind == YAMLTREE_SCALAR && !n->quoted
        && (!*n->text || strcmp(n->text, "~") == 0 || strcasecmp(n->text, "null") == 0
            || strcmp(n->text, "None") == 0);
}
