/* Pieces and volumes: the union of pieces is the tensor, volumes keep their size, numbers follow
 * the cells; and the manifest's plan side. */
#include "ckpt/volumes.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/models.h"

static void add_section(struct manifest *m, const struct table *t, enum ckpt_section s)
{
    for (int64_t i = 0; i < t->count; i++) {
        const struct table_entry *e = &t->entries[i];
        cr_assert_not_null(manifest_add_tensor(m, e->name, s,
            s == SECTION_WEIGHT ? e->dtype : GLM_F32, e->shape, e->rank, e->stack, e));
    }
}

static struct manifest *plan(
    const struct table *t, int sections, struct topology topo, struct volumes_options o)
{
    struct glm_error err = {0};
    struct manifest *m = manifest_new(t);
    for (int s = 0; s < sections; s++)
        add_section(m, t, (enum ckpt_section)s);
    struct placement *p = models_placement(t, topo);
    cr_assert_eq(volumes_plan(m, p, &o, &err), 0, "%s", err.text);
    cr_assert_eq(m->placement, p);
    return m;
}

/* Everything that must hold of any plan. */
static void check(const struct manifest *m, struct volumes_options o)
{
    const uint64_t size = o.shard_size ? o.shard_size : UINT64_C(4) << 30;
    int64_t piece = 0, tile = 0, chunk = 0;
    uint64_t *used = calloc((size_t)m->shard_count, sizeof *used);
    int *pieces = calloc((size_t)m->shard_count, sizeof *pieces);
    for (int64_t i = 0; i < m->tensor_count; i++) {
        const struct ckpt_tensor *t = &m->tensors[i];
        int64_t sum = 0;
        cr_assert_eq(t->first_tile, tile);
        cr_assert_eq(t->first_piece, piece);
        tile += tile_count(&t->grid);
        for (int64_t k = 0; k < t->pieces; k++, piece++) {
            const struct ckpt_piece *p = &m->pieces[piece];
            const struct rect whole = rect_whole(t->grid.dims),
                              tiles = tile_cover(&t->grid, &p->at);
            const struct cell c = placement_cell(m->placement, m->shards[p->shard].cell);
            struct rect mine, both;
            cr_assert_eq(p->tensor, i);
            cr_assert(!rect_empty(&p->at) && rect_contains(&whole, &p->at));
            cr_assert(tile_aligned(&t->grid, &p->at));
            cr_assert(
                placement_tiles(m->placement, t->entry, &t->grid, t->block, &c, &mine));
            cr_assert(rect_contains(&mine, &tiles), "the cell owns its piece");
            sum += rect_count(&p->at);
            for (int64_t j = t->first_piece; j < piece; j++) {
                cr_assert_not(rect_intersect(&m->pieces[j].at, &p->at, &both));
                cr_assert(memcmp(m->pieces[j].at.lo, p->at.lo, sizeof p->at.lo) != 0);
            }
            if (k > 0) {
                const int64_t *a = p[-1].at.lo, *b = p->at.lo;
                cr_assert(a[0] < b[0]
                        || (a[0] == b[0]
                            && (a[1] < b[1] || (a[1] == b[1] && a[2] < b[2]))),
                    "in order of offset");
            }
            used[p->shard] += (uint64_t)rect_count(&p->at) * glm_dtype_size(t->dtype);
            pieces[p->shard]++;
            if (o.encoding == ENC_ZSTD) {
                cr_assert_eq(p->first_chunk, chunk);
                cr_assert_eq(p->chunks, rect_count(&tiles));
                chunk += p->chunks;
            } else {
                cr_assert_eq(
                    p->bytes, (uint64_t)rect_count(&p->at) * glm_dtype_size(t->dtype));
            }
        }
        cr_assert_eq(sum,
            t->derived ? 0 : t->grid.dims[0] * t->grid.dims[1] * t->grid.dims[2], "%s",
            t->name);
    }
    cr_assert_eq(piece, m->piece_count);
    cr_assert_eq(tile, m->tile_count);
    cr_assert_eq(chunk, m->chunk_count);
    for (int64_t s = 0; s < m->shard_count; s++) {
        cr_assert_gt(pieces[s], 0, "no empty volume");
        cr_assert(used[s] <= size || pieces[s] == 1, "%s holds %d", m->shards[s].file,
            pieces[s]);
        if (s > 0)
            cr_assert(m->shards[s - 1].cell <= m->shards[s].cell);
    }
    free(used);
    free(pieces);
}

Test(volumes, hold_every_element_once_at_odd_topologies)
{
    static const char *const names[] = {"t1", "tiny-a"};
    static const struct topology topos[] = {
        {.tp = 1},
        {.tp = 4, .ep = 2},
        {.tp = 4, .pp = 2, .ep = 4, .etp = 2},
        {.tp = 4, .pp = 3, .etp = 8},
        {.tp = 2, .vpp = 3, .ep = 2, .etp = 4},
    };
    static const uint64_t sizes[] = {0, 1, 30000, 200000, 1 << 20};
    for (size_t n = 0; n < 2; n++) {
        struct table *t = models_table(names[n], false);
        for (size_t k = 0; k < 5; k++)
            for (size_t i = 0; i < 5; i++) {
                const struct volumes_options o = {sizes[i], i % 2 ? ENC_ZSTD : ENC_PLAIN};
                struct manifest *m = plan(t, 3, topos[k], o);
                check(m, o);
                manifest_free(m);
            }
        table_free(t);
    }
}

Test(volumes, are_named_and_numbered_by_cell)
{
    struct table *t = models_table("t1", false);
    const struct volumes_options o = {.shard_size = 1 << 20};
    struct manifest *m = plan(t, 1, (struct topology){.tp = 4, .ep = 2}, o);
    int cells[6] = {0};
    for (int64_t s = 0; s < m->shard_count; s++) {
        char name[64], cell[40];
        const struct cell c = placement_cell(m->placement, m->shards[s].cell);
        cell_name(&c, cell, sizeof cell);
        snprintf(name, sizeof name, "shard-%s-%04d.h5", cell, cells[m->shards[s].cell]++);
        cr_assert_str_eq(m->shards[s].file, name);
    }
    for (int i = 0; i < 6; i++)
        cr_assert_gt(
            cells[i], 0, "B-04: dense pieces in 4 cells, experts in 2; cell %d", i);
    cr_assert_str_eq(m->shards[0].file, "shard-p000-t000-0000.h5");
    manifest_free(m);
    table_free(t);
}

/* The second method: one cell after the other, as the format words it. */
Test(volumes, fill_as_if_cell_by_cell)
{
    struct table *t = models_table("t1", false);
    const uint64_t size = 100000;
    const struct volumes_options o = {.shard_size = size};
    struct manifest *m =
        plan(t, 2, (struct topology){.tp = 2, .pp = 3, .ep = 2, .etp = 2}, o);
    for (int cell = 0; cell < placement_cells(m->placement); cell++) {
        int64_t shard = -1;
        uint64_t used = 0;
        for (int64_t i = 0; i < m->piece_count; i++) {
            const struct ckpt_piece *p = &m->pieces[i];
            if (m->shards[p->shard].cell != cell)
                continue;
            const struct ckpt_tensor *x = &m->tensors[p->tensor];
            const bool split = i > x->first_piece && p[-1].tensor == p->tensor
                && m->shards[p[-1].shard].cell == cell;
            if (shard < 0 || used + p->bytes > size || split) {
                shard = shard < 0 ? p->shard : shard + 1;
                used = 0;
            }
            cr_assert_eq(p->shard, shard, "%s", x->name);
            used += p->bytes;
        }
    }
    manifest_free(m);
    table_free(t);
}

Test(volumes, split_stacks_between_experts_and_go_on_in_the_last)
{
    /* t1: an expert projection is 80*256*2 = 40,960 bytes, 12 experts 491,520. */
    struct table *t = models_table("t1", false);
    const struct volumes_options o = {.shard_size = 5 * 40960 + 1};
    struct manifest *m = plan(t, 1, (struct topology){.tp = 1}, o);
    const int64_t i =
        manifest_find(m, SECTION_WEIGHT, "model.layers.1.mlp.experts.gate_proj.weight");
    cr_assert_geq(i, 0);
    const struct ckpt_tensor *x = &m->tensors[i];
    const struct ckpt_piece *p = &m->pieces[x->first_piece];
    cr_assert_eq(x->pieces, 3);
    cr_assert(rect_len(&p[0].at, 0) == 5 && rect_len(&p[1].at, 0) == 5
        && rect_len(&p[2].at, 0) == 2);
    cr_assert(p[1].shard == p[0].shard + 1 && p[2].shard == p[1].shard + 1);
    cr_assert_eq(p[3].shard, p[2].shard + 1, "up_proj is split too: a new volume");
    const struct volumes_options big = {.shard_size = 491520};
    struct manifest *n = plan(t, 1, (struct topology){.tp = 1}, big);
    cr_assert_eq(n->tensors[i].pieces, 1, "what fits an empty volume is not split");
    const struct volumes_options tiny = {.shard_size = 1000};
    struct manifest *e = plan(t, 1, (struct topology){.tp = 1}, tiny);
    cr_assert_eq(e->tensors[i].pieces, 12, "an expert is not split");
    manifest_free(m);
    manifest_free(n);
    manifest_free(e);
    table_free(t);
}

Test(volumes, give_derived_tensors_tiles_but_no_pieces)
{
    struct glm_error err = {0};
    struct table *t = models_table("t1", false);
    struct manifest *m = manifest_new(t);
    add_section(m, t, SECTION_WEIGHT);
    add_section(m, t, SECTION_MASTER);
    for (int64_t i = 0; i < t->count; i++)
        m->tensors[i].derived = true;
    cr_assert_not_null(manifest_add_tensor(
        m, "step", SECTION_TRAIN, GLM_I64, (int64_t[]){1}, 1, false, NULL));
    struct placement *p = models_placement(t, (struct topology){.tp = 2, .ep = 2});
    const struct volumes_options o = {.shard_size = 0};
    cr_assert_eq(volumes_plan(m, p, &o, &err), 0);
    check(m, o);
    for (int64_t i = 0; i < t->count; i++)
        cr_assert_eq(m->tensors[i].pieces, 0);
    cr_assert_eq(m->tensors[2 * t->count].pieces, 1);
    cr_assert_str_eq(
        m->shards[m->pieces[m->piece_count - 1].shard].file, "shard-p000-t000-0000.h5");
    p = models_placement(t, (struct topology){.tp = 1}); /* planned again */
    cr_assert_eq(volumes_plan(m, p, &o, &err), 0);
    check(m, o);
    manifest_free(m);
    table_free(t);
}

Test(volumes, cut_scales_like_their_weights)
{
    struct glm_error err = {0};
    struct table *t = models_table("glm-5.2-fp8", true);
    struct manifest *m = manifest_new(t);
    for (int64_t i = 0; i < t->count; i++) {
        const struct table_entry *e = &t->entries[i];
        char name[256];
        if (!e->quantised)
            continue;
        int64_t shape[3] = {e->shape[0], e->shape[1], e->shape[2]};
        for (int k = e->rank - 2; k < e->rank; k++)
            shape[k] = (shape[k] + 127) / 128;
        table_scale_name(e->name, ".weight_scale_inv", name, sizeof name);
        struct ckpt_tensor *s = manifest_add_tensor(
            m, name, SECTION_WEIGHT, GLM_F32, shape, e->rank, e->stack, e);
        s->block[0] = s->block[1] = 128;
    }
    const struct volumes_options o = {.shard_size = 0};
    struct placement *p =
        models_placement(t, (struct topology){.tp = 64, .ep = 32, .etp = 2});
    cr_assert_eq(volumes_plan(m, p, &o, &err), 0);
    check(m, o);
    manifest_free(m);
    table_free(t);
}

Test(volumes, plan_the_full_model_with_its_training_state)
{
    struct table *t = models_table("glm-5.2", false);
    const struct topology topo = {.tp = 8, .pp = 13, .ep = 32};
    const struct volumes_options o = {.shard_size = 0};
    struct manifest *m = plan(t, 4, topo, o);
    check(m, o);
    cr_assert_eq(m->tile_count, 4 * 1627611);
    manifest_free(m);
    table_free(t);
}

Test(volumes, start_a_new_one_for_every_part_of_a_split_stack)
{
    struct glm_error err = {0};
    struct table *t = models_table("t1", false);
    int64_t member;
    const char *const name = "model.layers.1.mlp.experts.up_proj.weight";
    const struct table_entry *e = table_find(t, name, strlen(name), &member);
    struct manifest *m = manifest_new(t);
    manifest_add_tensor(
        m, "small", SECTION_WEIGHT, GLM_F32, (int64_t[]){12, 1, 2}, 3, true, e);
    m->tensors[0].block[0] = m->tensors[0].block[1] = 128;
    manifest_add_tensor(m, name, SECTION_WEIGHT, GLM_BF16, e->shape, 3, true, e);
    struct placement *p = models_placement(t, (struct topology){.tp = 1});
    const struct volumes_options o = {.shard_size = 5 * 40960 + 1000};
    cr_assert_eq(volumes_plan(m, p, &o, &err), 0);
    check(m, o);
    cr_assert_eq(m->piece_count, 4);
    for (int64_t i = 0; i < 4; i++)
        cr_assert_eq(
            m->pieces[i].shard, i, "there was room beside the 96 bytes, but not used");
    manifest_free(m);
    table_free(t);
}

/* Experts wide enough that both ETP ranks own tiles, in parts of a few experts: the pieces of two
 * cells interleave. */
Test(volumes, order_the_parts_of_several_cells_by_offset)
{
    struct table *t = models_table("glm-5.2", true);
    const struct volumes_options o = {.shard_size = 64 << 20, .encoding = ENC_ZSTD};
    struct manifest *m =
        plan(t, 1, (struct topology){.tp = 8, .pp = 4, .ep = 32, .etp = 2}, o);
    check(m, o);
    manifest_free(m);
    table_free(t);
}

Test(manifest, finds_tensors_by_section_and_name)
{
    struct glm_error err = {0};
    struct table *t = models_table("t1", false);
    struct manifest *m = manifest_new(t);
    add_section(m, t, SECTION_WEIGHT);
    add_section(m, t, SECTION_MASTER);
    for (int indexed = 0; indexed < 2; indexed++) {
        for (int64_t i = 0; i < m->tensor_count; i++)
            cr_assert_eq(manifest_find(m, m->tensors[i].section, m->tensors[i].name), i);
        cr_assert_eq(manifest_find(m, SECTION_M, "lm_head.weight"), -1);
        cr_assert_eq(manifest_find(m, SECTION_WEIGHT, "lm_head"), -1);
        cr_assert_eq(manifest_index(m, &err), 0);
    }
    manifest_add_tensor(
        m, "step", SECTION_TRAIN, GLM_I64, (int64_t[]){3, 2, 2, 5}, 4, false, NULL);
    cr_assert_eq(manifest_find(m, SECTION_TRAIN, "step"), m->tensor_count - 1,
        "added after indexing");
    const struct ckpt_tensor *s = &m->tensors[m->tensor_count - 1];
    cr_assert(s->grid.dims[1] == 3 && s->grid.dims[2] == 20 && s->scale == -1
        && s->block[0] == 1);
    manifest_free(m);
    table_free(t);
    manifest_free(NULL);
}

Test(manifest, keeps_files_and_provenance)
{
    struct manifest *m = manifest_new(NULL);
    for (int i = 0; i < 100; i++) {
        char name[16];
        snprintf(name, sizeof name, "file%d", i);
        cr_assert_not_null(manifest_add_file(m, name, i % 2, name, (uint64_t)i));
        cr_assert_eq(manifest_add_prov(m, name, "value"), 0);
    }
    cr_assert(m->file_count == 100 && m->prov_count == 100);
    cr_assert_str_eq(m->files[63].path, "file63");
    cr_assert(m->files[63].header && m->files[63].bytes == 63);
    cr_assert_str_eq(m->prov[64].key, "file64");
    manifest_free(m);
}

Test(manifest, names_its_sections)
{
    static const char *const names[] = {
        "weight", "master", "opt/m", "opt/v", "opt/momentum", "train"};
    for (int i = 0; i < SECTION_COUNT; i++) {
        enum ckpt_section s;
        cr_assert_str_eq(section_name((enum ckpt_section)i), names[i]);
        cr_assert(section_find(names[i], strlen(names[i]), &s));
        cr_assert_eq((int)s, i);
    }
    enum ckpt_section s;
    cr_assert_not(section_find("weights", 7, &s));
    cr_assert_not(section_find("", 0, &s));
}
