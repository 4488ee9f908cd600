/* Opening index.h5 with plain reads.
 *
 * The user block says how long the file is and what its other bytes hash to; nothing behind it is
 * believed before that digest agrees. The three tables are kept while the bytes pass. The manifest
 * can only be read with the parameter table, which comes from config.json inside the file, hence two
 * steps: find config.json's line, build the table, then parse. Memory is the tables and one block. */
#include "ckpt/index.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/digest.h"
#include "ckpt/index_block.h"
#include "ckpt/manifest_text.h"
#include "ckpt/shard.h"
#include "kernels/base/checked.h"

enum { INDEX_READ = 1 << 20 };

struct opening {
    int fd;
    const char *path;
    uint64_t length;
    struct index_block block;
    unsigned char *part[INDEX_PARTS];
    struct table *table;
    struct manifest *m;
    struct glm_error *err;
};

/* ---- bytes ---------------------------------------------------------------------------------- */

static int index_read(int fd, const char *path, void *out, uint64_t bytes,
    uint64_t offset, struct glm_error *err)
{
    for (uint64_t done = 0; done < bytes;) {
        const uint64_t left = bytes - done;
        const ssize_t got = pread(fd, (unsigned char *)out + done,
            left < INDEX_READ ? (size_t)left : INDEX_READ, (off_t)(offset + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return glm_fail_errno(err, "%s: read at byte %" PRIu64, path, offset + done);
        if (got == 0)
            return glm_fail(err, GLM_EFORMAT,
                "%s: ends at byte %" PRIu64 ", expected %" PRIu64 " more", path,
                offset + done, left);
        done += (uint64_t)got;
    }
    return 0;
}

/* Copies what a block at `at` shares with a part. */
static void open_keep(
    struct opening *o, const unsigned char *block, uint64_t at, size_t size)
{
    for (int i = 0; i < INDEX_PARTS; i++) {
        const struct index_extent *const e = &o->block.part[i];
        const uint64_t lo = at > e->offset ? at : e->offset;
        const uint64_t a = at + size, b = e->offset + e->bytes;
        const uint64_t hi = a < b ? a : b;
        if (lo < hi)
            memcpy(o->part[i] + (lo - e->offset), block + (lo - at), (size_t)(hi - lo));
    }
}

static int open_hash(struct opening *o, struct digest *d, unsigned char *block,
    unsigned char out[DIGEST_SIZE])
{
    digest_begin(d);
    for (uint64_t at = INDEX_BLOCK; at < o->length;) {
        const uint64_t left = o->length - at;
        const size_t size = left < INDEX_READ ? (size_t)left : INDEX_READ;
        if (index_read(o->fd, o->path, block, size, at, o->err) != 0)
            return o->err->code;
        digest_update(d, block, size);
        open_keep(o, block, at, size);
        at += size;
    }
    digest_end(d, out);
    return 0;
}

/* ---- which part is damaged ------------------------------------------------------------------ */

struct damage {
    struct opening *o;
    bool found;
};

static int damage_in_file(void *ctx, const struct ckpt_file *f)
{
    struct damage *const d = ctx;
    struct opening *const o = d->o;
    unsigned char sha[DIGEST_SIZE];
    if (f->offset > o->length || f->bytes > o->length - f->offset)
        return 0;
    void *const data = malloc(f->bytes > 0 ? (size_t)f->bytes : 1);
    if (data && index_read(o->fd, o->path, data, f->bytes, f->offset, o->err) == 0) {
        digest_of(data, (size_t)f->bytes, sha);
        d->found = memcmp(sha, f->sha256, DIGEST_SIZE) != 0;
        if (d->found)
            glm_fail(o->err, GLM_EFORMAT,
                "%s: side file %s%s is damaged: its bytes have another"
                " SHA-256",
                o->path, f->header ? "source/" : "", f->path);
    }
    free(data);
    return d->found || o->err->code != GLM_OK;
}

static int open_damaged(struct opening *o)
{
    unsigned char sha[DIGEST_SIZE];
    for (int i = 0; i < INDEX_PARTS; i++) {
        const struct index_extent *const e = &o->block.part[i];
        digest_of(o->part[i], (size_t)e->bytes, sha);
        if (memcmp(sha, e->sha256, DIGEST_SIZE) != 0)
            return glm_fail(o->err, GLM_EFORMAT,
                "%s: the %s is damaged: its %" PRIu64 " bytes at %" PRIu64
                " have another SHA-256",
                o->path, index_part_name[i], e->bytes, e->offset);
    }
    struct damage d = {.o = o};
    manifest_each_file((const char *)o->part[INDEX_MANIFEST],
        (size_t)o->block.part[INDEX_MANIFEST].bytes, damage_in_file, &d);
    if (o->err->code == GLM_OK)
        glm_fail(o->err, GLM_EFORMAT,
            "%s: HDF5 structures (virtual views) are damaged: the file has"
            " another SHA-256, while manifest, tables and side files are intact",
            o->path);
    return o->err->code;
}

/* ---- steps ---------------------------------------------------------------------------------- */

static int open_bytes(struct opening *o)
{
    unsigned char first[INDEX_BLOCK], sha[DIGEST_SIZE];
    struct digest *const d = digest_new();
    unsigned char *const block =
        malloc(o->length < INDEX_READ ? (size_t)o->length + 1 : INDEX_READ);
    if (o->length <= INDEX_BLOCK) {
        glm_fail(o->err, GLM_EFORMAT,
            "%s: %" PRIu64 " bytes long, shorter than its user block", o->path,
            o->length);
        goto out;
    }
    if (index_read(o->fd, o->path, first, INDEX_BLOCK, 0, o->err) != 0
        || index_block_parse(&o->block, o->path, first, o->length, o->err) != 0)
        goto out;
    bool room = d && block;
    for (int i = 0; i < INDEX_PARTS; i++) {
        o->part[i] = malloc((size_t)o->block.part[i].bytes + 1);
        room = room && o->part[i];
    }
    if (!room)
        glm_fail(o->err, GLM_ENOMEM, "%s: out of memory", o->path);
    else if (open_hash(o, d, block, sha) == 0
        && memcmp(sha, o->block.sha256, DIGEST_SIZE) != 0)
        open_damaged(o);
out:
    digest_free(d);
    free(block);
    return o->err->code;
}

static int open_table(struct opening *o)
{
    const char *const text = (const char *)o->part[INDEX_MANIFEST];
    const size_t size = (size_t)o->block.part[INDEX_MANIFEST].bytes;
    struct manifest_peek peek;
    struct model_config config = {0};
    unsigned char sha[DIGEST_SIZE];
    char *data = NULL, *name = NULL;
    if (manifest_peek(&peek, o->path, text, size, o->err) != 0)
        return o->err->code;
    if (peek.config_offset > o->length
        || peek.config_bytes > o->length - peek.config_offset)
        return glm_fail(o->err, GLM_EFORMAT,
            "%s: manifest: side file config.json (%" PRIu64 " bytes at %" PRIu64
            ") is not inside the file",
            o->path, peek.config_bytes, peek.config_offset);
    data = malloc((size_t)peek.config_bytes + 1);
    if (!data || asprintf(&name, "%s: side file config.json", o->path) < 0) {
        name = NULL;
        glm_fail(o->err, GLM_ENOMEM, "%s: out of memory", o->path);
        goto out;
    }
    if (index_read(o->fd, o->path, data, peek.config_bytes, peek.config_offset, o->err)
        != 0)
        goto out;
    data[peek.config_bytes] = '\0';
    digest_of(data, (size_t)peek.config_bytes, sha);
    if (memcmp(sha, peek.config_sha256, DIGEST_SIZE) != 0)
        glm_fail(o->err, GLM_EFORMAT, "%s: its SHA-256 is not the manifest's", name);
    else if (config_parse(&config, name, data, (size_t)peek.config_bytes, o->err) == 0)
        table_build(&o->table, &config, peek.without_mtp, o->err);
out:
    config_clear(&config);
    free(data);
    free(name);
    return o->err->code;
}

static int open_manifest(struct opening *o)
{
    const struct index_extent *const part = o->block.part;
    if (manifest_parse(&o->m, o->table, o->path, (const char *)o->part[INDEX_MANIFEST],
            (size_t)part[INDEX_MANIFEST].bytes, o->err)
        != 0)
        return o->err->code;
    const struct manifest *const m = o->m;
    if (part[INDEX_TILES].bytes % DIGEST_SIZE != 0
        || part[INDEX_TILES].bytes / DIGEST_SIZE != (uint64_t)m->tile_count)
        return glm_fail(o->err, GLM_EFORMAT,
            "%s: tile table: %" PRIu64 " bytes, expected 32 for each"
            " of %" PRId64 " tiles",
            o->path, part[INDEX_TILES].bytes, m->tile_count);
    if (part[INDEX_CHUNKS].bytes % INDEX_CHUNK_ROW != 0
        || part[INDEX_CHUNKS].bytes / INDEX_CHUNK_ROW != (uint64_t)m->chunk_count)
        return glm_fail(o->err, GLM_EFORMAT,
            "%s: chunk table: %" PRIu64 " bytes, expected %d for"
            " each of %" PRId64 " chunks",
            o->path, part[INDEX_CHUNKS].bytes, INDEX_CHUNK_ROW, m->chunk_count);
    for (int64_t i = 0; i < m->file_count; i++) {
        const struct ckpt_file *const f = &m->files[i];
        if (f->bytes == 0 ? f->offset != 0
                          : f->offset < INDEX_BLOCK || f->offset > o->length
                    || f->bytes > o->length - f->offset)
            return glm_fail(o->err, GLM_EFORMAT,
                "%s: manifest: side file %s (%" PRIu64 " bytes at %" PRIu64
                ") is not inside the file",
                o->path, f->path, f->bytes, f->offset);
    }
    return 0;
}

/* ---- chunk table ---------------------------------------------------------------------------- */

static int chunk_check(struct opening *o, const struct ckpt_piece *p, int64_t row,
    uint64_t raw, uint64_t *end)
{
    const struct ckpt_tensor *const t = &o->m->tensors[p->tensor];
    const struct ckpt_chunk *const c =
        (const struct ckpt_chunk *)o->part[INDEX_CHUNKS] + row;
    const uint64_t length = o->m->shards[p->shard].bytes;
    const uint32_t skipped = glm_dtype_size(t->dtype) >= 2 ? 3 : 1;
    if (c->offset < *end || c->offset > length || c->bytes == 0
        || c->bytes > length - c->offset)
        return glm_fail(o->err, GLM_EFORMAT,
            "%s: chunk table: row %" PRId64 " (tensor '%s'): %u"
            " bytes at %" PRIu64 " overlap the chunk before or leave %s (%" PRIu64
            " bytes)",
            o->path, row, t->name, c->bytes, c->offset, o->m->shards[p->shard].file,
            length);
    if ((c->mask != 0 && c->mask != skipped) || (c->mask != 0 && c->bytes != raw)
        || (c->mask == 0 && c->bytes >= raw))
        return glm_fail(o->err, GLM_EFORMAT,
            "%s: chunk table: row %" PRId64 " (tensor '%s'): filter"
            " mask %u with %u bytes for a chunk of %" PRIu64,
            o->path, row, t->name, c->mask, c->bytes, raw);
    *end = c->offset + c->bytes;
    return 0;
}

static int chunk_piece(struct opening *o, const struct ckpt_piece *p, uint64_t *end)
{
    const struct ckpt_tensor *const t = &o->m->tensors[p->tensor];
    const struct ckpt_chunk *const rows =
        (const struct ckpt_chunk *)o->part[INDEX_CHUNKS];
    int64_t dims[3], elements = 0;
    uint64_t raw = 0, sum = 0;
    shard_chunk_dims(o->m, p, dims);
    if (!checked_count(dims, 3, &elements)
        || !checked_mul_u64((uint64_t)elements, glm_dtype_size(t->dtype), &raw)
        || raw > UINT32_MAX)
        return glm_fail(o->err, GLM_EFORMAT, "%s: tensor '%s': a chunk of 4 GiB or more",
            o->path, t->name);
    for (int64_t i = 0; i < p->chunks; i++) {
        if (chunk_check(o, p, p->first_chunk + i, raw, end) != 0)
            return o->err->code;
        sum += rows[p->first_chunk + i].bytes;
    }
    if (sum != p->bytes)
        return glm_fail(o->err, GLM_EFORMAT,
            "%s: tensor '%s': its chunks in shard %s have %" PRIu64
            " bytes, the manifest says %" PRIu64,
            o->path, t->name, o->m->shards[p->shard].file, sum, p->bytes);
    return 0;
}

/* In a shard plain pieces come first, then chunks, both in the order of the manifest: one pass over
 * each finds overlaps. */
static int open_chunks(struct opening *o)
{
    static const enum ckpt_encoding order[] = {ENC_PLAIN, ENC_ZSTD};
    uint64_t *const end = calloc((size_t)o->m->shard_count + 1, sizeof *end);
    if (!end)
        return glm_fail(o->err, GLM_ENOMEM, "%s: out of memory", o->path);
    for (int k = 0; k < 2; k++)
        for (int64_t i = 0; i < o->m->piece_count && o->err->code == GLM_OK; i++) {
            const struct ckpt_piece *const p = &o->m->pieces[i];
            if (p->encoding != order[k])
                continue;
            if (p->encoding == ENC_ZSTD) {
                chunk_piece(o, p, &end[p->shard]);
                continue;
            }
            if (p->offset < end[p->shard])
                glm_fail(o->err, GLM_EFORMAT,
                    "%s: manifest: a piece of '%s' overlaps the one"
                    " before it",
                    o->path, o->m->tensors[p->tensor].name);
            end[p->shard] = p->offset + p->bytes;
        }
    free(end);
    return o->err->code;
}

/* ---- the folder ----------------------------------------------------------------------------- */

/* There is no index.h5: is this a checkpoint that was never finished, or none at all? */
static int open_absent(const char *dir, struct glm_error *err)
{
    bool shards = false;
    char newest[32] = ""; /* of a training run */
    DIR *const d = opendir(dir);
    if (!d)
        return glm_fail(err, GLM_EUSAGE, "%s: %s", dir,
            errno == ENOENT        ? "no such checkpoint"
                : errno == ENOTDIR ? "not a checkpoint, which is a folder with index.h5"
                                   : strerror(errno));
    for (const struct dirent *e; (e = readdir(d)) != NULL;) {
        shards |=
            strncmp(e->d_name, "shard-", 6) == 0 || strcmp(e->d_name, "journal") == 0;
        if (strncmp(e->d_name, "step-", 5) == 0 && strchr(e->d_name, '.') == NULL
            && strcmp(e->d_name, newest) > 0)
            snprintf(newest, sizeof newest, "%.31s", e->d_name);
    }
    closedir(d);
    if (shards)
        return glm_fail(err, GLM_EFORMAT,
            "%s: incomplete: it has shards but no index.h5; run the"
            " command that writes it again to finish it",
            dir);
    if (newest[0] != '\0')
        return glm_fail(err, GLM_EUSAGE,
            "%s: not a checkpoint but the folder of a run; its newest is %s/%s", dir, dir,
            newest);
    return glm_fail(err, GLM_EUSAGE, "%s: not a checkpoint: it has no index.h5", dir);
}

/* A journal lies in the folder only while somebody writes there: an index beside it is no mark of
 * completeness. */
static int open_unfinished(const char *dir, struct glm_error *err)
{
    char *name = NULL;
    struct stat st;
    if (asprintf(&name, "%s/journal", dir) < 0)
        return glm_fail(err, GLM_ENOMEM, "%s: out of memory", dir);
    if (lstat(name, &st) == 0)
        glm_fail(err, GLM_EFORMAT,
            "%s: incomplete: it still has a journal; run the command that"
            " writes it again to finish it",
            dir);
    free(name);
    return err->code;
}

static int open_file(struct opening *o, const char *dir)
{
    struct stat st;
    /* A pipe would hold up a blocking open, and be refused below. */
    o->fd = open(o->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (o->fd < 0 && (errno == ENOENT || errno == ENOTDIR))
        return open_absent(dir, o->err);
    if (o->fd < 0 || fstat(o->fd, &st) != 0)
        return glm_fail_errno(o->err, "%s: open", o->path);
    if (!S_ISREG(st.st_mode))
        return glm_fail(o->err, GLM_EFORMAT, "%s: not a regular file", o->path);
    o->length = (uint64_t)st.st_size;
    return open_unfinished(dir, o->err);
}

static int open_all(struct opening *o, const char *dir)
{
    if (open_file(o, dir) != 0 || open_bytes(o) != 0 || open_table(o) != 0
        || open_manifest(o) != 0 || open_chunks(o) != 0)
        return o->err->code;
    if (manifest_check(o->m, o->part[INDEX_TILES], o->err) != 0)
        glm_within(o->err, "%s", o->path);
    return o->err->code;
}

int index_open(struct index **out, const char *ckpt_dir, struct glm_error *err)
{
    struct opening o = {.fd = -1, .err = err};
    struct index *ix = NULL;
    char *path = NULL;
    *out = NULL;
    ix = calloc(1, sizeof *ix);
    if (!ix || asprintf(&path, "%s/index.h5", ckpt_dir) < 0) {
        path = NULL;
        glm_fail(err, GLM_ENOMEM, "%s: out of memory", ckpt_dir);
        goto out;
    }
    o.path = path;
    if (open_all(&o, ckpt_dir) != 0)
        goto out;
    *ix = (struct index){.table = o.table,
        .manifest = o.m,
        .tiles = o.part[INDEX_TILES],
        .chunks = (struct ckpt_chunk *)o.part[INDEX_CHUNKS],
        .path = path};
    o.table = NULL;
    o.m = NULL;
    o.part[INDEX_TILES] = o.part[INDEX_CHUNKS] = NULL;
    path = NULL;
    *out = ix;
    ix = NULL;
out:
    if (o.fd >= 0)
        close(o.fd);
    manifest_free(o.m);
    table_free(o.table);
    for (int i = 0; i < INDEX_PARTS; i++)
        free(o.part[i]);
    free(path);
    free(ix);
    return err->code;
}

void index_close(struct index *ix)
{
    if (!ix)
        return;
    manifest_free(ix->manifest);
    table_free(ix->table);
    free(ix->tiles);
    free(ix->chunks);
    free(ix->path);
    free(ix);
}

/* ---- side files ----------------------------------------------------------------------------- */

const struct ckpt_file *index_find_file(
    const struct index *ix, const char *path, bool header)
{
    const struct manifest *const m = ix->manifest;
    for (int64_t i = 0; i < m->file_count; i++)
        if (m->files[i].header == header && strcmp(m->files[i].path, path) == 0)
            return &m->files[i];
    return NULL;
}

int index_file(
    const struct index *ix, const struct ckpt_file *f, void **data, struct glm_error *err)
{
    unsigned char sha[DIGEST_SIZE];
    char *bytes = NULL;
    const int fd = open(ix->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    *data = NULL;
    if (fd < 0) {
        glm_fail_errno(err, "%s: open", ix->path);
        goto out;
    }
    bytes = malloc((size_t)f->bytes + 1);
    if (!bytes) {
        glm_fail(
            err, GLM_ENOMEM, "%s: out of memory for side file %s", ix->path, f->path);
        goto out;
    }
    if (index_read(fd, ix->path, bytes, f->bytes, f->offset, err) != 0)
        goto out;
    digest_of(bytes, (size_t)f->bytes, sha);
    if (memcmp(sha, f->sha256, DIGEST_SIZE) != 0) {
        glm_fail(err, GLM_EFORMAT,
            "%s: side file %s is damaged: its bytes have another SHA-256", ix->path,
            f->path);
        goto out;
    }
    bytes[f->bytes] = '\0';
    *data = bytes;
    bytes = NULL;
out:
    if (fd >= 0)
        close(fd);
    free(bytes);
    return err->code;
}
