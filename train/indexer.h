/* The indexer: which keys a row attends to, and its own loss (spec/glm-5.2.md 3.6, 4.7). */
#ifndef TRAIN_INDEXER_H
#define TRAIN_INDEXER_H

#include "train/mla.h"

struct indexer {
    struct linear wq_b, wk, weights;
    struct model_param k_gain, k_bias; /* LayerNorm of the key */
    int64_t fill; /* last rows of each sequence that are padding: they have no loss */
    /* Recorded: */
    void *q;         /* [T,NI,DI] rotated */
    void *k_raw, *k; /* [T,DI] before the norm; normed and rotated */
    void *k_mean, *k_rstd;
    void *w;  /* [T,NI] */
    void *kl; /* [T] acc, by indexer_bwd or indexer_kl */
};

/* Makes q, k, w; a is the layer's normed input, c_q the normed query latent. */
int indexer_fwd(struct indexer *x, struct run *r, const void *a, const void *c_q);
/* The K best keys of each row, index [T,K]. */
int indexer_choose(struct indexer *x, struct run *r, int32_t *index);
/* kl alone. m has run; index NULL: over all visible keys, as m's attention was. */
int indexer_kl(
    struct indexer *x, struct run *r, const struct mla *m, const int32_t *index);
/* kl, and the gradients of the indexer's parameters; nothing flows into a or c_q. */
int indexer_bwd(struct indexer *x, struct run *r, const struct mla *m,
    const int32_t *index, const void *a, const void *c_q);

#endif
