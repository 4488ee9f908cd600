/* The model: forward and backward of one micro-batch, every buffer sized once.
 *
 * GLM-5.2 (an index set shared by several layers), GLM-5 and GLM-5.1 (an indexer in every layer), by
 * the configuration in the parameter table. A batch is packed: tokens of several sequences one
 * behind the other, and no row sees another sequence.
 *
 *     model_new(&m, table, params, &options, kernels_find("cpu"), stream, err);
 *     model_forward(m, &batch, NULL, err);           records what backward needs
 *     model_backward(m, &scale, err);                adds to params[i].dw
 *     model_losses(m)
 *
 * Losses come back as sums and counts; gradients are those of
 *
 *     scale.lm * sum CE + scale.mtp * (mtp_coeff / depths) * sum CE_mtp
 *         + scale.indexer * indexer_coeff * sum over rows and layers of KL
 *
 * so that the caller divides by what it counts over the whole batch (spec/training.md 5.2).
 * Bits depend neither on threads nor on what else lies in the pack. */
#ifndef TRAIN_MODEL_H
#define TRAIN_MODEL_H

#include "ckpt/ckpt.h"
#include "kernels/kernels.h"

enum model_indexer_loss {
    MODEL_INDEXER_OFF,
    MODEL_INDEXER_SPARSE, /* over the chosen keys */
    MODEL_INDEXER_DENSE   /* over all visible keys; wants dense_attention */
};

enum model_stage {
    MODEL_TRAIN_ALL,
    MODEL_TRAIN_INDEXER, /* warm-up: nothing but the indexers gets a gradient; no head, no LM loss */
    MODEL_FREEZE_INDEXER /* its choice is used, it does not learn */
};

struct model_options {
    enum glm_dtype dtype; /* BF16, F32; F64 on the CPU */
    int64_t max_tokens, max_sequences;
    enum model_stage stage;
    enum model_indexer_loss indexer_loss;
    double indexer_coeff;
    bool mtp; /* the stored layer, once (depth 1) */
    double mtp_coeff;
    bool dense_attention; /* all visible keys; the indexer runs only for its dense loss */
    /* attention over latent keys instead of expanded heads: equal to rounding */
    bool absorbed;
    bool hf_rounding, hf_scales; /* as transformers rounds and scales, for parity */
    bool zero_padding_row_grad;  /* the padding token's embedding row gets no gradient */
    /* Less is kept for backward, which makes again what is cheap: rows gathered for experts, products
     * of SwiGLU, expanded keys and values. The same bits. */
    bool lean;
    size_t least_bytes; /* of the buffers; they are scratch memory after backward */
    /* Micro-batches of a step, for model_queue (0: 1); ahead: their inputs are kept apart, too, so that
     * all can be placed before the first is queued. */
    int64_t parts;
    bool ahead;
    bool inference; /* no backward: the indexer's loss is computed in forward */
};

/* One row of the table as the model sees it. */
struct model_param {
    const void *w; /* elem; F32 for the router bias. A stack is [E,out,in]. */
    void *dw; /* acc, +=; NULL only for what the stage freezes and for the router bias */
};

struct model_batch { /* the host's memory; copied */
    int64_t tokens, sequences;
    const int32_t *ids, *positions; /* [tokens] */
    const int32_t *targets;         /* [tokens], -100: none */
    const int32_t *cu_seqlens;      /* [sequences + 1] */
    /* backward follows, and makes the heads' losses too, which takes a product less: they are there
     * when it has been */
    bool late;
};

/* Recorded choices to use instead of the model's own; per layer, MTP layer last; the host's memory. */
struct model_replay {
    const int32_t *const *index; /* [T,K] of a layer that owns an indexer, else NULL */
    /* [T,experts per token] ascending; NULL for dense layers */
    const int32_t *const *expert;
};

struct model_scale {
    double lm, mtp, indexer;
};

struct model_losses {
    double lm_sum, mtp_sum;
    int64_t lm_count, mtp_count; /* targets */
    int64_t layers;              /* MTP layer included */
    const double
        *indexer_sum; /* [layers]: sum of KL over rows, 0 without an indexer. After
                                    backward; after forward for inference. */
    int64_t indexer_layers, indexer_rows; /* rows: that have a KL, over all layers */
};

struct model;

/* params: one per row of the table, in its order; borrowed, as table and stream are. */
int model_new(struct model **out, const struct table *table,
    const struct model_param *params, const struct model_options *options,
    const struct kernels *k, glm_stream stream, struct glm_error *err);
void model_free(struct model *m);
size_t model_bytes(const struct model *m); /* of the buffers */

int model_forward(struct model *m, const struct model_batch *batch,
    const struct model_replay *replay, struct glm_error *err);
int model_backward(
    struct model *m, const struct model_scale *scale, struct glm_error *err);
const struct model_losses *model_losses(const struct model *m);

/* A step that nobody looks into: place the inputs of each part (of the last one only, without
 * `ahead`), clear the sums, queue the parts, and when the stream has been waited for, fetch the
 * losses of all. clear and queue touch no memory of the host, so they can be recorded and run again
 * on other inputs of the same numbers of tokens and sequences (kernels.h).
 * load[layer] gets the tokens of its experts, NULL: not counted; load NULL: none is. */
int model_place(struct model *m, int64_t part, const struct model_batch *batch,
    struct glm_error *err);
int model_clear(struct model *m, struct glm_error *err);
int model_queue(struct model *m, int64_t part, const struct model_scale *scale,
    int64_t *const *load, struct glm_error *err);
int model_fetch(struct model *m, struct glm_error *err);
const struct model_losses *model_losses_of(struct model *m, int64_t part);
/* The heads' sums of all parts, in the backend's memory. */
const double *model_watched(const struct model *m, int64_t *n);

/* Of the last forward, valid until the next; in the backend's memory. */
int64_t model_keys(const struct model *m); /* K: columns of an index set */
const int32_t *model_index(const struct model *m, int64_t layer); /* [T,K]; NULL: none */
const int32_t *model_expert(
    const struct model *m, int64_t layer);       /* [T,k]; NULL: dense layer */
const void *model_hidden(const struct model *m); /* [T,H] elem, what the head is given */
const void *model_mtp_hidden(const struct model *m); /* NULL without MTP */
/* Tokens sent to each expert, added to load[E] in the backend's memory; nothing for a dense layer. The
 * last row of a sequence in the MTP layer is padding and not counted. */
int model_add_loads(
    const struct model *m, int64_t layer, int64_t *load, struct glm_error *err);

#endif
