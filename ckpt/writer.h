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
/* Before writer_open, with the same options (seal set in both): completes a commit that was cut off.
 * *finished: the checkpoint is there, its fingerprint and id in the two buffers. */
int writer_finish(const struct work_options *o, unsigned char *fingerprint,
    unsigned char *id, bool *finished, struct glm_error *err);

struct writer_scratch *writer_scratch_new(void);
void writer_scratch_free(struct writer_scratch *s);

/* Whether all tiles of a tile-aligned rectangle are durable already. */
bool writer_has(const struct writer *w, int64_t tensor, const struct rect *at);

/* Stores a tile-aligned rectangle (row-major, pitch = its width). digests: per tile row-major, if
 * already known (a verified read), else NULL and they are computed here, in one pass.
 *
 * Packed pieces are stored in manifest order whatever the thread: a call waits until everything
 * before it in its shards is stored. So rectangles must be as wide as the tensor, and must be
 * handed out in ascending order of (pipeline cell, section, tensor, rows) to threads that never
 * hold one back; writer_fail wakes those who wait for one that will never come. */
int writer_put(struct writer *w, int64_t tensor, const struct rect *at, const void *data,
    const unsigned char *digests, struct writer_scratch *s, struct glm_error *err);

struct
    writer_frame { /* a stored chunk as it is in another checkpoint, its digest checked */
    const void *data;
    size_t size;
    uint32_t mask;
};
/* The same with frames (one per tile of the rectangle, row-major) instead of elements; chunk shapes
 * must be equal on both sides (writer_chunk_dims). */
int writer_put_frames(struct writer *w, int64_t tensor, const struct rect *at,
    const struct writer_frame *frames, const unsigned char *digests,
    struct glm_error *err);
/* Chunk shape of the packed piece that stores a tile; false if that piece is plain. */
bool writer_chunk_dims(const struct writer *w, int64_t tensor, const struct rect *tile,
    int64_t dims[RECT_AXES]);
void writer_fail(struct writer *w);

/* A derived weight: records digests only. */
int writer_note(struct writer *w, int64_t tensor, const struct rect *at,
    const unsigned char *digests, struct glm_error *err);

/* For a source that must go on where it was (a download): the folder of the unfinished work; a line
 * in its journal, durable on return; all such lines of earlier runs, in order, ours among them. */
const char *writer_folder(const struct writer *w);
int writer_journal(struct writer *w, const char *line, struct glm_error *err);
int writer_recall(struct writer *w,
    int (*fn)(void *ctx, char *line, struct glm_error *err), void *ctx,
    struct glm_error *err);
/* All that was put before the call is durable after it; of packed shards, those that are whole. */
int writer_settle(struct writer *w, struct glm_error *err);
/* Whether a rectangle that was put would survive a kill, after writer_settle: of packed shards only
 * what lies in whole ones. */
bool writer_durable(struct writer *w, int64_t tensor, const struct rect *at);
/* What was put there turned out wrong: it counts as never written, for later runs too. Plain
 * pieces only, and after writer_settle. */
int writer_forget(
    struct writer *w, int64_t tensor, const struct rect *at, struct glm_error *err);

/* Where writer_commit leaves the checkpoint's fingerprint and id (32 bytes each). */
void writer_report_to(struct writer *w, unsigned char *fingerprint, unsigned char *id);
/* Everything written? Seals, writes index.h5, commits. Frees w on success. */
int writer_commit(struct writer *w, struct glm_error *err);
/* Makes what is done durable (unless err holds a failure of the disk) and leaves the partial. */
void writer_close(struct writer *w);

#endif
