/* Which gradient is no number. */
#include "train/optimizer_inside.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- gradients that are no numbers ------------------------------------------------------------ */

static double grad_at(const struct optimizer *o, int64_t i, int64_t at)
{
    double room = NAN;
    struct glm_error unused = {0};
    const size_t size = glm_dtype_size(o->p->acc);
    const void *g = o->p->p[i].grad;

    if (!home_is_host(&o->p->home)) {
        g = home_get(
            &o->p->home, (const char *)g + (size_t)at * size, size, &room, &unused);
        at = 0;
        if (g == NULL)
            return NAN;
    }
    return o->p->acc == GLM_F64 ? ((const double *)g)[at]
                                : (double)((const float *)g)[at];
}

static int name_element(const struct optimizer *o, int64_t i, const int64_t at[RECT_AXES],
    double value, struct glm_error *err)
{
    const struct table_entry *e = o->p->p[i].entry;
    char name[512], where[64];

    table_member_name(e, at[0], name, sizeof name);
    if (e->rank < 2)
        snprintf(where, sizeof where, "[%lld]", (long long)at[2]);
    else
        snprintf(where, sizeof where, "[%lld,%lld]", (long long)at[1], (long long)at[2]);
    return glm_fail(err, GLM_EFORMAT,
        "gradient of %s, element %s, is %g; nothing was updated", name, where, value);
}

static int name_first(
    const struct optimizer *o, int64_t i, int64_t tile, struct glm_error *err)
{
    const struct table_entry *e = o->p->p[i].entry;
    const struct rect t = tile_rect(&e->grid, tile);
    const int64_t *d = e->grid.dims;
    int64_t at[RECT_AXES] = {t.lo[0]};

    for (at[1] = t.lo[1]; at[1] < t.hi[1]; at[1]++)
        for (at[2] = t.lo[2]; at[2] < t.hi[2]; at[2]++) {
            const double g = grad_at(o, i, (at[0] * d[1] + at[1]) * d[2] + at[2]);
            if (!isfinite(g))
                return name_element(o, i, at, g, err);
        }
    return glm_fail(err, GLM_EFORMAT,
        "gradient of %s: the sum of its squares overflows; nothing was updated", e->name);
}

int optimizer_check_leaves(const struct optimizer *o, struct glm_error *err)
{
    for (int64_t i = 0; i < o->p->count; i++)
        for (int64_t k = o->first_leaf[i]; k < o->first_leaf[i + 1]; k++)
            if (!isfinite(o->leaves[k]))
                return name_first(o, i, k - o->first_leaf[i], err);
    return 0;
}
