/* glm-verify diff: options, and the report for people and programs. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/jsonout.h"
#include "cli/opt.h"
#include "cli/report.h"
#include "cli/verify_modes.h"
#include "cli/watch.h"
#include "verify/verify.h"

struct diff_words {
    const char *a, *b, *section;
    bool tolerance;
};

/* "(17, 4, 256)" */
static const char *tuple(
    const struct diff_pair *p, int64_t linear, char *buf, size_t size)
{
    int64_t at[4];
    const int rank = diff_index(p, linear, at);
    int n = snprintf(buf, size, "(");
    for (int i = 0; i < rank; i++)
        n += snprintf(
            buf + n, size - (size_t)n, "%s%lld", i > 0 ? ", " : "", (long long)at[i]);
    snprintf(buf + n, size - (size_t)n, ")");
    return buf;
}

static const char *shape_text(int rank, const int64_t *shape, char *buf, size_t size)
{
    int n = snprintf(buf, size, "[");
    for (int i = 0; i < rank; i++)
        n += snprintf(
            buf + n, size - (size_t)n, "%s%lld", i > 0 ? ", " : "", (long long)shape[i]);
    snprintf(buf + n, size - (size_t)n, "]");
    return buf;
}

/* ---- for people -------------------------------------------------------------------------------- */

/* Elements of the whole tensor. */
static int64_t elements_of(const struct diff_pair *p)
{
    return p->dims[0] * p->dims[1] * p->dims[2];
}

/* of: how many there are, compared one by one or known to be equal by their digest. */
static void print_stats(
    const struct diff_pair *p, const struct diff_stats *s, int64_t of, bool tolerance)
{
    char first[96], last[96];
    printf("%lld of %lld differ, from %s to %s, max %llu ULP, max |a-b| %.9g",
        (long long)s->different, (long long)of, tuple(p, s->first, first, sizeof first),
        tuple(p, s->last, last, sizeof last), (unsigned long long)s->max_ulp, s->max_abs);
    if (s->nan > 0)
        printf(", %lld with NaN", (long long)s->nan);
    if (tolerance)
        printf(", %lld beyond the tolerance", (long long)s->beyond);
    printf("\n");
}

static void print_tiles(const struct diff_pair *p, bool tolerance)
{
    char member[192], range[128];
    for (int64_t i = 0; i < p->detail_count; i++) {
        const struct diff_tile *t = &p->detail[i];
        int64_t lo[4], hi[4];
        int rank;
        finding_axes(p->rank_a, p->stack, &t->at, &rank, lo, hi);
        finding_range(rank, lo, hi, range, sizeof range);
        diff_member_name(p, t, member, sizeof member);
        printf("    %s%stile %lld, elements %s", p->stack ? member : "",
            p->stack ? ": " : "", (long long)t->tile, range);
        if (t->stats.elements > 0) {
            printf(": ");
            print_stats(p, &t->stats, t->stats.elements, tolerance);
        } else {
            printf("\n");
        }
    }
    if (p->tiles_different > p->detail_count)
        printf("    and %lld more tiles\n",
            (long long)(p->tiles_different - p->detail_count));
}

static void print_pair(const struct diff_pair *p, const struct diff_words *w)
{
    char a[96], b[96];
    printf("%s %s: ", section_name(p->section), p->name);
    shape_text(p->rank_a, p->shape_a, a, sizeof a);
    shape_text(p->rank_b, p->shape_b, b, sizeof b);
    switch (p->verdict) {
    case DIFF_ONLY_A:
    case DIFF_ONLY_B:
        printf("only in %s: %s %s\n", p->verdict == DIFF_ONLY_A ? w->a : w->b,
            glm_dtype_name(p->dtype_a), a);
        break;
    case DIFF_DTYPE:
        printf("type differs: %s in %s, %s in %s (a tolerance compares values)\n",
            glm_dtype_name(p->dtype_a), w->a, glm_dtype_name(p->dtype_b), w->b);
        break;
    case DIFF_SHAPE:
        printf("shape differs: %s in %s, %s in %s\n", a, w->a, b, w->b);
        break;
    default:
        printf("%s %s: %lld of %lld tiles differ\n", glm_dtype_name(p->dtype_a), a,
            (long long)p->tiles_different, (long long)p->tiles);
        if (p->stats.elements > 0) {
            printf("    in all: ");
            print_stats(p, &p->stats, elements_of(p), w->tolerance);
        }
        print_tiles(p, w->tolerance);
    }
}

static void print_layers(const struct diff_report *r)
{
    if (r->layer_count == 0)
        return;
    printf("\n%-8s %14s %14s %14s\n", "layer", "|A-B|/|A|", "|A-B|", "|A|");
    for (int64_t i = 0; i < r->layer_count; i++) {
        const struct diff_layer *l = &r->layers[i];
        char name[16];
        snprintf(name, sizeof name, l->layer < 0 ? "others" : "%d", l->layer);
        printf("%-8s %14.6e %14.6e %14.6e\n", name,
            l->norm_d == 0 ? 0 : l->norm_d / l->norm_a, l->norm_d, l->norm_a);
    }
    printf("(others: embedding, final norm, head)\n");
}

static void print_text(const struct diff_report *r, const struct diff_words *as_given)
{
    char a[CLI_SHOWN], b[CLI_SHOWN];
    struct diff_words words = *as_given;
    const struct diff_words *const w = &words;
    words.a = cli_shown(words.a, a);
    words.b = cli_shown(words.b, b);
    for (int64_t i = 0; i < r->pair_count; i++)
        if (r->pairs[i].verdict != DIFF_EQUAL)
            print_pair(&r->pairs[i], w);
    print_layers(r);
    const char *const gap = r->layer_count > 0 ? "\n" : "";
    printf("%s%lld of %lld tensors equal (section %s): %lld by metadata, %lld by digest, "
           "%lld by element\n",
        gap, (long long)(r->count[DIFF_EQUAL]), (long long)r->pair_count, w->section,
        (long long)r->by_method[DIFF_BY_METADATA],
        (long long)r->by_method[DIFF_BY_DIGEST],
        (long long)r->by_method[DIFF_BY_ELEMENT]);
    if (r->count[DIFF_WITHIN] > 0)
        printf("%lld differ within the tolerance\n", (long long)r->count[DIFF_WITHIN]);
}

/* ---- for programs ------------------------------------------------------------------------------ */

static void json_tuple(struct jsonout *j, json_t *o, const char *key,
    const struct diff_pair *p, int64_t linear)
{
    json_t *list = jsonout_array(j, o, key);
    int64_t at[4];
    if (linear < 0)
        return;
    const int rank = diff_index(p, linear, at);
    for (int i = 0; i < rank; i++)
        jsonout_int(j, list, NULL, at[i]);
}

static void json_stats(struct jsonout *j, json_t *o, const struct diff_pair *p,
    const struct diff_stats *s, int64_t of)
{
    jsonout_int(j, o, "elements", of);
    jsonout_int(j, o, "different", s->different);
    jsonout_int(j, o, "beyond", s->beyond);
    jsonout_int(j, o, "nan", s->nan);
    jsonout_uint(j, o, "max_ulp", s->max_ulp);
    jsonout_real(j, o, "max_abs", s->max_abs);
    json_tuple(j, o, "first", p, s->first);
    json_tuple(j, o, "last", p, s->last);
}

static void json_shape(
    struct jsonout *j, json_t *o, const char *key, int rank, const int64_t *shape)
{
    json_t *list = jsonout_array(j, o, key);
    for (int i = 0; i < rank; i++)
        jsonout_int(j, list, NULL, shape[i]);
}

static void json_pair(struct jsonout *j, json_t *list, const struct diff_pair *p)
{
    json_t *o = jsonout_object(j, list, NULL);
    jsonout_str(j, o, "section", section_name(p->section));
    jsonout_str(j, o, "tensor", p->name);
    jsonout_str(j, o, "verdict", diff_verdict_name(p->verdict));
    jsonout_str(j, o, "dtype_a", glm_dtype_name(p->dtype_a));
    jsonout_str(j, o, "dtype_b", glm_dtype_name(p->dtype_b));
    json_shape(j, o, "shape_a", p->rank_a, p->shape_a);
    json_shape(j, o, "shape_b", p->rank_b, p->shape_b);
    json_stats(j, o, p, &p->stats, elements_of(p));
    jsonout_int(j, o, "tiles", p->tiles);
    jsonout_int(j, o, "tiles_different", p->tiles_different);
    json_t *tiles = jsonout_array(j, o, "tile_list");
    for (int64_t i = 0; i < p->detail_count; i++) {
        const struct diff_tile *t = &p->detail[i];
        char member[192];
        int64_t lo[4], hi[4];
        int rank;
        json_t *q = jsonout_object(j, tiles, NULL);
        diff_member_name(p, t, member, sizeof member);
        jsonout_int(j, q, "tile", t->tile);
        jsonout_str(j, q, "member", member);
        finding_axes(p->rank_a, p->stack, &t->at, &rank, lo, hi);
        json_t *range = jsonout_array(j, q, "range");
        for (int k = 0; k < rank; k++) {
            json_t *axis = jsonout_array(j, range, NULL);
            jsonout_int(j, axis, NULL, lo[k]);
            jsonout_int(j, axis, NULL, hi[k]);
        }
        json_stats(j, q, p, &t->stats, t->stats.elements);
    }
}

static int print_json(const struct diff_report *r, const struct diff_words *w,
    const struct glm_error *done, struct glm_error *err)
{
    struct jsonout j;
    jsonout_init(&j);
    jsonout_str(&j, NULL, "command", "glm-verify diff");
    jsonout_str(&j, NULL, "a", w->a);
    jsonout_str(&j, NULL, "b", w->b);
    jsonout_str(&j, NULL, "section", w->section);
    jsonout_bool(&j, NULL, "equal", done->code == GLM_OK);
    json_t *count = jsonout_object(&j, NULL, "tensors");
    jsonout_int(&j, count, "all", r->pair_count);
    for (int v = 0; v < DIFF_UNCOMPARED; v++)
        jsonout_int(&j, count, diff_verdict_name((enum diff_verdict)v), r->count[v]);
    json_t *method = jsonout_object(&j, NULL, "compared_by");
    jsonout_int(&j, method, "metadata", r->by_method[DIFF_BY_METADATA]);
    jsonout_int(&j, method, "digest", r->by_method[DIFF_BY_DIGEST]);
    jsonout_int(&j, method, "element", r->by_method[DIFF_BY_ELEMENT]);
    jsonout_uint(&j, NULL, "bytes_read", r->bytes_read);
    json_t *list = jsonout_array(&j, NULL, "differences");
    for (int64_t i = 0; i < r->pair_count; i++)
        if (r->pairs[i].verdict != DIFF_EQUAL)
            json_pair(&j, list, &r->pairs[i]);
    json_t *layers = jsonout_array(&j, NULL, "layers");
    for (int64_t i = 0; i < r->layer_count; i++) {
        const struct diff_layer *l = &r->layers[i];
        json_t *o = jsonout_object(&j, layers, NULL);
        jsonout_int(&j, o, "layer", l->layer);
        jsonout_real(&j, o, "relative", l->norm_d == 0 ? 0 : l->norm_d / l->norm_a);
        jsonout_real(&j, o, "norm_difference", l->norm_d);
        jsonout_real(&j, o, "norm_a", l->norm_a);
    }
    jsonout_print(&j, stdout, err);
    jsonout_clear(&j);
    return err->code;
}

int verify_diff(int argc, char **argv)
{
    double atol = -1, rtol = -1;
    struct diff_options o = {.ulp = -1};
    struct common_options common = {0};
    const struct opt opts[] = {
        OPT_STR("section", "name", &o.section,
            "compare this section, or all (default weight)"),
        OPT_REAL("atol", "x", &atol, "tolerate |a-b| up to x, plus what rtol allows"),
        OPT_REAL("rtol", "x", &rtol,
            "tolerate |a-b| up to x times |b|, plus what atol allows"),
        OPT_INT("ulp", "n", &o.ulp, 0, 1 << 30, "tolerate n representable numbers apart"),
        OPT_FLAG(
            "norms", &o.norms, "print relative norms per layer also when all is equal"),
        OPT_FLAG("quick", &o.quick,
            "compare names, shapes, types, fingerprints; read no data"),
        OPT_COMMON(&common),
        OPT_END,
    };
    const struct command self = {
        .name = "glm-verify diff",
        .synopsis = {"A B"},
        .summary =
            "Compares two checkpoints or model directories and says where they differ.",
        .min_args = 2,
        .max_args = 2,
        .opts = opts,
    };
    struct glm_error err = {0};
    if (opt_parse(&self, &argc, &argv, &err) != 0)
        return cli_report("glm-verify", &err);
    struct diff_report report;
    struct watch watch;
    watch_begin(&watch, "glm-verify", &common);
    o.tolerance = atol >= 0 || rtol >= 0 || o.ulp >= 0;
    o.atol = atol >= 0 ? atol : 0;
    o.rtol = rtol >= 0 ? rtol : 0;
    o.threads = cli_movers(&common);
    o.events = &watch.events;
    diff_run(&report, argv[0], argv[1], &o, &err);
    watch_end(&watch, err.code == GLM_OK);
    if (err.code == GLM_OK || err.code == GLM_EMISMATCH) {
        const struct diff_words w = {
            argv[0], argv[1], o.section != NULL ? o.section : "weight", o.tolerance};
        struct glm_error printing = {0};
        if (!common.json)
            print_text(&report, &w);
        else if (print_json(&report, &w, &err, &printing) != GLM_OK && err.code == GLM_OK)
            err = printing;
    }
    diff_clear(&report);
    return cli_report("glm-verify", &err);
}
