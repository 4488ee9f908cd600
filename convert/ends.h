/* Sources and sinks of the flow: Hugging Face directories and checkpoints at either end. */
#ifndef CONVERT_ENDS_H
#define CONVERT_ENDS_H

#include "convert/flow.h"
#include "convert/hfdir.h"

/* ---- sources ---- */

struct hf_reader; /* a Hugging Face directory as a flow source */
/* s stays the caller's and must outlive it. */
int hf_reader_open(
    struct hf_reader **out, const struct hf_source *s, struct glm_error *err);
void hf_reader_close(struct hf_reader *r);
struct flow_source hf_reader_source(struct hf_reader *r);
void hf_reader_drop(
    struct hf_reader *r, int64_t file); /* closes a file that is done with */
const struct hf_source *hf_reader_model(const struct hf_reader *r);
/* The bytes of a file that hold rows of one member, whole width. False: they hold other rows
 * between (a cut router), and hf_reader_pick takes those that are kept out of them. */
bool hf_reader_extent(const struct hf_reader *r, int64_t tensor, const struct rect *at,
    int32_t *file, uint64_t *begin, uint64_t *end);
void hf_reader_pick(const struct hf_reader *r, int64_t tensor, const struct rect *at,
    const unsigned char *span, unsigned char *out);

struct ckpt_source {
    struct reader *reader;
    bool verify;
};
/* *c must outlive the source. */
struct flow_source ckpt_flow_source(struct ckpt_source *c);

/* ---- sinks ---- */

struct flow_sink ckpt_flow_sink(
    struct writer *w); /* whole_width if any piece is packed */

struct hf_writer; /* a Hugging Face directory being written */
struct hf_writer_options {
    const struct manifest *m;    /* what is exported; section weight only */
    const struct index *headers; /* same_files: stored source headers; else NULL */
    const char *index_name;      /* same_files: side file that is the index, or NULL */
    uint64_t max_shard_size;
    int64_t source_files;            /* that are open at the same time */
    const struct work_options *work; /* NULL: lay the files out, write nothing */
};
int hf_writer_open(struct hf_writer **out, const struct hf_writer_options *o,
    bool *resumed, struct glm_error *err);
struct flow_sink hf_writer_sink(struct hf_writer *w);
int64_t hf_writer_files(const struct hf_writer *w);
int64_t hf_writer_tensors(const struct hf_writer *w);
uint64_t hf_writer_bytes(const struct hf_writer *w); /* of all tensors */
/* Writes one side file, and the sub-folders that its name asks for. */
int hf_writer_side(struct hf_writer *w, const char *name, const void *data, size_t size,
    struct glm_error *err);
int hf_writer_commit(struct hf_writer *w, struct glm_error *err); /* frees w on success */
void hf_writer_close(struct hf_writer *w);

#endif
