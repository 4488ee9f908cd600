/* Each tensor of each header finds its row of the table, by its name alone; the header says type,
 * shape and place. Four ways in which experts are stored come out as one place per expert:
 *
 *     ….experts.3.gate_proj.weight   [M,H]       one expert
 *     ….experts.gate_proj.weight     [E,M,H]     a stack
 *     ….experts.gate_up_proj         [E,2M,H]    fused: of each expert M gate rows, then M up rows
 *     ….experts.down_proj            [E,H,M]     a stack under the fused layout's name
 *
 * What is wrong is collected in lists and judged in hfdir_check.c, so that an error can name the
 * first few and count all. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "convert/hfdir_inside.h"
#include "convert/jsonin.h"

enum { UNITS_MAX = 4000000 };

const char *const hfdir_suffixes[HF_SUFFIXES] = {
    ".weight_scale_inv", ".weight_scale", ".scale"};

/* The fused layout's names have no ".weight", so its scales have suffixes of their own. */
static const char *const fused_suffixes[HF_SUFFIXES] = {"_scale_inv", "_scale", NULL};

void hfdir_list(struct hf_names *n, const char *fmt, ...)
{
    if (n->count++ >= HF_LISTED)
        return;
    const size_t at = strlen(n->text);
    va_list args;
    if (at > 0)
        snprintf(n->text + at, sizeof n->text - at, ", ");
    const size_t from = strlen(n->text);
    va_start(args, fmt);
    vsnprintf(n->text + from, sizeof n->text - from, fmt, args);
    va_end(args);
}

/* What a name means: one or two rows of the table (gate_up), one member or all, weight or scale. */
struct target {
    const struct table_entry *entry, *up; /* up: of gate_up, else NULL */
    int64_t member;                       /* -1: the whole row */
    int suffix;                           /* of a scale; -1: a weight */
    bool fused;
};

static bool ends(const char *name, size_t length, const char *end, size_t *stem)
{
    const size_t n = strlen(end);
    if (length < n || memcmp(name + length - n, end, n) != 0)
        return false;
    *stem = length - n;
    return true;
}

static const struct table_entry *stack_row(
    const struct table *t, const char *name, size_t stem, const char *projection)
{
    char row[HF_NAME];
    int64_t member;
    const int n = snprintf(
        row, sizeof row, "%.*s.mlp.experts.%s.weight", (int)stem, name, projection);
    const struct table_entry *e =
        n > 0 && (size_t)n < sizeof row ? table_find(t, row, (size_t)n, &member) : NULL;
    return e && e->stack ? e : NULL;
}

static bool find_fused(
    const struct table *t, const char *name, size_t length, struct target *out)
{
    size_t stem = length;
    if (length >= HF_NAME / 2)
        return false;
    *out = (struct target){.member = -1, .suffix = -1, .fused = true};
    for (int i = 0; i < HF_SUFFIXES; i++)
        if (fused_suffixes[i] && ends(name, length, fused_suffixes[i], &stem)) {
            out->suffix = i;
            break;
        }
    if (ends(name, stem, ".mlp.experts.gate_up_proj", &stem)) {
        out->entry = stack_row(t, name, stem, "gate_proj");
        out->up = stack_row(t, name, stem, "up_proj");
        return out->entry && out->up;
    }
    if (!ends(name, stem, ".mlp.experts.down_proj", &stem))
        return false;
    out->entry = stack_row(t, name, stem, "down_proj");
    return out->entry != NULL;
}

static bool find_target(
    const struct table *t, const char *name, size_t length, struct target *out)
{
    char weight[HF_NAME];
    *out = (struct target){.suffix = -1};
    out->entry = table_find(t, name, length, &out->member);
    if (out->entry)
        return true;
    for (int i = 0; i < HF_SUFFIXES; i++) {
        if (!table_scale_of(name, length, hfdir_suffixes[i], weight, sizeof weight))
            continue;
        out->entry = table_find(t, weight, strlen(weight), &out->member);
        out->suffix = i;
        return out->entry != NULL;
    }
    return find_fused(t, name, length, out);
}

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* The shape that the target must have: rows and columns of one member last. */
static int want_shape(const struct hf_match *m, const struct target *t, int64_t shape[3])
{
    const struct table_entry *e = t->entry;
    const bool one = e->stack && t->member >= 0;
    const int rank = e->rank - (one ? 1 : 0);
    memcpy(shape, e->shape + (one ? 1 : 0), (size_t)rank * sizeof *shape);
    if (t->up)
        shape[1] += t->up->shape[1];
    if (t->suffix >= 0 && rank >= 2) {
        shape[rank - 2] = ceil_div(shape[rank - 2], m->block[0]);
        shape[rank - 1] = ceil_div(shape[rank - 1], m->block[1]);
    }
    return rank;
}

static void shape_text(char *out, size_t size, const int64_t *shape, int rank)
{
    size_t at = (size_t)snprintf(out, size, "[");
    for (int i = 0; i < rank && at < size; i++)
        at += (size_t)snprintf(out + at, size - at, "%s%" PRId64, i ? "," : "", shape[i]);
    if (at < size)
        snprintf(out + at, size - at, "]");
}

static bool check_shape(struct hf_match *m, const struct target *t,
    const struct st_tensor *s, const char *shown, const char *file)
{
    int64_t want[3];
    char is[200], should[100];
    const int rank = want_shape(m, t, want);
    if (s->rank == rank && memcmp(s->shape, want, (size_t)rank * sizeof *want) == 0)
        return true;
    shape_text(is, sizeof is, s->shape, s->rank);
    shape_text(should, sizeof should, want, rank);
    hfdir_list(&m->misshapen, "%s in %s is %s, not %s", shown, file, is, should);
    return false;
}

/* Enters the place of one member, unless it has one. */
static void place(struct hf_match *m, const struct table_entry *e, int64_t member,
    bool scale, const struct hf_place *p, const char *shown)
{
    struct hf_place *at =
        &m->places[2 * (m->first[e - m->table->entries] + member) + scale];
    if (at->file >= 0)
        hfdir_list(&m->twice, "%s in %s and %s", shown, m->s->files[at->file].name,
            m->s->files[p->file].name);
    else
        *at = *p;
}

/* Cuts a tensor of the right shape into its members; in gate_up each member is cut in two. */
static void place_all(struct hf_match *m, const struct target *t,
    const struct st_tensor *s, struct hf_place at, const char *shown)
{
    const struct table_entry *e = t->entry;
    const bool scale = t->suffix >= 0;
    const int64_t members = t->member >= 0 ? 1 : table_members(e);
    const uint64_t parts = (uint64_t)members * (t->up ? 2 : 1);
    const uint64_t each = parts ? (s->end - s->begin) / parts : 0;
    if (each * parts != s->end - s->begin) {
        hfdir_list(&m->misshapen, "%s in %s: an expert is no whole number of bytes",
            shown, m->s->files[at.file].name);
        return;
    }
    if (t->up && scale && e->shape[1] % m->block[0] != 0) {
        hfdir_list(&m->misshapen,
            "%s in %s: a block of %" PRId64 " rows lies across gate and up", shown,
            m->s->files[at.file].name, m->block[0]);
        return;
    }
    for (int64_t i = 0; i < members; i++) {
        const int64_t member = t->member >= 0 ? t->member : i;
        const int64_t before = m->twice.count;
        place(m, e, member, scale, &at, shown);
        at.offset += each;
        if (t->up) {
            place(m, t->up, member, scale, &at, shown);
            at.offset += each;
        }
        if (m->twice.count > before)
            return; /* a stack given twice is one name, not one per member */
    }
}

/* A type that scales can have; U8 only where the configuration says MXFP8 (it then is E8M0). */
static bool scale_type(
    const struct hf_match *m, enum glm_dtype dtype, enum glm_dtype *counts_as)
{
    const bool mx = strcmp(m->table->config.quant_method, "mxfp8") == 0;
    *counts_as = mx && dtype == GLM_U8 ? GLM_F8_E8M0 : dtype;
    return *counts_as == GLM_F8_E8M0 || (!mx && (dtype == GLM_F32 || dtype == GLM_BF16));
}

static bool check_scale(struct hf_match *m, const struct target *t,
    const struct st_tensor *s, const char *shown)
{
    enum glm_dtype dtype;
    hfdir_list(&m->suffixes[t->suffix], "%s", shown);
    if (m->block[0] == 0) {
        hfdir_list(&m->unsettled, "%s", shown);
        return false;
    }
    if (!scale_type(m, s->dtype, &dtype)) {
        hfdir_list(&m->bad_scales, "%s (%s)", shown, glm_dtype_name(s->dtype));
        return false;
    }
    if (m->scale_dtype < 0)
        m->scale_dtype = (int)dtype;
    else if (m->scale_dtype != (int)dtype)
        hfdir_list(&m->other_scales, "%s (%s)", shown, glm_dtype_name(s->dtype));
    return true;
}

/* "….layers.3.….indexer.…": the layer of an indexer that the table does not have; -1 otherwise. */
static int indexer_layer(const struct table *t, const char *name)
{
    const char *p = strstr(name, ".layers.");
    if (!p || !strstr(p, ".indexer."))
        return -1;
    char *end;
    const long n = strtol(p + 8, &end, 10);
    return end != p + 8 && *end == '.' && n >= 0 && n < t->config.num_hidden_layers
            && !t->config.layer_owns_indexer[n]
        ? (int)n
        : -1;
}

static void take_tensor(struct hf_match *m, int64_t f, const struct st_tensor *s)
{
    const struct hf_file *file = &m->s->files[f];
    struct target t;
    char shown[JSONIN_SHOWN];
    jsonin_shown(s->name, s->name_length, shown);
    if (!find_target(m->table, s->name, s->name_length, &t)) {
        const int layer = indexer_layer(m->table, s->name);
        if (layer >= 0 && m->stray_layer < 0)
            m->stray_layer = layer;
        const bool tied = table_alias(m->table, s->name, s->name_length) != NULL;
        hfdir_list(&m->extra, "%s%s in %s", shown, tied ? " (config.json ties it)" : "",
            file->name);
        return;
    }
    m->fused = m->fused || t.fused;
    if (t.suffix >= 0 && !check_scale(m, &t, s, shown))
        return;
    if (!check_shape(m, &t, s, shown, file->name))
        return;
    if (glm_dtype_bits(s->dtype) % 8 != 0) {
        hfdir_list(
            &m->half_bytes, "%s in %s (%s)", shown, file->name, glm_dtype_name(s->dtype));
        return;
    }
    const struct hf_place at = {.file = (int32_t)f,
        .dtype = s->dtype,
        .offset = file->header.data_start + s->begin};
    place_all(m, &t, s, at, shown);
}

int hfdir_match(struct hf_match *m, struct glm_error *err)
{
    const struct table *t = m->table;
    m->scale_dtype = m->stray_layer = -1;
    m->first = malloc(((size_t)t->count + 1) * sizeof *m->first);
    if (!m->first)
        return glm_fail(err, GLM_ENOMEM, "%s: no memory to match %" PRId64 " rows",
            m->s->dir, t->count);
    m->units = 0;
    for (int64_t i = 0; i < t->count; i++) {
        m->first[i] = m->units;
        m->units += table_members(&t->entries[i]);
    }
    if (m->units > UNITS_MAX) /* a hostile config.json must not cost gigabytes */
        return glm_fail(err, GLM_EFORMAT,
            "%s/config.json: describes %" PRId64 " tensors, more than "
            "the %d that are read",
            m->s->dir, m->units, UNITS_MAX);
    m->places = malloc(((size_t)m->units + 1) * 2 * sizeof *m->places);
    if (!m->places)
        return glm_fail(err, GLM_ENOMEM, "%s: no memory for %" PRId64 " tensors",
            m->s->dir, m->units);
    for (int64_t i = 0; i < 2 * m->units; i++)
        m->places[i] = (struct hf_place){.file = -1};
    const struct model_config *c = &t->config;
    if (c->quant_method[0]) {
        memcpy(m->block, c->quant_block, sizeof m->block);
        if (m->block[0] == 0 && strcmp(c->quant_method, "mxfp8") == 0) {
            m->block[0] = 1; /* the format defines it */
            m->block[1] = 32;
        }
    }
    for (int64_t f = 0; f < m->s->file_count; f++)
        for (int64_t i = 0; i < m->s->files[f].header.count; i++)
            take_tensor(m, f, &m->s->files[f].header.tensors[i]);
    return 0;
}

void hfdir_match_clear(struct hf_match *m)
{
    free(m->first);
    free(m->places);
    m->first = NULL;
    m->places = NULL;
}
