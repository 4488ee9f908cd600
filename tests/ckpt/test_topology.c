/* Ownership, stages and layouts: the worked examples of the format, and the property that every
 * tile has one owner, over random shapes and topologies. */
#include "ckpt/topology.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/models.h"
#include "tests/support/rng.h"

static const int64_t plain[2] = {1, 1};

static const struct table_entry *row(const struct table *t, const char *name)
{
    int64_t member;
    const struct table_entry *e = table_find(t, name, strlen(name), &member);
    cr_assert_not_null(e, "%s", name);
    return e;
}

/* Elements stored by rank r (tp, or etp of ep 0) of a row; count of tiles in *tiles. */
static struct rect stored(
    const struct placement *p, const struct table_entry *e, int r, int64_t *tiles)
{
    const struct cell c = {.expert = e->stack,
        .pp = placement_pp(p, e),
        .tp = e->stack ? 0 : r,
        .etp = e->stack ? r : 0};
    struct rect t;
    placement_tiles(p, e, &e->grid, plain, &c, &t);
    *tiles = rect_count(&t);
    return tile_span(&e->grid, &t);
}

Test(topology, cuts_the_worked_examples_of_tp64)
{
    struct table *t = models_table("glm-5.2", false);
    struct placement *p = models_placement(t, (struct topology){.tp = 64});
    const struct table_entry *q = row(t, "model.layers.0.self_attn.q_b_proj.weight");
    const struct table_entry *kv = row(t, "model.layers.0.self_attn.kv_b_proj.weight");
    const struct table_entry *a =
        row(t, "model.layers.0.self_attn.kv_a_proj_with_mqa.weight");
    const struct table_entry *down = row(t, "model.layers.0.mlp.down_proj.weight");
    static const int64_t kv_end[] = {512, 896, 1408, 1792};
    for (int r = 0; r < 64; r++) {
        int64_t n;
        struct rect s = stored(p, q, r, &n);
        cr_assert(n == 2 && s.lo[1] == 256 * r && s.hi[1] == 256 * (r + 1));
        s = stored(p, kv, r, &n);
        cr_assert_eq(n, r % 2 ? 3 : 4);
        if (r < 4)
            cr_assert_eq(s.hi[1], kv_end[r]);
        s = stored(p, a, r, &n);
        cr_assert_eq(n, r ? 0 : 5);
        s = stored(p, down, r, &n);
        cr_assert_eq(n, r % 4 == 3 ? 0 : 12288 / 256 / 48 * 6);
        if (r < 3)
            cr_assert(s.lo[2] == 256 * r && s.hi[2] == 256 * (r + 1));
    }
    struct rect s;
    cr_assert(placement_slice(p, kv, &(struct cell){.tp = 1}, &s));
    cr_assert(
        s.lo[1] == 448 && s.hi[1] == 896, "the compute slice is not the stored one");
    cr_assert(placement_slice(p, a, &(struct cell){.tp = 63}, &s));
    cr_assert_eq(rect_count(&s), 576 * 6144, "a rank loads replicated tensors whole");
    placement_free(p);
    table_free(t);
}

Test(topology, cuts_experts_vocabulary_and_toys_as_the_format_says)
{
    struct table *t = models_table("glm-5.2", false), *t1 = models_table("t1", false);
    struct placement *p = models_placement(t, (struct topology){.tp = 8, .etp = 8});
    const struct table_entry *down =
        row(t, "model.layers.3.mlp.experts.down_proj.weight");
    const struct table_entry *embed = row(t, "model.embed_tokens.weight");
    int64_t n;
    for (int r = 0; r < 8; r++) {
        const struct rect s = stored(p, down, r, &n);
        cr_assert(n == 256 * 6 && s.lo[2] == 256 * r && s.hi[2] == 256 * (r + 1));
        const struct rect v = stored(p, embed, r, &n);
        cr_assert(v.lo[1] == 19456 * r && rect_len(&v, 1) == (r < 7 ? 19456 : 18688));
    }
    placement_free(p);
    p = models_placement(t1, (struct topology){.tp = 8, .etp = 2});
    const struct table_entry *gate =
        row(t1, "model.layers.1.mlp.experts.gate_proj.weight");
    stored(p, gate, 0, &n);
    cr_assert_eq(n, 12, "one tile of 80 rows for each expert, rank 0");
    stored(p, gate, 1, &n);
    cr_assert_eq(n, 0);
    embed = row(t1, "model.embed_tokens.weight");
    for (int r = 0; r < 8; r++) {
        const struct rect v = stored(p, embed, r, &n);
        cr_assert(v.lo[1] == 128 * r && rect_len(&v, 1) == (r < 7 ? 128 : 104));
    }
    placement_free(p);
    table_free(t);
    table_free(t1);
}

/* Every tile of a tensor on a grid has one owner; each cell's tiles are what it says. */
static void one_owner(const struct placement *p, const struct table_entry *e,
    const struct tile_grid *g, const int64_t block[2])
{
    const int64_t n = tile_count(g);
    unsigned char *seen = calloc((size_t)n + 1, 1);
    for (int i = 0; i < placement_cells(p); i++) {
        const struct cell c = placement_cell(p, i);
        struct rect mine, s;
        cr_assert_eq(placement_cell_index(p, &c), i);
        const bool some = placement_tiles(p, e, g, block, &c, &mine);
        cr_assert_eq(some, !rect_empty(&mine));
        const bool loads = placement_slice(p, e, &c, &s);
        for (int64_t k = 0; k < n; k++) {
            const struct rect at = tile_rect(g, k);
            const struct rect tile = tile_cover(g, &at);
            const bool owned = rect_contains(&mine, &tile);
            seen[k] = (unsigned char)(seen[k] + owned);
            if (!e || !loads)
                continue;
            /* The rule itself: the slice holds the tile's first element. */
            const int64_t y = at.lo[1] * block[0], x = at.lo[2] * block[1];
            const struct rect first = {{at.lo[0], y, x}, {at.lo[0] + 1, y + 1, x + 1}};
            const bool rule =
                rect_contains(&s, &first) && (e->cut != CUT_NONE || c.tp == 0);
            cr_assert_eq(owned, rule, "%s", e->name);
        }
    }
    for (int64_t k = 0; k < n; k++)
        cr_assert_eq(seen[k], 1, "%s tile %lld has %d owners", e ? e->name : "-",
            (long long)k, seen[k]);
    free(seen);
}

Test(topology, gives_every_tile_of_the_toys_one_owner)
{
    static const char *const names[] = {"t1", "tiny-a", "tiny-c"};
    static const struct topology topos[] = {
        {.tp = 4, .ep = 2, .etp = 1},
        {.tp = 1},
        {.tp = 4, .pp = 2, .ep = 4, .etp = 2},
        {.tp = 2, .pp = 1, .vpp = 3, .ep = 1, .etp = 8},
        {.tp = 4, .pp = 3, .ep = 4, .etp = 4},
    };
    for (size_t k = 0; k < sizeof names / sizeof names[0]; k++) {
        struct table *t = models_table(names[k], false);
        for (size_t i = 0; i < sizeof topos / sizeof topos[0]; i++) {
            struct placement *p = models_placement(t, topos[i]);
            for (int64_t r = 0; r < t->count; r++) {
                const struct table_entry *e = &t->entries[r];
                one_owner(p, e, &e->grid, plain);
            }
            struct tile_grid g;
            tile_grid_init(&g, (const int64_t[]){7}, 1, false, false);
            one_owner(p, NULL, &g, plain);
            placement_free(p);
        }
        table_free(t);
    }
}

/* A table of one made-up row, so that shapes are free. */
static struct table_entry made_up(uint64_t *s, int p, int ep)
{
    struct table_entry e = {
        .name = "x", .where = WHERE_FIRST, .layer = -1, .rank = 2, .unit = 1};
    e.stack = rng_below(s, 3) == 0;
    e.cut = (enum table_cut)rng_below(s, e.stack ? 3 : 4);
    if (e.stack && e.cut == CUT_NONE)
        e.cut = CUT_ROWS;
    int64_t *d = e.shape;
    if (e.stack) {
        e.rank = 3;
        *d++ = ep * (int64_t)(1 + rng_below(s, 3));
    }
    d[0] = (int64_t)(1 + rng_below(s, 3000));
    d[1] = (int64_t)(1 + rng_below(s, rng_below(s, 4) ? 900 : 40000));
    if (e.cut == CUT_ROWS)
        d[0] = p * (1 + d[0] / p);
    if (e.cut == CUT_COLS)
        d[1] = p * (1 + d[1] / p);
    tile_grid_init(&e.grid, e.shape, e.rank, e.stack, e.cut == CUT_COLS);
    return e;
}

Test(topology, gives_every_tile_one_owner_whatever_the_shape)
{
    uint64_t s = 42;
    struct table *t = models_table("t1", false);
    static const int64_t blocks[][2] = {{1, 1}, {128, 128}, {16, 16}, {1, 32}, {3, 7}};
    for (int round = 0; round < 400; round++) {
        const int p = 1 + (int)rng_below(&s, 13), ep = 1 + (int)rng_below(&s, 5);
        struct table_entry e = made_up(&s, p, ep);
        struct table one = {.config = t->config, .entries = &e, .count = 1};
        struct placement *at =
            models_placement(&one, (struct topology){.tp = p, .etp = p, .ep = ep});
        const int64_t *b = blocks[rng_below(&s, 5)];
        int64_t shape[3] = {e.shape[0], e.shape[1], e.shape[2]};
        int64_t *d = shape + (e.stack ? 1 : 0);
        d[0] = (d[0] + b[0] - 1) / b[0];
        d[1] = (d[1] + b[1] - 1) / b[1];
        struct tile_grid g;
        tile_grid_init(&g, shape, e.rank, e.stack, e.cut == CUT_COLS);
        one_owner(at, &e, &e.grid, plain);
        one_owner(at, &e, &g, b);
        placement_free(at);
    }
    table_free(t);
}

/* ---- stages --------------------------------------------------------------------------------- */

static void starts_are(
    const char *model, struct topology topo, const int *want, const char *layout)
{
    struct table *t = models_table(model, false);
    struct placement *p = models_placement(t, topo);
    for (int s = 0; s < placement_stages(p); s++)
        cr_assert_eq(placement_stage_start(p, s), want[s], "stage %d starts at %d", s,
            placement_stage_start(p, s));
    if (layout)
        cr_assert_str_eq(placement_topology(p)->layout, layout);
    /* What was printed says the same when read. */
    struct placement *again = models_placement(t, *placement_topology(p));
    for (int s = 0; s < placement_stages(p); s++)
        cr_assert_eq(placement_stage_start(again, s), want[s]);
    cr_assert_str_eq(placement_topology(again)->layout, placement_topology(p)->layout);
    placement_free(again);
    placement_free(p);
    table_free(t);
}

Test(layout, has_the_default_starts_of_the_format)
{
    starts_are("glm-5.2", (struct topology){.pp = 1}, (int[]){0}, "Et*78mL");
    starts_are("glm-5.2", (struct topology){.pp = 2}, (int[]){0, 38}, "Et*38|t*40mL");
    starts_are("glm-5.2", (struct topology){.pp = 4}, (int[]){0, 18, 38, 58},
        "Et*18|t*20|t*20|t*20mL");
    starts_are(
        "glm-5.2", (struct topology){.pp = 2, .vpp = 2}, (int[]){0, 18, 38, 58}, NULL);
    starts_are("glm-5.2", (struct topology){.pp = 8},
        (int[]){0, 10, 18, 26, 34, 42, 54, 66}, NULL);
    starts_are("glm-5.2", (struct topology){.pp = 13},
        (int[]){0, 6, 10, 14, 18, 22, 26, 30, 38, 46, 54, 62, 70}, NULL);
    starts_are("glm-5.2", (struct topology){.pp = 21},
        (int[]){0, 1, 2, 6, 10, 14, 18, 22, 26, 30, 34, 38, 42, 46, 50, 54, 58, 62, 66,
            70, 74},
        NULL);
    starts_are("tiny-a", (struct topology){.pp = 2}, (int[]){0, 2}, NULL);
    starts_are(
        "tiny-a", (struct topology){.pp = 4}, (int[]){0, 1, 2, 6}, "Et|t|t*4|t*2mL");
    starts_are(
        "tiny-c", (struct topology){.pp = 8}, (int[]){0, 1, 2, 3, 4, 5, 6, 7}, NULL);
}

/* The second method: all choices of starts, in lexicographic order. */
static int64_t best_cost(const struct model_config *c, int from, int stages, int *starts)
{
    const int L = (int)c->num_hidden_layers;
    int64_t best = INT64_MAX;
    starts[0] = from;
    if (stages == 1)
        return (int64_t)(L - from) * (L - from);
    for (int j = from + 1; j < L; j++) {
        int rest[16];
        if (!c->layer_owns_indexer[j])
            continue;
        const int64_t below = best_cost(c, j, stages - 1, rest);
        const int64_t cost =
            below == INT64_MAX ? below : below + (int64_t)(j - from) * (j - from);
        if (cost < best) {
            best = cost;
            memcpy(starts + 1, rest, (size_t)(stages - 1) * sizeof *rest);
        }
    }
    return best;
}

Test(layout, default_equals_exhaustive_search)
{
    uint64_t s = 5;
    struct table *t = models_table("t1", false);
    for (int round = 0; round < 200; round++) {
        bool full[14] = {true};
        int n = 1;
        for (int i = 1; i < 14; i++)
            n += full[i] = rng_below(&s, 2) == 0;
        struct table one = {.config = t->config};
        one.config.num_hidden_layers = 14;
        one.config.layer_owns_indexer = full;
        for (int stages = 1; stages <= n && stages < 8; stages++) {
            int want[16];
            best_cost(&one.config, 0, stages, want);
            struct placement *p = models_placement(&one, (struct topology){.pp = stages});
            for (int k = 0; k < stages; k++)
                cr_assert_eq(placement_stage_start(p, k), want[k], "round %d", round);
            placement_free(p);
        }
    }
    table_free(t);
}

Test(layout, reads_the_grammar)
{
    static const char *const same[] = {
        "Et*18|t*20|t*20|t*20mL",
        "Et*18|t*20|t*20|t*20L",
        "E t*18 | (t*20|)*2 t*20, m L",
        "Et*18|t*20|t*20|t*20mmmL",
        "E(t)*18|(tt)*10|((tt)*2)*5|t*19tm*7L",
    };
    struct table *t = models_table("glm-5.2", false);
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++) {
        struct topology topo = {.pp = 4};
        snprintf(topo.layout, sizeof topo.layout, "%s", same[i]);
        struct placement *p = models_placement(t, topo);
        cr_assert_str_eq(placement_topology(p)->layout, same[0], "%s", same[i]);
        placement_free(p);
    }
    struct placement *p =
        models_placement(t, (struct topology){.pp = 3, .layout = "E|t*78|mL"});
    cr_assert_eq(placement_stage(p, row(t, "model.embed_tokens.weight")), 0);
    cr_assert_eq(placement_stage(p, row(t, "model.layers.0.input_layernorm.weight")), 1);
    cr_assert_eq(placement_stage(p, row(t, "model.layers.77.input_layernorm.weight")), 1);
    cr_assert_eq(placement_stage(p, row(t, "model.layers.78.enorm.weight")), 2);
    cr_assert_eq(placement_stage(p, row(t, "lm_head.weight")), 2);
    placement_free(p);
    table_free(t);
}

Test(layout, puts_virtual_stages_round_the_pipeline)
{
    struct table *t = models_table("glm-5.2", false);
    struct placement *p = models_placement(t, (struct topology){.pp = 2, .vpp = 2});
    cr_assert_eq(placement_stages(p), 4);
    cr_assert_eq(placement_pp(p, row(t, "model.layers.0.input_layernorm.weight")), 0);
    cr_assert_eq(placement_pp(p, row(t, "model.layers.18.input_layernorm.weight")), 1);
    cr_assert_eq(placement_pp(p, row(t, "model.layers.57.input_layernorm.weight")), 0);
    cr_assert_eq(placement_pp(p, row(t, "model.layers.58.input_layernorm.weight")), 1);
    cr_assert_eq(placement_pp(p, row(t, "model.layers.78.enorm.weight")), 1);
    cr_assert_eq(placement_pp(p, row(t, "model.norm.weight")), 1);
    placement_free(p);
    table_free(t);
}

Test(topology, refuses_with_what_would_be_valid)
{
    static const struct {
        struct topology topo;
        const char *says[3];
    } rows[] = {
        {{.tp = 7}, {"tp 7", "q_b_proj", "valid are 1, 2, 4, 8, 16, 32, 64"}},
        {{.tp = 128}, {"tp 128", "64 units of 256", "valid are 1, 2"}},
        {{.ep = 3}, {"ep 3", "256 routed experts", "1, 2, 4, 8"}},
        {{.etp = 3}, {"etp 3", "experts.gate_proj", "valid are 1, 2, 4"}},
        {{.pp = 22}, {"22 pipeline stages", "at most 21", ""}},
        {{.pp = 11, .vpp = 2}, {"22 pipeline stages", "at most 21", ""}},
        {{.tp = -1}, {"tp -1", "expected 1", ""}},
        {{.pp = 1 << 20, .vpp = 1 << 20}, {"pp 1048576", "stages", ""}},
        {{.tp = 64, .pp = 21, .ep = 1 << 20, .etp = 1 << 20},
            {"cells", "ep 1048576", ""}},
        {{.pp = 4, .layout = "Et*20|t*20|t*19|t*19mL"},
            {"stage 1 starts on layer 20", "valid starts are 0, 1, 2, 6, 10, 14",
                "70, 74"}},
        {{.pp = 4, .layout = "Et*18|t*20|t*20|t*21mL"}, {"79 layers", "78", ""}},
        {{.pp = 4, .layout = "Et*18|t*20|t*40mL"}, {"3 stages", "pp * vpp is 4", ""}},
        {{.pp = 1, .layout = "Ex*78L"}, {"character 2", "unknown letter", ""}},
        {{.pp = 1, .layout = "Et*0L"}, {"character 5", "count from 1", ""}},
        {{.pp = 1, .layout = "E(t*78L"}, {"expected ')'", "", ""}},
        {{.pp = 1, .layout = "Et*78)L"}, {"')' without '('", "", ""}},
        {{.pp = 1, .layout = "((((((((((t"}, {"too deep", "", ""}},
        {{.pp = 1, .layout = "E((((t*99999)*99999)*99999)*99999)L"},
            {"more than 65536", "", ""}},
        {{.pp = 1, .layout = "t*78L"}, {"start with E", "", ""}},
        {{.pp = 1, .layout = "Et*78"}, {"end with L", "", ""}},
        {{.pp = 1, .layout = "Et*38Et*40L"}, {"E must come first", "", ""}},
        {{.pp = 1, .layout = "Et*38Lt*40"}, {"L must come last", "", ""}},
        {{.pp = 1, .layout = "Et*38mt*40L"}, {"follows m", "", ""}},
        {{.pp = 2, .layout = "Et*78m|mL"}, {"one stage", "", ""}},
    };
    struct table *t = models_table("glm-5.2", false);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct glm_error err = {0};
        struct placement *p = NULL;
        cr_assert_eq(
            placement_init(&p, t, &rows[i].topo, &err), GLM_EUSAGE, "row %zu", i);
        cr_assert_null(p);
        for (int k = 0; k < 3; k++)
            cr_assert_not_null(
                strstr(err.text, rows[i].says[k]), "row %zu: %s", i, err.text);
    }
    table_free(t);
}

Test(topology, reads_and_writes_its_word)
{
    struct topology t;
    struct glm_error err = {0};
    char buf[64];
    cr_assert_eq(topology_parse(&t, "tp8,pp4,ep32", &err), 0);
    cr_assert(t.tp == 8 && t.pp == 4 && t.ep == 32 && t.vpp == 1 && t.etp == 1);
    topology_print(&t, buf, sizeof buf);
    cr_assert_str_eq(buf, "tp8,pp4,ep32");
    cr_assert_eq(topology_parse(&t, "etp2,vpp3,pp2", &err), 0);
    topology_print(&t, buf, sizeof buf);
    cr_assert_str_eq(buf, "tp1,pp2,ep1,vpp3,etp2");
    cr_assert_eq(topology_print(&t, buf, 4), 21);
    static const char *const wrong[] = {"", "tp", "tp0", "tp-1", "tpx", "xp3", "tp2,",
        "tp2,,pp2", "tp2,tp4", "tp99999999999999999999", "tp2 pp2", "2"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        err = (struct glm_error){0};
        cr_assert_eq(topology_parse(&t, wrong[i], &err), GLM_EUSAGE, "'%s'", wrong[i]);
    }
}

Test(topology, numbers_cells_by_stage_then_dense_then_experts)
{
    struct table *t = models_table("glm-5.2", false);
    struct placement *p =
        models_placement(t, (struct topology){.tp = 4, .pp = 2, .ep = 2});
    static const char *const names[] = {"p000-t000", "p000-t001", "p000-t002",
        "p000-t003", "p000-e000-t000", "p000-e001-t000", "p001-t000"};
    cr_assert_eq(placement_cells(p), 12);
    for (int i = 0; i < 7; i++) {
        char buf[32];
        const struct cell c = placement_cell(p, i);
        cell_name(&c, buf, sizeof buf);
        cr_assert_str_eq(buf, names[i]);
    }
    placement_free(p);
    table_free(t);
}
