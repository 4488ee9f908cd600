/* glm-verify integrity: what was written is intact; each kind of damage is found and named. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <criterion/criterion.h>

#include "tests/support/rng.h"
#include "tests/support/smallckpt.h"
#include "tests/support/tmpdir.h"
#include "verify/verify.h"

static const struct smallckpt_options forms[] = {
    {.topo = {.tp = 2, .pp = 2, .ep = 4}},
    {.volumes = {.shard_size = 100000}},
    {.topo = {.tp = 2, .ep = 2, .etp = 2}, .volumes = {.encoding = ENC_ZSTD}},
    {.topo = {.tp = 4, .ep = 2}, .form = SMALL_MXFP8},
    {.topo = {.pp = 2}, .form = SMALL_FP8, .volumes = {.encoding = ENC_ZSTD}},
    {.topo = {.tp = 2, .pp = 2, .ep = 2}, .training = true},
    {.topo = {.ep = 4}, .training = true, .volumes = {.encoding = ENC_ZSTD}},
};
enum { FORMS = sizeof forms / sizeof *forms };

static void made(const char *dir, const struct smallckpt_options *o)
{
    struct glm_error err = {0};
    smallckpt_write(dir, o, &err);
    cr_assert_eq(err.code, GLM_OK, "%s", err.text);
}

static enum glm_code checked(
    struct integrity_report *r, const char *dir, int threads, bool quick)
{
    struct glm_error err = {0};
    const struct integrity_options o = {.threads = threads, .quick = quick};
    integrity_run(r, dir, &o, &err);
    return err.code;
}

static void flip(const char *path, uint64_t at, int bit)
{
    unsigned char byte;
    const int fd = open(path, O_RDWR);
    cr_assert(fd >= 0);
    cr_assert_eq(pread(fd, &byte, 1, (off_t)at), 1);
    byte = (unsigned char)(byte ^ 1 << bit);
    cr_assert_eq(pwrite(fd, &byte, 1, (off_t)at), 1);
    close(fd);
}

/* The tile of a matrix-form element by the definition of the grid, not by the library's code. */
static int64_t tile_of(const struct ckpt_tensor *t, int64_t e, int64_t row, int64_t col)
{
    const int64_t *const d = t->grid.dims, *const s = t->grid.tile;
    const int64_t rows = (d[1] + s[1] - 1) / s[1], cols = (d[2] + s[2] - 1) / s[2];
    return (e * rows + row / s[1]) * cols + col / s[2];
}

/* Another checkpoint comes in the place of the one that is read, as --replace does it. */
static void exchange(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    const char *const *const dirs =
        ctx; /* the one that is read, the other, where it goes */
    (void)what;
    (void)done;
    (void)total;
    if (access(dirs[2], F_OK) != 0 && rename(dirs[0], dirs[2]) == 0)
        cr_assert_eq(rename(dirs[1], dirs[0]), 0);
}

Test(integrity, tells_an_exchange_while_it_reads_from_damage)
{
    char *const top = tmpdir_new();
    const char *const dirs[] = {strdup(tmpdir_path(top, "read")),
        strdup(tmpdir_path(top, "other")), strdup(tmpdir_path(top, "aside"))};
    struct integrity_report r;
    struct glm_error err = {0};
    const struct glm_events events = {.progress = exchange, .ctx = (void *)dirs};
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(mkdir(dirs[i], 0777), 0);
        made(dirs[i], &forms[1 - i]);
    }
    integrity_run(
        &r, dirs[0], &(struct integrity_options){.threads = 1, .events = &events}, &err);
    cr_assert_eq(err.code, GLM_EIO, "%s", err.text);
    cr_assert_not_null(strstr(err.text, "was exchanged"), "%s", err.text);
    cr_assert_eq(r.findings.count, 0);
    integrity_clear(&r);
    for (int i = 0; i < 3; i++)
        free((void *)dirs[i]);
    tmpdir_remove(top);
}

Test(integrity, finds_nothing_in_what_was_written)
{
    for (int i = 0; i < FORMS; i++) {
        char *const dir = tmpdir_new();
        struct integrity_report r;
        made(dir, &forms[i]);
        for (int threads = 1; threads <= 4; threads += 3) {
            const enum glm_code code = checked(&r, dir, threads, false);
            cr_assert_eq(code, GLM_OK, "form %d: %s", i,
                r.findings.count > 0 ? r.findings.items[0]->text : "");
            cr_assert_eq(r.tiles_checked, r.tiles);
            cr_assert_eq(r.chunks_checked, r.chunks);
            cr_assert_gt(r.tiles, 100);
            integrity_clear(&r);
        }
        tmpdir_remove(dir);
    }
}

/* Flips a bit of one byte of a piece and checks that exactly it is named. */
static void check_piece(
    const char *dir, const struct index *ix, int64_t piece, uint64_t random)
{
    const struct manifest *const m = ix->manifest;
    const struct ckpt_piece *const p = &m->pieces[piece];
    const struct ckpt_tensor *const t = &m->tensors[p->tensor];
    const char *const path = tmpdir_path(dir, "%s", m->shards[p->shard].file);
    int64_t tile;
    uint64_t at;
    if (p->encoding == ENC_PLAIN) {
        at = random % p->bytes;
        const int64_t n = (int64_t)(at / glm_dtype_size(t->dtype));
        const int64_t cols = rect_len(&p->at, 2), rows = rect_len(&p->at, 1);
        tile = tile_of(t, p->at.lo[0] + n / cols / rows, p->at.lo[1] + n / cols % rows,
            p->at.lo[2] + n % cols);
        at += p->offset;
    } else {
        const int64_t k = (int64_t)(random % (uint64_t)p->chunks);
        const int64_t cols =
            (rect_len(&p->at, 2) + t->grid.tile[2] - 1) / t->grid.tile[2];
        const int64_t rows =
            (rect_len(&p->at, 1) + t->grid.tile[1] - 1) / t->grid.tile[1];
        tile = tile_of(t, p->at.lo[0] + k / cols / rows,
            p->at.lo[1] + k / cols % rows * t->grid.tile[1],
            p->at.lo[2] + k % cols * t->grid.tile[2]);
        const struct ckpt_chunk *const c = &ix->chunks[p->first_chunk + k];
        at = c->offset + rng_mix(random) % c->bytes;
    }
    struct integrity_report r;
    flip(path, at, (int)(random >> 32 & 7));
    cr_assert_eq(checked(&r, dir, 1, false), GLM_EMISMATCH);
    int64_t named = 0;
    for (int64_t i = 0; i < r.findings.count; i++) {
        const struct finding *const f = r.findings.items[i];
        cr_assert_str_eq(f->tensor, t->name, "%s", f->text);
        cr_assert_str_eq(f->file, m->shards[p->shard].file);
        cr_assert_eq(f->tile, tile, "tile %lld, expected %lld: %s", (long long)f->tile,
            (long long)tile, f->text);
        if (t->stack && f->section == section_name(SECTION_WEIGHT)) {
            char member[192];
            const int64_t per = t->grid.count[1] * t->grid.count[2];
            table_member_name(t->entry, tile / per, member, sizeof member);
            if (strcmp(t->entry->name, t->name) == 0)
                cr_assert_str_eq(f->member, member);
            else
                cr_assert_neq(f->member[0], '\0');
        }
        named += f->section == section_name(t->section);
    }
    cr_assert_eq(named, 1, "%lld findings", (long long)named);
    integrity_clear(&r);
    flip(path, at, (int)(random >> 32 & 7));
}

Test(integrity, names_file_tensor_and_tile_of_a_flipped_bit, .timeout = 1800)
{
    for (int i = 0; i < FORMS; i++) {
        char *const dir = tmpdir_new();
        struct glm_error err = {0};
        struct index *ix;
        made(dir, &forms[i]);
        cr_assert_eq(index_open(&ix, dir, &err), GLM_OK, "%s", err.text);
        for (uint64_t k = 0; k < 40; k++) {
            const uint64_t x = rng_mix(k + 1000 * (uint64_t)i);
            int64_t piece = (int64_t)(x % (uint64_t)ix->manifest->piece_count);
            while (ix->manifest->pieces[piece].bytes == 0)
                piece = (piece + 1) % ix->manifest->piece_count;
            check_piece(dir, ix, piece, rng_mix(x));
        }
        index_close(ix);
        tmpdir_remove(dir);
    }
}

/* B-67: 18 corrupt values in one tensor of a published file. */
Test(integrity, B67_names_the_tiles_that_hold_eighteen_corrupt_values)
{
    char *const dir = tmpdir_new();
    struct glm_error err = {0};
    struct index *ix;
    struct integrity_report r;
    int64_t row[18], col[18];
    made(dir, &(struct smallckpt_options){.topo = {.ep = 4}});
    cr_assert_eq(index_open(&ix, dir, &err), GLM_OK, "%s", err.text);
    struct manifest *const m = ix->manifest;
    cr_assert_eq(manifest_index(m, &err), GLM_OK);
    const struct ckpt_tensor *const t =
        &m->tensors[manifest_find(m, SECTION_WEIGHT, "model.embed_tokens.weight")];
    const struct ckpt_piece *const p = &m->pieces[t->first_piece];
    cr_assert_eq(p->encoding, ENC_PLAIN);
    for (uint64_t i = 0; i < 18; i++) {
        row[i] = (int64_t)(rng_mix(i) % (uint64_t)t->shape[0]);
        col[i] = (int64_t)(rng_mix(i + 100) % (uint64_t)t->shape[1]);
        flip(tmpdir_path(dir, "%s", m->shards[p->shard].file),
            p->offset + 2 * (uint64_t)(row[i] * t->shape[1] + col[i]), 3);
    }
    cr_assert_eq(checked(&r, dir, 2, false), GLM_EMISMATCH);
    for (int i = 0; i < 18; i++) {
        int64_t named = 0;
        for (int64_t k = 0; k < r.findings.count; k++) {
            const struct finding *const f = r.findings.items[k];
            named += strcmp(f->tensor, t->name) == 0 && f->lo[0] <= row[i]
                && row[i] < f->hi[0] && f->lo[1] <= col[i] && col[i] < f->hi[1];
        }
        cr_assert_eq(named, 1, "value %d at (%lld, %lld)", i, (long long)row[i],
            (long long)col[i]);
    }
    integrity_clear(&r);
    index_close(ix);
    tmpdir_remove(dir);
}

static bool has(
    const struct integrity_report *r, enum finding_kind kind, const char *words)
{
    for (int64_t i = 0; i < r->findings.count; i++)
        if (r->findings.items[i]->kind == kind
            && strstr(r->findings.items[i]->text, words) != NULL)
            return true;
    return false;
}

/* B-68: what was copied before the data is never taken for complete. */
Test(integrity, B68_says_which_shard_is_missing)
{
    char *const dir = tmpdir_new();
    struct integrity_report r;
    made(dir, &forms[0]);
    cr_assert_eq(unlink(tmpdir_path(dir, "shard-p001-e002-t000-0000.h5")), 0);
    for (int quick = 0; quick < 2; quick++) {
        cr_assert_eq(checked(&r, dir, 2, quick != 0), GLM_EMISMATCH);
        cr_assert_eq(r.findings.count, 1);
        cr_assert(has(
            &r, FINDING_MISSING, "incomplete: shard-p001-e002-t000-0000.h5 is missing"));
        integrity_clear(&r);
    }
    cr_assert_eq(
        unlink(tmpdir_path(dir, "index.h5")), 0); /* shards without their index */
    cr_assert_eq(checked(&r, dir, 2, false), GLM_EMISMATCH);
    cr_assert(has(&r, FINDING_INDEX, "incomplete"), "%s", r.findings.items[0]->text);
    integrity_clear(&r);
    tmpdir_remove(dir);
}

/* B-22: a cut file never gives zeros. */
Test(integrity, B22_names_the_lengths_and_what_a_cut_took_away)
{
    for (int form = 0; form <= 2; form += 2) {
        char *const dir = tmpdir_new();
        char name[64];
        struct integrity_report r;
        struct glm_error err = {0};
        struct index *ix;
        made(dir, &forms[form]);
        cr_assert_eq(index_open(&ix, dir, &err), GLM_OK);
        const struct ckpt_shard *const s = &ix->manifest->shards[0];
        const uint64_t cuts[] = {s->bytes - 1, s->bytes / 2, 2048, 0};
        snprintf(name, sizeof name, "has %llu bytes", (unsigned long long)s->bytes / 2);
        for (int i = 0; i < 4; i++) {
            cr_assert_eq(truncate(tmpdir_path(dir, "%s", s->file), (off_t)cuts[i]), 0);
            cr_assert_eq(checked(&r, dir, 2, true), GLM_EMISMATCH);
            cr_assert(has(&r, FINDING_LENGTH, "expected"));
            cr_assert_eq(r.findings.count, 1);
            integrity_clear(&r);
            cr_assert_eq(checked(&r, dir, 2, false), GLM_EMISMATCH);
            cr_assert(i != 1 || has(&r, FINDING_LENGTH, name));
            if (form == 0 || i > 0) /* a chunk index may lie behind the last frame */
                cr_assert(
                    has(&r, form == 0 ? FINDING_LENGTH : FINDING_CHUNK, "past the end"),
                    "cut to %llu", (unsigned long long)cuts[i]);
            integrity_clear(&r);
        }
        index_close(ix);
        tmpdir_remove(dir);
    }
}

Test(integrity, finds_all_damage_in_one_run_at_any_thread_count)
{
    char *const dir = tmpdir_new();
    struct integrity_report one, four;
    made(dir, &forms[0]);
    const char *const shard = "shard-p001-e001-t000-0000.h5";
    for (uint64_t i = 0; i < 12; i++)
        flip(tmpdir_path(dir, "%s", shard), 100000 + 40000 * i, 1);
    flip(tmpdir_path(dir, "%s", shard), 24, 0);
    flip(tmpdir_path(dir, "shard-p000-t000-0000.h5"), 500000, 7);
    tmpdir_write(tmpdir_path(dir, "shard-p009-t000-0000.h5"), "left", 4);
    tmpdir_write(tmpdir_path(dir, "notes.txt"), "mine", 4);
    cr_assert_eq(unlink(tmpdir_path(dir, "shard-p001-e003-t000-0000.h5")), 0);
    cr_assert_eq(checked(&one, dir, 1, false), GLM_EMISMATCH);
    cr_assert_eq(checked(&four, dir, 4, false), GLM_EMISMATCH);
    cr_assert_geq(one.findings.count, 14);
    cr_assert(has(&one, FINDING_STRUCTURE, shard));
    cr_assert(has(&one, FINDING_MISSING, "p001-e003"));
    cr_assert(has(&one, FINDING_EXTRA, "shard-p009-t000-0000.h5"));
    cr_assert(has(&one, FINDING_TILE, "shard-p000-t000-0000.h5"));
    cr_assert_eq(one.extra_files, 1);
    cr_assert_str_eq(one.extra[0], "notes.txt");
    cr_assert_eq(one.findings.count, four.findings.count);
    for (int64_t i = 0; i < one.findings.count; i++)
        cr_assert_str_eq(one.findings.items[i]->text, four.findings.items[i]->text);
    integrity_clear(&one);
    integrity_clear(&four);
    tmpdir_remove(dir);
}

Test(integrity, finds_a_flip_anywhere_outside_the_data)
{
    for (int form = 0; form <= 2; form += 2) {
        char *const dir = tmpdir_new();
        struct glm_error err = {0};
        struct index *ix;
        struct integrity_report r;
        struct stat st;
        made(dir, &forms[form]);
        cr_assert_eq(index_open(&ix, dir, &err), GLM_OK);
        const struct manifest *const m = ix->manifest;
        /* The first bytes, and those before the first piece or frame, of a shard. */
        uint64_t first = m->shards[0].bytes;
        for (int64_t i = 0; i < m->piece_count; i++) {
            const struct ckpt_piece *const p = &m->pieces[i];
            const uint64_t at =
                p->encoding == ENC_PLAIN ? p->offset : ix->chunks[p->first_chunk].offset;
            first = p->shard == 0 && at < first ? at : first;
        }
        for (uint64_t i = 0; i < 30; i++) {
            const uint64_t at = rng_mix(i) % first;
            flip(tmpdir_path(dir, "%s", m->shards[0].file), at, (int)(i & 7));
            cr_assert_eq(checked(&r, dir, 1, false), GLM_EMISMATCH, "byte %llu",
                (unsigned long long)at);
            cr_assert_eq(r.findings.count, 1);
            cr_assert(has(&r, FINDING_STRUCTURE, m->shards[0].file));
            integrity_clear(&r);
            flip(tmpdir_path(dir, "%s", m->shards[0].file), at, (int)(i & 7));
        }
        cr_assert_eq(stat(tmpdir_path(dir, "index.h5"), &st), 0);
        for (uint64_t i = 0; i < 60; i++) { /* a third of them in the user block */
            const uint64_t at =
                rng_mix(i + 500) % (i % 3 == 0 ? 4096 : (uint64_t)st.st_size);
            flip(tmpdir_path(dir, "index.h5"), at, (int)(i & 7));
            cr_assert_eq(checked(&r, dir, 1, i % 2 == 0), GLM_EMISMATCH, "byte %llu",
                (unsigned long long)at);
            cr_assert(has(&r, FINDING_INDEX, "index.h5"));
            integrity_clear(&r);
            flip(tmpdir_path(dir, "index.h5"), at, (int)(i & 7));
        }
        index_close(ix);
        tmpdir_remove(dir);
    }
}

/* The digests of a weight that is not stored are checked against its master, too. */
Test(integrity, finds_a_derived_weight_that_its_master_does_not_give)
{
    for (int zstd = 0; zstd < 2; zstd++) {
        char *const dir = tmpdir_new();
        struct smallckpt s;
        struct glm_error err = {0};
        struct integrity_report r;
        const struct smallckpt_options o = {.training = true,
            .topo = {.tp = 2},
            .volumes = {.encoding = zstd ? ENC_ZSTD : ENC_PLAIN}};
        cr_assert_eq(smallckpt_shards(&s, dir, &o, &err), GLM_OK, "%s", err.text);
        int64_t i = 0;
        while (!s.m->tensors[i].derived || tile_count(&s.m->tensors[i].grid) < 2)
            i++;
        s.tiles[32 * (s.m->tensors[i].first_tile + 1)] ^= 1;
        cr_assert_eq(manifest_seal(s.m, s.tiles, &err), GLM_OK);
        cr_assert_eq(
            index_write(s.m, s.tiles, s.chunks, tmpdir_path(dir, "index.h5"), &err),
            GLM_OK, "%s", err.text);
        cr_assert_eq(checked(&r, dir, 2, false), GLM_EMISMATCH);
        cr_assert_eq(r.findings.count, 1);
        cr_assert_str_eq(r.findings.items[0]->tensor, s.m->tensors[i].name);
        cr_assert_eq(r.findings.items[0]->tile, 1);
        cr_assert(has(&r, FINDING_TILE, "rounded from its master"));
        integrity_clear(&r);
        smallckpt_clear(&s);
        tmpdir_remove(dir);
    }
}

Test(integrity, quick_reads_no_data)
{
    char *const dir = tmpdir_new();
    struct integrity_report r;
    made(dir, &forms[0]);
    flip(tmpdir_path(dir, "shard-p000-t000-0000.h5"), 300000, 2);
    cr_assert_eq(checked(&r, dir, 2, true), GLM_OK);
    cr_assert_eq(r.bytes_checked, 0);
    integrity_clear(&r);
    cr_assert_eq(checked(&r, dir, 2, false), GLM_EMISMATCH);
    integrity_clear(&r);
    tmpdir_remove(dir);
}

Test(integrity, refuses_what_is_no_checkpoint)
{
    char *const dir = tmpdir_new();
    struct integrity_report r;
    cr_assert_eq(checked(&r, dir, 1, false), GLM_EUSAGE);
    integrity_clear(&r);
    cr_assert_eq(checked(&r, tmpdir_path(dir, "nothing"), 1, false), GLM_EUSAGE);
    integrity_clear(&r);
    tmpdir_write(tmpdir_path(dir, "file"), "x", 1);
    cr_assert_eq(checked(&r, tmpdir_path(dir, "file"), 1, false), GLM_EUSAGE);
    integrity_clear(&r);
    tmpdir_remove(dir);
}
