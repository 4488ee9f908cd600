/* Opens a model directory: scan, headers, index, match, check, and the places of what is kept.
 *
 * The source is always matched as a whole, by its own configuration; a subset, or a model without
 * its MTP layers, is then a second table whose rows are found in the first by layer and order. So
 * all checks see the source as its author meant it, and no name is ever made up. */
#include "convert/hfdir.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/ckpt.h"
#include "convert/hfdir_inside.h"

/* The whole text becomes a tree, which may take a hundred times its bytes. */
enum { CONFIG_LIMIT = 2 << 20 };

/* ---- places of the kept rows ----------------------------------------------------------------- */

/* The row of the whole model's table that row i of the kept model's table is: the one of the same
 * layer (by its old number) at the same position among that layer's rows. */
static const struct table_entry *old_row(
    const struct table *all, const struct table *t, int64_t i, const struct hf_keep *keep)
{
    const struct table_entry *e = &t->entries[i];
    const int layer = e->layer < 0 ? -1 : keep->layers[e->layer];
    int64_t nth = 0;
    for (int64_t j = 0; j < i; j++)
        nth += t->entries[j].layer == e->layer;
    for (int64_t j = 0; j < all->count; j++)
        if (all->entries[j].layer == layer && nth-- == 0)
            return &all->entries[j];
    return NULL;
}

/* Bytes of a whole tensor of this shape, a cut row's rows counted as kept. */
static uint64_t bytes_of(const int64_t *shape, int rank, enum glm_dtype dtype)
{
    int64_t n = 1;
    for (int i = 0; i < rank; i++)
        n *= shape[i]; /* the table has checked that this does not wrap */
    return (uint64_t)n * (uint64_t)glm_dtype_bits(dtype) / 8;
}

static void count_unit(
    struct hf_source *s, const struct table_entry *e, const struct hf_place *unit)
{
    const int skip = e->stack ? 1 : 0;
    int64_t shape[3];
    const int rank = e->rank - skip;
    memcpy(shape, e->shape + skip, (size_t)rank * sizeof *shape);
    s->tensors++;
    s->bytes += bytes_of(shape, rank, unit[0].dtype);
    if (unit[1].file < 0)
        return;
    for (int i = 0; i < 2 && rank >= 2; i++)
        shape[rank - 2 + i] =
            (shape[rank - 2 + i] + s->scale_block[i] - 1) / s->scale_block[i];
    s->tensors++;
    s->bytes += bytes_of(shape, rank, unit[1].dtype);
}

static int fill_places(struct hf_source *s, const struct hf_match *m,
    const struct hf_keep *keep, struct glm_error *err)
{
    const struct table *t = s->table;
    int64_t units = 0;
    s->first = malloc(((size_t)t->count + 1) * sizeof *s->first);
    s->places = malloc(((size_t)t->hf_tensors + 1) * 2 * sizeof *s->places);
    if (!s->first || !s->places)
        return glm_fail(err, GLM_ENOMEM, "%s: no memory for %" PRId64 " tensors", s->dir,
            t->hf_tensors);
    for (int64_t i = 0; i < t->count; i++) {
        const struct table_entry *e = &t->entries[i],
                                 *old = old_row(m->table, t, i, keep);
        if (!old || old->kind != e->kind || old->stack != e->stack
            || old->rank != e->rank)
            return glm_fail(err, GLM_EFORMAT,
                "%s: the kept model's tensor '%s' has no counterpart "
                "in the whole model",
                s->dir, e->name);
        s->first[i] = units;
        for (int64_t j = 0; j < table_members(e); j++, units++) {
            const int64_t member = e->stack && keep->experts ? keep->experts[j] : j;
            const struct hf_place *from =
                &m->places[2 * (m->first[old - m->table->entries] + member)];
            memcpy(&s->places[2 * units], from, 2 * sizeof *from);
            if (from->file >= 0)
                count_unit(s, e, from);
        }
    }
    return 0;
}

const struct hf_place *hfdir_place(
    const struct hf_source *s, const struct table_entry *e, int64_t member, bool scale)
{
    const int64_t unit = s->first[e - s->table->entries] + (member > 0 ? member : 0);
    return &s->places[2 * unit + (scale ? 1 : 0)];
}

bool hfdir_cut_rows(const struct hf_source *s, const struct table_entry *e)
{
    return s->experts && e->kind == KIND_ROUTER;
}

/* ---- opening --------------------------------------------------------------------------------- */

static int read_config(struct hf_source *s, struct model_config *c, struct glm_error *err)
{
    char path[4096];
    bool there = false;
    for (int64_t i = 0; i < s->side_count; i++)
        there = there || strcmp(s->sides[i].path, "config.json") == 0;
    if (!there)
        return glm_fail(err, GLM_EFORMAT,
            "%s: no config.json in it: it says what tensors there "
            "must be",
            s->dir);
    snprintf(path, sizeof path, "%s/config.json", s->dir);
    void *text;
    if (hfdir_slurp(s, "config.json", CONFIG_LIMIT, &text, &s->config_size, err) != 0)
        return err->code;
    s->config_text = text;
    return config_parse(c, path, s->config_text, s->config_size, err);
}

/* The table of what is kept; config.json is rewritten if that is a subset. */
static int build_kept(struct hf_source *s, const struct model_config *whole,
    const struct hf_keep *keep, const struct hf_options *o, struct glm_error *err)
{
    struct model_config c;
    char path[4096], *text;
    size_t size;
    s->subset = o->subset.layers || o->subset.experts;
    snprintf(
        path, sizeof path, "%s/config.json%s", s->dir, s->subset ? " (rewritten)" : "");
    if (s->subset) {
        if (hfdir_keep_config(
                keep, whole, s->config_text, s->config_size, &text, &size, err)
            != 0)
            return err->code;
        free(s->config_text);
        s->config_text = text;
        s->config_size = size;
    }
    if (config_parse(&c, path, s->config_text, s->config_size, err) != 0
        || table_build(&s->table, &c, o->no_mtp, err) != 0)
        return err->code;
    s->has_mtp = s->table->config.num_mtp_layers > 0;
    if (!keep->experts)
        return 0;
    int *copy = malloc((size_t)keep->expert_count * sizeof *copy);
    if (!copy)
        return glm_fail(err, GLM_ENOMEM, "%s: no memory", s->dir);
    memcpy(copy, keep->experts, (size_t)keep->expert_count * sizeof *copy);
    s->experts = copy;
    return 0;
}

static void take_scales(struct hf_source *s, const struct hf_match *m)
{
    for (int i = 0; i < HF_SUFFIXES; i++)
        if (m->suffixes[i].count)
            snprintf(s->scale_suffix, sizeof s->scale_suffix, "%s", hfdir_suffixes[i]);
    if (m->scale_dtype < 0)
        return;
    memcpy(s->scale_block, m->block, sizeof s->scale_block);
    s->scale_dtype = (enum glm_dtype)m->scale_dtype;
}

static int open_source(struct hf_source *s, const struct hf_options *o,
    struct hf_match *m, struct hf_keep *keep, struct glm_error *err)
{
    struct model_config c = {0};
    struct table *whole = NULL;
    char *index_name = NULL;
    if (hfdir_scan(s, &index_name, err) != 0 || read_config(s, &c, err) != 0
        || table_build(&whole, &c, false, err) != 0)
        goto out;
    m->s = s;
    m->table = whole;
    m->mtp_may_lack = o->mtp_may_lack;
    /* The command line first: it costs nothing to check. */
    if (hfdir_keep(keep, &whole->config, o, err) != 0
        || hfdir_headers(s, o->threads, err) != 0)
        goto out;
    if (index_name) {
        if (hfdir_index(s, index_name, err) != 0)
            goto out;
    } else if (s->file_count > 1
        && hfdir_warn(s, err,
               "no index file: all %" PRId64 " safetensors files are taken together",
               s->file_count)
            != 0)
        goto out;
    if (hfdir_match(m, err) != 0 || hfdir_check(m, keep, err) != 0)
        goto out;
    s->fused = m->fused;
    take_scales(s, m);
    if (build_kept(s, &whole->config, keep, o, err) == 0)
        fill_places(s, m, keep, err);
out:
    free(index_name);
    table_free(whole);
    return err->code;
}

int hfdir_open(struct hf_source **out, const char *dir, const struct hf_options *o,
    struct glm_error *err)
{
    struct hf_match *m = calloc(1, sizeof *m);
    struct hf_source *s = calloc(1, sizeof *s);
    struct hf_keep keep = {0};
    *out = NULL;
    if (!m || !s || !(s->dir = strdup(dir)))
        glm_fail(err, GLM_ENOMEM, "%s: no memory", dir);
    else if (dir[0] == '\0')
        glm_fail(err, GLM_EUSAGE, "the name of the input is empty");
    else if (strlen(dir) > 3072)
        glm_fail(err, GLM_EUSAGE, "a folder name of %zu bytes is too long", strlen(dir));
    else if (s->store = o->store, open_source(s, o, m, &keep, err) == 0) {
        *out = s;
        s = NULL;
    }
    hfdir_close(s);
    if (m)
        hfdir_match_clear(m);
    free(m);
    free(keep.layers);
    return err->code;
}

void hfdir_close(struct hf_source *s)
{
    if (!s)
        return;
    for (int64_t i = 0; i < s->file_count; i++) {
        free(s->files[i].name);
        free(s->files[i].header_bytes);
        st_clear(&s->files[i].header);
    }
    for (int64_t i = 0; i < s->side_count; i++)
        free(s->sides[i].path);
    for (int i = 0; i < s->warning_count; i++)
        free(s->warnings[i]);
    free(s->files);
    free(s->sides);
    free(s->warnings);
    free(s->dir);
    free(s->config_text);
    free((int *)s->experts);
    free(s->places);
    free(s->first);
    table_free(s->table);
    free(s);
}
