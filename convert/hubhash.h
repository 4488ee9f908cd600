/* The bytes of a job go into two digests, that of the file and those of its tiles, in one walk. */
#ifndef CONVERT_HUBHASH_H
#define CONVERT_HUBHASH_H

#include "ckpt/ckpt.h"
#include "convert/hubsum.h"

/* data: rows of one member, whole width, whole tiles. digests: one per tile, row-major. The result
 * is that of hubsum_update and reader_hash_tiles, whatever the processor. False: no memory. */
bool hubhash(struct hubsum *file, const struct tile_grid *g, const struct rect *at,
    size_t element, const unsigned char *data, unsigned char *digests);

/* For tests: as on a processor without instructions for SHA-256. */
bool hubhash_plain(struct hubsum *file, const struct tile_grid *g, const struct rect *at,
    size_t element, const unsigned char *data, unsigned char *digests);

#endif
