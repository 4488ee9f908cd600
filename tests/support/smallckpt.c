#include "tests/support/smallckpt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/digest.h"
#include "ckpt/packed.h"
#include "ckpt/shard.h"
#include "tests/support/models.h"
#include "tests/support/rng.h"
#include "tests/support/tmpdir.h"

enum { SMALL_BIG = 1 << 20 };

/* ---- elements ------------------------------------------------------------------------------- */

static uint64_t small_seed(enum ckpt_section section, const char *name)
{
    return rng_text(rng_text(rng_text(RNG_TEXT, section_name(section)), "/"), name);
}

static uint64_t small_bits(enum glm_dtype dtype, uint64_t x)
{
    switch (dtype) {
    case GLM_BF16:
        return (x & 0x80FF) | 0x3C00;
    case GLM_F32:
        return (x & 0x807FFFFF) | 0x3C000000;
    case GLM_F8_E4M3:
        return (x & 0x8F) | 0x30;
    case GLM_F8_E8M0:
        return 120 + x % 8;
    default:
        return x;
    }
}

void smallckpt_elements(const struct ckpt_tensor *t, int64_t first, int64_t n, void *out)
{
    const size_t size = glm_dtype_size(t->dtype);
    const uint64_t seed = small_seed(t->derived ? SECTION_MASTER : t->section, t->name);
    for (int64_t i = 0; i < n; i++) {
        const uint64_t x = rng_mix(seed + (uint64_t)(first + i));
        uint64_t bits = small_bits(t->derived ? GLM_F32 : t->dtype, x);
        if (t->derived) /* round to nearest even; no NaN and no overflow here */
            bits = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
        memcpy((char *)out + (size_t)i * size, &bits, size); /* little-endian */
    }
}

static bool small_changed; /* smallckpt_options.changed of the checkpoint being written */

/* A rectangle of a tensor into out, rows `pitch` elements apart in planes of `rows` rows. */
static void small_rect(const struct ckpt_tensor *t, const struct rect *r, int64_t rows,
    int64_t pitch, void *out)
{
    const size_t size = glm_dtype_size(t->dtype);
    const int64_t *const d = t->grid.dims;
    for (int64_t e = r->lo[0]; e < r->hi[0]; e++)
        for (int64_t i = r->lo[1]; i < r->hi[1]; i++)
            smallckpt_elements(t, (e * d[1] + i) * d[2] + r->lo[2], rect_len(r, 2),
                (char *)out
                    + (size_t)(((e - r->lo[0]) * rows + i - r->lo[1]) * pitch) * size);
    const int64_t at[] = {2, 3, 5};
    if (!small_changed || t->section != SECTION_MOMENTUM
        || strcmp(t->name, SMALL_CHANGED) != 0)
        return;
    for (int i = 0; i < 3; i++)
        if (at[i] < r->lo[i] || at[i] >= r->hi[i])
            return;
    ((char *)out)[(size_t)(((at[0] - r->lo[0]) * rows + at[1] - r->lo[1]) * pitch + at[2]
                      - r->lo[2])
        * size] ^= 1;
}

/* ---- the plan ------------------------------------------------------------------------------- */

static int64_t small_blocks(int64_t n, int64_t block)
{
    return (n + block - 1) / block;
}

static void small_add_scale(
    struct manifest *m, const struct table_entry *e, enum smallckpt_form form)
{
    const bool mx = form == SMALL_MXFP8;
    char name[256];
    int64_t shape[3] = {0}, block[2] = {mx ? 1 : 128, mx ? 32 : 128};
    for (int i = 0; i < e->rank; i++)
        shape[i] = i < e->rank - 2 ? e->shape[i]
                                   : small_blocks(e->shape[i], block[i - (e->rank - 2)]);
    table_scale_name(
        e->name, mx ? ".weight_scale" : ".weight_scale_inv", name, sizeof name);
    struct ckpt_tensor *const t = manifest_add_tensor(
        m, name, SECTION_WEIGHT, mx ? GLM_F8_E8M0 : GLM_F32, shape, e->rank, e->stack, e);
    memcpy(t->block, block, sizeof block);
    m->tensors[m->tensor_count - 2].scale = m->tensor_count - 1;
    snprintf(m->tensors[m->tensor_count - 2].scale_rule, 24, "%s",
        mx ? "te_round_up" : "amax");
}

static void small_weights(struct manifest *m, const struct smallckpt_options *o)
{
    for (int64_t i = 0; i < m->table->count; i++) {
        const struct table_entry *const e = &m->table->entries[i];
        const bool quantised = e->quantised && o->form != SMALL_BF16;
        struct ckpt_tensor *const t = manifest_add_tensor(m, e->name, SECTION_WEIGHT,
            quantised ? GLM_F8_E4M3 : e->dtype, e->shape, e->rank, e->stack, e);
        t->derived = o->training && t->dtype == GLM_BF16;
        if (quantised)
            small_add_scale(m, e, o->form);
    }
}

static void small_state(struct manifest *m, enum ckpt_section s)
{
    for (int64_t i = 0; i < m->table->count; i++) {
        const struct table_entry *const e = &m->table->entries[i];
        const bool muon = e->optimizer == OPT_MUON || e->optimizer == OPT_MUON_HEADS;
        if (s == SECTION_MASTER || muon == (s == SECTION_MOMENTUM))
            manifest_add_tensor(m, e->name, s, s == SECTION_MOMENTUM ? GLM_BF16 : GLM_F32,
                e->shape, e->rank, e->stack, e);
    }
}

static void small_train(struct manifest *m)
{
    static const struct {
        const char *name;
        enum glm_dtype dtype;
        int rank;
        int64_t shape[4];
    } rows[] = {
        {"bool", GLM_BOOL, 1, {7}},
        {"c64", GLM_C64, 1, {2}},
        {"e5m2", GLM_F8_E5M2, 1, {4}},
        {"empty", GLM_F32, 2, {0, 5}},
        {"f16", GLM_F16, 1, {3}},
        {"f64", GLM_F64, 2, {2, 3}},
        {"i16", GLM_I16, 1, {3}},
        {"i8", GLM_I8, 1, {9}},
        {"ids", GLM_I32, 3, {3, 4, 5}},
        {"step", GLM_I64, 0, {0}},
        {"u16", GLM_U16, 1, {2}},
        {"u32", GLM_U32, 4, {2, 1, 3, 2}},
        {"u64", GLM_U64, 1, {2}},
        {"weight", GLM_U8, 1, {5000}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        manifest_add_tensor(m, rows[i].name, SECTION_TRAIN, rows[i].dtype, rows[i].shape,
            rows[i].rank, false, NULL);
}

static void small_files(struct smallckpt *s)
{
    s->big = malloc(SMALL_BIG);
    for (size_t i = 0; i < SMALL_BIG / 8; i++)
        ((uint64_t *)s->big)[i] = rng_mix(i);
    manifest_add_file(s->m, "config.json", false, s->config_text, strlen(s->config_text));
    manifest_add_file(s->m, "README.md", false, s->big, SMALL_BIG);
    manifest_add_file(s->m, "extra/a name, 100% odd", false, "bytes\n", 6);
    manifest_add_file(s->m, "extra/empty", false, "", 0);
    manifest_add_file(s->m, "model.safetensors", true, "\2\0\0\0\0\0\0\0{}", 10);
    manifest_add_prov(s->m, "source", "a folder with a\ttab");
    manifest_add_prov(s->m, "command", "smallckpt");
}

/* ---- shards --------------------------------------------------------------------------------- */

struct small_writer {
    struct smallckpt *s;
    struct packer *packer;
    FILE *plain;
    struct packed_shard *packed;
    struct glm_error *err;
};

static void small_digest_tile(
    struct smallckpt *s, const struct ckpt_tensor *t, int64_t tile)
{
    const struct rect r = tile_rect(&t->grid, tile);
    const size_t bytes = (size_t)rect_count(&r) * glm_dtype_size(t->dtype);
    void *const data = malloc(bytes + 1);
    small_rect(t, &r, rect_len(&r, 1), rect_len(&r, 2), data);
    digest_of(data, bytes, s->tiles + (t->first_tile + tile) * DIGEST_SIZE);
    free(data);
}

static void small_put_plain(struct small_writer *w, const struct ckpt_piece *p)
{
    const struct ckpt_tensor *const t = &w->s->m->tensors[p->tensor];
    void *const data = malloc(p->bytes);
    small_rect(t, &p->at, rect_len(&p->at, 1), rect_len(&p->at, 2), data);
    fseek(w->plain, (long)p->offset, SEEK_SET);
    if (fwrite(data, 1, p->bytes, w->plain) != p->bytes)
        glm_fail_errno(w->err, "fwrite");
    free(data);
}

static void small_put_chunk(
    struct small_writer *w, int64_t piece, int64_t k, const struct rect *r)
{
    const struct manifest *const m = w->s->m;
    const struct ckpt_piece *const p = &m->pieces[piece];
    const struct ckpt_tensor *const t = &m->tensors[p->tensor];
    struct ckpt_chunk *const c = &w->s->chunks[p->first_chunk + k];
    int64_t d[3];
    shard_chunk_dims(m, p, d);
    const size_t size = glm_dtype_size(t->dtype),
                 raw = (size_t)(d[0] * d[1] * d[2]) * size;
    void *const data = calloc(1, raw), *const out = malloc(packer_bound(raw));
    size_t stored = 0;
    small_rect(t, r, d[1], d[2], data);
    if (packer_pack(w->packer, data, raw, size, out, &stored, &c->mask, w->err) == 0) {
        c->bytes = (uint32_t)stored;
        digest_of(out, stored, c->sha256);
        shard_put_chunk(w->packed, piece, k, out, stored, c->mask, w->err);
    }
    free(data);
    free(out);
}

static void small_put_packed(struct small_writer *w, int64_t piece)
{
    const struct manifest *const m = w->s->m;
    const struct ckpt_piece *const p = &m->pieces[piece];
    const struct tile_grid *const g = &m->tensors[p->tensor].grid;
    struct rect tiles;
    int64_t k = 0;
    shard_piece_tiles(m, p, &tiles);
    for (int64_t e = tiles.lo[0]; e < tiles.hi[0]; e++)
        for (int64_t r = tiles.lo[1]; r < tiles.hi[1]; r++)
            for (int64_t c = tiles.lo[2]; c < tiles.hi[2] && w->err->code == GLM_OK;
                 c++) {
                const struct rect at = tile_rect(g, tile_index(g, e, r, c));
                small_put_chunk(w, piece, k++, &at);
            }
}

static void small_shard(struct small_writer *w, const char *dir, int64_t no, bool packed)
{
    struct manifest *const m = w->s->m;
    const char *const path = tmpdir_path(dir, "%s", m->shards[no].file);
    if ((packed ? shard_create_packed(&w->packed, m, no, path, w->err)
                : shard_create_plain(m, no, path, w->err))
        == 0)
        w->plain = fopen(path, "r+b");
    for (int64_t i = 0; w->err->code == GLM_OK && i < m->piece_count; i++)
        if (m->pieces[i].shard == no) {
            if (m->pieces[i].encoding == ENC_ZSTD)
                small_put_packed(w, i);
            else
                small_put_plain(w, &m->pieces[i]);
        }
    if (w->plain)
        fclose(w->plain);
    if (packed && w->err->code == GLM_OK)
        shard_close_packed(w->packed, w->s->chunks, w->err);
    else if (packed)
        shard_abandon_packed(w->packed);
    w->packed = NULL;
    w->plain = NULL;
    if (w->err->code == GLM_OK)
        shard_skeleton(m, w->s->chunks, no, tmpdir_path(dir, "%s", m->shards[no].file),
            m->shards[no].skeleton, w->err);
}

int smallckpt_shards(struct smallckpt *s, const char *dir,
    const struct smallckpt_options *o, struct glm_error *err)
{
    const char *const config = o->config ? o->config : "tiny-a";
    struct small_writer w = {.s = s, .packer = packer_new(), .err = err};
    memset(s, 0, sizeof *s);
    small_changed = o->changed;
    s->config_text = models_config(config);
    s->table = models_table(config, o->no_mtp);
    s->m = manifest_new(s->table);
    s->m->without_mtp = o->no_mtp;
    small_files(s);
    small_weights(s->m, o);
    if (o->training) {
        small_state(s->m, SECTION_MASTER);
        small_state(s->m, SECTION_M);
        small_state(s->m, SECTION_V);
        small_state(s->m, SECTION_MOMENTUM);
        small_train(s->m);
    }
    if (volumes_plan(s->m, models_placement(s->table, o->topo), &o->volumes, err) != 0)
        goto out;
    s->tiles = calloc((size_t)s->m->tile_count + 1, DIGEST_SIZE);
    s->chunks = calloc((size_t)s->m->chunk_count + 1, sizeof *s->chunks);
    for (int64_t i = 0; i < s->m->tensor_count; i++)
        for (int64_t k = 0; k < tile_count(&s->m->tensors[i].grid); k++)
            small_digest_tile(s, &s->m->tensors[i], k);
    for (int64_t i = 0; i < s->m->shard_count && err->code == GLM_OK; i++)
        small_shard(&w, dir, i, o->volumes.encoding == ENC_ZSTD);
    if (err->code == GLM_OK)
        manifest_seal(s->m, s->tiles, err);
out:
    packer_free(w.packer);
    return err->code;
}

void smallckpt_clear(struct smallckpt *s)
{
    manifest_free(s->m);
    table_free(s->table);
    free(s->tiles);
    free(s->chunks);
    free(s->config_text);
    free(s->big);
    memset(s, 0, sizeof *s);
}

int smallckpt_write(
    const char *dir, const struct smallckpt_options *o, struct glm_error *err)
{
    struct smallckpt s;
    if (smallckpt_shards(&s, dir, o, err) == 0)
        index_write(s.m, s.tiles, s.chunks, tmpdir_path(dir, "index.h5"), err);
    smallckpt_clear(&s);
    return err->code;
}
