/* What a checkpoint holds: tensors, pieces, shards, side files, provenance. The truth of index.h5.
 *
 * The same struct is a *plan* (volumes_plan: names, rectangles, no offsets or digests) and, once
 * written or read, the record of what is there. Text form: spec/format.md F. */
#ifndef CKPT_MANIFEST_H
#define CKPT_MANIFEST_H

#include "ckpt/topology.h"

enum ckpt_section {
    SECTION_WEIGHT,
    SECTION_MASTER,
    SECTION_M,
    SECTION_V,
    SECTION_MOMENTUM,
    SECTION_TRAIN,
    SECTION_COUNT
};
const char *section_name(enum ckpt_section s); /* "weight", "master", "opt/m", ... */
bool section_find(const char *name, size_t length, enum ckpt_section *out);

enum ckpt_encoding { ENC_PLAIN, ENC_ZSTD };

struct ckpt_tensor {
    char *name; /* logical name; owned */
    enum ckpt_section section;
    enum glm_dtype dtype;
    int rank;
    int64_t shape[4];
    bool stack;
    /* its row; a scale's: the weight's row; NULL in "train" */
    const struct table_entry *entry;
    int64_t block[2];    /* a scale's element stands for block[0] x block[1] elements;
                                       1,1 for everything else */
    int64_t scale;       /* index of the tensor holding its scales, or -1 */
    char scale_rule[24]; /* "" | te_round_up | ocp_floor | amax | pow2 */
    bool derived;        /* equals its master rounded to nearest even; not stored */
    struct tile_grid grid;
    int64_t first_tile;          /* row of /tiles of its tile 0 */
    int64_t first_piece, pieces; /* its range in pieces[]; 0 pieces if derived */
    unsigned char fingerprint[32];
};

struct ckpt_piece {
    int64_t tensor;
    int64_t shard;
    struct rect at; /* elements, matrix form; whole tiles */
    enum ckpt_encoding encoding;
    uint64_t offset; /* plain: of its first byte in the shard file */
    uint64_t bytes;  /* plain: element bytes; zstd: sum of stored frames */
    /* zstd: rows of /chunks; one per tile, piece's tile order */
    int64_t first_chunk, chunks;
};

struct ckpt_shard {
    char file[64];  /* "shard-p000-t000-0000.h5" */
    int cell;       /* placement_cell index */
    uint64_t bytes; /* file length */
    unsigned char skeleton[32];
    int64_t first_tensor_hint; /* private to the writer */
};

struct ckpt_chunk { /* a row of /chunks; 48 bytes, little-endian, in the file */
    uint64_t offset;
    uint32_t bytes, mask; /* mask: HDF5 filter mask; 0 compressed, 3 (or 1) stored raw */
    unsigned char sha256[32]; /* of the stored bytes */
};

struct ckpt_file { /* side file, or a source file's safetensors header */
    char *path;
    bool header;            /* /source/<file>: header bytes; else /files/<path> */
    uint64_t bytes, offset; /* where its bytes lie in index.h5 */
    unsigned char sha256[32];
    const void *data; /* while writing: the bytes (caller's); NULL when read */
};

struct ckpt_prov {
    char *key, *value;
};

struct manifest {
    const struct table *table;   /* borrowed */
    struct placement *placement; /* owned */
    bool without_mtp; /* the model line says "mtp no": imported without the MTP layers */
    struct ckpt_tensor *tensors;
    int64_t tensor_count;
    struct ckpt_piece *pieces;
    int64_t piece_count; /* by tensor, then offset of rect */
    struct ckpt_shard *shards;
    int64_t shard_count;
    struct ckpt_file *files;
    int64_t file_count;
    struct ckpt_prov *prov;
    int64_t prov_count;
    int64_t tile_count, chunk_count;
    unsigned char section_digest[SECTION_COUNT][32];
    bool section_present[SECTION_COUNT];
    unsigned char fingerprint[32];
    unsigned char id[32]; /* SHA-256 of the manifest's bytes; when read or written */
    int64_t *lookup;      /* private to manifest_find: tensors by section and name */
};

struct manifest *manifest_new(const struct table *t);
void manifest_free(struct manifest *m);
/* Appends; returns the new tensor or NULL (no memory), good until the next one is added. Fills grid
 * from shape, entry and stack; block is 1,1 and scale -1. At most rank 4. */
struct ckpt_tensor *manifest_add_tensor(struct manifest *m, const char *name,
    enum ckpt_section section, enum glm_dtype dtype, const int64_t *shape, int rank,
    bool stack, const struct table_entry *entry);
struct ckpt_file *manifest_add_file(
    struct manifest *m, const char *path, bool header, const void *data, uint64_t bytes);
int manifest_add_prov(struct manifest *m, const char *key, const char *value);
/* Index of a logical tensor in a section, -1 if none. manifest_index builds the sorted look-up;
 * without it (or after another tensor was added) manifest_find walks through all tensors. Finding
 * changes nothing, so threads may share an indexed manifest. */
int manifest_index(struct manifest *m, struct glm_error *err);
int64_t manifest_find(const struct manifest *m, enum ckpt_section s, const char *name);

/* Computes tensor fingerprints from tile digests (tiles: 32 bytes a row, tile_count rows), then
 * section digests and the checkpoint fingerprint (spec/format.md C). A derived tensor's tiles are
 * in /tiles too. */
int manifest_seal(struct manifest *m, const unsigned char *tiles, struct glm_error *err);

/* The same, compared with what m records instead of stored: GLM_EFORMAT names the tensor, section or
 * checkpoint whose fingerprint the tile digests do not give. */
int manifest_check(
    const struct manifest *m, const unsigned char *tiles, struct glm_error *err);

/* Whether there are sections besides the weights: masters, optimizer state, counters. */
bool manifest_trained(const struct manifest *m);

/* The fingerprint that a checkpoint of the weights alone would have. */
void manifest_weights_fingerprint(const struct manifest *m, unsigned char out[32]);

/* Whether a side file's path stays inside the folder it is written to: relative, no empty, "." or
 * ".." component, no backslash, colon or control character, at most 1,000 bytes. */
bool manifest_path_ok(const char *path, size_t length);

/* The text, canonical (malloc'd, *size bytes). Needs offsets and digests filled in. */
int manifest_print(
    const struct manifest *m, char **text, size_t *size, struct glm_error *err);
/* Parses and checks everything that can be checked without the tables and the shards: order,
 * canonical numbers, names, shapes, that pieces are whole tiles of their cell, cover each stored
 * tensor exactly once, lie inside their files and do not overlap. The table is needed to tie rows to names; config.json's
 * digest must equal the model line. path is for sentences. */
int manifest_parse(struct manifest **out, const struct table *t, const char *path,
    const char *text, size_t size, struct glm_error *err);

#endif
