/* Rectangles out of pieces: plain ones by pread at offsets from the manifest, packed ones by frame.
 *
 * libhdf5 is never called: the manifest is authenticated, so its offsets are, and the bytes they
 * lead to are hashed before anyone uses them. A rectangle that lies in one plain piece as one run
 * of bytes, the common case, is read straight into the caller's buffer. */
#include "ckpt/reader.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "ckpt/digest.h"
#include "ckpt/packed.h"
#include "ckpt/region.h"
#include "ckpt/shard.h"
#include "kernels/base/bf16.h"

enum { GATHER = 64 * 1024 };

struct reader {
    struct index *index;
    char *dir;
    struct dio *files; /* [shard_count], opened at first use */
    pthread_mutex_t lock;
    bool trusts; /* what is stored, without a look at its digest */
};

struct reader_scratch {
    struct packer *packer;
    struct dio_buffer raw;  /* a dio buffer */
    struct dio_buffer tile; /* one decoded chunk */
};

/* ---- open ------------------------------------------------------------------------------------- */

static int check_shards(const struct reader *r, struct glm_error *err)
{
    const struct manifest *m = r->index->manifest;

    for (int64_t i = 0; i < m->shard_count; i++) {
        char path[4096];
        struct stat st;
        snprintf(path, sizeof path, "%s/%s", r->dir, m->shards[i].file);
        if (lstat(path, &st) != 0)
            return glm_fail(err, GLM_EFORMAT, "%s: incomplete: shard %s is missing (%s)",
                r->dir, m->shards[i].file, strerror(errno));
        if (!S_ISREG(st.st_mode))
            return glm_fail(err, GLM_EFORMAT, "%s: not a regular file", path);
        if ((uint64_t)st.st_size != m->shards[i].bytes)
            return glm_fail(err, GLM_EFORMAT,
                "%s: has %lld bytes, the manifest says %" PRIu64
                "; the file was cut, grown or "
                "not copied whole",
                path, (long long)st.st_size, m->shards[i].bytes);
    }
    return GLM_OK;
}

int reader_open(struct reader **out, const char *ckpt_dir, struct glm_error *err)
{
    struct reader *r = calloc(1, sizeof *r);

    *out = NULL;
    if (r == NULL || pthread_mutex_init(&r->lock, NULL) != 0) {
        free(r);
        return glm_fail(err, GLM_ENOMEM, "%s: no memory", ckpt_dir);
    }
    r->dir = strdup(ckpt_dir);
    if (r->dir == NULL) {
        glm_fail(err, GLM_ENOMEM, "%s: no memory", ckpt_dir);
        goto out;
    }
    if (index_open(&r->index, ckpt_dir, err) != GLM_OK || check_shards(r, err) != GLM_OK)
        goto out;
    const int64_t n = r->index->manifest->shard_count;
    r->files = calloc((size_t)n + 1, sizeof *r->files);
    if (r->files == NULL) {
        glm_fail(err, GLM_ENOMEM, "%s: no memory", ckpt_dir);
        goto out;
    }
    dio_raise_limit();
    *out = r;
    r = NULL;
out:
    reader_close(r);
    return (int)err->code;
}

void reader_close(struct reader *r)
{
    if (r == NULL)
        return;
    for (int64_t i = 0; r->files != NULL && i < r->index->manifest->shard_count; i++)
        dio_close(&r->files[i]);
    free(r->files);
    if (r->index != NULL)
        index_close(r->index);
    free(r->dir);
    pthread_mutex_destroy(&r->lock);
    free(r);
}

void reader_trust(struct reader *r)
{
    r->trusts = true;
}

const struct index *reader_index(const struct reader *r)
{
    return r->index;
}
const struct manifest *reader_manifest(const struct reader *r)
{
    return r->index->manifest;
}

struct reader_scratch *reader_scratch_new(void)
{
    struct reader_scratch *s = calloc(1, sizeof *s);

    if (s != NULL && (s->packer = packer_new()) == NULL) {
        free(s);
        return NULL;
    }
    return s;
}

void reader_scratch_free(struct reader_scratch *s)
{
    if (s == NULL)
        return;
    packer_free(s->packer);
    dio_free(s->raw.data, s->raw.size);
    dio_free(s->tile.data, s->tile.size);
    free(s);
}

static int shard_file(
    struct reader *r, int64_t shard, const struct dio **out, struct glm_error *err)
{
    struct dio *f = &r->files[shard];

    pthread_mutex_lock(&r->lock);
    if (f->path == NULL) {
        char path[4096];
        snprintf(
            path, sizeof path, "%s/%s", r->dir, r->index->manifest->shards[shard].file);
        dio_open_read(f, path, err);
    }
    pthread_mutex_unlock(&r->lock);
    *out = f;
    return (int)err->code;
}

/* ---- digests ---------------------------------------------------------------------------------- */

/* Rows of a narrow tile are a few hundred bytes: gathered first, hashed in longer runs. */
static void hash_rows(struct digest *d, const unsigned char *p, int64_t rows, size_t row,
    size_t pitch, unsigned char *gather)
{
    const int64_t batch = row == 0 || row > GATHER ? 1 : (int64_t)(GATHER / row);

    if (row == pitch) {
        digest_update(d, p, row * (size_t)rows);
        return;
    }
    if (row >= 4096) {
        for (int64_t r = 0; r < rows; r++)
            digest_update(d, p + (size_t)r * pitch, row);
        return;
    }
    for (int64_t r = 0; r < rows; r += batch) {
        const int64_t n = rows - r < batch ? rows - r : batch;
        for (int64_t i = 0; i < n; i++)
            memcpy(gather + (size_t)i * row, p + (size_t)(r + i) * pitch, row);
        digest_update(d, gather, (size_t)n * row);
    }
}

bool reader_hash_tiles(const struct tile_grid *g, const struct rect *elements,
    size_t element_size, const void *data, unsigned char *digests)
{
    const struct rect tiles = tile_cover(g, elements);
    const size_t pitch = (size_t)rect_len(elements, 2) * element_size;
    unsigned char gather[GATHER];
    struct digest *d = digest_new();

    if (d == NULL)
        return false;
    for (int64_t e = tiles.lo[0]; e < tiles.hi[0]; e++)
        for (int64_t gr = tiles.lo[1]; gr < tiles.hi[1]; gr++)
            for (int64_t gc = tiles.lo[2]; gc < tiles.hi[2]; gc++) {
                const struct rect t = tile_rect(g, tile_index(g, e, gr, gc));
                const unsigned char *p = (const unsigned char *)data
                    + region_at(elements, e, t.lo[1], t.lo[2], element_size);
                digest_begin(d);
                hash_rows(d, p, rect_len(&t, 1), (size_t)rect_len(&t, 2) * element_size,
                    pitch, gather);
                digest_end(d, digests);
                digests += DIGEST_SIZE;
            }
    digest_free(d);
    return true;
}

static int64_t piece_of(const struct manifest *m, int64_t tensor, const struct rect *tile)
{
    const struct ckpt_tensor *t = &m->tensors[tensor];

    for (int64_t p = t->first_piece; p < t->first_piece + t->pieces; p++)
        if (rect_contains(&m->pieces[p].at, tile))
            return p;
    return -1;
}

/* One sentence about a tile that is not what its digest says. */
static int tile_differs(const struct reader *r, int64_t tensor, const struct rect *tile,
    int64_t number, struct glm_error *err)
{
    const struct manifest *m = r->index->manifest;
    const struct ckpt_tensor *t = &m->tensors[tensor];
    const int64_t p = piece_of(m, tensor, tile);
    char name[512];

    snprintf(name, sizeof name, "%s", t->name);
    if (t->stack && t->entry != NULL && t->block[0] * t->block[1] == 1)
        table_member_name(t->entry, tile->lo[0], name, sizeof name);
    return glm_fail(err, GLM_EFORMAT,
        "%s/%s: tensor '%s' (%s), tile %" PRId64 " (rows %" PRId64 "-%" PRId64
        ", columns %" PRId64 "-%" PRId64
        "): the bytes do not have the recorded SHA-256; run glm-verify integrity",
        r->dir, p < 0 ? "index.h5" : m->shards[m->pieces[p].shard].file, name,
        section_name(t->section), number, tile->lo[1], tile->hi[1] - 1, tile->lo[2],
        tile->hi[2] - 1);
}

static int check_tiles(const struct reader *r, int64_t tensor, const struct rect *rect,
    const unsigned char *digests, struct glm_error *err)
{
    const struct ckpt_tensor *t = &r->index->manifest->tensors[tensor];
    const struct rect tiles = tile_cover(&t->grid, rect);

    for (int64_t e = tiles.lo[0]; e < tiles.hi[0]; e++)
        for (int64_t gr = tiles.lo[1]; gr < tiles.hi[1]; gr++)
            for (int64_t gc = tiles.lo[2]; gc < tiles.hi[2]; gc++) {
                const int64_t n = tile_index(&t->grid, e, gr, gc);
                const unsigned char *want =
                    r->index->tiles + (size_t)(t->first_tile + n) * DIGEST_SIZE;
                if (memcmp(digests, want, DIGEST_SIZE) != 0) {
                    const struct rect at = tile_rect(&t->grid, n);
                    return tile_differs(r, tensor, &at, n, err);
                }
                digests += DIGEST_SIZE;
            }
    return GLM_OK;
}

/* ---- pieces ----------------------------------------------------------------------------------- */

/* Offset in the file of an element of a plain piece. */
static uint64_t plain_offset(
    const struct ckpt_piece *p, int64_t e, int64_t r, int64_t c, size_t element)
{
    return p->offset + region_at(&p->at, e, r, c, element);
}

/* Part of a plain piece into a buffer over rect. */
static int read_plain(const struct dio *f, const struct ckpt_piece *p,
    const struct rect *part, const struct rect *rect, size_t element, unsigned char *out,
    struct reader_scratch *s, struct glm_error *err)
{
    struct rect rows = *part;

    for (int64_t e = part->lo[0]; e < part->hi[0]; e++) {
        rows.lo[0] = e;
        rows.hi[0] = e + 1;
        const uint64_t at = plain_offset(p, e, part->lo[1], part->lo[2], element);
        if (region_contiguous(&p->at, &rows)) {
            const size_t size = (size_t)rect_count(&rows) * element;
            unsigned char *data;
            if (dio_reserve(&s->raw, size + 2 * DIO_ALIGN, err) != GLM_OK
                || dio_read(f, at, size, s->raw.data, &data, err) != GLM_OK)
                return (int)err->code;
            region_copy(out, rect, data, &rows, &rows, element);
            continue;
        }
        const size_t row = (size_t)rect_len(part, 2) * element;
        for (int64_t r = part->lo[1]; r < part->hi[1]; r++)
            if (dio_pread(f, plain_offset(p, e, r, part->lo[2], element), row,
                    out + region_at(rect, e, r, part->lo[2], element), err)
                != GLM_OK)
                return (int)err->code;
    }
    return GLM_OK;
}

static struct rect tiles_of_piece(const struct manifest *m, const struct ckpt_piece *p)
{
    return tile_cover(&m->tensors[p->tensor].grid, &p->at);
}

/* Number of a tile (its coordinates) inside a piece, row-major. */
static int64_t tile_in_piece(const struct rect *tiles, int64_t e, int64_t gr, int64_t gc)
{
    return ((e - tiles->lo[0]) * rect_len(tiles, 1) + gr - tiles->lo[1])
        * rect_len(tiles, 2)
        + gc - tiles->lo[2];
}

int reader_frame(struct reader *r, int64_t piece, int64_t number, void *buf,
    size_t capacity, size_t *size, uint32_t *mask, struct glm_error *err)
{
    const struct manifest *m = r->index->manifest;
    const struct ckpt_piece *p = &m->pieces[piece];
    const struct ckpt_chunk *c = &r->index->chunks[p->first_chunk + number];
    unsigned char got[DIGEST_SIZE];
    const struct dio *f;

    if (c->bytes > capacity)
        return glm_fail(err, GLM_EFORMAT,
            "%s/%s: chunk %" PRId64 " of '%s' has %" PRIu32
            " bytes, at most %zu are possible",
            r->dir, m->shards[p->shard].file, number, m->tensors[p->tensor].name,
            c->bytes, capacity);
    if (shard_file(r, p->shard, &f, err) != GLM_OK
        || dio_pread(f, c->offset, c->bytes, buf, err) != GLM_OK)
        return (int)err->code;
    digest_of(buf, c->bytes, got);
    if (memcmp(got, c->sha256, DIGEST_SIZE) != 0)
        return glm_fail(err, GLM_EFORMAT,
            "%s: tensor '%s', stored chunk %" PRId64 " at offset %" PRIu64 " (%" PRIu32
            " bytes) does not have the recorded SHA-256",
            f->path, m->tensors[p->tensor].name, number, c->offset, c->bytes);
    *size = c->bytes;
    *mask = c->mask;
    return GLM_OK;
}

/* Decodes one tile of a packed piece into s->tile; *over is what the buffer holds (chunk shape). */
static int read_chunk(struct reader *r, int64_t piece, const struct rect *tile,
    int64_t number, struct rect *over, size_t element, struct reader_scratch *s,
    struct glm_error *err)
{
    const struct manifest *m = r->index->manifest;
    const struct ckpt_piece *p = &m->pieces[piece];
    int64_t dims[RECT_AXES];
    size_t stored;
    uint32_t mask;

    shard_chunk_dims(m, p, dims);
    *over = *tile;
    for (int a = 0; a < RECT_AXES; a++)
        over->hi[a] = over->lo[a] + dims[a];
    const size_t raw = (size_t)rect_count(over) * element;
    const size_t room = packer_bound(raw) + 2 * DIO_ALIGN;
    if (dio_reserve(&s->raw, room, err) != GLM_OK
        || dio_reserve(&s->tile, raw, err) != GLM_OK
        || reader_frame(r, piece, number, s->raw.data, room, &stored, &mask, err)
            != GLM_OK)
        return (int)err->code;
    if (packer_unpack(
            s->packer, s->raw.data, stored, mask, s->tile.data, raw, element, err)
        != GLM_OK)
        return glm_within(err, "%s/%s: tensor '%s', chunk %" PRId64, r->dir,
            m->shards[p->shard].file, m->tensors[p->tensor].name, number);
    return GLM_OK;
}

static int read_packed(struct reader *r, int64_t piece, const struct rect *part,
    const struct rect *rect, size_t element, unsigned char *out, struct reader_scratch *s,
    struct glm_error *err)
{
    const struct manifest *m = r->index->manifest;
    const struct tile_grid *g = &m->tensors[m->pieces[piece].tensor].grid;
    const struct rect all = tiles_of_piece(m, &m->pieces[piece]);
    const struct rect want = tile_cover(g, part);
    struct rect over, common;

    for (int64_t e = want.lo[0]; e < want.hi[0]; e++)
        for (int64_t gr = want.lo[1]; gr < want.hi[1]; gr++)
            for (int64_t gc = want.lo[2]; gc < want.hi[2]; gc++) {
                const struct rect tile = tile_rect(g, tile_index(g, e, gr, gc));
                if (!rect_intersect(&tile, part, &common))
                    continue;
                if (read_chunk(r, piece, &tile, tile_in_piece(&all, e, gr, gc), &over,
                        element, s, err)
                    != GLM_OK)
                    return (int)err->code;
                region_copy(out, rect, s->tile.data, &over, &common, element);
            }
    return GLM_OK;
}

/* The rectangle as stored, unverified. */
static int read_stored(struct reader *r, int64_t tensor, const struct rect *rect,
    size_t element, void *out, size_t capacity, unsigned char **at,
    struct reader_scratch *s, struct glm_error *err)
{
    const struct manifest *m = r->index->manifest;
    const struct ckpt_tensor *t = &m->tensors[tensor];
    const size_t size = (size_t)rect_count(rect) * element;
    struct rect part;
    const struct dio *f;

    *at = out;
    for (int64_t i = t->first_piece; i < t->first_piece + t->pieces; i++) {
        const struct ckpt_piece *p = &m->pieces[i];
        if (!rect_intersect(&p->at, rect, &part))
            continue;
        if (p->encoding == ENC_ZSTD) {
            if (read_packed(r, i, &part, rect, element, out, s, err) != GLM_OK)
                return (int)err->code;
            continue;
        }
        if (shard_file(r, p->shard, &f, err) != GLM_OK)
            return (int)err->code;
        if (rect_equal(&part, rect) && region_contiguous(&p->at, rect)
            && capacity >= size + 2 * DIO_ALIGN && (uintptr_t)out % DIO_ALIGN == 0)
            return dio_read(f,
                plain_offset(p, rect->lo[0], rect->lo[1], rect->lo[2], element), size,
                out, at, err);
        if (read_plain(f, p, &part, rect, element, out, s, err) != GLM_OK)
            return (int)err->code;
    }
    return GLM_OK;
}

/* A derived weight: its master, read verified, rounded to nearest even. */
static int read_derived(struct reader *r, int64_t tensor, const struct rect *rect,
    bool verify, uint16_t *out, struct reader_scratch *s, struct glm_error *err)
{
    const struct manifest *m = r->index->manifest;
    const int64_t master = manifest_find(m, SECTION_MASTER, m->tensors[tensor].name);
    const int64_t n = rect_count(rect);
    const size_t room = (size_t)n * sizeof(float) + 2 * DIO_ALIGN;
    unsigned char *data;

    if (master < 0)
        return glm_fail(err, GLM_EFORMAT, "%s: '%s' is derived but has no master", r->dir,
            m->tensors[tensor].name);
    float *wide = dio_alloc(room);
    if (wide == NULL)
        return glm_fail(err, GLM_ENOMEM, "no memory for a buffer of %zu bytes", room);
    if (reader_read(r, master, rect, verify, wide, room, &data, NULL, s, err) == GLM_OK)
        for (int64_t i = 0; i < n; i++) {
            float x;
            memcpy(&x, data + (size_t)i * sizeof x, sizeof x);
            out[i] = bf16_from_f32(x);
        }
    dio_free(wide, room);
    return (int)err->code;
}

int reader_read(struct reader *r, int64_t tensor, const struct rect *at_rect, bool verify,
    void *out, size_t capacity, unsigned char **at, unsigned char *digests,
    struct reader_scratch *s, struct glm_error *err)
{
    const struct ckpt_tensor *t = &r->index->manifest->tensors[tensor];
    const size_t element = glm_dtype_size(t->dtype);
    const size_t size = (size_t)rect_count(at_rect) * element;
    unsigned char *sums = digests;

    *at = out;
    if (capacity < size)
        return glm_fail(err, GLM_ENOMEM, "buffer of %zu bytes for %zu", capacity, size);
    if (t->derived) {
        if (read_derived(r, tensor, at_rect, verify, out, s, err) != GLM_OK)
            return (int)err->code;
    } else if (read_stored(r, tensor, at_rect, element, out, capacity, at, s, err)
        != GLM_OK) {
        return (int)err->code;
    }
    if (!verify || (r->trusts && digests == NULL))
        return GLM_OK;
    const struct rect tiles = tile_cover(&t->grid, at_rect);
    if (sums == NULL && (sums = malloc((size_t)rect_count(&tiles) * DIGEST_SIZE)) == NULL)
        return glm_fail(err, GLM_ENOMEM, "no memory for tile digests");
    if (reader_hash_tiles(&t->grid, at_rect, element, *at, sums))
        check_tiles(r, tensor, at_rect, sums, err);
    else
        glm_fail(err, GLM_ENOMEM, "no memory to hash tiles");
    if (sums != digests)
        free(sums);
    return (int)err->code;
}
