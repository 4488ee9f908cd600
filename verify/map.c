#include <stdio.h>
#include <stdlib.h>

#include "verify/inspect_private.h"

void inspect_map_clear(struct inspect_map *m)
{
    free(m->column);
    free(m->bytes);
    free(m->cell_bytes);
    free(m->column_bytes);
    free(m->cell_shards);
    *m = (struct inspect_map){0};
}

/* first | layer 0 ... | MTP layers | last */
static int64_t map_column(const struct inspect_map *m, const struct table_entry *e)
{
    if (e == NULL || e->where == WHERE_FIRST)
        return 0;
    return e->where == WHERE_LAST ? m->columns - 1 : 1 + e->layer;
}

static void map_columns(struct inspect_map *m, const struct manifest *f)
{
    const struct model_config *c = &f->table->config;
    for (int64_t i = 0; i < m->columns; i++) {
        struct inspect_column *k = &m->column[i];
        k->layer = (int)i - 1;
        k->mtp = k->layer >= c->num_hidden_layers;
        k->indexer = k->mtp || (k->layer >= 0 && c->layer_owns_indexer[k->layer]);
        snprintf(k->label, sizeof k->label, "%d", k->layer);
    }
    m->column[0] = (struct inspect_column){.label = "embed", .layer = -1};
    m->column[m->columns - 1] = (struct inspect_column){.label = "head", .layer = -2};
    for (int64_t i = 0; i < f->table->count; i++) {
        const struct table_entry *e = &f->table->entries[i];
        m->column[map_column(m, e)].stage = placement_stage(f->placement, e);
    }
}

int inspect_map(const struct inspect *in, struct inspect_map *out, struct glm_error *err)
{
    const struct manifest *f = in->side.m;
    *out = (struct inspect_map){0};
    if (f == NULL)
        return glm_fail(err, GLM_EUSAGE,
            "%s is a Hugging Face directory: it has no topology", in->side.path);
    const struct model_config *c = &f->table->config;
    out->cells = placement_cells(f->placement);
    out->columns = c->num_hidden_layers + (f->without_mtp ? 0 : c->num_mtp_layers) + 2;
    out->column = calloc((size_t)out->columns, sizeof *out->column);
    out->bytes =
        calloc((size_t)(out->cells * out->columns * KIND_COUNT), sizeof *out->bytes);
    out->cell_bytes = calloc((size_t)out->cells, sizeof *out->cell_bytes);
    out->column_bytes = calloc((size_t)out->columns, sizeof *out->column_bytes);
    out->cell_shards = calloc((size_t)out->cells, sizeof *out->cell_shards);
    if (out->column == NULL || out->bytes == NULL || out->cell_bytes == NULL
        || out->column_bytes == NULL || out->cell_shards == NULL) {
        inspect_map_clear(out);
        return glm_fail(err, GLM_ENOMEM, "out of memory for the map");
    }
    map_columns(out, f);
    for (int64_t i = 0; i < f->shard_count; i++)
        out->cell_shards[f->shards[i].cell]++;
    for (int64_t i = 0; i < f->piece_count; i++) {
        const struct ckpt_piece *p = &f->pieces[i];
        const struct ckpt_tensor *t = &f->tensors[p->tensor];
        const int64_t cell = f->shards[p->shard].cell, column = map_column(out, t->entry);
        const int kind = t->entry != NULL ? (int)t->entry->kind : KIND_NORM;
        out->bytes[(cell * out->columns + column) * KIND_COUNT + kind] += p->bytes;
        out->cell_bytes[cell] += p->bytes;
        out->column_bytes[column] += p->bytes;
        out->total += p->bytes;
    }
    return GLM_OK;
}
