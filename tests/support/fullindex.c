#include "tests/support/fullindex.h"

#include <stdlib.h>
#include <string.h>

#include "ckpt/shard.h"
#include "tests/support/models.h"
#include "tests/support/rng.h"
#include "tests/support/tmpdir.h"

enum { FULL_HEAD = 8192, FULL_ALIGN = 4096 };

static void full_digest(uint64_t seed, unsigned char out[32])
{
    for (uint64_t i = 0; i < 4; i++) {
        const uint64_t x = rng_mix(seed * 4 + i);
        memcpy(out + 8 * i, &x, 8);
    }
}

/* Pieces one behind the other; chunks of 0.66 of their raw size. */
static void full_places(struct manifest *m, struct ckpt_chunk *chunks)
{
    for (int64_t i = 0; i < m->shard_count; i++) {
        m->shards[i].bytes = FULL_HEAD;
        full_digest((uint64_t)i + 1000000000, m->shards[i].skeleton);
    }
    for (int64_t i = 0; i < m->piece_count; i++) {
        struct ckpt_piece *const p = &m->pieces[i];
        const size_t element = glm_dtype_size(m->tensors[p->tensor].dtype);
        uint64_t *const end = &m->shards[p->shard].bytes;
        *end = (*end + FULL_ALIGN - 1) / FULL_ALIGN * FULL_ALIGN;
        const uint64_t raw = (uint64_t)rect_count(&p->at) * element;
        p->bytes = raw;
        if (p->encoding == ENC_PLAIN) {
            p->offset = *end;
            *end += raw;
            continue;
        }
        p->bytes = 0;
        for (int64_t k = 0; k < p->chunks; k++) {
            struct ckpt_chunk *const c = &chunks[p->first_chunk + k];
            *c = (struct ckpt_chunk){.offset = *end,
                .bytes = (uint32_t)(raw / (uint64_t)p->chunks * 66 / 100 + 1)};
            full_digest((uint64_t)(p->first_chunk + k) + 2000000000, c->sha256);
            p->bytes += c->bytes;
            *end += c->bytes;
        }
    }
}

static int full_shards(struct manifest *m, const char *dir, struct glm_error *err)
{
    for (int64_t i = 0; i < m->shard_count && err->code == GLM_OK; i++) {
        const char *const path = tmpdir_path(dir, "%s", m->shards[i].file);
        if (shard_create_plain(m, i, path, err) == GLM_OK)
            shard_skeleton(m, NULL, i, path, m->shards[i].skeleton, err);
    }
    return err->code;
}

int fullindex_write(
    const char *dir, const struct fullindex_options *o, struct glm_error *err)
{
    char *const text = models_config(o->config);
    struct table *const t = models_table(o->config, false);
    struct manifest *const m = manifest_new(t);
    unsigned char *tiles = NULL;
    struct ckpt_chunk *chunks = NULL;
    manifest_add_file(m, "config.json", false, text, strlen(text));
    manifest_add_prov(m, "source", "made up");
    for (int64_t i = 0; i < t->count; i++) {
        const struct table_entry *const e = &t->entries[i];
        manifest_add_tensor(
            m, e->name, SECTION_WEIGHT, e->dtype, e->shape, e->rank, e->stack, e);
    }
    if (volumes_plan(m, models_placement(t, o->topo), &o->volumes, err) != 0)
        goto out;
    tiles = malloc((size_t)m->tile_count * 32 + 1);
    chunks = calloc((size_t)m->chunk_count + 1, sizeof *chunks);
    for (int64_t i = 0; i < m->tile_count; i++)
        full_digest((uint64_t)i, tiles + 32 * i);
    if (!o->shards)
        full_places(m, chunks);
    else if (full_shards(m, dir, err) != GLM_OK)
        goto out;
    if (manifest_seal(m, tiles, err) == 0)
        index_write(m, tiles, chunks, tmpdir_path(dir, "index.h5"), err);
out:
    manifest_free(m);
    table_free(t);
    free(tiles);
    free(chunks);
    free(text);
    return err->code;
}
