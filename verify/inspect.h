/* What is inside a checkpoint: figures, names, places, values, a picture. Answers are data. */
#ifndef VERIFY_INSPECT_H
#define VERIFY_INSPECT_H

#include <stdio.h>

#include "ckpt/ckpt.h"
#include "kernels/base/events.h"

struct inspect; /* an open checkpoint or Hugging Face directory */

/* with_data: tensors are going to be read, so every shard must be there. */
int inspect_open(struct inspect **out, const char *path, bool with_data, int threads,
    struct glm_error *err);
void inspect_close(struct inspect *in);
bool inspect_is_hf(const struct inspect *in);
/* NULL for a Hugging Face directory. Both live as long as `in`. */
const struct manifest *inspect_manifest(const struct inspect *in);
const struct table *inspect_table(const struct inspect *in);

/* ---- summary.c ---- */

struct inspect_sum {
    int64_t tensors; /* as Hugging Face counts them: members apart */
    int64_t elements;
    /* bytes of elements; bytes in the files (equal when uncompressed) */
    uint64_t raw, stored;
};

struct inspect_summary {
    struct inspect_sum all; /* every section, scales included */
    struct inspect_sum section[SECTION_COUNT];
    struct inspect_sum weights, mtp; /* parameters: no scales; mtp: those of MTP layers */
    struct inspect_sum scales;
    struct inspect_sum dtype[GLM_DTYPE_COUNT]; /* weight section, scales included */
    struct inspect_sum kind[KIND_COUNT];       /* every section, scales included */
    int64_t derived; /* weights that are not stored beside a master */
    int64_t shards, cells, packed_pieces, plain_pieces;
    uint64_t shard_bytes, index_bytes;
};
int inspect_summary(
    const struct inspect *in, struct inspect_summary *out, struct glm_error *err);

/* ---- tree.c ---- */

struct inspect_node {
    int depth;
    char label[192];  /* "layers", "3", "experts.[0-255]", "gate_proj.weight" */
    const char *note; /* "MTP"; NULL */
    bool leaf;
    int64_t count;        /* leaf: members of this shape; else tensors below */
    enum glm_dtype dtype; /* leaf */
    int rank;
    int64_t shape[4]; /* of one member */
    uint64_t bytes;   /* of elements, all members */
    bool derived;
};
/* In print order. *out is malloc'd. */
int inspect_tree(const struct inspect *in, struct inspect_node **out, int64_t *count,
    struct glm_error *err);

/* ---- map.c: cells x columns ---- */

struct inspect_column {
    char label[24];    /* "embed", "0", ..., "78 MTP", "head" */
    int layer;         /* -1: first, -2: last */
    bool mtp, indexer; /* indexer: the layer computes its own index set */
    int stage;         /* virtual stage that holds it */
};

struct inspect_map {
    int64_t cells, columns;
    struct inspect_column *column;
    uint64_t *bytes; /* [cells][columns][KIND_COUNT] stored bytes */
    uint64_t *cell_bytes, *column_bytes;
    int64_t *cell_shards; /* files of each cell */
    uint64_t total;
};
int inspect_map(const struct inspect *in, struct inspect_map *out, struct glm_error *err);
void inspect_map_clear(struct inspect_map *m);
static inline const uint64_t *inspect_map_at(
    const struct inspect_map *m, int64_t cell, int64_t column)
{
    return m->bytes + (cell * m->columns + column) * KIND_COUNT;
}
static inline uint64_t inspect_map_sum(
    const struct inspect_map *m, int64_t cell, int64_t column)
{
    const uint64_t *p = inspect_map_at(m, cell, column);
    uint64_t n = 0;
    for (int k = 0; k < KIND_COUNT; k++)
        n += p[k];
    return n;
}

/* ---- picture.c ---- */

/* The map as an SVG: layers as columns, cells as rows, coloured by kind, with bytes. */
int inspect_picture(const struct inspect *in, FILE *out, struct glm_error *err);

/* ---- tensor.c, stats.c ---- */

struct inspect_piece {
    const char *file; /* shard, or safetensors file; borrowed */
    enum ckpt_encoding encoding;
    uint64_t offset, bytes; /* zstd: offset of the first frame, bytes of all */
    int64_t chunks;
    int rank;
    int64_t lo[4], hi[4];
};

struct inspect_tensor {
    int64_t row, member; /* member: expert number, -1: the whole tensor */
    char name[192];      /* Hugging Face's name of a member, else the logical one */
    enum ckpt_section section;
    enum glm_dtype dtype;
    bool stack; /* a whole stack: shape is [E, out, in] */
    int rank;
    int64_t shape[4];
    int64_t elements, tiles;
    bool derived, quantised; /* quantised: numbers are codes times scales */
    char scale_name[192], scale_rule[24];
    bool has_fingerprint;
    unsigned char fingerprint[32]; /* of the member, or of the whole */
    struct inspect_piece *pieces;
    int64_t piece_count;
};

/* name: logical or Hugging Face; section: NULL for "weight". GLM_EUSAGE names the nearest known. */
int inspect_find(const struct inspect *in, const char *section, const char *name,
    struct inspect_tensor *out, struct glm_error *err);
void inspect_tensor_clear(struct inspect_tensor *t);

enum { INSPECT_BINS = 40 };

struct inspect_stats {
    int64_t count, zeros, nan, inf, distinct; /* distinct: -1 unknown; of bit patterns */
    double min, max, mean, std, absmax; /* of finite elements; NAN if there is none */
    double lo, hi;                      /* of the histogram */
    int64_t bins[INSPECT_BINS];
};
int inspect_stats(struct inspect *in, const struct inspect_tensor *t, int threads,
    struct inspect_stats *out, const struct glm_events *events, struct glm_error *err);

enum { INSPECT_SLICE_MAX = 1 << 20 };

struct inspect_slice {
    int rank;
    int64_t lo[4], hi[4];
    double *values; /* row-major; owned */
    int64_t count;
};
/* spec: "a:b,c:d" in the tensor's axes; "5" is one index, "" or ":" everything, negative numbers count
 * from the end; axes left out are whole. */
int inspect_slice(struct inspect *in, const struct inspect_tensor *t, const char *spec,
    struct inspect_slice *out, struct glm_error *err);
void inspect_slice_clear(struct inspect_slice *s);

#endif
