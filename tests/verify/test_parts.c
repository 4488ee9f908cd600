/* The parts of verify/: tiles hashed while rows pass, fingerprints, elements, the crew, findings. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <criterion/criterion.h>

#include "tests/support/models.h"
#include "tests/support/rng.h"
#include "tests/support/smallckpt.h"
#include "kernels/base/crew.h"
#include "verify/compare.h"
#include "verify/element.h"
#include "verify/findings.h"
#include "verify/tilehash.h"

/* ---- tilehash ------------------------------------------------------------------------------- */

struct seen {
    unsigned char (*digest)[32];
    int *count;
};

static int see(
    void *ctx, int64_t tile, const unsigned char sha256[32], struct glm_error *err)
{
    struct seen *const s = ctx;
    (void)err;
    memcpy(s->digest[tile], sha256, 32);
    s->count[tile]++;
    return GLM_OK;
}

/* Against the digests of tiles gathered one by one, for grids with every kind of edge, fed in cuts
 * of every size. */
Test(tilehash, gives_the_digests_of_gathered_tiles_at_any_cut)
{
    static const struct {
        int64_t shape[3];
        int rank;
        bool stack, column;
    } cases[] = {
        {{300, 700}, 2, false, true},
        {{300, 700}, 2, false, false},
        {{3, 130, 520}, 3, true, true},
        {{3, 260, 40}, 3, true, false},
        {{1000}, 1, false, false},
        {{5, 16500}, 2, false, false},
        {{1, 1}, 2, false, true},
        {{2049, 257}, 2, false, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct tile_grid g;
        struct glm_error err = {0};
        struct tilehash h;
        tile_grid_init(
            &g, cases[i].shape, cases[i].rank, cases[i].stack, cases[i].column);
        const int64_t n = g.dims[0] * g.dims[1] * g.dims[2], tiles = tile_count(&g);
        uint16_t *const x = malloc(2 * (size_t)n);
        for (int64_t k = 0; k < n; k++)
            x[k] = (uint16_t)rng_mix((uint64_t)k);
        struct seen s = {calloc((size_t)tiles, 32), calloc((size_t)tiles, sizeof(int))};
        const struct rect all = rect_whole(g.dims);
        tilehash_init(&h);
        cr_assert_eq(tilehash_begin(&h, &g, &all, 2, &err), GLM_OK);
        size_t at = 0;
        for (uint64_t k = 0; at < 2 * (size_t)n; k++) {
            size_t cut = 1 + (size_t)(rng_mix(k) % (k % 7 == 0 ? 3 : 40000));
            cut = cut < 2 * (size_t)n - at ? cut : 2 * (size_t)n - at;
            cr_assert_eq(tilehash_feed(&h, (char *)x + at, cut, see, &s, &err), GLM_OK);
            at += cut;
        }
        for (int64_t t = 0; t < tiles; t++) {
            const struct rect r = tile_rect(&g, t);
            uint16_t *const y = malloc(2 * (size_t)rect_count(&r));
            unsigned char want[32];
            int64_t k = 0;
            for (int64_t row = r.lo[1]; row < r.hi[1]; row++)
                for (int64_t col = r.lo[2]; col < r.hi[2]; col++)
                    y[k++] = x[(r.lo[0] * g.dims[1] + row) * g.dims[2] + col];
            digest_of(y, 2 * (size_t)k, want);
            cr_assert_eq(s.count[t], 1, "case %zu tile %lld", i, (long long)t);
            cr_assert_eq(
                memcmp(s.digest[t], want, 32), 0, "case %zu tile %lld", i, (long long)t);
            free(y);
        }
        tilehash_clear(&h);
        free(s.digest);
        free(s.count);
        free(x);
    }
}

/* ---- fingerprints --------------------------------------------------------------------------- */

static void hash_all(const struct ckpt_tensor *t, const void *data, unsigned char *tiles)
{
    struct tilehash h;
    struct glm_error err = {0};
    const struct rect all = rect_whole(t->grid.dims);
    struct seen s = {(unsigned char(*)[32])(tiles + 32 * t->first_tile),
        calloc((size_t)tile_count(&t->grid), sizeof(int))};
    tilehash_init(&h);
    tilehash_begin(&h, &t->grid, &all, glm_dtype_size(t->dtype), &err);
    tilehash_feed(
        &h, data, (size_t)rect_count(&all) * glm_dtype_size(t->dtype), see, &s, &err);
    cr_assert_eq(err.code, GLM_OK);
    tilehash_clear(&h);
    free(s.count);
}

static void swap_rect(
    const struct ckpt_tensor *t, char *x, const struct rect *a, const struct rect *b)
{
    const size_t size = glm_dtype_size(t->dtype);
    const int64_t rows =
        rect_len(a, 1) < rect_len(b, 1) ? rect_len(a, 1) : rect_len(b, 1);
    const int64_t cols =
        rect_len(a, 2) < rect_len(b, 2) ? rect_len(a, 2) : rect_len(b, 2);
    for (int64_t i = 0; i < rows; i++)
        for (size_t j = 0; j < (size_t)cols * size; j++) {
            char *const p = x
                + (size_t)((a->lo[0] * t->grid.dims[1] + a->lo[1] + i) * t->grid.dims[2]
                      + a->lo[2])
                    * size
                + j;
            char *const q = x
                + (size_t)((b->lo[0] * t->grid.dims[1] + b->lo[1] + i) * t->grid.dims[2]
                      + b->lo[2])
                    * size
                + j;
            const char keep = *p;
            *p = *q;
            *q = keep;
        }
}

/* Swaps, seals, expects another fingerprint; swaps back, expects the old one. */
static void check_swap(struct manifest *m, unsigned char *tiles,
    const struct ckpt_tensor *t, char *x, const struct rect *a, const struct rect *b)
{
    struct glm_error err = {0};
    unsigned char all[32], own[32];
    memcpy(all, m->fingerprint, 32);
    memcpy(own, t->fingerprint, 32);
    swap_rect(t, x, a, b);
    hash_all(t, x, tiles);
    cr_assert_eq(manifest_seal(m, tiles, &err), GLM_OK);
    cr_assert_neq(memcmp(all, m->fingerprint, 32), 0, "%s", t->name);
    cr_assert_neq(memcmp(own, t->fingerprint, 32), 0, "%s", t->name);
    swap_rect(t, x, a, b);
    hash_all(t, x, tiles);
    cr_assert_eq(manifest_seal(m, tiles, &err), GLM_OK);
    cr_assert_eq(memcmp(all, m->fingerprint, 32), 0, "%s", t->name);
}

Test(fingerprint, changes_when_any_two_tiles_rows_or_experts_are_swapped)
{
    static const char *const names[] = {"model.embed_tokens.weight",
        "model.layers.0.mlp.down_proj.weight",
        "model.layers.3.mlp.experts.gate_proj.weight",
        "model.layers.3.mlp.experts.down_proj.weight",
        "model.layers.1.self_attn.kv_b_proj.weight"};
    struct glm_error err = {0};
    struct table *const table = models_table("tiny-a", false);
    struct manifest *const m = manifest_new(table);
    for (int64_t i = 0; i < table->count; i++) {
        const struct table_entry *const e = &table->entries[i];
        manifest_add_tensor(
            m, e->name, SECTION_WEIGHT, e->dtype, e->shape, e->rank, e->stack, e);
    }
    const struct volumes_options v = {0};
    cr_assert_eq(
        volumes_plan(m, models_placement(table, (struct topology){0}), &v, &err), GLM_OK);
    unsigned char *const tiles = calloc((size_t)m->tile_count, 32);
    cr_assert_eq(manifest_index(m, &err), GLM_OK);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const struct ckpt_tensor *const t =
            &m->tensors[manifest_find(m, SECTION_WEIGHT, names[i])];
        const struct rect all = rect_whole(t->grid.dims);
        const int64_t n = rect_count(&all), count = tile_count(&t->grid);
        char *const x = malloc((size_t)n * glm_dtype_size(t->dtype));
        smallckpt_elements(t, 0, n, x);
        hash_all(t, x, tiles);
        cr_assert_eq(manifest_seal(m, tiles, &err), GLM_OK);
        cr_assert_gt(count, 1);
        for (int64_t a = 0; a < count; a++)
            for (int64_t b = a + 1; b < count; b++) {
                const struct rect ra = tile_rect(&t->grid, a),
                                  rb = tile_rect(&t->grid, b);
                check_swap(m, tiles, t, x, &ra, &rb); /* of a stack, also two experts */
            }
        for (uint64_t k = 0; k < 20; k++) {
            const int64_t rows = t->grid.dims[1];
            struct rect ra = all, rb = all;
            ra.lo[0] = rb.lo[0] = (int64_t)(rng_mix(k) % (uint64_t)t->grid.dims[0]);
            ra.hi[0] = rb.hi[0] = ra.lo[0] + 1;
            ra.lo[1] = (int64_t)(rng_mix(k + 50) % (uint64_t)rows);
            rb.lo[1] =
                (ra.lo[1] + 1 + (int64_t)(rng_mix(k + 90) % (uint64_t)(rows - 1))) % rows;
            ra.hi[1] = ra.lo[1] + 1;
            rb.hi[1] = rb.lo[1] + 1;
            check_swap(m, tiles, t, x, &ra, &rb);
        }
        free(x);
    }
    free(tiles);
    manifest_free(m);
    table_free(table);
}

/* ---- elements ------------------------------------------------------------------------------- */

/* Sorting all codes of a type by value gives the order of the keys. */
Test(element, keys_follow_the_values_of_every_small_type)
{
    static const enum glm_dtype types[] = {GLM_F8_E4M3, GLM_F8_E5M2, GLM_F8_E8M0,
        GLM_F8_E4M3FNUZ, GLM_F8_E5M2FNUZ, GLM_BF16, GLM_F16, GLM_I8, GLM_U8, GLM_I16,
        GLM_U16};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        const int codes = glm_dtype_size(types[i]) == 1 ? 256 : 65536;
        double *const at = malloc(2 * 65536 * sizeof *at);
        for (int k = 0; k < 2 * 65536; k++)
            at[k] = NAN;
        for (int c = 0; c < codes; c++) {
            const uint16_t code = (uint16_t)c;
            const double v = element_value(types[i], &code, 0);
            if (isnan(v))
                continue;
            const int64_t key = element_key(types[i], &code, 0) + 65536;
            cr_assert(key >= 0 && key < 2 * 65536);
            cr_assert(isnan(at[key]) || at[key] == v, "%s code %d",
                glm_dtype_name(types[i]), c);
            at[key] = v;
        }
        double last = -INFINITY;
        bool any = false;
        for (int k = 0; k < 2 * 65536; k++) {
            if (isnan(at[k]))
                continue;
            cr_assert(
                !any || at[k] > last, "%s key %d", glm_dtype_name(types[i]), k - 65536);
            last = at[k];
            any = true;
        }
        free(at);
    }
}

Test(element, known_values)
{
    const uint8_t e4m3[] = {0x00, 0x01, 0x08, 0x38, 0x7e, 0xfe, 0x7f};
    const double want[] = {0, 1.0 / 512, 1.0 / 64, 1, 448, -448, NAN};
    for (int i = 0; i < 7; i++) {
        const double v = element_value(GLM_F8_E4M3, e4m3, i);
        cr_assert(v == want[i] || (isnan(v) && isnan(want[i])), "%d: %g", i, v);
    }
    const uint16_t f16[] = {0x3c00, 0x7bff, 0x0001, 0x7c00};
    cr_assert_eq(element_value(GLM_F16, f16, 0), 1.0);
    cr_assert_eq(element_value(GLM_F16, f16, 1), 65504.0);
    cr_assert_eq(element_value(GLM_F16, f16, 2), ldexp(1, -24));
    cr_assert(isinf(element_value(GLM_F16, f16, 3)));
    const uint8_t e8m0[] = {0, 127, 254, 255};
    cr_assert_eq(element_value(GLM_F8_E8M0, e8m0, 0), ldexp(1, -127));
    cr_assert_eq(element_value(GLM_F8_E8M0, e8m0, 1), 1.0);
    cr_assert(isnan(element_value(GLM_F8_E8M0, e8m0, 3)));
    const uint64_t u64[] = {0, UINT64_MAX};
    cr_assert_eq(
        element_distance(element_key(GLM_U64, u64, 0), element_key(GLM_U64, u64, 1)),
        UINT64_MAX);
    const float f32[] = {1.0f, -0.0f, 0.0f};
    const float next = nextafterf(1.0f, 2.0f);
    cr_assert_eq(
        element_distance(element_key(GLM_F32, f32, 0), element_key(GLM_F32, &next, 0)),
        1);
    cr_assert_eq(element_key(GLM_F32, f32, 1), element_key(GLM_F32, f32, 2));
}

/* ---- crew ----------------------------------------------------------------------------------- */

struct crew_test {
    int64_t next, bad;
};

static int crew_work(void *ctx, void *state, int64_t job, struct glm_error *err)
{
    const struct crew_test *const t = ctx;
    (void)state;
    volatile uint64_t x = 0;
    for (uint64_t i = 0; i < rng_mix((uint64_t)job) % 3000;
         i++) /* jobs end out of order */
        x += i;
    if (t->bad >= 0 && job >= t->bad)
        return glm_fail(err, GLM_EIO, "job %lld", (long long)job);
    return GLM_OK;
}

static void crew_done(void *ctx, int64_t job)
{
    struct crew_test *const t = ctx;
    cr_assert_eq(job, t->next);
    t->next++;
}

Test(crew, hands_over_in_order_and_keeps_the_first_failure)
{
    for (int threads = 1; threads <= 8; threads++) {
        struct glm_error err = {0};
        struct crew_test t = {.bad = -1};
        struct crew c = {.threads = threads,
            .count = 500,
            .ctx = &t,
            .work = crew_work,
            .done = crew_done};
        cr_assert_eq(crew_run(&c, &err), GLM_OK);
        cr_assert_eq(t.next, 500);
        t = (struct crew_test){.bad = 321};
        cr_assert_eq(crew_run(&c, &err), GLM_EIO);
        cr_assert_str_eq(err.text, "job 321");
        cr_assert_leq(t.next, 321);
    }
}

Test(crew, stops_when_a_signal_asks)
{
    volatile sig_atomic_t stop = 15;
    const struct glm_events events = {.stop = &stop};
    struct crew_test t = {.bad = -1};
    struct glm_error err = {0};
    const struct crew c = {
        .threads = 2, .count = 9, .ctx = &t, .work = crew_work, .events = &events};
    cr_assert_eq(crew_run(&c, &err), GLM_ESTOPPED);
    cr_assert_eq(err.sys_errno, 15);
}

/* ---- findings ------------------------------------------------------------------------------- */

Test(findings, keep_the_first_in_file_order_and_count_the_rest)
{
    struct findings f;
    struct glm_error err = {0};
    const int64_t n = 3 * FINDINGS_KEPT + 17;
    findings_init(&f);
    for (int64_t i = 0; i < n; i++) { /* every offset once, far ones first */
        struct finding x = {.kind = FINDING_TILE, .offset = (uint64_t)(n - 1 - i)};
        cr_assert_eq(findings_add(&f, &x, &err), GLM_OK);
    }
    findings_sort(&f);
    cr_assert_eq(f.count, FINDINGS_KEPT);
    cr_assert_eq(f.dropped, n - FINDINGS_KEPT);
    cr_assert_eq(findings_total(&f), n);
    for (int64_t i = 0; i < f.count; i++)
        cr_assert_eq(f.items[i]->offset, (uint64_t)i);
    findings_clear(&f);
}

/* Codes are near each other where an infinity is not: the greatest finite number is its neighbour. */
Test(compare, an_infinity_against_another_value_is_beyond_any_tolerance)
{
    const struct diff_options o = {.tolerance = true, .ulp = 1 << 30, .atol = 1e300};
    const struct compare c = {.o = &o, .dtype = GLM_BF16};
    const uint16_t inf = 0x7f80, minus_inf = 0xff80, greatest = 0x7f7f;
    const uint16_t pairs[][2] = {{inf, minus_inf}, {inf, greatest}, {greatest, inf}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        struct diff_stats s;
        compare_init(&s);
        compare_run(&c, &pairs[i][0], &pairs[i][1], 1, 0, &s);
        cr_expect_eq(s.beyond, 1, "pair %zu", i);
        cr_expect(s.max_abs == INFINITY);
        compare_init(&s);
        compare_run(&c, &pairs[i][0], &pairs[i][0], 1, 0, &s);
        cr_expect_eq(s.different, 0);
    }
}
