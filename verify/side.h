/* One side of a comparison, or the subject of an inspection: a checkpoint at any topology or a
 * Hugging Face directory, seen as the same list of logical tensors. */
#ifndef VERIFY_SIDE_H
#define VERIFY_SIDE_H

#include "convert/convert.h"

struct side_row {
    char name[192]; /* logical */
    enum ckpt_section section;
    enum glm_dtype dtype;
    int rank;
    int64_t shape[4];
    bool stack;
    const struct table_entry *entry; /* NULL in "train" */
    bool is_scale;
    int64_t scale; /* row of the scales that its elements are to be multiplied by; -1 */
    int64_t block[2]; /* what an element of that scale stands for */
    struct tile_grid grid;
    int64_t tensor;                   /* in the checkpoint's manifest; -1: Hugging Face */
    const unsigned char *tiles;       /* recorded digests; NULL: Hugging Face */
    const unsigned char *fingerprint; /* NULL: Hugging Face */
};

struct side {
    char *path;
    bool hf;
    struct index *own_index; /* opened without data */
    struct reader *reader;   /* NULL: opened without data */
    struct hf_source *source;
    const struct index *index; /* NULL: Hugging Face */
    const struct manifest *m;
    const struct table *table;
    struct side_row *rows;
    int64_t count;
    int64_t *by_name; /* private */
};

/* Opens a checkpoint folder (it holds index.h5) or a Hugging Face one (config.json). metadata_only:
 * side_read is not going to be called, shards need not be there. */
int side_open(struct side *s, const char *path, bool metadata_only, int threads,
    struct glm_error *err);
void side_close(struct side *s);
/* Row of a logical name in a section; -1. */
int64_t side_find(const struct side *s, enum ckpt_section section, const char *name);
/* Hugging Face's name of a row's member (the row's own name unless it is a stack). */
void side_member_name(const struct side_row *r, int64_t member, char *buf, size_t size);
/* The row and member of a logical or Hugging Face name, scales too; row -1 if there is none. */
int64_t side_lookup(
    const struct side *s, enum ckpt_section section, const char *name, int64_t *member);

struct side_cursor { /* one thread's buffers for one side; zero to start */
    struct dio file;
    int64_t open_file; /* 1 + number; 0: none */
    struct reader_scratch *scratch;
    unsigned char *buf;
    size_t capacity;
    struct side_codes {
        unsigned char *p;
        size_t capacity;
    } codes, scales;
};
void side_cursor_clear(struct side_cursor *c);

/* Elements of a rectangle (one expert of a stack), row-major, in the cursor's buffer until its next
 * read. A checkpoint's whole tiles are verified. */
int side_read(const struct side *s, struct side_cursor *c, int64_t row,
    const struct rect *at, const unsigned char **data, struct glm_error *err);
/* The same as float32 numbers: other types cast, codes multiplied by their scales. */
int side_numbers(const struct side *s, struct side_cursor *c, int64_t row,
    const struct rect *at, float *out, struct glm_error *err);

/* Hugging Face only: where a member lies. */
const struct hf_place *side_place(
    const struct side *s, const struct side_row *r, int64_t member);

#endif
