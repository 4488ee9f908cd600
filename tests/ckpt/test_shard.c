/* Shards: where things lie, what HDF5 itself reads there, and that bytes repeat. */
#include "ckpt/shard.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <criterion/criterion.h>

#include "ckpt/digest.h"
#include "ckpt/h5error.h"
#include "tests/support/smallckpt.h"
#include "tests/support/tmpdir.h"

static const struct smallckpt_options plain = {
    .topo = {.tp = 2, .pp = 2, .ep = 2, .etp = 2}, .training = true};
static const struct smallckpt_options packed = {
    .topo = {.tp = 2, .pp = 2, .ep = 2, .etp = 2},
    .training = true,
    .volumes = {.encoding = ENC_ZSTD}};

static void made(struct smallckpt *s, const char *dir, const struct smallckpt_options *o)
{
    struct glm_error err = {0};
    smallckpt_shards(s, dir, o, &err);
    cr_assert_eq(err.code, GLM_OK, "%s", err.text);
}

Test(shard, plain_pieces_lie_on_pages_in_order_and_metadata_stays_small)
{
    char *dir = tmpdir_new();
    struct smallckpt s;
    made(&s, dir, &plain);
    uint64_t *end = calloc((size_t)s.m->shard_count, sizeof *end);
    uint64_t *first = calloc((size_t)s.m->shard_count, sizeof *first);
    int64_t *pieces = calloc((size_t)s.m->shard_count, sizeof *pieces);
    for (int64_t i = 0; i < s.m->piece_count; i++) {
        const struct ckpt_piece *const p = &s.m->pieces[i];
        cr_assert_eq(p->offset % 4096, 0);
        cr_assert_geq(p->offset, end[p->shard]);
        if (end[p->shard] == 0)
            first[p->shard] = p->offset;
        else
            cr_assert_lt(p->offset - end[p->shard], 4096, "a gap of more than a page");
        end[p->shard] = p->offset + p->bytes;
        pieces[p->shard]++;
    }
    for (int64_t i = 0; i < s.m->shard_count; i++) {
        struct stat st;
        cr_assert_eq(stat(tmpdir_path(dir, "%s", s.m->shards[i].file), &st), 0);
        cr_assert_eq((uint64_t)st.st_size, s.m->shards[i].bytes);
        cr_assert_eq(end[i], s.m->shards[i].bytes);
        cr_assert_lt(first[i], 8192 + 512 * (uint64_t)pieces[i],
            "metadata of %s: %lu bytes for %ld"
            " datasets",
            s.m->shards[i].file, (unsigned long)first[i], (long)pieces[i]);
    }
    free(end);
    free(first);
    free(pieces);
    smallckpt_clear(&s);
    tmpdir_remove(dir);
}

Test(shard, equal_content_gives_equal_bytes)
{
    const struct smallckpt_options *const both[] = {&plain, &packed};
    for (int i = 0; i < 2; i++) {
        char *a = tmpdir_new(), *b = tmpdir_new();
        struct smallckpt s;
        made(&s, a, both[i]);
        smallckpt_clear(&s);
        sleep(1);
        made(&s, b, both[i]);
        smallckpt_clear(&s);
        cr_assert_eq(tmpdir_differ(a, b), 0);
        tmpdir_remove(a);
        tmpdir_remove(b);
    }
}

Test(shard, creating_replaces_a_file_without_touching_its_other_name)
{
    char *dir = tmpdir_new();
    struct smallckpt s;
    struct glm_error err = {0};
    made(&s, dir, &plain);
    char path[512];
    snprintf(path, sizeof path, "%s", tmpdir_path(dir, "%s", s.m->shards[0].file));
    cr_assert_eq(link(path, tmpdir_path(dir, "kept")), 0);
    size_t before, after;
    char *a = tmpdir_read(path, &before);
    shard_create_plain(s.m, 0, path, &err);
    cr_assert_eq(err.code, GLM_OK, "%s", err.text);
    char *b = tmpdir_read(tmpdir_path(dir, "kept"), &after);
    cr_assert(before == after && memcmp(a, b, before) == 0);
    free(a);
    free(b);
    smallckpt_clear(&s);
    tmpdir_remove(dir);
}

/* The library reads, through its filters, what went in through us; edge chunks included. */
static void library_reads(const struct smallckpt_options *o)
{
    char *dir = tmpdir_new();
    struct smallckpt s;
    made(&s, dir, o);
    for (int64_t i = 0; i < s.m->piece_count; i++) {
        const struct ckpt_piece *const p = &s.m->pieces[i];
        const struct ckpt_tensor *const t = &s.m->tensors[p->tensor];
        const size_t size = glm_dtype_size(t->dtype),
                     bytes = (size_t)rect_count(&p->at) * size;
        char name[600];
        unsigned char *got = malloc(bytes), *want = malloc(bytes);
        snprintf(name, sizeof name, "/%s/%s", section_name(t->section), t->name);
        h5_lock();
        const hid_t access = h5_access_list();
        const hid_t f = H5Fopen(
            tmpdir_path(dir, "%s", s.m->shards[p->shard].file), H5F_ACC_RDONLY, access);
        const hid_t d = H5Dopen2(f, name, H5P_DEFAULT), type = H5Dget_type(d);
        cr_assert_geq(
            H5Dread(d, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, got), 0, "%s", name);
        H5Tclose(type);
        H5Dclose(d);
        H5Fclose(f);
        H5Pclose(access);
        h5_unlock();
        const int64_t rows = rect_len(&p->at, 1), cols = rect_len(&p->at, 2);
        for (int64_t k = 0; k < rect_len(&p->at, 0) * rows; k++) {
            const int64_t e = p->at.lo[0] + k / rows, r = p->at.lo[1] + k % rows;
            smallckpt_elements(t,
                (e * t->grid.dims[1] + r) * t->grid.dims[2] + p->at.lo[2], cols,
                want + (size_t)(k * cols) * size);
        }
        cr_assert_eq(
            memcmp(got, want, bytes), 0, "%s of shard %ld", name, (long)p->shard);
        free(got);
        free(want);
    }
    smallckpt_clear(&s);
    tmpdir_remove(dir);
}

Test(shard, hdf5_reads_every_plain_piece)
{
    library_reads(&plain);
}

/* B-94, with our own filter in the library; stock readers: tests/scripts/test_python_reader.py. */
Test(shard, b94_hdf5_reads_every_packed_piece)
{
    library_reads(&packed);
    library_reads(
        &(struct smallckpt_options){.form = SMALL_FP8, .volumes.encoding = ENC_ZSTD});
    library_reads(
        &(struct smallckpt_options){.form = SMALL_MXFP8, .volumes.encoding = ENC_ZSTD});
}

/* Every byte is an extent's or changes the skeleton digest; a change inside an extent does not. */
Test(shard, skeleton_is_all_that_is_not_data)
{
    const struct smallckpt_options *const both[] = {&plain, &packed};
    for (int k = 0; k < 2; k++) {
        char *dir = tmpdir_new();
        struct smallckpt s;
        struct glm_error err = {0};
        made(&s, dir, both[k]);
        char path[512];
        size_t size;
        snprintf(path, sizeof path, "%s", tmpdir_path(dir, "%s", s.m->shards[0].file));
        unsigned char *const bytes = tmpdir_read(path, &size);
        bool *const data = calloc(size, 1);
        for (int64_t i = 0; i < s.m->piece_count; i++) {
            const struct ckpt_piece *const p = &s.m->pieces[i];
            if (p->shard != 0)
                continue;
            if (p->encoding == ENC_PLAIN)
                memset(data + p->offset, 1, p->bytes);
            for (int64_t c = 0; c < p->chunks; c++)
                memset(data + s.chunks[p->first_chunk + c].offset, 1,
                    s.chunks[p->first_chunk + c].bytes);
        }
        FILE *f = fopen(path, "r+b");
        for (size_t at = 0; at < size; at += 1999) {
            unsigned char sha[32];
            fseek(f, (long)at, SEEK_SET);
            fputc(bytes[at] ^ 4, f);
            fflush(f);
            cr_assert_eq(
                shard_skeleton(s.m, s.chunks, 0, path, sha, &err), 0, "%s", err.text);
            cr_assert_eq(
                memcmp(sha, s.m->shards[0].skeleton, 32) == 0, data[at], "byte %zu", at);
            fseek(f, (long)at, SEEK_SET);
            fputc(bytes[at], f);
        }
        fclose(f);
        cr_assert_eq(truncate(path, (long)size - 1), 0);
        unsigned char sha[32];
        const int code = shard_skeleton(s.m, s.chunks, 0, path, sha, &err);
        cr_assert(code == GLM_EFORMAT || data[size - 1]);
        free(bytes);
        free(data);
        smallckpt_clear(&s);
        tmpdir_remove(dir);
    }
}

/* ---- one big matrix ------------------------------------------------------------------------- */

static struct manifest *one_matrix(
    const struct table *t, int64_t rows, enum ckpt_encoding encoding)
{
    const int64_t shape[2] = {rows, 8};
    struct glm_error err = {0};
    struct placement *p = NULL;
    struct manifest *m = manifest_new(t);
    placement_init(&p, t, &(struct topology){0}, &err);
    manifest_add_tensor(m, "rows", SECTION_TRAIN, GLM_F32, shape, 2, false, NULL);
    volumes_plan(m, p, &(struct volumes_options){.encoding = encoding}, &err);
    cr_assert_eq(err.code, GLM_OK, "%s", err.text);
    return m;
}

/* B-92: asking the library for each of n chunks takes n * n steps; 16,384 took 11.6 s. */
Test(shard, b92_sixteen_thousand_chunks_are_located_without_walking_the_index)
{
    enum { CHUNKS = 16384 };
    char *dir = tmpdir_new();
    struct smallckpt s = {0};
    struct smallckpt_options o = {0};
    struct glm_error err = {0};
    smallckpt_shards(&s, dir, &o, &err); /* for its table */
    struct manifest *m = one_matrix(s.table, 128 * (int64_t)CHUNKS, ENC_ZSTD);
    struct ckpt_chunk *chunks = calloc(CHUNKS, sizeof *chunks);
    struct packed_shard *w = NULL;
    const char *path = tmpdir_path(dir, "big.h5");
    struct timespec a, b;
    cr_assert_eq(m->chunk_count, CHUNKS);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
    shard_create_packed(&w, m, 0, path, &err);
    for (int64_t i = 0; i < CHUNKS && err.code == GLM_OK; i++) {
        unsigned char frame[64] = {0};
        const uint32_t n = 1 + (uint32_t)(i % 61);
        memcpy(frame, &i, n < sizeof i ? n : sizeof i);
        chunks[i].bytes = n;
        shard_put_chunk(w, 0, i, frame, n, 0, &err);
    }
    shard_close_packed(w, chunks, &err);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
    cr_assert_eq(err.code, GLM_OK, "%s", err.text);
    /* A square would be seconds; the bound is far from both. */
    cr_assert_lt(
        (double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec), 3.0);
    size_t size;
    unsigned char *bytes = tmpdir_read(path, &size);
    for (int64_t i = 0; i < CHUNKS; i++)
        cr_assert_eq(memcmp(bytes + chunks[i].offset, &i,
                         chunks[i].bytes < sizeof i ? chunks[i].bytes : sizeof i),
            0, "chunk %ld", (long)i);
    free(bytes);
    free(chunks);
    manifest_free(m);
    smallckpt_clear(&s);
    tmpdir_remove(dir);
}

Test(shard, chunks_must_come_in_order_and_all)
{
    char *dir = tmpdir_new();
    struct smallckpt s;
    struct glm_error err = {0};
    made(&s, dir, &(struct smallckpt_options){0});
    struct manifest *m = one_matrix(s.table, 300, ENC_ZSTD);
    struct ckpt_chunk chunks[3] = {0};
    struct packed_shard *w = NULL;
    const char *path = tmpdir_path(dir, "order.h5");
    cr_assert_eq(shard_create_packed(&w, m, 0, path, &err), 0, "%s", err.text);
    cr_assert_neq(shard_put_chunk(w, 0, 1, "x", 1, 0, &err), 0);
    cr_assert_not_null(strstr(err.text, "was due"), "%s", err.text);
    glm_error_clear(&err);
    cr_assert_eq(shard_put_chunk(w, 0, 0, "x", 1, 0, &err), 0, "%s", err.text);
    cr_assert_neq(shard_close_packed(w, chunks, &err), 0);
    cr_assert_not_null(strstr(err.text, "never written"), "%s", err.text);
    manifest_free(m);
    smallckpt_clear(&s);
    tmpdir_remove(dir);
}

Test(shard, a_system_error_keeps_its_errno)
{
    char *dir = tmpdir_new();
    struct smallckpt s;
    struct glm_error err = {0};
    made(&s, dir, &(struct smallckpt_options){0});
    shard_create_plain(s.m, 0, tmpdir_path(dir, "absent/shard.h5"), &err);
    cr_assert_eq(err.code, GLM_EIO);
    cr_assert_eq(err.sys_errno, ENOENT, "%s", err.text);
    cr_assert_not_null(strstr(err.text, "absent/shard.h5"), "%s", err.text);
    smallckpt_clear(&s);
    tmpdir_remove(dir);
}
