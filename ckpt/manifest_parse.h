/* Private to the manifest's parser: the cursor over lines and fields, and the seams of its parts. */
#ifndef CKPT_MANIFEST_PARSE_H
#define CKPT_MANIFEST_PARSE_H

#include "ckpt/manifest_text.h"

enum { FIELDS_MOST = 16 };

struct field {
    const char *text;
    size_t length;
};

struct parse {
    const char *path;
    const char *at, *end;
    int64_t line;      /* of the fields, from 1 */
    const char *start; /* of the line */
    size_t start_length;
    struct field f[FIELDS_MOST];
    int fields;
    struct manifest *m;
    const struct table *table;
    int64_t piece_room, shard_room;
    uint64_t *shard_end;   /* where the last extent of each shard ends */
    int64_t *shard_tensor; /* the last tensor with a piece there */
    int *shard_volume;
    struct glm_error *err;
};

/* Records "<path>: manifest, line <n>: <sentence>"; bytes that do not print become '?'. */
int parse_fail(struct parse *p, const char *fmt, ...) GLM_PRINTF(2, 3);
int parse_no_memory(struct parse *p);

/* Reads the next line into p->f. False at the end of the text or on a line that no manifest has,
 * which err then tells. */
bool parse_next(struct parse *p);
bool parse_field_is(const struct field *f, const char *word);
bool parse_line_is(const struct parse *p, const char *word);
/* The current line has this first word and this many fields. */
int parse_line_of(struct parse *p, const char *word, int fields);

int parse_u64(struct parse *p, int i, const char *what, uint64_t *out);
int parse_i64(struct parse *p, int i, const char *what, int64_t *out);
int parse_digest(struct parse *p, int i, unsigned char out[32]);
/* "a,b,c" or "-" for none. Returns the count, -1 on failure. */
int parse_list(struct parse *p, int i, const char *what, int64_t *out, int most);

/* A tensor line and its piece lines; afterwards the line behind them is current (*more). */
int parse_tensor(struct parse *p, bool *more);

#endif
