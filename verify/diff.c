#include "verify/diff.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "verify/diff_scan.h"
#include "verify/element.h"

const char *diff_verdict_name(enum diff_verdict v)
{
    static const char *const names[] = {
        [DIFF_EQUAL] = "equal",
        [DIFF_WITHIN] = "within",
        [DIFF_DIFFERENT] = "different",
        [DIFF_DTYPE] = "dtype",
        [DIFF_SHAPE] = "shape",
        [DIFF_ONLY_A] = "only_a",
        [DIFF_ONLY_B] = "only_b",
        [DIFF_UNCOMPARED] = "uncompared",
    };
    return names[v];
}

void diff_clear(struct diff_report *r)
{
    for (int64_t i = 0; r->pairs != NULL && i < r->pair_count; i++)
        free(r->pairs[i].detail);
    free(r->pairs);
    free(r->layers);
    for (int i = 0; r->sides != NULL && i < 2; i++)
        side_close(&r->sides[i]);
    free(r->sides);
    *r = (struct diff_report){0};
}

int diff_index(const struct diff_pair *p, int64_t linear, int64_t out[4])
{
    const int64_t cols = p->dims[2], rows = p->dims[1];
    struct rect at = {.lo = {linear / cols / rows, linear / cols % rows, linear % cols}};
    int64_t hi[4];
    int rank;
    finding_axes(p->rank_a, p->stack, &at, &rank, out, hi);
    return rank;
}

void diff_member_name(
    const struct diff_pair *p, const struct diff_tile *t, char *buf, size_t size)
{
    struct side_row r = {.stack = p->stack, .entry = p->entry, .is_scale = p->is_scale};
    snprintf(r.name, sizeof r.name, "%s", p->name);
    side_member_name(&r, t->at.lo[0], buf, size);
}

/* ---- pairing ----------------------------------------------------------------------------------- */

static bool diff_wants(const struct diff *d, enum ckpt_section section)
{
    const char *const want = d->o->section != NULL ? d->o->section : "weight";
    return strcmp(want, "all") == 0 || strcmp(want, section_name(section)) == 0;
}

static void diff_pair_init(
    struct diff_pair *p, const struct diff *d, int64_t a, int64_t b)
{
    const struct side_row *ra = a >= 0 ? &d->a.rows[a] : NULL;
    const struct side_row *rb = b >= 0 ? &d->b.rows[b] : NULL;
    const struct side_row *r = ra != NULL ? ra : rb;
    *p = (struct diff_pair){.a = a,
        .b = b,
        .section = r->section,
        .entry = r->entry,
        .stack = r->stack,
        .is_scale = r->is_scale,
        .tiles = tile_count(&r->grid)};
    snprintf(p->name, sizeof p->name, "%s", r->name);
    memcpy(p->dims, r->grid.dims, sizeof p->dims);
    compare_init(&p->stats);
    ra = ra != NULL ? ra : rb;
    rb = rb != NULL ? rb : ra;
    p->dtype_a = ra->dtype;
    p->dtype_b = rb->dtype;
    p->rank_a = ra->rank;
    p->rank_b = rb->rank;
    memcpy(p->shape_a, ra->shape, sizeof p->shape_a);
    memcpy(p->shape_b, rb->shape, sizeof p->shape_b);
}

static bool diff_same_shape(const struct diff_pair *p)
{
    return p->rank_a == p->rank_b
        && memcmp(p->shape_a, p->shape_b, (size_t)p->rank_a * sizeof *p->shape_a) == 0;
}

bool diff_by_value(const struct diff *d, const struct diff_pair *p)
{
    if (!d->o->tolerance || p->a < 0 || p->b < 0)
        return false;
    return p->dtype_a != p->dtype_b || d->a.rows[p->a].scale >= 0
        || d->b.rows[p->b].scale >= 0;
}

/* In tolerance mode a scale is part of its weight's values and is not compared by itself. */
static bool diff_skipped(const struct diff *d, const struct side_row *r)
{
    return !diff_wants(d, r->section) || (d->o->tolerance && r->is_scale);
}

/* Which tiles differ by their recorded digests. */
static int diff_recorded(struct diff_pair *p, const struct side_row *ra,
    const struct side_row *rb, struct glm_error *err)
{
    p->detail = calloc(DIFF_TILES, sizeof *p->detail);
    if (p->detail == NULL)
        return glm_fail(err, GLM_ENOMEM, "out of memory");
    for (int64_t i = 0; i < p->tiles; i++) {
        if (memcmp(ra->tiles + 32 * (size_t)i, rb->tiles + 32 * (size_t)i, 32) == 0)
            continue;
        p->tiles_different++;
        if (p->detail_count < DIFF_TILES) {
            struct diff_tile *t = &p->detail[p->detail_count++];
            *t = (struct diff_tile){.tile = i, .at = tile_rect(&ra->grid, i)};
            compare_init(&t->stats);
        }
    }
    return GLM_OK;
}

/* What can be said without data. DIFF_UNCOMPARED: nothing yet. */
static int diff_judge(const struct diff *d, struct diff_pair *p, struct glm_error *err)
{
    p->method = DIFF_BY_METADATA;
    if (p->a < 0 || p->b < 0) {
        p->verdict = p->a < 0 ? DIFF_ONLY_B : DIFF_ONLY_A;
        return GLM_OK;
    }
    const struct side_row *ra = &d->a.rows[p->a], *rb = &d->b.rows[p->b];
    if (!diff_same_shape(p)) {
        p->verdict = DIFF_SHAPE;
    } else if (p->dtype_a != p->dtype_b && !d->o->tolerance) {
        p->verdict = DIFF_DTYPE;
    } else if (!d->o->tolerance && ra->fingerprint != NULL && rb->fingerprint != NULL) {
        p->verdict = memcmp(ra->fingerprint, rb->fingerprint, 32) == 0 ? DIFF_EQUAL
                                                                       : DIFF_DIFFERENT;
        if (p->verdict == DIFF_DIFFERENT)
            return diff_recorded(p, ra, rb, err);
    } else {
        p->verdict = DIFF_UNCOMPARED;
        p->method =
            d->o->tolerance || (d->a.hf && d->b.hf) ? DIFF_BY_ELEMENT : DIFF_BY_DIGEST;
    }
    return GLM_OK;
}

static int diff_pairs(struct diff *d, struct glm_error *err)
{
    struct diff_report *r = d->report;
    r->pairs = calloc((size_t)(d->a.count + d->b.count) + 1, sizeof *r->pairs);
    if (r->pairs == NULL)
        return glm_fail(err, GLM_ENOMEM, "out of memory for %lld tensors",
            (long long)(d->a.count + d->b.count));
    for (int64_t i = 0; i < d->a.count; i++)
        if (!diff_skipped(d, &d->a.rows[i]))
            diff_pair_init(&r->pairs[r->pair_count++], d, i,
                side_find(&d->b, d->a.rows[i].section, d->a.rows[i].name));
    for (int64_t i = 0; i < d->b.count; i++)
        if (!diff_skipped(d, &d->b.rows[i])
            && side_find(&d->a, d->b.rows[i].section, d->b.rows[i].name) < 0)
            diff_pair_init(&r->pairs[r->pair_count++], d, -1, i);
    for (int64_t i = 0; i < r->pair_count && err->code == GLM_OK; i++)
        diff_judge(d, &r->pairs[i], err);
    return err->code;
}

/* ---- verdict ----------------------------------------------------------------------------------- */

static int diff_conclude(
    const struct diff *d, const char *a, const char *b, struct glm_error *err)
{
    struct diff_report *r = d->report;
    int64_t bad = 0;
    for (int64_t i = 0; i < r->pair_count; i++) {
        const struct diff_pair *p = &r->pairs[i];
        r->count[p->verdict]++;
        r->by_method[p->method]++;
    }
    for (int v = DIFF_DIFFERENT; v < DIFF_UNCOMPARED; v++)
        bad += r->count[v];
    if (r->pair_count == 0)
        return glm_fail(err, GLM_EUSAGE, "neither %s nor %s has a section '%s'", a, b,
            d->o->section != NULL ? d->o->section : "weight");
    if (bad == 0)
        return GLM_OK;
    return glm_fail(err, GLM_EMISMATCH, "%s and %s differ in %lld of %lld tensors", a, b,
        (long long)bad, (long long)r->pair_count);
}

static int diff_check_options(const struct diff_options *o, struct glm_error *err)
{
    if (o->quick && (o->tolerance || o->norms))
        return glm_fail(err, GLM_EUSAGE, "--quick reads no data: %s cannot go with it",
            o->tolerance ? "a tolerance" : "--norms");
    if (o->section == NULL || strcmp(o->section, "all") == 0)
        return GLM_OK;
    enum ckpt_section s;
    if (section_find(o->section, strlen(o->section), &s))
        return GLM_OK;
    return glm_fail(err, GLM_EUSAGE,
        "--section %s: there is weight, master, opt/m, opt/v, "
        "opt/momentum, train and all",
        o->section);
}

/* Names, shapes and types alone do not say that two are equal. */
static int diff_check_quick(const struct diff *d, struct glm_error *err)
{
    if (!d->o->quick || (!d->a.hf && !d->b.hf))
        return GLM_OK;
    return glm_fail(err, GLM_EUSAGE,
        "%s: --quick compares fingerprints, and a model directory has none: leave "
        "--quick out",
        d->a.hf ? d->a.path : d->b.path);
}

int diff_run(struct diff_report *out, const char *a, const char *b,
    const struct diff_options *o, struct glm_error *err)
{
    *out = (struct diff_report){0};
    struct diff d = {.o = o, .report = out};
    out->sides = calloc(2, sizeof *out->sides);
    if (out->sides == NULL)
        return glm_fail(err, GLM_ENOMEM, "out of memory");
    if (diff_check_options(o, err) != GLM_OK
        || side_open(&out->sides[0], a, o->quick, o->threads, err) != GLM_OK
        || side_open(&out->sides[1], b, o->quick, o->threads, err) != GLM_OK)
        return err->code;
    d.a = out->sides[0];
    d.b = out->sides[1];
    if (diff_check_quick(&d, err) != GLM_OK)
        return err->code;
    out->hf_a = d.a.hf;
    out->hf_b = d.b.hf;
    if (!d.a.hf)
        memcpy(out->fingerprint_a, d.a.m->fingerprint, 32);
    if (!d.b.hf)
        memcpy(out->fingerprint_b, d.b.m->fingerprint, 32);
    if (diff_pairs(&d, err) != GLM_OK
        || (!o->quick && (diff_scan(&d, err) != GLM_OK || diff_norms(&d, err) != GLM_OK)))
        return err->code;
    return diff_conclude(&d, a, b, err);
}
