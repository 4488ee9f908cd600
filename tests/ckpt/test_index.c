/* index.h5: what is written is read; equal content has equal bytes; damage is found and named. */
#include "ckpt/index.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <criterion/criterion.h>

#include "ckpt/digest.h"
#include "ckpt/index_block.h"
#include "tests/support/smallckpt.h"
#include "tests/support/tmpdir.h"

static const struct smallckpt_options plain = {.topo = {.tp = 2, .pp = 2, .ep = 4}};
static const struct smallckpt_options packed = {
    .topo = {.tp = 2, .pp = 2, .ep = 2, .etp = 2},
    .training = true,
    .volumes = {.shard_size = 200000, .encoding = ENC_ZSTD}};

static void made(const char *dir, const struct smallckpt_options *o)
{
    struct glm_error err = {0};
    smallckpt_write(dir, o, &err);
    cr_assert_eq(err.code, GLM_OK, "%s", err.text);
}

static struct index *opened(const char *dir)
{
    struct glm_error err = {0};
    struct index *ix = NULL;
    index_open(&ix, dir, &err);
    cr_assert_eq(err.code, GLM_OK, "%s", err.text);
    return ix;
}

/* Opening fails with the code and a sentence that holds the words. */
static void refused(const char *dir, enum glm_code code, const char *words)
{
    struct glm_error err = {0};
    struct index *ix = NULL;
    index_open(&ix, dir, &err);
    cr_assert_null(ix, "opened; expected '%s'", words);
    cr_assert_eq(err.code, code, "code %d, '%s'", err.code, err.text);
    cr_assert_not_null(strstr(err.text, words), "'%s' lacks '%s'", err.text, words);
}

static void poke(const char *path, long at, const void *data, size_t size)
{
    FILE *f = fopen(path, "r+b");
    cr_assert_not_null(f);
    fseek(f, at, SEEK_SET);
    cr_assert_eq(fwrite(data, 1, size, f), size);
    fclose(f);
}

static void check_same(const struct smallckpt *s, const struct index *ix)
{
    const struct manifest *const a = s->m, *const b = ix->manifest;
    cr_assert_eq(a->tensor_count, b->tensor_count);
    cr_assert_eq(a->piece_count, b->piece_count);
    cr_assert_eq(a->shard_count, b->shard_count);
    cr_assert_eq(a->tile_count, b->tile_count);
    cr_assert_eq(a->chunk_count, b->chunk_count);
    cr_assert_eq(a->without_mtp, b->without_mtp);
    cr_assert_arr_eq(a->fingerprint, b->fingerprint, 32);
    cr_assert_arr_eq(a->id, b->id, 32);
    cr_assert_eq(memcmp(s->tiles, ix->tiles, (size_t)a->tile_count * 32), 0);
    cr_assert_eq(
        memcmp(s->chunks, ix->chunks, (size_t)a->chunk_count * sizeof *s->chunks), 0);
    for (int64_t i = 0; i < a->tensor_count; i++) {
        const struct ckpt_tensor *const x = &a->tensors[i], *const y = &b->tensors[i];
        cr_assert_str_eq(x->name, y->name);
        cr_assert(x->section == y->section && x->dtype == y->dtype && x->rank == y->rank
                && x->stack == y->stack && x->derived == y->derived
                && x->scale == y->scale && x->first_tile == y->first_tile
                && x->first_piece == y->first_piece && x->pieces == y->pieces
                && x->block[0] == y->block[0] && x->block[1] == y->block[1],
            "%s", x->name);
        cr_assert_str_eq(x->scale_rule, y->scale_rule);
        cr_assert_arr_eq(x->shape, y->shape, sizeof x->shape);
        cr_assert_eq(memcmp(&x->grid, &y->grid, sizeof x->grid), 0);
    }
    for (int64_t i = 0; i < a->piece_count; i++) { /* field by field: there is padding */
        const struct ckpt_piece *const x = &a->pieces[i], *const y = &b->pieces[i];
        cr_assert(x->tensor == y->tensor && x->shard == y->shard
                && rect_equal(&x->at, &y->at) && x->encoding == y->encoding
                && x->offset == y->offset && x->bytes == y->bytes
                && x->first_chunk == y->first_chunk && x->chunks == y->chunks,
            "piece %ld", (long)i);
    }
    for (int64_t i = 0; i < a->shard_count; i++) {
        cr_assert_str_eq(a->shards[i].file, b->shards[i].file);
        cr_assert(a->shards[i].cell == b->shards[i].cell
            && a->shards[i].bytes == b->shards[i].bytes);
        cr_assert_arr_eq(a->shards[i].skeleton, b->shards[i].skeleton, 32);
    }
}

static void write_and_open(const struct smallckpt_options *o)
{
    char *dir = tmpdir_new();
    struct smallckpt s;
    struct glm_error err = {0};
    smallckpt_shards(&s, dir, o, &err);
    cr_assert_eq(err.code, GLM_OK, "%s", err.text);
    index_write(s.m, s.tiles, s.chunks, tmpdir_path(dir, "index.h5"), &err);
    cr_assert_eq(err.code, GLM_OK, "%s", err.text);
    struct index *ix = opened(dir);
    check_same(&s, ix);
    for (int64_t i = 0; i < s.m->file_count; i++) {
        const struct ckpt_file *const f = &s.m->files[i];
        const struct ckpt_file *const g = index_find_file(ix, f->path, f->header);
        void *data = NULL;
        cr_assert_not_null(g, "%s", f->path);
        cr_assert_eq(index_file(ix, g, &data, &err), 0, "%s", err.text);
        cr_assert_eq(g->bytes, f->bytes);
        cr_assert_eq(memcmp(data, f->data, f->bytes), 0, "%s", f->path);
        free(data);
    }
    index_close(ix);
    smallckpt_clear(&s);
    tmpdir_remove(dir);
}

Test(index, gives_back_what_was_written_plain)
{
    write_and_open(&plain);
}

Test(index, gives_back_what_was_written_packed_with_training_state)
{
    write_and_open(&packed);
}

Test(index, gives_back_quantised_forms_and_a_model_without_mtp)
{
    write_and_open(&(struct smallckpt_options){.form = SMALL_MXFP8, .no_mtp = true});
    write_and_open(
        &(struct smallckpt_options){.form = SMALL_FP8, .topo = {.tp = 2, .ep = 8}});
}

Test(index, equal_content_gives_equal_bytes)
{
    const struct smallckpt_options *const both[] = {&plain, &packed};
    for (int i = 0; i < 2; i++) {
        char *a = tmpdir_new(), *b = tmpdir_new();
        made(a, both[i]);
        sleep(1); /* a time that slipped in would differ */
        made(b, both[i]);
        cr_assert_eq(tmpdir_differ(a, b), 0);
        tmpdir_remove(a);
        tmpdir_remove(b);
    }
}

/* ---- damage --------------------------------------------------------------------------------- */

struct part {
    const char *words;
    uint64_t offset, bytes;
};

/* The parts of an index: the three tables, side files; what is in none is the container's. */
static int parts_of(
    const struct index *ix, const struct index_block *b, struct part out[32])
{
    static char names[32][128];
    int n = 0;
    for (int i = 0; i < INDEX_PARTS; i++)
        if (b->part[i].bytes > 0)
            out[n++] =
                (struct part){index_part_name[i], b->part[i].offset, b->part[i].bytes};
    for (int64_t i = 0; i < ix->manifest->file_count; i++) {
        const struct ckpt_file *const f = &ix->manifest->files[i];
        snprintf(names[n], sizeof names[n], "side file %s%s", f->header ? "source/" : "",
            f->path);
        out[n] = (struct part){names[n], f->offset, f->bytes};
        n += f->bytes > 0;
    }
    return n;
}

static void flip_each(const struct smallckpt_options *o, long step)
{
    char *dir = tmpdir_new();
    made(dir, o);
    struct index *ix = opened(dir);
    struct index_block block;
    struct glm_error err = {0};
    const char *const path = ix->path;
    size_t size = 0, hdf5 = 0;
    unsigned char *const whole = tmpdir_read(path, &size);
    struct part parts[32];
    cr_assert_eq(index_block_parse(&block, path, whole, size, &err), 0);
    const int n = parts_of(ix, &block, parts);
    for (size_t at = 0; at < size; at += (size_t)(at < 600 ? 1 : step)) {
        const char *words =
            at < INDEX_BLOCK ? "user block" : "HDF5 structures (virtual views)";
        for (int i = 0; i < n; i++)
            if (at >= parts[i].offset && at < parts[i].offset + parts[i].bytes)
                words = parts[i].words;
        hdf5 += words[0] == 'H';
        const unsigned char flipped = whole[at] ^ (unsigned char)(1u << at % 8);
        poke(path, (long)at, &flipped, 1);
        refused(dir, GLM_EFORMAT, words);
        poke(path, (long)at, &whole[at], 1);
    }
    cr_assert_gt(hdf5, 20);
    index_close(opened(dir));
    free(whole);
    index_close(ix);
    tmpdir_remove(dir);
}

Test(index, finds_and_names_flipped_bits)
{
    flip_each(&plain, 1009);
}

Test(index, finds_and_names_flipped_bits_of_a_packed_one)
{
    flip_each(&packed, 1511);
}

Test(index, finds_a_cut_and_an_appended_byte)
{
    char *dir = tmpdir_new();
    made(dir, &plain);
    const char *const path = tmpdir_path(dir, "index.h5");
    struct stat st;
    cr_assert_eq(stat(path, &st), 0);
    cr_assert_eq(truncate(path, st.st_size - 1), 0);
    refused(dir, GLM_EFORMAT, "cut or appended");
    cr_assert_eq(truncate(path, st.st_size + 1), 0);
    refused(dir, GLM_EFORMAT, "cut or appended");
    cr_assert_eq(truncate(path, 100), 0);
    refused(dir, GLM_EFORMAT, "shorter than its user block");
    tmpdir_remove(dir);
}

/* B-68: a mark of completeness that is stale, or came before the data. */
Test(index, b68_an_index_beside_a_journal_is_no_mark_of_completeness)
{
    char *dir = tmpdir_new();
    made(dir, &plain);
    tmpdir_write(tmpdir_path(dir, "journal"), "plan\n", 5);
    refused(dir, GLM_EFORMAT, "incomplete");
    cr_assert_eq(unlink(tmpdir_path(dir, "journal")), 0);
    cr_assert_eq(unlink(tmpdir_path(dir, "index.h5")), 0);
    refused(dir, GLM_EFORMAT, "incomplete");
    tmpdir_remove(dir);
}

Test(index, a_folder_without_anything_of_ours_is_no_checkpoint)
{
    char *dir = tmpdir_new();
    refused(dir, GLM_EUSAGE, "not a checkpoint");
    refused(tmpdir_path(dir, "absent"), GLM_EUSAGE, "no such checkpoint");
    cr_assert_eq(mkfifo(tmpdir_path(dir, "index.h5"), 0666), 0);
    refused(dir, GLM_EFORMAT, "not a regular file");
    tmpdir_remove(dir);
}

/* ---- hostile indexes: every digest right, the content wrong ---------------------------------- */

/* Recomputes the digests of the file and of the user block after an edit. */
static void reseal(const char *path, const struct index_block *changed)
{
    size_t size = 0;
    unsigned char *const whole = tmpdir_read(path, &size), out[INDEX_BLOCK];
    struct index_block b = *changed;
    digest_of(whole + INDEX_BLOCK, size - INDEX_BLOCK, b.sha256);
    for (int i = 0; i < INDEX_PARTS; i++)
        if (b.part[i].offset <= size && b.part[i].bytes <= size - b.part[i].offset)
            digest_of(whole + b.part[i].offset, b.part[i].bytes, b.part[i].sha256);
    index_block_print(&b, out);
    poke(path, 0, out, sizeof out);
    free(whole);
}

static struct index_block block_of(const char *path)
{
    size_t size = 0;
    struct index_block b;
    struct glm_error err = {0};
    unsigned char *const whole = tmpdir_read(path, &size);
    cr_assert_eq(index_block_parse(&b, path, whole, size, &err), 0, "%s", err.text);
    free(whole);
    return b;
}

/* B-76: counts near 2^32 and 2^63 in each size field. */
Test(index, b76_huge_numbers_in_each_field_of_the_user_block_are_refused)
{
    const uint64_t huge[] = {UINT32_MAX, (uint64_t)1 << 32, INT64_MAX, (uint64_t)1 << 63,
        UINT64_MAX, UINT64_MAX - 4095};
    char *dir = tmpdir_new();
    made(dir, &packed);
    char path[512];
    snprintf(path, sizeof path, "%s", tmpdir_path(dir, "index.h5"));
    const struct index_block good = block_of(path);
    for (size_t h = 0; h < sizeof huge / sizeof huge[0]; h++)
        for (int field = 0; field < 1 + 2 * INDEX_PARTS; field++) {
            struct index_block b = good;
            uint64_t *const n = field == 0 ? &b.size
                : field % 2                ? &b.part[field / 2].offset
                                           : &b.part[field / 2 - 1].bytes;
            *n = huge[h];
            reseal(path, &b);
            refused(dir, GLM_EFORMAT, "");
        }
    reseal(path, &good);
    index_close(opened(dir));
    tmpdir_remove(dir);
}

/* B-74: a chunk that claims more than its shard has, or more than its content. */
Test(index, b74_chunk_rows_beyond_their_shard_or_content_are_refused)
{
    char *dir = tmpdir_new();
    made(dir, &packed);
    char path[512];
    snprintf(path, sizeof path, "%s", tmpdir_path(dir, "index.h5"));
    const struct index_block b = block_of(path);
    struct index *ix = opened(dir);
    const long rows = (long)b.part[INDEX_CHUNKS].offset;
    for (int k = 0; k < 6; k++) {
        struct ckpt_chunk c = ix->chunks[7];
        if (k == 0)
            c.bytes = 0x80000000u;
        if (k == 1)
            c.offset = UINT64_MAX - 10;
        if (k == 2)
            c.mask = 2;
        if (k == 3)
            c.offset = ix->chunks[6].offset; /* over the one before, of the same shard */
        if (k == 4)
            c.bytes = 0;
        if (k == 5)
            c.bytes++;
        poke(path, rows + 7 * (long)sizeof c, &c, sizeof c);
        reseal(path, &b);
        refused(dir, GLM_EFORMAT, k == 5 ? "" : "chunk table: row");
        poke(path, rows + 7 * (long)sizeof c, &ix->chunks[7], sizeof c);
    }
    reseal(path, &b);
    index_close(opened(dir));
    index_close(ix);
    tmpdir_remove(dir);
}

Test(index, tile_digests_that_do_not_give_the_fingerprint_are_found)
{
    char *dir = tmpdir_new();
    made(dir, &plain);
    char path[512];
    snprintf(path, sizeof path, "%s", tmpdir_path(dir, "index.h5"));
    const struct index_block b = block_of(path);
    poke(path, (long)b.part[INDEX_TILES].offset + 5, "x", 1);
    reseal(path, &b);
    refused(dir, GLM_EFORMAT, "tile table: tensor 'model.embed_tokens.weight'");
    tmpdir_remove(dir);
}

Test(index, a_config_that_cannot_be_read_is_said_to_be_so)
{
    char *dir = tmpdir_new();
    made(dir, &plain);
    char path[512];
    snprintf(path, sizeof path, "%s", tmpdir_path(dir, "index.h5"));
    const struct index_block b = block_of(path);
    struct index *ix = opened(dir);
    const struct ckpt_file *const f = index_find_file(ix, "config.json", false);
    poke(path, (long)f->offset, "?", 1);
    reseal(path, &b);
    refused(dir, GLM_EFORMAT, "side file config.json: its SHA-256 is not the manifest's");
    index_close(ix);
    tmpdir_remove(dir);
}

/* B-91: what attributes cannot hold: 200 KB of config, 1 MB of README. */
Test(index, b91_big_side_files_are_datasets)
{
    char *dir = tmpdir_new();
    struct smallckpt s;
    struct glm_error err = {0};
    smallckpt_shards(&s, dir, &plain, &err);
    char *const text = calloc(1, 200001);
    memset(text, 'x', 200000);
    manifest_add_file(s.m, "chat_template.jinja", false, text, 200000);
    index_write(s.m, s.tiles, s.chunks, tmpdir_path(dir, "index.h5"), &err);
    cr_assert_eq(err.code, GLM_OK, "%s", err.text);
    struct index *ix = opened(dir);
    void *data = NULL;
    index_file(ix, index_find_file(ix, "chat_template.jinja", false), &data, &err);
    cr_assert_str_eq(data, text);
    free(data);
    index_file(ix, index_find_file(ix, "README.md", false), &data, &err);
    cr_assert_eq(memcmp(data, s.big, 1 << 20), 0);
    free(data);
    free(text);
    index_close(ix);
    smallckpt_clear(&s);
    tmpdir_remove(dir);
}

Test(index, a_side_file_that_would_leave_its_folder_is_not_written)
{
    static const char *const bad[] = {
        "../x", "/x", "a/../b", "a//b", ".", "a\\b", "C:x", "a/", ""};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char *dir = tmpdir_new();
        struct smallckpt s;
        struct glm_error err = {0};
        smallckpt_shards(&s, dir, &plain, &err);
        manifest_add_file(s.m, bad[i], false, "x", 1);
        index_write(s.m, s.tiles, s.chunks, tmpdir_path(dir, "index.h5"), &err);
        cr_assert_eq(err.code, GLM_EFORMAT, "'%s' was taken", bad[i]);
        cr_assert_not_null(strstr(err.text, "must stay inside"), "%s", err.text);
        smallckpt_clear(&s);
        tmpdir_remove(dir);
    }
}
