/* fuzzcorpus DIR: seeds for fuzz_manifest (DIR/manifest/) and fuzz_index (DIR/index/) of the model
 * fixtures/configs/mini.json. An index seed has no HDF5 in it: the opener never looks at that. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "ckpt/digest.h"
#include "ckpt/index_block.h"
#include "tests/support/smallckpt.h"
#include "tests/support/tmpdir.h"

static const struct {
    const char *name;
    struct smallckpt_options o;
} seeds[] = {
    {"plain", {.config = "mini"}},
    {"zstd-ep2",
        {.config = "mini",
            .topo = {.ep = 2},
            .volumes = {.encoding = ENC_ZSTD, .shard_size = 30000}}},
    {"mxfp8-pp2", {.config = "mini", .form = SMALL_MXFP8, .topo = {.pp = 2}}},
    {"fp8-zstd", {.config = "mini", .form = SMALL_FP8, .volumes.encoding = ENC_ZSTD}},
    {"training", {.config = "mini", .training = true, .topo = {.etp = 2, .ep = 2}}},
};

static void put(
    const char *dir, const char *kind, const char *name, const void *data, size_t size)
{
    tmpdir_write(tmpdir_path(dir, "%s/%s", kind, name), data, size);
}

/* One file and what becomes of it: flag byte, bit flipped at `at` (0: none). */
static void put_flipped(const char *dir, const char *name, const char *what,
    unsigned char *out, size_t size, char flag, size_t at)
{
    char file[128];
    snprintf(file, sizeof file, "%s-%s", name, what);
    out[0] = (unsigned char)flag;
    if (at > 0)
        out[1 + at] ^= 0x80;
    put(dir, "index", file, out, size);
    if (at > 0)
        out[1 + at] ^= 0x80;
}

/* Damage in each part, and rows of the chunk table that lie under right digests. */
static void put_damaged(const char *dir, const char *name, unsigned char *out,
    size_t size, const struct index_block *b)
{
    const size_t row = b->part[INDEX_CHUNKS].offset + 48;
    put_flipped(dir, name, "user-block", out, size, '0', 9);
    put_flipped(dir, name, "zeros", out, size, '0', INDEX_BLOCK - 1);
    put_flipped(dir, name, "hdf5", out, size, '0', INDEX_BLOCK);
    put_flipped(dir, name, "config", out, size, '0', INDEX_BLOCK + 32);
    put_flipped(dir, name, "config-resealed", out, size, '1', INDEX_BLOCK + 32);
    put_flipped(dir, name, "manifest", out, size, '0', b->part[INDEX_MANIFEST].offset);
    put_flipped(dir, name, "tiles", out, size, '0', b->part[INDEX_TILES].offset);
    put_flipped(dir, name, "tiles-resealed", out, size, '1', b->part[INDEX_TILES].offset);
    put_flipped(dir, name, "cut", out, size - 1, '0', 0);
    put_flipped(dir, name, "short", out, 100, '0', 0);
    put_flipped(dir, name, "journal", out, size, '2', 0);
    put_flipped(dir, name, "absent", out, 100, '4', 0);
    put_flipped(dir, name, "absent-with-shard", out, 100, '<', 0);
    put_flipped(dir, name, "no-folder", out, 100, '8', 0);
    if (b->part[INDEX_CHUNKS].bytes == 0)
        return;
    put_flipped(dir, name, "chunks", out, size, '0', row);
    put_flipped(dir, name, "chunk-offset", out, size, '1', row + 7);
    put_flipped(dir, name, "chunk-bytes", out, size, '1', row + 8);
    put_flipped(dir, name, "chunk-mask", out, size, '1', row + 12);
}

/* What a seed claims that cannot be. */
enum twist {
    TWIST_NONE,
    TWIST_CONFIG_OUTSIDE,
    TWIST_FILE_OUTSIDE,
    TWIST_TILES,
    TWIST_CHUNKS,
    TWIST_SUM,
    TWIST_COUNT
};
static const char *const twists[TWIST_COUNT] = {
    "", "config-outside", "file-outside", "tiles-short", "chunks-short", "sum"};

static void twist_manifest(struct manifest *m, enum twist twist)
{
    if (twist == TWIST_CONFIG_OUTSIDE)
        m->files[0].offset = 1 << 30;
    if (twist == TWIST_FILE_OUTSIDE)
        manifest_add_file(m, "zz", false, "", 1 << 20);
    for (int64_t i = m->piece_count - 1; twist == TWIST_SUM && i >= 0; i--)
        if (m->pieces[i].encoding == ENC_ZSTD) {
            m->pieces[i].bytes--;
            break;
        }
}

/* flag, user block, 8 bytes in HDF5's place, config.json, manifest, tiles, chunks */
static void put_index(const char *dir, const char *name, struct smallckpt *s,
    bool damaged, enum twist twist, struct glm_error *err)
{
    struct index_block b = {0};
    const size_t config = strlen(s->config_text);
    char *text = NULL;
    size_t n = 0;
    for (int64_t i = 0; i < s->m->file_count; i++) { /* config.json alone */
        struct ckpt_file *const f = &s->m->files[i];
        if (i > 0) {
            free(f->path);
            f->path = NULL;
        }
        f->offset = INDEX_BLOCK + 8;
    }
    s->m->file_count = 1;
    twist_manifest(s->m, twist);
    if (manifest_print(s->m, &text, &n, err) != 0)
        return;
    const size_t tiles = (size_t)s->m->tile_count * 32,
                 chunks = (size_t)s->m->chunk_count * 48;
    unsigned char *const out =
        calloc(1, 1 + INDEX_BLOCK + 8 + config + n + tiles + chunks);
    size_t at = INDEX_BLOCK + 8;
    const void *const parts[] = {text, s->tiles, s->chunks};
    const size_t sizes[] = {n, tiles - (twist == TWIST_TILES ? 32 : 0),
        chunks - (twist == TWIST_CHUNKS ? 48 : 0)};
    out[0] = '1';
    memcpy(out + 1 + at, s->config_text, config);
    at += config;
    for (int i = 0; i < INDEX_PARTS; i++) {
        b.part[i].offset = sizes[i] > 0 ? at : 0;
        b.part[i].bytes = sizes[i];
        digest_of(parts[i], sizes[i], b.part[i].sha256);
        memcpy(out + 1 + at, parts[i], sizes[i]);
        at += sizes[i];
    }
    b.size = at;
    digest_of(out + 1 + INDEX_BLOCK, at - INDEX_BLOCK, b.sha256);
    index_block_print(&b, out + 1);
    put(dir, "index", name, out, at + 1);
    if (twist == TWIST_FILE_OUTSIDE)
        put_flipped(dir, name, "hdf5", out, at + 1, '0', INDEX_BLOCK);
    if (damaged)
        put_damaged(dir, name, out, at + 1, &b);
    free(out);
    free(text);
}

int main(int argc, char **argv)
{
    struct glm_error err = {0};
    if (argc != 2)
        return 2;
    mkdir(tmpdir_path(argv[1], "manifest"), 0777);
    mkdir(tmpdir_path(argv[1], "index"), 0777);
    for (size_t i = 0; i < sizeof seeds / sizeof seeds[0] && err.code == GLM_OK; i++) {
        char *const work = tmpdir_new(), *text = NULL;
        struct smallckpt s;
        size_t n = 0;
        if (smallckpt_shards(&s, work, &seeds[i].o, &err) == 0) {
            for (int64_t k = 0; k < s.m->file_count; k++)
                digest_of(s.m->files[k].data, s.m->files[k].bytes, s.m->files[k].sha256);
            if (manifest_print(s.m, &text, &n, &err) == 0)
                put(argv[1], "manifest", seeds[i].name, text, n);
            put_index(argv[1], seeds[i].name, &s, i == 1, TWIST_NONE, &err);
            for (int k = 1; k < TWIST_COUNT && i == 1; k++) {
                smallckpt_clear(&s);
                if (smallckpt_shards(&s, work, &seeds[i].o, &err) == 0) {
                    digest_of(s.config_text, strlen(s.config_text), s.m->files[0].sha256);
                    put_index(argv[1], twists[k], &s, false, (enum twist)k, &err);
                }
            }
        }
        free(text);
        smallckpt_clear(&s);
        tmpdir_remove(work);
    }
    if (err.code != GLM_OK)
        fprintf(stderr, "fuzzcorpus: %s\n", err.text);
    return glm_exit_status(&err);
}
