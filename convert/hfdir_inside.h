/* What the steps of hfdir_open share; nobody else includes this.
 *
 *     scan     the folder: data files, index, side files            hfdir_scan.c
 *     headers  of all data files, several at the same time          hfdir_scan.c
 *     index    weight_map against the headers                       hfdir_index.c
 *     match    each tensor of each header to a row of the table     hfdir_match.c
 *     check    missing, extra, duplicate, misshapen, scales         hfdir_check.c
 *     keep     what a subset keeps, and the config that says so     hfdir_keep.c */
#ifndef CONVERT_HFDIR_INSIDE_H
#define CONVERT_HFDIR_INSIDE_H

#include "convert/hfdir.h"

enum { HF_LISTED = 5, HF_NAME = 512 }; /* names an error lists before it only counts */

/* A list for a sentence: the first names, and how many there are. */
struct hf_names {
    int64_t count;
    char text[640];
};
void hfdir_list(struct hf_names *n, const char *fmt, ...) GLM_PRINTF(2, 3);

enum { HF_SUFFIXES = 3 };
extern const char *const hfdir_suffixes[HF_SUFFIXES];

/* The source as a whole, before anything is left out. */
struct hf_match {
    const struct hf_source *s;
    const struct table *table; /* of all that config.json describes */
    int64_t *first; /* [table->count] an entry's first unit; its members follow */
    int64_t units;
    struct hf_place *places; /* [2 * unit]: the weight; [2 * unit + 1]: its scale */
    int64_t block[2]; /* weight elements per scale, from the configuration; 0: not said */
    bool fused;
    bool mtp_may_lack;
    struct hf_names extra, twice, misshapen;
    struct hf_names half_bytes; /* weights of a type with several elements in a byte */
    struct hf_names suffixes[HF_SUFFIXES]; /* scales by the suffix of their name */
    struct hf_names unsettled;  /* scales whose meaning the configuration does not give */
    struct hf_names bad_scales; /* scales of a type that is none */
    int scale_dtype; /* of the first scale, U8 counted as F8_E8M0; -1: no scale */
    struct hf_names other_scales; /* scales of another type than the first */
    int stray_layer; /* a layer without indexer of its own that has one; -1 */
};

/* What is kept of the source. */
struct hf_keep {
    int *layers;                 /* new layer -> old layer; owned */
    int layer_count, main_count; /* MTP layers are last */
    const int *experts;          /* new expert -> old expert; NULL: all */
    int64_t expert_count;
};

int hfdir_warn(struct hf_source *s, struct glm_error *err, const char *fmt, ...)
    GLM_PRINTF(3, 4);

int hfdir_read_header(struct hf_source *s, int64_t file, struct glm_error *err);
int hfdir_scan(struct hf_source *s, char **index_name, struct glm_error *err);
int hfdir_headers(struct hf_source *s, int threads, struct glm_error *err);
int hfdir_index(struct hf_source *s, const char *index_name, struct glm_error *err);
/* The same for a text at hand; s has files with headers and takes the warnings. */
int hfdir_index_text(struct hf_source *s, const char *path, const char *text, size_t size,
    struct glm_error *err);

/* Fills a match (s and table are set); only memory can fail, what is wrong is in the lists. */
int hfdir_match(struct hf_match *m, struct glm_error *err);
void hfdir_match_clear(struct hf_match *m);
/* Judges it, as far as what is kept is concerned. */
int hfdir_check(
    const struct hf_match *m, const struct hf_keep *keep, struct glm_error *err);

/* Checks the lists of a subset against the model and says what is kept. */
int hfdir_keep(struct hf_keep *keep, const struct model_config *c,
    const struct hf_options *o, struct glm_error *err);
/* config.json of what is kept: malloc'd text. */
int hfdir_keep_config(const struct hf_keep *keep, const struct model_config *c,
    const char *text, size_t size, char **out, size_t *out_size, struct glm_error *err);

#endif
