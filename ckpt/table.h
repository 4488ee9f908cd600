/* The parameter table: every logical tensor of a model, derived from its configuration alone.
 *
 * One row says all that import, export, convert, reshard, plan, train and verify know of a tensor.
 * Nothing else in the tree knows a tensor's name or how it is cut. A model family is one file of
 * rows (glm52.c) behind struct table_family; the next one is added in family.c's list. */
#ifndef CKPT_TABLE_H
#define CKPT_TABLE_H

#include "ckpt/config.h"
#include "ckpt/tile.h"

/* Which axis of the matrix the parallel axis cuts: TP, or ETP inside routed experts. */
enum table_cut {
    CUT_NONE,
    CUT_ROWS,
    CUT_COLS,
    CUT_VOCAB /* rows, w = 128*ceil(V/(128p)) */
};

enum table_kind { /* what it is, for people: colours, groups, statistics */
    KIND_EMBEDDING,
    KIND_NORM,
    KIND_ATTENTION,
    KIND_INDEXER,
    KIND_DENSE,
    KIND_ROUTER,
    KIND_SHARED_EXPERT,
    KIND_EXPERT,
    KIND_HEAD,
    KIND_MTP,
    KIND_COUNT
};

enum table_optimizer {
    OPT_ADAMW,      /* embeddings, head, norms, biases, what has no matrix meaning */
    OPT_MUON,       /* whole matrix, or each expert of a stack */
    OPT_MUON_HEADS, /* independent blocks of rows per head: head_rows/head_split */
    OPT_ROUTER_BIAS /* no gradient: moved by the expert-bias update */
};

enum table_where {
    WHERE_FIRST,
    WHERE_LAYER,
    WHERE_LAST,
    WHERE_MTP
}; /* which stage holds it */

struct table_entry {
    const char *name; /* Hugging Face name; a stack's is without ".<e>" */
    int rank;         /* of shape; stack: 3 */
    int64_t shape[3];
    bool stack; /* [E, out, in]: the routed experts of one layer and projection */
    enum table_cut cut;
    int64_t unit; /* a slice's width must be a multiple of this: rows of a head, 1, ... */
    enum table_where where;
    int layer; /* 0-based layer; -1 outside the layers; MTP layers follow the main ones */
    enum table_kind kind;
    /* as the BF16 release stores it: BF16, F32 for the router bias */
    enum glm_dtype dtype;
    bool quantised; /* E4M3 with scales in the FP8 and MXFP8 forms */
    bool keep_f32;  /* never cast, unless named */
    enum table_optimizer optimizer;
    bool decay; /* weight decay applies */
    /* OPT_MUON_HEADS: rows per head; head_split: its first part's rows */
    int64_t head_rows;
    int64_t head_split;
    struct tile_grid grid;
};

struct table {
    struct model_config config; /* owned */
    /* in table order: embedding, layer 0.., MTP layers, norm, head */
    struct table_entry *entries;
    int64_t count;
    int64_t hf_tensors, elements; /* totals as Hugging Face counts them, members apart */
    const struct table_family *family;
    struct table_lookup *lookup; /* private */
};

struct table_family {
    const char *model_type;
    int (*config)(
        struct model_config *c, const void *json /* json_t* */, struct glm_error *err);
    /* the head's and the embedding's name, for table_alias */
    const char *tied_name, *tied_to;
    /* Appends rows with table_add (family.h). */
    int (*rows)(struct table *t, struct glm_error *err);
};

/* Takes over *config (cleared on failure too). drop_mtp: the table of the model without MTP; its
 * config.num_mtp_layers is then 0. A tensor of an MTP layer has layer >= num_hidden_layers. */
int table_build(struct table **out, struct model_config *config, bool drop_mtp,
    struct glm_error *err);
void table_free(struct table *t);

/* The row of a Hugging Face (or logical) name. *member: the expert's number, -1 for a whole row.
 * NULL if the name is not in the table. name need not be terminated. */
const struct table_entry *table_find(
    const struct table *t, const char *name, size_t length, int64_t *member);

/* A tied head (config.tie_word_embeddings) is no row: it is stored once, as the embedding, and
 * table_find answers NULL for its name. This is the row that such a name stands for; NULL if name
 * is no alias. */
const struct table_entry *table_alias(
    const struct table *t, const char *name, size_t length);

/* "….mlp.experts.<e>.gate_proj.weight" for a member of a stack, else the name itself.
 * Returns the length, as snprintf. */
int table_member_name(
    const struct table_entry *e, int64_t member, char *buf, size_t size);
static inline int64_t table_members(const struct table_entry *e)
{
    return e->stack ? e->shape[0] : 1;
}

/* Name of the scale tensor that belongs to a quantised weight: ".weight" replaced by suffix
 * (".weight_scale_inv" FP8, ".weight_scale" MXFP8). Works on logical and member names. Returns the
 * length, as snprintf; -1 and "" for a name that does not end in ".weight". */
int table_scale_name(const char *weight, const char *suffix, char *buf, size_t size);
/* The weight a scale's name belongs to: fills buf with its name; false if it is no scale name. */
bool table_scale_of(
    const char *name, size_t length, const char *suffix, char *buf, size_t size);

const char *table_kind_name(enum table_kind kind);

#endif
