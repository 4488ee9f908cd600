/* Small checkpoints, written with the library's own parts and nothing of the commands.
 *
 * Element i of a tensor is a mix of (section/name, i) shaped so that its type holds numbers:
 *     x    = rng_mix(fnv1a64("section/name") + i)
 *     BF16 x & 0x80FF | 0x3C00     F32  x & 0x807FFFFF | 0x3C000000 (the masters, too)
 *     F8_E4M3 x & 0x8F | 0x30      F8_E8M0 120 + x % 8     all others: the low bytes of x
 * A derived weight is its master rounded to nearest even. */
#ifndef TESTS_SUPPORT_SMALLCKPT_H
#define TESTS_SUPPORT_SMALLCKPT_H

#include "ckpt/index.h"
#include "ckpt/volumes.h"

#define SMALL_CHANGED "model.layers.3.mlp.experts.up_proj.weight"

enum smallckpt_form { SMALL_BF16, SMALL_MXFP8, SMALL_FP8 };

struct smallckpt_options {
    const char *config; /* fixtures/configs/<config>.json; NULL: "tiny-a" */
    struct topology topo;
    struct volumes_options volumes;
    enum smallckpt_form form;
    bool training; /* masters (weights derived), optimizer state, and section train */
    bool no_mtp;
    /* training: element [2,3,5] of SMALL_CHANGED's momentum has another bit */
    bool changed;
};

struct smallckpt {
    struct table *table;
    struct manifest *m; /* complete, as index_write wants it */
    unsigned char *tiles;
    struct ckpt_chunk *chunks;
    char *config_text;
    void *big; /* side file of 1 MB */
};

/* Fills *s and writes the shards into dir, which must exist. Clear it in any case. */
int smallckpt_shards(struct smallckpt *s, const char *dir,
    const struct smallckpt_options *o, struct glm_error *err);
void smallckpt_clear(struct smallckpt *s);
/* The same and index.h5: a whole checkpoint. */
int smallckpt_write(
    const char *dir, const struct smallckpt_options *o, struct glm_error *err);

/* n elements of a tensor from flat index `first`, as the tensor's own type. */
void smallckpt_elements(const struct ckpt_tensor *t, int64_t first, int64_t n, void *out);

#endif
