/* Toy models: Hugging Face directories written from a configuration alone.
 *
 * The list of tensors is derived here a second time, from the shapes of the model's description
 * and not from the parameter table, so that a test can hold one against the other. Each element
 * is a 64-bit mix of (seed, name, flat index): swapping any two elements, rows, tiles or experts
 * changes the bytes, and any part of a file can be computed without the rest.
 *
 * Functions return 0, or -1 and leave a sentence in toy_error(). */
#ifndef TESTS_SUPPORT_TOY_H
#define TESTS_SUPPORT_TOY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum toy_form {
    TOY_PLAIN,   /* BF16, or F16/F32 by toy_options.dtype; the router bias F32 */
    TOY_FP8,     /* E4M3 + F32 .weight_scale_inv per block */
    TOY_MX_E8M0, /* E4M3 + .weight_scale of dtype F8_E8M0 per 32 inputs */
    TOY_MX_U8    /* the same, dtype U8 */
};

enum toy_type { TOY_BF16, TOY_F16, TOY_F32, TOY_E4M3, TOY_E8M0, TOY_U8, TOY_TYPES };

struct toy_options {
    const char *config; /* path of config.json */
    int files;          /* safetensors files; 0: 1 (named model.safetensors, no index) */
    enum toy_form form;
    enum toy_type dtype; /* TOY_BF16 (default), TOY_F16, TOY_F32 */
    int64_t block[2];    /* TOY_FP8; 0,0: 128,128 */
    uint64_t seed;
    bool fused;  /* experts.gate_up_proj / experts.down_proj instead of one per expert */
    bool no_mtp; /* leave the MTP layers out (config.json still claims them) */
    bool gauss;  /* values like trained weights: normal, std 0.02 */
    bool sparse; /* headers only: data is a hole */
    bool no_sides; /* config.json and index only */
    int threads;   /* 0: 2 */
};

struct toy_tensor {
    char *name;
    enum toy_type type;
    int rank;
    int64_t shape[3];
    uint64_t bytes;
    bool quantised; /* a matrix of the FP8 release's E4M3 set */
    bool is_scale;
    int64_t fused; /* 0; 1: gate_up stack, 2: down stack: elements are the members' */
};

struct toy_model {
    struct toy_tensor *tensors; /* embedding, layers ascending, norm, head */
    int64_t count;
    int64_t elements; /* without scales */
    uint64_t bytes;
    char *config_text; /* as it will be written */
};

const char *toy_error(void);

int toy_model_new(struct toy_model *out, const struct toy_options *o);
void toy_model_clear(struct toy_model *m);

/* Writes the directory (created if need be): safetensors files, index, config, side files. */
int toy_write(const char *dir, const struct toy_options *o);

/* Elements [first, first+count) of a tensor's data, in its own type. */
void toy_fill(const struct toy_options *o, const struct toy_tensor *t, int64_t first,
    int64_t count, void *out);
size_t toy_type_size(enum toy_type type);
const char *toy_type_name(enum toy_type type); /* the safetensors spelling */

/* The 4-file toy of most tests: fixtures/configs/t1.json, run from the root of the tree. */
int toy_write_t1(const char *dir);

#endif
