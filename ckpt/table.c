/* Building the table and finding rows in it.
 *
 * Rows come from the family; here they are copied, given their grid, counted, and hashed by name
 * (open addressing, FNV-1a), because an import looks up 59,585 names. A member of a stack is found
 * by taking the number after ".experts." out of its name; the dot in front keeps "shared_experts."
 * apart. */
#include "ckpt/table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/family.h"
#include "kernels/base/checked.h"

enum { NAME_MAX_LENGTH = 255 };

/* Elements of one tensor and of a model: times 8 bytes they still fit an int64_t. */
static const int64_t elements_max = INT64_C(1) << 58;

static const char experts[] = ".experts.";

struct table_lookup {
    size_t mask;     /* slots - 1, a power of two less one */
    int32_t slots[]; /* index of an entry, -1: free */
};

static uint64_t hash(const char *name, size_t length)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < length; i++)
        h = (h ^ (unsigned char)name[i]) * UINT64_C(0x100000001b3);
    return h ^ h >> 32;
}

static bool is_name(const struct table_entry *e, const char *name, size_t length)
{
    return strncmp(e->name, name, length) == 0 && e->name[length] == 0;
}

static int build_lookup(struct table *t, struct glm_error *err)
{
    size_t slots = 16;
    while (slots < (size_t)t->count * 2)
        slots *= 2;
    t->lookup = malloc(sizeof *t->lookup + slots * sizeof t->lookup->slots[0]);
    if (!t->lookup)
        return glm_fail(
            err, GLM_ENOMEM, "no memory for a table of %lld rows", (long long)t->count);
    t->lookup->mask = slots - 1;
    memset(t->lookup->slots, 0xff, slots * sizeof t->lookup->slots[0]);
    for (int64_t i = 0; i < t->count; i++) {
        size_t at = hash(t->entries[i].name, strlen(t->entries[i].name)) & (slots - 1);
        while (t->lookup->slots[at] >= 0)
            at = (at + 1) & (slots - 1);
        t->lookup->slots[at] = (int32_t)i;
    }
    return 0;
}

/* Room for one more row: capacities are powers of two, so the count alone tells when to grow. */
static int reserve(struct table *t, struct glm_error *err)
{
    if (t->count > 0 && (t->count & (t->count - 1)) != 0)
        return 0;
    const size_t room = t->count > 0 ? (size_t)t->count * 2 : 1;
    struct table_entry *grown = realloc(t->entries, room * sizeof *grown);
    if (!grown)
        return glm_fail(err, GLM_ENOMEM, "no memory for a table of %zu rows", room);
    t->entries = grown;
    return 0;
}

int table_add(struct table *t, const struct table_entry *row, struct glm_error *err)
{
    int64_t elements;
    if (!checked_count(row->shape, row->rank, &elements) || elements > elements_max
        || t->elements > elements_max - elements)
        return glm_fail(err, GLM_EFORMAT,
            "tensor '%s' [%lld,%lld,%lld]: the model's sizes give "
            "more than 2^58 elements",
            row->name, (long long)row->shape[0], (long long)row->shape[1],
            (long long)row->shape[2]);
    if (reserve(t, err) != 0)
        return err->code;
    char *name = strdup(row->name);
    if (!name)
        return glm_fail(err, GLM_ENOMEM, "no memory for the table");
    struct table_entry *e = &t->entries[t->count++];
    *e = *row;
    e->name = name;
    tile_grid_init(&e->grid, e->shape, e->rank, e->stack, e->cut == CUT_COLS);
    t->hf_tensors += table_members(e);
    t->elements += elements;
    return 0;
}

int table_build(
    struct table **out, struct model_config *config, bool drop_mtp, struct glm_error *err)
{
    *out = NULL;
    struct table *t = calloc(1, sizeof *t);
    if (!t) {
        config_clear(config);
        return glm_fail(err, GLM_ENOMEM, "no memory for the table");
    }
    t->config = *config;
    *config = (struct model_config){.pad_token_id = -1};
    if (drop_mtp)
        t->config.num_mtp_layers = 0;
    t->family = family_find(t->config.model_type);
    if (!t->family)
        glm_fail(err, GLM_EFORMAT, "model type '%s' has no table", t->config.model_type);
    else if (t->family->rows(t, err) == 0)
        build_lookup(t, err);
    if (err->code != GLM_OK) {
        table_free(t);
        return err->code;
    }
    *out = t;
    return 0;
}

void table_free(struct table *t)
{
    if (!t)
        return;
    for (int64_t i = 0; i < t->count; i++)
        free((char *)t->entries[i].name);
    free(t->entries);
    free(t->lookup);
    config_clear(&t->config);
    free(t);
}

static const struct table_entry *find_row(
    const struct table *t, const char *name, size_t length)
{
    const struct table_lookup *l = t->lookup;
    for (size_t at = hash(name, length) & l->mask; l->slots[at] >= 0;
         at = (at + 1) & l->mask)
        if (is_name(&t->entries[l->slots[at]], name, length))
            return &t->entries[l->slots[at]];
    return NULL;
}

/* The number behind ".experts.", canonical (no sign, no leading zero); its end in *end. */
static bool member_number(
    const char *p, const char *limit, int64_t *number, const char **end)
{
    const char *q = p;
    int64_t n = 0;
    while (q < limit && *q >= '0' && *q <= '9' && q - p < 9)
        n = n * 10 + (*q++ - '0');
    if (q == p || q == limit || *q != '.' || (*p == '0' && q - p > 1))
        return false;
    *number = n;
    *end = q;
    return true;
}

const struct table_entry *table_find(
    const struct table *t, const char *name, size_t length, int64_t *member)
{
    char whole[NAME_MAX_LENGTH + 1];
    int64_t number;
    const char *end;
    *member = -1;
    if (length == 0 || length > NAME_MAX_LENGTH || memchr(name, 0, length))
        return NULL;
    const struct table_entry *e = find_row(t, name, length);
    if (e)
        return e;
    const char *p = memmem(name, length, experts, sizeof experts - 1);
    if (!p)
        return NULL;
    p += sizeof experts - 1;
    if (!member_number(p, name + length, &number, &end))
        return NULL;
    const size_t head = (size_t)(p - name), tail = (size_t)(name + length - (end + 1));
    memcpy(whole, name, head);
    memcpy(whole + head, end + 1, tail);
    e = find_row(t, whole, head + tail);
    if (!e || !e->stack || number >= e->shape[0])
        return NULL;
    *member = number;
    return e;
}

const struct table_entry *table_alias(
    const struct table *t, const char *name, size_t length)
{
    const char *tied = t->family->tied_name;
    if (!t->config.tie_word_embeddings || !tied || strlen(tied) != length
        || memcmp(tied, name, length) != 0)
        return NULL;
    return find_row(t, t->family->tied_to, strlen(t->family->tied_to));
}

int table_member_name(const struct table_entry *e, int64_t member, char *buf, size_t size)
{
    const char *p = e->stack && member >= 0 ? strstr(e->name, experts) : NULL;
    if (!p)
        return snprintf(buf, size, "%s", e->name);
    p += sizeof experts - 1;
    return snprintf(
        buf, size, "%.*s%lld.%s", (int)(p - e->name), e->name, (long long)member, p);
}

static const char weight[] = ".weight";

int table_scale_name(const char *name, const char *suffix, char *buf, size_t size)
{
    const size_t n = strlen(name), w = sizeof weight - 1;
    if (n < w || strcmp(name + n - w, weight) != 0) {
        if (size > 0)
            buf[0] = 0;
        return -1;
    }
    return snprintf(buf, size, "%.*s%s", (int)(n - w), name, suffix);
}

bool table_scale_of(
    const char *name, size_t length, const char *suffix, char *buf, size_t size)
{
    const size_t s = strlen(suffix), w = sizeof weight;
    if (s == 0 || length <= s || memcmp(name + length - s, suffix, s) != 0
        || length - s > size || size - (length - s) < w)
        return false;
    memcpy(buf, name, length - s);
    memcpy(buf + length - s, weight, w);
    return true;
}

const char *table_kind_name(enum table_kind kind)
{
    static const char *const names[KIND_COUNT] = {
        [KIND_EMBEDDING] = "embedding",
        [KIND_NORM] = "norm",
        [KIND_ATTENTION] = "attention",
        [KIND_INDEXER] = "indexer",
        [KIND_DENSE] = "dense",
        [KIND_ROUTER] = "router",
        [KIND_SHARED_EXPERT] = "shared expert",
        [KIND_EXPERT] = "expert",
        [KIND_HEAD] = "head",
        [KIND_MTP] = "mtp",
    };
    return (unsigned)kind < KIND_COUNT ? names[kind] : "unknown";
}
