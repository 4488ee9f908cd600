/* A valid smaller model of real weights: which layers and experts may be kept, and the
 * configuration that describes what is left.
 *
 * Layers are renumbered without gaps, MTP layers stay last. A layer that shares an index set must
 * keep sharing the set it was trained with, so its source has to be kept; then no other full layer
 * can lie between them, since the source was the nearest in the whole model. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "convert/hfdir_inside.h"

/* ---- lists ----------------------------------------------------------------------------------- */

enum { LIST_MAX = 100000 };

static bool take_number(const char **p, int *out)
{
    const char *q = *p;
    int n = 0;
    while (*q >= '0' && *q <= '9' && n < LIST_MAX)
        n = n * 10 + (*q++ - '0');
    if (q == *p || n >= LIST_MAX)
        return false;
    *p = q;
    *out = n;
    return true;
}

int hf_list_parse(
    const char *option, const char *text, int **list, int *count, struct glm_error *err)
{
    bool *in = calloc(LIST_MAX, sizeof *in);
    const char *p = text;
    int total = 0;
    *list = NULL;
    *count = 0;
    if (!in)
        return glm_fail(err, GLM_ENOMEM, "%s: no memory", option);
    for (;;) {
        const char *piece = p;
        int from, to;
        bool good = take_number(&p, &from);
        to = from;
        if (good && *p == '-') {
            p++;
            good = take_number(&p, &to) && to >= from;
        }
        if (!good || (*p != ',' && *p != '\0')) {
            glm_fail(err, GLM_EUSAGE,
                "%s: at '%.40s': expected numbers and ranges such as 0-3,78", option,
                piece);
            goto out;
        }
        for (int i = from; i <= to; i++) {
            if (in[i]) {
                glm_fail(err, GLM_EUSAGE, "%s: %d is named twice", option, i);
                goto out;
            }
            in[i] = true;
            total++;
        }
        if (*p++ == '\0')
            break;
    }
    *list = malloc((size_t)total * sizeof **list);
    if (!*list) {
        glm_fail(err, GLM_ENOMEM, "%s: no memory", option);
        goto out;
    }
    for (int i = 0; i < LIST_MAX; i++)
        if (in[i])
            (*list)[(*count)++] = i;
out:
    free(in);
    return err->code;
}

/* ---- what may be kept ------------------------------------------------------------------------ */

/* The layer whose index set layer i uses: itself if it is full. */
static int64_t index_source(const struct model_config *c, int64_t i)
{
    while (i > 0 && !c->layer_owns_indexer[i])
        i--;
    return i;
}

static void list_full(const struct model_config *c, char *out, size_t size)
{
    size_t at = 0;
    out[0] = '\0';
    for (int64_t i = 0; i < c->num_hidden_layers && at + 8 < size; i++)
        if (c->layer_owns_indexer[i])
            at += (size_t)snprintf(out + at, size - at, "%s%" PRId64, at ? "," : "", i);
}

static int check_range(
    const struct model_config *c, const struct hf_options *o, struct glm_error *err)
{
    const int64_t main = c->num_hidden_layers, all = main + c->num_mtp_layers;
    const struct hf_subset *s = &o->subset;
    for (int i = 0; i < s->layer_count; i++) {
        if (s->layers[i] < 0 || s->layers[i] >= all)
            return glm_fail(err, GLM_EUSAGE,
                "--layers: layer %d: the model has layers 0-%" PRId64 "%s", s->layers[i],
                all - 1, c->num_mtp_layers ? ", the MTP layers last" : "");
        if (i > 0 && s->layers[i] <= s->layers[i - 1])
            return glm_fail(err, GLM_EUSAGE,
                "--layers: %d does not follow %d: ascending, each once", s->layers[i],
                s->layers[i - 1]);
        if (o->no_mtp && s->layers[i] >= main)
            return glm_fail(err, GLM_EUSAGE,
                "--layers names the MTP layer %d, which --no-mtp leaves out",
                s->layers[i]);
    }
    if (s->layer_count < 1 || s->layers[0] >= main)
        return glm_fail(err, GLM_EUSAGE,
            "--layers: at least one of the layers 0-%" PRId64 " must be kept", main - 1);
    return 0;
}

static int check_layers(
    const struct hf_keep *k, const struct model_config *c, struct glm_error *err)
{
    char full[400];
    list_full(c, full, sizeof full);
    if (!c->layer_owns_indexer[k->layers[0]])
        return glm_fail(err, GLM_EUSAGE,
            "--layers: the first kept layer %d has no index set of its "
            "own; legal first layers: %s",
            k->layers[0], full);
    int64_t kept = k->layers[0]; /* the nearest kept full layer */
    for (int i = 0; i < k->main_count; i++) {
        const int64_t layer = k->layers[i], source = index_source(c, layer);
        if (source == layer)
            kept = layer;
        if (kept != source)
            return glm_fail(err, GLM_EUSAGE,
                "--layers: layer %" PRId64 " uses the index set of "
                "layer %" PRId64 ", which is not kept: add %" PRId64
                " or leave out %" PRId64 " (full layers: %s)",
                layer, source, source, layer, full);
        if (i > 0 && c->layer_is_dense[layer] && !c->layer_is_dense[k->layers[i - 1]])
            return glm_fail(err, GLM_EUSAGE,
                "--layers: the dense layer %" PRId64
                " would follow the MoE layer %d; dense layers must come first",
                layer, k->layers[i - 1]);
    }
    return 0;
}

static int check_experts(
    const struct hf_subset *s, const struct model_config *c, struct glm_error *err)
{
    const int64_t n = s->expert_count, groups = c->n_group,
                  per_token = c->num_experts_per_tok;
    for (int i = 0; i < s->expert_count; i++) {
        if (s->experts[i] < 0 || s->experts[i] >= c->n_routed_experts)
            return glm_fail(err, GLM_EUSAGE,
                "--experts: expert %d: the model has experts 0-%" PRId64, s->experts[i],
                c->n_routed_experts - 1);
        if (i > 0 && s->experts[i] <= s->experts[i - 1])
            return glm_fail(err, GLM_EUSAGE,
                "--experts: %d does not follow %d: ascending, each once", s->experts[i],
                s->experts[i - 1]);
    }
    if (n < per_token)
        return glm_fail(err, GLM_EUSAGE,
            "--experts: %" PRId64 " kept, but each token chooses %" PRId64
            ": keep %" PRId64 " or more",
            n, per_token, per_token);
    if (n % groups != 0)
        return glm_fail(err, GLM_EUSAGE,
            "--experts: %" PRId64 " kept do not divide into the %" PRId64
            " groups of the router: keep %" PRId64 " or %" PRId64,
            n, groups, n / groups * groups, (n / groups + 1) * groups);
    /* A group is scored by its two best experts, and tokens choose inside topk_group groups. */
    const int64_t least = groups == 1 ? 1 : 2;
    const int64_t each = (per_token + c->topk_group - 1) / c->topk_group;
    const int64_t floor = each > least ? each : least;
    if (n / groups < floor)
        return glm_fail(err, GLM_EUSAGE,
            "--experts: %" PRId64 " kept give %" PRId64 " for each of %" PRId64
            " groups, too few to choose %" PRId64 " from %" PRId64
            " groups: keep %" PRId64 " or more",
            n, n / groups, groups, per_token, c->topk_group, floor * groups);
    return 0;
}

int hfdir_keep(struct hf_keep *k, const struct model_config *c,
    const struct hf_options *o, struct glm_error *err)
{
    const int64_t all = c->num_hidden_layers + (o->no_mtp ? 0 : c->num_mtp_layers);
    const bool listed = o->subset.layers != NULL;
    *k = (struct hf_keep){.expert_count = c->n_routed_experts};
    if (listed && check_range(c, o, err) != 0)
        return err->code;
    if (o->subset.experts && check_experts(&o->subset, c, err) != 0)
        return err->code;
    k->layer_count = listed ? o->subset.layer_count : (int)all;
    k->layers = malloc((size_t)k->layer_count * sizeof *k->layers);
    if (!k->layers)
        return glm_fail(err, GLM_ENOMEM, "no memory for %d layers", k->layer_count);
    for (int i = 0; i < k->layer_count; i++) {
        k->layers[i] = listed ? o->subset.layers[i] : i;
        k->main_count += k->layers[i] < c->num_hidden_layers;
    }
    if (o->subset.experts) {
        k->experts = o->subset.experts;
        k->expert_count = o->subset.expert_count;
    }
    return listed ? check_layers(k, c, err) : 0;
}

/* ---- the configuration ----------------------------------------------------------------------- */

/* New number of an old layer, -1 if it is left out. */
static int renumber(const struct hf_keep *k, long old)
{
    for (int i = 0; i < k->layer_count; i++)
        if (k->layers[i] == old)
            return i;
    return -1;
}

/* A module's name with its layer renumbered: NULL if the layer is left out. */
static json_t *rename_module(const struct hf_keep *k, json_t *module)
{
    const char *name = json_string_value(module),
               *p = name ? strstr(name, "layers.") : NULL;
    char *end;
    if (!p || (p > name && p[-1] != '.'))
        return json_incref(module);
    p += strlen("layers.");
    const long old = strtol(p, &end, 10);
    if (end == p || (*end != '.' && *end != '\0'))
        return json_incref(module);
    const int now = renumber(k, old);
    return now < 0 ? NULL : json_sprintf("%.*s%d%s", (int)(p - name), name, now, end);
}

static int rename_modules(const struct hf_keep *k, json_t *quantisation)
{
    static const char *const keys[] = {
        "modules_to_not_convert", "ignored_layers", "ignore"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        json_t *old = json_object_get(quantisation, keys[i]), *module;
        if (!json_is_array(old))
            continue;
        json_t *now = json_array();
        size_t j;
        int bad = now == NULL;
        json_array_foreach(old, j, module)
        {
            json_t *name = rename_module(k, module);
            bad |= name && json_array_append_new(now, name) != 0;
        }
        if (bad || json_object_set_new(quantisation, keys[i], now) != 0)
            return -1;
    }
    return 0;
}

/* A list with one item per main layer keeps those of the kept layers. */
static int cut_list(const struct hf_keep *k, const struct model_config *c, json_t *config,
    const char *key)
{
    json_t *old = json_object_get(config, key);
    if (!json_is_array(old) || (int64_t)json_array_size(old) < c->num_hidden_layers)
        return 0;
    /* layer_types may count the MTP layers too */
    const int all = (int64_t)json_array_size(old) > c->num_hidden_layers;
    json_t *now = json_array();
    for (int i = 0; now && i < (all ? k->layer_count : k->main_count); i++)
        json_array_append(now, json_array_get(old, (size_t)k->layers[i]));
    return json_object_set_new(config, key, now);
}

/* The schedule as a list: frequency and offset describe the old numbers only. */
static int set_indexers(
    const struct hf_keep *k, const struct model_config *c, json_t *config)
{
    static const char *const keys[] = {"indexer_types", "index_topk_pattern",
        "index_topk_freq", "index_skip_topk_offset"};
    bool said = false;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        said = said || json_object_get(config, keys[i]);
        if (i > 0)
            json_object_del(config, keys[i]);
    }
    if (!said) /* every layer is full, before and after */
        return 0;
    json_t *types = json_array();
    for (int i = 0; types && i < k->main_count; i++)
        json_array_append_new(
            types, json_string(c->layer_owns_indexer[k->layers[i]] ? "full" : "shared"));
    return json_object_set_new(config, "indexer_types", types);
}

static int set_count(json_t *config, const char *key, int64_t value, bool always)
{
    const json_t *v = json_object_get(config, key);
    return always || (v && !json_is_null(v))
        ? json_object_set_new(config, key, json_integer(value))
        : 0;
}

static int rewrite(const struct hf_keep *k, const struct model_config *c, json_t *config)
{
    int dense = 0;
    while (dense < k->main_count && c->layer_is_dense[k->layers[dense]])
        dense++;
    json_t *quantisation = json_object_get(config, "quantization_config");
    return set_count(config, "num_hidden_layers", k->main_count, true) != 0
        || set_count(config, "num_nextn_predict_layers", k->layer_count - k->main_count,
               c->num_mtp_layers > 0)
        != 0
        || set_count(config, "first_k_dense_replace", dense, false) != 0
        || set_count(config, "n_routed_experts", k->expert_count, false) != 0
        || set_count(config, "num_local_experts", k->expert_count, false) != 0
        || set_count(config, "num_experts", k->expert_count, false) != 0
        || cut_list(k, c, config, "mlp_layer_types") != 0
        || cut_list(k, c, config, "layer_types") != 0 || set_indexers(k, c, config) != 0
        || (quantisation && rename_modules(k, quantisation) != 0);
}

int hfdir_keep_config(const struct hf_keep *k, const struct model_config *c,
    const char *text, size_t size, char **out, size_t *out_size, struct glm_error *err)
{
    *out = NULL;
    json_t *config = json_loadb(text, size, JSON_REJECT_DUPLICATES, NULL);
    char *dump = NULL;
    if (config && rewrite(k, c, config) == 0)
        dump = json_dumps(config, JSON_INDENT(2));
    json_decref(config);
    if (!dump) /* the text was parsed before */
        return glm_fail(err, GLM_ENOMEM, "no memory to rewrite config.json");
    *out_size = strlen(dump) + 1;
    *out = malloc(*out_size + 1);
    if (*out)
        snprintf(*out, *out_size + 1, "%s\n", dump);
    free(dump);
    return *out ? 0 : glm_fail(err, GLM_ENOMEM, "no memory to rewrite config.json");
}
