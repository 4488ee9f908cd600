/* Any rectangle of any tensor, plain and packed, checked and unchecked, at several topologies. */
#include "ckpt/reader.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <criterion/criterion.h>

#include "ckpt/digest.h"
#include "ckpt/region.h"
#include "tests/support/rng.h"
#include "tests/support/smallckpt.h"
#include "tests/support/tmpdir.h"

static const struct smallckpt_options kinds[] = {
    {.training = true},
    {.topo = {.tp = 4, .pp = 2, .ep = 2, .etp = 2}, .training = true},
    {.topo = {.tp = 2, .ep = 4}, .training = true, .volumes = {.encoding = ENC_ZSTD}},
    {.topo = {.tp = 4}, .form = SMALL_MXFP8, .volumes = {.encoding = ENC_ZSTD}},
    {.topo = {.pp = 4, .ep = 2}, .form = SMALL_FP8, .volumes = {.shard_size = 100000}},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

struct opened {
    char *dir;
    struct reader *r;
    const struct manifest *m;
    struct reader_scratch *s;
};

static void open_kind(struct opened *o, const struct smallckpt_options *kind)
{
    struct glm_error err = {0};
    o->dir = tmpdir_new();
    cr_assert_eq(smallckpt_write(o->dir, kind, &err), 0, "%s", err.text);
    cr_assert_eq(reader_open(&o->r, o->dir, &err), GLM_OK, "%s", err.text);
    o->m = reader_manifest(o->r);
    o->s = reader_scratch_new();
}

static void close_kind(struct opened *o)
{
    reader_scratch_free(o->s);
    reader_close(o->r);
    tmpdir_remove(o->dir);
}

/* Reads a rectangle and compares it with the elements themselves. */
static void check(struct opened *o, int64_t tensor, const struct rect *at, bool verify)
{
    struct glm_error err = {0};
    const struct ckpt_tensor *t = &o->m->tensors[tensor];
    const size_t size = glm_dtype_size(t->dtype);
    const struct rect all = rect_whole(t->grid.dims), tiles = tile_cover(&t->grid, at);
    const size_t room = (size_t)rect_count(at) * size + 2 * DIO_ALIGN;
    unsigned char *buf = dio_alloc(room), *got, *want = malloc(room), *whole;
    unsigned char *digests = malloc((size_t)rect_count(&tiles) * DIGEST_SIZE + 1);
    cr_assert_eq(reader_read(o->r, tensor, at, verify, buf, room, &got,
                     verify ? digests : NULL, o->s, &err),
        GLM_OK, "%s", err.text);
    whole = malloc((size_t)rect_count(&all) * size);
    smallckpt_elements(t, 0, rect_count(&all), whole);
    region_copy(want, at, whole, &all, at, size);
    cr_assert_eq(memcmp(got, want, (size_t)rect_count(at) * size), 0, "%s/%s",
        section_name(t->section), t->name);
    if (verify) {
        unsigned char *own = malloc((size_t)rect_count(&tiles) * DIGEST_SIZE);
        reader_hash_tiles(&t->grid, at, size, want, own);
        cr_assert_arr_eq(digests, own, (size_t)rect_count(&tiles) * DIGEST_SIZE);
        free(own);
    }
    free(digests);
    free(want);
    free(whole);
    dio_free(buf, room);
}

Test(reader, reads_every_tensor_whole_and_checked, .timeout = 1800)
{
    for (int k = 0; k < KINDS; k++) {
        struct opened o;
        open_kind(&o, &kinds[k]);
        for (int64_t i = 0; i < o.m->tensor_count; i++) {
            const struct rect all = rect_whole(o.m->tensors[i].grid.dims);
            if (!rect_empty(&all))
                check(&o, i, &all, true);
        }
        close_kind(&o);
    }
}

static struct rect random_rect(const int64_t dims[3], uint64_t *state)
{
    struct rect r;
    for (int a = 0; a < 3; a++) {
        r.lo[a] = (int64_t)rng_below(state, (uint64_t)dims[a]);
        r.hi[a] = r.lo[a] + 1 + (int64_t)rng_below(state, (uint64_t)(dims[a] - r.lo[a]));
    }
    return r;
}

Test(reader, reads_rectangles_that_lie_on_no_tile, .timeout = 1800)
{
    uint64_t state = 5;
    for (int k = 0; k < KINDS; k++) {
        struct opened o;
        open_kind(&o, &kinds[k]);
        for (int64_t i = 0; i < o.m->tensor_count; i++) {
            const struct tile_grid *g = &o.m->tensors[i].grid;
            if (tile_count(g) == 0)
                continue;
            for (int n = 0; n < 2; n++) {
                struct rect at = random_rect(g->dims, &state);
                check(&o, i, &at, false);
                const struct rect tiles = tile_cover(g, &at);
                at = tile_span(g, &tiles);
                check(&o, i, &at, true);
            }
        }
        close_kind(&o);
    }
}

static int64_t find(const struct manifest *m, enum ckpt_section s, const char *name)
{
    const int64_t i = manifest_find(m, s, name);
    cr_assert_geq(i, 0, "%s", name);
    return i;
}

/* Flips a byte of a tensor's first stored piece, at a fraction of its bytes. */
static void damage(struct opened *o, int64_t tensor)
{
    const struct ckpt_piece *p = &o->m->pieces[o->m->tensors[tensor].first_piece];
    const uint64_t offset = p->encoding == ENC_PLAIN
        ? p->offset + p->bytes / 2
        : reader_index(o->r)->chunks[p->first_chunk].offset + 20;
    FILE *f = fopen(tmpdir_path(o->dir, "%s", o->m->shards[p->shard].file), "r+b");
    fseek(f, (long)offset, SEEK_SET);
    const int c = fgetc(f);
    fseek(f, (long)offset, SEEK_SET);
    fputc(c ^ 1, f);
    fclose(f);
}

static void fails(struct opened *o, int64_t tensor, bool verify, const char *const says[])
{
    struct glm_error err = {0};
    const struct rect all = rect_whole(o->m->tensors[tensor].grid.dims);
    const size_t room = (size_t)rect_count(&all) * 8 + 2 * DIO_ALIGN;
    unsigned char *buf = dio_alloc(room), *at;
    cr_assert_eq(
        reader_read(o->r, tensor, &all, verify, buf, room, &at, NULL, o->s, &err),
        GLM_EFORMAT);
    for (; *says != NULL; says++)
        cr_assert_not_null(
            strstr(err.text, *says), "'%s' does not say '%s'", err.text, *says);
    dio_free(buf, room);
}

Test(reader, a_changed_byte_is_named_by_file_tensor_and_tile)
{
    struct opened o;
    open_kind(&o, &kinds[1]);
    int64_t stack = 0;
    while (!o.m->tensors[stack].stack)
        stack++;
    const char *name = o.m->tensors[stack].name;
    const int64_t i = find(o.m, SECTION_MASTER, name);
    const char *file = o.m->shards[o.m->pieces[o.m->tensors[i].first_piece].shard].file;
    damage(&o, i);
    fails(&o, i, true,
        (const char *const[]){file, "experts.", "_proj.weight", "(master)", "tile ",
            "rows ", "SHA-256", NULL});
    /* The weight that is derived from it is no better. */
    fails(&o, find(o.m, SECTION_WEIGHT, name), true,
        (const char *const[]){"(master)", NULL});
    close_kind(&o);
}

Test(reader, a_changed_byte_of_a_frame_is_found_before_it_is_decoded)
{
    struct opened o;
    open_kind(&o, &kinds[2]);
    const int64_t i = find(o.m, SECTION_MASTER, "lm_head.weight");
    damage(&o, i);
    fails(
        &o, i, true, (const char *const[]){"lm_head.weight", "chunk 0", "SHA-256", NULL});
    fails(&o, i, false,
        (const char *const[]){"lm_head.weight", "chunk 0", "SHA-256", NULL});
    close_kind(&o);
}

static void not_opened(const char *dir, const char *says)
{
    struct glm_error err = {0};
    struct reader *r;
    cr_assert_eq(reader_open(&r, dir, &err), GLM_EFORMAT, "%s", err.text);
    cr_assert_null(r);
    cr_assert_not_null(strstr(err.text, says), "'%s' does not say '%s'", err.text, says);
}

Test(reader, a_shard_that_is_missing_cut_grown_or_a_link_is_refused)
{
    struct opened o;
    size_t size;
    open_kind(&o, &kinds[1]);
    char *path = strdup(tmpdir_path(o.dir, "%s", o.m->shards[1].file));
    char *file = strdup(o.m->shards[1].file);
    reader_close(o.r);
    unsigned char *data = tmpdir_read(path, &size);
    tmpdir_write(path, data, size - 1);
    not_opened(o.dir, file);
    tmpdir_write(path, data, size + 1); /* the zero behind it */
    not_opened(o.dir, "the manifest says");
    unlink(path);
    not_opened(o.dir, "incomplete: shard");
    tmpdir_write(tmpdir_path(o.dir, "elsewhere"), data, size);
    cr_assert_eq(symlink("elsewhere", path), 0);
    not_opened(o.dir, "not a regular file");
    free(data);
    free(path);
    free(file);
    reader_scratch_free(o.s);
    tmpdir_remove(o.dir);
}

Test(reader, a_buffer_that_is_too_small_is_refused)
{
    struct glm_error err = {0};
    struct opened o;
    unsigned char small[16], *at;
    open_kind(&o, &kinds[0]);
    const struct rect all = rect_whole(o.m->tensors[0].grid.dims);
    cr_assert_neq(
        reader_read(o.r, 0, &all, false, small, sizeof small, &at, NULL, o.s, &err),
        GLM_OK);
    close_kind(&o);
}
