#include "cli/inspect_show.h"

#include <string.h>

#include "cli/progress.h"
#include "cli/report.h"

const char *show_count(int64_t n, char *buf, size_t size)
{
    char digits[32];
    const int length = snprintf(digits, sizeof digits, "%lld", (long long)n);
    size_t used = 0;
    for (int i = 0; i < length && used + 2 < size; i++) {
        buf[used++] = digits[i];
        if (digits[i] != '-' && i + 1 < length && (length - 1 - i) % 3 == 0)
            buf[used++] = ',';
    }
    buf[used] = '\0';
    return buf;
}

const char *show_shape(int rank, const int64_t *shape, char *buf, size_t size)
{
    int n = snprintf(buf, size, "[");
    for (int i = 0; i < rank; i++)
        n += snprintf(
            buf + n, size - (size_t)n, "%s%lld", i > 0 ? ", " : "", (long long)shape[i]);
    snprintf(buf + n, size - (size_t)n, "]");
    return buf;
}

/* ---- summary ----------------------------------------------------------------------------------- */

static void sum_json(
    struct jsonout *j, json_t *to, const char *key, const struct inspect_sum *s)
{
    json_t *o = jsonout_object(j, to, key);
    jsonout_int(j, o, "tensors", s->tensors);
    jsonout_int(j, o, "elements", s->elements);
    jsonout_uint(j, o, "bytes", s->raw);
    jsonout_uint(j, o, "stored_bytes", s->stored);
}

static void topology_json(const struct show *s)
{
    const struct manifest *m = inspect_manifest(s->in);
    if (m == NULL) {
        jsonout_str(s->json, NULL, "topology", NULL);
        return;
    }
    const struct topology *t = placement_topology(m->placement);
    json_t *o = jsonout_object(s->json, NULL, "topology");
    jsonout_int(s->json, o, "tp", t->tp);
    jsonout_int(s->json, o, "pp", t->pp);
    jsonout_int(s->json, o, "vpp", t->vpp);
    jsonout_int(s->json, o, "ep", t->ep);
    jsonout_int(s->json, o, "etp", t->etp);
    jsonout_str(s->json, o, "layout", t->layout);
}

static double ratio(const struct inspect_summary *s)
{
    return s->all.raw > 0 ? (double)s->all.stored / (double)s->all.raw : 1.0;
}

static void summary_json(const struct show *s, const struct inspect_summary *y)
{
    struct jsonout *j = s->json;
    const struct table *t = inspect_table(s->in);
    const struct manifest *m = inspect_manifest(s->in);
    jsonout_str(j, NULL, "format", m != NULL ? "checkpoint" : "huggingface");
    json_t *model = jsonout_object(j, NULL, "model");
    jsonout_str(j, model, "type", t->config.model_type);
    jsonout_int(j, model, "layers", t->config.num_hidden_layers);
    jsonout_int(j, model, "mtp_layers",
        m != NULL && m->without_mtp ? 0 : t->config.num_mtp_layers);
    jsonout_int(j, model, "experts", t->config.n_routed_experts);
    jsonout_int(j, model, "parameters", y->weights.elements);
    jsonout_int(
        j, model, "parameters_without_mtp", y->weights.elements - y->mtp.elements);
    jsonout_int(j, model, "tensors", y->weights.tensors);
    jsonout_int(j, model, "tensors_without_mtp", y->weights.tensors - y->mtp.tensors);
    topology_json(s);
    jsonout_int(j, NULL, "shards", y->shards);
    jsonout_int(j, NULL, "cells", y->cells);
    jsonout_uint(j, NULL, "shard_bytes", y->shard_bytes);
    jsonout_uint(j, NULL, "index_bytes", y->index_bytes);
    jsonout_real(j, NULL, "compression", ratio(y));
    jsonout_int(j, NULL, "derived", y->derived);
    sum_json(j, NULL, "all", &y->all);
    json_t *o = jsonout_object(j, NULL, "sections");
    for (int i = 0; i < SECTION_COUNT; i++)
        if (y->section[i].tensors > 0)
            sum_json(j, o, section_name((enum ckpt_section)i), &y->section[i]);
    o = jsonout_object(j, NULL, "dtypes");
    for (int i = 0; i < GLM_DTYPE_COUNT; i++)
        if (y->dtype[i].tensors > 0)
            sum_json(j, o, glm_dtype_name((enum glm_dtype)i), &y->dtype[i]);
    o = jsonout_object(j, NULL, "kinds");
    for (int i = 0; i < KIND_COUNT; i++)
        if (y->kind[i].tensors > 0)
            sum_json(j, o, table_kind_name((enum table_kind)i), &y->kind[i]);
    if (m != NULL) {
        jsonout_digest(j, NULL, "fingerprint", m->fingerprint);
        jsonout_digest(j, NULL, "id", m->id);
    } else {
        jsonout_str(j, NULL, "fingerprint", NULL);
        jsonout_str(j, NULL, "id", NULL);
    }
}

static void sum_line(const char *name, const struct inspect_sum *s)
{
    char tensors[32], elements[32], stored[32];
    printf("  %-16s %10s tensor%s %20s elements %12s", name,
        show_count(s->tensors, tensors, 32), s->tensors == 1 ? " " : "s",
        show_count(s->elements, elements, 32), progress_bytes(s->stored, stored, 32));
    if (s->stored != s->raw && s->raw > 0)
        printf("  (%.1f %% of raw)", 100.0 * (double)s->stored / (double)s->raw);
    printf("\n");
}

static void summary_checkpoint(const struct manifest *m, const struct inspect_summary *y)
{
    char word[64], hex[DIGEST_HEX], bytes[32], index[32], shown[CLI_SHOWN];
    const struct topology *t = placement_topology(m->placement);
    topology_print(t, word, sizeof word);
    printf("topology     %s, layout %s\n", word, t->layout);
    printf("files        %lld shards in %lld cells, %s; index %s\n", (long long)y->shards,
        (long long)y->cells, progress_bytes(y->shard_bytes, bytes, sizeof bytes),
        progress_bytes(y->index_bytes, index, sizeof index));
    if (y->packed_pieces > 0)
        printf("compression  zstd, %.1f %% of raw\n", 100.0 * ratio(y));
    else
        printf("compression  none\n");
    if (y->derived > 0)
        printf(
            "derived      %lld weights equal their rounded masters and are not stored\n",
            (long long)y->derived);
    digest_hex(m->fingerprint, hex);
    printf("fingerprint  %s\n", hex);
    digest_hex(m->id, hex);
    printf("id           %s\n", hex);
    for (int64_t i = 0; i < m->prov_count; i++)
        if (strcmp(m->prov[i].key, "source") == 0
            || strcmp(m->prov[i].key, "revision") == 0)
            printf("%-12s %s\n", m->prov[i].key, cli_shown(m->prov[i].value, shown));
}

static void summary_text(const struct show *s, const struct inspect_summary *y)
{
    const struct table *t = inspect_table(s->in);
    const struct manifest *m = inspect_manifest(s->in);
    char a[32], b[32], c[32], d[32];
    const bool mtp = y->mtp.tensors > 0;
    printf("model        %s, %lld layers%s, %lld experts%s\n", t->config.model_type,
        (long long)t->config.num_hidden_layers, mtp ? " and MTP" : "",
        (long long)t->config.n_routed_experts,
        m == NULL ? " (Hugging Face directory)" : "");
    printf("parameters   %s in %s tensors", show_count(y->weights.elements, a, 32),
        show_count(y->weights.tensors, b, 32));
    if (mtp)
        printf(", MTP included; %s in %s without MTP\n",
            show_count(y->weights.elements - y->mtp.elements, c, 32),
            show_count(y->weights.tensors - y->mtp.tensors, d, 32));
    else
        printf("; there is no MTP layer\n");
    if (m != NULL)
        summary_checkpoint(m, y);
    else
        printf("files        %lld, %s\n", (long long)y->shards,
            progress_bytes(y->shard_bytes, a, sizeof a));
    printf("sections\n");
    for (int i = 0; i < SECTION_COUNT; i++)
        if (y->section[i].tensors > 0)
            sum_line(section_name((enum ckpt_section)i), &y->section[i]);
    printf("types (weight)\n");
    for (int i = 0; i < GLM_DTYPE_COUNT; i++)
        if (y->dtype[i].tensors > 0)
            sum_line(glm_dtype_name((enum glm_dtype)i), &y->dtype[i]);
    printf("kinds\n");
    for (int i = 0; i < KIND_COUNT; i++)
        if (y->kind[i].tensors > 0)
            sum_line(table_kind_name((enum table_kind)i), &y->kind[i]);
}

int show_summary(const struct show *s, struct glm_error *err)
{
    struct inspect_summary y;
    if (inspect_summary(s->in, &y, err) != GLM_OK)
        return err->code;
    if (s->json != NULL)
        summary_json(s, &y);
    else
        summary_text(s, &y);
    return GLM_OK;
}

/* ---- tree -------------------------------------------------------------------------------------- */

static void node_json(struct jsonout *j, json_t *list, const struct inspect_node *n)
{
    json_t *o = jsonout_object(j, list, NULL);
    jsonout_int(j, o, "depth", n->depth);
    jsonout_str(j, o, "label", n->label);
    jsonout_str(j, o, "note", n->note);
    jsonout_bool(j, o, "leaf", n->leaf);
    jsonout_int(j, o, "tensors", n->count);
    jsonout_uint(j, o, "bytes", n->bytes);
    jsonout_str(j, o, "dtype", n->leaf ? glm_dtype_name(n->dtype) : NULL);
    json_t *shape = jsonout_array(j, o, "shape");
    for (int i = 0; n->leaf && i < n->rank; i++)
        jsonout_int(j, shape, NULL, n->shape[i]);
    jsonout_bool(j, o, "derived", n->derived);
}

static void node_text(const struct inspect_node *n)
{
    char shape[96], bytes[32], left[320];
    int width = 2 * n->depth;
    if (!n->leaf) {
        printf("%*s%s%s%s  (%lld tensor%s, %s)\n", width, "", n->label,
            n->note != NULL ? "  " : "", n->note != NULL ? n->note : "",
            (long long)n->count, n->count == 1 ? "" : "s",
            progress_bytes(n->bytes, bytes, sizeof bytes));
        return;
    }
    snprintf(left, sizeof left, "%*s%s", width, "", n->label);
    printf("%-48s %-8s %-20s", left, glm_dtype_name(n->dtype),
        show_shape(n->rank, n->shape, shape, sizeof shape));
    if (n->count > 1)
        printf(" x %-6lld", (long long)n->count);
    else
        printf(" %8s", "");
    printf(" %10s%s\n", progress_bytes(n->bytes, bytes, sizeof bytes),
        n->derived ? "  derived from its master" : "");
}

int show_tree(const struct show *s, struct glm_error *err)
{
    struct inspect_node *nodes;
    int64_t count;
    if (inspect_tree(s->in, &nodes, &count, err) != GLM_OK)
        return err->code;
    json_t *list = s->json != NULL ? jsonout_array(s->json, NULL, "tree") : NULL;
    for (int64_t i = 0; i < count; i++)
        if (s->json != NULL)
            node_json(s->json, list, &nodes[i]);
        else
            node_text(&nodes[i]);
    free(nodes);
    return GLM_OK;
}

/* ---- topology ---------------------------------------------------------------------------------- */

struct stage_sum {
    int first, last, pp;
    uint64_t bytes;
};

static struct stage_sum stage_of(
    const struct manifest *m, const struct inspect_map *map, int stage)
{
    struct stage_sum s = {
        .first = -1, .pp = stage % placement_topology(m->placement)->pp};
    for (int64_t i = 0; i < map->columns; i++) {
        if (map->column[i].stage != stage)
            continue;
        s.bytes += map->column_bytes[i];
        if (map->column[i].layer < 0)
            continue;
        s.first = s.first < 0 ? map->column[i].layer : s.first;
        s.last = map->column[i].layer;
    }
    return s;
}

/* The largest of a group of cells over its mean: 1.00 is perfect. */
static double balance(
    const struct manifest *m, const struct inspect_map *map, bool expert)
{
    uint64_t largest = 0, sum = 0;
    int64_t n = 0;
    for (int64_t i = 0; i < map->cells; i++) {
        if (placement_cell(m->placement, (int)i).expert != expert)
            continue;
        largest = map->cell_bytes[i] > largest ? map->cell_bytes[i] : largest;
        sum += map->cell_bytes[i];
        n++;
    }
    return sum > 0 ? (double)largest * (double)n / (double)sum : 0;
}

static void topology_map_json(
    const struct show *s, const struct manifest *m, const struct inspect_map *map)
{
    struct jsonout *j = s->json;
    topology_json(s);
    json_t *stages = jsonout_array(j, NULL, "stages");
    for (int k = 0; k < placement_stages(m->placement); k++) {
        const struct stage_sum g = stage_of(m, map, k);
        json_t *o = jsonout_object(j, stages, NULL);
        jsonout_int(j, o, "stage", k);
        jsonout_int(j, o, "pp", g.pp);
        jsonout_int(j, o, "first_layer", g.first);
        jsonout_int(j, o, "last_layer", g.last);
        jsonout_uint(j, o, "bytes", g.bytes);
    }
    json_t *columns = jsonout_array(j, NULL, "columns");
    for (int64_t i = 0; i < map->columns; i++)
        jsonout_str(j, columns, NULL, map->column[i].label);
    json_t *cells = jsonout_array(j, NULL, "cell_list");
    for (int64_t i = 0; i < map->cells; i++) {
        char name[64];
        const struct cell c = placement_cell(m->placement, (int)i);
        json_t *o = jsonout_object(j, cells, NULL);
        cell_name(&c, name, sizeof name);
        jsonout_str(j, o, "cell", name);
        jsonout_int(j, o, "shards", map->cell_shards[i]);
        jsonout_uint(j, o, "bytes", map->cell_bytes[i]);
        json_t *row = jsonout_array(j, o, "by_column");
        for (int64_t k = 0; k < map->columns; k++)
            jsonout_uint(j, row, NULL, inspect_map_sum(map, i, k));
    }
    jsonout_real(j, NULL, "balance_dense", balance(m, map, false));
    jsonout_real(j, NULL, "balance_expert", balance(m, map, true));
}

/* A cell's columns as runs: "embed, 0-17". */
static void cell_columns(
    const struct inspect_map *map, int64_t cell, char *buf, size_t size)
{
    int n = 0;
    buf[0] = '\0';
    for (int64_t i = 0; i < map->columns && (size_t)n + 48 < size;) {
        if (inspect_map_sum(map, cell, i) == 0) {
            i++;
            continue;
        }
        int64_t last = i;
        while (map->column[i].layer >= 0 && last + 1 < map->columns
            && map->column[last + 1].layer >= 0
            && inspect_map_sum(map, cell, last + 1) > 0)
            last++;
        n += snprintf(
            buf + n, size - (size_t)n, "%s%s", n > 0 ? ", " : "", map->column[i].label);
        if (last > i)
            n += snprintf(buf + n, size - (size_t)n, "-%s", map->column[last].label);
        i = last + 1;
    }
}

static void topology_text(const struct manifest *m, const struct inspect_map *map)
{
    char word[64], bytes[32], columns[512], name[64];
    topology_print(placement_topology(m->placement), word, sizeof word);
    printf("topology %s, layout %s\n\n%-6s %-4s %-12s %10s\n", word,
        placement_topology(m->placement)->layout, "stage", "pp", "layers", "bytes");
    for (int k = 0; k < placement_stages(m->placement); k++) {
        const struct stage_sum g = stage_of(m, map, k);
        snprintf(word, sizeof word, "%d-%d", g.first, g.last);
        printf("%-6d %-4d %-12s %10s\n", k, g.pp, word,
            progress_bytes(g.bytes, bytes, sizeof bytes));
    }
    printf("\n%-16s %10s %7s  %s\n", "cell", "bytes", "shards", "layers");
    for (int64_t i = 0; i < map->cells; i++) {
        const struct cell c = placement_cell(m->placement, (int)i);
        cell_name(&c, name, sizeof name);
        cell_columns(map, i, columns, sizeof columns);
        printf("%-16s %10s %7lld  %s\n", name,
            progress_bytes(map->cell_bytes[i], bytes, sizeof bytes),
            (long long)map->cell_shards[i], columns);
    }
    printf("\nbalance (largest cell over mean): %.3f without experts, %.3f experts\n",
        balance(m, map, false), balance(m, map, true));
}

int show_topology(const struct show *s, struct glm_error *err)
{
    struct inspect_map map;
    if (inspect_map(s->in, &map, err) != GLM_OK)
        return err->code;
    if (s->json != NULL)
        topology_map_json(s, inspect_manifest(s->in), &map);
    else
        topology_text(inspect_manifest(s->in), &map);
    inspect_map_clear(&map);
    return GLM_OK;
}

/* ---- provenance -------------------------------------------------------------------------------- */

int show_provenance(const struct show *s, struct glm_error *err)
{
    const struct manifest *m = inspect_manifest(s->in);
    if (m == NULL)
        return glm_fail(err, GLM_EUSAGE,
            "%s is a Hugging Face directory: it has no provenance", s->path);
    char bytes[32], hex[DIGEST_HEX], shown[CLI_SHOWN];
    json_t *o = s->json != NULL ? jsonout_object(s->json, NULL, "provenance") : NULL;
    json_t *files = s->json != NULL ? jsonout_array(s->json, NULL, "files") : NULL;
    for (int64_t i = 0; i < m->prov_count; i++)
        if (s->json != NULL)
            jsonout_str(s->json, o, m->prov[i].key, m->prov[i].value);
        else
            printf("%-20s %s\n", m->prov[i].key, cli_shown(m->prov[i].value, shown));
    for (int64_t i = 0; i < m->file_count; i++) {
        const struct ckpt_file *f = &m->files[i];
        digest_hex(f->sha256, hex);
        if (s->json == NULL) {
            printf("%-20s %s, %s, SHA-256 %.16s\n",
                f->header ? "safetensors header" : "file", cli_shown(f->path, shown),
                progress_bytes(f->bytes, bytes, sizeof bytes), hex);
            continue;
        }
        json_t *item = jsonout_object(s->json, files, NULL);
        jsonout_str(s->json, item, "path", f->path);
        jsonout_bool(s->json, item, "safetensors_header", f->header);
        jsonout_uint(s->json, item, "bytes", f->bytes);
        jsonout_digest(s->json, item, "sha256", f->sha256);
    }
    return GLM_OK;
}
