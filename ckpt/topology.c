/* A topology checked against a table, and the cell that owns each tile.
 *
 * Two cuts are told apart (spec/format.md B). The compute slice is what a rank works on: an equal
 * share of the cut axis (padded shares of the vocabulary). The storage cut is made of whole tiles:
 * a tile belongs to the rank whose compute slice holds its first element. Tiles being intervals on
 * each axis, what a rank stores is an interval too, so every cell's part is one rectangle, for any
 * shape and any number of ranks, and every tile has exactly one owner. */
#include "ckpt/topology.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/layout.h"

enum { AXIS_MAX = 1 << 20, CELLS_MAX = 1 << 24, STAGES_MAX = 1 << 16, VOCAB_STEP = 128 };

struct placement {
    const struct table *table;
    struct topology topo; /* every axis >= 1, layout canonical */
    struct layout layout;
};

static int64_t ceil_div(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* ---- checks --------------------------------------------------------------------------------- */

static int64_t gcd(int64_t a, int64_t b)
{
    while (b != 0) {
        const int64_t r = a % b;
        a = b;
        b = r;
    }
    return a;
}

/* Axis of the matrix that a row's cut divides; -1 for none. */
static int cut_axis(enum table_cut cut)
{
    switch (cut) {
    case CUT_ROWS:
    case CUT_VOCAB:
        return 1;
    case CUT_COLS:
        return 2;
    case CUT_NONE:
        break;
    }
    return -1;
}

/* How many equal slices of whole units row e allows; 0: any number. */
static int64_t shares(const struct table_entry *e)
{
    return e->cut == CUT_NONE || e->cut == CUT_VOCAB
        ? 0
        : e->grid.dims[cut_axis(e->cut)] / e->unit;
}

/* "1, 2, 4": the divisors of n, cut with "..." when buf is full. */
static const char *divisors(int64_t n, char *buf, size_t size)
{
    size_t at = 0;
    buf[0] = 0;
    for (int64_t d = 1; d <= n && d <= AXIS_MAX; d++) {
        if (n % d != 0)
            continue;
        const int k =
            snprintf(buf + at, size - at, "%s%lld", d > 1 ? ", " : "", (long long)d);
        if (k < 0 || (size_t)k >= size - at) {
            snprintf(buf + (at < size - 4 ? at : size - 4), 4, "...");
            break;
        }
        at += (size_t)k;
    }
    return buf;
}

enum axis { AXIS_TP, AXIS_ETP, AXIS_EP };

static int64_t axis_shares(const struct table_entry *e, enum axis axis)
{
    if (axis == AXIS_TP)
        return e->stack ? 0 : shares(e);
    if (!e->stack)
        return 0;
    return axis == AXIS_EP ? e->shape[0] : shares(e);
}

static int check_axis(const struct table *t, enum axis axis, int n, struct glm_error *err)
{
    static const char *const names[] = {"tp", "etp", "ep"};
    const struct table_entry *first = NULL;
    int64_t all = 0;
    char valid[256];
    for (int64_t i = 0; i < t->count; i++) {
        const int64_t k = axis_shares(&t->entries[i], axis);
        all = gcd(all, k);
        if (!first && k % n != 0)
            first = &t->entries[i];
    }
    if (!first)
        return 0;
    const int64_t k = axis_shares(first, axis);
    if (axis == AXIS_EP)
        return glm_fail(err, GLM_EUSAGE,
            "ep %d does not divide the %lld routed experts; valid are "
            "%s",
            n, (long long)k, divisors(all, valid, sizeof valid));
    return glm_fail(err, GLM_EUSAGE,
        "%s %d does not divide '%s': %lld %s of %lld units of %lld; "
        "valid are %s",
        names[axis], n, first->name, (long long)first->grid.dims[cut_axis(first->cut)],
        first->cut == CUT_COLS ? "columns" : "rows", (long long)k, (long long)first->unit,
        divisors(all, valid, sizeof valid));
}

static int normalise(struct topology *t, struct glm_error *err)
{
    const struct {
        const char *name;
        int *value;
    } axes[] = {
        {"tp", &t->tp},
        {"pp", &t->pp},
        {"vpp", &t->vpp},
        {"ep", &t->ep},
        {"etp", &t->etp},
    };
    for (size_t i = 0; i < sizeof axes / sizeof axes[0]; i++) {
        if (*axes[i].value < 0 || *axes[i].value > AXIS_MAX)
            return glm_fail(err, GLM_EUSAGE, "%s %d: expected 1 to %d", axes[i].name,
                *axes[i].value, AXIS_MAX);
        if (*axes[i].value == 0)
            *axes[i].value = 1;
    }
    const int64_t stages = (int64_t)t->pp * t->vpp;
    if (stages > STAGES_MAX)
        return glm_fail(err, GLM_EUSAGE, "pp %d * vpp %d: more than %d stages", t->pp,
            t->vpp, STAGES_MAX);
    const int64_t cells = t->tp + (int64_t)t->ep * t->etp;
    if (cells > CELLS_MAX / t->pp)
        return glm_fail(err, GLM_EUSAGE,
            "pp %d * (tp %d + ep %d * etp %d): more than %d cells", t->pp, t->tp, t->ep,
            t->etp, CELLS_MAX);
    return 0;
}

static int make_layout(struct placement *p, struct glm_error *err)
{
    const struct model_config *c = &p->table->config;
    struct topology *t = &p->topo;
    char text[sizeof t->layout];
    const int stages = t->pp * t->vpp;
    const bool given = t->layout[0] != 0;
    if (given ? layout_parse(&p->layout, t->layout, c, stages, err) != 0
              : layout_default(&p->layout, c, stages, err) != 0)
        return err->code;
    if ((size_t)layout_print(&p->layout, c, text, sizeof text) < sizeof text)
        memcpy(t->layout, text, sizeof text);
    else if (
        !given) /* a given string that has no shorter canonical form stays as it is */
        return glm_fail(err, GLM_EUSAGE,
            "the layout of %d stages is longer than %zu characters; "
            "give one with repetitions",
            stages, sizeof text - 1);
    return 0;
}

int placement_init(struct placement **out, const struct table *t,
    const struct topology *topo, struct glm_error *err)
{
    *out = NULL;
    struct placement *p = calloc(1, sizeof *p);
    if (!p)
        return glm_fail(err, GLM_ENOMEM, "no memory for a placement");
    p->table = t;
    p->topo = *topo;
    p->topo.layout[sizeof p->topo.layout - 1] = 0;
    if (normalise(&p->topo, err) != 0 || check_axis(t, AXIS_TP, p->topo.tp, err) != 0
        || check_axis(t, AXIS_EP, p->topo.ep, err) != 0
        || check_axis(t, AXIS_ETP, p->topo.etp, err) != 0 || make_layout(p, err) != 0) {
        placement_free(p);
        return err->code;
    }
    *out = p;
    return 0;
}

void placement_free(struct placement *p)
{
    if (!p)
        return;
    layout_clear(&p->layout);
    free(p);
}

/* ---- stages and cells ----------------------------------------------------------------------- */

const struct topology *placement_topology(const struct placement *p)
{
    return &p->topo;
}

int placement_stages(const struct placement *p)
{
    return p->layout.stages;
}

int placement_stage_start(const struct placement *p, int s)
{
    return p->layout.start[s];
}

int placement_stage(const struct placement *p, const struct table_entry *e)
{
    if (!e || e->where == WHERE_FIRST)
        return 0;
    if (e->where == WHERE_LAST)
        return p->layout.stages - 1;
    if (e->where == WHERE_MTP)
        return p->layout.mtp;
    /* the last stage that starts at or below the layer */
    int lo = 0, hi = p->layout.stages;
    while (hi - lo > 1) {
        const int mid = lo + (hi - lo) / 2;
        if (p->layout.start[mid] <= e->layer)
            lo = mid;
        else
            hi = mid;
    }
    return lo;
}

int placement_pp(const struct placement *p, const struct table_entry *e)
{
    return placement_stage(p, e) % p->topo.pp;
}

static int cells_of_pp(const struct placement *p)
{
    return p->topo.tp + p->topo.ep * p->topo.etp;
}

int placement_cells(const struct placement *p)
{
    return p->topo.pp * cells_of_pp(p);
}

struct cell placement_cell(const struct placement *p, int index)
{
    const int per = cells_of_pp(p), at = index % per;
    if (at < p->topo.tp)
        return (struct cell){.pp = index / per, .tp = at};
    return (struct cell){.expert = true,
        .pp = index / per,
        .ep = (at - p->topo.tp) / p->topo.etp,
        .etp = (at - p->topo.tp) % p->topo.etp};
}

int placement_cell_index(const struct placement *p, const struct cell *c)
{
    return c->pp * cells_of_pp(p)
        + (c->expert ? p->topo.tp + c->ep * p->topo.etp + c->etp : c->tp);
}

int cell_name(const struct cell *c, char *buf, size_t size)
{
    if (c->expert)
        return snprintf(buf, size, "p%03d-e%03d-t%03d", c->pp, c->ep, c->etp);
    return snprintf(buf, size, "p%03d-t%03d", c->pp, c->tp);
}

/* ---- slices and tiles ----------------------------------------------------------------------- */

/* [lo, hi) of the share of rank r of p on an axis of n; the last vocabulary shares may be empty. */
static void share(enum table_cut cut, int64_t n, int p, int r, int64_t *lo, int64_t *hi)
{
    const int64_t w =
        cut == CUT_VOCAB ? VOCAB_STEP * ceil_div(n, (int64_t)VOCAB_STEP * p) : n / p;
    *lo = smaller(w * r, n);
    *hi = smaller(w * (r + 1), n);
}

/* The compute slice of a matrix with the row's dims; replicated ones whole. */
static struct rect slice(
    const struct placement *p, const struct table_entry *e, const struct cell *c)
{
    struct rect s = rect_whole(e->grid.dims);
    const int axis = cut_axis(e->cut);
    if (e->stack)
        share(CUT_NONE, e->grid.dims[0], p->topo.ep, c->ep, &s.lo[0], &s.hi[0]);
    if (axis >= 0)
        share(e->cut, e->grid.dims[axis], e->stack ? p->topo.etp : p->topo.tp,
            e->stack ? c->etp : c->tp, &s.lo[axis], &s.hi[axis]);
    return s;
}

static bool lies_in(
    const struct placement *p, const struct table_entry *e, const struct cell *c)
{
    return c->expert == (e && e->stack) && c->pp == placement_pp(p, e);
}

bool placement_slice(const struct placement *p, const struct table_entry *e,
    const struct cell *c, struct rect *elements)
{
    *elements = (struct rect){.lo = {0}};
    if (!e || !lies_in(p, e, c))
        return false;
    const struct rect s = slice(p, e, c);
    if (rect_empty(&s))
        return false;
    *elements = s;
    return true;
}

bool placement_tiles(const struct placement *p, const struct table_entry *e,
    const struct tile_grid *grid, const int64_t block[2], const struct cell *c,
    struct rect *tiles)
{
    *tiles = (struct rect){.lo = {0}};
    if (!lies_in(p, e, c))
        return false;
    struct rect mine = rect_whole(grid->count);
    if (e && (e->stack || e->cut != CUT_NONE)) {
        /* A tile's first element, in the weight's coordinates, is a multiple of `step`. */
        const struct rect s = slice(p, e, c);
        const int64_t step[RECT_AXES] = {
            grid->tile[0], grid->tile[1] * block[0], grid->tile[2] * block[1]};
        for (int i = 0; i < RECT_AXES; i++) {
            mine.lo[i] = smaller(ceil_div(s.lo[i], step[i]), grid->count[i]);
            mine.hi[i] = smaller(ceil_div(s.hi[i], step[i]), grid->count[i]);
        }
    }
    if ((!e || e->cut == CUT_NONE) && !c->expert && c->tp != 0)
        return false; /* replicated: rank 0 stores it */
    if (rect_empty(&mine))
        return false;
    *tiles = mine;
    return true;
}

/* ---- one word ------------------------------------------------------------------------------- */

static int parse_item(struct topology *t, const char *word, const char *item,
    size_t length, unsigned *seen, struct glm_error *err)
{
    const struct {
        const char *name;
        int *value;
    } axes[] = {
        {"tp", &t->tp},
        {"pp", &t->pp},
        {"vpp", &t->vpp},
        {"ep", &t->ep},
        {"etp", &t->etp},
    };
    for (size_t i = 0; i < sizeof axes / sizeof axes[0]; i++) {
        const size_t n = strlen(axes[i].name);
        long value = 0;
        size_t at = n;
        if (length <= n || memcmp(item, axes[i].name, n) != 0)
            continue;
        while (at < length && item[at] >= '0' && item[at] <= '9' && value <= AXIS_MAX)
            value = value * 10 + (item[at++] - '0');
        if (at < length || value < 1 || value > AXIS_MAX)
            break;
        if (*seen & 1u << i)
            return glm_fail(
                err, GLM_EUSAGE, "topology '%s': %s is given twice", word, axes[i].name);
        *seen |= 1u << i;
        *axes[i].value = (int)value;
        return 0;
    }
    return glm_fail(err, GLM_EUSAGE,
        "topology '%s': '%.*s' is not one of tpN, ppN, vppN, epN, etpN "
        "with N from 1 to %d",
        word, (int)smaller((int64_t)length, 64), item, AXIS_MAX);
}

int topology_parse(struct topology *out, const char *word, struct glm_error *err)
{
    unsigned seen = 0;
    struct topology t = {.tp = 1, .pp = 1, .vpp = 1, .ep = 1, .etp = 1};
    for (const char *p = word;; p++) {
        const size_t n = strcspn(p, ",");
        if (parse_item(&t, word, p, n, &seen, err) != 0)
            return err->code;
        p += n;
        if (!*p)
            break;
    }
    *out = t;
    return 0;
}

int topology_print(const struct topology *t, char *buf, size_t size)
{
    const int pp = t->pp ? t->pp : 1, tp = t->tp ? t->tp : 1, ep = t->ep ? t->ep : 1;
    int n = snprintf(buf, size, "tp%d,pp%d,ep%d", tp, pp, ep);
    const struct {
        const char *name;
        int value;
    } more[] = {{"vpp", t->vpp}, {"etp", t->etp}};
    for (size_t i = 0; i < 2; i++)
        if (more[i].value > 1) {
            const size_t at = (size_t)n < size ? (size_t)n : size;
            n += snprintf(buf + at, size - at, ",%s%d", more[i].name, more[i].value);
        }
    return n;
}
