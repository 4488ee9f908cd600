/* The manifest's text: canonical, and read as hostile input. */
#include "ckpt/manifest_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <criterion/criterion.h>

#include "ckpt/digest.h"
#include "tests/support/smallckpt.h"
#include "tests/support/tmpdir.h"

static struct smallckpt small;
static char *folder, *text;
static size_t text_size;

static void setup_with(const struct smallckpt_options *o)
{
    struct glm_error err = {0};
    folder = tmpdir_new();
    smallckpt_shards(&small, folder, o, &err);
    for (int64_t i = 0; err.code == GLM_OK && i < small.m->file_count; i++) {
        struct ckpt_file *const f = &small.m->files[i];
        digest_of(f->data, f->bytes, f->sha256);
        f->offset = f->bytes > 0 ? 4096 : 0;
    }
    if (err.code == GLM_OK)
        manifest_print(small.m, &text, &text_size, &err);
    cr_assert_eq(err.code, GLM_OK, "%s", err.text);
}

static void setup(void)
{
    setup_with(&(struct smallckpt_options){.config = "mini",
        .training = true,
        .topo = {.tp = 2, .ep = 2, .pp = 2},
        .volumes = {.shard_size = 60000}});
}

static void setup_zstd(void)
{
    setup_with(&(struct smallckpt_options){.config = "mini",
        .form = SMALL_MXFP8,
        .topo = {.tp = 2},
        .volumes = {.encoding = ENC_ZSTD}});
}

static void teardown(void)
{
    free(text);
    smallckpt_clear(&small);
    tmpdir_remove(folder);
}

static int parsed(const char *t, size_t size, struct glm_error *err)
{
    struct manifest *m = NULL;
    const int code = manifest_parse(&m, small.table, "index.h5", t, size, err);
    cr_assert_eq(m != NULL, code == 0);
    manifest_free(m);
    return code;
}

/* ---- canonical ------------------------------------------------------------------------------ */

static void round_trip(void)
{
    struct glm_error err = {0};
    struct manifest *m = NULL;
    char *again = NULL;
    size_t again_size = 0;
    manifest_parse(&m, small.table, "index.h5", text, text_size, &err);
    cr_assert_eq(err.code, GLM_OK, "%s", err.text);
    manifest_print(m, &again, &again_size, &err);
    cr_assert_eq(err.code, GLM_OK, "%s", err.text);
    cr_assert_str_eq(again, text);
    cr_assert_eq(manifest_check(m, small.tiles, &err), 0, "%s", err.text);
    unsigned char id[32];
    digest_of(text, text_size, id);
    cr_assert_arr_eq(m->id, id, 32);
    free(again);
    manifest_free(m);
}

Test(manifest, prints_back_to_the_same_bytes, .init = setup, .fini = teardown)
{
    round_trip();
}

Test(manifest, prints_back_to_the_same_bytes_zstd, .init = setup_zstd, .fini = teardown)
{
    round_trip();
}

/* ---- edits ---------------------------------------------------------------------------------- */

/* The text with [at, at+cut) replaced. */
static char *edited(size_t at, size_t cut, const char *put, size_t *size)
{
    const size_t n = strlen(put);
    char *const out = malloc(text_size - cut + n + 1);
    memcpy(out, text, at);
    memcpy(out + at, put, n);
    memcpy(out + at + n, text + at + cut, text_size - at - cut);
    *size = text_size - cut + n;
    out[*size] = '\0';
    return out;
}

static void refuse_edit(size_t at, size_t cut, const char *put)
{
    struct glm_error err = {0};
    size_t size;
    char *const t = edited(at, cut, put, &size);
    parsed(t, size, &err);
    cr_assert_eq(err.code, GLM_EFORMAT, "taken: %.120s (code %d %s)",
        t + (at > 60 ? at - 60 : 0), err.code, err.text);
    cr_assert_not_null(strstr(err.text, "index.h5: manifest"), "%s", err.text);
    free(t);
}

static bool starts(const char *s, const char *word)
{
    return strncmp(s, word, strlen(word)) == 0;
}

static void edit_lines(void)
{
    for (const char *s = text; *s; s = strchr(s, '\n') + 1) {
        const size_t at = (size_t)(s - text), n = (size_t)(strchr(s, '\n') - s) + 1;
        char *const line = strndup(s, n);
        refuse_edit(at, 0, line);   /* twice */
        refuse_edit(at, n - 1, ""); /* empty */
        refuse_edit(at, 0, "unknown\tline\n");
        refuse_edit(at + n - 1, 0, "\tmore");
        refuse_edit(at + n - 1, 1, "\r\n");
        /* Digests, not the text alone, say that these are complete. */
        const bool optional = starts(s, "prov\t") || starts(s, "tensor\ttrain\tempty")
            || starts(s, "source\t")
            || (starts(s, "file\t") && !starts(s, "file\tconfig.json\t"));
        if (!optional)
            refuse_edit(at, n, ""); /* missing */
        free(line);
    }
}

Test(manifest, refuses_lines_twice_missing_or_changed, .init = setup, .fini = teardown)
{
    edit_lines();
}

Test(manifest, refuses_lines_twice_missing_or_changed_zstd, .init = setup_zstd,
    .fini = teardown)
{
    edit_lines();
}

/* B-76: each decimal number becomes one that is near a power of two, or is written another way. */
static void edit_numbers(void)
{
    static const char *const values[] = {"", "4294967295", "4294967296",
        "9223372036854775807", "9223372036854775808", "18446744073709551615",
        "18446744073709551616", "-1", "+1", "1e3", "0x10", " 1",
        "99999999999999999999999"};
    char number[64];
    for (size_t i = 0; i < text_size; i++) {
        size_t n = 0;
        const char before = i > 0 ? text[i - 1] : '\n';
        if (before != '\t' && before != ',')
            continue;
        while (n < 40 && text[i + n] >= '0' && text[i + n] <= '9')
            n++;
        const char after = text[i + n];
        if (n == 0 || (after != '\t' && after != ',' && after != '\n'))
            continue;
        const char *line = text + i;
        while (line > text && line[-1] != '\n')
            line--;
        const bool side = starts(line, "file\t") || starts(line, "source\t");
        for (size_t v = 0; v < sizeof values / sizeof values[0]; v++) {
            /* Where side files lie is index_open's to check; of their numbers only the form. */
            if (side && v >= 1 && v <= 5)
                continue;
            /* An empty tensor has no piece that would not fit; its fingerprint tells. */
            if (starts(line, "tensor\ttrain\tempty") && v >= 1 && v <= 3)
                continue;
            /* A shard's length bounds from above: a greater one is reader_open's to find. */
            if (starts(line, "shard\t") && before == '\t' && n > 3 && v >= 1 && v <= 3)
                continue;
            refuse_edit(i, n, values[v]);
        }
        snprintf(number, sizeof number, "0%.*s", (int)n, text + i);
        refuse_edit(i, n, number);
    }
}

Test(manifest, b76_refuses_numbers_near_powers_of_two_and_odd_spellings, .init = setup,
    .fini = teardown)
{
    edit_numbers();
}

Test(manifest, b76_refuses_numbers_near_powers_of_two_and_odd_spellings_zstd,
    .init = setup_zstd, .fini = teardown)
{
    edit_numbers();
}

Test(manifest, refuses_every_cut, .init = setup, .fini = teardown)
{
    for (size_t n = 0; n < text_size; n += n < 200 ? 1 : 97) {
        struct glm_error err = {0};
        char *const t = malloc(n + 1); /* exact size: a byte too far is seen by ASan */
        memcpy(t, text, n);
        parsed(t, n, &err);
        cr_assert_eq(err.code, GLM_EFORMAT, "a cut at %zu was taken", n);
        free(t);
    }
}

/* What a line says of names, in its kind's own words. */
static void refuse_words(const char *from, const char *to, const char *sentence)
{
    struct glm_error err = {0};
    const char *const s = strstr(text, from);
    size_t size;
    cr_assert_not_null(s, "the text lacks '%s'", from);
    char *const t = edited((size_t)(s - text), strlen(from), to, &size);
    parsed(t, size, &err);
    cr_assert_eq(err.code, GLM_EFORMAT, "'%s' was taken", to);
    cr_assert_not_null(strstr(err.text, sentence), "'%s' lacks '%s'", err.text, sentence);
    free(t);
}

/* B-73: nothing in a manifest can name a file outside the folder. */
Test(manifest, b73_refuses_names_that_leave_the_folder, .init = setup, .fini = teardown)
{
    refuse_words(
        "shard-p000-t000-0000.h5", "../shard-p000-t000-0.h5", "expected shard-pPPP");
    refuse_words("shard-p000-t000-0000.h5", "/etc/hostname", "expected shard-pPPP");
    refuse_words(
        "shard-p000-t000-0000.h5", "shard-p000-t009-0000.h5", "topology does not have");
    refuse_words(
        "shard-p000-t000-0000.h5", "shard-p000-t000-00000.h5", "expected shard-pPPP");
    refuse_words("file\textra/empty", "file\textra/../../x", "leaves its folder");
    refuse_words("file\textra/empty", "file\t/etc/hostname", "");
    refuse_words("file\textra/empty", "file\textra/%00", "escaped");
    refuse_words("file\textra/empty", "file\textra/%41", "escaped");
    refuse_words("train\tbool", "train\t../bool", "is no name");
    refuse_words("train\tbool", "train\t..", "is no name");
}

Test(manifest, refuses_what_the_table_does_not_know, .init = setup, .fini = teardown)
{
    refuse_words("tensor\tweight\tmodel.norm.weight", "tensor\tweight\tmodel.norm.weigth",
        "not in the table");
    refuse_words("tensor\tweight\tmodel.norm.weight\tBF16\t64",
        "tensor\tweight\tmodel.norm.weight"
        "\tBF16\t65",
        "not the one that config.json gives");
    refuse_words("glm_moe_dsa", "glm_moe_dsb", "config.json says");
    refuse_words("mtp\tyes", "mtp\tmaybe", "mtp");
    refuse_words("tp\t2", "tp\t3", "manifest, line 3");
    refuse_words("derived master", "derived masters", "is not known here");
    refuse_words("\tBF16\t", "\tF4\t", "no element type");
}

/* B-74: a section-train tensor of 2^40 elements, held by a piece of a few bytes. */
Test(manifest, b74_a_shape_bomb_is_refused, .init = setup, .fini = teardown)
{
    refuse_words("train\tbool\tBOOL\t7", "train\tbool\tBOOL\t1099511627776,1", "");
    refuse_words("train\tbool\tBOOL\t7", "train\tbool\tBOOL\t4294967296,4294967296",
        "more elements than can be");
}

Test(
    manifest, control_characters_do_not_reach_a_sentence, .init = setup, .fini = teardown)
{
    struct glm_error err = {0};
    size_t size;
    const char *const s = strstr(text, "model.norm.weight");
    char *const t = edited((size_t)(s - text), 5, "\x1b[31m", &size);
    parsed(t, size, &err);
    cr_assert_eq(err.code, GLM_EFORMAT);
    cr_assert_null(strchr(err.text, '\x1b'), "%s", err.text);
    free(t);
}

/* ---- cover ---------------------------------------------------------------------------------- */

Test(manifest, cover_takes_exact_covers_only)
{
    struct ckpt_tensor t = {
        .name = (char *)"t", .rank = 3, .shape = {4, 256, 64}, .stack = true};
    struct glm_error err = {0};
    tile_grid_init(&t.grid, t.shape, 3, true, false);
    struct ckpt_piece p[4] = {{.at = {{0, 0, 0}, {2, 128, 64}}},
        {.at = {{0, 128, 0}, {3, 256, 64}}}, {.at = {{2, 0, 0}, {4, 128, 64}}},
        {.at = {{3, 128, 0}, {4, 256, 64}}}};
    cr_assert_eq(
        manifest_cover(&t, p, 4, &err), 0, "experts split differently per row cut");
    for (int i = 0; i < 4; i++) { /* one missing; one twice */
        struct ckpt_piece q[4];
        int n = 0;
        for (int k = 0; k < 4; k++)
            if (k != i)
                q[n++] = p[k];
        cr_assert_neq(manifest_cover(&t, q, 3, &err), 0);
        glm_error_clear(&err);
        q[3] = q[0];
        cr_assert_neq(manifest_cover(&t, q, 4, &err), 0);
        glm_error_clear(&err);
    }
    for (int i = 0; i < 4; i++)
        for (int axis = 0; axis < 3; axis++) { /* one shorter, in every direction */
            struct ckpt_piece q[4];
            memcpy(q, p, sizeof p);
            q[i].at.hi[axis]--;
            cr_assert_neq(manifest_cover(&t, q, 4, &err), 0, "piece %d axis %d", i, axis);
            glm_error_clear(&err);
        }
    cr_assert_neq(manifest_cover(&t, p, 0, &err), 0);
    glm_error_clear(&err);
    t.derived = true;
    cr_assert_eq(manifest_cover(&t, p, 0, &err), 0);
    cr_assert_neq(manifest_cover(&t, p, 1, &err), 0);
}

/* ---- time ----------------------------------------------------------------------------------- */

/* A million lines that all look right until the end must not take quadratic time. */
Test(manifest, many_lines_take_linear_time, .init = setup, .fini = teardown)
{
    enum { LINES = 200000 };
    char *const t = malloc(text_size + (size_t)LINES * 40);
    const size_t at = (size_t)(strstr(text, "prov\t") - text);
    struct glm_error err = {0};
    memcpy(t, text, at);
    char *w = t + at;
    for (int i = 0; i < LINES; i++)
        w += sprintf(w, "prov\ta%07d\tx\n", i);
    memcpy(w, text + at, text_size - at);
    w += text_size - at;
    const clock_t a = clock();
    parsed(t, (size_t)(w - t), &err);
    cr_assert_eq(err.code, GLM_OK, "%s", err.text);
    cr_assert_lt((double)(clock() - a) / CLOCKS_PER_SEC, 5.0);
    free(t);
}
