/* The manifest as a struct: adding to it and finding in it. Its digests and its text are
 * manifest_text.c's.
 *
 * Arrays grow by doubling at powers of two, so a count tells its own capacity. */
#include "ckpt/manifest.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static const char *const sections[SECTION_COUNT] = {
    [SECTION_WEIGHT] = "weight",
    [SECTION_MASTER] = "master",
    [SECTION_M] = "opt/m",
    [SECTION_V] = "opt/v",
    [SECTION_MOMENTUM] = "opt/momentum",
    [SECTION_TRAIN] = "train",
};

const char *section_name(enum ckpt_section s)
{
    return (unsigned)s < SECTION_COUNT ? sections[s] : "unknown";
}

bool section_find(const char *name, size_t length, enum ckpt_section *out)
{
    for (int s = 0; s < SECTION_COUNT; s++)
        if (strlen(sections[s]) == length && memcmp(sections[s], name, length) == 0) {
            *out = (enum ckpt_section)s;
            return true;
        }
    return false;
}

struct manifest *manifest_new(const struct table *t)
{
    struct manifest *m = calloc(1, sizeof *m);
    if (m)
        m->table = t;
    return m;
}

void manifest_free(struct manifest *m)
{
    if (!m)
        return;
    for (int64_t i = 0; i < m->tensor_count; i++)
        free(m->tensors[i].name);
    for (int64_t i = 0; i < m->file_count; i++)
        free(m->files[i].path);
    for (int64_t i = 0; i < m->prov_count; i++) {
        free(m->prov[i].key);
        free(m->prov[i].value);
    }
    placement_free(m->placement);
    free(m->tensors);
    free(m->pieces);
    free(m->shards);
    free(m->files);
    free(m->prov);
    free(m->lookup);
    free(m);
}

/* The array with room for one more element; NULL: no memory, the old one is untouched. */
static void *grow(void *array, int64_t count, size_t element)
{
    if (count > 0 && (count & (count - 1)) != 0)
        return array;
    const size_t room = count > 0 ? (size_t)count * 2 : 1;
    return realloc(array, room * element);
}

struct ckpt_tensor *manifest_add_tensor(struct manifest *m, const char *name,
    enum ckpt_section section, enum glm_dtype dtype, const int64_t *shape, int rank,
    bool stack, const struct table_entry *entry)
{
    assert(rank >= 0 && rank <= 4);
    struct ckpt_tensor *grown = grow(m->tensors, m->tensor_count, sizeof *grown);
    if (!grown)
        return NULL;
    m->tensors = grown;
    char *copy = strdup(name);
    if (!copy)
        return NULL;
    struct ckpt_tensor *t = &grown[m->tensor_count];
    *t = (struct ckpt_tensor){.name = copy,
        .section = section,
        .dtype = dtype,
        .rank = rank,
        .stack = stack,
        .entry = entry,
        .block = {1, 1},
        .scale = -1};
    for (int i = 0; i < rank; i++)
        t->shape[i] = shape[i];
    tile_grid_init(&t->grid, shape, rank, stack, entry && entry->cut == CUT_COLS);
    m->tensor_count++;
    free(m->lookup);
    m->lookup = NULL;
    return t;
}

struct ckpt_file *manifest_add_file(
    struct manifest *m, const char *path, bool header, const void *data, uint64_t bytes)
{
    struct ckpt_file *grown = grow(m->files, m->file_count, sizeof *grown);
    if (!grown)
        return NULL;
    m->files = grown;
    char *copy = strdup(path);
    if (!copy)
        return NULL;
    struct ckpt_file *f = &grown[m->file_count++];
    *f = (struct ckpt_file){.path = copy, .header = header, .bytes = bytes, .data = data};
    return f;
}

int manifest_add_prov(struct manifest *m, const char *key, const char *value)
{
    struct ckpt_prov *grown = grow(m->prov, m->prov_count, sizeof *grown);
    if (!grown)
        return GLM_ENOMEM;
    m->prov = grown;
    struct ckpt_prov p = {strdup(key), strdup(value)};
    if (!p.key || !p.value) {
        free(p.key);
        free(p.value);
        return GLM_ENOMEM;
    }
    grown[m->prov_count++] = p;
    return 0;
}

static int compare(enum ckpt_section s, const char *name, const struct ckpt_tensor *t)
{
    return s != t->section ? (s < t->section ? -1 : 1) : strcmp(name, t->name);
}

/* qsort_r's order of indices: section, then name. */
static int by_name(const void *a, const void *b, void *tensors)
{
    const struct ckpt_tensor *x = (struct ckpt_tensor *)tensors + *(const int64_t *)a;
    return compare(
        x->section, x->name, (struct ckpt_tensor *)tensors + *(const int64_t *)b);
}

int manifest_index(struct manifest *m, struct glm_error *err)
{
    if (m->lookup || m->tensor_count == 0)
        return 0;
    m->lookup = malloc((size_t)m->tensor_count * sizeof *m->lookup);
    if (!m->lookup)
        return glm_fail(
            err, GLM_ENOMEM, "no memory for %lld tensors", (long long)m->tensor_count);
    for (int64_t i = 0; i < m->tensor_count; i++)
        m->lookup[i] = i;
    qsort_r(m->lookup, (size_t)m->tensor_count, sizeof *m->lookup, by_name, m->tensors);
    return 0;
}

int64_t manifest_find(const struct manifest *m, enum ckpt_section s, const char *name)
{
    if (!m->lookup) {
        for (int64_t i = 0; i < m->tensor_count; i++)
            if (compare(s, name, &m->tensors[i]) == 0)
                return i;
        return -1;
    }
    int64_t lo = 0, hi = m->tensor_count;
    while (lo < hi) {
        const int64_t mid = lo + (hi - lo) / 2;
        const int c = compare(s, name, &m->tensors[m->lookup[mid]]);
        if (c == 0)
            return m->lookup[mid];
        if (c < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return -1;
}
