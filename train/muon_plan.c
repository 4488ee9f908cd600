#include "train/muon_plan.h"

#include <fnmatch.h>
#include <math.h>
#include <string.h>

static const double simple[3] = {3.4445, -4.7750, 2.0315};
static const double quintic[5][3] = {{4.0848, -6.8946, 2.9270}, {3.9505, -6.3029, 2.6377},
    {3.7418, -5.5913, 2.3037}, {2.8769, -3.1427, 1.2046}, {2.8366, -3.0525, 1.2012}};
static const double last[3] = {2, -1.5, 0.5}; /* deepseekv4, behind eight simple steps */

int muon_coefficient_list(const struct optimizer_options *o, double out[MUON_STEPS][3])
{
    const bool v4 = o->muon_coefficients == MUON_DEEPSEEKV4;
    const int steps = o->muon_steps > 0 ? o->muon_steps : v4 ? 10 : 5;

    for (int i = 0; i < steps && i < MUON_STEPS; i++) {
        const double *from = o->muon_coefficients == MUON_QUINTIC ? quintic[i < 5 ? i : 4]
            : v4 && i >= 8                                        ? last
                                                                  : simple;
        memcpy(out[i], from, sizeof out[i]);
    }
    return steps < MUON_STEPS ? steps : MUON_STEPS;
}

int muon_layout_of(const struct table_entry *e, const struct optimizer_options *o)
{
    for (int i = 0; i < o->layouts; i++)
        if (fnmatch(o->layout[i].pattern, e->name, 0) == 0)
            return i;
    return -1;
}

static double rho(enum muon_scale scale, int64_t rows, int64_t cols)
{
    const double r = (double)rows, c = (double)cols;

    switch (scale) {
    case MUON_SPECTRAL:
        return sqrt(fmax(r, c));
    case MUON_SHAPE_SCALING:
        return sqrt(fmax(1, r / c));
    case MUON_UNIT_RMS:
        break;
    }
    return sqrt(r / c);
}

/* The table's own layout. */
static struct muon_layout by_table(const struct table_entry *e)
{
    struct muon_layout l = {.pattern = e->name};

    if (e->optimizer == OPT_MUON_HEADS && e->head_split > 0
        && e->head_split < e->head_rows) {
        l.parts = 2;
        l.rows[0] = e->head_split;
        l.rows[1] = e->head_rows - e->head_split;
    } else if (e->optimizer == OPT_MUON_HEADS) {
        l.parts = 1;
        l.rows[0] = e->head_rows;
    } else if (e->optimizer != OPT_MUON) {
        l.policy[0] = MUON_ADAMW;
    }
    return l;
}

static int check(const struct table_entry *e, const struct muon_layout *l, int64_t rows,
    int64_t *period, struct glm_error *err)
{
    *period = 0;
    if (e->rank < 2)
        return glm_fail(err, GLM_EUSAGE,
            "muon_layout: '%s' matches %s, which is no matrix", l->pattern, e->name);
    if (l->parts < 0 || l->parts > MUON_PARTS)
        return glm_fail(err, GLM_EUSAGE,
            "muon_layout: '%s' has %d parts, expected at most %d", l->pattern, l->parts,
            MUON_PARTS);
    for (int i = 0; i < l->parts; i++) {
        if (l->rows[i] < 1 || l->rows[i] > rows || l->policy[i] == MUON_ADAMW)
            return glm_fail(err, GLM_EUSAGE,
                "muon_layout: '%s': part %d of %s has %lld rows, expected 1 to %lld "
                "under Muon",
                l->pattern, i, e->name, (long long)l->rows[i], (long long)rows);
        *period += l->rows[i];
    }
    if (l->parts > 0 && rows % *period != 0)
        return glm_fail(err, GLM_EUSAGE,
            "muon_layout: '%s': parts of %lld rows together do not fill the %lld rows of "
            "%s",
            l->pattern, (long long)*period, (long long)rows, e->name);
    return 0;
}

int muon_plan(struct muon_plan *out, const struct table_entry *e,
    const struct optimizer_options *o, struct glm_error *err)
{
    const int which = e->optimizer == OPT_ROUTER_BIAS ? -1 : muon_layout_of(e, o);
    struct muon_layout l = which >= 0 ? o->layout[which] : by_table(e);
    const int64_t E = e->grid.dims[0], rows = e->grid.dims[1], cols = e->grid.dims[2];
    int64_t period, first = 0;

    *out = (struct muon_plan){.muon = !(l.policy[0] == MUON_ADAMW && l.parts == 0)};
    if (!out->muon)
        return 0;
    if (check(e, &l, rows, &period, err) != 0)
        return err->code;
    if (l.parts == 0) {
        l.parts = 1;
        l.rows[0] = period = rows;
        l.policy[0] = MUON_EACH;
    }
    const int64_t times = rows / period;
    for (int i = 0; i < l.parts; i++) {
        const bool each = l.policy[i] == MUON_EACH;
        struct muon_call *c = &out->call[out->count++];
        *c = (struct muon_call){.first = first,
            .B = each ? E * times : E,
            .R = each ? l.rows[i] : l.rows[i] * times,
            .batch = each ? period : rows,
            .run = l.rows[i],
            .leap = period};
        c->rho = rho(o->muon_scale, c->R, cols);
        first += l.rows[i];
    }
    return 0;
}
