/* From tensors and a topology to pieces and shard files (spec/format.md D). Pure. */
#ifndef CKPT_VOLUMES_H
#define CKPT_VOLUMES_H

#include "ckpt/manifest.h"

struct volumes_options {
    uint64_t shard_size; /* bytes a volume may hold before the next begins; 0: 4 GiB */
    enum ckpt_encoding encoding;
};

/* Volumes are filled by element bytes, encoded or not: paddings and frames do not count, so that
 * they depend on table, topology, encoding and size only.
 *
 * Fills m->pieces, m->shards, first_tile, first_piece, first_chunk, tile_count, chunk_count from
 * m->tensors (table order inside a section, sections in order) and takes over placement, also on
 * failure (m->placement; manifest_free frees it). Pieces of an older plan are replaced. */
int volumes_plan(struct manifest *m, struct placement *placement,
    const struct volumes_options *o, struct glm_error *err);

#endif
