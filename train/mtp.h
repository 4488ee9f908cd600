/* Multi-token prediction: one more layer that sees the next token too (spec/glm-5.2.md 3.13).
 *
 * Row i of depth 1 reads the main model's hidden state of row i and the embedding of token i+1, and
 * predicts token i+2; embedding and head are the main model's. The last row of a sequence has no next
 * token: it is padding, with token 0 and no target, no indexer loss, and no count in the experts'
 * loads. No other row sees it, so what its experts are sent changes nothing. One depth is built. Further depths
 * repeat mtp_fwd with the hidden state of the depth before, ids and targets one row further, and
 * the keys and index set of the first (spec/training.md 2.4); the total-variation loss of 2.6 takes
 * the place of head_fwd. */
#ifndef TRAIN_MTP_H
#define TRAIN_MTP_H

#include "train/head.h"
#include "train/layer.h"

struct mtp {
    struct norm enorm, hnorm, norm; /* norm: shared_head.norm */
    struct linear eh_proj;
    struct layer layer;
    struct head head;
    /* Recorded: */
    const void *hidden;    /* [T,H] that came in */
    const int32_t *ids;    /* [T] one row ahead, inside each sequence */
    void *e, *cat, *u, *y; /* embedding [T,H]; [T,2H]; layer's input and output */
    void *out;             /* [T,H] normed */
};

int mtp_fwd(struct mtp *m, struct run *r, const struct model_param *embedding,
    const void *hidden, const int32_t *ids, const int32_t *target,
    const int32_t *given_index, const int32_t *given_expert);
/* scale: of the gradient of the sum of cross-entropies. dhidden [T,H] is overwritten. */
int mtp_bwd(struct mtp *m, struct run *r, const struct model_param *embedding,
    double scale, void *dhidden);

/* out[i] = in[i+1] where that is the same sequence, else fill. */
void mtp_shift(int32_t *out, const int32_t *in, const int32_t *cu_seqlens,
    int64_t sequences, int32_t fill);

/* The embedding's gradient, the padding row's left out if the options say so. */
int mtp_embedding_bwd(struct run *r, const struct model_param *embedding,
    const int32_t *ids, const void *dx);

#endif
