#include "verify/findings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *finding_kind_name(enum finding_kind kind)
{
    static const char *const names[FINDING_KINDS] = {
        [FINDING_INDEX] = "index",
        [FINDING_MISSING] = "missing",
        [FINDING_LENGTH] = "length",
        [FINDING_TILE] = "tile",
        [FINDING_CHUNK] = "chunk",
        [FINDING_STRUCTURE] = "structure",
        [FINDING_EXTRA] = "extra",
        [FINDING_UNREADABLE] = "unreadable",
    };
    return names[kind];
}

void findings_init(struct findings *f)
{
    *f = (struct findings){0};
    pthread_mutex_init(&f->lock, NULL);
}

void findings_clear(struct findings *f)
{
    for (int64_t i = 0; i < f->count; i++)
        free(f->items[i]);
    free(f->items);
    f->items = NULL;
    f->count = f->capacity = 0;
}

int64_t findings_total(const struct findings *f)
{
    int64_t n = 0;
    for (int k = 0; k < FINDING_KINDS; k++)
        n += f->by_kind[k];
    return n;
}

static int finding_compare(const void *pa, const void *pb)
{
    const struct finding *a = *(struct finding *const *)pa,
                         *b = *(struct finding *const *)pb;
    if (a->shard != b->shard)
        return a->shard < b->shard ? -1 : 1;
    const int file = strcmp(a->file, b->file);
    if (file != 0)
        return file;
    if (a->offset != b->offset)
        return a->offset < b->offset ? -1 : 1;
    if (a->kind != b->kind)
        return a->kind < b->kind ? -1 : 1;
    if (a->tile != b->tile)
        return a->tile < b->tile ? -1 : 1;
    return strcmp(a->text, b->text);
}

void findings_sort(struct findings *f)
{
    if (f->count > 1)
        qsort(f->items, (size_t)f->count, sizeof *f->items, finding_compare);
    while (f->count > FINDINGS_KEPT) {
        free(f->items[--f->count]);
        f->dropped++;
    }
}

int findings_add(struct findings *f, const struct finding *item, struct glm_error *err)
{
    struct finding *copy = malloc(sizeof *copy);
    int rc = GLM_OK;
    pthread_mutex_lock(&f->lock);
    /* Twice the bound before sorting, so that a flood costs one sort per FINDINGS_KEPT. */
    if (f->count == 2 * FINDINGS_KEPT)
        findings_sort(f);
    if (f->count == f->capacity && copy != NULL) {
        const int64_t capacity = f->capacity == 0 ? 64 : 2 * f->capacity;
        struct finding **items = realloc(f->items, (size_t)capacity * sizeof *items);
        if (items != NULL) {
            f->items = items;
            f->capacity = capacity;
        }
    }
    if (copy == NULL || f->count == f->capacity) {
        rc = glm_fail(
            err, GLM_ENOMEM, "out of memory for %lld findings", (long long)f->count + 1);
        free(copy);
    } else {
        *copy = *item;
        f->items[f->count++] = copy;
    }
    f->by_kind[item->kind]++;
    pthread_mutex_unlock(&f->lock);
    return rc;
}

void finding_axes(int rank, bool stack, const struct rect *at, int *out_rank,
    int64_t lo[4], int64_t hi[4])
{
    /* Matrix form keeps the last `rank` axes of what it was made from, up to rank 2; a stack and a
     * higher rank are seen as [E,R,C]. */
    const int r = rank >= 3 || stack ? 3 : rank;
    const int skip = RECT_AXES - r;
    *out_rank = r;
    for (int i = 0; i < r; i++) {
        lo[i] = at->lo[skip + i];
        hi[i] = at->hi[skip + i];
    }
}

int finding_range(int rank, const int64_t *lo, const int64_t *hi, char *buf, size_t size)
{
    int n = snprintf(buf, size, "[");
    for (int i = 0; i < rank; i++)
        n +=
            snprintf(n < (int)size ? buf + n : NULL, n < (int)size ? size - (size_t)n : 0,
                "%s%lld:%lld", i > 0 ? ", " : "", (long long)lo[i], (long long)hi[i]);
    n += snprintf(
        n < (int)size ? buf + n : NULL, n < (int)size ? size - (size_t)n : 0, "]");
    return n;
}

/* A member's name of any tensor of a stack: the weight's, or its scale's, by the same pattern. */
static void finding_member(struct finding *f, const struct ckpt_tensor *t, int64_t member)
{
    char weight[192];
    if (t->entry == NULL)
        return;
    table_member_name(t->entry, member, weight, sizeof weight);
    if (strcmp(t->entry->name, t->name) == 0) {
        snprintf(f->member, sizeof f->member, "%s", weight);
        return;
    }
    const char *const suffix = strrchr(t->name, '.');
    if (suffix == NULL
        || table_scale_name(weight, suffix, f->member, sizeof f->member) < 0)
        f->member[0] = '\0';
}

void finding_place(
    struct finding *f, const struct ckpt_tensor *t, int64_t tile, const struct rect *at)
{
    snprintf(f->tensor, sizeof f->tensor, "%s", t->name);
    f->section = section_name(t->section);
    f->tile = tile;
    finding_axes(t->rank, t->stack, at, &f->rank, f->lo, f->hi);
    f->member[0] = '\0';
    if (t->stack && rect_len(at, 0) == 1)
        finding_member(f, t, at->lo[0]);
}
