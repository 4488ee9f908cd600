/* glm-verify diff: equal is equal at every topology; a difference is located and measured rightly. */
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <criterion/criterion.h>

#include "convert/convert.h"
#include "tests/support/rng.h"
#include "tests/support/smallckpt.h"
#include "tests/support/tmpdir.h"
#include "tests/support/toy.h"
#include "verify/verify.h"

static void toy(const char *dir, bool gauss, bool no_mtp)
{
    const struct toy_options o = {.config = "fixtures/configs/tiny-a.json",
        .files = 2,
        .gauss = gauss,
        .no_mtp = no_mtp};
    cr_assert_eq(toy_write(dir, &o), 0, "%s", toy_error());
}

static void imported(const char *src, const char *out, struct topology topo)
{
    struct glm_error err = {0};
    struct convert_report report;
    const struct import_options o = {
        .src = src, .out = out, .topology = topo, .dtype = "same", .threads = 2};
    convert_import(&o, &report, NULL, &err);
    cr_assert_eq(err.code, GLM_OK, "%s", err.text);
}

static enum glm_code compared(
    struct diff_report *r, const char *a, const char *b, struct diff_options o)
{
    struct glm_error err = {0};
    o.threads = o.threads > 0 ? o.threads : 2;
    o.ulp = o.tolerance ? o.ulp : -1;
    diff_run(r, a, b, &o, &err);
    cr_assert(err.code == GLM_OK || err.code == GLM_EMISMATCH, "%s", err.text);
    return err.code;
}

/* Where a Hugging Face tensor's data lies, from the file's header. */
struct spot {
    char path[512];
    uint64_t offset, bytes;
    int64_t shape[3];
    int rank;
};

static struct spot spot_of(const char *dir, const char *name)
{
    for (int i = 1; i <= 2; i++) {
        struct spot s = {0};
        struct st_header h;
        struct glm_error err = {0};
        snprintf(s.path, sizeof s.path, "%s/model-0000%d-of-00002.safetensors", dir, i);
        cr_assert_eq(st_read(&h, s.path, NULL, &err), GLM_OK, "%s", err.text);
        const struct st_tensor *const t = st_find(&h, name, strlen(name));
        if (t != NULL) {
            s.offset = h.data_start + t->begin;
            s.bytes = t->end - t->begin;
            s.rank = t->rank;
            memcpy(s.shape, t->shape, (size_t)t->rank * sizeof *t->shape);
        }
        st_clear(&h);
        if (t != NULL)
            return s;
    }
    cr_assert_fail("no tensor %s", name);
    abort();
}

static void get(const struct spot *s, uint64_t at, void *out, size_t size)
{
    const int fd = open(s->path, O_RDONLY);
    cr_assert_eq(pread(fd, out, size, (off_t)(s->offset + at)), (ssize_t)size);
    close(fd);
}

static void put(const struct spot *s, uint64_t at, const void *data, size_t size)
{
    const int fd = open(s->path, O_WRONLY);
    cr_assert_eq(pwrite(fd, data, size, (off_t)(s->offset + at)), (ssize_t)size);
    close(fd);
}

static const struct diff_pair *pair_of(const struct diff_report *r, const char *name)
{
    for (int64_t i = 0; i < r->pair_count; i++)
        if (strcmp(r->pairs[i].name, name) == 0)
            return &r->pairs[i];
    cr_assert_fail("no pair %s", name);
    abort();
}

/* The second method: all BF16 values in order, so a distance is a difference of places. */
static int place_of(uint16_t code)
{
    int place = 0;
    for (unsigned c = 0; c < 0x10000; c++) {
        const uint32_t x = (uint32_t)c << 16, y = (uint32_t)code << 16;
        float fx, fy;
        memcpy(&fx, &x, 4);
        memcpy(&fy, &y, 4);
        place += fx < fy && c != 0x8000; /* -0 has no place of its own */
    }
    return place;
}

static float value_of(uint16_t code)
{
    const uint32_t x = (uint32_t)code << 16;
    float f;
    memcpy(&f, &x, 4);
    return f;
}

Test(diff, a_checkpoint_equals_its_source_at_any_topology, .timeout = 1800)
{
    char *const dir = tmpdir_new(), *const src = strdup(tmpdir_path(dir, "src"));
    char *const a = strdup(tmpdir_path(dir, "a")),
                *const b = strdup(tmpdir_path(dir, "b"));
    struct diff_report r;
    toy(src, false, false);
    imported(src, a, (struct topology){.tp = 2, .pp = 2, .ep = 4});
    imported(src, b, (struct topology){.tp = 4, .pp = 1, .ep = 2, .etp = 2});
    cr_assert_eq(compared(&r, a, b, (struct diff_options){0}), GLM_OK);
    cr_assert_eq(r.count[DIFF_EQUAL], r.pair_count);
    cr_assert_eq(r.by_method[DIFF_BY_METADATA], r.pair_count);
    cr_assert_eq(r.bytes_read, 0, "equal fingerprints: nothing is read");
    diff_clear(&r);
    cr_assert_eq(compared(&r, src, b, (struct diff_options){0}), GLM_OK);
    cr_assert_eq(r.by_method[DIFF_BY_DIGEST], r.pair_count);
    diff_clear(&r);
    cr_assert_eq(compared(&r, b, src, (struct diff_options){0}), GLM_OK);
    diff_clear(&r);
    cr_assert_eq(compared(&r, src, src, (struct diff_options){0}), GLM_OK);
    cr_assert_eq(r.by_method[DIFF_BY_ELEMENT], r.pair_count);
    diff_clear(&r);
    cr_assert_eq(compared(&r, a, b, (struct diff_options){.quick = true}), GLM_OK);
    cr_assert_eq(r.count[DIFF_EQUAL], r.pair_count);
    diff_clear(&r);
    tmpdir_remove(dir);
    free(src);
    free(a);
    free(b);
}

/* E8M0 codes under the plain name of a byte, as some publishers store them. */
Test(diff, scales_stored_as_bytes_are_exponents)
{
    char *const dir = tmpdir_new(), *const u8 = strdup(tmpdir_path(dir, "u8"));
    char *const e8m0 = strdup(tmpdir_path(dir, "e8m0"));
    char *const a = strdup(tmpdir_path(dir, "a")),
                *const b = strdup(tmpdir_path(dir, "b"));
    const struct diff_options near = {.tolerance = true};
    struct toy_options o = {.config = "fixtures/configs/tiny-a.json", .form = TOY_MX_U8};
    struct diff_report r;
    cr_assert_eq(toy_write(u8, &o), 0, "%s", toy_error());
    o.form = TOY_MX_E8M0;
    cr_assert_eq(toy_write(e8m0, &o), 0, "%s", toy_error());
    imported(u8, a, (struct topology){.tp = 2, .pp = 1, .ep = 1});
    imported(e8m0, b, (struct topology){.tp = 1, .pp = 1, .ep = 1});
    const char *const pairs[][2] = {{u8, a}, {u8, u8}, {a, a}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        cr_assert_eq(
            compared(&r, pairs[i][0], pairs[i][1], (struct diff_options){0}), GLM_OK);
        diff_clear(&r);
        cr_assert_eq(compared(&r, pairs[i][0], pairs[i][1], near), GLM_OK);
        diff_clear(&r);
    }
    cr_assert_eq(compared(&r, u8, b, (struct diff_options){0}), GLM_EMISMATCH);
    const struct diff_pair *const p =
        pair_of(&r, "model.layers.0.self_attn.o_proj.weight_scale");
    cr_assert_eq(p->verdict, DIFF_DTYPE, "its type is told as it is stored");
    diff_clear(&r);
    tmpdir_remove(dir);
    free(u8);
    free(e8m0);
    free(a);
    free(b);
}

static void refused(
    const char *a, const char *b, struct diff_options o, const char *sentence)
{
    struct glm_error err = {0};
    struct diff_report r;
    o.threads = 1;
    cr_assert_eq(diff_run(&r, a, b, &o, &err), GLM_EUSAGE);
    cr_assert_not_null(strstr(err.text, sentence), "%s", err.text);
    diff_clear(&r);
}

/* Without fingerprints --quick would say that what it did not look at is equal. */
Test(diff, quick_wants_fingerprints_on_both_sides_and_nothing_that_reads)
{
    char *const dir = tmpdir_new(), *const src = strdup(tmpdir_path(dir, "src"));
    char *const a = strdup(tmpdir_path(dir, "a"));
    toy(src, false, false);
    imported(src, a, (struct topology){.tp = 1});
    const struct diff_options quick = {.quick = true, .ulp = -1};
    refused(a, src, quick, "a model directory has none");
    refused(src, a, quick, "a model directory has none");
    refused(src, src, quick, "a model directory has none");
    struct diff_options o = quick;
    o.tolerance = true;
    refused(a, a, o, "a tolerance");
    o = quick;
    o.norms = true;
    refused(a, a, o, "--norms");
    tmpdir_remove(dir);
    free(src);
    free(a);
}

/* As transformers writes them: config.json promises MTP layers whose tensors are not there. */
Test(diff, a_model_folder_without_its_mtp_layers_can_be_compared)
{
    char *const dir = tmpdir_new(), *const whole = strdup(tmpdir_path(dir, "whole"));
    char *const cut = strdup(tmpdir_path(dir, "cut"));
    struct diff_report r;
    toy(whole, false, false);
    toy(cut, false, true);
    cr_assert_eq(compared(&r, cut, cut, (struct diff_options){0}), GLM_OK);
    cr_assert_eq(r.count[DIFF_EQUAL], r.pair_count);
    diff_clear(&r);
    cr_assert_eq(compared(&r, whole, cut, (struct diff_options){0}), GLM_EMISMATCH);
    cr_assert_eq(r.count[DIFF_ONLY_A] + r.count[DIFF_EQUAL], r.pair_count);
    cr_assert_eq(pair_of(&r, "model.layers.8.eh_proj.weight")->verdict, DIFF_ONLY_A);
    diff_clear(&r);
    tmpdir_remove(dir);
    free(whole);
    free(cut);
}

/* One changed element, in a matrix, a column-cut matrix, an expert, and a vector. */
Test(diff, locates_a_single_changed_element_exactly, .timeout = 1800)
{
    static const struct {
        const char *hf, *logical;
    } names[] = {
        {"model.embed_tokens.weight", "model.embed_tokens.weight"},
        {"model.layers.0.mlp.down_proj.weight", "model.layers.0.mlp.down_proj.weight"},
        {"model.layers.4.mlp.experts.6.down_proj.weight",
            "model.layers.4.mlp.experts.down_proj.weight"},
        {"model.layers.2.input_layernorm.weight",
            "model.layers.2.input_layernorm.weight"},
    };
    char *const dir = tmpdir_new(), *const a = strdup(tmpdir_path(dir, "a"));
    char *const b = strdup(tmpdir_path(dir, "b")),
                *const ca = strdup(tmpdir_path(dir, "ca"));
    toy(a, false, false);
    toy(b, false, false);
    imported(a, ca, (struct topology){.tp = 2, .pp = 2, .ep = 4});
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const struct spot s = spot_of(b, names[i].hf);
        const int64_t cols = s.shape[s.rank - 1], n = (int64_t)s.bytes / 2;
        const int64_t at = (int64_t)(rng_mix(i) % (uint64_t)n);
        uint16_t old, new;
        get(&s, 2 * (uint64_t)at, &old, 2);
        new = (uint16_t)(old ^ 5);
        put(&s, 2 * (uint64_t)at, &new, 2);
        char cb[32];
        snprintf(cb, sizeof cb, "cb%zu", i);
        char *const copy = strdup(tmpdir_path(dir, "%s", cb));
        imported(b, copy, (struct topology){.tp = 1});
        const char *const sides[][2] = {{a, b}, {ca, b}, {a, copy}, {ca, copy}};
        for (int k = 0; k < 4; k++) {
            struct diff_report r;
            cr_assert_eq(compared(&r, sides[k][0], sides[k][1], (struct diff_options){0}),
                GLM_EMISMATCH);
            cr_assert_eq(r.count[DIFF_DIFFERENT], 1);
            cr_assert_eq(r.count[DIFF_EQUAL], r.pair_count - 1);
            const struct diff_pair *const p = pair_of(&r, names[i].logical);
            cr_assert_eq(p->stats.different, 1);
            cr_assert_eq(p->tiles_different, 1);
            cr_assert_eq(p->stats.first, p->stats.last);
            int64_t index[4];
            const int rank = diff_index(p, p->stats.first, index);
            cr_assert_eq(index[rank - 1], at % cols);
            if (s.rank == 2)
                cr_assert_eq(index[rank - 2], at / cols);
            if (rank == 3)
                cr_assert_eq(index[0], 6);
            const struct rect *const tile = &p->detail[0].at;
            cr_assert(tile->lo[2] <= at % cols && at % cols < tile->hi[2]);
            cr_assert_eq(p->stats.max_ulp, (uint64_t)abs(place_of(old) - place_of(new)));
            cr_assert_eq(
                p->stats.max_abs, fabs((double)value_of(old) - (double)value_of(new)));
            char member[192];
            diff_member_name(p, &p->detail[0], member, sizeof member);
            cr_assert_str_eq(member, names[i].hf);
            diff_clear(&r);
        }
        put(&s, 2 * (uint64_t)at, &old, 2);
        free(copy);
    }
    tmpdir_remove(dir);
    free(a);
    free(b);
    free(ca);
}

/* Random changes of every size, signs, zeros, infinities and NaN, against a plain loop. */
Test(diff, counts_and_measures_as_a_plain_loop_does, .timeout = 1800)
{
    enum { N = 160 * 288 };
    char *const dir = tmpdir_new(), *const a = strdup(tmpdir_path(dir, "a"));
    char *const b = strdup(tmpdir_path(dir, "b"));
    const char *const name = "model.layers.0.mlp.down_proj.weight";
    uint16_t *const x = malloc(2 * N), *const y = malloc(2 * N);
    toy(a, true, false);
    toy(b, true, false);
    const struct spot sa = spot_of(a, name), sb = spot_of(b, name);
    cr_assert_eq(sa.bytes, 2 * N);
    get(&sa, 0, x, 2 * N);
    static const uint16_t odd[] = {
        0x0000, 0x8000, 0x7f80, 0xff80, 0x7fc0, 0xffc1, 0x0001, 0x8001};
    for (uint64_t i = 0; i < N; i++)
        if (rng_mix(i) % 97 == 0)
            x[i] = odd[rng_mix(i + N) % 8];
    put(&sa, 0, x, 2 * N);
    memcpy(y, x, 2 * N);
    for (uint64_t i = 1000; i < N - 700; i++)
        if (rng_mix(i + 7) % 23 == 0)
            y[i] = (uint16_t)(rng_mix(i + 9) % 5 == 0 ? odd[rng_mix(i + 3) % 8]
                                                      : y[i] ^ 1 << rng_mix(i + 5) % 16);
    put(&sb, 0, y, 2 * N);
    int64_t different = 0, nan = 0, first = -1, last = -1, beyond = 0;
    double max_abs = 0, sum_a = 0, sum_d = 0;
    int max_ulp = 0;
    int *const place = malloc(0x10000 * sizeof *place);
    for (unsigned c = 0; c < 0x10000; c++)
        place[c] = -1;
    for (int i = 0; i < N; i++) {
        if (x[i] == y[i])
            continue;
        const double va = value_of(x[i]), vb = value_of(y[i]);
        different++;
        first = first < 0 ? i : first;
        last = i;
        if (isnan(va) || isnan(vb)) {
            nan++;
            beyond += !(isnan(va) && isnan(vb));
            continue;
        }
        for (int k = 0; k < 2; k++) {
            const uint16_t c = k ? y[i] : x[i];
            place[c] = place[c] < 0 ? place_of(c) : place[c];
        }
        const int ulp = abs(place[x[i]] - place[y[i]]);
        const double abs_d = va == vb ? 0 : fabs(va - vb);
        max_ulp = ulp > max_ulp ? ulp : max_ulp;
        max_abs = abs_d > max_abs ? abs_d : max_abs;
        beyond += !(isfinite(abs_d) && (abs_d <= 0.001 + 0.25 * fabs(vb) || ulp <= 3));
    }
    struct diff_report r, t;
    cr_assert_eq(compared(&r, a, b, (struct diff_options){.threads = 1}), GLM_EMISMATCH);
    cr_assert_eq(compared(&t, a, b, (struct diff_options){.threads = 3}), GLM_EMISMATCH);
    const struct diff_pair *p = pair_of(&r, name);
    cr_assert_eq(p->stats.different, different);
    cr_assert_eq(p->stats.nan, nan);
    cr_assert_eq(p->stats.first, first);
    cr_assert_eq(p->stats.last, last);
    cr_assert_eq(p->stats.max_ulp, (uint64_t)max_ulp);
    cr_assert_eq(p->stats.max_abs, max_abs);
    cr_assert_gt(nan, 20);
    cr_assert_eq(r.layer_count, 1);
    cr_assert_eq(
        memcmp(r.layers, t.layers, sizeof *r.layers) == 0 || isnan(r.layers[0].norm_a),
        1);
    for (int64_t i = 0; i < r.pair_count; i++)
        cr_assert_eq(
            memcmp(&r.pairs[i].stats, &t.pairs[i].stats, sizeof r.pairs[i].stats), 0);
    diff_clear(&r);
    diff_clear(&t);
    const struct diff_options tolerant = {
        .tolerance = true, .atol = 0.001, .rtol = 0.25, .ulp = 3};
    cr_assert_eq(compared(&r, a, b, tolerant), GLM_EMISMATCH);
    cr_assert_eq(pair_of(&r, name)->stats.beyond, beyond);
    diff_clear(&r);

    /* The norm of the layer, of finite values only, in long double over the layer's tensors. */
    for (int i = 0; i < N; i++) {
        x[i] = isfinite(value_of(x[i])) ? x[i] : 0x3f80;
        y[i] = isfinite(value_of(y[i])) ? y[i] : 0x3f80;
        if (fabsf(value_of(y[i])) > 100)
            y[i] = x[i];
        const double va = value_of(x[i]), d = va - (double)value_of(y[i]);
        sum_a += va * va;
        sum_d += d * d;
    }
    put(&sa, 0, x, 2 * N);
    put(&sb, 0, y, 2 * N);
    cr_assert_eq(compared(&r, a, b, (struct diff_options){0}), GLM_EMISMATCH);
    cr_assert_eq(r.layers[0].layer, 0);
    cr_assert_float_eq(r.layers[0].norm_d, sqrt(sum_d), 1e-9 * sqrt(sum_d));
    cr_assert_gt(
        r.layers[0].norm_a, sqrt(sum_a)); /* the other tensors of the layer, too */
    diff_clear(&r);
    free(place);
    free(x);
    free(y);
    tmpdir_remove(dir);
    free(a);
    free(b);
}

Test(diff, zeros_of_both_signs_differ_by_no_ulp_and_agree_within_any_tolerance)
{
    char *const dir = tmpdir_new(), *const a = strdup(tmpdir_path(dir, "a"));
    char *const b = strdup(tmpdir_path(dir, "b"));
    const uint16_t plus = 0, minus = 0x8000;
    struct diff_report r;
    toy(a, true, false);
    toy(b, true, false);
    const struct spot sa = spot_of(a, "lm_head.weight"),
                      sb = spot_of(b, "lm_head.weight");
    put(&sa, 200, &plus, 2);
    put(&sb, 200, &minus, 2);
    cr_assert_eq(compared(&r, a, b, (struct diff_options){0}), GLM_EMISMATCH);
    cr_assert_eq(pair_of(&r, "lm_head.weight")->stats.different, 1);
    cr_assert_eq(pair_of(&r, "lm_head.weight")->stats.max_ulp, 0);
    cr_assert_eq(r.layers[0].layer, -1);
    diff_clear(&r);
    cr_assert_eq(
        compared(&r, a, b, (struct diff_options){.tolerance = true, .ulp = -1}), GLM_OK);
    cr_assert_eq(r.count[DIFF_WITHIN], 1);
    diff_clear(&r);
    tmpdir_remove(dir);
    free(a);
    free(b);
}

Test(diff, names_what_only_one_side_has)
{
    char *const dir = tmpdir_new(), *const a = strdup(tmpdir_path(dir, "a"));
    char *const b = strdup(tmpdir_path(dir, "b"));
    struct glm_error err = {0};
    struct diff_report r;
    mkdir(a, 0777);
    mkdir(b, 0777);
    smallckpt_write(a, &(struct smallckpt_options){.topo = {.tp = 2}}, &err);
    smallckpt_write(
        b, &(struct smallckpt_options){.topo = {.ep = 2}, .no_mtp = true}, &err);
    cr_assert_eq(err.code, GLM_OK, "%s", err.text);
    cr_assert_eq(compared(&r, a, b, (struct diff_options){0}), GLM_EMISMATCH);
    cr_assert_gt(r.count[DIFF_ONLY_A], 10);
    cr_assert_eq(r.count[DIFF_ONLY_A] + r.count[DIFF_EQUAL], r.pair_count);
    cr_assert_eq(pair_of(&r, "model.layers.8.eh_proj.weight")->verdict, DIFF_ONLY_A);
    diff_clear(&r);
    cr_assert_eq(compared(&r, b, a, (struct diff_options){.quick = true}), GLM_EMISMATCH);
    cr_assert_eq(pair_of(&r, "model.layers.8.eh_proj.weight")->verdict, DIFF_ONLY_B);
    diff_clear(&r);
    tmpdir_remove(dir);
    free(a);
    free(b);
}

/* Sections: those of the training state only when asked for. */
Test(diff, compares_the_section_that_is_asked_for)
{
    char *const dir = tmpdir_new(), *const a = strdup(tmpdir_path(dir, "a"));
    char *const b = strdup(tmpdir_path(dir, "b"));
    struct glm_error err = {0};
    struct diff_report r;
    const struct smallckpt_options o = {.training = true, .topo = {.tp = 2, .ep = 2}};
    struct smallckpt s;
    mkdir(a, 0777);
    mkdir(b, 0777);
    smallckpt_write(a, &o, &err);
    cr_assert_eq(smallckpt_shards(&s, b, &o, &err), GLM_OK, "%s", err.text);
    cr_assert_eq(manifest_index(s.m, &err), GLM_OK);
    const int64_t v = manifest_find(s.m, SECTION_V, "model.embed_tokens.weight");
    s.tiles[32 * s.m->tensors[v].first_tile] ^= 1;
    cr_assert_eq(manifest_seal(s.m, s.tiles, &err), GLM_OK);
    cr_assert_eq(
        index_write(s.m, s.tiles, s.chunks, tmpdir_path(b, "index.h5"), &err), GLM_OK);
    cr_assert_eq(compared(&r, a, b, (struct diff_options){0}), GLM_OK);
    diff_clear(&r);
    cr_assert_eq(compared(&r, a, b, (struct diff_options){.section = "opt/m"}), GLM_OK);
    diff_clear(&r);
    cr_assert_eq(
        compared(&r, a, b, (struct diff_options){.section = "opt/v", .quick = true}),
        GLM_EMISMATCH);
    cr_assert_eq(r.count[DIFF_DIFFERENT], 1);
    cr_assert_eq(r.pairs[0].detail_count, 1);
    cr_assert_eq(r.pairs[0].detail[0].tile, 0);
    diff_clear(&r);
    cr_assert_eq(
        compared(&r, a, b, (struct diff_options){.section = "all", .quick = true}),
        GLM_EMISMATCH);
    cr_assert_eq(r.count[DIFF_DIFFERENT], 1);
    diff_clear(&r);
    /* Derived weights, odd types, empty and rank-4 arrays, element by element. */
    cr_assert_eq(
        compared(&r, a, a,
            (struct diff_options){.section = "all", .tolerance = true, .ulp = -1}),
        GLM_OK);
    diff_clear(&r);
    const struct diff_options wrong = {.section = "weigth", .threads = 1};
    cr_assert_eq(diff_run(&r, a, b, &wrong, &err), GLM_EUSAGE);
    diff_clear(&r);
    smallckpt_clear(&s);
    tmpdir_remove(dir);
    free(a);
    free(b);
}

/* Between number types: the report of glm-convert, which sums in another order, is the second
 * method. */
Test(diff, compares_values_between_types_only_with_a_tolerance, .timeout = 1800)
{
    char *const dir = tmpdir_new(), *const src = strdup(tmpdir_path(dir, "src"));
    char *const a = strdup(tmpdir_path(dir, "a"));
    toy(src, true, false);
    imported(src, a, (struct topology){.tp = 2, .ep = 2});
    for (int i = 0; i < 2; i++) {
        char *const b = strdup(tmpdir_path(dir, i ? "fp8" : "mxfp8"));
        struct glm_error err = {0};
        struct convert_report done;
        struct diff_report r;
        const struct recode_options o = {
            .ckpt = a, .out = b, .dtype = i ? "fp8" : "mxfp8", .threads = 2};
        convert_recode(&o, &done, NULL, &err);
        cr_assert_eq(err.code, GLM_OK, "%s", err.text);
        cr_assert_eq(compared(&r, a, b, (struct diff_options){0}), GLM_EMISMATCH);
        int64_t members[DIFF_UNCOMPARED + 1] = {0}; /* as glm-convert counts */
        for (int64_t k = 0; k < r.pair_count; k++)
            members[r.pairs[k].verdict] += r.pairs[k].stack ? r.pairs[k].dims[0] : 1;
        cr_assert_eq(members[DIFF_DTYPE], done.converted);
        cr_assert_eq(members[DIFF_ONLY_B], done.converted, "the scales");
        diff_clear(&r);
        cr_assert_eq(compared(&r, a, b,
                         (struct diff_options){
                             .tolerance = true, .ulp = -1, .atol = done.error.max_abs}),
            GLM_OK);
        double most = 0, noise = 0;
        int64_t changed = 0;
        for (int64_t k = 0; k < r.pair_count; k++) {
            most = fmax(most, r.pairs[k].stats.max_abs);
            changed += r.pairs[k].stats.different;
        }
        for (int64_t k = 0; k < r.layer_count; k++)
            noise += r.layers[k].norm_d * r.layers[k].norm_d;
        cr_assert_eq(changed, done.error.changed);
        cr_assert_eq(most, done.error.max_abs);
        cr_assert_float_eq(noise, done.error.noise, 1e-9 * noise);
        diff_clear(&r);
        cr_assert_eq(compared(&r, a, b,
                         (struct diff_options){.tolerance = true,
                             .ulp = -1,
                             .atol = nextafter(done.error.max_abs, 0)}),
            GLM_EMISMATCH);
        diff_clear(&r);
        free(b);
    }
    tmpdir_remove(dir);
    free(src);
    free(a);
}

/* A checkpoint's damaged data is met as bad input, never compared. */
Test(diff, refuses_damaged_data_that_it_has_to_read)
{
    char *const dir = tmpdir_new();
    struct glm_error err = {0};
    struct diff_report r;
    smallckpt_write(dir, &(struct smallckpt_options){.topo = {.tp = 2}}, &err);
    const char *const shard = tmpdir_path(dir, "shard-p000-t000-0000.h5");
    size_t size;
    char *const bytes = tmpdir_read(shard, &size);
    bytes[size / 2] ^= 1;
    tmpdir_write(shard, bytes, size);
    free(bytes);
    const struct diff_options o = {.threads = 2, .tolerance = true, .ulp = -1};
    cr_assert_eq(diff_run(&r, dir, dir, &o, &err), GLM_EFORMAT);
    cr_assert_not_null(strstr(err.text, "shard-p000-t000-0000.h5"), "%s", err.text);
    diff_clear(&r);
    tmpdir_remove(dir);
}
