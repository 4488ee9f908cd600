/* index.h5: user block, manifest, tile and chunk tables, side files, virtual views. */
#ifndef CKPT_INDEX_H
#define CKPT_INDEX_H

#include "ckpt/manifest.h"

/* Writes path (which must not exist): seals nothing, m must be complete (manifest_seal done, shards'
 * digests filled). Fills file offsets and m->id. fsyncs the file, not the folder. */
int index_write(struct manifest *m, const unsigned char *tiles,
    const struct ckpt_chunk *chunks, const char *path, struct glm_error *err);

struct index {
    struct table *table;
    struct manifest *manifest; /* manifest->files[].data is NULL; read with index_file */
    unsigned char *tiles;      /* [tile_count][32] */
    struct ckpt_chunk *chunks; /* [chunk_count] */
    char *path;                /* of index.h5 */
};

/* Opens CKPT/index.h5 with plain reads (never libhdf5): checks the user block, the SHA-256 of the
 * rest, the manifest and that tile digests give the recorded fingerprints. GLM_EFORMAT names the
 * part: "user block", "manifest", "tile table", "chunk table", "side file X", "HDF5 structures".
 * A folder without index.h5 is not a checkpoint: GLM_EUSAGE if the folder holds nothing of ours,
 * GLM_EFORMAT "incomplete" if shards are there. */
int index_open(struct index **out, const char *ckpt_dir, struct glm_error *err);
void index_close(struct index *ix);
/* Reads a side file's bytes (malloc'd, zero-terminated for convenience) and checks its digest. */
int index_file(const struct index *ix, const struct ckpt_file *f, void **data,
    struct glm_error *err);
const struct ckpt_file *index_find_file(
    const struct index *ix, const char *path, bool header);

#endif
