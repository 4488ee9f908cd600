/* Whether pieces cover a tensor exactly once. */
#include "ckpt/manifest_text.h"

#include <inttypes.h>
#include <stdlib.h>

/* Rows, columns, experts: the order in which the cuts nest. */
static const int cover_axis[RECT_AXES] = {1, 2, 0};

static int cover_order(const void *a, const void *b)
{
    const struct rect *const x = a, *const y = b;
    for (int i = 0; i < RECT_AXES; i++) {
        const int axis = cover_axis[i];
        if (x->lo[axis] != y->lo[axis])
            return x->lo[axis] < y->lo[axis] ? -1 : 1;
    }
    return 0;
}

/* Walks the sorted rectangles: along the innermost axis each begins where the one before ended; at
 * the end of an axis the next one out moves on, and within a run the outer intervals are the same. */
static bool cover_chain(const struct rect *r, int64_t n, const int64_t dims[RECT_AXES])
{
    int64_t due[RECT_AXES] = {
        0, 0, 0}; /* where the next rectangle must begin, by nesting level */
    for (int64_t i = 0; i < n; i++) {
        int level = RECT_AXES - 1;
        for (int k = 0; k < RECT_AXES; k++)
            if (r[i].lo[cover_axis[k]] != due[k])
                return false;
        for (int k = 0; k < level;
             k++) /* a run that is under way keeps its outer intervals */
            if (due[level] != 0 || (k == 0 && due[1] != 0))
                if (r[i].hi[cover_axis[k]] != r[i - 1].hi[cover_axis[k]])
                    return false;
        due[level] = r[i].hi[cover_axis[level]];
        while (level > 0 && due[level] == dims[cover_axis[level]]) {
            due[level] = 0;
            level--;
            due[level] = r[i].hi[cover_axis[level]];
        }
    }
    return n > 0 && due[0] == dims[cover_axis[0]] && due[1] == 0 && due[2] == 0;
}

int manifest_cover(const struct ckpt_tensor *t, const struct ckpt_piece *pieces,
    int64_t n, struct glm_error *err)
{
    const int64_t tiles = tile_count(&t->grid);
    if (t->derived || tiles == 0) {
        if (n != 0)
            return glm_fail(err, GLM_EFORMAT,
                "tensor '%s' has %" PRId64 " pieces, expected none", t->name, n);
        return 0;
    }
    struct rect *const r = malloc((size_t)(n > 0 ? n : 1) * sizeof *r);
    if (!r)
        return glm_fail(err, GLM_ENOMEM, "tensor '%s': out of memory", t->name);
    for (int64_t i = 0; i < n; i++)
        r[i] = pieces[i].at;
    qsort(r, (size_t)n, sizeof *r, cover_order);
    if (!cover_chain(r, n, t->grid.dims))
        glm_fail(err, GLM_EFORMAT,
            "tensor '%s': its %" PRId64 " pieces do not cover it exactly once", t->name,
            n);
    free(r);
    return err->code;
}
