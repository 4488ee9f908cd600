/* From tensors and a topology to pieces and shard files (spec/format.md D). Pure. */
#ifndef CKPT_VOLUMES_H
#define CKPT_VOLUMES_H

#include "ckpt/manifest.h"

struct volumes_options {
    uint64_t shard_size; /* bytes a volume may hold before the next begins; 0: 4 GiB */
    enum ckpt_encoding encoding;
};

/* Fills m->pieces, m->shards, first_tile, first_piece, first_chunk, tile_count, chunk_count from
 * m->tensors (table order inside a section, sections in order) and takes over placement. */
int volumes_plan(struct manifest *m, struct placement *placement, const struct volumes_options *o,
    struct glm_error *err);

#endif
