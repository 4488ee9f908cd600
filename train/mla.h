/* Multi-head latent attention (spec/glm-5.2.md 3.4, 3.8, 3.9, 4.4). */
#ifndef TRAIN_MLA_H
#define TRAIN_MLA_H

#include "train/module.h"

struct mla {
    struct linear q_a, q_b, kv_a, kv_b, o;
    struct norm q_norm, kv_norm;
    /* Recorded: */
    void *q_lat, *c_q; /* [T,QR] before and behind the norm */
    void *q;           /* [T,N,Dn+Dr] */
    void *z, *c_kv;    /* [T,KR+Dr] latent and rotated key; [T,KR] */
    /* As attention saw them. Expanded: k [T,N,Dn+Dr], v [T,N,Dv]. Absorbed: queries [T,N,KR+Dr],
     * k [T,KR+Dr] latent and rotated, v its first KR. */
    void *aq, *k, *v, *ao, *lse;
    void *heads; /* [T,N,Dv] */
    int64_t Nk, Dq, Dv, k_stride, v_stride;
    double scale;
};

/* Two steps, because the indexer stands between them: it reads c_q. */
int mla_latent_fwd(struct mla *m, struct run *r, const void *a);
/* y [T,H]; index [T,K], or NULL for all visible keys. */
int mla_fwd(struct mla *m, struct run *r, const void *a, const int32_t *index, void *y);
/* Queries, keys and values (absorbed: and what they sum to) again, in temporary memory, where the run keeps none. Before what reads them. */
int mla_again(struct mla *m, struct run *r);
int mla_bwd(struct mla *m, struct run *r, const void *a, const int32_t *index,
    const void *dy, void *da);

#endif
