/* glm-inspect's answers: figures, tree, places, statistics, values, picture. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <criterion/criterion.h>

#include "tests/support/fullindex.h"
#include "tests/support/rng.h"
#include "tests/support/smallckpt.h"
#include "tests/support/tmpdir.h"
#include "verify/verify.h"

static struct inspect *opened(const char *dir, bool with_data)
{
    struct glm_error err = {0};
    struct inspect *in;
    inspect_open(&in, dir, with_data, 2, &err);
    cr_assert_eq(err.code, GLM_OK, "%s", err.text);
    return in;
}

static struct inspect *small(char *dir, const struct smallckpt_options *o)
{
    struct glm_error err = {0};
    smallckpt_write(dir, o, &err);
    cr_assert_eq(err.code, GLM_OK, "%s", err.text);
    return opened(dir, true);
}

static struct inspect_tensor found(
    const struct inspect *in, const char *section, const char *name)
{
    struct inspect_tensor t;
    struct glm_error err = {0};
    inspect_find(in, section, name, &t, &err);
    cr_assert_eq(err.code, GLM_OK, "%s", err.text);
    return t;
}

static int by_value(const void *a, const void *b)
{
    return memcmp(a, b, 4);
}

/* Statistics against plain loops over the elements that the file was made of. */
static void check_stats(struct inspect *in, const struct ckpt_tensor *t, const char *name,
    const char *section, int64_t first, int64_t n)
{
    struct inspect_tensor f = found(in, section, name);
    struct inspect_stats one, three;
    struct glm_error err = {0};
    cr_assert_eq(f.elements, n);
    cr_assert_eq(inspect_stats(in, &f, 1, &one, NULL, &err), GLM_OK, "%s", err.text);
    cr_assert_eq(inspect_stats(in, &f, 3, &three, NULL, &err), GLM_OK, "%s", err.text);
    cr_assert_eq(memcmp(&one, &three, sizeof one), 0, "the same at any thread count");
    const size_t size = glm_dtype_size(t->dtype);
    unsigned char *const raw = malloc((size_t)n * size);
    uint32_t *const codes = calloc((size_t)n, 4);
    smallckpt_elements(t, first, n, raw);
    long double sum = 0, m2 = 0;
    double min = INFINITY, max = -INFINITY;
    int64_t zeros = 0, binned = 0, distinct = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int64_t i = 0; i < n; i++) {
            float v;
            memcpy(&codes[i], raw + (size_t)i * size, size);
            const uint32_t bits = size == 2 ? codes[i] << 16 : codes[i];
            memcpy(&v, &bits, 4);
            if (pass == 1) {
                m2 += ((long double)v - sum / n) * ((long double)v - sum / n);
                continue;
            }
            sum += v;
            zeros += v == 0;
            min = v < min ? v : min;
            max = v > max ? v : max;
        }
    qsort(codes, (size_t)n, 4, by_value);
    for (int64_t i = 0; i < n; i++)
        distinct += i == 0 || codes[i] != codes[i - 1];
    for (int i = 0; i < INSPECT_BINS; i++)
        binned += one.bins[i];
    cr_assert_eq(one.count, n);
    cr_assert_eq(binned, n);
    cr_assert_eq(one.zeros, zeros);
    cr_assert_eq(one.min, min);
    cr_assert_eq(one.max, max);
    cr_assert_float_eq(one.mean, (double)(sum / n), 1e-12);
    cr_assert_float_eq(one.std, (double)sqrtl(m2 / n), 1e-12);
    cr_assert(one.distinct == distinct || (one.distinct == -1 && n > 65536), "%lld, %lld",
        (long long)one.distinct, (long long)distinct);
    free(raw);
    free(codes);
    inspect_tensor_clear(&f);
}

Test(inspect, statistics_are_those_of_a_plain_loop, .timeout = 1800)
{
    for (int zstd = 0; zstd < 2; zstd++) {
        char *const dir = tmpdir_new();
        const struct smallckpt_options o = {.training = true,
            .topo = {.tp = 2, .ep = 4},
            .volumes = {.encoding = zstd ? ENC_ZSTD : ENC_PLAIN}};
        struct inspect *const in = small(dir, &o);
        const struct manifest *const m = inspect_manifest(in);
        for (int64_t i = 0; i < m->tensor_count; i += 7) {
            const struct ckpt_tensor *const t = &m->tensors[i];
            if (t->dtype != GLM_BF16 && t->dtype != GLM_F32)
                continue;
            const struct rect all = rect_whole(t->grid.dims);
            if (rect_count(&all) == 0)
                continue;
            check_stats(in, t, t->name, section_name(t->section), 0, rect_count(&all));
            if (!t->stack)
                continue;
            char name[192];
            const int64_t each = t->grid.dims[1] * t->grid.dims[2];
            table_member_name(t->entry, 3, name, sizeof name);
            check_stats(in, t, name, section_name(t->section), 3 * each, each);
        }
        inspect_close(in);
        tmpdir_remove(dir);
    }
}

Test(inspect, a_slice_holds_the_elements_asked_for)
{
    static const struct {
        const char *name, *spec;
        int64_t lo[2], hi[2];
    } cases[] = {
        {"model.embed_tokens.weight", "100:203,3:9", {100, 3}, {203, 9}},
        {"model.embed_tokens.weight", "-1", {319, 0}, {320, 160}},
        {"model.embed_tokens.weight", ":2,-4:", {0, 156}, {2, 160}},
        {"model.layers.3.mlp.experts.5.down_proj.weight", "7,5:", {7, 5}, {8, 72}},
        {"model.layers.0.mlp.down_proj.weight", "", {0, 0}, {160, 288}},
    };
    char *const dir = tmpdir_new();
    struct inspect *const in =
        small(dir, &(struct smallckpt_options){.topo = {.tp = 2, .ep = 4}});
    const struct manifest *const m = inspect_manifest(in);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct inspect_tensor t = found(in, NULL, cases[i].name);
        struct inspect_slice s;
        struct glm_error err = {0};
        cr_assert_eq(
            inspect_slice(in, &t, cases[i].spec, &s, &err), GLM_OK, "%s", err.text);
        const int64_t rows = cases[i].hi[0] - cases[i].lo[0],
                      cols = cases[i].hi[1] - cases[i].lo[1];
        cr_assert_eq(s.count, rows * cols);
        const int64_t base = t.member >= 0 ? t.member * t.shape[0] * t.shape[1] : 0;
        const struct ckpt_tensor *const c = &m->tensors[t.row];
        for (int64_t k = 0; k < s.count; k++) {
            uint16_t code;
            float v;
            const int64_t at =
                (cases[i].lo[0] + k / cols) * t.shape[1] + cases[i].lo[1] + k % cols;
            smallckpt_elements(c, base + at, 1, &code);
            const uint32_t bits = (uint32_t)code << 16;
            memcpy(&v, &bits, 4);
            cr_assert_eq(s.values[k], v);
        }
        inspect_slice_clear(&s);
        inspect_tensor_clear(&t);
    }
    static const char *const wrong[] = {
        "0:321", "3:2", "0:1,0:1,0:1", "x", "320", "1:2:3", "0:9999999999999999999"};
    struct inspect_tensor t = found(in, NULL, "model.embed_tokens.weight");
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct inspect_slice s;
        struct glm_error err = {0};
        cr_assert_eq(
            inspect_slice(in, &t, wrong[i], &s, &err), GLM_EUSAGE, "%s", wrong[i]);
        inspect_slice_clear(&s);
    }
    inspect_tensor_clear(&t);
    inspect_close(in);
    tmpdir_remove(dir);
}

/* Codes times scales, by the definition of the format. */
Test(inspect, numbers_of_a_quantised_tensor_are_codes_times_scales)
{
    char *const dir = tmpdir_new();
    struct inspect *const in =
        small(dir, &(struct smallckpt_options){.form = SMALL_MXFP8, .topo = {.tp = 2}});
    const struct manifest *const m = inspect_manifest(in);
    struct inspect_tensor t = found(in, NULL, "model.layers.0.mlp.down_proj.weight");
    struct inspect_slice s;
    struct glm_error err = {0};
    cr_assert(t.quantised);
    cr_assert_eq(inspect_slice(in, &t, "11:13,30:70", &s, &err), GLM_OK, "%s", err.text);
    const struct ckpt_tensor *const c = &m->tensors[t.row],
                                    *const q = &m->tensors[c->scale];
    for (int64_t k = 0; k < s.count; k++) {
        const int64_t row = 11 + k / 40, col = 30 + k % 40;
        uint8_t code, scale;
        smallckpt_elements(c, row * c->shape[1] + col, 1, &code);
        smallckpt_elements(q, row * q->shape[1] + col / 32, 1, &scale);
        const double magnitude = ldexp(1 + (code & 7) / 8.0, (code >> 3 & 15) - 7);
        cr_assert_eq(
            s.values[k], ldexp(code & 128 ? -magnitude : magnitude, scale - 127));
    }
    inspect_slice_clear(&s);
    inspect_tensor_clear(&t);
    inspect_close(in);
    tmpdir_remove(dir);
}

/* The pieces of a name cover it once, and lie where the elements are. */
Test(inspect, pieces_say_where_the_elements_lie)
{
    static const char *const names[] = {"model.embed_tokens.weight",
        "model.layers.4.mlp.experts.6.up_proj.weight",
        "model.layers.4.mlp.experts.up_proj.weight", "model.norm.weight"};
    char *const dir = tmpdir_new();
    struct inspect *const in =
        small(dir, &(struct smallckpt_options){.topo = {.tp = 2, .pp = 2, .ep = 4}});
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct inspect_tensor t = found(in, NULL, names[i]);
        const struct ckpt_tensor *const c = &inspect_manifest(in)->tensors[t.row];
        int64_t covered = 0;
        for (int64_t k = 0; k < t.piece_count; k++) {
            const struct inspect_piece *const p = &t.pieces[k];
            int64_t n = 1, first = t.member >= 0 ? t.member : 0;
            for (int a = 0; a < p->rank; a++) {
                first = first * t.shape[a] + p->lo[a];
                n *= p->hi[a] - p->lo[a];
            }
            covered += n;
            cr_assert_eq(p->bytes, (uint64_t)n * 2);
            unsigned char want[2], got[2];
            smallckpt_elements(c, first, 1, want);
            FILE *const f = fopen(tmpdir_path(dir, "%s", p->file), "rb");
            fseek(f, (long)p->offset, SEEK_SET);
            cr_assert_eq(fread(got, 1, 2, f), 2);
            fclose(f);
            cr_assert_eq(
                memcmp(want, got, 2), 0, "%s piece %lld", names[i], (long long)k);
        }
        cr_assert_eq(covered, t.elements);
        inspect_tensor_clear(&t);
    }
    struct inspect_tensor t;
    struct glm_error err = {0};
    cr_assert_eq(
        inspect_find(in, NULL, "model.layers.3.mlp.expert.down_proj.weight", &t, &err),
        GLM_EUSAGE);
    cr_assert_not_null(strstr(err.text, "'model.layers.3.mlp.experts.down_proj.weight'"));
    inspect_tensor_clear(&t);
    inspect_close(in);
    tmpdir_remove(dir);
}

/* A member's fingerprint is that of its Hugging Face tensor. */
Test(inspect, a_member_has_the_fingerprint_of_its_matrix)
{
    char *const dir = tmpdir_new();
    struct inspect *const in = small(dir, &(struct smallckpt_options){.topo = {.ep = 4}});
    struct inspect_tensor stack =
        found(in, NULL, "model.layers.3.mlp.experts.gate_proj.weight");
    struct digest *const d = digest_new();
    unsigned char sum[32];
    char head[64];
    digest_begin(d);
    digest_update(d, head, (size_t)snprintf(head, sizeof head, "glm.stack.1\n8\n"));
    for (int e = 0; e < 8; e++) {
        char name[192];
        snprintf(name, sizeof name, "model.layers.3.mlp.experts.%d.gate_proj.weight", e);
        struct inspect_tensor t = found(in, NULL, name);
        digest_update(d, t.fingerprint, 32);
        inspect_tensor_clear(&t);
    }
    digest_end(d, sum);
    cr_assert_eq(memcmp(sum, stack.fingerprint, 32), 0);
    digest_free(d);
    inspect_tensor_clear(&stack);
    inspect_close(in);
    tmpdir_remove(dir);
}

/* B-05: the MTP layer is listed as such, with its full set of tensors. */
Test(inspect, B05_lists_the_mtp_layer_with_its_full_tensor_set)
{
    char *const dir = tmpdir_new();
    struct inspect *const in = small(dir, &(struct smallckpt_options){.config = "t1"});
    const struct table *const table = inspect_table(in);
    struct inspect_node *nodes;
    struct glm_error err = {0};
    int64_t count, leaves = 0, in_mtp = 0, want = 0;
    int depth = -1;
    cr_assert_eq(inspect_tree(in, &nodes, &count, &err), GLM_OK);
    for (int64_t i = 0; i < count; i++) {
        if (nodes[i].leaf)
            leaves += nodes[i].count;
        if (depth >= 0 && nodes[i].depth > depth && nodes[i].leaf)
            in_mtp += nodes[i].count;
        if (depth >= 0 && nodes[i].depth <= depth)
            depth = -1;
        if (nodes[i].note == NULL)
            continue;
        cr_assert_str_eq(nodes[i].note, "MTP");
        cr_assert_str_eq(nodes[i].label, "5");
        depth = nodes[i].depth;
    }
    for (int64_t i = 0; i < table->count; i++)
        want += table->entries[i].layer == 5 ? table_members(&table->entries[i]) : 0;
    cr_assert_gt(want, 30);
    cr_assert_eq(in_mtp, want);
    cr_assert_eq(leaves, table->hf_tensors);
    struct inspect_summary y;
    cr_assert_eq(inspect_summary(in, &y, &err), GLM_OK);
    cr_assert_eq(y.mtp.tensors, want);
    free(nodes);
    inspect_close(in);
    tmpdir_remove(dir);
}

/* The map's sums against the shards' pieces, and its picture. */
Test(inspect, the_map_holds_every_stored_byte_once)
{
    char *const dir = tmpdir_new();
    struct inspect *const in = small(dir,
        &(struct smallckpt_options){
            .training = true, .topo = {.tp = 2, .pp = 2, .ep = 2}});
    const struct manifest *const m = inspect_manifest(in);
    struct inspect_map map;
    struct glm_error err = {0};
    uint64_t pieces = 0, cells = 0, columns = 0, all = 0;
    cr_assert_eq(inspect_map(in, &map, &err), GLM_OK);
    for (int64_t i = 0; i < m->piece_count; i++)
        pieces += m->pieces[i].bytes;
    for (int64_t i = 0; i < map.cells; i++)
        cells += map.cell_bytes[i];
    for (int64_t i = 0; i < map.columns; i++)
        columns += map.column_bytes[i];
    for (int64_t i = 0; i < map.cells * map.columns * KIND_COUNT; i++)
        all += map.bytes[i];
    cr_assert_eq(pieces, map.total);
    cr_assert_eq(cells, map.total);
    cr_assert_eq(columns, map.total);
    cr_assert_eq(all, map.total);
    char *text;
    size_t size;
    FILE *const out = open_memstream(&text, &size);
    cr_assert_eq(inspect_picture(in, out, &err), GLM_OK);
    fclose(out);
    cr_assert_not_null(strstr(text, "</svg>"));
    int64_t crossings = 0, drawn = 0;
    for (int64_t i = 0; i < map.cells; i++)
        for (int64_t k = 0; k < map.columns; k++)
            crossings += inspect_map_sum(&map, i, k) > 0;
    for (const char *p = text; (p = strstr(p, "<title>")) != NULL; p++)
        drawn++;
    cr_assert_eq(drawn, crossings, "every crossing that holds something is drawn");
    free(text);
    inspect_map_clear(&map);
    inspect_close(in);
    tmpdir_remove(dir);
}

/* The whole of GLM-5.2, from its index alone (spec/glm-5.2.md 0). */
Test(inspect, lists_glm_5_2_at_full_size, .timeout = 1800)
{
    for (int zstd = 0; zstd < 2; zstd++) {
        char *const dir = tmpdir_new();
        struct glm_error err = {0};
        struct inspect_summary y;
        const struct fullindex_options o = {.config = "glm-5.2",
            .topo = {.tp = 8, .pp = 4, .ep = 32},
            .volumes = {.encoding = zstd ? ENC_ZSTD : ENC_PLAIN}};
        cr_assert_eq(fullindex_write(dir, &o, &err), GLM_OK, "%s", err.text);
        struct inspect *const in = opened(dir, false);
        cr_assert_eq(inspect_summary(in, &y, &err), GLM_OK);
        cr_assert_eq(y.weights.tensors, 59585);
        cr_assert_eq(y.weights.elements, 753329940480);
        cr_assert_eq(y.weights.tensors - y.mtp.tensors, 58794);
        cr_assert_eq(y.weights.elements - y.mtp.elements, 743377019904);
        cr_assert_eq(inspect_manifest(in)->tile_count, 1627611);
        /* B-92: a tensor of tens of thousands of chunks is listed from the table of chunks. */
        struct inspect_tensor t =
            found(in, NULL, "model.layers.40.mlp.experts.down_proj.weight");
        int64_t chunks = 0;
        for (int64_t i = 0; i < t.piece_count; i++)
            chunks += t.pieces[i].chunks;
        cr_assert_eq(t.tiles, 256 * 6 * 8);
        cr_assert_eq(chunks, zstd ? t.tiles : 0);
        inspect_tensor_clear(&t);
        inspect_close(in);
        tmpdir_remove(dir);
    }
}
