/* Writing a checkpoint: tiles in any order from many threads, resumable, one commit. */
#ifndef CKPT_WRITER_H
#define CKPT_WRITER_H

#include "ckpt/manifest.h"
#include "ckpt/work.h"

struct writer;
struct writer_scratch;

/* Takes over m, which volumes_plan has filled. */
int writer_open(struct writer **out, struct manifest *m, const struct work_options *o,
    bool *resumed, struct glm_error *err);
const struct manifest *writer_manifest(const struct writer *w);

struct writer_scratch *writer_scratch_new(void);
void writer_scratch_free(struct writer_scratch *s);

/* Whether all tiles of a tile-aligned rectangle are durable already. */
bool writer_has(const struct writer *w, int64_t tensor, const struct rect *at);

/* Stores a tile-aligned rectangle (row-major, pitch = its width). digests: per tile row-major, if
 * already known (a verified read), else NULL and they are computed here, in one pass.
 * ticket: zstd writes happen in ascending ticket order, so each ticket from writer_open's 0 upward
 * must be used exactly once, by writer_put, writer_frames or writer_skip. */
int writer_put(struct writer *w, int64_t tensor, const struct rect *at, const void *data,
    const unsigned char *digests, struct writer_scratch *s, struct glm_error *err);
/* A derived weight: records digests only. */
int writer_note(struct writer *w, int64_t tensor, const struct rect *at,
    const unsigned char *digests, struct glm_error *err);

/* Everything written? Seals, writes index.h5, commits. Frees w on success. */
int writer_commit(struct writer *w, struct glm_error *err);
/* Makes what is done durable (unless err holds a failure of the disk) and leaves the partial. */
void writer_close(struct writer *w);

#endif
