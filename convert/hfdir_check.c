/* Judges a match: every way to be wrong is its own sentence with the first names and the count.
 *
 * The order is that of causes: two conventions mixed explain missing scales, a moved indexer
 * explains a missing and a surplus one, an MTP layer dropped by another tool explains its names. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "convert/hfdir_inside.h"

struct check {
    const struct hf_match *m;
    const struct hf_keep *keep;
    struct glm_error *err;
    bool *layers, *experts; /* kept, by old number */
};

static bool kept(const struct check *k, const struct table_entry *e, int64_t member)
{
    return (e->layer < 0 || k->layers[e->layer]) && (!e->stack || k->experts[member]);
}

typedef bool unit_test(
    const struct check *k, const struct table_entry *e, const struct hf_place *unit);

/* Collects the names of kept units that a test picks; of their scales if so asked. */
static struct hf_names collect(const struct check *k, unit_test *picks, bool scales)
{
    struct hf_names n = {0};
    const struct table *t = k->m->table;
    int suffix = 0;
    while (suffix + 1 < HF_SUFFIXES && k->m->suffixes[suffix].count == 0)
        suffix++;
    for (int64_t i = 0; i < t->count; i++)
        for (int64_t j = 0; j < table_members(&t->entries[i]); j++) {
            const struct table_entry *e = &t->entries[i];
            char name[HF_NAME], scale[HF_NAME];
            if (!kept(k, e, j) || !picks(k, e, &k->m->places[2 * (k->m->first[i] + j)]))
                continue;
            table_member_name(e, j, name, sizeof name);
            if (scales
                && table_scale_name(name, hfdir_suffixes[suffix], scale, sizeof scale)
                    > 0)
                hfdir_list(&n, "%s", scale);
            else
                hfdir_list(&n, "%s", name);
        }
    return n;
}

static bool lacks(
    const struct check *k, const struct table_entry *e, const struct hf_place *unit)
{
    (void)k, (void)e;
    return unit[0].file < 0;
}

static bool scale_alone(
    const struct check *k, const struct table_entry *e, const struct hf_place *unit)
{
    (void)k, (void)e;
    return unit[0].file < 0 && unit[1].file >= 0;
}

static bool is_code(const struct hf_place *p)
{
    return p->dtype == GLM_F8_E4M3 || p->dtype == GLM_F8_E5M2;
}

static bool code_alone(
    const struct check *k, const struct table_entry *e, const struct hf_place *unit)
{
    (void)k, (void)e;
    return unit[0].file >= 0 && is_code(&unit[0]) && unit[1].file < 0;
}

static bool scaled_value(
    const struct check *k, const struct table_entry *e, const struct hf_place *unit)
{
    (void)k, (void)e;
    return unit[0].file >= 0 && !is_code(&unit[0]) && unit[1].file >= 0;
}

/* A checkpoint's codes with scales are E4M3. */
static bool other_code(
    const struct check *k, const struct table_entry *e, const struct hf_place *unit)
{
    (void)k, (void)e;
    return unit[0].file >= 0 && unit[0].dtype == GLM_F8_E5M2 && unit[1].file >= 0;
}

static bool scaled_vector(
    const struct check *k, const struct table_entry *e, const struct hf_place *unit)
{
    (void)k;
    return e->rank < 2 && unit[1].file >= 0;
}

static bool lacks_mtp(
    const struct check *k, const struct table_entry *e, const struct hf_place *unit)
{
    return unit[0].file < 0 && e->layer >= k->m->table->config.num_hidden_layers;
}

static bool has_mtp(
    const struct check *k, const struct table_entry *e, const struct hf_place *unit)
{
    return unit[0].file >= 0 && e->layer >= k->m->table->config.num_hidden_layers;
}

static bool cut_and_scaled(
    const struct check *k, const struct table_entry *e, const struct hf_place *unit)
{
    return k->keep->experts && e->kind == KIND_ROUTER && unit[1].file >= 0;
}

/* A stack is one logical tensor: its kept members must have one type. */
static bool odd_member(
    const struct check *k, const struct table_entry *e, const struct hf_place *unit)
{
    if (!e->stack || unit[0].file < 0)
        return false;
    const struct hf_place *all = &k->m->places[2 * k->m->first[e - k->m->table->entries]];
    for (int64_t j = 0; j < table_members(e); j++)
        if (k->experts[j] && all[2 * j].file >= 0)
            return all[2 * j].dtype != unit[0].dtype
                || all[2 * j + 1].dtype != unit[1].dtype;
    return false;
}

static int fail(const struct check *k, const struct hf_names *n, const char *what)
{
    return glm_fail(k->err, GLM_EFORMAT, "%s: %" PRId64 " %s: %s%s", k->m->s->dir,
        n->count, what, n->text, n->count > HF_LISTED ? ", …" : "");
}

static int fail_if(const struct check *k, struct hf_names n, const char *what)
{
    return n.count ? fail(k, &n, what) : 0;
}

static int check_suffixes(const struct check *k)
{
    const struct hf_names *first = NULL;
    int a = 0;
    for (int i = 0; i < HF_SUFFIXES; i++) {
        const struct hf_names *n = &k->m->suffixes[i];
        if (n->count && first)
            return glm_fail(k->err, GLM_EFORMAT,
                "%s: two names for scales in one model: %" PRId64
                " end in %s (%.200s%s), %" PRId64 " in %s (%.200s%s)",
                k->m->s->dir, first->count, hfdir_suffixes[a], first->text,
                first->count > 2 ? ", …" : "", n->count, hfdir_suffixes[i], n->text,
                n->count > 2 ? ", …" : "");
        if (n->count) {
            first = n;
            a = i;
        }
    }
    return 0;
}

static int check_scales(const struct check *k)
{
    const struct hf_match *m = k->m;
    int64_t scales = 0;
    for (int i = 0; i < HF_SUFFIXES; i++)
        scales += m->suffixes[i].count;
    if (scales > 0 && m->block[0] == 1 && m->block[1] == 1)
        return glm_fail(k->err, GLM_EFORMAT,
            "%s: %" PRId64
            " scales of blocks of 1x1 by weight_block_size in config.json: "
            "a scale must stand for more than one element",
            m->s->dir, scales);
    const bool named = m->table->config.quant_method[0] != '\0';
    if (m->unsettled.count)
        return fail(k, &m->unsettled,
            named ? "scales whose block size is unknown, since quantization_config in "
                    "config.json has no "
                    "weight_block_size; it is not guessed"
                  : "scales whose meaning is unknown, since config.json has no "
                    "quantization_config");
    if (fail_if(k, m->bad_scales,
            strcmp(m->table->config.quant_method, "mxfp8") == 0
                ? "scales of a type that is none for mxfp8 (F8_E8M0 or U8)"
                : "scales of a type that is none for fp8 (F32, BF16 or F8_E8M0)")
        != 0)
        return k->err->code;
    if (m->other_scales.count) {
        char what[128];
        snprintf(what, sizeof what,
            "scales of another type than the others, which are %s",
            glm_dtype_name((enum glm_dtype)m->scale_dtype));
        return fail(k, &m->other_scales, what);
    }
    return 0;
}

/* A shared layer with an indexer: say which layer it may have come from. */
static int check_indexers(const struct check *k)
{
    const struct hf_match *m = k->m;
    if (m->stray_layer < 0)
        return 0;
    for (int64_t i = 0; i < m->table->count; i++) {
        const struct table_entry *e = &m->table->entries[i];
        if (e->kind == KIND_INDEXER && m->places[2 * m->first[i]].file < 0)
            return glm_fail(k->err, GLM_EFORMAT,
                "%s: indexers stand in the wrong layer: layer %d "
                "lacks, layer %d has one too many",
                m->s->dir, e->layer, m->stray_layer);
    }
    return glm_fail(k->err, GLM_EFORMAT,
        "%s: layer %d has an indexer, but by config.json it "
        "shares the index set of a layer below: %s",
        m->s->dir, m->stray_layer, m->extra.text);
}

static int check_complete(const struct check *k)
{
    const struct hf_match *m = k->m;
    struct hf_names missing = collect(k, lacks, false);
    const struct hf_names mtp = collect(k, lacks_mtp, false);
    const bool dropped =
        mtp.count && collect(k, has_mtp, false).count == 0 && mtp.count == missing.count;
    if (dropped && m->mtp_may_lack)
        missing = (struct hf_names){0};
    else if (dropped)
        return fail(k, &mtp,
            "tensors missing, all of the MTP layer that config.json promises "
            "(transformers drops it on saving; --no-mtp imports the rest)");
    if (missing.count && m->extra.count)
        return glm_fail(k->err, GLM_EFORMAT,
            "%s: %" PRId64 " tensors missing: %.350s%s; %" PRId64
            " extra that the model does not have: %.350s%s",
            m->s->dir, missing.count, missing.text,
            missing.count > HF_LISTED ? ", …" : "", m->extra.count, m->extra.text,
            m->extra.count > HF_LISTED ? ", …" : "");
    if (fail_if(k, missing, "tensors missing") != 0)
        return k->err->code;
    return fail_if(k, m->extra, "extra tensors that the model does not have");
}

static int run(const struct check *k)
{
    const struct hf_match *m = k->m;
    if (check_suffixes(k) != 0
        || fail_if(k, m->twice, "tensors given more than once") != 0
        || fail_if(k, m->misshapen, "tensors misshapen") != 0
        || fail_if(k, m->half_bytes,
               "tensors of a type smaller than a byte, which a checkpoint cannot hold")
            != 0
        || check_scales(k) != 0 || check_indexers(k) != 0
        || fail_if(k, collect(k, scale_alone, true), "scales without their weight") != 0
        || check_complete(k) != 0
        || fail_if(k, collect(k, code_alone, false), "FP8 weights without their scale")
            != 0
        || fail_if(k, collect(k, scaled_vector, false),
               "vectors with a scale, whose blocks are those of a matrix")
            != 0
        || fail_if(k, collect(k, other_code, false),
               "weights of F8_E5M2 with a scale, which must be F8_E4M3")
            != 0
        || fail_if(k, collect(k, scaled_value, false),
               "weights with a scale that are not FP8")
            != 0
        || fail_if(k, collect(k, odd_member, false),
               "experts of another type than the first of their stack")
            != 0)
        return k->err->code;
    return fail_if(k, collect(k, cut_and_scaled, false),
        "routers with scales, whose rows --experts cannot cut");
}

int hfdir_check(
    const struct hf_match *m, const struct hf_keep *keep, struct glm_error *err)
{
    const struct model_config *c = &m->table->config;
    const size_t layers = (size_t)(c->num_hidden_layers + c->num_mtp_layers);
    struct check k = {m, keep, err, calloc(layers + 1, sizeof(bool)),
        calloc((size_t)c->n_routed_experts + 1, sizeof(bool))};
    if (!k.layers || !k.experts) {
        glm_fail(err, GLM_ENOMEM, "%s: no memory", m->s->dir);
        goto out;
    }
    for (int i = 0; i < keep->layer_count; i++)
        k.layers[keep->layers[i]] = true;
    for (int64_t i = 0; i < c->n_routed_experts; i++)
        k.experts[i] = !keep->experts;
    for (int64_t i = 0; keep->experts && i < keep->expert_count; i++)
        k.experts[keep->experts[i]] = true;
    run(&k);
out:
    free(k.layers);
    free(k.experts);
    return err->code;
}
