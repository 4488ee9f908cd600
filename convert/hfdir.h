/* A Hugging Face model directory: headers, index, side files, and where each logical tensor lies.
 *
 * The directory may be a hub-cache snapshot (symlinks to blobs): it is read in place and never
 * written. Every way to be wrong is its own sentence: missing, extra, duplicate, misshapen, index
 * and headers that disagree, stale files, scales without weights. */
#ifndef CONVERT_HFDIR_H
#define CONVERT_HFDIR_H

#include "ckpt/ckpt.h"
#include "convert/safetensors.h"

struct hf_file {
    char *name; /* relative to the directory */
    struct st_header header;
    void *header_bytes; /* 8 + N bytes as they are in the file */
};

struct hf_side {
    char *path;
    uint64_t bytes;
}; /* config.json, tokenizer..., LICENSE */

/* Where the full matrix of one (row, member) or of its scale lies: contiguous row-major. */
struct hf_place {
    int32_t file; /* -1: not in the source */
    enum glm_dtype dtype;
    uint64_t offset; /* absolute byte offset in the file */
};

struct hf_subset { /* --layers, --experts: NULL lists mean all. Old numbers, ascending. */
    const int *layers;
    int layer_count;
    const int *experts;
    int expert_count;
};

/* Where the files of a model come from, if not from a folder. Calls come from several threads.
 * Names are those that list gave. */
struct hf_store {
    void *ctx;
    /* The i-th file of the top folder, in no order; NULL: there are no more. */
    const char *(*list)(void *ctx, int64_t i, uint64_t *bytes);
    int (*slurp)(void *ctx, const char *name, size_t limit, void **data, size_t *size,
        struct glm_error *err);
    /* The header of a data file and its 8 + N bytes. */
    int (*header)(void *ctx, const char *name, struct st_header *out, void **bytes,
        struct glm_error *err);
    /* Where the whole file lies on this machine, NULL if it does not. */
    const char *(*local)(void *ctx, const char *name);
};

struct hf_source {
    char *dir;                    /* with a store: what sentences call it */
    const struct hf_store *store; /* NULL: the folder dir */
    struct table *table; /* of the model as it will be imported (subset applied) */
    struct hf_file *files;
    int64_t file_count;
    struct hf_side *sides;
    int64_t side_count;
    char *config_text;
    size_t config_size; /* config.json to store: rewritten for a subset */
    bool fused;         /* experts came as gate_up_proj / down_proj stacks */
    bool has_mtp, subset;
    const int *experts; /* kept experts (old numbers) or NULL; owned */
    /* scales: "" none, ".weight_scale_inv", ".weight_scale", ".scale" as found in the source */
    char scale_suffix[32];
    /* rows, columns of weight per scale element: 128,128 or 1,32 */
    int64_t scale_block[2];
    enum glm_dtype scale_dtype; /* F32, BF16 or F8_E8M0 (U8 in MXFP8 counts as F8_E8M0) */
    char **warnings;
    int warning_count;
    int64_t tensors;         /* Hugging Face tensors used */
    uint64_t bytes;          /* of them */
    struct hf_place *places; /* private layout: hfdir_place */
    int64_t *first;          /* private: an entry's first unit in places */
};

struct hf_options {
    bool no_mtp;
    /* the MTP layers' tensors may be absent, all of them: file is -1 then */
    bool mtp_may_lack;
    struct hf_subset subset;
    int threads;                  /* headers read at the same time */
    const struct hf_store *store; /* must outlive the source */
};

/* "0-3,78" to ascending numbers (malloc'd, each once): GLM_EUSAGE names option and place. */
int hf_list_parse(
    const char *option, const char *text, int **list, int *count, struct glm_error *err);

int hfdir_open(struct hf_source **out, const char *dir, const struct hf_options *o,
    struct glm_error *err);
void hfdir_close(struct hf_source *s);
/* A side file, whole. */
int hfdir_slurp(const struct hf_source *s, const char *name, size_t limit, void **data,
    size_t *size, struct glm_error *err);
/* Place of entry's member (0 for whole rows); scale: of its scale tensor. */
const struct hf_place *hfdir_place(
    const struct hf_source *s, const struct table_entry *e, int64_t member, bool scale);
/* For rows that --experts cuts (router weight and bias): source row of kept row r is
 * s->experts[r]; true if entry is such a row. */
bool hfdir_cut_rows(const struct hf_source *s, const struct table_entry *e);

/* What is wrong with a name from outside as the name of a file of the model, NULL if nothing:
 * absolute, in a sub-folder, "..", backslash, control characters, reserved by some system. */
const char *hfdir_name_trouble(const char *name, size_t length);

#endif
