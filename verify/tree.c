/* Hugging Face names as a tree: components between dots are nodes, the last two of a leaf stay
 * together ("gate_proj.weight"), the experts of a layer fold into one node. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "verify/inspect_private.h"

struct tree_node {
    char label[192];
    const char *note;
    struct tree_node *first, *last, *next;
    const struct side_row *row; /* leaf */
    bool derived;
    int64_t count;
    uint64_t bytes;
};

struct tree {
    struct tree_node *nodes; /* an arena of fixed size */
    int64_t used, capacity;
};

static struct tree_node *tree_child(
    struct tree *t, struct tree_node *parent, const char *label)
{
    for (struct tree_node *n = parent->first; n != NULL; n = n->next)
        if (strcmp(n->label, label) == 0 && n->row == NULL)
            return n;
    if (t->used == t->capacity)
        return NULL;
    struct tree_node *n = &t->nodes[t->used++];
    *n = (struct tree_node){0};
    snprintf(n->label, sizeof n->label, "%s", label);
    if (parent->last != NULL)
        parent->last->next = n;
    else
        parent->first = n;
    parent->last = n;
    return n;
}

/* "layers" below "model" has one child a layer; an MTP layer says so. */
static const char *tree_note(const struct side_row *r, const char *label)
{
    char layer[16];
    if (r->entry == NULL || r->entry->where != WHERE_MTP)
        return NULL;
    snprintf(layer, sizeof layer, "%d", r->entry->layer);
    return strcmp(layer, label) == 0 ? "MTP" : NULL;
}

static void tree_row_size(const struct side *s, const struct side_row *r, int64_t *count,
    uint64_t *bytes, bool *derived)
{
    *count = inspect_members(r);
    *bytes = (uint64_t)(r->grid.dims[0] * r->grid.dims[1] * r->grid.dims[2])
        * (uint64_t)glm_dtype_bits(r->dtype) / 8;
    *derived = !s->hf && s->m->tensors[r->tensor].derived;
}

static void tree_label(const struct side_row *r, const char *part, char *out, size_t size)
{
    if (r->stack && strcmp(part, "experts") == 0)
        snprintf(out, size, "experts.[0-%lld]", (long long)r->shape[0] - 1);
    else
        memccpy(out, part, 0, size);
}

static int tree_add(struct tree *t, struct tree_node *root, const struct side *s,
    const struct side_row *r, struct glm_error *err)
{
    char name[192], label[192];
    int64_t count;
    uint64_t bytes;
    bool derived;
    struct tree_node *at = root;
    snprintf(name, sizeof name, "%s", r->name);
    tree_row_size(s, r, &count, &bytes, &derived);
    char *part = name;
    for (char *dot; at != NULL; part = dot + 1) {
        at->count += count;
        at->bytes += bytes;
        dot = strchr(part, '.');
        if (dot == NULL || strchr(dot + 1, '.') == NULL)
            break; /* "gate_proj.weight" or a name without dots: the leaf */
        *dot = '\0';
        tree_label(r, part, label, sizeof label);
        at = tree_child(t, at, label);
        if (at != NULL && at->note == NULL)
            at->note = tree_note(r, part);
    }
    struct tree_node *leaf = at != NULL ? tree_child(t, at, part) : NULL;
    if (leaf == NULL)
        return glm_fail(err, GLM_ENOMEM, "out of memory for the tree of names");
    leaf->row = r;
    leaf->count = count;
    leaf->bytes = bytes;
    leaf->derived = derived;
    return GLM_OK;
}

static void tree_flatten(
    const struct tree_node *n, int depth, struct inspect_node *out, int64_t *used)
{
    for (; n != NULL; n = n->next) {
        struct inspect_node *o = &out[(*used)++];
        *o = (struct inspect_node){.depth = depth,
            .note = n->note,
            .leaf = n->row != NULL,
            .count = n->count,
            .bytes = n->bytes,
            .derived = n->derived};
        memcpy(o->label, n->label, sizeof o->label);
        if (n->row == NULL) {
            tree_flatten(n->first, depth + 1, out, used);
            continue;
        }
        const int skip = n->row->stack ? 1 : 0;
        o->dtype = n->row->dtype;
        o->rank = n->row->rank - skip;
        memcpy(o->shape, n->row->shape + skip, (size_t)o->rank * sizeof *o->shape);
    }
}

int inspect_tree(const struct inspect *in, struct inspect_node **out, int64_t *count,
    struct glm_error *err)
{
    const struct side *s = &in->side;
    struct tree t = {.capacity = 10 * s->count + 16};
    struct tree_node root = {0};
    bool several = false;
    *out = NULL;
    *count = 0;
    t.nodes = calloc((size_t)t.capacity, sizeof *t.nodes);
    if (t.nodes == NULL)
        return glm_fail(err, GLM_ENOMEM, "out of memory for the tree of names");
    for (int64_t i = 0; i < s->count; i++)
        several = several || s->rows[i].section != SECTION_WEIGHT;
    for (int64_t i = 0; i < s->count && err->code == GLM_OK; i++) {
        struct tree_node *at = &root;
        if (several)
            at = tree_child(&t, &root, section_name(s->rows[i].section));
        if (at == NULL)
            glm_fail(err, GLM_ENOMEM, "out of memory for the tree of names");
        else
            tree_add(&t, at, s, &s->rows[i], err);
    }
    if (err->code == GLM_OK && (*out = calloc((size_t)t.used + 1, sizeof **out)) == NULL)
        glm_fail(err, GLM_ENOMEM, "out of memory for the tree of names");
    if (err->code == GLM_OK)
        tree_flatten(root.first, 0, *out, count);
    free(t.nodes);
    return err->code;
}
