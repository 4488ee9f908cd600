#include "tests/support/tensorsckpt.h"

#include <stdlib.h>
#include <string.h>

#include "tests/support/models.h"

/* One tile: the writer takes rectangles, the arrays are whole. */
static void put(struct writer *w, struct writer_scratch *s, int64_t tensor,
    const struct train_tensor *t, int64_t tile, struct glm_error *err)
{
    const struct ckpt_tensor *c = &writer_manifest(w)->tensors[tensor];
    const struct rect all = rect_whole(c->grid.dims), at = tile_rect(&c->grid, tile);
    const size_t size = glm_dtype_size(c->dtype);
    unsigned char *data = malloc((size_t)rect_count(&at) * size + 1), digest[32];

    region_copy(data, &at, t->data, &all, &at, size);
    if (c->derived) {
        reader_hash_tiles(&c->grid, &at, size, data, digest);
        writer_note(w, tensor, &at, digest, err);
    } else {
        writer_put(w, tensor, &at, data, NULL, s, err);
    }
    free(data);
}

int tensorsckpt_write(const char *dir, const char *config, const struct train_tensors *t,
    const struct topology *topology, struct glm_error *err)
{
    static const unsigned char plan[32] = {3};
    char *text = models_config(config);
    struct table *table = models_table(config, false);
    struct manifest *m = manifest_new(table);
    struct writer_scratch *scratch = writer_scratch_new();
    struct writer *w = NULL;
    bool resumed;

    manifest_add_file(m, "config.json", false, text, strlen(text));
    for (int64_t i = 0; i < t->count; i++) {
        const struct train_tensor *one = &t->list[i];
        const struct table_entry *e = one->entry != NULL
            ? table_find(table, one->name, strlen(one->name), &(int64_t){0})
            : NULL;
        struct ckpt_tensor *c = manifest_add_tensor(
            m, one->name, one->section, one->dtype, one->shape, one->rank, one->stack, e);
        c->derived = one->derived;
    }
    if (volumes_plan(
            m, models_placement(table, *topology), &(struct volumes_options){0}, err)
        == 0)
        writer_open(
            &w, m, &(struct work_options){.target = dir, .plan = plan}, &resumed, err);
    for (int64_t i = 0; i < t->count && err->code == GLM_OK; i++)
        for (int64_t k = 0; k < tile_count(&m->tensors[i].grid) && err->code == GLM_OK;
             k++)
            put(w, scratch, i, &t->list[i], k, err);
    if (err->code == GLM_OK)
        writer_commit(w, err);
    else if (w != NULL)
        writer_close(w);
    writer_scratch_free(scratch);
    table_free(table);
    free(text);
    return err->code;
}
